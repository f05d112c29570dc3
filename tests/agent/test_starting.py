"""What a process says when it cannot start: one line that names the setting, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from tests.agent.tiny import Shelf, engine

from blurfleet.errors import ArtifactRefused
from blurfleet_agent.control import RepositoryControl
from blurfleet_agent.engines import Engines
from blurfleet_agent.repository import ModelRepository
from blurfleet_agent.staging import Staging


def start(command: str, folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    values = {
        "NODE": "orin-0",
        "DEVICE_CLASS": "jetson-orin",
        "NODE_DIR": str(folder / "node"),
        "STORE": str(folder / "store"),
        "TRITON_GRPC": "127.0.0.1:1",
        "MODEL_REPOSITORY": str(folder / "models"),
        "METRICS_PORT": "0",
        "TRITON_KEY_FILE": str(folder / "key"),
        "TRITON_HTTP_PORT": "1",
        "TRITON_GRPC_PORT": "1",
        "TRITON_METRICS_PORT": "1",
    } | settings
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BLURFLEET_")}
    environment |= {f"BLURFLEET_{k}": v for k, v in values.items()}
    return subprocess.run(
        [sys.executable, "-m", "blurfleet_cli", command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "settings", "named"),
    [
        pytest.param("agent", {"NODE_DIR": "/proc/nope"}, "BLURFLEET_NODE_DIR", id="a node folder nobody can make"),
        pytest.param("agent", {}, "BLURFLEET_TRITON_KEY_FILE", id="an agent without its key file"),
        pytest.param("triton", {}, "BLURFLEET_TRITON_KEY_FILE", id="a Triton without its key file"),
        pytest.param("controller", {"STORE": "/proc/nope/store"}, "/proc/nope", id="a store nobody can make"),
    ],
)
def test_a_process_that_cannot_start_names_the_setting(
    tmp_path: Path, command: str, settings: dict[str, str], named: str
) -> None:
    ended = start(command, tmp_path, **settings)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    (line,) = [x for x in ended.stderr.splitlines() if x.startswith("error: ")]
    assert named in ended.stderr[ended.stderr.index(line) :]


@pytest.mark.parametrize(
    ("field", "shape"),
    [
        pytest.param("inputs", None, id="it has no input"),
        pytest.param("outputs", None, id="it has no output"),
        pytest.param("inputs", [1, 3, 4, 8, 8], id="its input has five axes"),
        pytest.param("inputs", [3, 8, 8], id="its input has three axes"),
        pytest.param("outputs", [1, 1, 0, 8], id="its output is empty"),
    ],
)
def test_a_record_that_no_picture_can_be_made_for_is_refused_when_it_is_read(
    tmp_path: Path, field: str, shape: list[int] | None
) -> None:
    shelf = Shelf(folder=tmp_path)
    ref = engine(shelf, "tiny", set_name="one")
    body: dict[str, Any] = json.loads((tmp_path / ref.build_record.digest.removeprefix("sha256:")).read_bytes())
    body[field] = [] if shape is None else [{**body[field][0], "shape": shape}]
    engines = Engines(
        staging=Staging(tmp_path / "artifacts"),
        repository=cast(ModelRepository, None),
        control=cast(RepositoryControl, None),
        memory_reserve=0,
        timeout_s=1.0,
    )
    assert engines.record(ref).inputs
    wrong = ref.model_copy(update={"build_record": shelf.put(json.dumps(body).encode())})
    with pytest.raises(ArtifactRefused) as caught:
        engines.record(wrong)
    assert caught.value.reason == "RecordInvalid"
