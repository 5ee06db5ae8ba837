"""The encoder of OTLP against the official messages."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.live.otlp_receiver import read_spans
from tidegate.gateway.tracing.otlp import CLIENT, SERVER, Span, SpanType, encode_request, encode_span

TRACE, SPAN, PARENT = (
    bytes.fromhex(digits) for digits in ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7")
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=200)


def encoded(*spans: Span) -> bytes:
    return encode_request([(span, encode_span(span)) for span in spans], "1.0")


@given(name=TEXT, value=TEXT, number=st.integers(0, 2**63 - 1), start=st.integers(0, 2**32), is_error=st.booleans())
def test_the_official_message_reads_what_was_written(
    name: str, value: str, number: int, start: int, is_error: bool
) -> None:
    attributes = (("text", value), ("number", number))
    of_type = SpanType("tidegate-gateway", "g0", name, SERVER, attributes, is_error=is_error)
    span = Span(of_type, TRACE, SPAN, PARENT, float(start), start + 0.25, "a=b")
    (found,) = read_spans(encoded(span))
    assert (found.name, found.kind, found.is_error, found.trace_state) == (name, SERVER, is_error, "a=b")
    assert (found.trace_id, found.span_id, found.parent_id) == (
        TRACE.hex(),
        SPAN.hex(),
        PARENT.hex(),
    )
    assert found.attributes == {"text": value, "number": number}
    assert abs(found.start - start * 10**9) < 500, "seconds since 1970 as a double are that exact"
    assert abs(found.end - found.start - 250_000_000) < 500


def test_spans_lie_below_the_process_that_they_stand_for_and_a_root_has_no_parent() -> None:
    spans = [
        Span(SpanType(service, instance, "one", CLIENT), TRACE, SPAN, parent_id=b"", start=2.0, end=1.0)
        for service, instance in (("tidegate-gateway", "g0"), ("tidegate-queue-proxy", "r"), ("tidegate-gateway", "g0"))
    ]
    found = read_spans(encoded(*spans))
    assert [each.instance for each in found] == ["g0", "g0", "r"]
    assert {each.parent_id for each in found} == {""}
    assert {each.end - each.start for each in found} == {0}, "a span never ends before its start"
