"""Access to the API: only with the token, through a name of this machine, and not from a foreign web page.

The API listens on a local address, where every program and every page in a browser can reach it. The *Host* check stops
DNS rebinding (a foreign name that resolves to 127.0.0.1). The *Origin* check stops requests that a foreign page sends.
The token stops everything else. The API's document and the console's pages can be read without the token; they hold
nothing private. A session of the console (``tidegate.control.api.sessions``) may do what its pages do.
"""

import hmac
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

from tidegate.control.api.sessions import Sessions, may
from tidegate.control.views.errors import ErrorDetail, ErrorView
from tidegate.records.codec import encode

LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")
OPEN_PATHS: Final = ("/healthz", "/openapi.json")
"""Paths that are answered without a token."""

BODY_BYTES: Final = 4 * 1024 * 1024
"""Largest request body. The largest request is a manifest, and its parser takes no more."""
_HOST: Final = re.compile(r"([a-z0-9._-]{1,255}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?").fullmatch
_WITH_BODY: Final = ("POST", "PUT", "PATCH")

_NOT_BY_CONSOLE: Final = (
    HTTPStatus.FORBIDDEN,
    "not_by_console",
    "a session of the console is not enough for this; send the token of the state directory",
)

Scope = Any
"""ASGI's own shapes are dictionaries and callables."""


class AccessGuard:
    """ASGI middleware that refuses with 401 or 403 before any other handler sees the request."""

    def __init__(self, app: Scope, *, token: str, sessions: Sessions, names: Iterable[str] = ()) -> None:
        self._app = app
        self._sessions = sessions
        self._token = token.encode()
        self._names = frozenset((*LOCAL_NAMES, *(name.lower() for name in names)))

    async def __call__(self, scope: Scope, receive: Scope, send: Scope) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif (refusal := self._refusal(scope)) is not None:
            await _answer(send, *refusal)
        elif (whole := await _read(receive) if scope["method"] in _WITH_BODY else receive) is None:
            text = f"a request to the API has at most {BODY_BYTES} bytes"
            await _answer(send, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", text)
        else:
            await self._app(scope, whole, send)

    def _refusal(self, scope: Scope) -> tuple[HTTPStatus, str, str] | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host_name(host)
        if name is None or name not in self._names:
            return HTTPStatus.FORBIDDEN, "wrong_host", f"the API answers to its own names only, not to {host[:80]!r}"
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower() != f"http://{host}":
            return HTTPStatus.FORBIDDEN, "wrong_origin", "requests from another site are refused"
        method, path = scope["method"], scope["path"]
        if path in OPEN_PATHS or _is_console(method, path):
            return None
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        given = given.strip() if scheme.lower() == b"bearer" else b""
        if hmac.compare_digest(given, self._token):
            return None
        if self._sessions.is_valid(given.decode("latin-1")):
            return None if may(method, path) and _is_same_origin(headers) else _NOT_BY_CONSOLE
        return (
            HTTPStatus.UNAUTHORIZED,
            "wrong_token",
            "send the token of the state directory (file `token`) as `Authorization: Bearer TOKEN`",
        )


def _is_console(method: str, path: str) -> bool:
    """Returns whether this is a page or file of the console without data, or the exchange of a code."""
    if path == "/console/session":
        return method == "POST"
    is_page = path == "/console" or (path.startswith("/console/") and not path.startswith("/console/data"))
    return is_page and method in ("GET", "HEAD")


def _is_same_origin(headers: dict[bytes, bytes]) -> bool:
    """Returns whether a browser says that a page of ours sends the request. Other clients say nothing."""
    return headers.get(b"sec-fetch-site", b"same-origin") in (b"same-origin", b"none")


def host_name(host: str) -> str | None:
    """Returns the name in a Host header, without its port; None if the header is not ``NAME`` or ``NAME:PORT``."""
    found = _HOST(host)
    return None if found is None else found[1]


async def _read(receive: Scope) -> Scope | None:
    """Reads the whole body; returns a ``receive`` that gives it again and then what follows it, or None if it is too
    large."""
    messages = []
    size, is_more = 0, True
    while is_more:
        message = await receive()
        size += len(message.get("body", b""))
        if size > BODY_BYTES:
            return None
        messages.append(message)
        is_more = message.get("more_body", False)

    async def again() -> Any:
        return messages.pop(0) if messages else await receive()

    return again


async def _answer(send: Scope, status: HTTPStatus, code: str, message: str) -> None:
    body = encode(ErrorView(error=ErrorDetail(code=code, message=message)))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status is HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})
