"""Where one more frame lands: finding, bounding and replaying the streams that the guard follows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from blurfleet.quality.rules import BoundRule
from blurfleet.quality.runs import REORDER_FRAMES, Entry, Run, advance, insert, is_pending, replay
from blurfleet.quality.verdict import Mark


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One stream: settled runs (one a rule), the reorder buffer, the newest settled frame, and lateness in a row."""

    name: str
    runs: tuple[Run, ...]
    entries: tuple[Entry, ...] = ()
    settled_frame: int | None = None
    too_late: int = 0
    seen_at: float = 0.0
    pending: tuple[bool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """The stream after one frame; what became of the frame; per rule how many valid frames a completed trip took, or 0.

    `fate` is "valid" (it counts), "duplicate" or "late" (it does not). `news` are the marks not seen before: all of a
    new frame's, only the filled ones of a frame sent again.
    """

    stream: Stream
    fate: str
    news: str
    frames_to_detect: tuple[int, ...]


def find(streams: tuple[Stream, ...], name: str, rules: tuple[BoundRule, ...]) -> Stream:
    """Return the stream called `name`, a new one where there is none."""
    found = next((s for s in streams if s.name == name), None)
    return found or Stream(name=name, runs=(Run(),) * len(rules), pending=(False,) * len(rules))


def keep(streams: tuple[Stream, ...], stream: Stream, limit: int) -> tuple[tuple[Stream, ...], int]:
    """Return at most `limit` streams with `stream` among them, and how many were dropped for it.

    Who goes first: streams without an open run, then those silent for longest.
    """
    others = [s for s in streams if s.name != stream.name]
    surplus = len(others) + 1 - limit
    if surplus > 0:
        leaving = sorted(others, key=lambda s: (any(s.pending), s.seen_at))[:surplus]
        names = {s.name for s in leaving}
        others = [s for s in others if s.name not in names]
    return (*others, stream), max(0, surplus)


def admit(stream: Stream, entry: Entry, rules: tuple[BoundRule, ...]) -> Arrival:
    """Return the stream with `entry` at its place in frame order.

    A frame seen before counts once (marks that were not measured then are filled in). A frame older than the settled
    ones is too late; eight of those in a row mean that the numbering restarted, and the stream begins anew.
    """
    idle = (0,) * len(rules)
    known = next((e for e in stream.entries if e.frame == entry.frame), None)
    stream = replace(stream, seen_at=max(stream.seen_at, entry.at))
    if known is not None:
        marks = _filled(known.marks, entry.marks)
        if marks == known.marks:
            return Arrival(stream=stream, fate="duplicate", news="", frames_to_detect=idle)
        rest = tuple(e for e in stream.entries if e is not known)
        news = "".join(b if a == Mark.INVALID else Mark.INVALID for a, b in zip(known.marks, entry.marks, strict=True))
        return replace(_placed(stream, rest, replace(known, marks=marks), rules), news=news)
    if stream.settled_frame is not None and entry.frame <= stream.settled_frame:
        if stream.too_late + 1 < REORDER_FRAMES:
            late = replace(stream, too_late=stream.too_late + 1)
            return Arrival(stream=late, fate="late", news="", frames_to_detect=idle)
        stream = Stream(name=stream.name, runs=(Run(),) * len(rules), seen_at=stream.seen_at)
    return _placed(stream, stream.entries, entry, rules)


def _filled(known: str, new: str) -> str:
    return "".join(b if a == Mark.INVALID else a for a, b in zip(known, new, strict=True))


def _placed(stream: Stream, rest: tuple[Entry, ...], entry: Entry, rules: tuple[BoundRule, ...]) -> Arrival:
    before, entries, runs = stream.entries, insert(rest, entry), stream.runs
    newest = entries[-1] is entry and len(rest) == len(before)
    detect, pending = [], []
    for column, rule in enumerate(rules):
        now = replay(rule, column, runs[column], entries)
        # A late frame may complete a window that ends after it; only then is the past counted again.
        fresh = now.at_end
        if not newest:
            fresh = now.completions > replay(rule, column, runs[column], before).completions
        detect.append(now.frames_to_detect if fresh else 0)
        pending.append(is_pending(rule, now.run))
    settled = stream.settled_frame
    if len(entries) > REORDER_FRAMES:
        oldest, entries = entries[0], entries[1:]
        settled = oldest.frame
        runs = tuple(advance(rule, i, run, oldest)[0] for i, (rule, run) in enumerate(zip(rules, runs, strict=True)))
    after = replace(stream, runs=runs, entries=entries, settled_frame=settled, too_late=0, pending=tuple(pending))
    return Arrival(stream=after, fate="valid", news=entry.marks, frames_to_detect=tuple(detect))
