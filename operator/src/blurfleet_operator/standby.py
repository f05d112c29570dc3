"""The one operator that acts: who should, by kopf's peering; who does, by a Lease; and a client that writes only then.

kopf pauses its own watches by the peering object, but it has no fence, and the loop is ours: so the loop looks for
itself, and a lower operator keeps the Lease until its pass has ended. How long a Lease was not renewed is measured on
this machine's steady clock, not by comparing clocks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import structlog

from blurfleet.api.meta import timestamp
from blurfleet.errors import BlurfleetError, StoreConflict, StoreError
from blurfleet.reasons import Reason
from blurfleet.store.kubeclient import Access, KubeClient
from blurfleet.store.kuberequests import Request
from blurfleet_operator.decide.standing import Standing, peers, stand
from blurfleet_operator.settings import OperatorSettings

LEASE = "blurfleet-operator"
_PEERING = "kopf.dev/v1"
_PEERINGS = f"/apis/{_PEERING}/clusterkopfpeerings"
_LOOK_S = 2.0
# The Lease runs out this long before a peering entry does, and for its holder that long again before.
_MARGIN_S = 3.0
_ALONE = Standing(acts=True, reason=Reason.ACTING, message="no peering: this operator is the only one")
_AT_FIRST = Standing(acts=False, reason=Reason.STANDING_BY, message="has not looked yet")
_log = structlog.get_logger("blurfleet.operator")


class Gate(Protocol):
    """Says whether this operator may act."""

    every_s: float

    def look(self) -> Standing:
        """Find out whether to act now. Raises BlurfleetError."""

    def holds(self) -> bool:
        """Tell whether a write may still be sent. Any thread may ask."""

    def release(self) -> None:
        """Let another operator act. Raises BlurfleetError; the Lease then runs out by itself."""


class Alone:
    """The gate of an operator without peers: always open."""

    every_s = 3600.0

    def look(self) -> Standing:
        """Return that it acts."""
        return _ALONE

    def holds(self) -> bool:
        """Return True."""
        return True

    def release(self) -> None:
        """Do nothing."""


class HeldLease:
    """The gate of an operator with peers."""

    every_s = _LOOK_S

    def __init__(
        self,
        client: KubeClient,
        settings: OperatorSettings,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        assert settings.priority is not None
        self._client = client
        self._me = settings.identity
        self._priority = settings.priority
        self._lasts_s = settings.peering_lifetime_s - _MARGIN_S
        self._peering = settings.peering
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{settings.namespace}/leases"
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._until = -1e12
        self._looked_at = -1e12
        self._standing = _AT_FIRST
        self._seen: tuple[str, str] = ("", "")
        self._seen_at = -1e12

    def look(self) -> Standing:
        """Find out whether to act, taking, renewing or releasing the Lease; within two seconds it repeats itself."""
        with self._lock:
            if self._monotonic() - self._looked_at < _LOOK_S and (self.holds() or not self._standing.acts):
                return self._standing
            began = self._monotonic()
            lease = self._read()
            standing = self._stand(lease)
            if standing.acts and not (self._held_by(lease) == self._me and self.holds()):
                self._write(lease, self._me)
                self._until = began + self._lasts_s - _MARGIN_S
            elif not standing.acts and self._held_by(lease) == self._me:
                self._until = -1e12
                self._write(lease, "")
            self._looked_at, self._standing = began, standing
            return standing

    def holds(self) -> bool:
        """Tell whether the Lease is still ours; a long pass renews it by asking."""
        with self._lock:
            if 0.0 < self._until - self._monotonic() < self._lasts_s / 2:
                self._renew()
            return self._monotonic() < self._until

    def release(self) -> None:
        """Write nothing any more, then let go."""
        with self._lock:
            self._until, self._standing = -1e12, _AT_FIRST
            lease = self._read()
            if self._held_by(lease) == self._me:
                self._write(lease, "")

    def _renew(self) -> None:
        # Outranked or not: the other one waits for the end of this pass.
        began = self._monotonic()
        try:
            lease = self._read()
            if self._held_by(lease) == self._me:
                self._write(lease, self._me)
                self._until = began + self._lasts_s - _MARGIN_S
        except BlurfleetError as error:
            _log.warning("lease not renewed", reason=error.reason.value, message=error.message)

    def _stand(self, lease: Mapping[str, Any] | None) -> Standing:
        now = self._clock()
        status = self._peers().get("status") or {}
        return stand(self._me, self._priority, peers(status, now), self._held_by(lease), now)

    def _held_by(self, lease: Mapping[str, Any] | None) -> str:
        """Return who holds the Lease, empty where nobody does or it was not renewed for as long as it lasts."""
        spec = (lease or {}).get("spec") or {}
        seen = (str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or ""))
        now = self._monotonic()
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        lasts_s = float(spec.get("leaseDurationSeconds") or 0)
        return seen[0] if seen[0] == self._me or now - self._seen_at < lasts_s else ""

    def _read(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self._got(f"{self._leases}/{LEASE}")
        return found

    def _write(self, lease: Mapping[str, Any] | None, holder: str) -> None:
        """Put `holder` into the Lease as it was read. Raises StoreConflict where somebody wrote it since."""
        meta = (lease or {}).get("metadata") or {"name": LEASE, "labels": {"app.kubernetes.io/part-of": "blurfleet"}}
        before = (lease or {}).get("spec") or {}
        moved = holder not in ("", before.get("holderIdentity"))
        spec = {
            "holderIdentity": holder,
            "leaseDurationSeconds": int(self._lasts_s),
            "renewTime": timestamp(self._clock()).replace("Z", "000Z"),
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + moved,
        }
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
        if lease is None:
            self._client.send(Request(method="POST", path=self._leases, body=body))
        else:
            self._client.send(Request(method="PUT", path=f"{self._leases}/{LEASE}", body=body))

    def _peers(self) -> Mapping[str, Any]:
        """Return the peering object, made where it is missing."""
        found = self._got(f"{_PEERINGS}/{self._peering}")
        if found is not None:
            return dict(found)
        meta = {"name": self._peering, "labels": {"app.kubernetes.io/part-of": "blurfleet"}}
        body = {"apiVersion": _PEERING, "kind": "ClusterKopfPeering", "metadata": meta}
        try:
            return dict(self._client.send(Request(method="POST", path=_PEERINGS, body=body)))
        except StoreConflict:
            return {}  # made by a peer in this moment, and nobody is in it yet

    def _got(self, path: str) -> Any:
        try:
            return self._client.send(Request(method="GET", path=path))
        except StoreError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
        return None


class FencedClient(KubeClient):
    """A client whose writes are refused, unsent, while the gate is shut."""

    def __init__(self, access: Access, gate: Gate, *, connections: int) -> None:
        super().__init__(access, connections=connections)
        self._gate = gate

    def send(self, request: Request) -> Any:
        """Return the answer's JSON. Raises as the client's, and StoreError while another operator acts."""
        if request.writes and not self._gate.holds():
            where = f"{request.method} {request.path}"
            raise StoreError(Reason.STORE_UNWRITABLE, "this operator does not act any more", where=where)
        return super().send(request)
