"""Records of a worker on their way to a side process: packed, bounded, counted."""

from tests.gateway.payloads.test_events import REQUEST
from tidegate.gateway.beside.batches import Batches, Frames
from tidegate.gateway.payloads.batches import BUFFERED_BYTES, PayloadBatches
from tidegate.gateway.payloads.batches import decode_batch as decode_payloads
from tidegate.gateway.tracing.batches import BATCH, SpanBatches
from tidegate.gateway.tracing.batches import decode_batch as decode_spans
from tidegate.gateway.tracing.otlp import CLIENT, Span

SPAN = Span("s", "i", "forward", CLIENT, b"1" * 32, b"2" * 16, b"", 1.5, 2.5, (("a", 1), ("b", "c")), True, "x=1")


def nothing(batches: Batches[Span]) -> None:
    """Takes nothing: there is no process now."""


def test_spans_arrive_as_they_were() -> None:
    batches = SpanBatches(nothing)
    batches.put([SPAN] * (BATCH + 1))
    batches.pack()
    count, data = batches.all()
    found = [decode_spans(each) for each in Frames().feed(data)]
    assert (count, found) == (BATCH + 1, [[SPAN] * (BATCH + 1)])
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
    large = type(REQUEST)(**{name: getattr(REQUEST, name) for name in REQUEST.__slots__} | {"data": b"x" * (1 << 20)})
    pairs = BUFFERED_BYTES // (2 << 20)
    for _ in range(pairs + 1):
        batches.put((large, large))
    dropped = batches.dropped
    assert dropped in (2, 4) and batches.all()[0] + dropped == 2 * (pairs + 1)
    batches.put((large, large))
    assert (batches.dropped, batches.all()[0]) == (dropped, 2)
    batches.fault = "away"
    assert batches.fault_line == f"away; {dropped} events were dropped"
