"""Lines of the access log: what they say, as text and as JSON."""

import json
import random

import pytest

from tests.support.worlds.access_lines import ended, lines_of
from tests.support.worlds.gateway_chain import table
from tidegate.gateway.access_log.lines import FIELDS, KEPT_TEXTS
from tidegate.gateway.access_log.records import BATCH, AccessLog
from tidegate.gateway.counting.outcomes import Ending
from tidegate.gateway.routing.function import FunctionMemory, FunctionRouter
from tidegate.gateway.tracing.trace import Trace

UNIX = 1_700_000_000.0


def log() -> AccessLog:
    return AccessLog(1.0, rng=random.Random(3), take=lambda log: None)


def test_a_line_of_text_says_everything_but_the_query() -> None:
    access = log()
    access.ended(*ended())
    assert lines_of(access, offset=UNIX) == (
        b"2023-11-14T22:15:00.500Z id=my-id function=f variant=- revision=f-00001 replica=f-00001-aaaaa method=POST "
        b"path=/v2/models/m/infer status=200 bytes_in=5 bytes_out=77 total_ms=500.000 wait_ms=250.000 "
        b"first_byte_ms=375.000 "
        b"inferences=4 ending=answered trace=-\n"
    )
    assert lines_of(access) == b""


def test_a_line_names_the_function_that_was_asked_for_and_the_variant_that_served() -> None:
    access = log()
    for is_switched in (False, True):
        ex, state = ended()
        if is_switched:
            router = state.target.router
            assert router is not None
            state.target.router = FunctionRouter(table(1, name="large").functions[0], FunctionMemory(0.0))
            state.target = state.target.of_variant(router, None)
        access.ended(ex, state)
    lines = [json.loads(line) for line in lines_of(access, as_json=True).splitlines()]
    assert [(line["function"], line["variant"], line["revision"]) for line in lines] == [
        ("f", None, "f-00001"),
        ("large", "f", "f-00001"),
    ]


@pytest.mark.parametrize("ms", [0.0, 0.001, 0.0125, 8.1915, 8.192, 999.999, 86_400_000.25])
def test_short_and_long_times_have_three_decimals(ms: float) -> None:
    access = log()
    ex, state = ended()
    ex.ended = ex.first_byte = state.bound_at = ex.received + ms / 1e3
    access.ended(ex, state)
    found = dict(pair.split("=") for pair in lines_of(access).decode().split()[1:])
    assert abs(float(found["total_ms"]) - ms) <= 0.0006
    assert found["first_byte_ms"] == found["total_ms"]
    assert found["wait_ms"] == found["total_ms"]
    assert len(found["total_ms"].partition(".")[2]) == 3


def test_json_says_the_same_and_null_for_what_did_not_happen() -> None:
    access = log()
    ex, state = ended(499)
    state.counters, state.replica, ex.first_byte, state.ending = None, "", 0.0, Ending.CANCELLED
    access.ended(ex, state)
    found = json.loads(lines_of(access, as_json=True, offset=UNIX))
    assert found["time"] == "2023-11-14T22:15:00.500Z"
    assert (found["revision"], found["replica"], found["wait_ms"], found["first_byte_ms"]) == (None, None, None, None)
    assert (found["function"], found["status"], found["ending"]) == ("f", 499, "cancelled")


def test_each_line_has_its_own_time_id_sizes_and_trace_though_lines_are_made_together() -> None:
    access = log()
    for number in range(2 * BATCH + 1):
        ex, state = ended()
        ex.ended = 100.5 + number * 0.25
        ex.bytes_out, state.request_id = number, b'a"%d' % number
        if number % 2:
            state.trace = Trace()
            state.trace.parent = b"00-%032x-00f067aa0ba902b7-01" % number
        access.ended(ex, state)
    lines = [json.loads(line) for line in lines_of(access, as_json=True, offset=UNIX).splitlines()]
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
    lines = lines_of(access, offset=UNIX).decode().splitlines()
    assert [line.split()[7] for line in lines] == [f"path=/items/{number}" for number in numbers]
