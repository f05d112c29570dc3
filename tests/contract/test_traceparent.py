"""Which trace contexts are passed on."""

import json
from pathlib import Path

import pytest

from blurfleet.serving.trace import parse_traceparent

CASES = json.loads((Path(__file__).parents[1] / "cases" / "obs" / "traceparent.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_only_valid_parents_are_read(case: dict[str, object]) -> None:
    parent = parse_traceparent(str(case["value"]))
    assert (parent is not None) is case["w3c_valid"]
    if parent is not None:
        assert parent.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
        assert parent.header.startswith("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0")


IDS = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(None, id="absent"),
        pytest.param(f"ff-{IDS}-01", id="version ff"),
        pytest.param("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", id="zero parent"),
        pytest.param(f"00-{IDS}-01-more", id="version 00 with more"),
        pytest.param(f"cc-{IDS}-01x", id="no dash before what follows"),
    ],
)
def test_what_breaks_the_rules_is_ignored(value: str | None) -> None:
    assert parse_traceparent(value) is None


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("0a", False), ("ff", True)])
def test_the_sampled_bit_is_the_lowest(flags: str, sampled: bool) -> None:
    parent = parse_traceparent(f"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}")
    assert parent is not None
    assert parent.sampled is sampled
