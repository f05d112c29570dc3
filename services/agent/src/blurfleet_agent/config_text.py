"""Triton model configs, generated from what an engine's build record says; nobody writes one by hand."""

from __future__ import annotations

from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from blurfleet.api.record import BuildRecord, Tensor

ENGINE_VERSION = 1
_TYPES = {"float32": pb.TYPE_FP32, "float16": pb.TYPE_FP16}


def engine_config(record: BuildRecord, model_name: str) -> str:
    """Return the `config.pbtxt` of one engine under `model_name`.

    Batch size and free axes are part of the shapes (`max_batch_size: 0`); the one version is number 1. A python-backend
    engine is started from `model.py`, so only native backends get `default_model_filename`.
    """
    serving = record.serving
    config = _config(model_name, record.inputs, record.outputs, ENGINE_VERSION)
    if serving.platform is not None:
        config.platform = serving.platform
    if serving.backend is not None:
        config.backend = serving.backend
    if serving.backend != "python":
        config.default_model_filename = serving.artifact_name
    group = config.instance_group.add(count=1, kind=pb.ModelInstanceGroup.Kind.Value(serving.instance_kind))
    group.profile.extend(str(index) for index in range(_profile_count(record)))
    for key, value in sorted(serving.parameters.items()):
        config.parameters[key].string_value = value
    return _text(config)


def alias_config(
    alias: str, engine: str, epoch: int, *, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> str:
    """Return the `config.pbtxt` of the alias: an ensemble of one step, whose only version is `epoch`."""
    config = _config(alias, inputs, outputs, epoch)
    config.platform = "ensemble"
    step = config.ensemble_scheduling.step.add(model_name=engine, model_version=-1)
    for tensor in inputs:
        step.input_map[tensor.name] = tensor.name
    for tensor in outputs:
        step.output_map[tensor.name] = tensor.name
    return _text(config)


def _config(name: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], version: int) -> Any:
    config = pb.ModelConfig(name=name, max_batch_size=0)
    for tensor in inputs:
        config.input.add(name=tensor.name, data_type=_TYPES[tensor.dtype], dims=tensor.shape)
    for tensor in outputs:
        config.output.add(name=tensor.name, data_type=_TYPES[tensor.dtype], dims=tensor.shape)
    config.version_policy.specific.versions.append(version)
    return config


def _profile_count(record: BuildRecord) -> int:
    """Return how many optimisation profiles an engine has: each names every input once."""
    per_tensor = [profile.tensor for profile in record.profiles]
    return max((per_tensor.count(name) for name in set(per_tensor)), default=0)


def _text(config: Any) -> str:
    return str(text_format.MessageToString(config))
