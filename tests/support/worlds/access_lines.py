"""Requests for the access log, and its lines, as the writer makes them."""

from typing import Any

from tests.support.worlds.fake_exchange import FakeExchange, request
from tests.support.worlds.gateway_chain import table
from tidegate.gateway.access_log.lines import Lines
from tidegate.gateway.access_log.records import AccessLog, decode_batch
from tidegate.gateway.beside.batches import Frames
from tidegate.gateway.counting.counters import RevisionCounters
from tidegate.gateway.routing.function import FunctionMemory, FunctionRouter
from tidegate.gateway.routing.match import Call, Target
from tidegate.gateway.routing.request_state import RequestState


def ended(status: int = 200, target: str = "/v2/models/m/infer?key=secret") -> tuple[Any, RequestState]:
    """A request that came at 100.0, was bound at 100.25 and ended at 100.5."""
    head = request(f"POST {target} HTTP/1.1\nhost: x\n\n")
    ex = FakeExchange(None, head, b"12345", complete=True, now=100.0)
    ex.status, ex.first_byte, ex.ended, ex.bytes_out, ex.inferences = status, 100.375, 100.5, 77, 4
    router = FunctionRouter(table(1).functions[0], FunctionMemory(0.0))
    state = RequestState(Target(Call.WORK, router), b"my-id", b"")
    state.counters = RevisionCounters("f", "f-00001")
    state.replica, state.bound_at = "f-00001-aaaaa", 100.25
    return ex, state


def lines_of(log: AccessLog, *, as_json: bool = False, offset: float = 0.0) -> bytes:
    """Takes what the log has now and returns its lines. ``offset``: Unix time less the worker's clock."""
    lines, frames = Lines(as_json=as_json, offset=offset), Frames()
    log.pack()
    made = b""
    count, data = log.all()
    for each in frames.feed(data):
        found = decode_batch(each)
        count -= len(found[0])
        made += lines.made(found)
    assert count == 0
    return made
