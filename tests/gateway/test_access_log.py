"""Lines of the access log: their contents, their number, and their loss when they cannot be written."""

import json
import random
from typing import Any

import pytest

from tests.support.worlds.fake_exchange import FakeExchange, request
from tests.support.worlds.gateway_chain import table
from tidegate.gateway.access_log import BATCH, BUFFERED_BYTES, FIELDS, KEPT_TEXTS, WRITTEN_BYTES, AccessLog
from tidegate.gateway.counting.counters import RevisionCounters
from tidegate.gateway.counting.outcomes import Ending
from tidegate.gateway.routing.function import FunctionMemory, FunctionRouter
from tidegate.gateway.routing.match import Call, Target
from tidegate.gateway.routing.request_state import RequestState
from tidegate.gateway.tracing.trace import Trace


def log(sampling: float = 1.0, *, as_json: bool = False) -> AccessLog:
    return AccessLog(sampling, as_json=as_json, rng=random.Random(3), offset=1_700_000_000.0, flush=lambda log: None)


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


def test_a_line_of_text_says_everything_but_the_query() -> None:
    access = log()
    access.ended(*ended())
    assert access.take() == (
        b"2023-11-14T22:15:00.500Z id=my-id function=f revision=f-00001 replica=f-00001-aaaaa method=POST "
        b"path=/v2/models/m/infer status=200 bytes_in=5 bytes_out=77 total_ms=500.000 wait_ms=250.000 "
        b"first_byte_ms=375.000 "
        b"inferences=4 ending=answered trace=-\n"
    )
    assert access.take() == b""


def test_json_says_the_same_and_null_for_what_did_not_happen() -> None:
    access = log(as_json=True)
    ex, state = ended(499)
    state.counters, state.replica, ex.first_byte, state.ending = None, "", 0.0, Ending.CANCELLED
    access.ended(ex, state)
    found = json.loads(access.take())
    assert found["time"] == "2023-11-14T22:15:00.500Z"
    assert (found["revision"], found["replica"], found["wait_ms"], found["first_byte_ms"]) == (None, None, None, None)
    assert (found["function"], found["status"], found["ending"]) == ("f", 499, "cancelled")


@pytest.mark.parametrize("sampling", [0.1, 0.5])
def test_a_share_of_the_requests_gets_a_line(sampling: float) -> None:
    access = log(sampling)
    one = ended()
    for _ in range(4000):
        access.ended(*one)
    assert access.take().count(b"\n") == pytest.approx(4000 * sampling, rel=0.15)


def test_each_line_has_its_own_time_id_sizes_and_trace_though_lines_are_made_together() -> None:
    access = log(as_json=True)
    for number in range(2 * BATCH + 1):
        ex, state = ended()
        ex.ended = 100.5 + number * 0.25
        ex.bytes_out, state.request_id = number, b'a"%d' % number
        if number % 2:
            state.trace = Trace(b"%032x" % number, b"", b"", 1, "", random.Random(1), 0.0)
        access.ended(ex, state)
    lines = [json.loads(line) for line in access.take().splitlines()]
    assert [line["time"] for line in lines[:4]] == [
        "2023-11-14T22:15:00.500Z",
        "2023-11-14T22:15:00.750Z",
        "2023-11-14T22:15:01.000Z",
        "2023-11-14T22:15:01.250Z",
    ]
    numbers = range(2 * BATCH + 1)
    assert [line["request_id"] for line in lines] == [f'a"{number}' for number in numbers]
    assert [line["bytes_out"] for line in lines] == list(numbers)
    assert [line["trace"] for line in lines] == [f"{number:032x}" if number % 2 else None for number in numbers]
    assert {tuple(line) for line in lines} == {("time", "level", "logger", "request_id", *FIELDS[2:])}


def test_paths_of_any_number_are_each_in_their_line() -> None:
    access = log()
    numbers = range(KEPT_TEXTS + 2 * BATCH)
    for number in numbers:
        access.ended(*ended(target=f"/items/{number}?key=secret"))
    lines = access.take().decode().splitlines()
    assert [line.split()[6] for line in lines] == [f"path=/items/{number}" for number in numbers]


def test_much_is_written_at_once_and_little_waits_for_the_sweep() -> None:
    written: list[bytes] = []
    access = AccessLog(
        1.0, as_json=False, rng=random.Random(3), offset=0.0, flush=lambda log: written.append(log.take())
    )
    one = ended()
    for _ in range(1000):
        access.ended(*one)
    assert len(written) == 3
    assert all(WRITTEN_BYTES <= len(data) < WRITTEN_BYTES + BATCH * 300 for data in written)
    written.append(access.take())
    assert b"".join(written).count(b"\n") == 1000


def test_what_cannot_be_written_is_not_tried_before_the_next_sweep() -> None:
    tries: list[int] = []

    def flush(log: AccessLog) -> None:
        tries.append(1)
        log.unwritten(log.take())

    access = AccessLog(1.0, as_json=False, rng=random.Random(3), offset=0.0, flush=flush)
    one = ended()
    for _ in range(2000):
        access.ended(*one)
    assert len(tries) == 1


def test_what_cannot_be_written_is_dropped_and_counted_and_the_rest_is_kept_in_order() -> None:
    access = log()
    one = ended()
    access.ended(*one)
    size = len(access.take())
    for _ in range(BUFFERED_BYTES // size + 2 * BATCH):
        access.ended(*one)
    data = access.take()
    assert BUFFERED_BYTES - BATCH * size < len(data) <= BUFFERED_BYTES
    assert access.dropped + data.count(b"\n") == BUFFERED_BYTES // size + 2 * BATCH
    access.unwritten(data[1000:])
    one[1].request_id = b"later"
    access.ended(*one)
    again = access.take()
    assert again.startswith(data[1000:])
    assert again.count(b"id=later ") == 1
