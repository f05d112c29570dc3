"""A broken graph is refused by the name of its cause; a good one passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason
from blurfleet_forge.graphcheck import parse_graph

CASES = Path(__file__).resolve().parents[1] / "cases" / "onnx"


@pytest.mark.parametrize(
    ("name", "reason", "words"),
    [
        pytest.param("bad_unsorted", Reason.GRAPH_UNSORTED, "'b'", id="nodes out of order"),
        pytest.param("bad_dup_output", Reason.GRAPH_NOT_SSA, "'y'", id="one name written twice"),
        pytest.param("bad_unknown_op", Reason.UNKNOWN_OPERATOR, "NotAnOp", id="an operator nobody knows"),
        pytest.param("bad_ir_too_new", Reason.IR_TOO_NEW, "99", id="a file format from the future"),
        pytest.param("bad_opset_future", Reason.OPSET_TOO_NEW, "999", id="an opset the checker alone lets pass"),
        pytest.param("bad_truncated", Reason.UNPARSEABLE, "cut short", id="half a file"),
        pytest.param("bad_git_lfs_pointer", Reason.GIT_LFS_POINTER, "Git LFS", id="a pointer instead of a model"),
        pytest.param(
            "broken_cast_to_float_fp16", Reason.GRAPH_INVALID, "elem type", id="types mixed, shallow check passes"
        ),
    ],
)
def test_a_broken_graph_is_refused_by_cause(name: str, reason: Reason, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_graph((CASES / f"{name}.onnx").read_bytes(), name)
    assert refused.value.reason is reason
    assert words in refused.value.message
    assert refused.value.where == name


@pytest.mark.parametrize("name", ["cast_to_float", "pow2_overflow", "weights_out_of_range"])
def test_a_valid_graph_passes(name: str) -> None:
    assert parse_graph((CASES / f"{name}.onnx").read_bytes(), name).graph.node
