"""Compares a parsed Triton config with the build record of the engine that it is to serve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from blurfleet.api.record import BuildRecord, Tensor
from blurfleet.check import Finding, Severity
from blurfleet.reasons import Reason

_NUMPY_TYPES = {"float32": pb.TYPE_FP32, "float16": pb.TYPE_FP16}


def _error(reason: Reason, where: str, message: str) -> Finding:
    return Finding(severity=Severity.ERROR, reason=reason, where=where, message=message)


def against_record(config: Any, record: BuildRecord) -> Iterator[Finding]:
    """Yield where a parsed config and the engine's build record disagree; the message says which says what."""
    serving = record.serving
    for field, wanted in (("backend", serving.backend), ("platform", serving.platform)):
        if wanted is not None and getattr(config, field) != wanted:
            stated = getattr(config, field) or "nothing"
            yield _error(
                Reason.RECORD_MISMATCH, field, f"the engine needs {field} {wanted!r}, the config says {stated!r}"
            )
    filename = config.default_model_filename
    if filename and serving.backend != "python" and filename != serving.artifact_name:
        yield _error(
            Reason.RECORD_MISMATCH,
            "default_model_filename",
            f"the engine's file is {serving.artifact_name!r}, the config says {filename!r}",
        )
    for group in config.instance_group:
        kind = pb.ModelInstanceGroup.Kind.Name(group.kind)
        if kind not in (serving.instance_kind, "KIND_AUTO"):
            yield _error(
                Reason.RECORD_MISMATCH,
                "instance_group",
                f"the engine runs on {serving.instance_kind}, the config says {kind}",
            )
    yield from _tensors_against("input", config.input, record.inputs, config.max_batch_size)
    yield from _tensors_against("output", config.output, record.outputs, config.max_batch_size)


def _tensors_against(side: str, stated: Any, real: tuple[Tensor, ...], batch: int) -> Iterator[Finding]:
    by_name = {tensor.name: tensor for tensor in stated}
    for name in sorted(set(by_name) - {tensor.name for tensor in real}):
        yield _error(
            Reason.RECORD_MISMATCH,
            f"{side} {name!r}",
            f"the config has {side} {name!r}, the engine has {', '.join(repr(t.name) for t in real)}",
        )
    for tensor in real:
        where = f"{side} {tensor.name!r}"
        found = by_name.get(tensor.name)
        if found is None:
            yield _error(Reason.RECORD_MISMATCH, where, f"the engine has {where}, the config does not name it")
            continue
        wanted = _NUMPY_TYPES[tensor.dtype]
        if found.data_type != wanted:
            yield _error(
                Reason.CONFIG_TYPE_MISMATCH,
                where,
                f"the engine's {where} is {pb.DataType.Name(wanted)}, the config says "
                f"{pb.DataType.Name(found.data_type)}; change the config (Triton's own message names the two the other "
                "way round)",
            )
        dims = list(found.reshape.shape if found.HasField("reshape") else found.dims)
        shape = [-1, *dims] if batch > 0 else dims
        if not _fits(shape, tensor.shape, batch):
            yield _error(
                Reason.CONFIG_SHAPE_MISMATCH,
                where,
                f"the engine's {where} has shape {list(tensor.shape)}, the config says {shape}"
                + (f" (max_batch_size {batch} puts the batch axis first)" if batch > 0 else ""),
            )


def _fits(stated: list[int], real: tuple[int, ...], batch: int) -> bool:
    """Tell whether a config's shape is within an engine's: -1 in the engine takes all, -1 in the config needs -1."""
    if len(stated) != len(real):
        return False
    pairs = list(zip(stated, real, strict=True))
    if batch > 0 and pairs[0][1] in (-1, batch):
        pairs = pairs[1:]
    return all(mine == theirs or theirs == -1 for mine, theirs in pairs)
