"""The command line as a stranger meets it: help that shows an example, and bad input that is said in one line."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import yaml

from blurfleet.api.kinds import parse_resource
from blurfleet.store.folder import FolderStore
from blurfleet_cli.main import app

KUBECONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "here",
    "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    "clusters": [{"name": "here", "cluster": {"server": "https://127.0.0.1:9"}}],
    "users": [{"name": "me", "user": {"token": "t"}}],
}


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, f"{path} {name}")


ALL = dict(commands(app, "blurfleet"))


def ask(*words: str, **env: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "blurfleet_cli", *words],
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(KUBECONFIG))
    return path


@pytest.mark.parametrize("name", ALL)
def test_help_has_an_example_that_begins_with_the_command_and_a_word_on_every_option(name: str) -> None:
    command = ALL[name]
    lines = [line.strip() for line in (command.help or "").splitlines()]
    assert any(line.startswith("Example: ") and "blurfleet " in line for line in lines), command.help
    bare = [p.opts for p in command.params if isinstance(p, click.Option) and not p.help]
    assert bare == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("words: and: more\n", "not a kubeconfig that can be used: mapping values are not allowed"),
        ("just words\n", "not a kubeconfig that can be used"),
        ("[1, 2]\n", "not a kubeconfig that can be used"),
        ("", "not a kubeconfig that can be used"),
        ("\x00\x01", "not a kubeconfig that can be used"),
    ],
)
def test_what_is_no_kubeconfig_is_said_in_one_line(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text(text)
    code, out, err = ask("rollout", "status", "bokeh", "--kubeconfig", str(path))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"error: {path}: {says}")
    assert err.endswith("(name another kubeconfig, or a context of this one)\n")


def test_a_server_that_does_not_answer_is_named_with_what_to_do(kubeconfig: Path) -> None:
    code, _, err = ask("rollout", "status", "bokeh", "--kubeconfig", str(kubeconfig))
    assert (code, err.count("\n")) == (1, 1)
    assert "port=9" in err
    assert "(see that the API server runs, at the address in the kubeconfig)" in err


def test_an_operator_that_cannot_start_ends_and_says_why(kubeconfig: Path, tmp_path: Path) -> None:
    code, _, err = ask("operator", BLURFLEET_KUBECONFIG=str(tmp_path / "none"))
    assert (code, err.count("\n")) == (1, 1)
    assert "not a kubeconfig that can be used" in err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        given = {"BLURFLEET_KUBECONFIG": str(kubeconfig), "BLURFLEET_METRICS_PORT": "0"}
        code, _, err = ask("operator", **given, BLURFLEET_HEALTH_ADDRESS=f"127.0.0.1:{port}")
        assert (code, err.count("\n")) == (1, 1)
        assert f"127.0.0.1:{port}: Address already in use [PortInUse] (set BLURFLEET_HEALTH_ADDRESS" in err
        code, _, err = ask("operator", **given | {"BLURFLEET_METRICS_PORT": str(port)})
        assert (code, err.count("\n")) == (1, 1)
        assert f"127.0.0.1:{port}: Address already in use [PortInUse] (set BLURFLEET_METRICS_PORT" in err


def test_settings_are_named_as_they_are_set() -> None:
    code, _, err = ask("gateway", BLURFLEET_GATEWAY_PORT="abc")
    assert code == 1
    assert err.startswith("error: environment: BLURFLEET_NODE_DIR is not set; BLURFLEET_TRITON_GRPC is not set; ")
    assert "BLURFLEET_GATEWAY_PORT: Input should be a valid integer" in err
    assert "blurfleet gateway --help" in err
    code, _, err = ask("operator", BLURFLEET_RESYNC_S="-1")
    assert (code, err.partition(" [")[0]) == (
        1,
        "error: environment: BLURFLEET_RESYNC_S: Input should be greater than 0",
    )
    code, _, err = ask("operator", BLURFLEET_SILENT_AFTER_S="8")
    assert (code, err.partition(" [")[0]) == (
        1,
        "error: environment: BLURFLEET_SILENT_AFTER_S (8) is less than two of BLURFLEET_RESYNC_S (10): silence would "
        "never be noticed",
    )


def test_a_rollout_of_another_name_is_answered_with_those_there_are(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    assert "(there is none yet)" in ask("rollout", "status", "x", "--fleet", str(tmp_path))[2]
    for space in ("default", "other"):
        store.apply(rollout(space))
    assert "(there is default/bokeh, other/bokeh)" in ask("rollout", "status", "x", "--fleet", str(tmp_path))[2]


def test_objects_are_listed_of_one_namespace_or_of_all(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    for space in ("default", "other"):
        store.apply(rollout(space))
    listed = {}
    for flags in ((), ("-n", "other"), ("-n", "third"), ("-A",)):
        out = ask("get", "er", *flags, "-o", "json", "--fleet", str(tmp_path))[1]
        listed[flags] = [body["metadata"]["namespace"] for body in yaml.safe_load(out)]
    assert listed == {(): ["default"], ("-n", "other"): ["other"], ("-n", "third"): [], ("-A",): ["default", "other"]}


def rollout(namespace: str) -> Any:
    return parse_resource(
        {
            "apiVersion": "blurfleet.dev/v1alpha1",
            "kind": "EngineRollout",
            "metadata": {"name": "bokeh", "namespace": namespace},
            "spec": {"model": "bokeh", "engineSet": "one", "policyRef": "default"},
        },
        where="test",
    )


def test_a_file_that_is_not_what_it_should_be_is_said_without_numpys_advice(tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("no numbers: here: at all\n")
    picture = tmp_path / "photo.npy"
    np.save(picture, np.zeros(3, np.float32))
    for given, says in (
        (("contract", "diagnose", "--reference", str(words), "--observed", str(picture)), "(write it with numpy.save)"),
        (("contract", "show", str(words)), "[ContractInvalid] (`blurfleet contract show` prints a right one)"),
        (("quality", "compare", str(words)), "(write it with numpy.savez(FILE, ref=..., cand=...))"),
        (("replay", str(words)), "(name a folder that an agent kept, "),
    ):
        code, _, err = ask(*given)
        assert (code, err.count("\n")) == (1, 1), err
        assert err.startswith(f"error: {words}")
        assert says in err
        assert "pickle.load" not in err


def test_what_is_applied_must_be_yaml(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    words = tmp_path / "words"
    words.write_text("no: yaml: here\n")
    code, _, err = ask("apply", "-f", str(words), "--fleet", str(tmp_path))
    assert (code, err.count("\n")) == (1, 1)
    assert f"{words}: not YAML: mapping values are not allowed here" in err
    code, _, err = ask("apply", "-f", str(tmp_path / "none"), "--fleet", str(tmp_path))
    assert (code, err) == (
        1,
        f"error: {tmp_path / 'none'}: cannot be read: No such file or directory [UnreadableFile]\n",
    )


@pytest.mark.parametrize("words", [("cluster", "up"), ("bench", "scale"), ("demo",)], ids=" ".join)
def test_outside_the_checkout_nothing_is_started(words: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "blurfleet_cli", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "run this in blurfleet's checkout" in done.stderr
    assert list(tmp_path.iterdir()) == []
