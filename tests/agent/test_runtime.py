"""Versions as they are on the node: of Triton, of the runtime beside it, and what happens where they differ."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.agent.conftest import Site

from blurfleet.api.meta import condition
from blurfleet.deadline import came_true
from blurfleet.errors import EngineTimeout
from blurfleet.reasons import Reason
from blurfleet_agent.runtime import ONNXRUNTIME, TENSORRT, Runtime, Versions, judge_runtime, runtime_in
from blurfleet_agent.settings import RUNTIME_NAMES
from blurfleet_agent.tritonenv import TritonEnvironment

IMAGE = (
    "/usr/lib/x86_64-linux-gnu/libnvinfer.so.10.13.3\nlibnvinfer_plugin.so.10.9.1\nlibnvinfer10\t10.13.3.9-1+cuda13.0\n"
)


@pytest.mark.parametrize(
    ("names", "kind", "version"),
    [
        pytest.param(IMAGE, TENSORRT, "10.13.3.9", id="the package says more than the library's name"),
        pytest.param("libnvinfer10:arm64\t10.3.0.30-1+cuda12.5", TENSORRT, "10.3.0.30", id="a package and its machine"),
        pytest.param("libnvinfer.so.10.3.0", TENSORRT, "10.3.0", id="Jetson: the library alone"),
        pytest.param("libnvinfer.so.10", TENSORRT, "", id="a link says too little"),
        pytest.param("onnxruntime-1.32.0.dist-info", ONNXRUNTIME, "1.32.0", id="a Python package's folder"),
        pytest.param("numpy-1.26.4\nonnxruntime-1.32.0", ONNXRUNTIME, "1.32.0", id="a list of packages"),
        pytest.param("libonnxruntime.so.1.23.0", ONNXRUNTIME, "1.23.0", id="a library"),
        pytest.param("my-onnxruntime-notes.txt", ONNXRUNTIME, "", id="no version"),
        pytest.param(IMAGE, ONNXRUNTIME, "", id="the other runtime"),
        pytest.param("", TENSORRT, "", id="nothing"),
    ],
)
def test_versions_are_read_from_names(names: str, kind: str, version: str) -> None:
    assert runtime_in(names, kind) == version


@pytest.mark.parametrize(
    ("configured", "probed", "version", "differs"),
    [
        pytest.param("10.13.3.9", "10.13.3.9", "10.13.3.9", False, id="the same"),
        pytest.param("10.13.3.9", "10.13.3", "10.13.3.9", False, id="the configured one says it more exactly"),
        pytest.param("10.13.30.9", "10.13.3", "10.13.3", True, id="a longer number is no more exact one"),
        pytest.param("10.13.3.9", "10.3.0.30", "10.3.0.30", True, id="another: what is there is reported"),
        pytest.param("onnxruntime-1.32.0", "1.32.0", "onnxruntime-1.32.0", False, id="with its name"),
        pytest.param("onnxruntime-1.31.0", "1.32.0", "onnxruntime-1.32.0", True, id="another with its name"),
        pytest.param("10.13.3.9", "", "10.13.3.9", None, id="nothing to compare with"),
        pytest.param("", "10.13.3", "10.13.3", False, id="nothing configured"),
    ],
)
def test_what_is_there_wins(configured: str, probed: str, version: str, differs: bool | None) -> None:
    found = judge_runtime(configured, probed, TENSORRT)
    assert (found.version, found.differs) == (version, differs)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_triton_is_asked_twice_a_minute_and_its_last_word_stands_while_it_is_away(tmp_path: Path) -> None:
    clock, answers, asked = Clock(), ["2.61.0", EngineTimeout(Reason.TRITON_UNREACHABLE, "away"), "2.62.0"], []

    def ask() -> str:
        asked.append(clock.now)
        answer = answers[len(asked) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    versions = Versions(ask=ask, clock=clock, configured="", kind=TENSORRT, probe=tmp_path / "none")
    said = []
    for at in (0.0, 29.0, 30.0, 59.0, 60.0):
        clock.now = at
        said.append(versions.triton())
    assert asked == [0.0, 30.0, 60.0]
    assert said == ["2.61.0", "2.61.0", "2.61.0", "2.61.0", "2.62.0"]


def test_a_list_that_changes_is_read_again_and_one_that_goes_proves_nothing(tmp_path: Path) -> None:
    names = tmp_path / RUNTIME_NAMES
    versions = Versions(ask=str, clock=Clock(), configured="10.3.0.30", kind=TENSORRT, probe=names)
    assert versions.runtime().differs is None
    names.write_text("libnvinfer.so.10.3.0\n")
    assert versions.runtime() == Runtime(
        version="10.3.0.30", differs=False, message="TensorRT 10.3.0 is there, as configured"
    )
    names.write_text("libnvinfer.so.10.13.3\n")
    os.utime(names, ns=(1, 1))
    assert (versions.runtime().version, versions.runtime().differs) == ("10.13.3", True)
    names.unlink()
    assert (versions.runtime().version, versions.runtime().differs) == ("10.3.0.30", None)


def test_a_real_triton_s_version_and_packages_are_what_the_node_reports(
    site: Site, triton_environment: TritonEnvironment
) -> None:
    site.settings = site.settings.model_copy(update={"runtime_version": "onnxruntime-1.0.0"})
    site.settings.node_dir.mkdir(parents=True)
    (site.settings.node_dir / RUNTIME_NAMES).write_text("\n".join(triton_environment.packages()))
    site.want(site.model())
    with site.running():
        assert came_true(lambda: site.status().facts.triton_version != "", 20.0)
    status = site.status()
    assert status.facts.runtime_version == "onnxruntime-1.32.0"
    assert status.facts.triton_version.startswith("2.")
    found = condition(status.conditions, "RuntimeMismatch")
    assert (found.status, found.reason) == ("True", "RuntimeMismatch")
    assert "configured for ONNX Runtime 1.0.0, but 1.32.0 is there" in found.message
