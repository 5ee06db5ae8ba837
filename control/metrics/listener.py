"""A listener that has metrics alone, for a Prometheus that gets no credential of the API.

``GET`` and ``HEAD`` of ``/metrics`` are answered, and nothing else is there. A token of its own may be asked for; its
file is read again while the process runs, so that it can be replaced. Without one, requests that name the listener by
an address, ``localhost`` or its own name are answered: a page of a foreign site whose name resolves to this address
names itself.
"""

import hmac
import stat
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from tidegate.control.api.access import host_name
from tidegate.control.state.notices import Faults
from tidegate.errors import Fault, InvalidInputError
from tidegate.open_metrics import Form, form_of, formed

PATH: Final = "/metrics"
METHODS: Final = ("GET", "HEAD")
READ_AGAIN_S: Final = 1.0
"""Between two looks at the file of the token."""
TOKEN_BYTES: Final = 4096
SUBJECT: Final = "token of the metrics"
CHALLENGE: Final = (b"www-authenticate", b"Bearer")
RETRY: Final = (b"retry-after", b"1")

Scope = Any
"""ASGI's own shapes are dictionaries and callables."""


class TokenFile:
    """The token of the listener, as its file has it."""

    def __init__(self, path: Path, now: Callable[[], float]) -> None:
        self._path = path
        self._now = now
        self._read_at = -READ_AGAIN_S
        self._token: bytes | None = None

    def token(self) -> bytes:
        """Returns the token. Raises InvalidInputError if the file has none."""
        now = self._now()
        if self._token is None or now - self._read_at >= READ_AGAIN_S:
            self._token, self._read_at = self._read(), now
        return self._token

    def _read(self) -> bytes:
        try:
            if not stat.S_ISREG(self._path.stat().st_mode):  # A pipe would hold the control process.
                raise self._unusable("it is no regular file")
            with self._path.open("rb") as file:
                text = file.read(TOKEN_BYTES + 1).strip()
        except OSError as error:
            raise self._unusable(error.strerror or "it cannot be read") from error
        if not text or len(text) > TOKEN_BYTES or not all(0x21 <= byte <= 0x7E for byte in text):
            raise self._unusable("what it has is no token")
        return text

    def _unusable(self, why: str) -> InvalidInputError:
        allowed = f"a file with one word of printable ASCII, at most {TOKEN_BYTES} bytes"
        return InvalidInputError("settings", [Fault("metrics.token-file", f"{self._path} ({why})", allowed)])

    def __repr__(self) -> str:
        return f"<TokenFile {self._path}>"


class MetricsListener:
    """The ASGI application."""

    def __init__(
        self, scrape: Callable[[], AsyncIterator[bytes]], *, name: str, token: TokenFile | None, faults: Faults
    ) -> None:
        """``scrape`` returns the exposition in pieces; ``name`` is the host that it listens on; ``token`` None: none is
        asked for."""
        self._scrape = scrape
        self._faults = faults
        self._name = name.lower()
        self._token = token

    async def __call__(self, scope: Scope, receive: Scope, send: Scope) -> None:
        if scope["type"] != "http":
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if scope["path"] != PATH:
            await _refuse(send, HTTPStatus.NOT_FOUND, f"only {PATH} is here")
        elif scope["method"] not in METHODS:
            allow = (b"allow", ", ".join(METHODS).encode())
            await _refuse(send, HTTPStatus.METHOD_NOT_ALLOWED, f"{PATH} is read by GET", allow)
        elif self._token is None and not self._is_own(headers.get(b"host", b"")):
            await _refuse(send, HTTPStatus.FORBIDDEN, "name this listener by its address")
        elif self._token is not None and (refusal := self._unproven(self._token, headers)) is not None:
            await _refuse(send, *refusal)
        else:
            await self._answer(scope["method"], headers.get(b"accept", b""), send)

    def _is_own(self, host: bytes) -> bool:
        name = host_name(host.decode("latin-1").lower())
        if name is None or name in ("localhost", self._name):
            return name is not None
        try:
            ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def _unproven(
        self, token: TokenFile, headers: dict[bytes, bytes]
    ) -> tuple[HTTPStatus, str, tuple[bytes, bytes]] | None:
        """Returns the refusal of a request without the token; None if it has it."""
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        try:
            wanted = token.token()
        except InvalidInputError as error:
            self._faults.set(SUBJECT, str(error))
            return HTTPStatus.SERVICE_UNAVAILABLE, "the token cannot be read; the status says why", RETRY
        self._faults.clear(SUBJECT)
        if scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), wanted):
            return None
        return HTTPStatus.UNAUTHORIZED, "send the token of the metrics as `Authorization: Bearer TOKEN`", CHALLENGE

    async def _answer(self, method: str, accept: bytes, send: Scope) -> None:
        form: Form = form_of(accept.decode("latin-1"))
        headers = [(b"content-type", form.value.encode())]
        await send({"type": "http.response.start", "status": int(HTTPStatus.OK), "headers": headers})
        if method == "GET":
            async for piece in formed(self._scrape(), form):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def __repr__(self) -> str:
        return f"<MetricsListener {self._name}, {'without a token' if self._token is None else self._token}>"


async def _refuse(send: Scope, status: HTTPStatus, text: str, *headers: tuple[bytes, bytes]) -> None:
    body = f"{text}\n".encode()
    fields = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": int(status), "headers": fields})
    await send({"type": "http.response.body", "body": body})
