"""Repository control of one Triton over gRPC. Only the agent holds the key; every call has a deadline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from blurfleet.reasons import Reason
from blurfleet.serving.triton import channel_to, typed_error, without_traceback
from blurfleet_agent.tritoncommand import KEY_HEADER

READY = "READY"
CALL_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class VersionState:
    """One version's state in the index: READY, LOADING, UNLOADING or UNAVAILABLE, and why."""

    state: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class VersionStatistics:
    """How often one version answered since it was loaded, and failed to."""

    succeeded: int
    failed: int
    last_inference_ms: int


class RepositoryControl:
    """Loads, unloads and lists models. Has its own connection, apart from inference; safe for many threads."""

    def __init__(self, address: str, key: str) -> None:
        self._channel = channel_to(address)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._metadata = ((f"triton-grpc-protocol-{KEY_HEADER}", key),)

    def load(self, name: str, *, timeout_s: float) -> None:
        """Load `name` as it is on disk; a success says little, so read the index and infer once afterwards.

        Raises EngineError (LoadFailed, TritonUnreachable, TritonRefused) or EngineTimeout (LoadTimeout). A previously
        loaded version keeps serving in every case.
        """
        request = service_pb2.RepositoryModelLoadRequest(model_name=name)
        self._call(self._stub.RepositoryModelLoad, request, name, timeout_s)

    def unload(self, name: str, *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Unload `name`: new requests are refused at once, running ones finish. Raises EngineError, EngineTimeout."""
        request = service_pb2.RepositoryModelUnloadRequest(model_name=name)
        self._call(self._stub.RepositoryModelUnload, request, name, timeout_s)

    def index(
        self, *, ready_only: bool = False, timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[str, dict[int, VersionState]]:
        """Return {model: {version: state}}; a model never loaded has no versions.

        `ready_only` leaves out all but READY versions, and spares the server a walk over the repository's folders.
        Raises EngineError, EngineTimeout.
        """
        request = service_pb2.RepositoryIndexRequest(ready=ready_only)
        response = self._call(self._stub.RepositoryIndex, request, "index", timeout_s)
        found: dict[str, dict[int, VersionState]] = {}
        for entry in response.models:
            versions = found.setdefault(entry.name, {})
            if entry.version:
                versions[int(entry.version)] = VersionState(state=entry.state, reason=without_traceback(entry.reason))
        return found

    def ready(self, name: str, version: int | None = None, *, timeout_s: float = CALL_TIMEOUT_S) -> bool:
        """Tell whether this version (or any) of `name` is READY in the index. Raises EngineError, EngineTimeout."""
        versions = self.index(ready_only=True, timeout_s=timeout_s).get(name, {})
        if version is not None:
            versions = {number: state for number, state in versions.items() if number == version}
        return any(state.state == READY for state in versions.values())

    def server_version(self, *, timeout_s: float = 1.0) -> str:
        """Return Triton's version as the server says it. Raises EngineError, EngineTimeout."""
        return str(
            self._call(self._stub.ServerMetadata, service_pb2.ServerMetadataRequest(), "server", timeout_s).version
        )

    def statistics(self, *, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, dict[int, VersionStatistics]]:
        """Return {model: {version: counts}} of the ready models. A reload starts a model's counts again from zero."""
        request = service_pb2.ModelStatisticsRequest()
        response = self._call(self._stub.ModelStatistics, request, "statistics", timeout_s)
        found: dict[str, dict[int, VersionStatistics]] = {}
        for entry in response.model_stats:
            found.setdefault(entry.name, {})[int(entry.version)] = VersionStatistics(
                succeeded=entry.inference_stats.success.count,
                failed=entry.inference_stats.fail.count,
                last_inference_ms=entry.last_inference,
            )
        return found

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def __enter__(self) -> RepositoryControl:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: Callable[..., Any], request: Any, where: str, timeout_s: float) -> Any:
        try:
            return method(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise typed_error(error, where=where, failed=Reason.LOAD_FAILED, timed_out=Reason.LOAD_TIMEOUT) from error
