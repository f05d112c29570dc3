"""The three processes' real registries over HTTP, and a real Prometheus that scrapes them with the chart's rules."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server
from tests.obs.chart_rules import groups
from tests.obs.prometheus_programs import ensure_programs
from tests.operator.simulated_fleet import Fleet

from blurfleet.api.meta import Condition
from blurfleet.api.nodeengine import ModelStatus, NodeEngineStatus, NodeFacts, Serving, TripStatus
from blurfleet.deadline import came_true
from blurfleet.quality.rules import bind, default_policy, resolve
from blurfleet.reasons import Reason
from blurfleet_agent.exporter import Metrics
from blurfleet_agent.node_figures import strictest
from blurfleet_cli.ports import free_ports
from blurfleet_operator.fleet_metrics import FleetCollector
from blurfleet_operator.metrics import LoopMetrics
from blurfleet_operator.observe import World, read_world
from blurfleet_preprocess.metrics import GatewayMetrics

NODE = "orin-0"


class Exporters:
    """A swapped node's agent, its gateway, and an operator over a simulated fleet; `lock` is held while it moves."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.fleet = Fleet()
        self.fleet.set("fp32")
        self.fleet.promote("fp32")
        self.registries = {name: CollectorRegistry() for name in ("agent", "gateway", "operator")}
        self.agent = Metrics(self.registries["agent"], node=NODE, device_class="jetson-orin")
        self.gateway = GatewayMetrics(self.registries["gateway"])
        self.gateway.watch_samples(dropped=lambda: 0.0, connected=lambda: 1.0)
        self.operator = LoopMetrics(self.registries["operator"])
        self.registries["operator"].register(FleetCollector(self._world, self.operator.is_acting))
        self.operator.acting.set(1)
        self._swap_a_node()

    def _world(self) -> World:
        with self.lock:
            return read_world(self.fleet.store, self.fleet.now)

    def _swap_a_node(self) -> None:
        figures = {"MaxAbsError": 0.2, "DEER": 0.3}
        self.agent.sample("bokeh", source="Live", verdict="Fail", max_abs=0.2, deer=0.3, now=1.0, figures=figures)
        self.agent.stability("bokeh", 0.4)
        self.agent.swapped("bokeh", seconds=0.024, epoch=2)
        self.agent.tripped("bokeh", "DEERExceeded", swapped=True)
        self.agent.serving("bokeh", epoch=2, fallback_ready=True)
        self.agent.input_drift("bokeh", drifted=False, p=0.8)
        trip = TripStatus(
            digest="sha256:" + "a" * 64, set="mixed", reason="DEERExceeded", metric="DEER", value="0.3", limit="0.18",
            frame=812, frames_to_detect=3, at="2027-01-15T08:00:00.000Z", swap_ms=24.0,
        )  # fmt: skip
        serving = Serving(
            digest="sha256:" + "b" * 64, engine="bokeh__b", set="fp32", role="Fallback", precision="FP32", epoch=2
        )
        armed = Condition(type="Armed", status="False", reason=Reason.LATCHED)
        model = ModelStatus(name="bokeh", serving=serving, guard="Swapped", last_trip=trip, conditions=(armed,))
        facts = NodeFacts(runtime_version="10.3.0.30", triton_version="2.61.0", agent_version="0.1.0")
        limits = {"bokeh": strictest(bind(resolve(default_policy(), "jetson-orin"), "Live"))}
        self.agent.figures.show(NodeEngineStatus(models=(model,), facts=facts), limits)

    def work(self) -> None:
        """Let counters rise, as they do while a fleet works."""
        self.gateway.requests.labels("200").inc()
        self.operator.seconds.observe(0.01)
        self.operator.writes.inc()

    def names(self) -> set[str]:
        """Return the name of every series that any of the three exports."""
        families = (f for registry in self.registries.values() for f in registry.collect())
        return {sample.name for family in families for sample in family.samples}


class Prometheus:
    """A running server's answers."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, **params: str) -> Any:
        body = httpx.get(f"http://{self.address}/api/v1/{path}", params=params, trust_env=False).json()
        assert body["status"] == "success", body
        return body["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=expr)["result"]
        return found

    def firing(self, name: str) -> list[dict[str, str]]:
        """Return the labels of every firing alert called `name`."""
        alerts = self.get("alerts")["alerts"]
        return [a["labels"] for a in alerts if a["state"] == "firing" and a["labels"]["alertname"] == name]


@pytest.fixture(scope="module")
def exporters() -> Exporters:
    return Exporters()


@pytest.fixture(scope="module")
def prometheus(exporters: Exporters, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    servers = [start_http_server(0, addr="127.0.0.1", registry=r) for r in exporters.registries.values()]
    targets = [f"127.0.0.1:{server.server_port}" for server, _ in servers]
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups()}))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "blurfleet-system/blurfleet", "static_configs": [{"targets": targets}]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    [port] = free_ports(1)
    running = Prometheus(f"127.0.0.1:{port}")
    command = [
        ensure_programs().prometheus,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={running.address}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        assert came_true(lambda: _ready(running.address), 30.0), (folder / "log").read_text()
        yield running
    finally:
        process.terminate()
        process.wait(timeout=20)
        for server, thread in servers:
            server.shutdown()
            server.server_close()
            thread.join()


def _ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/-/ready", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
