"""What probes ask of an agent's pod, what it may see of the GPU, and how it learns what is in Triton's image."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.charts.rendering import named, render

from blurfleet_agent.runtime import ONNXRUNTIME, TENSORRT, names_at, runtime_in
from blurfleet_agent.settings import RUNTIME_NAMES


def agent(device_class: str, values: dict[str, Any] | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = named(render(values or {}), "DaemonSet", f"blurfleet-agent-{device_class}")["spec"]
    return spec


def test_a_hung_agent_is_restarted_and_a_broken_one_stops_the_update_at_its_first_node() -> None:
    spec = agent("a100")
    container = spec["template"]["spec"]["containers"][0]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert "metrics" in {p["name"] for p in container["ports"]}
    assert (spec["minReadySeconds"], spec["updateStrategy"]["rollingUpdate"]) == (10, {"maxUnavailable": 1})


@pytest.mark.parametrize(("device_class", "sees"), [("a100", True), ("jetson-orin", False)])
def test_only_where_the_gpu_has_memory_of_its_own_may_the_agent_ask_the_driver(device_class: str, sees: bool) -> None:
    env = {e["name"]: e.get("value") for e in agent(device_class)["template"]["spec"]["containers"][0]["env"]}
    wanted = ("all", "utility") if sees else (None, None)
    assert (env.get("NVIDIA_VISIBLE_DEVICES"), env.get("NVIDIA_DRIVER_CAPABILITIES")) == wanted


@pytest.mark.parametrize("prepare", [True, False])
def test_triton_s_image_names_its_runtime_before_anything_is_loaded(prepare: bool, tmp_path: Path) -> None:
    body = named(render({"nodeFolder": {"prepare": prepare}}), "DaemonSet", "blurfleet-triton-a100")
    pod = body["spec"]["template"]["spec"]
    assert [c["name"] for c in pod["initContainers"]] == ["prepare-folder", "name-runtime"][not prepare :]
    naming = pod["initContainers"][-1]
    assert naming["image"] == pod["containers"][0]["image"]
    assert "runAsUser" not in naming["securityContext"]
    libraries = tmp_path / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    for name in ("libnvinfer.so.10.13.3", "libnvinfer.so.10", "libc.so.6"):
        (libraries / name).touch()
    (tmp_path / "node").mkdir()
    script = naming["command"][2].replace("/usr/lib", f"{tmp_path}/usr/lib").replace("/node/", f"{tmp_path}/node/")
    done = subprocess.run([*naming["command"][:2], script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    names = names_at(tmp_path / "node" / RUNTIME_NAMES)
    assert (runtime_in(names, TENSORRT), runtime_in(names, ONNXRUNTIME)) == ("10.13.3", "")
