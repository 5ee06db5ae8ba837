"""How the small endpoint server ends."""

import asyncio
import socket
import time
from pathlib import Path

import pytest

from tidegate.aio.admin.endpoint import EndpointServer, Request, Response, serve_endpoint

pytestmark = pytest.mark.live

BODY = b"x" * (8 << 20)
"""More than the socket takes before its reader reads."""


async def unread_answer(path: Path) -> tuple[EndpointServer, socket.socket]:
    """A server that has written a large answer, and the client that has not begun to read it."""
    answering = asyncio.Event()

    async def handle(request: Request) -> Response:
        answering.set()
        return Response(body=BODY)

    server = await serve_endpoint(handle, f"unix:{path}")
    client = socket.socket(socket.AF_UNIX)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, str(path))
    await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    await answering.wait()
    return server, client


def test_an_answer_that_was_written_is_sent_before_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        server, client = await unread_answer(tmp_path / "s")
        received = 0
        with client:
            async with asyncio.TaskGroup() as group:
                group.create_task(server.close())
                while data := await asyncio.get_running_loop().sock_recv(client, 1 << 20):
                    received += len(data)
        assert received > len(BODY)
        assert not server.connections

    asyncio.run(main())


def test_a_client_that_never_reads_is_cut_off(tmp_path: Path) -> None:
    async def main() -> None:
        server, client = await unread_answer(tmp_path / "s")
        with client:
            began = time.monotonic()
            await server.close(flush_s=0.05)
            assert time.monotonic() - began < 5

    asyncio.run(main())


def test_connections_that_are_idle_do_not_hold_up_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        async def handle(request: Request) -> Response:
            return Response(body=b"{}")

        server = await serve_endpoint(handle, f"unix:{tmp_path / 's'}")
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readuntil(b"{}")
        began = time.monotonic()
        await server.close()
        assert time.monotonic() - began < 5
        assert await reader.read() == b""
        writer.close()

    asyncio.run(main())
