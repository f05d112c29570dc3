"""One request over HTTP from its bytes to its answer: who asks, its body within the limit, a worker, the counting."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from fastapi import Request, Response

from blurfleet.quality.sentinel import Matte
from blurfleet_preprocess.access import Access
from blurfleet_preprocess.bodies import Bodies
from blurfleet_preprocess.dataplane import Answer, Caller, Gateway
from blurfleet_preprocess.deadlines import LONGEST_S, life_of
from blurfleet_preprocess.limits import Limits
from blurfleet_preprocess.metrics import GatewayMetrics
from blurfleet_preprocess.names import Names
from blurfleet_preprocess.regions import Regions
from blurfleet_preprocess.room import Room
from blurfleet_preprocess.said_headers import evidence_allowed, joined
from blurfleet_preprocess.stages import Stages
from blurfleet_preprocess.streams import OpenStream, Streams
from blurfleet_preprocess.tracing import Tracing, stages_of
from blurfleet_preprocess.work import Workers

NPY = "application/x-npy"
JSON = "application/json"


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What every route needs: the gateway and its worker threads, streams to number, the limit on a body in bytes.

    Probes have a thread of their own: a busy node is not a broken one. A request lasts at most `longest_s` seconds.
    `evidence` false refuses for everybody that pictures are kept.
    """

    gateway: Gateway
    streams: Streams
    metrics: GatewayMetrics
    workers: Workers
    max_body_bytes: int
    access: Access = field(default_factory=Access)
    names: Names = field(default_factory=Names)
    limits: Limits = field(default_factory=Limits)
    regions: Regions = field(default_factory=Regions)
    tracing: Tracing = field(default_factory=Tracing)
    bodies: Bodies = field(default_factory=Bodies)
    room: Room = field(default_factory=Room)
    probes: Workers = field(default_factory=lambda: Workers(1, 32))
    longest_s: float = LONGEST_S
    evidence: bool = True

    def caller(
        self,
        headers: Mapping[str, str],
        stages: Stages | None = None,
        *,
        transport_s: float | None = None,
        client: str = "",
        stream: OpenStream | None = None,
        connection: str = "",
    ) -> Caller:
        """Return who asks, by the request's (lower-case) headers; numbered now, so call it on arrival.

        `transport_s` are the seconds that the transport allows, `client` is whose stream names these are, `stream` the
        connection's own stream, where the headers name none; `connection` tells apart who names none.
        Raises InvalidInput for a stream name that is too long and a deadline that is none.
        """
        life = life_of(headers, transport_s=transport_s, longest_s=self.longest_s)
        name = headers.get("x-blurfleet-stream", "")
        return Caller(
            ticket=stream.arrive() if stream is not None and not name else self.streams.arrive(name, client),
            stages=stages or Stages(),
            evidence_allowed=self.evidence and evidence_allowed(headers),
            life=life,
            sender="" if name or stream is not None else f"{client} {connection}",
        )

    async def answered(self, request: Request, work: Callable[[Caller, bytes], Response]) -> Response:
        """Return what `work` makes of the caller and the body, on a worker, while the client waits.

        Raises what `work`, `Bodies.of` and `Workers.run_for` raise.
        """
        started = time.perf_counter()
        who = str(request.scope.get("blurfleet.client", ""))
        caller = self.caller(
            joined(request.headers.items()), stages_of(request.scope), client=who, connection=str(request.client)
        )
        async with self.bodies.of(request, caller.life, self.max_body_bytes) as body:
            queued = time.perf_counter()

            def begun() -> Response:
                caller.stages.waited("queue", time.perf_counter() - queued)
                with self.room.share(caller.life) as share:
                    return work(replace(caller, room=share), body)

            response = await self.workers.run_for(request, caller.life, begun)
        caller.stages.seconds["total"] = time.perf_counter() - started
        caller.stages.observe(self.metrics)
        response.headers["server-timing"] = caller.stages.header()
        self.metrics.requests.labels(str(response.status_code)).inc()
        return response


def answer_headers(answer: Answer) -> dict[str, str]:
    """Return who answered: all from the one snapshot that the request was answered under."""
    headers = {
        "x-blurfleet-engine": answer.engine.engine,
        "x-blurfleet-digest": answer.engine.digest,
        "x-blurfleet-precision": answer.engine.precision,
        "x-blurfleet-role": answer.role,
        "x-blurfleet-epoch": str(answer.route.epoch),
        "x-blurfleet-contract": answer.contract_hash,
        "x-blurfleet-frame": f"{answer.ticket.stream}#{answer.ticket.frame_id}",
        "x-blurfleet-trace": answer.trace_id,
        "server-timing": answer.stages.header(),
    }
    if answer.withheld is not None:
        headers["x-blurfleet-withheld"] = answer.withheld.value
    if answer.unchecked is not None:
        headers["x-blurfleet-unchecked"] = answer.unchecked.value
    if answer.simulated:
        headers["x-blurfleet-simulated"] = "true"
    return headers


def parameters_among(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what of an answer's headers are its own parameters too, for clients that never see headers."""
    return {name: value for name, value in headers.items() if name.startswith("x-blurfleet-")}


def npy(array: Matte) -> bytes:
    """Return a float32 array as numpy.save writes it."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
