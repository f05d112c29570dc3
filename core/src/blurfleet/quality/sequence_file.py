"""One written-down sequence in numbers: values, frame ids and times, each checked and named where it is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from blurfleet.errors import InvalidInput
from blurfleet.quality.rules import BoundRule
from blurfleet.reasons import Reason

_FRAME_PERIOD_S = 0.05  # live sampling goes up to 20 Hz
_SLOW_PERIOD_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """One sequence in numbers: value, frame id and arrival time (seconds) per sample, and the sampling period."""

    values: tuple[float | None, ...]
    frames: tuple[int, ...]
    times: tuple[float, ...]
    period_s: float


def parse_arrivals(item: Mapping[str, Any], rules: tuple[BoundRule, ...]) -> Arrivals:
    """Return the arrivals of one sequence. Raises InvalidInput naming the field whose length or type is wrong."""
    values = _values(item)
    slow = any(rule.for_s is not None for rule in rules)
    step_s = _number(item.get("step_s", _SLOW_PERIOD_S if slow else _FRAME_PERIOD_S), "step_s")
    times = item.get("times")
    moments = [i * step_s for i in range(len(values))] if times is None else [_number(t, "times") for t in _list(times)]
    frames = _list(item.get("frame_ids", list(range(len(values)))))
    for field, found in (("frame_ids", frames), ("times", moments)):
        if len(found) != len(values):
            message = f"{len(found)} {field} for {len(values)} values"
            raise InvalidInput(Reason.UNPARSEABLE, message, where=field)
    if not all(isinstance(f, int) and not isinstance(f, bool) for f in frames):
        raise InvalidInput(Reason.UNPARSEABLE, "frame ids must be integers", where="frame_ids")
    period = step_s
    if times is not None and "step_s" not in item:
        ordered = sorted(moments)
        gaps = [b - a for a, b in pairwise(ordered) if b > a]
        period = median(gaps) if gaps else step_s
    return Arrivals(values=tuple(values), frames=tuple(frames), times=tuple(moments), period_s=period)


def _values(item: Mapping[str, Any]) -> list[float | None]:
    if "values" in item:
        return [None if v is None else _number(v, "values", finite=False) for v in _list(item["values"])]
    if "ref_edge_l1" in item and "cand_edge_l1" in item:
        ref, cand = (_edges(item[key], key) for key in ("ref_edge_l1", "cand_edge_l1"))
        if len(ref) != len(cand):
            raise InvalidInput(Reason.UNPARSEABLE, f"{len(ref)} and {len(cand)} edge sums", where="cand_edge_l1")
        return [_edge_rate(r, c) for r, c in zip(ref, cand, strict=True)]
    raise InvalidInput(Reason.UNPARSEABLE, "neither `values` nor `ref_edge_l1` and `cand_edge_l1`", where="values")


def _edges(value: object, where: str) -> list[float | None]:
    items = value if isinstance(value, list) else [value]
    return [None if v is None else _number(v, where, finite=False) for v in items]


def _edge_rate(ref: float | None, cand: float | None) -> float | None:
    if ref is None or cand is None or (ref == 0 and cand == 0):
        return None
    if ref == 0:
        return math.nan if math.isnan(cand) else math.inf
    return abs(cand - ref) / ref


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidInput(Reason.UNPARSEABLE, f"{value!r:.40} is not a list", where="values")
    return value


_SPELLED = {"nan": math.nan, "+inf": math.inf, "inf": math.inf, "-inf": -math.inf}


def _number(value: object, where: str, *, finite: bool = True) -> float:
    if isinstance(value, str) and not finite and value.lower() in _SPELLED:
        return _SPELLED[value.lower()]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(Reason.UNPARSEABLE, f"{value!r:.40} is not a number", where=where)
    try:
        number = float(value)
    except OverflowError as error:
        raise InvalidInput(Reason.UNPARSEABLE, "the number is too large", where=where) from error
    if finite and not math.isfinite(number):
        raise InvalidInput(Reason.UNPARSEABLE, f"{number} is not a finite number", where=where)
    return number
