"""A new set that means something else is shown beside its candidate, and nothing is held for it."""

from __future__ import annotations

import math

import pytest

from blurfleet.api.engineset import Blob
from blurfleet.api.nodeengine import EngineRef, NodeModel
from blurfleet.reasons import Reason
from blurfleet_agent.status import _semantic_change
from blurfleet_agent.view import GoldenResult, ModelView


def ref(letter: str, set_name: str, precision: str) -> EngineRef:
    blob = Blob(uri=f"file:///{letter}", digest="sha256:" + letter * 64)
    return EngineRef(
        set=set_name, variant=letter, digest=blob.digest, precision=precision, artifact=blob, build_record=blob
    )


NEW, OLD, CANDIDATE = ref("a", "new", "FP32"), ref("b", "old", "FP32"), ref("c", "new", "Mixed")


def view(
    change: float | None, *, fallback: EngineRef | None = OLD, candidate: EngineRef | None = CANDIDATE
) -> ModelView:
    result = GoldenResult(verdict="Pass", reason=Reason.WITHIN_LIMITS, message="", at=1.0, change=change)
    spec = NodeModel(name="bokeh", fallback=fallback, oracle=NEW, candidate=candidate)
    return ModelView(now=2.0, spec=spec, golden={(NEW.digest, NEW.set, "Fallback"): result})


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        pytest.param(view(0.31), "True", id="far from the old set"),
        pytest.param(view(0.05), "False", id="at the limit is not beyond it"),
        pytest.param(view(math.nan), "True", id="NaN is never near"),
        pytest.param(view(None), "Unknown", id="not compared"),
        pytest.param(view(None, fallback=NEW), "False", id="the same FP32 engine in both sets"),
    ],
)
def test_semantic_change(seen: ModelView, status: str) -> None:
    ((kind, found, _, message),) = _semantic_change(seen)
    assert (kind, found) == ("SemanticChange", status)
    assert "FP32" in message


def test_without_a_candidate_or_a_set_to_compare_with_the_last_word_stays() -> None:
    assert _semantic_change(view(0.31, candidate=None)) == []
    assert _semantic_change(view(0.31, fallback=None)) == []
