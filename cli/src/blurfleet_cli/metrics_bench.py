"""How long the metrics take on one core: the figures behind the sampling budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import cv2
import numpy as np

from blurfleet.quality.metrics import measure
from blurfleet.quality.sentinel import sentinel

_ROUNDS = 100


def run(size: int = 320, rounds: int = _ROUNDS) -> dict[str, float]:
    """Return median and best milliseconds of one `size` x `size` pair with OpenCV on one thread.

    Keys `all_ms`, `without_ssim_ms` and `sentinel_ms`, each with a `_best` one: on a shared machine the best time is
    the one that tells about the code.
    """
    random = np.random.default_rng(0)
    reference = random.random((size, size), dtype=np.float32)
    noise = random.normal(0, 0.05, (size, size)).astype(np.float32)
    candidate = np.clip(reference + noise, 0, 1)
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        figures: dict[str, float] = {}
        work: dict[str, Callable[[], object]] = {
            "all": lambda: measure(reference, candidate),
            "without_ssim": lambda: measure(reference, candidate, ssim=False),
            "sentinel": lambda: sentinel(candidate),
        }
        for name, call in work.items():
            times = [_milliseconds(call) for _ in range(rounds)]
            figures |= {f"{name}_ms": median(times), f"{name}_ms_best": min(times)}
        return figures
    finally:
        cv2.setNumThreads(threads)


def _milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3
