"""The guard's thread outlives whatever one frame, or the socket, does to it."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from tests.agent.standins import A, B

from blurfleet.deadline import came_true
from blurfleet.quality.state import GuardPolicy
from blurfleet.serving.frames import FrameKind, FrameReceiver, FrameSample, FrameSender
from blurfleet_agent.guard_thread import GuardThread
from blurfleet_agent.sampling import Budget
from blurfleet_agent.watch import Watch

WATCH = Watch(
    alias="bokeh",
    attempt="a1",
    policy=GuardPolicy(rules=()),
    policy_name="default",
    device_class="jetson-orin",
    primary=A,
    oracle=B,
    fallback=B,
    fallback_ready=True,
)


def frame(number: int, kind: FrameKind = FrameKind.SAMPLE) -> FrameSample:
    return FrameSample(
        model="bokeh",
        stream="cam",
        frame_id=number,
        epoch=1,
        engine=A.engine,
        digest=A.digest,
        at=0.0,
        tensor=np.zeros((1, 3, 4, 4), np.float32),
        matte=np.zeros((1, 1, 4, 4), np.float32),
        kind=kind,
    )


class Seen:
    """Stands in for the guard of one model: notes the frames, and fails on those of `bad`."""

    def __init__(self, bad: tuple[int, ...] = ()) -> None:
        self.watch = WATCH
        self.bad = bad
        self.frames: list[int] = []
        self.ticks = 0

    def follow(self, watch: Watch, now: float) -> None:
        self.watch = watch

    def frame(self, sample: FrameSample, budget: Budget, now: float) -> Budget:
        if sample.frame_id in self.bad:
            raise ValueError("a defect")
        self.frames.append(sample.frame_id)
        return budget

    def tick(self, now: float) -> None:
        self.ticks += 1

    def log(self) -> Any:
        return structlog.get_logger().bind(model="bokeh")


def guarded(receiver: Any, seen: Seen) -> GuardThread:
    def make(_watch: Watch, _now: float) -> Any:
        return seen

    thread = GuardThread(receiver, make, Budget(share=1.0, hz=1e6))
    thread.publish({"bokeh": WATCH})
    return thread


def test_frames_alike_and_frames_that_fail_do_not_end_the_guard(tmp_path: Path) -> None:
    receiver, seen = FrameReceiver(tmp_path / "frames.sock"), Seen(bad=(2,))
    thread = guarded(receiver, seen)
    assert not thread.alive
    sender = FrameSender(tmp_path / "frames.sock")
    for number in (1, 1, 2, 2, 3):
        sender.offer(frame(number))
    sender.offer(frame(4, FrameKind.WITHHELD))
    assert came_true(lambda: sender.counts.sent == 6 and len(receiver._queue._frames) == 6, 10.0)
    thread.start()
    assert came_true(lambda: len(seen.frames) == 4, 10.0)
    assert seen.frames == [4, 1, 1, 3]
    assert thread.alive
    assert thread.receiving
    sender.close()
    thread.close()
    assert not thread.alive
    assert not thread.receiving


def test_every_line_said_while_a_frame_is_judged_names_its_trace(tmp_path: Path) -> None:
    class Talks(Seen):
        def frame(self, sample: FrameSample, budget: Budget, now: float) -> Budget:
            self.log().info("looked at")
            return super().frame(sample, budget, now)

    def keep(_: Any, __: str, event: Any) -> Any:
        lines.append((event["event"], event.get("trace_id")))
        raise structlog.DropEvent

    lines: list[tuple[str, Any]] = []
    receiver, seen, before = FrameReceiver(tmp_path / "frames.sock"), Talks(bad=(2,)), structlog.get_config()
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, keep])
    thread, sender = guarded(receiver, seen), FrameSender(tmp_path / "frames.sock")
    try:
        for number in (1, 2):
            sender.offer(replace(frame(number), trace_id=f"{number:032x}"))
        thread.start()
        assert came_true(lambda: len(lines) >= 3, 10.0)
    finally:
        sender.close()
        thread.close()
        structlog.configure(**before)
    one, two = f"{1:032x}", f"{2:032x}"
    assert lines == [("looked at", one), ("looked at", two), ("a frame could not be judged", two)]


class BrokenReceiver:
    """Stands in for a socket whose reading fails at first."""

    alive = True

    def __init__(self) -> None:
        self.failures = 2
        self.closed = threading.Event()

    def receive(self, timeout_s: float) -> FrameSample | None:
        if self.failures:
            self.failures -= 1
            raise MemoryError
        self.closed.wait(min(timeout_s, 0.01))
        return None

    def close(self) -> None:
        self.closed.set()


def test_a_failure_to_take_a_frame_does_not_end_the_guard() -> None:
    seen = Seen()
    thread = guarded(BrokenReceiver(), seen)
    thread.start()
    assert came_true(lambda: seen.ticks > 0, 10.0)
    assert thread.alive
    thread.close()
