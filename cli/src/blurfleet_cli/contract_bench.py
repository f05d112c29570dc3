"""The contract bench: a 1920x1080 JPEG to the network's tensor, by the contract and by the usual recipes, in turns.

Seconds are processor time of one thread on one core: on a shared machine wall time tells about the neighbours.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, get_args

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from blurfleet.api.contract import ContractSpec, ResizeKernel, contract_at
from blurfleet.errors import EngineError
from blurfleet.pixels import Tensor, decode, to_tensor
from blurfleet.reasons import Reason
from blurfleet.reduced import KERNEL as REDUCED
from blurfleet_cli.rivals.photographs import as_jpeg, photographs
from blurfleet_cli.rivals.recipes import ALBUMENTATIONS, opencv, pillow

SIZE = 320
Stage = Callable[[Path], float]
KERNELS: tuple[ResizeKernel, ...] = get_args(ResizeKernel)


def run(rivals: Path, *, rounds: int) -> dict[str, Any]:
    """Return median milliseconds by way, and each kernel's ratios to each rival, pair by pair within one round.

    `rivals` is the Python of the rivals' environment. Raises EngineError where a tensor is not the contract's own.
    """
    with tempfile.TemporaryDirectory(prefix="blurfleet-contract-") as name, one_core(), albumentations(rivals) as other:
        files = []
        for photo, picture in photographs().items():
            files.append(Path(name) / f"{photo}.jpg")
            files[-1].write_bytes(as_jpeg(picture))
        for file in files:
            check_bytes(file.read_bytes())
        ours: dict[str, Stage] = {kernel: timed(contract_stage(kernel)) for kernel in KERNELS}
        theirs = {"pillow": timed(lambda d: pillow(d, SIZE)), "opencv": timed(lambda d: opencv(d, SIZE))}
        ways = {**ours, **theirs, "albumentations": other}
        seconds = in_turns(ways, files, rounds)
        sizes = [file.stat().st_size for file in files]
    return {"rounds": rounds, "jpeg_bytes": sizes, **report(seconds, tuple(ours))}


def contract_stage(kernel: ResizeKernel) -> Callable[[bytes], Tensor]:
    """Return the whole stage under the default contract with `kernel`."""
    spec = contract_at(SIZE, ContractSpec(resize=kernel))
    return lambda data: to_tensor(decode(data, spec), spec)


def in_turns(ways: dict[str, Stage], files: list[Path], rounds: int) -> dict[str, list[float]]:
    """Return seconds by way; in each round every way does one file, and another way begins."""
    for way in ways.values():
        way(files[0])
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            seconds[name].append(ways[name](files[number % len(files)]))
    return seconds


def report(seconds: dict[str, list[float]], ours: tuple[str, ...]) -> dict[str, Any]:
    """Return `ms` by way and, by our way, the rivals' median multiples of it with the fastest and the slowest."""
    rivals = [name for name in seconds if name not in ours]
    ahead: dict[str, dict[str, float]] = {}
    for way in ours:
        times = {rival: median(t / o for t, o in zip(seconds[rival], seconds[way], strict=True)) for rival in rivals}
        ahead[way] = {name: round(value, 2) for name, value in times.items()}
        ahead[way] |= {"over_fastest": min(ahead[way].values()), "over_slowest": max(ahead[way].values())}
    return {"ms": {name: round(1e3 * median(values), 2) for name, values in seconds.items()}, "times_faster": ahead}


def check_bytes(data: bytes) -> None:
    """Hold every kernel's tensor against the contract's definition, written out. Raises EngineError."""
    whole = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
    for kernel in KERNELS:
        spec = contract_at(SIZE, ContractSpec(resize=kernel))
        rgb = halved(data) if kernel == REDUCED else whole
        if not np.array_equal(contract_stage(kernel)(data), to_tensor(np.asarray(rgb, np.uint8), spec)):
            raise EngineError(Reason.CHECK_FAILED, "the tensor is not the contract's own", where=kernel)


def halved(data: bytes) -> npt.NDArray[np.uint8]:
    """Return a JPEG of 1920x1080 as Pillow decodes it at half its size: what the reduced kernel does to it for 320."""
    with Image.open(io.BytesIO(data)) as picture:
        picture.draft("RGB", (picture.width // 2, picture.height // 2))
        return np.asarray(picture)


def timed(stage: Callable[[bytes], Any]) -> Stage:
    """Return `stage` as a measurement of a file already read."""

    def measured(file: Path) -> float:
        data = file.read_bytes()
        started = time.thread_time()
        stage(data)
        return time.thread_time() - started

    return measured


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keep this process, and those it starts, on one core and OpenCV on one thread."""
    threads, cores = cv2.getNumThreads(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(threads)
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def albumentations(python: Path) -> Iterator[Stage]:
    """Run albumentations in its own environment for the length of the block. Raises EngineError."""
    command = [str(python), "-c", ALBUMENTATIONS, str(SIZE)]
    environment = {**os.environ, "NO_ALBUMENTATIONS_UPDATE": "1"}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdin is not None
    assert process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        raise EngineError(Reason.CHECK_FAILED, "albumentations did not start", where=str(python))

    def measured(file: Path) -> float:
        print(file, file=process.stdin, flush=True)
        assert process.stdout is not None
        return float(process.stdout.readline())

    try:
        yield measured
    finally:
        process.stdin.close()
        process.wait(30.0)
        process.stdout.close()
