"""The control process's side of the admin endpoints: it opens every link, over unix sockets.

A process that does not answer raises :class:`LinkError` with its name; callers keep what they know and try again.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tidegate.deploy.local.admin_link import admin_client
from tidegate.errors import TidegateError
from tidegate.records.codec import Lines, decode, encode
from tidegate.records.gateway_sample import Activation
from tidegate.records.route_table import RouteTable

CALL_S = 2.0
"""Time after which a worker on this machine counts as not answering."""


class LinkError(TidegateError):
    """The other process did not answer, or not according to the protocol."""


class NoAnswerError(LinkError):
    """It accepted the call and has not answered for ``CALL_S``."""


class Link:
    """A link to one process. ``address``: ``unix:/path`` or ``host:port``; ``name`` is for messages."""

    def __init__(self, name: str, address: str, token: str | None = None) -> None:
        self.name = name
        self._client = admin_client(address, CALL_S, token)

    async def get(self, path: str) -> bytes:
        return await self._call("GET", path)

    async def put(self, path: str, body: bytes) -> bytes:
        return await self._call("PUT", path, body)

    async def post(self, path: str, body: bytes = b"") -> bytes:
        return await self._call("POST", path, body)

    @asynccontextmanager
    async def lines(self, path: str) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
        """Opens an endless stream of lines. Raises LinkError if it cannot be opened or breaks."""
        try:
            limit = httpx.Timeout(CALL_S, read=None)
            async with self._client.stream("GET", path, timeout=limit) as response:
                if response.status_code != httpx.codes.OK:
                    raise LinkError(f"{self.name}: {path} answered {response.status_code}")
                yield _lines(response)
        except (httpx.HTTPError, OSError) as error:
            raise LinkError(f"{self.name}: {path}: {_words(error)}") from error

    async def close(self) -> None:
        await self._client.aclose()

    async def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        try:
            response = await self._client.request(method, path, content=body)
        except httpx.TimeoutException as error:
            raise NoAnswerError(f"{self.name}: {path}: no answer within {CALL_S:g} s") from error
        except (httpx.HTTPError, OSError) as error:
            raise LinkError(f"{self.name}: {path}: {_words(error)}") from error
        if not response.is_success:
            raise LinkError(f"{self.name}: {path} answered {response.status_code}: {response.text[:200]}")
        return response.content

    def __repr__(self) -> str:
        return f"<Link {self.name}>"


class GatewayLink(Link):
    """A gateway worker's admin endpoint."""

    async def apply(self, table: RouteTable) -> tuple[int, int]:
        """Sends a route table; returns the version that the worker works from afterwards."""
        answer: dict[str, Any] = decode(await self.put("/table", encode(table)), dict)
        return int(answer.get("epoch", 0)), int(answer.get("number", 0))

    @asynccontextmanager
    async def activations(self) -> AsyncGenerator[AsyncGenerator[Activation, None], None]:
        """Opens the endless stream of activations: one each time that a request waits for a revision without a ready
        replica."""
        async with self.lines("/activations") as lines:
            yield _activations(lines)


async def _activations(lines: AsyncGenerator[bytes, None]) -> AsyncGenerator[Activation, None]:
    async for line in lines:
        yield decode(line, Activation)


async def _lines(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    lines = Lines()
    async for piece in response.aiter_bytes():
        for line in lines.push(piece):
            yield line


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
