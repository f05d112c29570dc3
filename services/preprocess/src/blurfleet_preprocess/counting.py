"""Under which name a client's requests are counted: its token's, or else its address; wrong tokens by address too."""

from __future__ import annotations

import ipaddress

from blurfleet_preprocess.access import ANYONE, Access, Unauthenticated
from blurfleet_preprocess.limits import Limits

_PREFIX = 64  # one client of IPv6 has this whole network to send from


def let_in(access: Access, limits: Limits, authorization: str, host: str) -> tuple[str, str]:
    """Return the client's name, and the name it is counted under; `host` is the address it asks from.

    Raises Unauthenticated, and TooManyRequests where too many such requests came from that address.
    """
    address = address_of(host)
    try:
        client = access.client(authorization)
    except Unauthenticated:
        limits.take(f"refused {address}")  # no client's name has a space
        raise
    return client, client if client != ANYONE else address


def address_of(host: str) -> str:
    """Return what an address is counted as: an IPv6 one as its /64 network, anything else as it is."""
    try:
        address = ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _PREFIX), strict=False))
