"""Who may come in: bearer tokens from a file, one name a client; and what must be set before other machines can ask.

Probes (`/healthz`, `/readyz`, v2 health) and `/metrics` are open: a kubelet and a scraper hold no client's token.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from blurfleet.errors import InvalidInput, NodeError
from blurfleet.reasons import Reason

ANYONE = "anyone"
"""The name of every client where no tokens are asked for."""
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"})
_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,62})\s*:\s*(?:sha256:)?([0-9a-f]{64})", re.ASCII)


class Unauthenticated(InvalidInput):
    """No token, or one that no client has."""


@dataclass(frozen=True, kw_only=True)
class DoorSettings:
    """What decides whether a door may be opened on an address."""

    host: str
    tls: bool
    tokens: bool
    open_door: bool


def check_door(door: DoorSettings) -> None:
    """Raise NodeError DoorUnguarded where other machines could ask without TLS or tokens, and nobody said so."""
    if is_local(door.host) or door.open_door or (door.tls and door.tokens):
        return
    lacks = " and ".join(name for name, there in (("TLS", door.tls), ("tokens", door.tokens)) if not there)
    raise NodeError(
        Reason.DOOR_UNGUARDED,
        f"{door.host} can be reached from other machines, and {lacks} are not set",
        where="BLURFLEET_GATEWAY_HOST",
        fix="set BLURFLEET_TLS_CERT_FILE, _TLS_KEY_FILE and _TOKENS_FILE, or BLURFLEET_OPEN_DOOR=true",
    )


def is_local(host: str) -> bool:
    """Tell whether an address (or `localhost`) is of this machine alone; an empty one is a Unix socket's peer."""
    if host in ("", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.split("%")[0].strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def parse_tokens(text: str) -> dict[str, str]:
    """Return client -> hash of its token (64 hex digits of SHA-256) from lines `name: sha256:<hash>`.

    Blank lines and `#` comments are skipped. Raises ValueError for any other line, and for a name used twice.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.split("#")[0].strip()
        if not stripped:
            continue
        match = _LINE.fullmatch(stripped)
        if match is None or match[1] in found:
            raise ValueError(f"line {number} is not a new `name: sha256:<64 hex digits>`")
        found[match[1]] = match[2]
    return found


def client_with(token: str, hashes: Mapping[str, str]) -> str | None:
    """Return whose token this is, None for nobody's. Compares with every client, so that time tells nothing."""
    hashed = hashlib.sha256(token.encode()).hexdigest()
    found = None
    for name, wanted in hashes.items():
        if hmac.compare_digest(hashed, wanted):
            found = name
    return found


class TokenFile:
    """The clients' hashes, read again when the file changes. One that cannot be read changes nothing, and is logged."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises NodeError UnreadableFile."""
        self._path = path
        self._lock = threading.Lock()
        self._log = structlog.get_logger("blurfleet.access")
        self._stamp = self._look()
        try:
            self._hashes = self._read()
        except (OSError, ValueError) as error:
            raise NodeError(Reason.UNREADABLE_FILE, str(error), where=str(path), fix="see docs/clients.md") from error

    def hashes(self) -> Mapping[str, str]:
        """Return client -> hash as the file says now."""
        with self._lock:
            stamp = self._look()
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._hashes = self._read()
                    self._log.info("access.tokens_read", clients=sorted(self._hashes))
                except (OSError, ValueError) as error:
                    self._log.error("access.tokens_unreadable", error=str(error), where=str(self._path))
            return self._hashes

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _read(self) -> dict[str, str]:
        return parse_tokens(self._path.read_text(encoding="utf-8"))


class Access:
    """Says who a request comes from; without a token file everybody is `anyone`."""

    def __init__(self, tokens: TokenFile | None = None) -> None:
        self._tokens = tokens

    def client(self, authorization: str) -> str:
        """Return the client's name by its `Authorization` header. Raises Unauthenticated."""
        if self._tokens is None:
            return ANYONE
        scheme, _, token = authorization.partition(" ")
        name = client_with(token.strip(), self._tokens.hashes()) if scheme.lower() == "bearer" else None
        if name is None:
            said = "is not a client's" if authorization else "is missing"
            raise Unauthenticated(
                Reason.UNAUTHENTICATED,
                f"the bearer token {said}",
                where="authorization",
                fix="send 'Authorization: Bearer <token>'",
            )
        return name
