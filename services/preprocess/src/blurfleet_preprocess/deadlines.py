"""How long a request may last: the least of what its client says, its transport says, and the gateway allows."""

from __future__ import annotations

import re
from collections.abc import Mapping

from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason
from blurfleet.serving.life import RequestLife

HEADER = "x-blurfleet-deadline-ms"
LONGEST_S = 30.0  # as long as an agent keeps an engine that nobody asks any more
_MILLISECONDS = re.compile(r"[1-9]\d{0,8}", re.ASCII)


def life_of(
    headers: Mapping[str, str], *, transport_s: float | None = None, longest_s: float = LONGEST_S
) -> RequestLife:
    """Return the life of a request that begins now: the least of its header (whole milliseconds) and the two limits.

    `transport_s` is what the transport itself allows (a gRPC deadline). Raises InvalidInput for another header.
    """
    said = headers.get(HEADER, "").strip()
    if said and not _MILLISECONDS.fullmatch(said):
        raise InvalidInput(
            Reason.INVALID_REQUEST, f"{said[:40]!r} is not a number of milliseconds above 0", where=HEADER
        )
    limits = [longest_s] if transport_s is None else [longest_s, max(0.0, transport_s)]
    return RequestLife(min([int(said) / 1000, *limits] if said else limits))
