"""How ends of requests are counted, streams above all."""

import random

import pytest

from tests.support.worlds.access_lines import lines_of
from tests.support.worlds.gateway_chain import ONE, TWO, Door, table
from tests.support.worlds.spans import SpanSink
from tidegate.gateway.access_log.records import BATCH, AccessLog
from tidegate.gateway.counting.counters import FRESH_LATENCIES
from tidegate.gateway.routing.match import CACHED_BYTES
from tidegate.gateway.tracing.trace import Tracer


def test_the_models_own_failure_passes_and_counts_as_failed() -> None:
    door = Door(table(1, ONE))
    door.ready(ONE, 1)
    failed = door.arrive()
    failed.gets_answer(100.0, 500, "tidegate-outcome: answered", "tidegate-credit: keep")
    assert (failed.status, failed.log) == (500, ["to 10.0.0.1:1"])
    assert (door.demand().failed, door.demand().groups[0].failures) == (1, 1)


def test_an_event_stream_is_measured_to_its_first_byte() -> None:
    door = Door(table(1, ONE, latency_s=0.2))
    door.ready(ONE, 1)
    stream = door.arrive()
    stream.first_byte = 100.1
    stream.gets_answer(103.0, 200, "content-type: text/event-stream", length=None)
    assert door.demand().within_sla == 1
    assert door.demand().streaming == 0


def test_lines_of_requests_to_several_replicas_are_those_that_are_made_one_by_one() -> None:
    numbers = range(2 * FRESH_LATENCIES + BATCH)
    made = []
    for is_special in (False, True):
        log = AccessLog(1.0, rng=random.Random(1), take=lambda log: None)
        if is_special:
            log.rows = None  # Each request is looked at.
        tracer = Tracer(ratio=0.0, rng=random.Random(2), offset=0.0, put=SpanSink().put)
        door = Door(table(1, ONE, TWO), access=log, tracer=tracer)
        door.ready(ONE, *range(1, 100))
        door.ready(TWO, *range(1, 100))
        for number in numbers:
            traced = (f"traceparent: 00-{number + 1:032x}-{1:016x}-01",) if number % 10 == 0 else ()
            asked = door.arrive(f"POST /v2/models/m/infer?at={number}", f"x-request-id: i-{number}", *traced)
            asked.gets_answer(100.0 + 0.01 * number, 500 if number % 7 == 3 else 200, "tidegate-credit: keep")
        made.append(lines_of(log).decode().splitlines())
    assert made[0] == made[1]
    found = [dict(pair.split("=", 1) for pair in line.split()[1:]) for line in made[0]]
    assert [line["id"] for line in found] == [f"i-{number}" for number in numbers]
    assert [line["trace"] for line in found] == [f"{n + 1:032x}" if n % 10 == 0 else "-" for n in numbers]
    assert [line["status"] for line in found] == ["500" if number % 7 == 3 else "200" for number in numbers]
    assert {line["replica"] for line in found} == {ONE.id, TWO.id}
    assert {(line["function"], line["revision"], line["path"]) for line in found} == {
        ("f", "f-00001", "/v2/models/m/infer")
    }


def test_rows_are_packed_as_often_as_latencies_are_settled_without_a_look_at_their_number() -> None:
    log = AccessLog(1.0, rng=random.Random(1), take=lambda log: None)
    door = Door(table(1, ONE), access=log)
    door.ready(ONE, *range(1, 100))
    for number in range(FRESH_LATENCIES):
        assert not log.has_batches
        door.arrive().gets_answer(100.0 + 0.01 * number, 200, "tidegate-credit: keep")
    assert log.has_batches and log.rows == []


def test_a_target_too_long_for_the_matchers_memory_has_its_whole_path_in_its_line() -> None:
    log = AccessLog(1.0, rng=random.Random(1), take=lambda log: None)
    door = Door(table(1, ONE), access=log)
    door.ready(ONE, 1)
    paths = [
        f"/functions/f/{letter * size}"
        for letter, size in (("a", 10), ("b", CACHED_BYTES), ("c", 8 * CACHED_BYTES), ("d", 10))
    ]
    for path in paths:
        door.arrive(f"POST {path}?key=secret").gets_answer(100.0, 200, "tidegate-credit: keep")
    found = [dict(pair.split("=", 1) for pair in line.split()[1:]) for line in lines_of(log).decode().splitlines()]
    assert [line["path"] for line in found] == paths


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_stream_that_goes_on_is_reported_as_such(ends_well: bool) -> None:
    door = Door(table(1, ONE, latency_s=0.2))
    door.ready(ONE, 1)
    stream = door.arrive()
    assert door.demand().streaming == 0
    stream.gets_answer(100.1, 200, "content-type: text/event-stream", length=None, ends=False)
    assert door.demand().streaming == 1
    if ends_well:
        stream.ends(103.0)
    else:
        stream.client_leaves(103.0)
    assert door.demand().streaming == 0


WITH_TARGET = table(1, ONE, latency_s=0.2)


@pytest.mark.parametrize(("left_at", "missed"), [(100.1, 0), (100.3, 1)])
def test_a_client_that_leaves_has_missed_its_answer_only_after_the_target(left_at: float, missed: int) -> None:
    door = Door(WITH_TARGET)
    door.arrive().client_leaves(left_at)
    assert (door.demand().cancelled, door.demand().missed) == (1, missed)


@pytest.mark.parametrize(("begins_at", "missed"), [(100.1, 0), (100.3, 1)])
def test_a_client_that_leaves_a_stream_has_missed_it_only_if_its_first_output_was_late(
    begins_at: float, missed: int
) -> None:
    door = Door(WITH_TARGET)
    door.ready(ONE, 1)
    stream = door.arrive()
    stream.gets_answer(begins_at, 200, "content-type: text/event-stream", length=None, ends=False)
    stream.client_leaves(103.0)
    assert (door.demand().cancelled, door.demand().missed) == (1, missed)


@pytest.mark.parametrize(
    ("is_ready", "deadline_ms", "missed"),
    [
        (False, 100, 1),  # It waited for a replica, and one more would have helped.
        (True, 100, 0),  # A replica had it at once, and the client allowed less time than the target.
        (True, 500, 1),
        (False, 0, 0),
    ],
)
def test_a_request_whose_deadline_passed_is_late_where_it_waited_or_the_target_had_passed(
    is_ready: bool, deadline_ms: int, missed: int
) -> None:
    door = Door(WITH_TARGET)
    if is_ready:
        door.ready(ONE, 1)
    asked = door.arrive("POST /v2/models/m/infer", f"tidegate-timeout-ms: {deadline_ms}")
    if deadline_ms:
        door.now = 100.0 + deadline_ms / 1e3
        asked.expires(door.now)
    assert asked.status == 504
    assert (door.demand().expired, door.demand().missed) == (1, missed)
