"""Moving bytes between sockets through a pipe: how many, which ones stay, what a failure leaves behind."""

import errno
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from tidegate.aio.loop.splice import HELD_BYTES, IS_THERE, Glimpse, Splicer

pytestmark = pytest.mark.skipif(not IS_THERE, reason="splice(2) is Linux's")

Pair = tuple[socket.socket, socket.socket]


def tcp() -> Pair:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return one, other


@pytest.fixture(params=[socket.socketpair, tcp], ids=["unix", "tcp"])
def pairs(request: pytest.FixtureRequest) -> Iterator[tuple[Pair, Pair]]:
    """An upstream with our end, our end with a client."""
    made = request.param(), request.param()
    for sock in (*made[0], *made[1]):
        sock.setblocking(False)
    yield made
    for sock in (*made[0], *made[1]):
        sock.close()


@pytest.fixture
def splicer() -> Iterator[Splicer]:
    made = Splicer()
    yield made
    made.close()


def fill(sock: socket.socket) -> int:
    """Writes until the socket takes no more; how many bytes."""
    count = 0
    while True:
        try:
            count += sock.send(b"f" * 65536)
        except BlockingIOError:
            return count


def drain(sock: socket.socket) -> bytes:
    pieces: list[bytes] = []
    while True:
        try:
            piece = sock.recv(1 << 20)
        except (BlockingIOError, ConnectionResetError):
            piece = b""
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def test_not_one_byte_more_than_asked_for_is_taken(pairs: tuple[Pair, Pair], splicer: Splicer) -> None:
    (upstream, ours), (sink, client) = pairs
    upstream.sendall(b"a" * 3000 + b"HTTP/1.1 200 OK")
    assert splicer.move(ours.fileno(), sink.fileno(), 3000) == (3000, b"")
    assert drain(client) == b"a" * 3000
    assert drain(ours) == b"HTTP/1.1 200 OK"


def test_what_has_come_passes_and_the_rest_is_not_waited_for(pairs: tuple[Pair, Pair], splicer: Splicer) -> None:
    (upstream, ours), (sink, client) = pairs
    assert splicer.move(ours.fileno(), sink.fileno(), 100) == (0, b"")
    upstream.sendall(b"abc")
    assert splicer.move(ours.fileno(), sink.fileno(), 100) == (3, b"")
    assert drain(client) == b"abc"


def test_a_full_sink_gives_back_what_it_did_not_take_in_order(pairs: tuple[Pair, Pair], splicer: Splicer) -> None:
    (upstream, ours), (sink, client) = pairs
    before = fill(sink)
    body = os.urandom(200_000)
    sent = upstream.send(body)
    passed, rest = splicer.move(ours.fileno(), sink.fileno(), sent)
    assert 0 < len(rest) <= HELD_BYTES
    taken = drain(client)
    while len(taken) < before + passed:
        taken += drain(client)
    assert taken[before:] + rest + drain(ours) == body[:sent]


def test_the_pipe_is_empty_after_a_sink_that_is_gone(pairs: tuple[Pair, Pair], splicer: Splicer) -> None:
    (upstream, ours), (sink, client) = pairs
    client.close()
    upstream.sendall(b"first")
    sink_is_gone = splicer.move(ours.fileno(), sink.fileno(), 5)
    assert sink_is_gone in ((5, b""), (0, b"first"))  # TCP hears of it with the first write
    upstream.sendall(b"lost")
    assert splicer.move(ours.fileno(), sink.fileno(), 4) == (0, b"lost")
    near, far = socket.socketpair()
    with near, far:
        upstream.sendall(b"other")
        assert splicer.move(ours.fileno(), near.fileno(), 5) == (5, b"")
        assert far.recv(100) == b"other"
    assert splicer.is_usable


def test_what_an_error_leaves_in_the_pipe_reaches_none(
    pairs: tuple[Pair, Pair], splicer: Splicer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_fd: int, _size: int) -> bytes:
        raise MemoryError

    (upstream, ours), (sink, _) = pairs
    fill(sink)
    upstream.sendall(b"first")
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(os, "read", read)
        splicer.move(ours.fileno(), sink.fileno(), 5)
    near, far = socket.socketpair()
    with near, far:
        upstream.sendall(b"other")
        assert splicer.move(ours.fileno(), near.fileno(), 5) == (5, b"")
        assert far.recv(100) == b"other"


def test_the_end_of_the_source_is_left_to_its_reader(pairs: tuple[Pair, Pair], splicer: Splicer) -> None:
    (upstream, ours), (sink, client) = pairs
    upstream.sendall(b"end")
    upstream.close()
    assert splicer.move(ours.fileno(), sink.fileno(), 100) == (3, b"")
    assert ours.recv(1) == b""
    assert drain(client) == b"end"


def test_without_a_free_descriptor_nothing_moves_until_there_is_one(pairs: tuple[Pair, Pair], splicer: Splicer) -> None:
    (upstream, ours), (sink, _) = pairs
    upstream.sendall(b"abc")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        assert splicer.move(ours.fileno(), sink.fileno(), 3) == (0, b"")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert splicer.is_usable
    assert splicer.move(ours.fileno(), sink.fileno(), 3) == (3, b"")


def test_what_the_kernel_cannot_do_is_tried_once(splicer: Splicer) -> None:
    source = os.eventfd(1, os.EFD_NONBLOCK)
    near, far = socket.socketpair()
    with near, far:
        assert splicer.move(source, near.fileno(), 8) == (0, b"")
    os.close(source)
    assert not splicer.is_usable
    assert repr(splicer) == "<Splicer open>"


def test_closing_closes_both_ends_and_the_next_move_opens_others(pairs: tuple[Pair, Pair], splicer: Splicer) -> None:
    (upstream, ours), (sink, _) = pairs
    assert repr(splicer) == "<Splicer closed>"
    upstream.sendall(b"abcd")
    splicer.move(ours.fileno(), sink.fileno(), 2)
    pipe = splicer._pipe
    assert pipe is not None
    splicer.close()
    splicer.close()
    for end in pipe:
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            os.fstat(end)
        assert caught.value.errno == errno.EBADF
    assert splicer.move(ours.fileno(), sink.fileno(), 2) == (2, b"")


def test_a_glimpse_hands_all_it_hears_on() -> None:
    heard: list[object] = []

    class Protocol:
        def data_received(self, data: bytes) -> None:
            heard.append(data)

        def eof_received(self) -> bool:
            heard.append("eof")
            return True

        def connection_lost(self, exc: Exception | None) -> None:
            heard.append(exc)

        def pause_writing(self) -> None:
            heard.append("pause")

        def resume_writing(self) -> None:
            heard.append("resume")

    splicer = Splicer()
    glimpse = Glimpse(Protocol(), splicer.buffer)  # type: ignore[arg-type]  # as much of one as is called
    buffer = glimpse.get_buffer(-1)
    buffer[:3] = b"abc"
    glimpse.buffer_updated(3)
    buffer[:3] = b"xyz"  # another connection's read
    glimpse.pause_writing()
    glimpse.resume_writing()
    assert glimpse.eof_received()
    error = ConnectionResetError()
    glimpse.connection_lost(error)
    assert heard == [b"abc", "pause", "resume", "eof", error]
