"""The thread that takes frames from the socket and guards every model of the node."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import structlog

from blurfleet.serving.frames import FrameReceiver
from blurfleet_agent.guarding import Guarding
from blurfleet_agent.sampling import Budget
from blurfleet_agent.steady import steady_clock
from blurfleet_agent.watch import Watch

WAIT_S = 0.2  # how long it waits for a frame before time alone may act


class GuardThread:
    """Runs until closed. `publish` replaces what is watched; a defect on one frame never ends the thread.

    `turned` is when it last came round (monotonic seconds), None before it was started.
    """

    def __init__(
        self,
        receiver: FrameReceiver,
        make: Callable[[Watch, float], Guarding],
        budget: Budget,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._receiver = receiver
        self._make = make
        self._budget = budget
        self._clock = clock or steady_clock()
        self._watches: Mapping[str, Watch] = {}
        self._models: dict[str, Guarding] = {}
        self._stop = threading.Event()
        self.turned: float | None = None
        self._log = structlog.get_logger("blurfleet.guard")
        self._thread = threading.Thread(target=self._run, name="guard", daemon=True)

    def start(self) -> None:
        """Begin to take frames."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Tell whether frames are still judged; false before `start` and after the thread has ended."""
        return self._thread.is_alive()

    @property
    def receiving(self) -> bool:
        """Tell whether gateways can still connect to the frame socket."""
        return self._receiver.alive

    def publish(self, watches: Mapping[str, Watch]) -> None:
        """Watch exactly these models from the next frame on."""
        self._watches = watches

    def close(self) -> None:
        """End the thread and the socket."""
        self._stop.set()
        self._receiver.close()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _run(self) -> None:
        ticked = 0.0
        while not self._stop.is_set():
            frame = None
            self.turned = time.monotonic()
            try:
                frame = self._receiver.receive(WAIT_S)
                now = self._clock()
                self._follow(now)
                if frame is not None and (model := self._models.get(frame.model)) is not None:
                    with structlog.contextvars.bound_contextvars(trace_id=frame.trace_id):
                        self._budget = model.frame(frame, self._budget, now)
                if frame is None or now - ticked >= WAIT_S:
                    ticked = now
                    for model in self._models.values():
                        model.tick(now)
            except Exception:
                # One bad frame must not take the guard of a node down; the next frame is judged as if it had not been.
                named = self._models.get(frame.model) if frame is not None else None
                log = named.log() if named is not None else self._log
                log.exception("a frame could not be judged", trace_id=frame.trace_id if frame is not None else "")
                if frame is None:
                    self._stop.wait(WAIT_S)

    def _follow(self, now: float) -> None:
        watches = self._watches
        for alias in self._models.keys() - watches.keys():
            del self._models[alias]
        for alias, watch in watches.items():
            known = self._models.get(alias)
            if known is None:
                self._models[alias] = self._make(watch, now)
                self._models[alias].follow(watch, now)
            elif known.watch is not watch:
                known.follow(watch, now)
