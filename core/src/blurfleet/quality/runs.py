"""When breaches trip a rule: k of n consecutive valid frames, or breaches over a time without a valid pass between.

Pure arithmetic over the marks of one stream in frame order. Frames may arrive late, so the newest eight are kept and
replayed; what is older is settled into one `Run` a rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from blurfleet.quality.rules import BoundRule
from blurfleet.quality.verdict import NOISE, Mark

REORDER_FRAMES = 8
"""How many of a stream's newest frames may still be overtaken by a late one."""


class Run(NamedTuple):
    """What is settled of one rule on one stream.

    `recent` holds the last window - 1 valid marks; `first`, `last` (seconds) and `breaches` describe the open run.
    """

    recent: str = ""
    first: float | None = None
    last: float | None = None
    breaches: int = 0


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One frame in the reorder buffer: its id, when it arrived (seconds), and one mark a rule.

    `gap_s` is the longest gap before it that leaves a run open under rules that name none: it stays as it was when the
    frame came, since the stream's pace may have changed until the frame is settled.
    """

    frame: int
    at: float
    marks: str
    gap_s: float = 2.0


class Replay(NamedTuple):
    """Where one rule stands after its marks: how often it was complete, the frames that took at last, and the run.

    `at_end` tells whether the last mark itself completed it.
    """

    completions: int
    frames_to_detect: int
    at_end: bool
    run: Run


def advance(rule: BoundRule, column: int, run: Run, entry: Entry) -> tuple[Run, int]:
    """Return the run after the mark in `column` of one more frame, and the frames of a trip that it completes, or 0."""
    mark, at = entry.marks[column], entry.at
    max_gap_s = entry.gap_s if rule.max_gap_s is None else rule.max_gap_s
    if mark == Mark.INVALID:
        return run, 0
    if rule.frames is not None:
        window = (run.recent + mark)[-rule.window :]
        done = mark == Mark.BREACH and window.count(Mark.BREACH) >= rule.frames
        kept = window[-(rule.window - 1) :] if rule.window > 1 else ""
        return run._replace(recent=kept), len(window.lstrip(Mark.PASS)) if done else 0
    if mark == Mark.PASS:
        return Run(), 0
    if run.first is None or run.last is None or at - run.last > max_gap_s + NOISE:
        run = Run(first=at, last=at, breaches=1)
    else:
        run = Run(first=min(run.first, at), last=max(run.last, at), breaches=run.breaches + 1)
    lasted = (run.last or 0.0) - (run.first or 0.0)
    return run, run.breaches if lasted >= (rule.for_s or 0.0) - NOISE else 0


def replay(rule: BoundRule, column: int, run: Run, entries: tuple[Entry, ...]) -> Replay:
    """Return where the rule of marks column `column` stands after `entries`, in frame order, on top of `run`."""
    completions = frames = took = 0
    for entry in entries:
        run, took = advance(rule, column, run, entry)
        if took:
            completions, frames = completions + 1, took
    return Replay(completions, frames, took > 0, run)


def is_pending(rule: BoundRule, run: Run) -> bool:
    """Tell whether breaches seen so far could still become part of a trip: such a stream is not passing."""
    if rule.frames is None:
        return run.first is not None
    passes_allowed = rule.window - rule.frames
    since_breach = run.recent[run.recent.rfind(Mark.BREACH) + 1 :] if Mark.BREACH in run.recent else None
    return since_breach is not None and len(since_breach) <= passes_allowed


def insert(entries: tuple[Entry, ...], new: Entry) -> tuple[Entry, ...]:
    """Return `entries` with `new` at its place by frame id."""
    place = sum(1 for e in entries if e.frame < new.frame)
    return (*entries[:place], new, *entries[place:])
