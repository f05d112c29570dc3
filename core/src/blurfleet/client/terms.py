"""On which terms a gateway is asked, and when to ask it once more. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_SECONDS = re.compile(r"\d{1,9}", re.ASCII)
_UNAVAILABLE = 503


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What holds for every request of a client.

    `deadline_s` is for one call in all, its retries included, and is told to the gateway. `evidence` False asks that
    the picture is not kept. `traceparent` continues a W3C trace. `stream` puts pictures into one numbered order.
    """

    deadline_s: float = 30.0
    evidence: bool = True
    traceparent: str = ""
    stream: str = ""
    token: str = ""

    def headers(self, left_s: float) -> dict[str, str]:
        """Return the request's headers, with `left_s` seconds to go."""
        said = {"x-blurfleet-deadline-ms": str(max(1, math.floor(1000 * left_s)))}
        if not self.evidence:
            said["x-blurfleet-evidence"] = "no"
        if self.traceparent:
            said["traceparent"] = self.traceparent
        if self.stream:
            said["x-blurfleet-stream"] = self.stream
        return said | self.authorization()

    def authorization(self) -> dict[str, str]:
        """Return the header that says who asks, empty without a token."""
        return {"authorization": f"Bearer {self.token}"} if self.token else {}


def pause_before_retry(status: int, retry_after: str, left_s: float, now: datetime | None = None) -> float | None:
    """Return the seconds to wait before the same request is sent again, None where it is not.

    Only a 503 that says when to come back is asked again, and only if that leaves time before the deadline.
    """
    if status != _UNAVAILABLE:
        return None
    wait_s = _seconds(retry_after.strip(), now or datetime.now(UTC))
    return wait_s if wait_s is not None and wait_s < left_s else None


def _seconds(retry_after: str, now: datetime) -> float | None:
    """Return what `Retry-After` says, in seconds or as a date; None where it says nothing of use."""
    if _SECONDS.fullmatch(retry_after):
        return float(retry_after)
    try:
        date = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now.timestamp())
