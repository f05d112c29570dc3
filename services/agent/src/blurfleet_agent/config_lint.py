"""Reads a Triton config the way the server would, and refuses what the server takes silently or explains backwards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from blurfleet.api.record import BuildRecord
from blurfleet.check import Finding, Severity
from blurfleet.reasons import Reason
from blurfleet_agent.config_match import against_record

Facts = dict[str, Any]
_PLACEHOLDER = re.compile(r"\$\{[^}\n]*\}?")
_UNKNOWN_FIELD = re.compile(r'(\d+):\d+ : .*Message type "([^"]+)" has no field named "([^"]+)"', re.DOTALL)


def lint(text: str, record: BuildRecord | None = None) -> tuple[tuple[Finding, ...], Facts]:
    """Return what is wrong with a `config.pbtxt` and what it says.

    With `record`, the config is compared with the engine it is to serve: tensors, types, shapes, runtime, file. Facts
    hold `name`, `runtime`, `max_batch_size`, `versions` (what would be served), `inputs` and `outputs`; they are empty
    for a text that is no config at all. Never raises.
    """
    placeholders = list(_placeholders(text))
    config, findings = _parse(text, has_placeholders=bool(placeholders))
    findings = [*placeholders, *findings]
    if config is None:
        return tuple(findings), {}
    findings += _model(config)
    for side, tensors in (("input", config.input), ("output", config.output)):
        findings += _tensors(side, tensors)
    findings += _versions(config)
    findings += _batching(config)
    findings += _ensemble(config)
    if record is not None:
        findings += against_record(config, record)
    return tuple(findings), _facts(config)


def versions_served(config: Any) -> Facts:
    """Return which versions a parsed config makes the server serve: its policy, and the numbers or the count."""
    choice = config.version_policy.WhichOneof("policy_choice")
    if choice == "all":
        return {"policy": "all", "served": "every version folder"}
    if choice == "specific":
        numbers = sorted(set(config.version_policy.specific.versions))
        return {"policy": "specific", "versions": numbers, "served": f"versions {', '.join(map(str, numbers))}"}
    count = config.version_policy.latest.num_versions if choice == "latest" else 1
    stated = "" if choice == "latest" else " (the default)"
    return {"policy": "latest", "num_versions": count, "served": f"the {count} highest version folder(s){stated}"}


def _error(reason: Reason, where: str, message: str) -> Finding:
    return Finding(severity=Severity.ERROR, reason=reason, where=where, message=message)


def _warning(reason: Reason, where: str, message: str) -> Finding:
    return Finding(severity=Severity.WARNING, reason=reason, where=where, message=message)


def _placeholders(text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), start=1):
        for found in _PLACEHOLDER.findall(line):
            yield _error(Reason.CONFIG_PLACEHOLDER, f"line {number}", f"the placeholder {found} was never filled in")


def _parse(text: str, *, has_placeholders: bool) -> tuple[Any | None, list[Finding]]:
    """Parse strictly; after an unknown field parse again without minding it, so that one run shows all findings."""
    if not text.strip():
        return None, [_error(Reason.UNPARSEABLE, "config", "the config is empty")]
    try:
        return text_format.Parse(text, pb.ModelConfig()), []
    except text_format.ParseError as error:
        unknown = _UNKNOWN_FIELD.search(str(error))
        if unknown is None:
            # an unfilled ${...} usually breaks the syntax too; saying it twice helps nobody
            return None, [] if has_placeholders else [_error(Reason.UNPARSEABLE, _line_of(error), _first_line(error))]
        line, message_type, field = unknown.groups()
        place = message_type.rsplit(".", 1)[-1]
        finding = _error(Reason.CONFIG_UNKNOWN_FIELD, f"line {line}", f"{place} has no field named {field!r}")
    try:
        return text_format.Parse(text, pb.ModelConfig(), allow_unknown_field=True), [finding]
    except text_format.ParseError:
        return None, [finding]


def _line_of(error: text_format.ParseError) -> str:
    line = error.GetLine()
    return f"line {line}" if line else "config"


def _first_line(error: text_format.ParseError) -> str:
    return f"not a Triton model config: {str(error).splitlines()[0]}"


def _model(config: Any) -> Iterator[Finding]:
    if not config.name:
        yield _error(Reason.CONFIG_INVALID, "name", "the model has no name")
    if not config.platform and not config.backend:
        yield _error(Reason.CONFIG_INVALID, "backend", "neither backend nor platform says what runs the model")
    if config.max_batch_size < 0:
        yield _error(Reason.CONFIG_INVALID, "max_batch_size", f"{config.max_batch_size} is negative")
    for group in config.instance_group:
        if group.count < 0:
            yield _error(Reason.CONFIG_INVALID, "instance_group", f"a count of {group.count} is negative")


def _tensors(side: str, tensors: Iterable[Any]) -> Iterator[Finding]:
    tensors = list(tensors)
    if not tensors:
        yield _error(Reason.CONFIG_INVALID, side, f"the model has no {side}")
    for name, count in Counter(t.name for t in tensors).items():
        if count > 1:
            yield _error(Reason.CONFIG_INVALID, f"{side} {name!r}", f"{side} {name!r} is named {count} times")
    for index, tensor in enumerate(tensors):
        where = f"{side} {tensor.name!r}" if tensor.name else f"{side} {index}"
        if not tensor.name:
            yield _error(Reason.CONFIG_INVALID, where, "the tensor has no name")
        if tensor.data_type == pb.TYPE_INVALID:
            yield _error(Reason.CONFIG_INVALID, where, "the tensor has no data_type")
        if not tensor.dims:
            yield _error(Reason.CONFIG_INVALID, where, "the tensor has no dims")
        for axis in tensor.dims:
            if axis == 0 or axis < -1:
                yield _error(Reason.CONFIG_INVALID, where, f"an axis of {axis} is neither a size nor -1")


def _versions(config: Any) -> Iterator[Finding]:
    policy = config.version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "specific" and not policy.specific.versions:
        yield _error(Reason.CONFIG_INVALID, "version_policy", "a specific policy names no version: none is served")
    if choice == "specific" and any(number < 1 for number in policy.specific.versions):
        yield _error(Reason.CONFIG_INVALID, "version_policy", "versions are numbers from 1 on")
    if choice == "latest" and policy.latest.num_versions < 1:
        yield _error(Reason.CONFIG_INVALID, "version_policy", "the latest policy serves 0 versions")


def _batching(config: Any) -> Iterator[Finding]:
    if not config.HasField("dynamic_batching"):
        return
    batching = config.dynamic_batching
    if config.max_batch_size == 0:
        yield _error(Reason.CONFIG_INVALID, "dynamic_batching", "dynamic batching needs max_batch_size of 1 or more")
    if any(size > config.max_batch_size for size in batching.preferred_batch_size):
        yield _error(Reason.CONFIG_INVALID, "dynamic_batching", "a preferred batch size is above max_batch_size")
    if batching.HasField("default_queue_policy"):
        yield _warning(
            Reason.CONFIG_HAZARD,
            "dynamic_batching.default_queue_policy",
            "with dynamic batching, requests of a burst were seen to wait for the whole queue timeout and then be "
            "rejected on an idle server; leave default_queue_policy out",
        )


def _ensemble(config: Any) -> Iterator[Finding]:
    if config.platform != "ensemble":
        return
    where = "ensemble_scheduling"
    if not config.ensemble_scheduling.step:
        yield _error(Reason.CONFIG_INVALID, where, "the ensemble has no step")
        return
    fed = {value for step in config.ensemble_scheduling.step for value in step.input_map.values()}
    made = {value for step in config.ensemble_scheduling.step for value in step.output_map.values()}
    for step in config.ensemble_scheduling.step:
        if not step.model_name:
            yield _error(Reason.CONFIG_INVALID, where, "a step names no model")
        if step.model_name and step.model_name == config.name:
            yield _error(Reason.CONFIG_INVALID, where, "the ensemble is a step of itself")
    for tensor in config.input:
        if tensor.name not in fed:
            yield _error(Reason.CONFIG_INVALID, where, f"no step takes input {tensor.name!r}")
    for tensor in config.output:
        if tensor.name not in made:
            yield _error(Reason.CONFIG_INVALID, where, f"no step makes output {tensor.name!r}")


def _facts(config: Any) -> Facts:
    return {
        "name": config.name,
        "runtime": config.backend or config.platform,
        "max_batch_size": config.max_batch_size,
        "versions": versions_served(config),
        "inputs": [_tensor_facts(tensor) for tensor in config.input],
        "outputs": [_tensor_facts(tensor) for tensor in config.output],
    }


def _tensor_facts(tensor: Any) -> Facts:
    return {"name": tensor.name, "type": pb.DataType.Name(tensor.data_type), "dims": list(tensor.dims)}
