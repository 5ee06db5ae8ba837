"""The interoperability cases of gRPC with grpcio at both ends and our processes between: all that a proxy can break.

Names and sizes of the cases are those of the interop suite that all gRPC implementations share.
"""

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from tests.support.deadline import Patience
from tests.support.http.doors import Door
from tests.support.http.echo import KINDS, doors
from tests.support.http2.grpc_service import ECHO_END, ECHO_HEAD, SERVICE, UNLIMITED, Seen, ask, server

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

SOON_S = 5.0
SPECIAL = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"
BINARY = bytes(range(256))
GZIP = grpc.Compression.Gzip


class Way:
    """One door, the server behind it, and a channel to it."""

    def __init__(self, door: Door, seen: Seen) -> None:
        self.door = door
        self.seen = seen
        self.address = "{}:{}".format(*door.address)
        self.channel = grpc.insecure_channel(self.address, options=UNLIMITED)

    def unary(self, name: str = "Unary", service: str = SERVICE) -> Any:
        return self.channel.unary_unary(f"/{service}/{name}")

    def client_stream(self) -> Any:
        return self.channel.stream_unary(f"/{SERVICE}/ClientStream")

    def server_stream(self) -> Any:
        return self.channel.unary_stream(f"/{SERVICE}/ServerStream")

    def bidi(self) -> Any:
        return self.channel.stream_stream(f"/{SERVICE}/Bidi")

    def started(self) -> None:
        assert self.seen.started.acquire(timeout=SOON_S), "the call has not reached the server"

    def cancelled(self) -> None:
        assert self.seen.cancelled.acquire(timeout=SOON_S), "the server does not know that the call is over"

    def in_flight(self) -> int:
        """What the queue_proxy is working on."""
        assert self.door.replica is not None
        transport = httpx.HTTPTransport(uds=self.door.replica.admin.removeprefix("unix:"))
        with httpx.Client(transport=transport, base_url="http://admin") as client:
            return int(client.get("/sample").json()["in_flight"])


@pytest.fixture(scope="module")
def opened() -> Iterator[dict[str, Way]]:
    with server() as (address, seen), doors([(kind, "uvloop") for kind in KINDS], address) as found:
        ways = {kind: Way(door, seen) for (kind, _), door in found.items()}
        yield ways
        for way in ways.values():
            way.channel.close()


@pytest.fixture(params=KINDS)
def way(request: pytest.FixtureRequest, opened: dict[str, Way]) -> Iterator[Way]:
    """A door at which nothing is under way, before and after the test."""
    found = opened[request.param]
    while found.seen.started.acquire(blocking=False):
        pass
    while found.seen.cancelled.acquire(blocking=False):
        pass
    yield found
    patience = Patience(SOON_S)
    while found.in_flight():
        assert not patience.is_over, "a call is still in flight"
        time.sleep(0.01)


# --- unary -----------------------------------------------------------------------------------------------------------


def test_empty_unary(way: Way) -> None:
    assert way.unary("Empty")(b"", timeout=SOON_S) == b""


def test_large_unary(way: Way) -> None:
    assert way.unary()(ask(271828, size=314159), timeout=SOON_S) == b"a" * 314159


def test_messages_above_the_default_limit_of_4_mb(way: Way) -> None:
    assert len(way.unary()(ask(16 << 20, size=16 << 20), timeout=20.0)) == 16 << 20


def test_client_compressed_unary(way: Way) -> None:
    call = way.unary()
    assert call(ask(271828, size=10), compression=GZIP, timeout=SOON_S) == b"a" * 10
    assert call(ask(271828, size=10), compression=grpc.Compression.NoCompression, timeout=SOON_S) == b"a" * 10


def test_server_compressed_unary(way: Way) -> None:
    call = way.unary()
    assert call(ask(size=314159, compress=True), timeout=SOON_S) == b"a" * 314159
    assert call(ask(size=314159), timeout=SOON_S) == b"a" * 314159


def test_many_large_calls_at_once(way: Way) -> None:
    calls = [way.unary().future(ask(2 << 20, size=2 << 20), timeout=30.0) for _ in range(16)]
    assert [len(call.result()) for call in calls] == [2 << 20] * 16


# --- streams ---------------------------------------------------------------------------------------------------------


def test_client_streaming(way: Way) -> None:
    assert way.client_stream()(iter([b"c" * n for n in (27182, 8, 1828, 45904)]), timeout=SOON_S) == b"74922"


def test_client_compressed_streaming(way: Way) -> None:
    sent = iter([b"c" * 27182, b"c" * 45904])
    assert way.client_stream()(sent, compression=GZIP, timeout=SOON_S) == b"73086"


@pytest.mark.parametrize("compress", [False, True])
def test_server_streaming(way: Way, compress: bool) -> None:
    sizes = [31415, 9, 2653, 58979]
    assert [len(a) for a in way.server_stream()(ask(sizes=sizes, compress=compress), timeout=SOON_S)] == sizes


def test_ping_pong(way: Way) -> None:
    """The next message is sent when the answer to the one before is there: nothing may be held back."""
    pairs = [(27182, 31415), (8, 9), (1828, 2653), (45904, 58979)]
    answered = threading.Semaphore(1)

    def requests() -> Iterator[bytes]:
        for ballast, size in pairs:
            assert answered.acquire(timeout=SOON_S)
            yield ask(ballast, sizes=[size])

    sizes = []
    for answer in way.bidi()(requests(), timeout=20.0):
        sizes.append(len(answer))
        answered.release()
    assert sizes == [size for _, size in pairs]


def test_a_hundred_pings_of_100_kb(way: Way) -> None:
    answers = way.bidi()(iter([ask(100_000, sizes=[100_000]) for _ in range(100)]), timeout=30.0)
    assert sum(map(len, answers)) == 100 * 100_000


def test_empty_stream(way: Way) -> None:
    assert list(way.bidi()(iter([]), timeout=SOON_S)) == []


# --- cancellation and deadlines --------------------------------------------------------------------------------------


def _begun() -> Iterator[bytes]:
    yield b"begun"  # a call goes to a replica with its first message
    threading.Event().wait(30.0)


def test_cancel_after_begin(way: Way) -> None:
    call = way.client_stream().future(_begun())
    way.started()
    call.cancel()
    assert call.code() is grpc.StatusCode.CANCELLED
    way.cancelled()


def test_cancel_after_first_response(way: Way) -> None:
    done = threading.Event()

    def requests() -> Iterator[bytes]:
        yield ask(27182, sizes=[31415])
        done.wait(30.0)

    call = way.bidi()(requests(), timeout=20.0)
    assert len(next(call)) == 31415
    call.cancel()
    with pytest.raises(grpc.RpcError):
        next(call)
    assert call.code() is grpc.StatusCode.CANCELLED
    way.cancelled()
    done.set()


def test_cancel_while_the_server_works(way: Way) -> None:
    call = way.unary().future(ask(sleep_s=2.0))
    way.started()
    call.cancel()
    way.cancelled()


def test_timeout_on_sleeping_server(way: Way) -> None:
    patience = Patience(2.0)
    with pytest.raises(grpc.RpcError) as failed:
        list(way.bidi()(iter([ask(27182, sleep_s=3.0, sizes=[1])]), timeout=0.3))
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert not patience.is_over
    way.cancelled()


def test_the_server_is_reported_the_time_that_is_left(way: Way) -> None:
    """grpcio itself rounds up, by as much as a hundredth."""
    way.unary()(ask(), timeout=SOON_S)
    assert way.seen.remaining_s is not None
    assert 0.0 < way.seen.remaining_s <= SOON_S * 1.01


# --- metadata and status ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [b"\xab\xab\xab", BINARY, b""], ids=["short", "all bytes", "empty"])
@pytest.mark.parametrize("kind", ["unary", "bidi"])
def test_custom_metadata(way: Way, kind: str, value: bytes) -> None:
    sent = ((ECHO_HEAD, "test_initial_metadata_value"), (ECHO_END, value))
    if kind == "unary":
        _, call = way.unary().with_call(ask(), metadata=sent, timeout=SOON_S)
    else:
        call = way.bidi()(iter([ask(sizes=[1])]), metadata=sent, timeout=SOON_S)
        assert len(list(call)) == 1
    assert dict(call.initial_metadata())[ECHO_HEAD] == "test_initial_metadata_value"
    assert dict(call.trailing_metadata())[ECHO_END] == value


def test_metadata_of_5_kb_and_repeated_names(way: Way) -> None:
    sent = [("x-large", "v" * 5000), ("x-twice", "one"), ("x-twice", "two")]
    way.unary()(ask(), metadata=sent, timeout=SOON_S)
    for name, value in sent:
        assert (name, value) in way.seen.metadata


@pytest.mark.parametrize("kind", ["unary", "bidi"])
def test_status_code_and_message(way: Way, kind: str) -> None:
    request = ask(status=2, message="test status message")
    with pytest.raises(grpc.RpcError) as failed:
        way.unary()(request, timeout=SOON_S) if kind == "unary" else list(way.bidi()(iter([request]), timeout=SOON_S))
    assert failed.value.code() is grpc.StatusCode.UNKNOWN
    assert failed.value.details() == "test status message"


def test_special_status_message(way: Way) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        way.unary()(ask(status=2, message=SPECIAL), timeout=SOON_S)
    assert failed.value.details() == SPECIAL


@pytest.mark.parametrize("status", range(1, 17))
def test_every_status_passes_as_it_is(way: Way, status: int) -> None:
    with pytest.raises(grpc.RpcError) as failed:
        way.unary()(ask(status=status, message=f"of {status}", details="\x08\x05"), timeout=SOON_S)
    assert failed.value.code().value[0] == status
    assert failed.value.details() == f"of {status}"
    assert ("grpc-status-details-bin", b"\x08\x05") in failed.value.trailing_metadata()


@pytest.mark.parametrize(("service", "name"), [(SERVICE, "Missing"), ("interop.Missing", "Unary")])
def test_unimplemented(way: Way, service: str, name: str) -> None:
    """unimplemented_method and unimplemented_service: the server's own answer."""
    with pytest.raises(grpc.RpcError) as failed:
        way.unary(name, service)(ask(), timeout=SOON_S)
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
