"""A gRPC server of other authors (grpcio) for interoperability: every kind of method over plain bytes.

A request begins with a line of JSON that says what to do (:func:`ask`); the rest of it is ballast.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

SERVICE = "interop.Test"
ECHO_HEAD, ECHO_END = "x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin"
UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


def ask(ballast: int = 0, **what: Any) -> bytes:
    """A request: ``size`` of the answer, ``sizes`` of a stream's answers, ``status`` with ``message``, ``sleep_s``,
    ``compress``; and so many bytes of ballast."""
    return json.dumps(what).encode() + b"\n" + b"b" * ballast


AFTERWARDS_S = 0.02


@dataclass
class Seen:
    """What the server noticed."""

    started: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    cancelled: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    remaining_s: float | None = None
    """Of the last call, when it began."""
    metadata: list[tuple[str, str | bytes]] = field(default_factory=list)


class _Service(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        kinds: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
            "Empty": (grpc.unary_unary_rpc_method_handler, self._empty),
            "Unary": (grpc.unary_unary_rpc_method_handler, self._unary),
            "ClientStream": (grpc.stream_unary_rpc_method_handler, self._client_stream),
            "ServerStream": (grpc.unary_stream_rpc_method_handler, self._server_stream),
            "Bidi": (grpc.stream_stream_rpc_method_handler, self._bidi),
        }
        self._methods = {f"/{SERVICE}/{name}": kind(method) for name, (kind, method) in kinds.items()}

    def service(self, handler_call_details: Any) -> Any:
        return self._methods.get(handler_call_details.method)

    def _begin(self, context: Any) -> None:
        seen = self._seen
        seen.remaining_s = context.time_remaining()
        seen.metadata = [(key, value) for key, value in context.invocation_metadata()]
        metadata = dict(seen.metadata)
        if ECHO_HEAD in metadata:
            context.send_initial_metadata(((ECHO_HEAD, metadata[ECHO_HEAD]),))
        if ECHO_END in metadata:
            context.set_trailing_metadata(((ECHO_END, metadata[ECHO_END]),))
        over = threading.Event()

        def ended() -> None:
            if not over.is_set():
                seen.cancelled.release()

        context.add_callback(ended)
        context.is_over = over
        seen.started.release()

    def _do(self, request: bytes, context: Any) -> dict[str, Any]:
        what: dict[str, Any] = json.loads(request.partition(b"\n")[0])
        time.sleep(what.get("sleep_s", 0.0))
        if what.get("compress"):
            context.set_compression(grpc.Compression.Gzip)
        if "status" in what:
            _over(context)
            if "details" in what:
                context.set_trailing_metadata((("grpc-status-details-bin", what["details"].encode()),))
            code = next(code for code in grpc.StatusCode if code.value[0] == what["status"])
            context.abort(code, what.get("message", ""))
        return what

    def _empty(self, request: bytes, context: Any) -> bytes:
        self._begin(context)
        _over(context)
        return request

    def _unary(self, request: bytes, context: Any) -> bytes:
        self._begin(context)
        answer = b"a" * int(self._do(request, context).get("size", 0))
        _over(context)
        return answer

    def _client_stream(self, requests: Iterator[bytes], context: Any) -> bytes:
        self._begin(context)
        answer = str(sum(map(len, requests))).encode()
        _over(context)
        return answer

    def _server_stream(self, request: bytes, context: Any) -> Iterator[bytes]:
        self._begin(context)
        for size in self._do(request, context)["sizes"]:
            yield b"a" * size
        _over(context)

    def _bidi(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self._begin(context)
        for request in requests:
            for size in self._do(request, context).get("sizes", ()):
                yield b"a" * size
        _over(context)


def _over(context: Any) -> None:
    """The handler has come to its end.

    grpcio may tell of a cancelled call first that its requests have ended, as if it were whole, and then of the rest.
    """
    time.sleep(AFTERWARDS_S)
    if context.is_active():
        context.is_over.set()


@contextmanager
def server(options: Sequence[tuple[str, Any]] = UNLIMITED) -> Iterator[tuple[str, Seen]]:
    """One that listens on loopback: its address and what it notices."""
    seen = Seen()
    running = grpc.server(ThreadPoolExecutor(32), handlers=(_Service(seen),), options=options)
    port = running.add_insecure_port("127.0.0.1:0")
    running.start()
    try:
        yield f"127.0.0.1:{port}", seen
    finally:
        running.stop(0).wait()
