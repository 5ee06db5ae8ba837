"""A listening socket goes from one process to another."""

import os
import socket
from pathlib import Path

import pytest

from tidegate.aio.loop.handover import Inbox, give_listener
from tidegate.aio.loop.sockets import address_of, listen


def test_the_taker_accepts_what_waited_in_the_givers_socket(tmp_path: Path) -> None:
    with Inbox(tmp_path / "inbox") as inbox:
        assert inbox.path.stat().st_mode & 0o777 == 0o600
        given = listen("127.0.0.1:0")
        address = address_of(given)
        client = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
        give_listener(given, str(inbox.path))
        taken = inbox.take()
        given.close()
        assert address_of(taken) == address
        assert not os.get_inheritable(taken.fileno())
        assert not taken.getblocking()
        line, _ = taken.accept()
        client.sendall(b"still here")
        assert line.recv(100) == b"still here"
        for each in (client, line, taken):
            each.close()
    assert not (tmp_path / "inbox").exists()


def test_nothing_sent_is_an_error_and_so_is_what_does_not_listen(tmp_path: Path) -> None:
    with Inbox(tmp_path / "inbox") as inbox:
        with pytest.raises(BlockingIOError):
            inbox.take()
        with socket.socket() as idle:
            give_listener(idle, str(inbox.path))
        with pytest.raises(OSError, match="does not listen"):
            inbox.take()
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(inbox.path))
            line.sendall(b"listener")
            with pytest.raises(OSError, match="no socket"):
                inbox.take()


def test_a_closed_socket_cannot_be_given(tmp_path: Path) -> None:
    with Inbox(tmp_path / "inbox") as inbox:
        given = listen("127.0.0.1:0")
        given.close()
        with pytest.raises(OSError, match=r"."):
            give_listener(given, str(inbox.path))
    with listen("127.0.0.1:0") as given, pytest.raises(OSError, match=r"."):
        give_listener(given, str(tmp_path / "absent"))
