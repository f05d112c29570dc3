"""One answer to each failure of a swap's steps, on real files with a stand-in for Triton."""

from __future__ import annotations

import errno
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.agent.standins import FACE, A, B, FlipsStandIn, FullDisk

from blurfleet.errors import EngineError, NodeError
from blurfleet.reasons import Reason
from blurfleet.serving.routing import RoutedEngine, RoutingTable, read_routing
from blurfleet_agent import swap as swap_module
from blurfleet_agent.ballast import Ballast
from blurfleet_agent.journal import Journal, parse
from blurfleet_agent.recovery import RecoveryPlan
from blurfleet_agent.swap import SwapOrder, Swapper


def order(to: RoutedEngine = B, **changes: Any) -> SwapOrder:
    values: dict[str, Any] = {
        "alias": "bokeh",
        "to": to,
        "role": "Fallback" if to is B else "Primary",
        "primary": A,
        "fallback": B,
        "why": "Trip" if to is B else "Serve",
        "reason": Reason.DEER_EXCEEDED,
    }
    return SwapOrder(**{**values, **changes})


class Bench:
    def __init__(self, folder: Path, *, ready_s: float = 2.0) -> None:
        self.disk = FullDisk()
        self.flips = FlipsStandIn()
        self.journal = Journal(folder / "journal.bin", sync=self.disk)
        self.routing = folder / "routing.json"
        self.ballast = Ballast(folder / "ballast.bin")
        self.swapper = Swapper(
            journal=self.journal,
            routing_file=self.routing,
            flips=self.flips,
            ballast=self.ballast,
            simulated=True,
            ready_s=ready_s,
        )
        self.swapper.learn("bokeh", FACE)
        self.swapper.swap(order(A))
        self.flips.calls.clear()

    def routed(self) -> tuple[str, int]:
        route = read_routing(self.routing).models["bokeh"]
        return route.active.engine, route.epoch


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_swap_goes_through_the_steps_in_order_and_tells_contract_and_standby(bench: Bench) -> None:
    result = bench.swapper.swap(order())
    assert result is not None
    assert (result.epoch, result.synced, result.stale) == (2, True, None)
    assert bench.flips.calls == ["ensure", "prepare", "load", "await_ready", "verify", "prune"]
    route = read_routing(bench.routing).models["bokeh"]
    assert (route.serving, route.primary, route.fallback, route.contract_hash) == ("Fallback", A, B, "h")
    assert read_routing(bench.routing).simulated
    assert 0 < result.swap_ms < 1000


def test_a_full_disk_at_the_journal_swaps_anyway_and_is_caught_up_later(bench: Bench) -> None:
    bench.disk.full = True
    result = bench.swapper.swap(order())
    assert result is not None
    assert not result.synced
    assert bench.routed() == ("bokeh__b", 2)
    assert bench.journal.unsynced
    bench.disk.full = False
    assert bench.journal.settle()
    assert parse(bench.journal.path.read_bytes()).state.of("bokeh").epoch == 2


@pytest.mark.parametrize("step", ["prepare", "load", "await_ready", "verify"])
def test_an_alias_that_does_not_follow_leaves_the_gateways_swapped_and_is_owed(bench: Bench, step: str) -> None:
    bench.flips.fail = step
    result = bench.swapper.swap(order())
    assert result is not None
    assert result.stale is not None
    assert result.stale.reason == "AliasStale"
    assert bench.routed() == ("bokeh__b", 2)
    served = bench.swapper.served("bokeh")
    assert served is not None
    assert not served.settled
    bench.flips.fail = ""
    assert bench.swapper.resume("bokeh") is None
    served = bench.swapper.served("bokeh")
    assert served is not None
    assert (served.epoch, served.settled) == (2, True)
    assert bench.swapper.journal_of("bokeh").trips == 1


def test_the_gateways_are_told_the_networks_id_for_their_logs(bench: Bench) -> None:
    bench.swapper.learn("bokeh", replace(FACE, model_id="0123456789ab"))
    bench.swapper.swap(order())
    assert read_routing(bench.routing).models["bokeh"].model_id == "0123456789ab"


def test_old_version_folders_that_cannot_be_removed_stop_nothing(bench: Bench) -> None:
    bench.flips.fail, bench.flips.error = "prune", OSError(errno.EIO, "bad")
    result = bench.swapper.swap(order())
    assert result is not None
    assert result.stale is None


def test_an_engine_that_does_not_answer_is_not_swapped_to(bench: Bench) -> None:
    bench.flips.fail, bench.flips.error = "ensure", EngineError(Reason.ENGINE_NOT_READY, "gone")
    with pytest.raises(EngineError):
        bench.swapper.swap(order())
    assert bench.routed() == ("bokeh__a", 1)
    assert bench.swapper.journal_of("bokeh").epoch == 1


def test_a_routing_file_that_meets_a_full_disk_takes_the_ballast(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.ballast.hold()
    real = swap_module.write_routing

    def write(path: Path, table: RoutingTable) -> None:
        if (path.parent / "ballast.bin").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, table)

    monkeypatch.setattr(swap_module, "write_routing", write)
    assert bench.swapper.swap(order()) is not None
    assert bench.routed() == ("bokeh__b", 2)
    with_room = bench.ballast.hold()
    assert with_room


def test_a_routing_file_that_cannot_be_replaced_at_all_is_an_error_and_changes_nothing_for_the_gateways(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(path: Path, table: RoutingTable) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(swap_module, "write_routing", write)
    with pytest.raises(NodeError):
        bench.swapper.swap(order())
    assert bench.routed() == ("bokeh__a", 1)
    monkeypatch.undo()
    result = bench.swapper.swap(order())
    assert result is not None
    assert result.epoch == 3
    assert bench.routed() == ("bokeh__b", 3)


def test_a_swap_away_from_what_no_longer_serves_is_not_made(bench: Bench) -> None:
    assert bench.swapper.swap(order(instead_of=A.digest)) is not None
    assert bench.swapper.swap(order(instead_of=A.digest)) is None
    assert bench.routed() == ("bokeh__b", 2)


def test_the_next_epoch_is_above_what_recovery_saw(bench: Bench) -> None:
    bench.swapper.adopt({"bokeh": RecoveryPlan(served=bench.swapper.served("bokeh"), next_epoch=40)})
    result = bench.swapper.swap(order())
    assert result is not None
    assert result.epoch == 40


def test_another_standby_reaches_the_gateways_without_a_new_epoch(bench: Bench) -> None:
    other = RoutedEngine(engine="bokeh__c", digest="sha256:" + "c" * 64, precision="FP32")
    bench.swapper.refresh("bokeh", other)
    route = read_routing(bench.routing).models["bokeh"]
    assert (route.fallback, route.epoch, route.active) == (other, 1, A)
    assert bench.flips.calls == []


def test_a_drain_reaches_the_gateways_and_outlives_swaps_and_restarts(bench: Bench) -> None:
    bench.swapper.drain("bokeh", drained=True)
    route = read_routing(bench.routing).models["bokeh"]
    assert (route.drained, route.epoch, route.active) == (True, 1, A)
    bench.swapper.swap(order())
    assert bench.swapper.resume("bokeh") is None
    route = read_routing(bench.routing).models["bokeh"]
    assert (route.drained, route.epoch, route.active.engine) == (True, 2, "bokeh__b")
    assert bench.swapper.drained("bokeh")
    bench.swapper.drain("bokeh", drained=False)
    assert not read_routing(bench.routing).models["bokeh"].drained
    bench.swapper.drain("depth", drained=True)
    assert read_routing(bench.routing).models.keys() == {"bokeh"}


def test_two_threads_that_owe_the_same_alias_load_it_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.flips.fail = "load"
    bench.swapper.swap(order())
    bench.flips.fail = ""
    bench.flips.calls.clear()
    started, release = threading.Event(), threading.Event()
    real = bench.flips.load

    def slow(alias: str, *, within_s: float) -> None:
        started.set()
        assert release.wait(60.0)
        real(alias, within_s=within_s)

    monkeypatch.setattr(bench.flips, "load", slow)
    first = threading.Thread(target=bench.swapper.resume, args=("bokeh",))
    first.start()
    assert started.wait(60.0)
    second = threading.Thread(target=bench.swapper.resume, args=("bokeh",))
    second.start()
    release.set()
    first.join(60.0)
    second.join(60.0)
    assert bench.flips.calls.count("load") == 1


def test_a_trip_reaches_the_gateways_while_an_alias_hangs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.flips.fail = "load"
    bench.swapper.swap(order(A))
    bench.flips.fail = ""
    hanging, release = threading.Event(), threading.Event()

    def hang(alias: str, *, within_s: float) -> None:
        hanging.set()
        assert release.wait(60.0)

    monkeypatch.setattr(bench.flips, "load", hang)
    repair = threading.Thread(target=bench.swapper.resume, args=("bokeh",))
    repair.start()
    assert hanging.wait(60.0)
    trip = threading.Thread(target=bench.swapper.swap, args=(order(),))
    trip.start()
    deadline = time.monotonic() + 10.0
    while bench.routed()[0] != "bokeh__b":
        assert time.monotonic() < deadline
        release.wait(0.005)
    release.set()
    repair.join(60.0)
    trip.join(60.0)
    served = bench.swapper.served("bokeh")
    assert served is not None
    assert (served.engine, served.settled) == (B, True)


def test_a_trip_gives_the_alias_one_deadline_and_the_loop_has_patience(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]

    def slow(alias: str, *, within_s: float) -> None:
        assert within_s == 2.0
        clock[0] += 1.5

    monkeypatch.setattr(
        swap_module, "time", SimpleNamespace(monotonic=lambda: clock[0], perf_counter=time.perf_counter)
    )
    monkeypatch.setattr(bench.flips, "load", slow)
    bench.flips.given.clear()
    bench.swapper.swap(order())
    assert bench.flips.given == {"await_ready": 0.5, "verify": 1.0}
    bench.swapper.swap(order(A))
    assert bench.flips.given == {"await_ready": 0.5, "verify": 5.0}


def test_a_trip_waits_neither_for_another_models_alias_nor_for_ever_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, ready_s=0.2)
    bench.swapper.learn("other", FACE)
    hanging, release = threading.Event(), threading.Event()
    real = bench.flips.load

    def hang(alias: str, *, within_s: float) -> None:
        if not release.is_set() and not hanging.is_set():
            hanging.set()
            assert release.wait(60.0)
        real(alias, within_s=within_s)

    monkeypatch.setattr(bench.flips, "load", hang)
    repair = threading.Thread(target=bench.swapper.swap, args=(order(A, alias="other"),))
    repair.start()
    assert hanging.wait(60.0)
    result = bench.swapper.swap(order())
    assert result is not None
    assert result.stale is None
    second = bench.swapper.swap(order(alias="other"))
    assert second is not None
    assert second.stale is not None
    assert second.stale.reason == "AliasStale"
    assert read_routing(bench.routing).models["other"].active == B
    release.set()
    repair.join(60.0)
    assert bench.swapper.resume("other") is None
