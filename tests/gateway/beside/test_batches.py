"""Records of a worker on their way to a side process: packed, bounded, counted."""

from typing import Any

from tests.gateway.payloads.test_events import REQUEST
from tidegate.gateway.beside.batches import Batches, Frames
from tidegate.gateway.counting.outcomes import Ending
from tidegate.gateway.payloads.batches import BUFFERED_BYTES, PayloadBatches
from tidegate.gateway.payloads.batches import decode_batch as decode_payloads
from tidegate.gateway.tracing.batches import BATCH, SpanBatches
from tidegate.gateway.tracing.batches import decode_batch as decode_spans
from tidegate.gateway.tracing.facts import Answer, Asked, AskedFacts, Attempt, Facts, Traced

ATTEMPTS: list[Attempt] = [("r", "cpu", 1.25, 3), ("s", "cpu", 1.5, 2**64 - 1)]
ANSWERS: list[Answer] = [("s", 1.5, 200, b"queue=1.000,model=2.000")]
ASKED: Asked = (b"POST", b"/x?key=1", b"host", False, 2, b"id", Ending.CANCELLED, False)
COLD = (1.0, [("decide", 0.5), ("load", 0.25)])
PARENT = b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"
TRACED: Traced = (8, PARENT, b"x=1", 0, 1.0, 2.0, 200, "f", "f-00001", ATTEMPTS, ANSWERS, COLD, ASKED)
FOUND = Facts(*TRACED[:-1], asked=AskedFacts(*ASKED))


def nothing(batches: Batches[Any]) -> None:
    """Takes nothing: there is no process now."""


def test_traced_requests_arrive_as_they_were_and_are_counted_by_their_spans() -> None:
    batches = SpanBatches(nothing)
    for _ in range(BATCH + 1):
        batches.add(TRACED)
    batches.pack()
    count, data = batches.all()
    found = [decode_spans(each) for each in Frames().feed(data)]
    assert (count, found) == (8 * (BATCH + 1), [[FOUND] * BATCH, [FOUND]])
    assert batches.all() == (0, b"")


def test_payloads_arrive_with_the_sinks_that_functions_name_now() -> None:
    batches = PayloadBatches(nothing)
    batches.put((REQUEST, REQUEST))
    batches.keep({None, "http://sink"})
    batches.keep({None, "http://sink"})
    count, data = batches.all()
    first, second = (decode_payloads(each) for each in Frames().feed(data))
    assert (count, first) == (2, ([REQUEST, REQUEST], []))
    assert (second[0], set(second[1])) == ([], {None, "http://sink"})


def test_what_finds_no_room_is_dropped_and_counted_until_there_is_room_again() -> None:
    batches = PayloadBatches(nothing)
    large = type(REQUEST)(
        **{name: getattr(REQUEST, name) for name in REQUEST.__struct_fields__} | {"data": b"x" * (1 << 20)}
    )
    pairs = BUFFERED_BYTES // (2 << 20)
    for _ in range(pairs + 1):
        batches.put((large, large))
    dropped = batches.dropped
    assert dropped in (2, 4) and batches.all()[0] + dropped == 2 * (pairs + 1)
    batches.put((large, large))
    assert (batches.dropped, batches.all()[0]) == (dropped, 2)
    batches.fault = "away"
    assert batches.fault_line == f"away; {dropped} events were dropped"
