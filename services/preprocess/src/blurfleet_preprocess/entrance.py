"""What the settings say of who may come in, built once: certificate, tokens, limits."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any

from blurfleet.errors import NodeError
from blurfleet.reasons import Reason
from blurfleet_preprocess.access import Access, DoorSettings, TokenFile, check_door, is_local
from blurfleet_preprocess.limits import Limits, LimitSpec
from blurfleet_preprocess.names import Names
from blurfleet_preprocess.settings import GatewaySettings
from blurfleet_preprocess.tls import Certificate


@dataclass(frozen=True, kw_only=True)
class Entrance:
    """Both protocols' way in; by default it is open and plain, as on loopback."""

    access: Access = field(default_factory=Access)
    names: Names = field(default_factory=Names)
    limits: Limits = field(default_factory=Limits)
    certificate: Certificate | None = None

    def http_context(self) -> ssl.SSLContext | None:
        """Return what HTTP is encrypted with, None for plain."""
        return self.certificate.for_http() if self.certificate is not None else None

    def grpc_credentials(self) -> Any:
        """Return what gRPC is encrypted with, None for plain."""
        return self.certificate.for_grpc() if self.certificate is not None else None


def entrance(settings: GatewaySettings) -> Entrance:
    """Return the way in. Raises NodeError: DoorUnguarded, UnreadableFile (certificate, key or tokens)."""
    cert, key, tokens = settings.tls_cert_file, settings.tls_key_file, settings.tokens_file
    if (cert is None) != (key is None):
        raise NodeError(
            Reason.UNREADABLE_FILE,
            "a certificate and its key come together",
            where="BLURFLEET_TLS_CERT_FILE, BLURFLEET_TLS_KEY_FILE",
            fix="set both or neither",
        )
    check_door(
        DoorSettings(
            host=settings.gateway_host, tls=cert is not None, tokens=tokens is not None, open_door=settings.open_door
        )
    )
    return Entrance(
        access=Access(TokenFile(tokens) if tokens is not None else None),
        names=Names(
            loopback=is_local(settings.gateway_host),
            more=frozenset(name.strip().lower() for name in settings.host_names.split(",") if name.strip()),
        ),
        limits=Limits(
            LimitSpec(rate_hz=settings.client_rate, burst=settings.client_burst, at_once=settings.client_at_once)
        ),
        certificate=Certificate(cert, key) if cert is not None and key is not None else None,
    )
