"""What every engine of one recipe at one size is cut from; each part is made on first use and kept."""

from __future__ import annotations

import hashlib
from functools import cache, cached_property
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from blurfleet.api.contract import ContractSpec, contract_at
from blurfleet.api.engineset import InputProfile
from blurfleet.identity import digest_bytes
from blurfleet.quality.drift import features_of, statistics_of
from blurfleet_forge import frames
from blurfleet_forge.answers import reference_answers
from blurfleet_forge.backends.onnxruntime import Session
from blurfleet_forge.fetch import fetch_source
from blurfleet_forge.fold import fold, to_bytes
from blurfleet_forge.golden import GoldenBundle
from blurfleet_forge.graphcheck import parse_graph
from blurfleet_forge.macs import count_macs
from blurfleet_forge.precision import Halves
from blurfleet_forge.quantize import quantize_int8
from blurfleet_forge.recipe import Recipe, Stem
from blurfleet_forge.rounding import fit_weights
from blurfleet_forge.stem import with_rmsnorm

Tensor = NDArray[np.float32]

FIT_EVERY = 5  # of the calibration frames, weights are fitted to each fifth


@cache
def forge_digest() -> str:
    """Return the digest of the forge's own code and of the libraries it computes with: an input of every engine."""
    state = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        if path.name != "push.py":  # it carries what was made
            state.update(path.name.encode() + path.read_bytes())
    for version in (onnx.__version__, ort.__version__, cv2.__version__, np.__version__):
        state.update(str(version).encode())
    return "sha256:" + state.hexdigest()


class Workpiece:
    """One recipe at one size: the checked networks (with and without stem) and the frames to judge engines on."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.contract: ContractSpec = contract_at(recipe.size)
        self._networks: dict[Stem | None, onnx.ModelProto] = {}
        self._oracles: dict[Stem | None, Session] = {}
        self._golden: dict[Stem | None, GoldenBundle] = {}
        self._int8: dict[Stem | None, onnx.ModelProto] = {}

    def network(self, stem: Stem | None = None) -> onnx.ModelProto:
        """Return the checked, folded FP32 graph."""
        if stem not in self._networks:
            if stem is None:
                where = f"{self.recipe.source.package}:{self.recipe.source.file}"
                graph = parse_graph(fetch_source(self.recipe.source), where)
                self._networks[stem] = fold(graph, self.recipe.network, self.recipe.size)
            else:
                self._networks[stem] = with_rmsnorm(self.network())
        return self._networks[stem]

    def oracle(self, stem: Stem | None = None) -> Session:
        """Return the FP32 network, loaded."""
        if stem not in self._oracles:
            self._oracles[stem] = Session(to_bytes(self.network(stem)))
        return self._oracles[stem]

    def golden(self, stem: Stem | None = None) -> GoldenBundle:
        """Return the golden photographs with their tensors and independent answers."""
        if stem not in self._golden:
            names = self.recipe.frames.golden
            tensors = frames.tensors(frames.golden(self.recipe.frames, self.contract), self.contract)
            self._golden[stem] = GoldenBundle(
                names=tuple(Path(n).stem for n in names),
                pictures=tuple(frames.picture_path(n).read_bytes() for n in names),
                tensors=tuple(tensors),
                references=tuple(reference_answers(self.network(stem), tensors)),
            )
        return self._golden[stem]

    def int8(self, stem: Stem | None = None) -> onnx.ModelProto:
        """Return the quantised graph; ranges come from the golden photographs' calibration views."""
        if stem not in self._int8:
            self._int8[stem] = quantize_int8(self.network(stem), self.calibration[::4])
        return self._int8[stem]

    def fitted(self, nodes: frozenset[str], stem: Stem | None = None) -> Halves:
        """Return FP16 weights for the convolutions among `nodes`, fitted to every fifth calibration frame."""
        return fit_weights(self.network(stem), self.calibration[::FIT_EVERY], nodes)

    @cached_property
    def macs(self) -> dict[str, int]:
        """Multiply-accumulates per node."""
        return count_macs(self.network())

    @cached_property
    def calibration(self) -> list[Tensor]:
        """Tensors of the frames that a search may look at."""
        return frames.tensors(frames.calibration(self.recipe.frames, self.contract), self.contract)

    @cached_property
    def held_out(self) -> tuple[list[str], list[Tensor], list[Tensor]]:
        """Names, tensors and FP32 answers of the frames that no search may look at."""
        held = frames.held_out(self.recipe.frames, self.contract)
        tensors = frames.tensors(held, self.contract)
        return [f.name for f in held], tensors, [self.oracle().run(t) for t in tensors]

    def profile(self) -> InputProfile:
        """Return the calibration tensors' mean, deviation and extremes per channel, and their digest.

        Brightness and contrast are kept frame by frame: live frames are compared with them.
        """
        stack = np.concatenate(self.calibration)
        statistics = statistics_of(features_of(tensor) for tensor in self.calibration)
        for channel in range(stack.shape[1]):
            plane = stack[:, channel]
            for word, value in (
                ("mean", plane.mean()),
                ("std", plane.std()),
                ("min", plane.min()),
                ("max", plane.max()),
            ):
                statistics[f"channel{channel}.{word}"] = f"{float(value):.4f}"
        return InputProfile(statistics=statistics, calibration_digest=digest_bytes(stack.tobytes()))
