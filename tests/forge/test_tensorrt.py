"""Every attribute that our compile code names exists in TensorRT 10.3, 10.16 and 11.4; nothing weakly typed is named.

TensorRT's own libraries cannot be installed here, its bindings can. They ask for nine C functions when imported; a stub
that returns NULL from each lets the real classes be looked at.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from blurfleet.cache import cache_dir
from blurfleet.errors import EngineError
from blurfleet.reasons import Reason
from blurfleet_forge.backends import typed_compile
from blurfleet_forge.backends.base import EngineJob
from blurfleet_forge.backends.registry import backend_for
from blurfleet_forge.backends.tensorrt import TensorRtBackend
from blurfleet_forge.workpiece import Workpiece

SOURCE = Path(typed_compile.__file__)
VERSIONS = [
    pytest.param("tensorrt-cu12-bindings==10.3.0", id="10.3, JetPack 6"),
    pytest.param("tensorrt-cu12-bindings==10.16.1.11", id="10.16, the last of 10"),
    pytest.param("tensorrt-cu13-bindings==11.4.0.106", id="11.4, weak typing removed"),
]
# What each name in the compile code holds.
HOLDERS = {
    "builder": "Builder",
    "network": "INetworkDefinition",
    "parser": "OnnxParser",
    "config": "IBuilderConfig",
    "profile": "IOptimizationProfile",
    "output": "ITensor",
}
RTX_ONLY = {"IBuilderConfig.num_compute_capabilities", "IBuilderConfig.set_compute_capability"}
REMOVED_IN_11 = (
    "FP16",
    "BF16",
    "INT8",
    "OBEY_PRECISION_CONSTRAINTS",
    "set_output_type",
    "int8_calibrator",
    "precision =",
)
SYMBOLS = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "getBuilderPluginRegistry",
    "getPluginRegistry",
    "getNvOnnxParserVersion",
    "initLibNvInferPlugins",
)


def named_attributes() -> set[str]:
    """Return every `Class.attribute` and `Enum.MEMBER` that the compile code names."""
    found = set()
    for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            parts = ast.unparse(node).split(".")
            if parts[0] == "trt":
                found.add(".".join(parts[1:]))
            elif parts[0] in HOLDERS and len(parts) == 2:
                found.add(f"{HOLDERS[parts[0]]}.{parts[1]}")
    return found - RTX_ONLY


def bindings(requirement: str) -> Path:
    """Return a folder with the bindings wheel, installed without its dependencies and kept in the cache."""
    home = cache_dir() / "bindings" / requirement.replace("==", "-")
    if not (home / "tensorrt_bindings").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "--target", str(home), requirement], check=True, timeout=200)
    return home


def stubs(folder: Path, major: int) -> None:
    """Make the three libraries that the bindings link to, each with nine functions that return NULL."""
    code = folder / "stub.c"
    code.write_text("\n".join(f"void *{name}(void) {{ return 0; }}" for name in SYMBOLS))
    for library in ("nvinfer", "nvinfer_plugin", "nvonnxparser"):
        name = f"lib{library}.so.{major}"
        command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(folder / name), str(code)]
        subprocess.run(command, check=True, timeout=60)


def present(requirement: str, names: set[str], folder: Path) -> dict[str, bool]:
    """Ask the bindings, in a process of its own, which of `names` they have."""
    home = bindings(requirement)
    if subprocess.run(["sh", "-c", "command -v cc"], capture_output=True, check=False).returncode:
        # Without a C compiler the names are looked for among the strings of the extension itself.
        raw = (home / "tensorrt_bindings" / "tensorrt.so").read_bytes()
        return {n: b"\0" + n.split(".")[-1].encode() + b"\0" in raw for n in names}
    stubs(folder, int(requirement.split("==")[1].split(".")[0]))
    script = """
        import functools, json, sys
        import tensorrt_bindings as trt
        def has(name):
            try:
                functools.reduce(getattr, name.split("."), trt)
            except AttributeError:
                return False
            return True
        print(json.dumps({name: has(name) for name in json.loads(sys.argv[1])}))
    """
    environment = {"PYTHONPATH": str(home), "LD_LIBRARY_PATH": str(folder), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", textwrap.dedent(script), json.dumps(sorted(names))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    answer: dict[str, bool] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("requirement", VERSIONS)
def test_every_attribute_the_compile_code_names_exists(requirement: str, tmp_path: Path) -> None:
    names = named_attributes()
    assert {"Builder.build_serialized_network", "BuilderFlag.TF32", "OnnxParser.parse"} <= names
    there = present(requirement, names, tmp_path)
    assert sorted(n for n, has in there.items() if not has) == []


def test_the_look_itself_can_fail(tmp_path: Path) -> None:
    there = present("tensorrt-cu13-bindings==11.4.0.106", {"Builder.build_engine", "BuilderFlag.FP16"}, tmp_path)
    assert there == {"Builder.build_engine": False, "BuilderFlag.FP16": False}


@pytest.mark.parametrize("word", REMOVED_IN_11)
def test_nothing_that_version_11_removed_is_named(word: str) -> None:
    assert word not in SOURCE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("version", "flag", "bits"),
    [
        pytest.param("10.3.0", 1, 2, id="10.3: strongly typed is bit 1 and asked for"),
        pytest.param("10.16.1.11", 1, 2, id="10.16: the same"),
        pytest.param("11.4.0.106", 0, 0, id="11.4: always on, the old bit would mean something else"),
    ],
)
def test_strong_typing_is_asked_for_by_name_where_it_matters(version: str, flag: int, bits: int) -> None:
    class Flags:
        STRONGLY_TYPED = flag

    class Bindings:
        __version__ = version
        NetworkDefinitionCreationFlag = Flags

    assert typed_compile._creation_flags(Bindings) == bits


def test_without_a_cuda_device_nothing_of_tensorrt_is_touched(piece: Workpiece) -> None:
    with pytest.raises(EngineError) as refused:
        TensorRtBackend().compile(EngineJob(graph=piece.network(), sm=80))
    assert refused.value.reason is Reason.RUNTIME_UNAVAILABLE
    assert "CUDA" in refused.value.message


def test_a_plan_is_served_by_tritons_tensorrt_platform() -> None:
    plan = backend_for("tensorrt", Path()).serving()
    assert (plan.platform, plan.backend, plan.artifact_name, plan.instance_kind) == (
        "tensorrt_plan",
        None,
        "model.plan",
        "KIND_GPU",
    )
