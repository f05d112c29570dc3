"""Sends requests to a Kubernetes API server. The only module that imports the official client.

The client is used for what it knows best: kubeconfigs, accounts, certificates and connections. Objects stay plain
dictionaries until the models parse them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
from kubernetes import client, config

from blurfleet.errors import AdmissionRefused, InvalidSpec, StoreConflict, StoreError
from blurfleet.reasons import Reason
from blurfleet.store.kuberequests import Request

_CONNECT_S = 5.0
_ANSWER_S = 15.0
# A bookmark comes every minute, so a stream that is silent for longer is dead.
_SILENCE_S = 90.0
# Bound tokens are renewed in place long before they run out; a refused one is asked for again at once.
_TOKEN_READ_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Access:
    """How the server is reached: a kubeconfig (and context), or the pod's own account where none is given.

    `token_file` wins over the kubeconfig's identity and is read again every half minute: bound tokens are renewed in
    place.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    token_file: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who a client is, for another client of the same process. Files are None where they are not used."""

    host: str
    token: str | None
    authority: str | None
    certificate: str | None
    key: str | None
    insecure: bool


class KubeClient:
    """One identity on one API server; any thread may use it. Errors are BlurfleetErrors with the server's sentence."""

    def __init__(
        self,
        access: Access,
        *,
        connections: int = 16,
        connect_s: float = _CONNECT_S,
        answer_s: float = _ANSWER_S,
        silence_s: float = _SILENCE_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeouts = (connect_s, answer_s)
        self._silence_s = silence_s
        settings = client.Configuration()
        load: Any = config  # parts of the client ship no types
        try:
            if access.kubeconfig is None:
                load.load_incluster_config(client_configuration=settings)
            else:
                load.load_kube_config(str(access.kubeconfig), access.context, client_configuration=settings)
        except Exception as error:
            # A file that is no kubeconfig surfaces as whatever YAML, base64 or the client's own look-ups raise.
            raise _no_server(access, error) from error
        settings.retries = False
        settings.connection_pool_maxsize = connections
        self._api = client.ApiClient(settings)
        self._rest: Any = self._api.rest_client
        self._settings: Any = settings
        self._host = settings.host
        self._token_file = access.token_file
        self._monotonic = monotonic
        self._authorization = ""
        self._asked_at = -1e9
        self.requests = 0

    @property
    def host(self) -> str:
        """Return the server's address."""
        return str(self._host)

    def identity(self) -> Identity:
        """Return who this client is now; tokens are renewed, so ask again when one is refused."""
        headers: dict[str, str] = {}
        self._authorize(headers)
        return Identity(
            host=self.host,
            token=headers.get("authorization", "").partition(" ")[2] or None,
            authority=self._settings.ssl_ca_cert,
            certificate=self._settings.cert_file,
            key=self._settings.key_file,
            insecure=not self._settings.verify_ssl,
        )

    def close(self) -> None:
        """Close the connections."""
        self._rest.close()

    def send(self, request: Request) -> Any:
        """Return the answer's JSON.

        Raises StoreConflict (409), InvalidSpec (422 by the kind's rules), AdmissionRefused (by a policy), and
        StoreError (NotFound, Forbidden, or no answer) with the server's sentence.
        """
        answer = self._ask(request, self._timeouts)
        try:
            data = answer.data
        except urllib3.exceptions.HTTPError as error:
            raise _no_answer(request, error) from error
        finally:
            answer.release_conn()
        if 200 <= answer.status < 300:
            return json.loads(data)
        if answer.status == 401:
            self._asked_at = -1e9
        raise refusal(answer.status, data, request)

    def stream(self, request: Request, opened: Callable[[Callable[[], None]], None]) -> Iterator[Any]:
        """Yield the events of a watch until the server ends it. Raises as `send`.

        `opened` gets, once, what ends the stream from another thread.
        """
        answer = self._ask(request, (self._timeouts[0], self._silence_s))
        try:
            if answer.status != 200:
                raise refusal(answer.status, answer.data, request)
            opened(lambda: _shut(answer))
            rest = b""
            for chunk in answer.stream(amt=None):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield json.loads(line)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise _no_answer(request, error) from error
        finally:
            answer.close()

    def _ask(self, request: Request, timeout: tuple[float, float]) -> urllib3.HTTPResponse:
        self.requests += 1
        headers = {"Accept": "application/json", "Content-Type": request.content, "User-Agent": "blurfleet"}
        self._authorize(headers)
        url = f"{self._host}{request.path}" + (f"?{urlencode(request.query)}" if request.query else "")
        try:
            # The client's own pool: a revert is a request a node, and the client's layer asks who we are at each.
            answer: urllib3.HTTPResponse = self._rest.pool_manager.urlopen(
                request.method,
                url,
                headers=headers,
                body=None if request.body is None else json.dumps(request.body).encode(),
                timeout=urllib3.Timeout(connect=timeout[0], read=timeout[1]),
                preload_content=False,
                redirect=False,
                retries=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _no_answer(request, error) from error
        return answer

    def _authorize(self, headers: dict[str, str]) -> None:
        now = self._monotonic()
        if now - self._asked_at > _TOKEN_READ_S:
            self._authorization = self._asked()
            self._asked_at = now
        if self._authorization:
            headers["authorization"] = self._authorization

    def _asked(self) -> str:
        """Return who we are as the header says it, empty where a certificate does. Raises StoreError."""
        if self._token_file is None:
            found: dict[str, str] = {}
            self._api.update_params_for_auth(found, [], ["BearerToken"], "/", "GET", None)
            return found.get("authorization", "")
        try:
            return f"Bearer {self._token_file.read_text(encoding='utf-8').strip()}"
        except OSError as error:
            where = str(self._token_file)
            raise StoreError(Reason.STORE_UNREADABLE, f"no token: {error.strerror}", where=where) from error


def refusal(status: int, data: bytes, request: Request) -> StoreError | InvalidSpec:
    """Return the error for an answer that is no success. Pure."""
    try:
        message = str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        message = data[:256].decode(errors="replace").strip() or f"status {status}"
    where = f"{request.method} {request.path}"
    if "ValidatingAdmissionPolicy" in message:
        reason = Reason.QUARANTINED if "quarantined" in message else Reason.INVALID_SPEC
        if "serves or would go back to" in message:
            reason = Reason.IN_USE
        return AdmissionRefused(reason, message, where=where)
    if status == 404:
        return StoreError(Reason.NOT_FOUND, message, where=where)
    if status == 409:
        return StoreConflict(Reason.CONFLICT, message, where=where)
    if status == 410:
        return StoreError(Reason.CONFLICT, message, where=where)
    if status in (401, 403):
        return StoreError(Reason.FORBIDDEN, message, where=where, fix="see the chart's roles")
    if status in (400, 422):
        reason = Reason.IMMUTABLE if "immutable" in message.lower() else Reason.INVALID_SPEC
        return InvalidSpec(reason, message, where=where)
    return _away(request, f"{status}: {message}")


def _no_server(access: Access, error: Exception) -> StoreError:
    said = " ".join(str(error).split())[:300] or type(error).__name__
    if access.kubeconfig is None:
        message, fix = f"no kubeconfig, and no pod's account: {said}", "name a kubeconfig"
    else:
        message, fix = f"not a kubeconfig that can be used: {said}", "name another kubeconfig, or a context of this one"
    return StoreError(Reason.STORE_UNREADABLE, message, where=str(access.kubeconfig or ""), fix=fix)


def _no_answer(request: Request, error: Exception) -> StoreError:
    message = f"no answer: {str(error)[:300] or type(error).__name__}"
    return _away(request, message, fix="see that the API server runs, at the address in the kubeconfig")


def _away(request: Request, message: str, *, fix: str = "") -> StoreError:
    reason = Reason.STORE_UNWRITABLE if request.writes else Reason.STORE_UNREADABLE
    return StoreError(reason, message, where=f"{request.method} {request.path}", fix=fix)


def _shut(answer: urllib3.HTTPResponse) -> None:
    # Closing a response does not wake a thread that reads from it; shutting its socket down does.
    if answer.connection is not None and getattr(answer.connection, "sock", None) is not None:
        answer.shutdown()
