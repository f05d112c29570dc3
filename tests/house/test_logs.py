"""Logs are JSON lines, and a traceback holds no locals: they may be frames, keys or a whole world of objects."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import structlog

from blurfleet.logs import log_json, log_libraries
from blurfleet.serving.routing import Route, RoutedEngine, RoutingReader, RoutingTable, read_routing, write_routing
from blurfleet_preprocess.main import served_model


def test_a_traceback_in_a_log_names_the_error_and_holds_no_locals(capsys: pytest.CaptureFixture[str]) -> None:
    before = structlog.get_config()
    try:
        log_json(service="agent", node="orin-0")
        try:
            secret = "frame of a person"
            raise ValueError(len(secret))
        except ValueError:
            structlog.get_logger().exception("could not be judged")
    finally:
        structlog.configure(**before)
    line = json.loads(capsys.readouterr().err)
    assert (line["service"], line["node"], line["event"]) == ("agent", "orin-0", "could not be judged")
    assert line["exception"][0]["exc_type"] == "ValueError"
    assert "frame of a person" not in json.dumps(line)


def test_what_libraries_say_is_a_line_like_our_own(capsys: pytest.CaptureFixture[str]) -> None:
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        log_json(service="operator")
        log_libraries()
        logging.getLogger("kopf.activities").info("chatter")
        try:
            secret = "a person's key"
            raise ValueError(len(secret))
        except ValueError:
            logging.getLogger("kopf._core").exception("a watch of %s failed", "nodes")
    finally:
        structlog.configure(**before)
        root.handlers[:] = handlers
        root.setLevel(level)
    [line] = map(json.loads, capsys.readouterr().err.splitlines())
    assert (line["service"], line["logger"], line["level"]) == ("operator", "kopf._core", "error")
    assert (line["event"], line["exception"][0]["exc_type"]) == ("a watch of nodes failed", "ValueError")
    assert "a person's key" not in json.dumps(line)


class _Stream:
    """Keeps each write apart, as threads that take turns between two writes would."""

    def __init__(self) -> None:
        self.writes: list[str] = []

    def write(self, text: str) -> int:
        self.writes.append(text)
        return len(text)

    def flush(self) -> None:
        """Nothing is held."""


def test_a_line_is_one_write_so_that_threads_do_not_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    before, stream = structlog.get_config(), _Stream()
    monkeypatch.setattr("sys.stderr", stream)
    try:
        log_json(service="operator")
        structlog.get_logger().info("pass")
    finally:
        structlog.configure(**before)
    [line] = stream.writes
    assert line.endswith("\n")
    assert json.loads(line)["event"] == "pass"


def test_every_line_of_a_gateway_names_the_model_and_its_network_as_served_now(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    reader, before = RoutingReader(tmp_path / "routing.json"), structlog.get_config()
    engine = RoutedEngine(engine="bokeh__a", digest="sha256:" + "a" * 64, precision="FP32")
    route = Route(alias="bokeh", epoch=1, serving="Primary", primary=engine, model_id="0123456789ab")
    try:
        log_json(service="gateway", also=lambda: served_model(reader, "bokeh"))
        structlog.get_logger("frames").warning("before anything is served")
        write_routing(tmp_path / "routing.json", RoutingTable().with_route(route))
        structlog.get_logger("frames").warning("served")
        (tmp_path / "routing.json").write_text("{torn")
        structlog.get_logger("frames").warning("unreadable")
    finally:
        structlog.configure(**before)
    lines = [json.loads(x) for x in capsys.readouterr().err.splitlines()]
    assert [(x["model"], x["model_id"]) for x in lines] == [("bokeh", ""), ("bokeh", "0123456789ab"), ("bokeh", "")]


def test_a_gateway_reads_the_routing_file_of_a_newer_agent(tmp_path: Path) -> None:
    engine = RoutedEngine(engine="bokeh__a", digest="sha256:" + "a" * 64, precision="FP32")
    route = Route(alias="bokeh", epoch=4, serving="Primary", primary=engine)
    body = json.loads(RoutingTable().with_route(route).model_dump_json(by_alias=True))
    body["models"]["bokeh"]["inTheFuture"] = 1
    (tmp_path / "routing.json").write_text(json.dumps({**body, "alsoNew": True}))
    assert read_routing(tmp_path / "routing.json").models["bokeh"] == route
