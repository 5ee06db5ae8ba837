"""gRPC through real gateways and queue_proxies, with another author's client and server (grpcio) at the ends."""

import json
import queue
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from tests.support.deadline import Patience
from tests.support.http.doors import Door
from tests.support.http.echo import doors
from tests.support.http2.grpc_client import framed
from tests.support.http2.grpc_echo import DETAILS, Client, Echo, echo_server
from tidegate.wire.http2.block_memory import RESPONSE, Blocks
from tidegate.wire.http2.events import RESET
from tidegate.wire.http2.frames import INTERNAL_ERROR
from tidegate.wire.http2.hpack import literal
from tidegate.wire.http2.roles import H2Client

WAYS = [("queue_proxy", "uvloop"), ("queue_proxy", "asyncio"), ("gateway", "uvloop")]
pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]

World = tuple[Echo, dict[tuple[str, str], Door]]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with echo_server() as (service, address, _), doors(WAYS, address) as opened:
        yield service, opened


@pytest.fixture
def service(world: World) -> Echo:
    world[0].begun.clear()
    world[0].ended.clear()
    return world[0]


@pytest.fixture(params=WAYS, ids="-".join)
def at(request: pytest.FixtureRequest, world: World) -> Door:
    return world[1][request.param]


@pytest.fixture
def client(at: Door) -> Iterator[Client]:
    with Client(at.address) as one:
        yield one


def sample(at: Door) -> dict[str, Any]:
    """What the queue_proxy says of itself."""
    assert at.replica is not None
    transport = httpx.HTTPTransport(uds=at.replica.admin.removeprefix("unix:"))
    with httpx.Client(transport=transport) as admin:
        found: dict[str, Any] = json.loads(admin.get("http://a/sample").content)
        return found


def idle(at: Door, within_s: float = 2.0) -> None:
    """Until no slot is taken."""
    patience = Patience(within_s)
    while (found := sample(at))["in_flight"]:
        assert not patience.is_over, found
        time.sleep(0.01)


def test_unary_with_metadata_and_trailers(client: Client) -> None:
    answer, call = client.unary("Unary").with_call(b"hello", metadata=(("x-a", "1"), ("x-b-bin", b"\0\xff")))
    assert answer == b"hello"
    trailers = dict(call.trailing_metadata())
    assert trailers == {"x-trailer": "last", "x-trailer-bin": b"\0\1\xff"}


def test_metadata_reaches_the_server(client: Client) -> None:
    pairs = (("x-a", "1"), ("x-a", "2"), ("x-b-bin", b"\0\xff"), ("tidegate-token", "forged"))
    lines = client.unary("Metadata")(b"", metadata=pairs).decode().splitlines()
    assert [line for line in lines if line.startswith("x-a:")] in (["x-a: '1'", "x-a: '2'"], ["x-a: '1, 2'"])
    assert "x-b-bin: b'\\x00\\xff'" in lines
    assert not any(line.startswith("tidegate-token") for line in lines)
    assert any(line.startswith("traceparent: '00-") for line in lines)
    assert any(line.startswith("via: '2.0 tidegate") for line in lines)


def test_streams_of_every_kind(client: Client) -> None:
    assert list(client.server_stream("Count")(b"1000")) == [b"%d" % number for number in range(1000)]
    assert client.client_stream("Join")(iter([b"a", b"b", b"c"] * 100)) == b"abc" * 100
    assert list(client.both("Bidi")(iter([b"1", b"22", b"333"]))) == [b"1", b"22", b"333"]
    assert list(client.server_stream("Count")(b"0")) == []


def test_each_message_of_a_bidi_stream_is_passed_on_at_once(client: Client) -> None:
    asked: queue.Queue[bytes | None] = queue.Queue()
    call = client.both("Bidi")(iter(asked.get, None))
    for number in range(20):
        asked.put(b"%d" % number)
        assert next(call) == b"%d" % number
    asked.put(None)
    assert list(call) == []
    assert call.code() is grpc.StatusCode.OK


def test_twenty_megabytes_each_way(client: Client) -> None:
    large = bytes(range(256)) * (20 * 4096)
    assert client.unary("Unary")(large, timeout=60) == large


def test_large_messages_beside_small_ones(client: Client) -> None:
    large = [client.unary("Unary").future(b"x" * 2_000_000) for _ in range(4)]
    small = [client.unary("Unary").future(b"%d" % number) for number in range(50)]
    assert [one.result() for one in small] == [b"%d" % number for number in range(50)]
    assert [len(one.result()) for one in large] == [2_000_000] * 4


def test_status_message_and_details(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.unary("Fail")("5 café 100% \n end".encode())
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "café 100% \n end"
    assert dict(caught.value.trailing_metadata())["grpc-status-details-bin"] == DETAILS


def test_an_unknown_method(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.unary("Nothing")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_cancelled_call_is_cancelled_at_the_server_and_frees_its_slot(
    service: Echo, at: Door, client: Client
) -> None:
    call = client.unary("Hang").future(b"")
    service.wait(service.begun, "Hang")
    call.cancel()
    service.wait(service.ended, "Hang", within_s=1.0)
    idle(at)


def test_a_cancelled_stream_is_cancelled_at_the_server(service: Echo, at: Door, client: Client) -> None:
    call = client.server_stream("Late")(b"")
    assert next(call) == b"first"
    call.cancel()
    service.wait(service.ended, "Late", within_s=1.0)
    idle(at)


def test_a_client_that_dies_is_cancelled_at_the_server(service: Echo, at: Door) -> None:
    with Client(at.address) as client:
        call = client.unary("Hang").future(b"")
        service.wait(service.begun, "Hang")
    service.wait(service.ended, "Hang", within_s=1.0)
    assert call.code() is grpc.StatusCode.CANCELLED
    idle(at)


def test_the_deadline_is_reported_reduced_and_kept(service: Echo, at: Door, client: Client) -> None:
    lines = client.unary("Metadata")(b"", timeout=7).decode().splitlines()
    left = next(float(line.partition("'")[2].rstrip("'")) for line in lines if line.startswith("time-left"))
    assert 6.0 < left <= 7.0
    patience = Patience(1.5)
    with pytest.raises(grpc.RpcError) as caught:
        client.unary("Hang")(b"", timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert not patience.is_over
    service.wait(service.ended, "Hang", within_s=1.0)
    idle(at)


def test_a_compressed_message_stays_as_it_is(client: Client) -> None:
    answer = client.unary("Unary")(b"z" * 10_000, compression=grpc.Compression.Gzip)
    assert answer == b"z" * 10_000


def test_calls_beyond_the_slots_wait(client: Client) -> None:
    calls = [client.unary("Unary").future(b"%d" % number, timeout=20) for number in range(60)]
    assert [call.result() for call in calls] == [b"%d" % number for number in range(60)]


def test_spaces_at_the_ends_of_metadata_and_messages(at: Door, client: Client) -> None:
    """Clients and servers of gRPC write them as they are; HTTP/2 calls them malformed."""
    for _ in range(8):
        with pytest.raises(grpc.RpcError) as caught:
            client.unary("Fail")(b"5  no key: ")
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.NOT_FOUND, " no key: ")
    lines = client.unary("Metadata")(b"", metadata=(("x-a", " 1 "),)).decode().splitlines()
    assert "x-a: '1'" in lines


def reset_calls(address: tuple[str, int], count: int) -> list[int]:
    """Calls without ``te``, one after the other, which grpcio's server resets; the codes."""
    fields = (":method", "POST"), (":scheme", "http"), (":path", "/echo.Echo/Unary"), (":authority", "a")
    block = b"".join(literal(*map(str.encode, pair)) for pair in (*fields, ("content-type", "application/grpc")))
    engine, codes = H2Client(Blocks(RESPONSE)), []
    with socket.create_connection(address, timeout=5) as raw:
        for _ in range(count):
            engine.data(engine.request(block, False, None), framed(b"x"), True)
            found: list[int] = []
            while not found:
                raw.sendall(engine.take())
                events = engine.receive(raw.recv(65536), 0.0)
                found = [value for kind, _, value, _ in events if kind == RESET]
            codes += found
    return codes


def test_calls_that_the_server_resets_are_no_failures_of_the_replica(at: Door, client: Client) -> None:
    assert reset_calls(at.address, 8) == [INTERNAL_ERROR] * 8
    assert client.unary("Unary")(b"a", timeout=5) == b"a", "a client's nonsense shuts no other client out"


@pytest.mark.parametrize("way", [("queue_proxy", "uvloop"), ("gateway", "uvloop")], ids="-".join)
def test_a_server_that_dies_under_a_call(way: tuple[str, str]) -> None:
    with echo_server() as (service, address, server), doors([way], address) as opened:  # noqa: SIM117  # an open door first
        with Client(opened[way].address) as client:
            assert client.unary("Unary")(b"a") == b"a"
            unanswered = client.unary("Hang").future(b"")
            begun = client.server_stream("Late")(b"")
            assert next(begun) == b"first"
            service.wait(service.begun, "Hang")
            server.stop(0).wait()
            with pytest.raises(grpc.RpcError) as caught:
                unanswered.result(timeout=10)
            assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            with pytest.raises(grpc.RpcError) as caught:
                next(begun)
            assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            with pytest.raises(grpc.RpcError) as caught:
                client.unary("Unary")(b"a", timeout=5)
            assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@pytest.mark.parametrize("way", [("queue_proxy", "uvloop"), ("gateway", "uvloop")], ids="-".join)
def test_a_process_that_is_reported_to_stop_lets_running_calls_end(way: tuple[str, str]) -> None:
    with echo_server() as (_, address, _), doors([way], address) as opened:
        at = opened[way]
        asked: queue.Queue[bytes | None] = queue.Queue()
        with Client(at.address) as client:
            call = client.both("Bidi")(iter(asked.get, None))
            asked.put(b"before")
            assert next(call) == b"before"
            assert at.world is not None
            assert at.replica is not None
            process = at.replica.proxy if way[0] == "queue_proxy" else at.world.workers[0]
            process.send_signal(signal.SIGTERM)
            time.sleep(1.5)
            asked.put(b"after")
            assert next(call) == b"after"
            asked.put(None)
            assert list(call) == []
            assert call.code() is grpc.StatusCode.OK
            assert process.wait(10) == 0


def test_http1_and_http2_on_one_port(at: Door) -> None:
    """A client of HTTP/1.1 is served beside; its request reaches a server that does not speak it, which is a 502."""
    with socket.create_connection(at.address, timeout=5) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert plain.recv(64).startswith(b"HTTP/1.1 50")
