"""A gRPC service of other authors' server (grpcio) that tells what it was asked, and the doors before it.

Messages are bytes. ``/echo.Echo/`` has: Unary and Bidi (each message back), Count ("n": n messages "0", "1", ...),
Join (client stream, joined), Metadata (the call's, a line each), Fail ("code text": that status, with details and
trailing metadata), Hang (until it is cancelled), Late (a message, then until it is cancelled), Size ("n": n bytes).
"""

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from tests.support.deadline import Patience

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
DETAILS = b"\x08\x05\x12\x04text\xff"


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    """The service, and what happened to its calls."""

    def __init__(self) -> None:
        self.ended: dict[str, int] = {}
        """How many calls of a method have ended, cancelled ones included."""
        self.begun: dict[str, int] = {}
        self.changed = threading.Condition()

    def service(self, handler_call_details: Any) -> Any:
        name = handler_call_details.method.removeprefix("/echo.Echo/")
        kind = _KINDS.get(name)
        return None if kind is None else kind(self._followed(name, getattr(self, f"do_{name.lower()}")))

    def _followed(self, name: str, behaviour: Any) -> Any:
        def call(request: Any, context: grpc.ServicerContext) -> Any:
            self._count(self.begun, name)
            context.add_callback(lambda: self._count(self.ended, name))
            return behaviour(request, context)

        return call

    def _count(self, where: dict[str, int], name: str) -> None:
        with self.changed:
            where[name] = where.get(name, 0) + 1
            self.changed.notify_all()

    def wait(self, where: dict[str, int], name: str, count: int = 1, within_s: float = 5.0) -> None:
        """Until so many calls of ``name`` have begun or ended."""
        patience = Patience(within_s)
        with self.changed:
            while not self.changed.wait_for(lambda: where.get(name, 0) >= count, 0.1):
                assert not patience.is_over, (name, where)

    def do_unary(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata((("x-trailer", "last"), ("x-trailer-bin", b"\0\1\xff")))
        return request

    def do_count(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        return (b"%d" % number for number in range(int(request)))

    def do_join(self, requests: Iterable[bytes], context: grpc.ServicerContext) -> bytes:
        return b"".join(requests)

    def do_bidi(self, requests: Iterable[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        yield from requests

    def do_metadata(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        fields = [*context.invocation_metadata(), ("time-left", f"{context.time_remaining() or 0.0:.3f}")]
        return "\n".join(f"{name}: {value!r}" for name, value in fields).encode()

    def do_fail(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        code, _, text = request.decode().partition(" ")
        context.set_trailing_metadata((("grpc-status-details-bin", DETAILS), ("x-why", "asked")))
        context.abort(next(one for one in grpc.StatusCode if one.value[0] == int(code)), text)
        raise AssertionError("abort raises")

    def do_hang(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        over = threading.Event()
        context.add_callback(over.set)
        over.wait(30)
        return b"too late"

    def do_late(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b"first"
        yield self.do_hang(request, context)

    def do_size(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return b"x" * int(request)


_KINDS = {
    "Unary": grpc.unary_unary_rpc_method_handler,
    "Count": grpc.unary_stream_rpc_method_handler,
    "Join": grpc.stream_unary_rpc_method_handler,
    "Bidi": grpc.stream_stream_rpc_method_handler,
    "Metadata": grpc.unary_unary_rpc_method_handler,
    "Fail": grpc.unary_unary_rpc_method_handler,
    "Hang": grpc.unary_unary_rpc_method_handler,
    "Late": grpc.unary_stream_rpc_method_handler,
    "Size": grpc.unary_unary_rpc_method_handler,
}


@contextmanager
def echo_server(threads: int = 32) -> Iterator[tuple[Echo, str, grpc.Server]]:
    """The service, its address, and its server."""
    service = Echo()
    server = grpc.server(ThreadPoolExecutor(threads), options=UNLIMITED)
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield service, f"127.0.0.1:{port}", server
    finally:
        server.stop(0).wait()


class Client:
    """Calls of the service over one connection."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.channel = grpc.insecure_channel(f"{address[0]}:{address[1]}", options=UNLIMITED)

    def unary(self, name: str) -> Any:
        return self.channel.unary_unary(f"/echo.Echo/{name}")

    def server_stream(self, name: str) -> Any:
        return self.channel.unary_stream(f"/echo.Echo/{name}")

    def client_stream(self, name: str) -> Any:
        return self.channel.stream_unary(f"/echo.Echo/{name}")

    def both(self, name: str) -> Any:
        return self.channel.stream_stream(f"/echo.Echo/{name}")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
