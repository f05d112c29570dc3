"""Evidence is personal: what a client or a fleet refuses to have kept is nowhere on the node, tried on real parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.agent.conftest import Site
from tests.agent.tiny import engine, golden, picture, tensor_of
from tests.gateway.test_gateway_process import Process, start

from blurfleet.api.nodeengine import EngineRef
from blurfleet.quality.evidence import load_evidence
from blurfleet.quality.replay import replay_evidence

Until = Callable[..., None]
Array = NDArray[np.float32]


@contextmanager
def gateway_of(site: Site, **settings: str) -> Iterator[Process]:
    """Run the gateway on the node's own folder, so that its frames reach the node's agent."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"alias": site.alias, **settings}.items():
            patch.setenv(f"BLURFLEET_{name.upper()}", value)
        process = start(site.settings.node_dir, site.settings.triton_grpc)
    try:
        yield process
    finally:
        process.client.close()
        assert process.stop() == 0


def serve_risky(site: Site, until: Until, gateway: Process) -> EngineRef:
    """Bring an engine that answers bright pictures with NaN into service; return it."""
    fp32 = engine(site.shelf, "sound", set_name="base", precision="FP32", salt=site.alias)
    risky = engine(site.shelf, "nan-when-bright", set_name="next", salt=site.alias)
    wish = {"fallback": fp32, "oracle": fp32.model_copy(update={"set": "next"}), "golden": golden(site.shelf)}
    site.want(site.model(primary=fp32, candidate=risky, **wish))

    def proven() -> bool:
        gateway.client.post("/v1/matte", content=picture(11), headers={"x-blurfleet-evidence": "no"})
        return site.phase() == "Proven"

    until(proven, every=0.1)
    site.want(site.model(primary=risky, **wish))
    until(lambda: site.serves(risky.digest))
    return risky


def kept_arrays(folder: Path) -> list[Array]:
    """Return every array in every file below the folder."""
    found = []
    for root, _, names in os.walk(folder):
        for name in names:
            if name.endswith((".npz", ".npy")):
                loaded = np.load(Path(root, name), allow_pickle=False)
                found += [loaded[key] for key in loaded.files] if name.endswith(".npz") else [loaded]
    return found


def holds(arrays: list[Array], tensor: Array) -> bool:
    """Tell whether a tensor is among the arrays, alone or in a stack."""
    return any(
        a.shape[-3:] == tensor.shape[-3:] and (a.reshape(-1, *tensor.shape[-3:]) == tensor).all(axis=(1, 2, 3)).any()
        for a in arrays
    )


@pytest.mark.parametrize(
    ("fleet", "allowed_kept"),
    [
        pytest.param({}, True, id="the client refuses"),
        pytest.param({"evidence": "false"}, False, id="the gateway refuses for all"),
    ],
)
def test_a_frame_that_was_refused_trips_the_guard_and_is_nowhere_in_the_evidence(
    site: Site, until: Until, fleet: dict[str, str], allowed_kept: bool
) -> None:
    with site.running():
        until(lambda: site.settings.node_dir.exists())
        with gateway_of(site, **fleet) as gateway:
            risky = serve_risky(site, until, gateway)
            ask = gateway.client.post
            allowed, refused = picture(31), picture(32, bright=True)
            for _ in range(4):
                assert ask("/v1/matte", content=allowed).status_code == 200
            answer = ask("/v1/matte", content=refused, headers={"x-blurfleet-evidence": "no"})
            assert (answer.status_code, answer.headers["x-blurfleet-withheld"]) == (200, "NonFiniteOutput")
            until(lambda: not site.serves(risky.digest))
            until(lambda: site.model_status().last_trip is not None)
            trip = site.model_status().last_trip
            assert (trip.reason, trip.frames_to_detect) == ("NonFiniteOutput", 1)
            until(lambda: Path(trip.evidence).exists())
            evidence = load_evidence(Path(trip.evidence))
            assert evidence.reason == "NonFiniteOutput"
            assert evidence.samples[-1].figures["NonFinite"] != "0", "its figures are there"
            assert replay_evidence(Path(trip.evidence)).same, "and are enough to judge it again"
            arrays = kept_arrays(site.settings.evidence_dir)
            assert not holds(arrays, tensor_of(refused))
            assert holds(arrays, tensor_of(allowed)) is allowed_kept


def test_an_agent_that_keeps_no_pictures_keeps_none_whatever_a_gateway_says(site: Site, until: Until) -> None:
    site.settings = site.settings.model_copy(update={"evidence": False})
    with site.running(), gateway_of(site) as gateway:
        risky = serve_risky(site, until, gateway)
        bright = picture(33, bright=True)
        assert gateway.client.post("/v1/matte", content=bright).headers["x-blurfleet-withheld"] == "NonFiniteOutput"
        until(lambda: not site.serves(risky.digest))
        until(lambda: site.model_status().last_trip is not None)
        trip = site.model_status().last_trip
        until(lambda: Path(trip.evidence).exists())
        assert load_evidence(Path(trip.evidence)).samples
        assert not holds(kept_arrays(site.settings.evidence_dir), tensor_of(bright))
