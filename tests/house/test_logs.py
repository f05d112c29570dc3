"""Logs are JSON lines, and a traceback holds no locals: they may be frames, keys or a whole world of objects."""

from __future__ import annotations

import json

import pytest
import structlog

from blurfleet.logs import log_json


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
