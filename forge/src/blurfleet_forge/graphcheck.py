"""The full check every graph passes before and after each step, with the cause named."""

from __future__ import annotations

import onnx
from google.protobuf.message import DecodeError

from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason

_LFS_MAGIC = b"version https://git-lfs.github.com/spec/"
# What onnx's checker says, and the reason it stands for; the first that occurs in the message decides.
_CAUSES = (
    ("topologically sorted", Reason.GRAPH_UNSORTED),
    ("single static assignment", Reason.GRAPH_NOT_SSA),
    ("No Op registered for", Reason.UNKNOWN_OPERATOR),
    ("higher than the checker's", Reason.IR_TOO_NEW),
)


def check_graph(graph: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """Return `graph` if it passes onnx's full check, strict shape and type inference, and names a released opset.

    The checker alone lets an opset from the future pass and, without `full_check`, mixed types too.
    Raises InvalidInput with the cause as its reason.
    """
    newest = onnx.defs.onnx_opset_version()
    for entry in graph.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version > newest:
            message = f"opset {entry.version} is newer than the newest known here, {newest}"
            raise InvalidInput(Reason.OPSET_TOO_NEW, message, where=where, fix=f"export with opset 13 to {newest}")
    try:
        onnx.checker.check_model(graph, full_check=True)
        onnx.shape_inference.infer_shapes(graph, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        text = " ".join(str(error).split())
        reason = next((r for part, r in _CAUSES if part in text), Reason.GRAPH_INVALID)
        raise InvalidInput(reason, text, where=where, fix="export the network again") from error
    return graph


def parse_graph(data: bytes, where: str) -> onnx.ModelProto:
    """Return the checked graph of an ONNX file's bytes. Raises InvalidInput naming the cause."""
    if data.startswith(_LFS_MAGIC):
        message = "this is a Git LFS pointer, not a model"
        raise InvalidInput(Reason.GIT_LFS_POINTER, message, where=where, fix="git lfs pull")
    try:
        graph = onnx.load_model_from_string(data)
    except DecodeError as error:
        message = "not an ONNX file, or cut short"
        raise InvalidInput(Reason.UNPARSEABLE, message, where=where, fix="fetch the file again") from error
    return check_graph(graph, where)
