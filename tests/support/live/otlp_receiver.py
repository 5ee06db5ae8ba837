"""A collector for live tests: takes OTLP over HTTP with the official messages, and keeps the spans."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """One span as it arrived; ids are hexadecimal digits, times Unix nanoseconds."""

    service: str
    instance: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, str | int]
    is_error: bool
    trace_state: str


class Receiver:
    """The spans that arrived at ``url``, and the heads of the requests that brought them. ``raw`` has their bodies."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[ReceivedSpan] = []
        self.heads: list[dict[str, str]] = []
        self.raw = b""
        self.status = 200
        self.is_open = threading.Event()
        """Answers wait for it: a slow collector."""
        self.is_open.set()

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in tuple(self.spans) if span.name == name]

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        return [span for span in tuple(self.spans) if span.trace_id == trace_id]

    def take(self, body: bytes) -> None:
        self.raw += body
        self.spans += read_spans(body)


def read_spans(body: bytes) -> list[ReceivedSpan]:
    """Reads an ``ExportTraceServiceRequest``."""
    found: list[ReceivedSpan] = []
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        of = _values(resource.resource.attributes)
        for scope in resource.scope_spans:
            assert scope.scope.name == "tidegate"
            found += [_span(of, span) for span in scope.spans]
    return found


def _span(of: dict[str, str | int], span: Any) -> ReceivedSpan:
    return ReceivedSpan(
        service=str(of["service.name"]),
        instance=str(of["service.instance.id"]),
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        is_error=span.status.code == span.status.STATUS_CODE_ERROR,
        trace_state=span.trace_state,
    )


def _values(attributes: Any) -> dict[str, str | int]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    """A collector on a port of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.is_open.wait(60.0)
            if receiver.status == 200:
                assert self.path == "/v1/traces"
                assert self.headers["content-type"] == "application/x-protobuf"
                receiver.heads.append({name.lower(): value for name, value in self.headers.items()})
                receiver.take(body)
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(receiver.status)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *words: object) -> None:
            """Writes nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that gave up is no fault."""

    with Server(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield receiver
        finally:
            receiver.is_open.set()
            server.shutdown()
            thread.join()
