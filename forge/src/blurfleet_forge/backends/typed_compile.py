"""Compile a strongly typed ONNX graph with TensorRT or TensorRT-RTX.

This file imports nothing of ours: it also runs as a script inside an environment that holds only a compiler and NumPy.
Precision comes from the graph alone. No precision flag, layer precision or calibrator is named: 11 removed them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any


class CompileError(Exception):
    """The compiler refused the graph; the message is what it said."""


def compile_plan(trt: Any, graph: bytes, *, profiles: list[dict[str, Any]], sm: int, log: list[str]) -> bytes:
    """Return a plan for `graph` (ONNX bytes), built by the bindings module `trt`.

    `profiles` holds dicts of tensor, min, opt, max; `sm` selects the compute capability where the compiler builds ahead
    of time. Everything the compiler says, layers included, is appended to `log`. Raises CompileError.
    """
    logger = _listener(trt, log)
    builder = trt.Builder(logger)
    network = builder.create_network(_creation_flags(trt))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(graph):
        raise CompileError("; ".join(str(parser.get_error(i).desc()) for i in range(parser.num_errors)))
    _require_float_outputs(trt, network)
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if profiles:
        config.add_optimization_profile(_profile(builder, profiles))
    _aim(trt, config, sm)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise CompileError("; ".join(line for line in log if line.startswith(("ERROR", "INTERNAL_ERROR"))) or "no plan")
    return bytes(plan)


def _creation_flags(trt: Any) -> int:
    # From 11 on every network is strongly typed and the bit of that name means something else to older masks.
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    matters = int(trt.__version__.split(".")[0]) < 11
    return 1 << int(flag) if flag is not None and matters else 0


def _require_float_outputs(trt: Any, network: Any) -> None:
    # A graph output declared FLOAT but computed HALF is accepted silently and would change the engine's output type.
    for i in range(network.num_outputs):
        output = network.get_output(i)
        if output.dtype != trt.float32:
            raise CompileError(f"output {output.name} is {output.dtype}, not float32")


def _profile(builder: Any, profiles: list[dict[str, Any]]) -> Any:
    profile = builder.create_optimization_profile()
    for bounds in profiles:
        profile.set_shape(bounds["tensor"], tuple(bounds["min"]), tuple(bounds["opt"]), tuple(bounds["max"]))
    if not profile:
        raise CompileError("min <= opt <= max does not hold in a profile")
    return profile


def _aim(trt: Any, config: Any, sm: int) -> None:
    """Choose the compute capability where the compiler can build for a GPU that is not there."""
    capabilities = getattr(trt, "ComputeCapability", None)
    if capabilities is None or not sm:
        return
    wanted = getattr(capabilities, f"SM{sm}", None)
    config.num_compute_capabilities = 1
    if wanted is None or not config.set_compute_capability(wanted, 0):
        raise CompileError(f"this compiler cannot build for SM {sm}")


def _listener(trt: Any, log: list[str]) -> Any:
    class Listener(trt.ILogger):  # type: ignore[misc]  # TensorRT ships no types
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.min_severity = trt.ILogger.Severity.VERBOSE

        def log(self, severity: Any, message: str) -> None:
            log.append(f"{severity.name} {message}")

    return Listener()


def main() -> int:
    """Compile --graph into --plan with --module; write what the compiler said to --log as JSON lines."""
    words = argparse.ArgumentParser()
    words.add_argument("--module", required=True)
    words.add_argument("--graph", type=Path, required=True)
    words.add_argument("--plan", type=Path, required=True)
    words.add_argument("--log", type=Path, required=True)
    words.add_argument("--sm", type=int, required=True)
    words.add_argument("--profiles", type=json.loads, default=[])
    args = words.parse_args()
    log: list[str] = []
    try:
        trt = importlib.import_module(args.module)
        plan = compile_plan(trt, args.graph.read_bytes(), profiles=args.profiles, sm=args.sm, log=log)
        args.plan.write_bytes(plan)
    except CompileError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        args.log.write_text("\n".join(json.dumps(line) for line in log), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
