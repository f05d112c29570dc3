"""Under which names a gateway is asked: pages of other sites are kept from a gateway on their reader's machine.

Such a page can send requests there without asking, and can have its own name resolve to a loopback address.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason
from blurfleet_preprocess.access import is_local

_READING = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, kw_only=True)
class Names:
    """`loopback`: the door is on a loopback address, so that only this machine's names and `more` are its own."""

    loopback: bool = True
    more: frozenset[str] = frozenset()

    def check(self, headers: Headers, method: str) -> None:
        """Raise InvalidInput Forbidden for a foreign `Host`, and for what a page of another origin sends.

        `method` is HTTP's, or WEBSOCKET. Reading is left to the browser, which keeps answers from foreign pages.
        Programs send no origin. A page behind a proxy that changes `Host` needs its name among `more`.
        """
        host = headers.get("host")
        if self.loopback and host is not None and not self._own(_parts(f"//{host}")[1]):
            raise _forbidden(f"{host[:80]!r} is not a name of this gateway", "host")
        if method in _READING:
            return
        origin = headers.get("origin")
        netloc, name = _parts(origin or "")
        if origin is not None and (not netloc or netloc != host) and name not in self.more:
            raise _forbidden(f"pages of {origin[:80]!r} may not ask this gateway", "origin")
        site = headers.get("sec-fetch-site", "none")
        if origin is None and site not in ("same-origin", "none"):
            raise _forbidden("pages of other sites may not ask this gateway", "sec-fetch-site")

    def _own(self, name: str) -> bool:
        return (name != "" and is_local(name)) or name in self.more


def _parts(url: str) -> tuple[str, str]:
    """Return a URL's host with its port, and its host in lower case; two empty strings where it has none."""
    try:
        parts = urlsplit(url)
        return parts.netloc, parts.hostname or ""
    except ValueError:
        return "", ""


def _forbidden(message: str, where: str) -> InvalidInput:
    fix = "ask it by its own name, or add that name to BLURFLEET_HOST_NAMES"
    return InvalidInput(Reason.FORBIDDEN, message, where=where, fix=fix)
