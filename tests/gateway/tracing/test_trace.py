"""Traces of a gateway: what it takes from a client, what goes to the replica, and the spans at the end."""

import random
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.worlds.fake_grpc_call import INFER, call_head
from tests.support.worlds.gateway_chain import ONE, TWO, Door, table
from tests.support.worlds.spans import SpanSink
from tidegate.gateway.tracing.facts import Answer, Asked, Attempt
from tidegate.gateway.tracing.otlp import Span, encode_span
from tidegate.gateway.tracing.spans import KEPT_TYPES
from tidegate.gateway.tracing.trace import Tracer
from tidegate.records.replica_state import ColdStartPhases
from tidegate.wire.http1.request_head import HeadRules, RequestHead, parse_request
from tidegate.wire.http1.template import Templates

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TIMED = ("tidegate-timing: queue=2.000,model=30.000",)
KEEP = ("tidegate-credit: keep",)


class World(Door):
    """A gateway that traces; ``spans`` are those of the requests that are over."""

    def __init__(self, ratio: float = 0.0, first: Any = None) -> None:
        sink = SpanSink(offset=1000.0)
        self.spans = sink.spans
        tracer = Tracer(ratio=ratio, rng=random.Random(5), offset=1000.0, put=sink.put)
        super().__init__(first or table(1, ONE), tracer=tracer)

    def by_name(self) -> dict[str, Span]:
        return {span.type.name: span for span in self.spans}


def traceparent(flags: str = "01") -> str:
    return f"traceparent: 00-{TRACE}-{PARENT}-{flags}"


def sent_parent(ex: Any) -> str | None:
    found = re.search(rb"traceparent: ([^\r]+)\r\n", ex.sent or b"")
    return None if found is None else found[1].decode()


def test_a_sampled_parent_gets_a_child_and_the_replica_a_child_of_that() -> None:
    world = World()
    world.ready(ONE, 1)
    asked = world.arrive("POST /v2/models/m/infer", traceparent(), "tracestate: vendor=1", "x-request-id: i-1")
    world.now += 0.05
    asked.gets_answer(world.now, 200, *KEEP, *TIMED)
    spans = world.by_name()
    assert set(spans) == {"POST", "waiting room", "forward", "queue_proxy", "model"}
    server, forward, proxy, model = (spans[name] for name in ("POST", "forward", "queue_proxy", "model"))
    assert {span.trace_id for span in world.spans} == {bytes.fromhex(TRACE)}
    assert server.parent_id == bytes.fromhex(PARENT)
    assert spans["waiting room"].parent_id == forward.parent_id == server.span_id
    assert proxy.parent_id == forward.span_id
    assert model.parent_id == proxy.span_id
    assert sent_parent(asked) == f"00-{TRACE}-{model.span_id.hex()}-01"
    assert PARENT.encode() not in asked.head._block, "the client's own field is gone"
    assert b"tracestate: vendor=1" in asked.head._block
    assert server.trace_state == "vendor=1"
    assert len({span.span_id for span in world.spans}) == len(world.spans)
    times = {name: (round(span.start, 3), round(span.end, 3)) for name, span in spans.items()}
    assert times == {
        "POST": (1100.0, 1100.05),
        "waiting room": (1100.0, 1100.0),
        "forward": (1100.0, 1100.05),
        "queue_proxy": (1100.018, 1100.05),
        "model": (1100.02, 1100.05),
    }
    assert dict(server.type.attributes + server.own) == {
        "http.request.method": "POST",
        "url.scheme": "http",
        "url.path": "/v2/models/m/infer",
        "server.address": "127.0.0.1",
        "tidegate.request.id": "i-1",
        "tidegate.ending": "answered",
        "http.response.status_code": 200,
        "tidegate.function": "f",
        "tidegate.revision": "f-00001",
        "tidegate.inferences": 1,
    }


@pytest.mark.parametrize("flags", ["01", "00"])
def test_blanks_behind_a_parent_are_none_of_it(flags: str) -> None:
    world = World()
    world.ready(ONE, 1)
    asked = world.arrive("POST /v2/models/m/infer", f"{traceparent(flags)} \t", "tracestate: vendor=1")
    asked.gets_answer(world.now, 200, *KEEP, *TIMED)
    assert [span.parent_id for span in world.spans if span.type.name == "POST"] == [bytes.fromhex(PARENT)] * int(flags)
    assert b"tracestate: vendor=1" in asked.head._block, "the request named its trace"


@pytest.mark.parametrize(
    "timing", ["queue=-inf,model=1", "queue=1,model=-1e300", "queue=inf,model=inf", "queue=nan,model=nan", "none"]
)
def test_times_that_are_no_durations_end_no_export(timing: str) -> None:
    world = World(ratio=1.0)
    world.ready(ONE, 1)
    asked = world.arrive("POST /v2/models/m/infer")
    world.now += 0.05
    asked.gets_answer(world.now, 200, *KEEP, f"tidegate-timing: {timing}")
    spans = world.by_name()
    for name in ("queue_proxy", "model"):
        assert encode_span(spans[name])
        assert spans["forward"].start <= spans[name].start <= spans[name].end <= spans["forward"].end


@pytest.mark.parametrize("flags", range(256))
def test_the_last_digit_of_the_flags_says_whether_a_trace_is_sampled_and_two_flags_are_passed_on(flags: int) -> None:
    world = World(ratio=1.0)
    world.ready(ONE, 1)
    asked = world.arrive("POST /v2/models/m/infer", traceparent(f"{flags:02x}"))
    asked.gets_answer(world.now, 200, *KEEP, *TIMED)
    assert bool(world.spans) is bool(flags & 1)
    if flags & 1:
        assert (sent_parent(asked) or "").endswith(f"-{flags & 3:02x}")


def test_the_first_attempt_is_named_where_the_parent_was_and_each_other_one_beside_a_head_of_its_own() -> None:
    data = f"POST / HTTP/1.1\r\nHost: a\r\n{traceparent()}\r\nAccept: */*\r\n\r\n".encode()
    learnt = parse_request(data, 0, HeadRules())
    assert type(learnt) is RequestHead
    template = Templates().learn(data, 0, learnt)
    assert template is not None
    head = template.read(data, 0)
    assert head is not None
    trace = Tracer(ratio=0.0, rng=random.Random(5), offset=0.0, put=SpanSink().put).begin(head)
    assert trace is not None
    first, hedge = (SimpleNamespace(head=head, is_rpc=False) for _ in range(2))
    own = b"x-request-id: 1\r\n"
    assert trace.forwarded(cast(Any, first), own, "a", "cpu", 1.0) == own
    named = f"traceparent: 00-{TRACE}-{trace.attempts[0][3]:016x}-01\r\n".encode()
    assert named in first.head._block
    line = trace.forwarded(cast(Any, hedge), own, "b", "cpu", 2.0)
    assert line == own + f"traceparent: 00-{TRACE}-{trace.attempts[1][3]:016x}-01\r\n".encode()
    assert named in first.head._block, "it may be on its way still"
    assert b"traceparent" not in hedge.head._block


def test_a_parent_that_is_not_sampled_passes_unchanged() -> None:
    world = World(ratio=1.0)
    world.ready(ONE, 1)
    asked = world.arrive("POST /v2/models/m/infer", traceparent("00"))
    asked.gets_answer(world.now, 200, *KEEP, *TIMED)
    assert world.spans == []
    assert sent_parent(asked) is None
    assert traceparent("00").encode() in asked.head._block


@pytest.mark.parametrize("fields", [(), ("tracestate: old=1",), ("traceparent: 00-zz-1-01", "tracestate: old=1")])
def test_without_a_valid_parent_the_ratio_decides_and_a_foreign_state_is_dropped(fields: tuple[str, ...]) -> None:
    world = World(ratio=1.0)
    world.ready(ONE, 1)
    asked = world.arrive("POST /v2/models/m/infer", *fields)
    asked.gets_answer(world.now, 200, *KEEP, *TIMED)
    server = world.by_name()["POST"]
    assert server.parent_id == b""
    assert sent_parent(asked) == f"00-{server.trace_id.hex()}-{world.by_name()['model'].span_id.hex()}-03"
    assert b"tracestate" not in asked.head._block
    assert b"traceparent" not in asked.head._block


def test_a_call_that_is_not_sampled_keeps_its_head_where_a_sampled_one_has_the_same() -> None:
    tracer = Tracer(ratio=1.0, rng=random.Random(5), offset=0.0, put=lambda traced: None)
    shared = call_head(INFER)
    call: Any = SimpleNamespace(head=shared, is_rpc=True)
    trace = tracer.begin(shared)
    assert trace is not None
    for replica in ("a", "b"):
        line = trace.forwarded(call, b"", replica, "cpu", 0.0)
        assert line.startswith(b"traceparent: 00-")
        assert call.head.traced, "the forwarder adds none"
        assert not shared.traced and not shared.is_changed, "the forwarder adds one to calls without a trace"


def test_the_share_of_traced_requests_is_the_ratio() -> None:
    world = World(ratio=0.2)
    world.ready(ONE, *range(1, 1001))
    for _ in range(1000):
        world.arrive().gets_answer(world.now, 200, *KEEP)
    assert 140 < sum(span.type.name == "POST" for span in world.spans) < 260


def test_a_retry_is_a_second_attempt_and_the_first_one_is_a_fault() -> None:
    world = World(first=table(1, ONE, TWO, idempotent=True))
    world.ready(ONE, 1)
    asked = world.arrive("POST /v2/models/m/infer", traceparent())
    first = sent_parent(asked)
    world.ready(TWO, 1)
    world.now += 0.01
    asked.breaks_off(world.now, sent=True)
    second = sent_parent(asked)
    world.now += 0.02
    asked.gets_answer(world.now, 200, *KEEP, *TIMED)
    attempts = [span for span in world.spans if span.type.name == "forward"]
    assert [(span.type.is_error, dict(span.type.attributes)["tidegate.replica"]) for span in attempts] == [
        (True, ONE.id),
        (False, TWO.id),
    ]
    assert first == f"00-{TRACE}-{attempts[0].span_id.hex()}-01"
    assert second == f"00-{TRACE}-{world.by_name()['model'].span_id.hex()}-01"
    assert dict(attempts[1].type.attributes)["http.request.resend_count"] == 1
    assert attempts[0].end == attempts[1].start


def test_the_phases_of_a_cold_start_are_spans_of_the_control_process_below_the_wait() -> None:
    world = World()
    asked = world.arrive("POST /v2/models/m/infer", traceparent())
    world.now += 3.0
    world.ready(ONE, 1, phases=ColdStartPhases(decide_s=0.25, schedule_s=0.5, load_s=2.0))
    world.now += 0.05
    asked.gets_answer(world.now, 200, *KEEP, *TIMED)
    spans = world.by_name()
    waiting = spans["waiting room"]
    phases = [span for span in world.spans if span.type.resource[0] == "tidegate-control"]
    assert [(span.type.name, span.start - 1100.0, span.end - 1100.0) for span in phases] == [
        ("cold start: decide", 0.25, 0.5),
        ("cold start: schedule", 0.5, 1.0),
        ("cold start: load", 1.0, 3.0),
    ]
    assert {span.parent_id for span in phases} == {waiting.span_id}
    assert round(waiting.end, 3) == 1103.0


def test_a_request_that_no_function_takes_is_one_span_and_its_query_is_nowhere() -> None:
    world = World(ratio=1.0)
    world.arrive("POST /v2/models/unknown/infer?key=secret", "authorization: Bearer secret", "cookie: a=secret")
    (span,) = world.spans
    assert dict(span.type.attributes)["http.response.status_code"] == 404
    assert not span.type.is_error
    assert "secret" not in repr(span)


def test_a_failure_is_an_error_with_its_type() -> None:
    world = World(ratio=1.0)
    world.ready(ONE, 1)
    world.arrive().gets_answer(world.now, 503, *KEEP)
    assert world.by_name()["POST"].type.is_error
    assert dict(world.by_name()["POST"].type.attributes)["error.type"] == "503"


def test_the_newest_sampled_request_is_the_exemplar_of_its_bucket() -> None:
    world = World()
    world.ready(ONE, 1, 2)
    for flags in ("01", "00"):
        asked = world.arrive("POST /v2/models/m/infer", traceparent(flags))
        world.now += 0.05
        asked.gets_answer(world.now, 200, *KEEP)
    counters = world.report.revision("f", "f-00001")
    ((bound, (trace, value, unix)),) = counters.exemplars.items()
    assert (bound, trace, round(value, 3), round(unix, 3)) == ("0.065536", TRACE, 0.05, 1100.05)


def test_spans_of_equal_requests_share_their_type_and_each_of_many_paths_has_its_own() -> None:
    sink = SpanSink()
    for number in (*range(KEPT_TYPES + 10), KEPT_TYPES + 9):
        asked: Asked = (b"POST", b"/items/%d?key=secret" % number, b"host", False, 1, b"i-%d" % number, None, False)
        parent = traceparent().removeprefix("traceparent: ").encode()
        attempts: list[Attempt] = [(f"r{number}", "cpu", 1.0, number + 1)]
        answers: list[Answer] = [(f"r{number}", 1.5, 200, b"queue=1.000,model=2.000")]
        sink.put((5, parent, b"", 0, 1.0, 2.0, 200, "f", "f-00001", attempts, answers, None, asked))
    requests = [span for span in sink.spans if span.type.name == "POST"]
    models = [span for span in sink.spans if span.type.name == "model"]
    paths = [f"/items/{number}" for number in (*range(KEPT_TYPES + 10), KEPT_TYPES + 9)]
    assert [dict(span.type.attributes)["url.path"] for span in requests] == paths
    assert [span.type.resource[1] for span in models] == [path.replace("/items/", "r") for path in paths]
    assert requests[-1].type is requests[-2].type and models[-1].type is models[-2].type
    assert requests[-1].own == (("tidegate.request.id", f"i-{KEPT_TYPES + 9}"),)
