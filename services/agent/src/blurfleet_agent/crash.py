"""Named points between the steps of a swap, where a test can end the process."""

from __future__ import annotations

from collections.abc import Callable

CrashPoint = Callable[[str], None]

SWAP_POINTS = (
    "swap-decided",
    "journal-written",
    "routing-replaced",
    "alias-prepared",
    "alias-loaded",
    "alias-ready",
    "alias-verified",
    "alias-pruned",
    "journal-done",
)


def no_crash(_point: str) -> None:
    """Go on: what production uses."""
