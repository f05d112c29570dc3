"""Logs are JSON lines, and a traceback holds no locals: they may be frames, keys or a whole world of objects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import structlog

from blurfleet.logs import log_json
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
