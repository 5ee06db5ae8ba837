"""The small server and the small client, against each other and against raw bytes."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from tests.support.http.backend import ScriptedBackend, read_request
from tests.support.http.loopback import LOOPS, run_on, until
from tests.support.live.certificates import make_certificate
from tidegate.aio.admin.client import FetchError, fetch, open_upgraded
from tidegate.aio.admin.endpoint import (
    Bounds,
    EndpointServer,
    Handler,
    Request,
    Response,
    StreamResponse,
    serve_endpoint,
)
from tidegate.aio.loop.sockets import host_port

pytestmark = [pytest.mark.live, pytest.mark.parametrize("loop", sorted(LOOPS))]


async def show(request: Request) -> Response:
    text = f"{request.method} {request.path} {request.query} {request.headers.get('x-a')} {len(request.body)}"
    return Response(201, text.encode(), "text/plain", [("x-b", "c")])


def serving(
    loop: str,
    handler: Handler,
    scene: Callable[[EndpointServer], Awaitable[None]],
    address: str = "127.0.0.1:0",
    body_bytes: int = 64 << 20,
) -> list[str]:
    """Runs ``scene`` against a server of ``handler``; what was reported."""
    reported: list[str] = []

    async def main() -> None:
        server = await serve_endpoint(
            handler, address, body_bytes=body_bytes, report=lambda name, error: reported.append(f"{name}: {error}")
        )
        try:
            async with asyncio.timeout(20):
                await scene(server)
        finally:
            await server.close()
            await asyncio.sleep(0.005)

    run_on(loop, main())
    return reported


def test_a_request_and_its_answer(loop: str) -> None:
    async def scene(server: EndpointServer) -> None:
        reply = await fetch(server.address, "PUT", "/a/b?c=d", b"x" * 300_000, [("X-A", "1"), ("x-a", "2")])
        assert (reply.status, reply.body) == (201, b"PUT /a/b c=d 1, 2 300000")
        assert (reply.headers["x-b"], reply.headers["content-type"]) == ("c", "text/plain")
        reply = await fetch(server.address, "HEAD", "/")
        assert (reply.status, reply.body) == (201, b"")

    assert serving(loop, show, scene) == []


def test_a_body_that_is_not_admitted_is_not_read(loop: str) -> None:
    async def main() -> None:
        def admits(request: Request) -> bool:
            return request.headers.get("x-token") == "t"

        server = await serve_endpoint(show, "127.0.0.1:0", admits=admits)
        try:
            async with asyncio.timeout(20):
                reader, writer = await asyncio.open_connection(*host_port(server.address))
                writer.write(b"PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 9000000\r\n\r\n")
                assert b" 401 " in await reader.readline(), "before any of the body"
                writer.close()
                reply = await fetch(server.address, "PUT", "/a", b"x" * 300_000, [("X-Token", "t")])
                assert reply.status == 201
        finally:
            await server.close()

    run_on(loop, main())


def has_received(server: EndpointServer, size: int) -> bool:
    return any(each.received == size for each in server.connections)


async def is_ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


def test_of_unfinished_bodies_the_largest_ends_where_they_are_too_much_together(loop: str) -> None:
    async def main() -> None:
        bounds = Bounds(connections=99, bytes_of_bodies=250_000)
        server = await serve_endpoint(show, "127.0.0.1:0", bounds=bounds)
        try:
            async with asyncio.timeout(20):
                held = []
                for size in (100_000, 120_000):
                    reader, writer = await asyncio.open_connection(*host_port(server.address))
                    writer.write(b"PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n" + b"x" * size)
                    await until(partial(has_received, server, size))
                    held.append((reader, writer, 200_000 - size))
                assert (await fetch(server.address, "PUT", "/b", b"x" * 90_000)).status == 201
                (_, _, _), (largest, _, _) = held
                assert await is_ended(largest)
                reader, writer, left = held[0]
                writer.write(b"x" * left)
                assert b" 201 " in await reader.readline(), "the others go on"
                for _, each, _ in held:
                    each.close()
                for _ in range(9):  # What has come as a whole is no longer counted.
                    assert (await fetch(server.address, "PUT", "/b", b"x" * 240_000)).status == 201
        finally:
            await server.close()

    run_on(loop, main())


def test_a_connection_too_many_ends_the_one_that_is_nearest_to_its_time_limit(loop: str) -> None:
    async def main() -> None:
        server = await serve_endpoint(show, "127.0.0.1:0", bounds=Bounds(connections=3, bytes_of_bodies=1 << 20))
        try:
            async with asyncio.timeout(20):
                idle, slow = [await asyncio.open_connection(*host_port(server.address)) for _ in range(2)]
                slow[1].write(b"GET / HT")
                await until(lambda: len({each.deadline // 10 for each in server.connections}) == 2)
                more = [await asyncio.open_connection(*host_port(server.address)) for _ in range(2)]
                assert await is_ended(slow[0])
                idle[1].write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                assert b" 201 " in await idle[0].readline()
                for _, writer in (idle, slow, *more):
                    writer.close()
        finally:
            await server.close()

    run_on(loop, main())


def test_a_certificate_is_exchanged_and_connections_that_are_open_stay(loop: str, tmp_path: Path) -> None:
    (tmp_path / "next").mkdir()
    first, second = make_certificate(tmp_path), make_certificate(tmp_path / "next")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*first)

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b" 201 " in await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len("GET /  None 0"))

    async def main() -> None:
        server = await serve_endpoint(show, "127.0.0.1:0", tls=tls)
        trusts = [ssl.create_default_context(cafile=str(certificate)) for certificate, _ in (first, second)]
        try:
            async with asyncio.timeout(20):
                host, port = host_port(server.address)
                old = await asyncio.open_connection(host, port, ssl=trusts[0])
                await ask(*old)
                tls.load_cert_chain(*second)
                new = await asyncio.open_connection(host, port, ssl=trusts[1])
                for reader, writer in (old, new):
                    await ask(reader, writer)
                    writer.write(b"nonsense\0")
                    assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
                    writer.close()
                with pytest.raises(ssl.SSLCertVerificationError):
                    await asyncio.open_connection(host, port, ssl=trusts[0])
        finally:
            await server.close()

    run_on(loop, main())


def test_a_unix_socket(loop: str, tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def scene(server: EndpointServer) -> None:
        assert server.address == f"unix:{path}"
        assert (await fetch(server.address, "GET", "/x")).status == 201

    serving(loop, show, scene, f"unix:{path}")
    assert not path.exists()


def test_keep_alive_and_pipelining(loop: str) -> None:
    async def scene(server: EndpointServer) -> None:
        reader, writer = await asyncio.open_connection(*host_port(server.address))
        writer.write(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n")
        for number in (b"/1", b"/2"):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 201 ")
            assert number in await reader.readexactly(len("GET /1  None 0"))
        writer.close()

    serving(loop, show, scene)


def test_100_continue_is_answered(loop: str) -> None:
    async def scene(server: EndpointServer) -> None:
        reader, writer = await asyncio.open_connection(*host_port(server.address))
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"x")
        assert b" 201 " in await reader.readuntil(b"\r\n\r\n")
        writer.close()

    serving(loop, show, scene)


def test_a_failing_handler_is_a_500_and_is_reported(loop: str) -> None:
    async def fail(request: Request) -> Response:
        raise ValueError("broken")

    async def scene(server: EndpointServer) -> None:
        assert (await fetch(server.address, "GET", "/x")).status == 500

    assert serving(loop, fail, scene) == ["GET /x: broken"]


def test_what_is_refused_before_the_handler(loop: str) -> None:
    async def scene(server: EndpointServer) -> None:
        with pytest.raises(FetchError, match="connection"):
            await fetch("127.0.0.1:1", "GET", "/")
        assert (await fetch(server.address, "POST", "/", b"x" * 11)).status == 413
        reader, writer = await asyncio.open_connection(*host_port(server.address))
        writer.write(b"nonsense\0")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()

    serving(loop, show, scene, body_bytes=10)


def test_the_handler_ends_with_its_client(loop: str) -> None:
    cancelled: list[str] = []
    started = asyncio.Event()

    async def wait(request: Request) -> Response:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(request.path)
            raise
        return Response()

    async def scene(server: EndpointServer) -> None:
        with pytest.raises(FetchError, match="within"):
            await fetch(server.address, "GET", "/x", timeout_s=0.1)
        await until(lambda: cancelled == ["/x"])

    serving(loop, wait, scene)


def test_a_stream_is_sent_piece_by_piece_and_ends_with_its_client(loop: str) -> None:
    closed: list[bool] = []

    async def count() -> AsyncIterator[bytes]:
        number = 0
        try:
            while True:
                yield b"%d\n" % number
                await gate.acquire()
                number += 1
        finally:
            closed.append(True)

    async def stream(request: Request) -> StreamResponse:
        return StreamResponse(count())

    async def scene(server: EndpointServer) -> None:
        reader, writer = await asyncio.open_connection(*host_port(server.address))
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        for number in range(3):
            assert await reader.readuntil(b"\n\r\n") == b"2\r\n%d\n\r\n" % number
            gate.release()
        writer.transport.abort()
        await until(lambda: closed == [True])

    gate = asyncio.Semaphore(0)
    assert serving(loop, stream, scene) == []


def test_a_finite_stream_has_an_end(loop: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"a", b"", b"bc"):
            yield piece

    async def stream(request: Request) -> StreamResponse:
        return StreamResponse(pieces(), "text/plain", headers=[("x-b", "c")])

    async def scene(server: EndpointServer) -> None:
        reply = await fetch(server.address, "GET", "/")
        assert (reply.body, reply.headers["x-b"]) == (b"abc", "c")

    serving(loop, stream, scene)


def test_a_stream_that_fails_is_cut_off_visibly(loop: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"a"
        raise ValueError("broken")

    async def stream(request: Request) -> StreamResponse:
        return StreamResponse(pieces())

    async def scene(server: EndpointServer) -> None:
        with pytest.raises(FetchError, match=r"closed|ended"):
            await fetch(server.address, "GET", "/")

    (line,) = serving(loop, stream, scene)
    assert line.endswith("broken")


# --- the client -----------------------------------------------------------------------------------------------------


def against(loop: str, answer: bytes, scene: Callable[[str], Awaitable[None]]) -> None:
    """Runs ``scene`` against a server that says ``answer`` and hangs up."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)

    async def main() -> None:
        backend = ScriptedBackend(script)
        address = await backend.start()
        try:
            await scene(address)
        finally:
            await backend.close()

    run_on(loop, main())


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", b"a"),
    ],
)
def test_answers_of_every_framing(loop: str, answer: bytes, body: bytes) -> None:
    async def scene(address: str) -> None:
        assert (await fetch(address, "GET", "/")).body == body

    against(loop, answer, scene)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "ended|closed"),
        (b"junk", "not an HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", "closed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + b"x" * 99, "larger than 50"),
    ],
)
def test_what_is_no_answer(loop: str, answer: bytes, why: str) -> None:
    async def scene(address: str) -> None:
        with pytest.raises(FetchError, match=why):
            await fetch(address, "GET", "/", body_bytes=50)

    against(loop, answer, scene)


def test_a_line_break_in_a_header_is_a_mistake_of_ours(loop: str) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="line break"):
            await fetch("127.0.0.1:1", "GET", "/", headers=[("x", "a\r\nb: c")])

    run_on(loop, main())


class Collecting(asyncio.Protocol):
    def __init__(self) -> None:
        self.data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(b"ping")

    def data_received(self, data: bytes) -> None:
        self.data += data


def test_an_upgrade_hands_over_the_transport_and_what_followed(loop: str) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        assert b"connection: upgrade\r\nupgrade: tidegate-slots" in head
        writer.write(b"HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: tidegate-slots\r\n\r\nearly ")
        writer.write(await reader.readexactly(4))
        await reader.read()

    async def main() -> None:
        backend = ScriptedBackend(script)
        address = await backend.start()
        transport, protocol = await open_upgraded(address, "/slots", "tidegate-slots", Collecting)
        assert isinstance(protocol, Collecting)
        await until(lambda: protocol.data == b"early ping")
        transport.abort()
        await backend.close()

    run_on(loop, main())


def test_an_upgrade_that_is_refused(loop: str) -> None:
    async def scene(address: str) -> None:
        with pytest.raises(FetchError, match="status 403"):
            await open_upgraded(address, "/slots", "tidegate-slots", Collecting)

    against(loop, b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", scene)
