"""The places of the control API's connections, and their limits of time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tests.support.worlds.virtual_loop import VirtualLoop
from tidegate.control.api.connections import (
    BODY_S,
    HEAD_S,
    LOG_EVERY_S,
    UNREAD_S,
    ConnectionPlaces,
    connection_limit,
    protocol,
)


def test_the_limit_is_a_part_of_the_descriptors() -> None:
    assert [connection_limit(count) for count in (16, 256, 1024, 1 << 20)] == [8, 64, 256, 256]


def test_a_new_connection_takes_the_place_of_the_one_that_has_waited_longest() -> None:
    places, ended = ConnectionPlaces(2), list[str]()
    first, second, third = (asyncio.Protocol() for _ in range(3))
    for connection, name in ((first, "first"), (second, "second"), (third, "third")):
        assert places.take(connection)
        places.waits(connection, lambda name=name: ended.append(name))  # type: ignore[misc]  # a default binds it
    assert (ended, places.closed) == (["first"], 1)


def test_a_connection_with_a_request_is_left_alone() -> None:
    places, ended = ConnectionPlaces(2), list[str]()
    busy, silent, new, late = (asyncio.Protocol() for _ in range(4))
    assert places.take(busy)
    assert places.take(silent)
    places.waits(busy, lambda: ended.append("busy"))
    places.waits(silent, lambda: ended.append("silent"))
    places.works(busy)
    assert places.take(new)
    assert ended == ["silent"]
    assert not places.take(late), "all the others have requests"
    places.leave(busy)
    assert places.take(late)


def test_it_says_once_a_minute_that_it_closes_connections(caplog: object) -> None:
    now = [0.0]
    places = ConnectionPlaces(1, clock=lambda: now[0])
    places.take(asyncio.Protocol())
    for now[0] in (1.0, 2.0, 2.0 + LOG_EVERY_S):
        places.take(asyncio.Protocol())
    assert places.closed == 3
    assert caplog.text.count("the API has 1 connections") == 2  # type: ignore[attr-defined]  # pytest's fixture


# --- limits of time, on a clock of their own -------------------------------------------------------------------------


class Transport(asyncio.Transport):
    """The client's side in memory: ``unread`` bytes are in the buffer of the connection."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = 0
        self.written = b""
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    close = abort

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...


HEAD = b"POST /api HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n"
GET = b"GET /api HTTP/1.1\r\nhost: a\r\n\r\n"

Client = Callable[[H11Protocol, Transport], Awaitable[None]]


def served(client: Client, *, answers: bool = True) -> None:
    """Runs ``client`` on a connection of an application that reads its request, and answers or goes on."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            continue
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a" * 10, "more_body": True})
        if answers:
            await send({"type": "http.response.body", "body": b"b"})
        else:
            await asyncio.Event().wait()

    async def drive() -> None:
        made = protocol(ConnectionPlaces(4))
        config = uvicorn.Config(
            app, http=made, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=30
        )
        config.load()
        connection = made(config, ServerState(), {}, asyncio.get_running_loop())
        transport = Transport()
        connection.connection_made(transport)
        await client(connection, transport)
        connection.connection_lost(None)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(drive())


def test_a_head_has_its_time_and_a_new_byte_gives_it_no_more() -> None:
    async def client(connection: H11Protocol, transport: Transport) -> None:
        for byte in HEAD[: int(HEAD_S)]:
            assert not transport.aborted
            connection.data_received(bytes([byte]))
            await asyncio.sleep(1.0)
        await asyncio.sleep(0.1)
        assert transport.aborted

    served(client)


def test_a_body_has_its_time_and_a_new_byte_gives_it_no_more() -> None:
    async def client(connection: H11Protocol, transport: Transport) -> None:
        connection.data_received(HEAD)
        for _ in range(int(BODY_S)):
            assert not transport.aborted
            await asyncio.sleep(1.0)
            connection.data_received(b"x")
        await asyncio.sleep(0.1)
        assert transport.aborted
        assert not transport.written

    served(client)


def test_a_body_that_comes_within_its_time_is_answered() -> None:
    async def client(connection: H11Protocol, transport: Transport) -> None:
        connection.data_received(HEAD)
        await asyncio.sleep(BODY_S - 1.0)
        connection.data_received(b"x" * 1000)
        await asyncio.sleep(2.0)
        assert transport.written.startswith(b"HTTP/1.1 200")
        assert not transport.aborted

    served(client)


@pytest.mark.parametrize("also", [b"", GET[:1]], ids=["silent", "sends on"])
def test_a_client_that_reads_nothing_of_its_answer_is_cut_off(also: bytes) -> None:
    async def client(connection: H11Protocol, transport: Transport) -> None:
        connection.data_received(GET)
        transport.unread = 5000
        for _ in range(int(UNREAD_S) - 1):
            await asyncio.sleep(1.0)
            if also:
                connection.data_received(also)
        assert not transport.aborted
        for _ in range(int(UNREAD_S)):
            await asyncio.sleep(1.0)
            if also and not transport.aborted:
                connection.data_received(also)
        assert transport.aborted

    served(client, answers=False)


def test_a_client_that_reads_slowly_or_has_nothing_to_read_is_left_alone() -> None:
    async def slow(connection: H11Protocol, transport: Transport) -> None:
        connection.data_received(GET)
        for left in range(500, 0, -1):
            transport.unread = left
            await asyncio.sleep(1.0)
        assert not transport.aborted

    async def full(connection: H11Protocol, transport: Transport) -> None:
        connection.data_received(GET)
        transport.unread = 5000
        for _ in range(300):
            await asyncio.sleep(1.0)
            connection.resume_writing()  # It has read, and the answer has filled the buffer again.
        assert not transport.aborted

    async def idle(connection: H11Protocol, transport: Transport) -> None:
        connection.data_received(GET)
        await asyncio.sleep(3600.0)
        assert not transport.aborted

    for client in (slow, full, idle):
        served(client, answers=False)
