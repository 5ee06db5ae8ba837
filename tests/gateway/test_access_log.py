"""Lines of the access log: their contents, their number, and their loss when they cannot be written."""

import json
import random
from typing import Any

import pytest

from tests.support.worlds.fake_exchange import FakeExchange, request
from tests.support.worlds.gateway_chain import table
from tidegate.gateway.access_log import BUFFERED_BYTES, AccessLog
from tidegate.gateway.counting.counters import RevisionCounters
from tidegate.gateway.routing.function import FunctionMemory, FunctionRouter
from tidegate.gateway.routing.match import Call, Target
from tidegate.gateway.routing.request_state import RequestState


def log(sampling: float = 1.0, *, as_json: bool = False) -> AccessLog:
    return AccessLog(sampling, as_json=as_json, rng=random.Random(3), offset=1_700_000_000.0)


def ended(status: int = 200) -> tuple[Any, RequestState]:
    """A request that came at 100.0, was bound at 100.25 and ended at 100.5."""
    ex = FakeExchange(
        None, request("POST /v2/models/m/infer?key=secret HTTP/1.1\nhost: x\n\n"), b"12345", complete=True, now=100.0
    )
    ex.status, ex.first_byte, ex.ended, ex.bytes_out, ex.inferences = status, 100.375, 100.5, 77, 4
    router = FunctionRouter(table(1).functions[0], FunctionMemory(0.0))
    state = RequestState(Target(Call.WORK, router), b"my-id", b"")
    state.counters = RevisionCounters("f", "f-00001")
    state.replica, state.bound_at = "f-00001-aaaaa", 100.25
    return ex, state


def test_a_line_of_text_says_everything_but_the_query() -> None:
    access = log()
    access.ended(*ended(), "answered")
    assert access.take() == (
        b"2023-11-14T22:15:00.500Z id=my-id function=f revision=f-00001 replica=f-00001-aaaaa method=POST "
        b"path=/v2/models/m/infer status=200 bytes_in=5 bytes_out=77 total_ms=500.0 wait_ms=250.0 first_byte_ms=375.0 "
        b"inferences=4 ending=answered trace=-\n"
    )
    assert access.take() == b""


def test_json_says_the_same_and_null_for_what_did_not_happen() -> None:
    access = log(as_json=True)
    ex, state = ended(499)
    state.counters, state.replica, ex.first_byte = None, "", 0.0
    access.ended(ex, state, "cancelled")
    found = json.loads(access.take())
    assert found["time"] == "2023-11-14T22:15:00.500Z"
    assert (found["revision"], found["replica"], found["wait_ms"], found["first_byte_ms"]) == (None, None, None, None)
    assert (found["function"], found["status"], found["ending"]) == ("f", 499, "cancelled")


@pytest.mark.parametrize("sampling", [0.1, 0.5])
def test_a_share_of_the_requests_gets_a_line(sampling: float) -> None:
    access = log(sampling)
    one = ended()
    for _ in range(4000):
        access.ended(*one, "answered")
    assert access.take().count(b"\n") == pytest.approx(4000 * sampling, rel=0.15)


def test_what_none_writes_is_dropped_and_counted_and_the_rest_is_kept_in_order() -> None:
    access = log()
    one = ended()
    access.ended(*one, "first")
    size = len(access.take())
    for _ in range(BUFFERED_BYTES // size + 10):
        access.ended(*one, "first")
    assert access.dropped >= 10
    data = access.take()
    assert BUFFERED_BYTES - size < len(data) <= BUFFERED_BYTES
    access.unwritten(data[1000:])
    access.ended(*one, "dropped" * 1000)
    access.ended(*one, "last")
    assert access.take().startswith(data[1000:])
    access.ended(*one, "later")
    assert access.take().endswith(b"ending=later trace=-\n")
