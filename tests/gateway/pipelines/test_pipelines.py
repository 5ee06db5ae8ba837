"""Conversations with the request path about pipelines: stages in order, by the age and the deadline of the whole."""

import gzip
import json
import random
from dataclasses import replace
from typing import Any

import pytest

from tests.gateway.pipelines.test_bodies import DEEP
from tests.support.worlds.fake_exchange import FakeExchange
from tests.support.worlds.fake_grpc_call import INFER, call
from tests.support.worlds.gateway_chain import Door
from tests.support.worlds.spans import SpanSink
from tidegate.activator.commands import Activate
from tidegate.gateway.tracing.trace import Tracer
from tidegate.records.pipeline import PipelineRoute, Stage
from tidegate.records.route_table import FunctionRoute, GroupRoute, ReplicaRoute, RevisionRoute, RouteTable
from tidegate.wire.grpc.messages import MODEL_INFER_REQUEST
from tidegate.wire.http2 import grpc_fields

A = ReplicaRoute(id="a-00001-aaaaa", address="10.0.0.1:1")
B = ReplicaRoute(id="b-00001-aaaaa", address="10.0.0.2:1")
ANSWER = json.dumps({"outputs": [{"name": "y", "shape": [1], "datatype": "FP32", "data": [2]}]}).encode()
KEPT = "tidegate-credit: keep"


def route(name: str, revision: dict[str, Any], **settings: Any) -> FunctionRoute:
    values: dict[str, Any] = {
        "name": name,
        "models": (name,),
        "protocol": "v2",
        "timeout_s": 10.0,
        "latency_s": None,
        "queue_requests": 10,
        "queue_bytes": 1 << 20,
        "max_wait_s": 60.0,
        "batch_header": "tidegate-batch-size",
        "bytes_per_item": None,
        "overhead_bytes": 0.0,
        "max_batch": 64,
    } | settings
    return FunctionRoute(revisions=(RevisionRoute(id=f"{name}-00001", percent=100.0, **revision),), **values)


def table(*, a: tuple[ReplicaRoute, ...] = (A,), b: tuple[ReplicaRoute, ...] = (B,), **settings: Any) -> RouteTable:
    stages = settings.pop("stages", (Stage(function="a"), Stage(function="b", inputs=(("x", "y"),))))
    pipeline = PipelineRoute(stages=stages, body_bytes=settings.pop("body_bytes", 1000))
    groups = {
        name: (GroupRoute(accelerator="cpu", weight=1.0, replicas=found),) for name, found in (("a", a), ("b", b))
    }
    return RouteTable(
        epoch=1,
        number=1,
        workers=1,
        functions=(
            route("a", {"groups": groups["a"]}),
            route("b", {"groups": groups["b"]}),
            route("p", {"pipeline": pipeline}, **settings),
        ),
    )


def ask(door: Door, *fields: str, **more: Any) -> FakeExchange:
    return door.arrive("POST /v2/models/p/infer", *fields, **more)


def both_ready(door: Door) -> None:
    """Both replicas are ready; each grants what its worker wants when it asks."""
    door.ready(A, 1, 2)
    door.ready(B, 11, 12)


def opened(**settings: Any) -> Door:
    """A door with open channels to both stages."""
    door = Door(table(**settings))
    first = ask(door)
    both_ready(door)
    door.stages[0].gets_answer(100.0, 200, KEPT, body=ANSWER)
    door.grant(B, 13, 14)
    door.stages[1].gets_answer(100.0, 200, KEPT, body=b"{}")
    assert first.log[-1] == "answer 200"
    door.stages.clear()
    return door


def raw(size: int) -> bytes:
    """A message whose only input has raw contents of this size."""
    entry = {"name": "x", "datatype": "UINT8", "shape": [1, size]}
    return MODEL_INFER_REQUEST.encode({"model_name": "p", "inputs": [entry], "raw_input_contents": [bytes(size)]})


def gzipped(message: bytes) -> bytes:
    """The body of a call with this message."""
    data = gzip.compress(message)
    return b"\1" + len(data).to_bytes(4, "big") + data


def ended(door: Door, function: str) -> tuple[int, int, int, int]:
    """(arrivals, answered, failed, refused) of a function."""
    demands = door.report.demands(lambda revision: door.core.room.counts(revision, door.now))
    sample = door.report.sample(door.now, table=(1, 1), connections=0, demands=demands)
    (found,) = (each for each in sample.demands if each.revision == f"{function}-00001")
    return found.arrivals, found.answered, found.failed, found.refused


def test_no_time_is_lost_between_stages_however_long_the_process_stood_still() -> None:
    door = opened()
    client = ask(door)
    door.now = 100.3
    door.stages[0].gets_answer(100.2, 200, KEPT, body=ANSWER)
    assert door.stages[1].received == 100.3, "100 ms after its answer was there"
    door.now = 100.9
    door.stages[1].gets_answer(100.5, 200, KEPT, body=b"{}")
    (line,) = (each for each in client.extra.split(b"\r\n") if each.startswith(b"server-timing: "))
    entries = (each.split(b";dur=") for each in line.removeprefix(b"server-timing: ").split(b", "))
    found = {name.decode(): float(ms) for name, ms in entries}
    assert [found[name] for name in ("entry", "a", "b", "answer", "total")] == pytest.approx([0, 200, 300, 400, 900])


def test_the_answer_of_a_stage_is_the_request_of_the_next_and_the_last_answers_the_client() -> None:
    door = opened()
    client = ask(door, "x-request-id: mine", body=b'{"inputs":[],"outputs":[{"name":"z"}]}')
    first = door.stages[0]
    assert first.target == b"/v2/models/a/infer" or first.head.target == b"/v2/models/a/infer"
    assert json.loads(first.body) == {"inputs": []}
    door.now = 100.3
    first.gets_answer(100.3, 200, KEPT, body=ANSWER)
    second = door.stages[1]
    assert second.head.target == b"/v2/models/b/infer"
    sent = json.loads(second.body)
    assert sent["inputs"] == [{"name": "x", "shape": [1], "datatype": "FP32", "data": [2]}]
    assert sent["outputs"] == [{"name": "z"}]
    assert b"tidegate-timeout-ms: 9700" in second.sent, "the deadline counts from the entry"
    second.gets_answer(100.5, 200, KEPT, "x-own: 1", body=b'{"done":1}')
    assert client.log[-1] == "answer 200" and client.answer == b'{"done":1}'
    assert b"x-own: 1\r\n" in client.extra and b"x-request-id: mine\r\n" in client.extra
    assert b"server-timing: entry;dur=0.000, a;dur=" in client.extra and b", b;dur=" in client.extra
    assert b"tidegate-stage" not in client.extra
    assert [ended(door, name) for name in "pab"] == [(2, 2, 0, 0)] * 3


def test_a_stage_that_fails_ends_the_request_and_is_named() -> None:
    door = opened()
    client = ask(door)
    door.stages[0].gets_answer(100.0, 500, KEPT, body=b"oh")
    assert client.log[-1] == "answer 500" and client.answer == b"oh"
    assert b"tidegate-stage: a\r\n" in client.extra
    assert len(door.stages) == 1, "the rest never runs"
    assert ended(door, "p") == (2, 1, 1, 0)

    client = ask(door)
    door.stages[1].gets_answer(100.0, 200, KEPT, body=b'{"outputs":[]}')
    assert client.log[-1] == "answer 502" and client.error["code"] == "stage_failed"
    assert client.error["executed"] == "true" and b"tidegate-stage: a\r\n" in client.extra


def test_an_answer_beyond_the_limit_is_no_next_request() -> None:
    door = opened()
    client = ask(door)
    door.stages[0].gets_answer(100.0, 200, KEPT, body=ANSWER + b" " * 1000)
    assert client.log[-1] == "answer 502" and "larger than 1000 bytes" in client.error["error"]
    assert client.budget.used == 0
    large = ask(door, body=b"{" + b" " * 1000)
    assert large.log[-1] == "answer 413" and "limits.body-bytes" in large.error["error"]


def test_waiting_bodies_between_stages_count_towards_their_budget() -> None:
    door = opened()
    client = ask(door)
    client.budget.limit = 10
    door.stages[0].gets_answer(100.0, 200, KEPT, body=ANSWER)
    assert client.log[-1] == "answer 429" and "limits.waiting-body-bytes" in client.error["error"]
    assert client.budget.used == 0
    assert ended(door, "p") == (2, 1, 0, 1)


def test_a_request_that_is_kept_counts_as_large_as_it_is() -> None:
    keeps = Stage(function="b", inputs=(("x", "y"), ("z", "request.x")))
    door = Door(table(stages=(Stage(function="a"), keeps), body_bytes=1 << 20))
    ask(door)
    both_ready(door)
    ask(door).client_leaves(100.0)
    door.grant(A, 3)
    door.stages.clear()
    size = 1 << 16
    client = call(door, INFER, body=gzipped(raw(size)), fields=[("grpc-encoding", "gzip")])
    assert door.stages[0].log and client.bytes_in < 1000 and client.budget.used >= size
    client.client_leaves(100.1)
    assert client.budget.used == 0


def test_a_message_whose_json_is_beyond_the_limit_is_refused() -> None:
    door = opened()
    values = {"name": "x", "datatype": "FP32", "shape": [1, 100], "contents": {"fp32_contents": [0.1] * 100}}
    client = call(door, INFER, MODEL_INFER_REQUEST.encode({"model_name": "p", "inputs": [values]}))
    assert client.bytes_in < 1000 and client.code == grpc_fields.RESOURCE_EXHAUSTED
    assert "1000 bytes, the pipeline's limits.body-bytes" in client.message and not door.stages


def test_json_that_is_nested_too_deeply_is_answered() -> None:
    door = opened(body_bytes=1 << 20)
    client = ask(door, body=DEEP)
    door.convert()
    assert door.stages[0].body == DEEP and door.stages[0].log, "the stage answers what is no V2 request"
    door.stages[0].gets_answer(100.1, 200, KEPT, body=DEEP)
    door.convert()
    assert client.log[-1] == "answer 502" and "not JSON" in client.error["error"]


def test_a_client_that_leaves_withdraws_the_request_from_its_stage() -> None:
    door = opened()
    client = ask(door)
    running = door.stages[0]
    client.client_leaves(100.1)
    assert running.is_ended and running.log[-1] == "gone"
    client = ask(door)
    door.stages[-1].gets_answer(100.2, 200, KEPT, body=ANSWER)
    waiting = door.stages[-1]
    client.client_leaves(100.3)
    assert waiting.is_ended and door.core.room.waiting == 0


def test_a_deadline_in_a_later_stage_says_so_and_that_something_ran() -> None:
    door = opened()
    client = ask(door)
    door.stages[0].gets_answer(100.2, 200, KEPT, body=ANSWER)
    door.now = 110.0
    client.expires(110.0)
    assert client.log[-1] == "answer 504" and client.error["executed"] == "true"
    assert "in stage b" in client.error["error"]
    assert door.stages[-1].is_ended


def test_a_request_is_dropped_by_the_age_of_the_whole() -> None:
    door = opened(drop_after_s=2.0)
    door.core.unlinked(B.id)
    client = ask(door)
    door.now = 101.5
    door.stages[0].gets_answer(101.5, 200, KEPT, body=ANSWER)
    assert door.core.room.waiting == 1
    door.now = 101.9
    door.core.on_room_due()
    assert door.core.room.waiting == 1
    door.now = 102.0
    door.core.on_room_due()
    assert client.log[-1] == "answer 503" and client.error["code"] == "dropped"
    assert client.error["function"] == "b" and "2 s after its arrival" in client.error["error"]
    assert ended(door, "p") == (2, 1, 0, 1)


def test_the_older_request_goes_first_in_a_later_stage() -> None:
    door = opened()
    old = ask(door)
    door.now = 100.5
    young = ask(door)
    door.core.unlinked(B.id)
    of_old, of_young = door.stages
    of_young.gets_answer(100.6, 200, KEPT, body=ANSWER)
    door.now = 101.0
    of_old.gets_answer(101.0, 200, KEPT, body=ANSWER)
    later_young, later_old = door.stages[2:]
    door.ready(B, 21)
    assert later_old.log == [f"to {B.address}"] and later_young.log == []
    assert not old.is_ended and not young.is_ended


def test_from_zero_all_stages_are_asked_to_start_at_once() -> None:
    door = Door(table(a=(), b=()))
    ask(door)
    asked = [command.activation.revision for command in door.shell if isinstance(command, Activate)]
    assert sorted(asked) == ["a-00001", "b-00001"]
    ask(door)
    asked = [command.activation.revision for command in door.shell if isinstance(command, Activate)]
    assert asked.count("b-00001") == 1, "once a second"


def test_a_pipeline_is_ready_while_no_stage_has_failed() -> None:
    assert Door(table()).arrive("GET /v2/models/p/ready").log[-1] == "answer 200"
    whole = table()
    a, b, p = whole.functions
    failed = replace(b, revisions=(replace(b.revisions[0], failure="it has no file"),))
    client = Door(replace(whole, functions=(a, failed, p))).arrive("GET /v2/models/p/ready")
    assert client.log[-1] == "answer 503" and "its stage b cannot be served now" in client.answer.decode()


def test_what_is_no_post_is_refused_with_the_stages() -> None:
    door = opened()
    client = door.arrive("GET /functions/p/x")
    assert client.log[-1] == "answer 400" and "its stages: a, b" in client.error["error"]["message"]


def test_each_stage_has_a_span_of_its_own_below_that_of_the_request() -> None:
    sink = SpanSink()
    spans = sink.spans
    tracer = Tracer(ratio=0.0, rng=random.Random(5), offset=0.0, put=sink.put)
    door = Door(table(), tracer=tracer)
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    client = ask(door, f"traceparent: 00-{trace}-{parent}-01")
    both_ready(door)
    door.now = 100.2
    door.stages[0].gets_answer(100.2, 200, KEPT, "tidegate-timing: queue=2.000,model=30.000", body=ANSWER)
    second = door.stages[1]
    assert second.sent.count(b"traceparent:") == 1 and parent.encode() not in second.sent + second.head._block
    door.now = 100.5
    second.gets_answer(100.5, 500, KEPT, body=b"oh")
    assert client.log[-1] == "answer 500"
    assert {span.trace_id for span in spans} == {bytes.fromhex(trace)}
    (whole,) = (span for span in spans if span.type.name == "POST")
    a, b = (next(span for span in spans if span.type.name == name) for name in ("stage a", "stage b"))
    assert a.parent_id == b.parent_id == whole.span_id
    assert (a.start, a.end, b.start, b.end) == (100.0, 100.2, 100.2, 100.5)
    assert not a.type.is_error and b.type.is_error
    assert {span.parent_id for span in spans if span.type.name == "waiting room"} == {a.span_id, b.span_id}
    assert dict(a.type.attributes) == {
        "tidegate.function": "a",
        "tidegate.revision": "a-00001",
        "http.response.status_code": 200,
    }
    forwards = [span for span in spans if span.type.name == "forward"]
    assert [span.parent_id for span in forwards] == [a.span_id, b.span_id]
    assert len([span for span in spans if span.type.name == "model"]) == 1
    door.grant(A, 3)
    spans.clear()
    client = ask(door, f"traceparent: 00-{trace}-{parent}-01")
    client.client_leaves(100.6)
    assert {"POST", "stage a"} <= {span.type.name for span in spans}
