"""A backend of other authors (aiohttp) that tells what it was asked, and doors before it for clients that block.

The doors run in a thread with a loop of their own, so that curl, requests or wrk can be used as they come.
"""

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

from aiohttp import WSMsgType, web

from tests.support.http.doors import Door, door

KINDS = ("gateway", "queue_proxy")
_TRAILERS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n3\r\nabc\r\n0\r\nX-T: done\r\n\r\n"


async def _echo(request: web.Request) -> web.StreamResponse:
    """Method, path, body's size and digest, and the fields."""
    body = await request.read()
    return web.json_response(
        {
            "method": request.method,
            "path": request.path_qs,
            "size": len(body),
            "digest": hashlib.sha256(body).hexdigest(),
            "headers": {name.lower(): value for name, value in request.headers.items()},
        }
    )


async def _socket(request: web.Request) -> web.StreamResponse:
    """A WebSocket that sends back what it gets."""
    answer = web.WebSocketResponse(max_msg_size=1 << 24)
    await answer.prepare(request)
    async for message in answer:
        if message.type is WSMsgType.TEXT:
            await answer.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await answer.send_bytes(message.data)
    return answer


async def _events(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await answer.prepare(request)
    for number in range(5):
        await answer.write(b"data: %d\n\n" % number)
        await asyncio.sleep(0.02)
    return answer


async def _download(request: web.Request) -> web.StreamResponse:
    """``?size=N`` bytes, chunked."""
    answer = web.StreamResponse()
    answer.enable_chunked_encoding()
    await answer.prepare(request)
    left = int(request.query["size"])
    while left:
        piece = b"z" * min(left, 1 << 16)
        await answer.write(piece)
        left -= len(piece)
    return answer


async def _trailers(request: web.Request) -> web.StreamResponse:
    """aiohttp writes no trailers, so the bytes are ours; the connection ends with them."""
    transport = request.transport
    assert transport is not None
    transport.write(_TRAILERS)
    transport.close()
    await asyncio.sleep(1)
    return web.Response()


def application() -> web.Application:
    app = web.Application(client_max_size=1 << 26)
    app.router.add_get("/ws", _socket)
    app.router.add_get("/events", _events)
    app.router.add_get("/download", _download)
    app.router.add_get("/trailers", _trailers)
    app.router.add_route("*", "/{path:.*}", _echo)
    return app


@contextmanager
def doors(ways: list[tuple[str, str]], upstream: str | None = None) -> Iterator[dict[tuple[str, str], Door]]:
    """A door per (kind, loop), before ``upstream`` or the echo application."""
    found: dict[tuple[str, str], Door] = {}
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            address = upstream
            if address is None:
                runner = web.AppRunner(application(), access_log=None)
                stack.push_async_callback(runner.cleanup)
                await runner.setup()
                site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
                await site.start()
                address = f"127.0.0.1:{runner.addresses[0][1]}"
            opened = [stack.enter_async_context(door(kind, loop_, address, slots="8")) for kind, loop_ in ways]
            for way, one in zip(ways, opened, strict=True):
                found[way] = await one
            ready.set()
            await over.wait()

    def work() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            loop.close()
            ready.set()

    thread = threading.Thread(target=work, name="doors")
    thread.start()
    try:
        ready.wait(30)
        assert len(found) == len(ways), "a door did not open"
        yield found
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(over.set)
        thread.join()
