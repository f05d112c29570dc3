"""A status that a newer version wrote is read: what this version does not know of it allows nothing."""

from __future__ import annotations

from typing import Any

import pytest

from blurfleet.errors import InvalidSpec
from blurfleet.store.kube import parse_served

DIGEST = "sha256:" + "a" * 64
CANDIDATE = {"digest": DIGEST, "set": "s", "attempt": "u/1/", "phase": "Proven", "reason": "ShadowPassed"}
SERVING = {"digest": DIGEST, "engine": "e", "role": "Primary", "precision": "Mixed", "epoch": 4}
FIGURE = {"metric": "DEER", "value": "0.1", "verdict": "Pass"}
READY = {"type": "Ready", "status": "True", "reason": "Serving"}
FINE = {**READY, "type": "Armed"}


def read(model: dict[str, Any], **status: Any) -> Any:
    """Return the one model's status as read, of a node that has models and a class."""
    body = {
        "kind": "NodeEngine",
        "metadata": {"name": "n1", "resourceVersion": "7"},
        "spec": {"deviceClass": "a100", "models": [{"name": "bokeh"}]},
        "status": {"models": [{"name": "bokeh", "trips": 3, **model}], **status},
    }
    found: Any = parse_served(body)
    assert [m.name for m in found.spec.models] == ["bokeh"]
    (only,) = found.status.models
    assert only.trips == 3
    return only


def test_a_candidate_in_an_unknown_phase_is_on_its_way() -> None:
    found = read({"candidate": {**CANDIDATE, "phase": "Warming", "message": "half"}}).candidate
    assert (found.digest, found.phase, found.message) == (DIGEST, "Staging", "phase Warming: half")


@pytest.mark.parametrize("field", ["role", "precision"])
def test_what_serves_in_an_unknown_way_is_not_known_to_serve(field: str) -> None:
    found = read({"serving": {**SERVING, field: "FP8"}, "candidate": CANDIDATE})
    assert found.serving is None
    assert found.candidate.phase == "Proven"


def test_a_figure_with_an_unknown_verdict_is_inconclusive() -> None:
    figures = [FIGURE, {**FIGURE, "verdict": "Waived"}]
    found = read({"candidate": {**CANDIDATE, "figures": figures}}).candidate
    assert [f.verdict for f in found.figures] == ["Pass", "Inconclusive"]


def test_a_condition_with_an_unknown_status_is_unknown() -> None:
    found = read({"conditions": [{**READY, "status": "Mostly"}, FINE]})
    assert [(c.type, c.status) for c in found.conditions] == [("Ready", "Unknown"), ("Armed", "True")]


def test_a_trip_at_an_unknown_stage_is_a_live_one() -> None:
    found = read({"lastTrip": {"digest": DIGEST, "reason": "DEERExceeded", "stage": "Replay", "at": "x"}})
    assert (found.last_trip.stage, found.last_trip.reason) == ("Live", "DEERExceeded")


def test_several_unknown_words_hide_no_known_one() -> None:
    candidate = {**CANDIDATE, "phase": "Warming", "figures": [{**FIGURE, "verdict": "Waived"}, FIGURE]}
    found = read({"serving": {**SERVING, "role": "Shadow", "precision": "FP8"}, "candidate": candidate})
    assert (found.serving, found.candidate.phase) == (None, "Staging")
    assert [f.verdict for f in found.candidate.figures] == ["Inconclusive", "Pass"]


def test_what_is_simply_wrong_is_still_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"models.0.candidate.digest"):
        read({"candidate": {k: v for k, v in CANDIDATE.items() if k != "digest"}})
    with pytest.raises(InvalidSpec, match=r"models.0.candidate.samplesValid"):
        read({"candidate": {**CANDIDATE, "phase": "Warming", "samplesValid": "many"}})
