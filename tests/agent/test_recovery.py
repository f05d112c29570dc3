"""What is served after a start follows from what survived."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blurfleet.serving.routing import Route, RoutedEngine
from blurfleet_agent.journal_records import AliasState, SwapIntent
from blurfleet_agent.recovery import recover

A = RoutedEngine(engine="bokeh__a", digest="sha256:" + "a" * 64, precision="Mixed")
B = RoutedEngine(engine="bokeh__b", digest="sha256:" + "b" * 64, precision="FP32")


def journal(epoch: int, *, to: RoutedEngine = B, done: bool = True) -> AliasState:
    intent = SwapIntent(
        alias="bokeh",
        epoch=epoch,
        to=to,
        role="Fallback" if to is B else "Primary",
        primary=A,
        fallback=B,
        why="Trip",
        reason="x",
        at=0.0,
    )
    return AliasState(epoch=epoch, intent=intent, done=done)


def route(epoch: int, *, fallback: bool = False) -> Route:
    return Route(alias="bokeh", epoch=epoch, serving="Fallback" if fallback else "Primary", primary=A, fallback=B)


@pytest.mark.parametrize(
    ("known", "routed", "served", "epoch", "settled", "following"),
    [
        pytest.param(AliasState(), None, None, None, None, 1, id="nothing survived: nothing is served"),
        pytest.param(journal(4), route(4, fallback=True), B, 4, True, 5, id="all agree: it is served again"),
        pytest.param(journal(4, done=False), route(3), B, 4, False, 5, id="journaled, not routed: the swap goes on"),
        pytest.param(
            journal(4, done=False), route(4, fallback=True), B, 4, False, 5, id="routed, alias not proven: it is owed"
        ),
        pytest.param(journal(4), None, B, 4, False, 5, id="the routing file is lost: the journal says what served"),
        pytest.param(journal(3, to=A), route(5, fallback=True), B, 5, False, 6, id="a full disk: routing is ahead"),
        pytest.param(AliasState(), route(2), A, 2, False, 3, id="the journal is lost: routing says what served"),
    ],
)
def test_recovery(
    known: AliasState,
    routed: Route | None,
    served: RoutedEngine | None,
    epoch: int | None,
    settled: bool | None,
    following: int,
) -> None:
    plan = recover(known, routed)
    found = plan.served
    assert plan.next_epoch == following
    assert (found.engine, found.epoch, found.settled) == (served, epoch, settled) if found else served is None


@given(
    journaled=st.integers(0, 9),
    routed=st.integers(0, 9),
    folders=st.lists(st.integers(0, 20)),
    status=st.integers(0, 20),
)
def test_the_next_epoch_is_above_all_that_were_ever_seen(
    journaled: int, routed: int, folders: list[int], status: int
) -> None:
    known = journal(journaled) if journaled else AliasState()
    plan = recover(known, route(routed) if routed else None, folders, status)
    assert plan.next_epoch == max([journaled, routed, status, *folders]) + 1
    if plan.served is not None:
        assert plan.served.epoch == max(journaled, routed)
