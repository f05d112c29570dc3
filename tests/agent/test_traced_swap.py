"""From one request to the swap it caused: gateway, Triton and agent, all real, in one collector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.conftest import NODE, Site
from tests.agent.tiny import engine, golden, picture
from tests.gateway.conftest import http
from tests.tracing.collector import Collector, collecting

from blurfleet.quality.evidence import load_evidence
from blurfleet.serving.frames import FrameSender
from blurfleet.serving.triton import TritonClient
from blurfleet_agent.tritonenv import TritonEnvironment
from blurfleet_agent.tritonserver import TritonServer, TritonSettings, new_key, new_shm_prefix, pick_ports
from blurfleet_preprocess.main import application
from blurfleet_preprocess.settings import GatewaySettings

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture(scope="module")
def server(
    triton_environment: TritonEnvironment, tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> Iterator[TritonServer]:
    """A running Triton that traces, in place of the usual one."""
    folder = tmp_path_factory.mktemp("triton")
    (folder / "models").mkdir()
    settings = TritonSettings(
        model_repository=folder / "models", key=new_key(), ports=pick_ports(), shm_prefix=new_shm_prefix()
    )
    settings = replace(settings, trace_url=collector.url, node=NODE)
    with TritonServer(triton_environment, settings, log=folder / "triton.log") as running:
        running.wait_ready(60.0)
        yield running


def test_a_swap_links_to_the_request_whose_matte_was_withheld(
    site: Site, collector: Collector, until: Callable[..., None]
) -> None:
    fp32 = engine(site.shelf, "sound", set_name="base", precision="FP32", salt=site.alias)
    risky = engine(site.shelf, "nan-when-bright", set_name="next", salt=site.alias)
    bundle = golden(site.shelf)
    wish = {"fallback": fp32, "oracle": fp32.model_copy(update={"set": "next"}), "golden": bundle}
    site.settings = site.settings.model_copy(update={"trace_url": collector.url})
    settings = GatewaySettings(
        node=NODE,
        node_dir=site.settings.node_dir,
        triton_grpc=site.settings.triton_grpc,
        alias=site.alias,
        trace_url=collector.url,
        trace_share=0.0,
    )
    site.want(site.model(primary=fp32, fallback=fp32, oracle=fp32, golden=bundle))
    with site.running(), TritonClient(settings.triton_grpc) as triton:
        until(lambda: site.serves(fp32.digest) and site.condition("SwapProven").status == "True", what="the baseline")
        frames = FrameSender(settings.frames_socket)
        with http(application(settings, triton, frames)) as client:
            site.want(site.model(primary=fp32, candidate=risky, **wish))
            until(
                lambda: client.post("/v1/matte", content=picture(11)).status_code == 200 and site.phase() == "Proven",
                every=0.1,
                what="the candidate's proof",
            )
            site.want(site.model(primary=risky, **wish))
            until(lambda: site.serves(risky.digest), what="the risky engine")
            assert collector.of(TRACE) == []
            traced = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            answer = client.post("/v1/matte", content=picture(11, bright=True), headers=traced)
            assert answer.headers["x-blurfleet-withheld"] == "NonFiniteOutput"
            until(lambda: site.serves(fp32.digest, "Fallback"), what="the swap")
            trip = site.model_status().last_trip
            until(lambda: Path(trip.evidence).exists(), what="its evidence")
        frames.close()
    # Everything has been stopped, so all that gateway and agent had to send has been sent.
    [request] = collector.of(TRACE, "blur.request")
    [swap] = [s for s in collector.spans if s.name == "guard.swap"]
    [verdict] = [s for s in collector.spans if s.name == "guard.verdict"]
    assert swap.links == verdict.links == ((TRACE, request.span_id),)
    assert {request.service, swap.service} == {"blurfleet-gateway", "blurfleet-agent"}
    assert (swap.attributes["blurfleet.reason"], swap.attributes["blurfleet.epoch"]) == ("NonFiniteOutput", trip.epoch)
    assert (verdict.attributes["blurfleet.verdict"], verdict.attributes["blurfleet.digest"]) == ("Fail", risky.digest)
    assert request.attributes["blurfleet.withheld"] == "NonFiniteOutput"
    assert swap.start > request.start
    assert load_evidence(Path(trip.evidence)).identities["trace"] == TRACE
    assert {s.trace_id for s in collector.spans} == {TRACE, swap.trace_id, verdict.trace_id}
