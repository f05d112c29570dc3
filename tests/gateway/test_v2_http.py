"""KServe v2 over HTTP by tritonclient, as teams use it: one header more, and nothing else."""

from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from blurfleet.api.contract import contract_at
from blurfleet.contract import contract_hash
from blurfleet.pixels import to_tensor

Rig = Any  # the fixture's class lives in conftest.py


def tensor_of(rig: Rig) -> np.ndarray:
    rgb = np.random.default_rng(7).integers(0, 256, (rig.size, rig.size, 3), dtype=np.uint8)
    return to_tensor(rgb, contract_at(rig.size))


def declared(rig: Rig) -> dict[str, str]:
    return {"x-blurfleet-contract": contract_hash(contract_at(rig.size))}


@pytest.fixture
def v2(client: httpx.Client) -> Any:
    with triton.InferenceServerClient(f"{client.base_url.host}:{client.base_url.port}") as made:
        yield made


@pytest.mark.parametrize("binary_out", [True, False], ids=["binary out", "json out"])
@pytest.mark.parametrize("binary_in", [True, False], ids=["binary in", "json in"])
def test_a_tensor_is_answered_by_the_served_engine(rig: Rig, v2: Any, binary_in: bool, binary_out: bool) -> None:
    tensor = tensor_of(rig)
    sent = triton.InferInput("image", list(tensor.shape), "FP32")
    sent.set_data_from_numpy(tensor, binary_data=binary_in)
    wish = triton.InferRequestedOutput("matte", binary_data=binary_out)
    answer = v2.infer("bokeh", [sent], outputs=[wish], headers=declared(rig), request_id="mine")
    np.testing.assert_array_equal(answer.as_numpy("matte"), rig.matte("subject")[None, None])
    np.testing.assert_array_equal(rig.engines.tensors[0], tensor)
    said = answer.get_response()
    assert (said["model_name"], said["model_version"], said["id"]) == ("bokeh", "7", "mine")
    assert said["parameters"]["x-blurfleet-engine"] == rig.primary.engine
    assert rig.engines.asked == [rig.primary.engine]


def test_without_the_contracts_hash_the_client_reads_why(rig: Rig, v2: Any) -> None:
    tensor = tensor_of(rig)
    sent = triton.InferInput("image", list(tensor.shape), "FP32").set_data_from_numpy(tensor)
    with pytest.raises(InferenceServerException) as refused:
        v2.infer("bokeh", [sent])
    assert refused.value.status() == "412"
    assert "x-blurfleet-contract is missing" in refused.value.message()
    assert rig.engines.asked == []
