"""When a failed attempt is made again: bounded, with doubling waits. Pure."""

from __future__ import annotations

from blurfleet.errors import BlurfleetError
from blurfleet.reasons import Reason
from blurfleet_agent.view import Fault

# No retry mends these: only another artifact, record or config does.
HOPELESS = frozenset(
    {
        Reason.RECORD_INVALID,
        Reason.RECORD_MISMATCH,
        Reason.MISSING_FILE,
        Reason.CONFIG_INVALID,
        Reason.CONFIG_UNKNOWN_FIELD,
        Reason.CONFIG_TYPE_MISMATCH,
        Reason.CONFIG_PLACEHOLDER,
    }
)
# These pass without anybody touching the engine, so they are tried for as long as it is wanted.
PASSING = frozenset(
    {
        Reason.INSUFFICIENT_STORAGE,
        Reason.INSUFFICIENT_MEMORY,
        Reason.TRITON_UNREACHABLE,
        Reason.ARTIFACT_UNAVAILABLE,
    }
)


def next_fault(
    old: Fault | None, error: BlurfleetError, now: float, *, attempts: int, back_off_s: float, max_back_off_s: float
) -> Fault:
    """Return the fault after one more failed attempt of at most `attempts`."""
    tried = (old.attempts if old is not None else 0) + 1
    final = error.reason in HOPELESS or (error.reason not in PASSING and tried >= attempts)
    wait = min(max_back_off_s, back_off_s * 2.0 ** min(tried - 1, 16))
    return Fault(reason=error.reason, message=str(error), attempts=tried, retry_at=now + wait, final=final)


def given_up(fault: Fault, *, needed: bool) -> bool:
    """Tell whether no further attempt is made. What the node serves by (`needed`) is given up only if nothing helps."""
    return fault.reason in HOPELESS if needed else fault.final
