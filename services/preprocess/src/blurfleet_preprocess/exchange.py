"""One request over HTTP from its bytes to its answer: who asks, its body within the limit, a worker, the counting."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fastapi import Request, Response

from blurfleet.errors import InvalidInput
from blurfleet.reasons import Reason
from blurfleet.serving.trace import parse_traceparent
from blurfleet_preprocess.access import Access
from blurfleet_preprocess.dataplane import Answer, Caller, Gateway
from blurfleet_preprocess.limits import Limits
from blurfleet_preprocess.metrics import GatewayMetrics
from blurfleet_preprocess.regions import Regions
from blurfleet_preprocess.streams import Streams
from blurfleet_preprocess.work import Workers

NPY = "application/x-npy"
JSON = "application/json"


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What every route needs: the gateway and its worker threads, streams to number, the limit on a body in bytes."""

    gateway: Gateway
    streams: Streams
    metrics: GatewayMetrics
    workers: Workers
    max_body_bytes: int
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)
    regions: Regions = field(default_factory=Regions)

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Return who asks, by the request's (lower-case) headers; numbered now, so call it on arrival.

        Raises InvalidInput for a stream name that is too long.
        """
        return Caller(
            ticket=self.streams.arrive(headers.get("x-blurfleet-stream", "")),
            trace=parse_traceparent(headers.get("traceparent")),
            evidence_allowed=headers.get("x-blurfleet-evidence", "").strip().lower() != "no",
        )

    async def answered(self, request: Request, work: Callable[[Caller, bytes], Response]) -> Response:
        """Return what `work` makes of the caller and the body, on a worker. Raises what `work` and `body_of` raise."""
        started = time.perf_counter()
        caller = self.caller(request.headers)
        body = await body_of(request, self.max_body_bytes)
        response = await self.workers.run(lambda: work(caller, body))
        self.metrics.seconds.labels("total").observe(time.perf_counter() - started)
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
        "server-timing": ", ".join(f"{name};dur={1000 * s:.2f}" for name, s in answer.stages.items()),
    }
    if answer.withheld is not None:
        headers["x-blurfleet-withheld"] = answer.withheld.value
    if answer.simulated:
        headers["x-blurfleet-simulated"] = "true"
    return headers


def answer_parameters(answer: Answer) -> dict[str, str]:
    """Return the same as an answer's own parameters, for clients that never see its headers."""
    return {name: value for name, value in answer_headers(answer).items() if name.startswith("x-blurfleet-")}


async def body_of(request: Request, limit: int) -> bytes:
    """Return the body. Raises InvalidInput RequestTooLarge as soon as that is known."""
    declared = request.headers.get("content-length", "")
    too_large = InvalidInput(Reason.REQUEST_TOO_LARGE, f"a body has at most {limit} bytes", where="body")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise too_large
    return bytes(body)
