"""What every answer should have been: the FP32 engine of the same set, run in this process on the same tensor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlparse

import numpy as np
import numpy.typing as npt
import onnxruntime

from blurfleet.api.engineset import EngineSetSpec, fp32_for
from blurfleet.identity import engine_name
from blurfleet.quality.metrics import Measurement, measure
from blurfleet_cli.demo.load import Answer

DAMAGED_MAX_ABS = 0.05
DAMAGED_DEER = 0.18


@dataclass
class Truth:
    """FP32 answers by engine name and frame, computed on demand and kept."""

    alias: str
    _networks: dict[str, Path] = field(default_factory=dict)
    _sessions: dict[Path, onnxruntime.InferenceSession] = field(default_factory=dict)
    _answers: dict[tuple[Path, str], npt.NDArray[np.float32]] = field(default_factory=dict)

    def learn(self, spec: EngineSetSpec) -> None:
        """Remember, for every engine of a set, the FP32 artifact that is its truth."""
        for variant in spec.variants:
            full = fp32_for(spec, variant.target)
            assert full is not None
            name = engine_name(self.alias, variant.artifact.digest)
            self._networks[name] = Path(unquote(urlparse(full.artifact.uri).path))

    def check(self, answer: Answer) -> Measurement | None:
        """Return the measurement of a good answer against the truth, None for a failed one."""
        if answer.failed or answer.matte is None:
            return None
        reference = self._reference(self._networks[answer.engine], answer)
        return measure(reference, answer.matte.reshape(reference.shape), ssim=False)

    def damaged(self, answers: Iterable[Answer]) -> list[Answer]:
        """Return the answers whose matte a person would call wrong: the frame-level rules of the default policy."""
        return [a for a in answers if (m := self.check(a)) is not None and is_damaged(m)]

    def worst_error(self, answers: Iterable[Answer]) -> float:
        """Return the largest max-abs error among the answers, 0.0 for none."""
        return max((m.max_abs_error for a in answers if (m := self.check(a)) is not None), default=0.0)

    def _reference(self, network: Path, answer: Answer) -> npt.NDArray[np.float32]:
        key = (network, answer.frame.name)
        if key not in self._answers:
            if network not in self._sessions:
                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads = 1
                self._sessions[network] = onnxruntime.InferenceSession(
                    str(network), options, providers=["CPUExecutionProvider"]
                )
            session = self._sessions[network]
            self._answers[key] = session.run(None, {session.get_inputs()[0].name: answer.frame.tensor})[0]
        return self._answers[key]


def is_damaged(m: Measurement) -> bool:
    """Tell whether a matte breaks a frame-level rule: not finite, out of range, collapsed, DEER >= 0.18, max > 0.05."""
    if m.non_finite or m.out_of_range or m.collapsed or not m.max_abs_error <= DAMAGED_MAX_ABS:
        return True
    return m.deer is not None and not m.deer < DAMAGED_DEER
