"""Lives of a swapper on real files: recover, resume, then perhaps trip; a life kills itself at the point it is told.

Reads lines `[node folder, crash point or "-", "trip" or "-"]` and answers each with `[wait status, what it serves]`.
Each life is a forked process of its own, so that a kill -9 is a real one and imports are paid for once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

from blurfleet.api.contract import ContractSpec
from blurfleet.reasons import Reason
from blurfleet.serving.routing import RoutedEngine, read_routing
from blurfleet_agent.aliases import Face
from blurfleet_agent.ballast import Ballast
from blurfleet_agent.journal import Journal
from blurfleet_agent.journal_records import Latch
from blurfleet_agent.recovery import recover_all
from blurfleet_agent.swap import SwapOrder, Swapper

A = RoutedEngine(engine="bokeh__a", digest="sha256:" + "a" * 64, precision="Mixed")
B = RoutedEngine(engine="bokeh__b", digest="sha256:" + "b" * 64, precision="FP32")


class FlipsStandIn:
    """Stands in for Triton: an alias is a folder of epochs, a config file, and a file that says what is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)

    def ensure(self, engine: str) -> None:
        pass

    def prepare(self, alias: str, engine: str, epoch: int, face: Face) -> None:
        (self.folder / str(epoch)).mkdir(exist_ok=True)
        (self.folder / "config").write_text(json.dumps([engine, epoch]))

    def load(self, alias: str, *, within_s: float) -> None:
        (self.folder / "loaded").write_text((self.folder / "config").read_text())

    def await_ready(self, alias: str, epoch: int, *, within_s: float) -> None:
        assert json.loads((self.folder / "loaded").read_text())[1] == epoch

    def verify(self, alias: str, epoch: int, face: Face, *, within_s: float) -> None:
        pass

    def prune(self, alias: str, epoch: int) -> None:
        for entry in self.folder.iterdir():
            if entry.is_dir() and entry.name != str(epoch):
                entry.rmdir()

    def is_ready(self, alias: str, epoch: int) -> bool:
        return True


def life(node: Path, point: str, act: str) -> dict[str, object]:
    def crash(here: str) -> None:
        if here == point:
            os.kill(os.getpid(), signal.SIGKILL)

    journal = Journal(node / "journal.bin")
    routing = node / "routing.json"
    flips = FlipsStandIn(node / "alias")
    folders = {"bokeh": [int(p.name) for p in flips.folder.iterdir() if p.is_dir()]}
    swapper = Swapper(
        journal=journal,
        routing_file=routing,
        flips=flips,
        ballast=Ballast(node / "ballast"),
        simulated=True,
        crash=crash,
    )
    swapper.adopt(recover_all(journal.state.aliases, read_routing(routing).models, folders, {}))
    swapper.learn(
        "bokeh",
        Face(
            inputs=(), outputs=(), contract=ContractSpec(), contract_hash="", probe=np.zeros((1, 3, 2, 2), np.float32)
        ),
    )
    if act == "trip":
        latch = Latch(digest=A.digest, attempt="a1", reason="NonFiniteOutput", sentinel=True, at=1.0)
        for order in (
            SwapOrder(alias="bokeh", to=A, role="Primary", primary=A, fallback=B, why="Serve", reason=Reason.SERVING),
            SwapOrder(
                alias="bokeh",
                to=B,
                role="Fallback",
                primary=A,
                fallback=B,
                why="Trip",
                reason=Reason.NON_FINITE_OUTPUT,
                latch=latch,
                instead_of=A.digest,
            ),
        ):
            if order.why == "Serve" or point == "-":
                _quietly(swapper, order, node)
            else:
                swapper.swap(order)
    else:
        swapper.resume("bokeh")
    served, known = swapper.served("bokeh"), journal.state.of("bokeh")
    route = read_routing(routing).models.get("bokeh")
    loaded = json.loads((flips.folder / "loaded").read_text())
    return {
        "served": [served.engine.engine, served.epoch, served.settled] if served else None,
        "routed": [route.active.engine, route.epoch] if route else None,
        "alias": loaded,
        "folders": sorted(p.name for p in flips.folder.iterdir() if p.is_dir()),
        "journal": [known.epoch, known.done, known.trips, len(known.latches), len(known.swaps)],
    }


def live(node: Path, point: str, act: str) -> tuple[int, object]:
    """Fork one life and wait for its end."""
    said = node / "said.json"
    said.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        said.write_text(json.dumps(life(node, point, act)))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return status, json.loads(said.read_text()) if said.exists() else None


def main() -> None:
    for line in sys.stdin:
        node, point, act = json.loads(line)
        sys.stdout.write(json.dumps(live(Path(node), point, act)) + "\n")
        sys.stdout.flush()


def _quietly(swapper: Swapper, order: SwapOrder, node: Path) -> None:
    """Serve without crashing: the baseline that the trip under test starts from."""
    keep, swapper._crash = swapper._crash, lambda _point: None
    swapper.swap(order)
    swapper._crash = keep


if __name__ == "__main__":
    main()
