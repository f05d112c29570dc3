"""A thin HTTP client of the Kubernetes API: what starting a control plane and checking it needs, no more."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from blurfleet.errors import AdmissionRefused, StoreConflict, StoreError
from blurfleet.reasons import Reason

MANAGER = "blurfleet-cluster"


class KubeApi:
    """Speaks to one API server with one bearer token."""

    def __init__(self, url: str, token: str, authority: Path, *, timeout_s: float = 10.0) -> None:
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            verify=ssl.create_default_context(cafile=str(authority)),
            timeout=timeout_s,
            trust_env=False,
        )
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: str = "application/json",
        headers: Mapping[str, str] | None = None,
        **query: str,
    ) -> Any:
        """Return the answer's JSON, or its text where it is none.

        Raises AdmissionRefused (403, 422), StoreConflict (409) or StoreError (others, no answer) with the server's
        sentence.
        """
        try:
            answer = self._http.request(
                method, path, json=body, params=query, headers={"Content-Type": content, **(headers or {})}
            )
        except httpx.HTTPError as error:
            raise StoreError(Reason.STORE_UNREADABLE, f"no answer: {error}", where=path) from error
        parsed = answer.json() if "json" in answer.headers.get("content-type", "") else answer.text
        if answer.is_success:
            return parsed
        message = str(parsed.get("message", "")) if isinstance(parsed, dict) else answer.text[:256]
        raise _refusal(answer.status_code, message, f"{method} {path}")

    def path(self, body: Mapping[str, Any], subresource: str = "") -> str:
        """Return the URL path of the object `body` names, looked up in the server's discovery. Raises StoreError."""
        meta = body["metadata"]
        return self.where(body["apiVersion"], body["kind"], meta["name"], meta.get("namespace", "default"), subresource)

    def where(self, version: str, kind: str, name: str = "", namespace: str = "default", subresource: str = "") -> str:
        """Return the path of a collection (no `name`), an object or its subresource. Raises StoreError."""
        root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        if (version, kind) not in self._plurals:
            for entry in self.call("GET", root)["resources"]:
                if "/" not in entry["name"]:
                    self._plurals[version, entry["kind"]] = (entry["name"], entry["namespaced"])
        if (version, kind) not in self._plurals:
            raise StoreError(Reason.UNKNOWN_KIND, f"the server knows no {kind} in {version}", where=root)
        plural, namespaced = self._plurals[version, kind]
        scope = [f"namespaces/{namespace}"] if namespaced else []
        return "/".join([root, *scope, plural, *(part for part in (name, subresource) if part)])

    def apply(self, body: Mapping[str, Any], *, dry_run: bool = False, headers: Mapping[str, str] | None = None) -> Any:
        """Apply on the server's side and return the object. Raises as `call`."""
        query = {"fieldManager": MANAGER, "force": "true", **({"dryRun": "All"} if dry_run else {})}
        return self.call(
            "PATCH", self.path(body), body, content="application/apply-patch+yaml", headers=headers, **query
        )

    def create(
        self, body: Mapping[str, Any], *, dry_run: bool = False, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Create the object and return it. Raises as `call`."""
        collection = self.path(body).rsplit("/", 1)[0]
        query = {"dryRun": "All"} if dry_run else {}
        return self.call("POST", collection, body, headers=headers, **query)

    def replace(self, body: Mapping[str, Any], subresource: str = "") -> Any:
        """Replace the object or its subresource and return it. Raises as `call`."""
        return self.call("PUT", self.path(body, subresource), body)

    def merge(self, path: str, body: Any) -> Any:
        """Merge `body` into the object at `path` (RFC 7386) and return it. Raises as `call`."""
        return self.call("PATCH", path, body, content="application/merge-patch+json")

    def get(self, body: Mapping[str, Any]) -> Any:
        """Return the object that `body` names. Raises as `call`."""
        return self.call("GET", self.path(body))

    def delete(self, body: Mapping[str, Any]) -> None:
        """Delete the object that `body` names; nothing happens where it is gone. Raises as `call`."""
        try:
            self.call("DELETE", self.path(body))
        except StoreError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise


def _refusal(status: int, message: str, where: str) -> StoreError:
    if status == httpx.codes.NOT_FOUND:
        return StoreError(Reason.NOT_FOUND, message, where=where)
    if status == httpx.codes.CONFLICT:
        return StoreConflict(Reason.CONFLICT, message, where=where)
    if status in (httpx.codes.FORBIDDEN, httpx.codes.UNPROCESSABLE_ENTITY, httpx.codes.BAD_REQUEST):
        return AdmissionRefused(Reason.INVALID_SPEC, message, where=where)
    return StoreError(Reason.STORE_UNREADABLE, f"{status}: {message}", where=where)
