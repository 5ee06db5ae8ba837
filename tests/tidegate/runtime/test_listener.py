"""REST and gRPC at one port: which of the two a connection speaks."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.runtime.listener import PREFACE, Listener
from tidegate.runtime.metrics import RuntimeCounters
from tidegate.runtime.service import ModelService

ROOT = Path(__file__).resolve().parents[3]


class Rest(asyncio.Protocol):
    """A REST protocol that records its calls."""

    def __init__(self) -> None:
        self.log: list[object] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.log.append("made")

    def connection_lost(self, exc: Exception | None) -> None:
        self.log.append("lost")

    def data_received(self, data: bytes) -> None:
        self.log.append(data)

    def eof_received(self) -> None:
        self.log.append("eof")


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.protocol: asyncio.Protocol | None = None
        self.written = b""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return False


def connection() -> tuple[Rest, Transport, asyncio.Protocol]:
    rest, transport = Rest(), Transport()
    between = Listener(ModelService(("m",), RuntimeCounters(), body_bytes=1000), body_bytes=1000).connect(rest)
    between.connection_made(transport)
    return rest, transport, between


@pytest.mark.parametrize(
    "pieces", [[b"GET / HTTP/1.1\r\n"], [b"P", b"OST / HTTP/1.1\r\n"], [b"PRI * HTTP/1", b".1\r\n"]]
)
def test_what_is_not_http2_is_rests_from_its_first_byte(pieces: list[bytes]) -> None:
    rest, transport, between = connection()
    transport.protocol = between
    for piece in pieces:
        transport.protocol.data_received(piece)
    assert b"".join(piece for piece in rest.log[1:] if isinstance(piece, bytes)) == b"".join(pieces)
    assert transport.protocol is rest


@pytest.mark.parametrize("cut", [len(PREFACE), 1, 12])
def test_http2_is_taken_over_with_its_first_byte(cut: int) -> None:
    rest, transport, between = connection()
    for piece in (PREFACE[:cut], PREFACE[cut:]):
        if piece:
            between.data_received(piece)
    assert rest.log == ["made", "lost"]
    assert type(transport.protocol).__name__ == "GrpcConnection"
    assert transport.written[3:4] == b"\x04"  # the server's SETTINGS


def test_a_connection_that_says_nothing_is_rests_to_end() -> None:
    rest, _, between = connection()
    between.eof_received()
    between.connection_lost(None)
    assert rest.log == ["made", "eof", "lost"]


def test_grpc_is_loaded_when_it_is_spoken_and_then_from_our_own_files_alone() -> None:
    """A REST server starts without it; and a file beside a handler cannot stand in the way of what is loaded later."""
    code = (
        "import sys; import tidegate.runtime.main; before = set(sys.modules)\n"
        "heavy = ('tidegate.wire.http2.hpack', 'tidegate.wire.http2.engine', 'tidegate.runtime.grpc', "
        "'tidegate.runtime.extensions', 'tidegate.runtime.protocols.triton', 'tidegate.wire.grpc')\n"
        "assert not any(name.startswith(heavy) for name in before), before\n"
        "import tidegate.runtime.grpc_server\n"
        "print([name for name in set(sys.modules) - before if not name.startswith('tidegate.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
