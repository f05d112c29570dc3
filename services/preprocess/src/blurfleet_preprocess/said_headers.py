"""What a request's headers say, whatever transport they came by and however often one was sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

EVIDENCE = "x-blurfleet-evidence"


def joined(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers by their lower-case names; one sent several times has its values joined by commas, as in HTTP."""
    found: dict[str, str] = {}
    for name, value in pairs:
        key = name.lower()
        found[key] = f"{found[key]}, {value}" if key in found else value
    return found


def evidence_allowed(headers: Mapping[str, str]) -> bool:
    """Tell whether pictures may be kept: without the header, or where all it says is yes. All else is taken as a no."""
    return all(word.strip().lower() == "yes" for word in headers.get(EVIDENCE, "yes").split(","))
