"""Repository control and the flip, on the real server."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import numpy as np
import pytest

from blurfleet.deadline import came_true
from blurfleet.errors import EngineError, EngineTimeout, InvalidInput
from blurfleet.reasons import Reason
from blurfleet.serving.triton import TritonClient
from blurfleet_agent.config_text import engine_config
from blurfleet_agent.control import RepositoryControl
from blurfleet_agent.flip import await_version, flip_alias, verify_alias
from blurfleet_agent.tritoncommand import KEY_HEADER, pick_ports
from blurfleet_cli.swap_bench import SwapBench, run_swaps, run_unload_load

SLOW = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(1.0)  # what makes this engine slow
        matte = np.full((1, 1, 32, 32), 0.25, dtype=np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("matte", matte)]) for _ in requests]
"""


def loads(bench: SwapBench) -> dict[str, int]:
    """How often each model was loaded so far."""
    return dict(bench.server.loads_logged())


def publish(bench: SwapBench, name: str, source: str, folder: Path) -> None:
    """Publish an engine with the tiny engines' tensors and this model.py."""
    path = folder / f"{name}.py"
    path.write_text(source)
    bench.repository.publish_engine(name, engine_config(bench.engines[0].record, name), {"model.py": path})


def test_an_engine_answers_under_its_own_name_with_its_own_pixels(triton: SwapBench) -> None:
    rng = np.random.default_rng(1)
    image = rng.random((1, 3, triton.size, triton.size), dtype=np.float32)
    for engine in triton.engines:
        answer = triton.client.infer(engine.name, image, timeout_s=30.0)
        assert (answer.model_name, answer.model_version) == (engine.name, 1)
        assert answer.matte.dtype == np.float32
        np.testing.assert_array_equal(answer.matte, image[:, :1] * np.float32(engine.scale))


def test_a_flip_serves_the_new_engine_as_the_new_epoch_and_loads_the_alias_only(triton: SwapBench) -> None:
    triton.flip()
    before = loads(triton)
    for _ in range(4):
        flip = triton.flip()
        answer = triton.client.infer(triton.alias, triton.probe, timeout_s=30.0)
        assert (answer.model_name, answer.model_version) == (triton.alias, flip.epoch)
        np.testing.assert_array_equal(answer.matte, np.full_like(answer.matte, flip.scale))
        assert triton.repository.alias_epochs(triton.alias) == (flip.epoch,)
    assert loads(triton) == before | {triton.alias: before[triton.alias] + 4}


def test_the_first_flip_after_a_load_reloads_no_engine(triton: SwapBench, tmp_path: Path) -> None:
    """Python would leave its bytecode cache in the engine's folder at the load, and the flip would see a change."""
    name = "bokeh__cccccccccccc"
    publish(triton, name, SLOW.replace("1.0", "0.0"), tmp_path)
    triton.control.load(name, timeout_s=30.0)
    assert triton.client.infer(name, triton.probe, timeout_s=30.0).matte[0, 0, 0, 0] == 0.25
    before = loads(triton)
    triton.flip()
    triton.control.load(name, timeout_s=30.0)
    assert loads(triton)[name] == before[name] == 1
    triton.control.unload(name)


def test_the_index_states_each_version_and_why_it_is_unavailable(triton: SwapBench, tmp_path: Path) -> None:
    publish(triton, "bokeh__broken000000", "def broken(:\n", tmp_path)
    with pytest.raises(EngineError) as caught:
        triton.control.load("bokeh__broken000000", timeout_s=30.0)
    assert caught.value.reason is Reason.LOAD_FAILED
    assert "SyntaxError: invalid syntax" in caught.value.message
    assert "At:" not in caught.value.message
    assert "\n" not in caught.value.message
    index = triton.control.index()
    assert index["bokeh__broken000000"][1].state == "UNAVAILABLE"
    assert index["bokeh__broken000000"][1].reason != ""
    assert index[triton.engines[0].name][1].state == "READY"
    assert triton.control.ready(triton.engines[0].name, 1)
    assert not triton.control.ready(triton.engines[0].name, 2)
    assert not triton.control.ready("bokeh__broken000000")
    assert triton.client.server_ready()  # strict readiness would have taken the node out
    assert triton.client.infer(triton.engines[0].name, triton.probe, timeout_s=30.0).matte[0, 0, 0, 0] == 1.0


def test_a_flip_to_an_engine_that_is_not_loaded_is_refused_and_touches_nothing(triton: SwapBench) -> None:
    """Triton would take the alias's old version away as well."""
    good = triton.flip()
    config = triton.repository.models / triton.alias / "config.pbtxt"
    before = config.stat()
    with pytest.raises(EngineError) as caught:
        flip_alias(
            repository=triton.repository,
            control=triton.control,
            client=triton.client,
            alias=triton.alias,
            engine="bokeh__absent000000",
            epoch=good.epoch + 1,
            inputs=triton.engines[0].record.inputs,
            outputs=triton.engines[0].record.outputs,
            probe=triton.probe,
            deadline_s=2.0,
        )
    assert caught.value.reason is Reason.ENGINE_NOT_READY
    assert (config.stat().st_ino, config.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert triton.client.infer(triton.alias, triton.probe, timeout_s=30.0).model_version == good.epoch


def test_a_version_that_never_becomes_ready_is_a_stale_alias(triton: SwapBench) -> None:
    flip = triton.flip()
    with pytest.raises(EngineTimeout) as caught:
        await_version(triton.control, triton.alias, flip.epoch + 1, deadline_s=0.05)
    assert caught.value.reason is Reason.ALIAS_STALE
    with pytest.raises(EngineError) as other:
        verify_alias(triton.client, triton.alias, flip.epoch + 1, triton.probe, timeout_s=30.0)
    assert other.value.reason is Reason.ALIAS_STALE


def test_without_the_key_neither_protocol_controls_the_repository(triton: SwapBench) -> None:
    with RepositoryControl(triton.server.grpc_address, "not-the-key") as stranger:
        for call in (stranger.index, lambda: stranger.load(triton.engines[0].name, timeout_s=30.0)):
            with pytest.raises(EngineError) as caught:
                call()
            assert caught.value.reason is Reason.TRITON_REFUSED
    for key, status in ((None, 403), ("not-the-key", 403), (triton.server.settings.key, 200)):
        connection = http.client.HTTPConnection(triton.server.http_address, timeout=60)
        connection.request("POST", "/v2/repository/index", headers={} if key is None else {KEY_HEADER: key})
        assert connection.getresponse().status == status
        connection.close()


def test_statistics_count_the_answers_of_each_version(triton: SwapBench, tmp_path: Path) -> None:
    name = "bokeh__counted00000"
    publish(triton, name, SLOW.replace("1.0", "0.0"), tmp_path)
    triton.control.load(name, timeout_s=30.0)

    def counted() -> tuple[int, int]:
        found = triton.control.statistics()[name][1]
        return found.succeeded, found.failed

    assert counted() == (0, 0)
    for times in (1, 2):
        triton.client.infer(name, triton.probe, timeout_s=30.0)
        # A backend counts after its answer has gone out.
        assert came_true(lambda times=times: counted() == (times, 0), 60.0), counted()
    triton.control.unload(name)


def test_failures_of_an_inference_are_told_apart(triton: SwapBench, tmp_path: Path) -> None:
    publish(triton, "bokeh__slow00000000", SLOW, tmp_path)
    triton.control.load("bokeh__slow00000000", timeout_s=30.0)
    with pytest.raises(EngineTimeout) as slow:
        triton.client.infer("bokeh__slow00000000", triton.probe, timeout_s=0.2)
    with pytest.raises(EngineError) as unknown:
        triton.client.infer("nobody", triton.probe, timeout_s=30.0)
    with pytest.raises(EngineError) as shape:
        triton.client.infer(triton.engines[0].name, triton.probe[:, :, :8], timeout_s=30.0)
    with pytest.raises(InvalidInput) as dtype:
        triton.client.infer(triton.engines[0].name, triton.probe.astype(np.float64), timeout_s=30.0)
    with TritonClient(f"127.0.0.1:{pick_ports().grpc}") as nowhere:
        assert not nowhere.server_ready(timeout_s=0.5)
        with pytest.raises(EngineError) as gone:
            nowhere.infer("bokeh", triton.probe, timeout_s=30.0)
    reasons = [caught.value.reason for caught in (slow, unknown, shape, dtype, gone)]
    assert reasons == [
        Reason.INFER_TIMEOUT,
        Reason.INFER_FAILED,
        Reason.INFER_FAILED,
        Reason.WRONG_DTYPE,
        Reason.TRITON_UNREACHABLE,
    ]


ECHO_HEADERS = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            seen = json.loads(request.parameters() or "{}")
            matte = np.full((1, 1, 32, 32), float("traceparent" in seen), dtype=np.float32)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("matte", matte)]))
        return answers
"""


def test_a_trace_context_reaches_the_engine(triton: SwapBench, tmp_path: Path) -> None:
    publish(triton, "bokeh__echo00000000", ECHO_HEADERS, tmp_path)
    triton.control.load("bokeh__echo00000000", timeout_s=30.0)
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    for sent, seen in ((headers, 1.0), (None, 0.0)):
        answer = triton.client.infer("bokeh__echo00000000", triton.probe, timeout_s=30.0, headers=sent)
        assert answer.matte[0, 0, 0, 0] == seen


def test_no_request_fails_or_is_stale_while_the_alias_flips_under_load(triton: SwapBench) -> None:
    report = run_swaps(triton, flips=30, clients=4, rate_hz=15.0, progress=lambda _line: None)
    assert report["requests"] >= 30
    assert {key: report[key] for key in ("failed", "stale", "mixed", "loads_per_flip")} == {
        "failed": 0,
        "stale": 0,
        "mixed": 0,
        "loads_per_flip": 1.0,
    }
    json.dumps(report, allow_nan=False)


def test_unloading_before_loading_is_an_outage_that_clients_see(triton: SwapBench) -> None:
    """The way not taken: it is what the bench compares the flip with, so it must really fail."""
    report = run_unload_load(triton, times=1, clients=4, rate_hz=15.0)
    assert report["failed"] > 0
    assert report["outage_ms"] > 200.0
