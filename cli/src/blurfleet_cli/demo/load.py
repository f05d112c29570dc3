"""Client load: one camera per node posts frames to the node's gateway without a pause, and remembers every answer."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx
import numpy as np
import numpy.typing as npt

from blurfleet_cli.demo.photos import LiveFrame

_GIVE_UP_S = 30.0
_MAX_RETRY_PAUSE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One request as the client saw it. `failed` means: no good answer although it tried again as told to."""

    node: str
    frame: LiveFrame
    sent: float
    done: float
    failed: str = ""
    retries: int = 0
    engine: str = ""
    digest: str = ""
    precision: str = ""
    role: str = ""
    epoch: int = 0
    withheld: bool = False
    matte: npt.NDArray[np.float32] | None = None


@dataclass
class Camera:
    """Posts `frames` in turn, `rate_hz` a second, until stopped; playlists and pauses may change at any time."""

    node: str
    url: str
    frames: Sequence[LiveFrame]
    rate_hz: float
    answers: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._run = threading.Event()
        self._idle = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name=f"camera-{self.node}", daemon=True)

    def start(self) -> None:
        """Begin posting."""
        self._run.set()
        self._thread.start()

    def show(self, frames: Sequence[LiveFrame]) -> None:
        """Change what the camera sees, from the next frame on."""
        with self._lock:
            self.frames = frames

    def pause(self) -> None:
        """Stop posting; returns once no request is under way."""
        self._run.clear()
        self._idle.wait(_GIVE_UP_S)

    def resume(self) -> None:
        """Post again."""
        self._idle.clear()
        self._run.set()

    def stop(self) -> None:
        """End the thread; returns once it has ended."""
        self._stop.set()
        self._run.set()
        self._thread.join(_GIVE_UP_S)

    def take(self) -> list[Answer]:
        """Return the answers since the last call."""
        with self._lock:
            taken, self.answers = self.answers, []
        return taken

    def count(self) -> int:
        """Return how many answers wait to be taken."""
        with self._lock:
            return len(self.answers)

    def _loop(self) -> None:
        with httpx.Client(timeout=_GIVE_UP_S, trust_env=False) as client:
            for turn in itertools.count():
                if not self._run.is_set():
                    self._idle.set()
                    self._run.wait()
                if self._stop.is_set():
                    return
                with self._lock:
                    frame = self.frames[turn % len(self.frames)]
                answer = self._ask(client, frame)
                with self._lock:
                    self.answers.append(answer)
                self._stop.wait(max(0.0, 1.0 / self.rate_hz - (answer.done - answer.sent)))

    def _ask(self, client: httpx.Client, frame: LiveFrame) -> Answer:
        sent = time.time()
        headers = {"content-type": "image/jpeg", "accept": "application/x-npy", "x-blurfleet-stream": "camera"}
        for retries in itertools.count():
            pause_s, trouble = 0.2, ""
            try:
                response = client.post(f"{self.url}/v1/matte", content=frame.jpeg, headers=headers)
                if response.status_code == httpx.codes.OK:
                    return _good(self.node, frame, sent, retries, response)
                trouble = f"{response.status_code} {response.text[:200]}"
                if response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    break
                pause_s = min(float(response.headers.get("retry-after", "0.2")), _MAX_RETRY_PAUSE_S)
            except httpx.TransportError as error:
                # Only while the gateway itself is down, which no act asks for: counted as a failure below.
                trouble = f"{type(error).__name__}: {error}"
            if time.time() - sent > _GIVE_UP_S or self._stop.wait(pause_s):
                break
        return Answer(node=self.node, frame=frame, sent=sent, done=time.time(), failed=trouble, retries=retries)


def _good(node: str, frame: LiveFrame, sent: float, retries: int, response: httpx.Response) -> Answer:
    from io import BytesIO

    headers = response.headers
    return Answer(
        node=node,
        frame=frame,
        sent=sent,
        done=time.time(),
        retries=retries,
        engine=headers.get("x-blurfleet-engine", ""),
        digest=headers.get("x-blurfleet-digest", ""),
        precision=headers.get("x-blurfleet-precision", ""),
        role=headers.get("x-blurfleet-role", ""),
        epoch=int(headers.get("x-blurfleet-epoch", "0")),
        withheld=headers.get("x-blurfleet-withheld", "") != "",
        matte=np.load(BytesIO(response.content), allow_pickle=False),
    )
