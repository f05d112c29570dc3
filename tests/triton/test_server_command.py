"""The server's command line and its environment, without starting one."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path

import pytest

from blurfleet.errors import NodeError
from blurfleet.reasons import Reason
from blurfleet_agent import tritonenv
from blurfleet_agent.tritoncommand import (
    Ports,
    TritonSettings,
    keeper_command,
    new_key,
    new_shm_prefix,
    pick_ports,
    server_command,
)
from blurfleet_agent.tritonenv import TritonEnvironment, ensure_environment, requirements_text

ENV = TritonEnvironment(
    root=Path("/env"),
    python=Path("/env/bin/python3"),
    server_bin=Path("/env/tritonserver"),
    backend_dir=Path("/env/backends"),
    caches_dir=Path("/env/caches"),
    lib_path=Path("/python/lib"),
)
SETTINGS = TritonSettings(
    model_repository=Path("/node/models"), key="k3y", ports=Ports(http=1, grpc=2, metrics=3), shm_prefix="mine_"
)


def test_the_server_listens_on_the_loopback_interface_only() -> None:
    argv, _ = server_command(ENV, SETTINGS)
    addresses = [one for one in argv if "-address=" in one]
    assert addresses == ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1"]


@pytest.mark.parametrize(
    "flag",
    [
        pytest.param("--model-control-mode=explicit", id="models load only when told"),
        pytest.param("--strict-readiness=false", id="a failed candidate does not take the node out"),
        pytest.param(
            "--grpc-restricted-protocol=model-repository:x-blurfleet-key=k3y", id="gRPC control needs the key"
        ),
        pytest.param("--http-restricted-api=model-repository:x-blurfleet-key=k3y", id="HTTP control needs the key"),
        pytest.param("--exit-timeout-secs=10", id="a stop waits for running requests"),
        pytest.param(
            "--backend-config=python,shm-region-prefix-name=mine_", id="shared memory is recognised as its own"
        ),
        pytest.param(
            "--grpc-header-forward-pattern=(traceparent|tracestate|x-blurfleet-.*)", id="traces are forwarded"
        ),
    ],
)
def test_the_command_holds_what_the_promises_rest_on(flag: str) -> None:
    assert flag in server_command(ENV, SETTINGS)[0]


def test_nothing_of_the_owners_environment_is_inherited() -> None:
    _, environ = server_command(ENV, SETTINGS)
    assert environ["PATH"].split(":")[0] == "/env/bin"
    assert environ["LD_LIBRARY_PATH"] == "/python/lib"
    assert set(environ) == {"PATH", "LD_LIBRARY_PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "LANG"}


def test_tracing_is_off_until_an_address_is_given() -> None:
    assert not [one for one in server_command(ENV, SETTINGS)[0] if one.startswith("--trace")]
    traced = TritonSettings(
        model_repository=SETTINGS.model_repository,
        key="k",
        ports=SETTINGS.ports,
        shm_prefix="m_",
        trace_url="http://127.0.0.1:4318/v1/traces",
        node="orin-0",
    )
    argv, _ = server_command(ENV, traced)
    assert "--trace-config=mode=opentelemetry" in argv
    assert "--trace-config=opentelemetry,url=http://127.0.0.1:4318/v1/traces" in argv
    assert "--trace-config=rate=0" in argv  # only what carries a context
    assert "--trace-config=opentelemetry,resource=service.instance.id=orin-0" in argv


def test_the_keeper_wraps_the_same_command() -> None:
    argv, environ = keeper_command(ENV, SETTINGS)
    inner, same = server_command(ENV, SETTINGS)
    assert argv[-len(inner) :] == inner
    assert argv[-len(inner) - 2 : -len(inner)] == ["mine_", "15.0"]
    assert environ == same


def test_the_key_is_in_no_repr_and_keys_and_prefixes_never_repeat() -> None:
    assert "k3y" not in repr(SETTINGS)
    assert len({new_key() for _ in range(50)}) == 50
    assert len({new_shm_prefix() for _ in range(50)}) == 50
    assert len(set(pick_ports().all())) == 3


def test_the_requirements_are_pinned_by_hash_and_name_no_address() -> None:
    pins = [line.split()[0] for line in requirements_text().splitlines() if "==" in line]
    assert {"nvidia-pytriton==0.7.0", "onnxruntime==1.32.0", "numpy==1.26.4"} <= set(pins)
    assert requirements_text().count("--hash=sha256:") >= len(pins)
    assert "://" not in requirements_text()


def test_the_built_environment_is_found_again_at_once_and_its_links_hold(
    triton_environment: TritonEnvironment,
) -> None:
    told: list[str] = []
    again = ensure_environment(triton_environment.root.parent, progress=told.append)
    assert (again, told) == (triton_environment, [])
    for name in ("libtriton_python.so", "triton_python_backend_utils.py", "triton_python_backend_stub"):
        assert (again.backend_dir / "python" / name).resolve(strict=True).is_relative_to(again.root)
    versions = json.loads((again.root / "environment.json").read_text())["packages"]
    assert (versions["nvidia-pytriton"], versions["onnxruntime"]) == ("0.7.0", "1.32.0")
    told_by_server = subprocess.run([again.server_bin, "--help"], capture_output=True, text=True, check=False)
    assert "--grpc-restricted-protocol" in told_by_server.stdout + told_by_server.stderr


def test_two_set_ups_at_once_build_one_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Path] = []
    together = threading.Barrier(2)

    def build(root: Path, _interpreter: object, wanted: dict[str, object], _tell: object) -> None:
        built.append(root)
        root.mkdir()
        (root / tritonenv.MARKER).write_text(json.dumps(wanted))

    def set_up() -> None:
        together.wait()
        ensure_environment(tmp_path)

    monkeypatch.setattr(tritonenv, "_build", build)
    threads = [threading.Thread(target=set_up) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


def test_a_failed_build_leaves_no_environment_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(_stage: Path) -> None:
        raise NodeError(Reason.ENVIRONMENT_UNUSABLE, "no network")

    run = tritonenv._run
    monkeypatch.setattr(tritonenv, "_run", lambda argv, **kw: "" if "venv" in argv else run(argv, **kw))
    monkeypatch.setattr(tritonenv, "_install", no_network)
    with pytest.raises(NodeError, match="no network"):
        ensure_environment(tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("found", [("glibc", "2.34"), ("", ""), ("musl", "1.2")])
def test_a_machine_with_another_libc_is_told_so(found: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: found)
    with pytest.raises(NodeError) as caught:
        ensure_environment(Path("/nowhere"))
    assert caught.value.reason is Reason.ENVIRONMENT_UNUSABLE
    assert "glibc 2.35" in caught.value.message


def test_a_python_that_is_none_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(NodeError) as caught:
        ensure_environment(tmp_path, python=tmp_path / "python")
    assert str(tmp_path / "python") in caught.value.message
