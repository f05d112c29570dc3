"""`/`: the page on which a person tries the gateway. It loads nothing from elsewhere, and tells the browser so."""

from __future__ import annotations

import hashlib
from importlib import resources

from fastapi import APIRouter, Request, Response

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = ("index.html", "style.css", "app.js", "ask.js", "show.js", "video.js", "icon.svg")
PAGE_PATHS = frozenset({"/", *(f"/page/{name}" for name in _FILES[1:])})
"""What is served to everybody: it holds nothing but the page itself."""
_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; img-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "object-src 'none'"
    ),
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
}


def routes() -> APIRouter:
    """Return `/` and the files it is made of."""
    router = APIRouter()
    for name in _FILES:
        _serve(router, "/" if name == "index.html" else f"/page/{name}", name)
    return router


def _serve(router: APIRouter, path: str, name: str) -> None:
    body = resources.files("blurfleet_preprocess").joinpath("page", name).read_bytes()
    media = _TYPES[name[name.rindex(".") :]]
    headers = {**_HEADERS, "etag": f'"{hashlib.sha256(body).hexdigest()[:16]}"'}

    @router.get(path)
    async def file(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=media)
