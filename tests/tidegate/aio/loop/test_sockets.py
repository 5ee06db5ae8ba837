"""Addresses, and what the kernel tells of a peer."""

import contextlib
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.aio.loop import sockets


@pytest.mark.parametrize(
    ("address", "parts"), [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("a.b:65535", ("a.b", 65535))]
)
def test_host_port(address: str, parts: tuple[str, int]) -> None:
    assert sockets.host_port(address) == parts


@pytest.mark.parametrize("address", ["127.0.0.1", ":80", "a:", "a:x", "a:-1", "a:65536", "a:8²", ""])
def test_what_is_no_host_and_port(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        sockets.host_port(address)


@pytest.mark.live
def test_listening_on_a_free_port_and_inheriting_the_socket() -> None:
    first = sockets.listen("127.0.0.1:0")
    address = sockets.address_of(first)
    assert address.startswith("127.0.0.1:")
    with pytest.raises(OSError, match="in use"):
        sockets.listen(address)
    second = sockets.inherited(first.detach())
    assert sockets.address_of(second) == address
    second.close()


@pytest.mark.live
def test_a_unix_socket_is_the_owners_and_replaces_a_stale_one() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        sockets.listen(f"unix:{path}").close()
        again = sockets.listen(f"unix:{path}")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert sockets.address_of(again) == f"unix:{path}"
        again.close()
        sockets.remove(f"unix:{path}")
        sockets.remove(f"unix:{path}")
        assert not path.exists()


@contextlib.contextmanager
def pair(family: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of one connection."""
    if family == socket.AF_UNIX:
        one, other = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            one = socket.create_connection(listener.getsockname())
            other, _ = listener.accept()
    with one, other:
        yield one, other


@pytest.mark.live
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_a_peer_that_is_gone_is_seen_without_reading(family: int) -> None:
    with pair(family) as (one, other):
        other.sendall(b"unread")
        assert not sockets.peer_is_gone(one)
        assert sockets.is_readable(one)
        assert not sockets.is_readable(other)
        other.close()
        assert sockets.peer_is_gone(one)
        one.close()
        assert sockets.peer_is_gone(one)
        assert not sockets.is_readable(one)


@pytest.mark.live
def test_a_reset_on_close_is_felt_by_a_peer_that_reads_to_the_end() -> None:
    with pair(socket.AF_INET) as (one, other):
        sockets.reset_on_close(other)
        other.close()
        with pytest.raises(ConnectionResetError):
            one.recv(1)
        sockets.reset_on_close(other)  # closed: nothing happens


@pytest.mark.live
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_bytes_that_the_peer_has_no_room_for_are_seen_and_a_reset_overtakes_them(family: int) -> None:
    with pair(family) as (one, other):
        assert not sockets.has_unsent(one)
        one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                one.send(bytes(65_536))
        assert sockets.has_unsent(one)
        assert not sockets.peer_is_gone(other)
        sockets.reset_on_close(one)
        one.close()
        assert not sockets.has_unsent(one)
        assert sockets.peer_is_gone(other)
