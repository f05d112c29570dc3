"""Probes: alive while the loop and the guard come round, ready once they do their work."""

from __future__ import annotations

import threading

import httpx
import pytest
from prometheus_client import CollectorRegistry
from tests.agent.conftest import Site
from tests.agent.tiny import engine, golden

from blurfleet.deadline import came_true
from blurfleet_agent.exporter import MetricsServer
from blurfleet_agent.guard_thread import GuardThread
from blurfleet_agent.health import Health, Pulse, not_ready, troubles
from blurfleet_agent.sampling import Budget

WELL = Pulse(started_s=900.0, loop_s=0.5, guard_s=0.2)


@pytest.mark.parametrize(
    ("pulse", "alive", "ready"),
    [
        pytest.param(WELL, True, True, id="both turn"),
        pytest.param(Pulse(started_s=299.0), True, False, id="starting: alive, not ready"),
        pytest.param(Pulse(started_s=301.0), False, False, id="a start that never ends"),
        pytest.param(Pulse(started_s=1.0, loop_s=0.1), True, False, id="no guard yet: not ready"),
        pytest.param(Pulse(started_s=900.0, loop_s=60.0, guard_s=60.0), True, True, id="at the limit"),
        pytest.param(Pulse(started_s=900.0, loop_s=60.5, guard_s=0.2), False, False, id="the loop hangs"),
        pytest.param(Pulse(started_s=900.0, loop_s=0.5, guard_s=60.5), False, False, id="the guard hangs"),
        pytest.param(
            Pulse(started_s=900.0, loop_s=0.5, guard_s=0.2, deaf="thread ended"), False, False, id="the guard is dead"
        ),
        pytest.param(Pulse(started_s=9.0, loop_s=float("nan"), guard_s=0.2), False, False, id="NaN is no pulse"),
    ],
)
def test_pulses(pulse: Pulse, alive: bool, ready: bool) -> None:
    assert (troubles(pulse) == (), not_ready(pulse) == ()) == (alive, ready)


def asked(address: str, path: str) -> tuple[int, list[str]]:
    answer = httpx.get(f"http://{address}{path}", timeout=60.0, trust_env=False)
    return answer.status_code, answer.json()["problems"]


def test_probes_are_answered_beside_the_metrics_and_nothing_else_is() -> None:
    health = Health()
    server = MetricsServer(CollectorRegistry(), 0, health=health)
    try:
        assert asked(server.address, "/healthz") == (200, [])
        assert asked(server.address, "/readyz") == (503, ["starting"])
        health.feel = lambda _: WELL
        assert asked(server.address, "/readyz") == (200, [])
        health.feel = lambda _: Pulse(started_s=900.0, loop_s=61.0, guard_s=0.1)
        assert asked(server.address, "/healthz") == (503, ["the loop has not turned for 61 s"])
        assert asked(server.address, "/secrets") == (404, ["no such page"])
        metrics = httpx.get(f"http://{server.address}/metrics", timeout=60.0, trust_env=False)
        assert metrics.status_code == 200
        assert metrics.headers["content-type"].startswith("text/plain")
    finally:
        server.close()


class SilentReceiver:
    """Stands in for the frame socket: no frame ever comes."""

    alive = True

    def receive(self, wait_s: float) -> None:
        threading.Event().wait(wait_s)

    def close(self) -> None:
        return None


def test_a_guard_says_when_it_last_came_round_even_where_no_frame_comes() -> None:
    guard = GuardThread(SilentReceiver(), lambda *_: None, Budget(share=0.1, hz=20.0))
    assert guard.turned is None
    guard.start()
    try:
        assert came_true(lambda: guard.turned is not None, 60.0)
        first = guard.turned
        assert came_true(lambda: guard.turned > first, 60.0)
    finally:
        guard.close()


def test_a_real_agent_is_ready_once_its_loop_and_guard_turn_and_not_alive_once_its_guard_has_ended(site: Site) -> None:
    fp32 = engine(site.shelf, "sound", set_name="one", precision="FP32", salt=site.alias)
    site.want(site.model(primary=fp32, fallback=fp32, oracle=fp32, golden=golden(site.shelf)))
    with site.running() as node:
        assert came_true(lambda: asked(node.metrics_address, "/readyz")[0] == 200, 60.0)
        assert asked(node.metrics_address, "/healthz") == (200, [])
        node._guard.close()
        assert came_true(lambda: asked(node.metrics_address, "/healthz")[0] == 503, 60.0)
        [problem] = asked(node.metrics_address, "/healthz")[1]
        assert problem == "the guard's thread has ended: nothing is judged until the agent is started again"
        assert asked(node.metrics_address, "/readyz")[0] == 503
