"""Responses during a cold start, by the function's annotations: comments on event streams, 202 for other calls."""

import json
from typing import Any

import pytest

from tests.support.worlds.fake_exchange import FakeExchange
from tests.support.worlds.gateway_chain import ONE, Door, table
from tidegate.flow.messages import State
from tidegate.gateway.answers.cold_answers import ACCEPT_AFTER_S
from tidegate.gateway.answers.cold_starts import KEPT_TIMES, START_S, ColdStarts
from tidegate.gateway.counting.counters import Report
from tidegate.records.cold_rules import ColdCalls, ColdRules
from tidegate.records.replica_state import ColdStartPhases, ReplicaState
from tidegate.records.route_table import RouteTable

PHASES = ColdStartPhases(decide_s=0.1, schedule_s=0.2, load_s=3.0)
STREAM, UNARY = {"model": "m", "stream": True}, {"model": "m"}
BOTH = ColdRules(heartbeat_s=2.0, calls=ColdCalls.ACCEPT)


def door(rules: ColdRules = BOTH, **settings: Any) -> Door:
    return Door(table(1, cold=rules, protocol="openai", **settings))


def ask(at: Door, document: dict[str, Any], *fields: str, line: str = "POST /v1/chat/completions") -> FakeExchange:
    return at.arrive(line, *fields, body=json.dumps(document).encode())


def later(at: Door, seconds: float) -> None:
    at.now += seconds
    at.core.sweep(at.now)


def test_a_stream_is_opened_after_the_first_interval_and_reported_the_phase_until_its_answer_begins() -> None:
    at = door()
    cold = ask(at, STREAM, "x-request-id: r-1")
    later(at, 1.9)
    assert cold.log == []
    later(at, 0.1)
    assert cold.log == ["stream begins"]
    assert cold.extra == b"x-request-id: r-1\r\n"
    assert json.loads(cold.failure_event)["error"]["code"] == "replica_failed"
    at.core.apply(table(2, ONE, cold=BOTH, protocol="openai"))
    later(at, 2.0)
    at.starting(ONE)
    later(at, 2.0)
    at.core.heard(ONE.id, State(ReplicaState.READY, PHASES))
    later(at, 2.0)
    at.grant(ONE, 1)
    later(at, 2.0)
    assert cold.comments == [
        "starting, phase=decide, 2.0 s",
        "starting, phase=schedule, 4.0 s",
        "starting, phase=load, 6.0 s",
        "waiting, phase=queue, 8.0 s",
        "running, phase=model, 10.0 s",
    ]
    assert cold.log == ["stream begins", "to 10.0.0.1:1"]
    cold.gets_answer(at.now, 200, "content-type: text/event-stream", length=None, ends=False)
    later(at, 2.0)
    assert len(cold.comments) == 5
    assert repr(at.core.cold_answers) == "<ColdAnswers 0 wait, 0 wanted>"


@pytest.mark.parametrize(
    ("line", "fields", "document"),
    [
        ("POST /v1/chat/completions", (), STREAM),
        ("POST /functions/f/v1/chat/completions", (), STREAM),
        ("GET /functions/f/events", ("accept: text/event-stream",), {}),
        ("POST /functions/f/anything", ("Accept: application/json, Text/Event-Stream",), UNARY),
    ],
)
def test_streams_are_known_by_their_body_or_by_what_they_accept(
    line: str, fields: tuple[str, ...], document: dict[str, Any]
) -> None:
    at = door()
    cold = ask(at, document, *fields, line=line)
    later(at, 2.0)
    assert cold.log == ["stream begins"]


def test_a_question_for_the_head_of_a_stream_waits_for_it() -> None:
    at = door()
    asked = ask(at, {}, "accept: text/event-stream", line="HEAD /functions/f/events")
    later(at, 300.0)
    assert asked.log == []


def test_a_prompt_that_speaks_of_streams_is_none() -> None:
    at = door(ColdRules(heartbeat_s=2.0))
    cold = ask(at, {"model": "m", "messages": ['"stream": true'], "stream": False}, line="POST /functions/f/v1/chat")
    broken = at.arrive("POST /functions/f/v1/chat", body=b'{"stream": true')
    later(at, 300.0)
    assert (cold.log, broken.log) == ([], [])


def test_anthropics_clients_get_failures_as_events_of_that_name() -> None:
    at = door()
    cold = ask(at, STREAM, line="POST /v1/messages")
    later(at, 2.0)
    assert cold.failure_event.startswith(b'error {"type": "error"')


def test_who_waits_for_a_slot_of_an_awake_function_is_sent_nothing() -> None:
    at = door()
    at.core.apply(table(2, ONE, cold=BOTH, protocol="openai"))
    first = ask(at, UNARY)
    at.ready(ONE, 1)
    assert first.log == ["to 10.0.0.1:1"]
    waiting = [ask(at, STREAM), ask(at, UNARY)]
    later(at, 9.0)
    assert [one.log for one in waiting] == [[], []]
    slow = door()
    started = ask(slow, STREAM)
    slow.core.apply(table(2, ONE, cold=BOTH, protocol="openai"))
    slow.ready(ONE)
    later(slow, 2.0)
    assert started.log == [], "the start was over before the first comment was due"


def test_without_the_annotations_everybody_waits() -> None:
    at = door(ColdRules())
    both = [ask(at, STREAM), ask(at, UNARY)]
    later(at, 300.0)
    assert [one.log for one in both] == [[], []]


def test_another_call_is_answered_202_and_its_function_wakes() -> None:
    at = door()
    cold = ask(at, UNARY, "x-request-id: r-1")
    assert at.activations() == [1]
    later(at, ACCEPT_AFTER_S / 2)
    assert cold.log == []
    later(at, ACCEPT_AFTER_S / 2)
    assert cold.log == ["answer 202"]
    for line in (b"retry-after: 5\r\n", b"location: /openai/v1/models/m\r\n", b"x-request-id: r-1\r\n"):
        assert line in cold.extra
    answer = json.loads(cold.answer)
    assert (answer["status"], answer["function"], answer["retry_after_s"]) == ("starting", "f", 5)
    demand = at.demand()
    assert (demand.arrivals, demand.refused, demand.waiting) == (1, 1, 0)
    assert demand.missed == 1, "a replica that was there would have answered it"
    later(at, 0.9)
    assert at.activations() == [1]
    later(at, 0.1)
    later(at, 1.0)
    assert at.activations() == [1, 1, 1], "the start is wanted on: there may have been no place for it"
    at.core.apply(table(2, ONE, cold=BOTH, protocol="openai"))
    at.ready(ONE)
    later(at, 1.0)
    assert (len(at.activations()), repr(at.core.cold_answers)) == (3, "<ColdAnswers 0 wait, 0 wanted>")


def test_a_start_is_asked_for_once_a_second() -> None:
    at = door()
    ask(at, UNARY)
    later(at, 1.0)
    before = len(at.activations())
    for _ in range(40):
        later(at, 0.125)
    assert len(at.activations()) - before == 5


def test_a_start_is_not_wanted_for_ever_nor_when_its_revision_has_gone() -> None:
    at = door()
    ask(at, UNARY)
    later(at, ACCEPT_AFTER_S)
    for _ in range(100):
        later(at, 1.0)
    assert len(at.activations()) == 1 + 59
    ask(at, UNARY)
    later(at, ACCEPT_AFTER_S)
    at.core.apply(RouteTable(epoch=1, number=2, workers=1))
    later(at, 1.0)
    assert (len(at.activations()), repr(at.core.cold_answers)) == (61, "<ColdAnswers 0 wait, 0 wanted>")


def test_where_the_status_stands() -> None:
    at = door()
    by_prefix = ask(at, {}, line="POST /functions/f/predict")
    by_host = at.arrive("POST http://f.localhost:8080/v1/chat/completions", body=b"{}")
    later(at, 1.0)
    assert b"location: /openai/v1/models/m\r\n" in by_prefix.extra
    assert b"location: //localhost:8080/openai/v1/models/m\r\n" in by_host.extra
    alike = at.arrive("POST http://f.example.com:8080/v1/chat/completions", body=b'{"model":"m"}')
    later(at, 1.0)
    assert b"location: /openai/v1/models/m\r\n" in alike.extra, "the front door's own host may begin as a function"


@pytest.mark.parametrize("model", ["x%0d%0aset-cookie:%20a=b", "%E2%82%AC", "other"])
def test_a_path_that_names_what_is_not_there_gets_the_status_of_what_is(model: str) -> None:
    at = Door(table(1, cold=BOTH))
    asked = at.arrive(f"GET /functions/f/v2/models/{model}", body=b"")
    later(at, ACCEPT_AFTER_S)
    assert asked.log == ["answer 202"]
    assert b"\r\nlocation: /openai/v1/models/m\r\n" in asked.extra
    assert asked.extra.count(b"\r\n") == 3


def test_a_body_that_comes_apart_from_its_head_is_looked_at_when_it_is_there() -> None:
    at = door(queue_requests=3)
    stream, unary, late = (
        at.arrive("POST /functions/f/v1/chat/completions", body=b"", complete=False) for _ in range(3)
    )
    later(at, 0.1)
    stream.body_comes(b'{"stream":', complete=False)
    stream.body_comes(b'{"stream":true}')
    unary.body_comes(b'{"stream":false}')
    later(at, ACCEPT_AFTER_S)
    assert (stream.log, unary.log) == ([], ["answer 202"])
    later(at, 1.75)
    assert (stream.log, late.log) == (["stream begins"], [])
    at.core.apply(table(2, ONE, cold=BOTH, protocol="openai", queue_requests=3))
    at.ready(ONE, 1, 2)
    late.body_comes(b"{}")
    later(at, 9.0)
    assert late.log == ["to 10.0.0.1:1"]


def test_the_last_start_tells_when_to_come_back() -> None:
    cold = ColdStarts(Report("g", "i", 0.0))
    assert cold.retry_after_s("f", 0.0) == START_S
    cold.apply({"r": ("f", "f-00001")})
    cold.reported("r", ReplicaState.STARTING, None, 1.0)
    cold.reported("r", ReplicaState.READY, PHASES, 2.0)
    assert [cold.retry_after_s("f", waited) for waited in (0.0, 0.5, 30.0)] == [4, 3, 1]
    for number in range(KEPT_TIMES):
        cold.apply({f"r{number}": (f"g{number}", "g-00001")})
        cold.reported(f"r{number}", ReplicaState.STARTING, None, 1.0)
        cold.reported(f"r{number}", ReplicaState.READY, PHASES, 2.0)
    assert cold.retry_after_s("f", 0.0) == START_S, "forgotten: as many others have started since"


def test_who_has_left_or_was_refused_is_sent_nothing_more() -> None:
    at = door()
    gone, refused = ask(at, STREAM), ask(at, STREAM)
    later(at, 2.0)
    gone.client_leaves(at.now)
    at.core.apply(table(2, cold=BOTH, protocol="openai", revision={"failure": "no such file"}))
    later(at, 2.0)
    assert (gone.log, refused.log) == (["stream begins", "gone"], ["stream begins", "answer 503"])
    assert len(gone.comments) == len(refused.comments) == 1
    assert repr(at.core.cold_answers) == "<ColdAnswers 0 wait, 0 wanted>"


def test_answers_say_how_long_a_start_was_waited_for() -> None:
    at = door(ColdRules())
    cold = ask(at, UNARY)
    at.now += 0.5
    at.core.apply(table(2, ONE, protocol="openai"))
    at.starting(ONE)
    at.now += 1.0
    at.core.heard(ONE.id, State(ReplicaState.READY, PHASES))
    at.grant(ONE, 1)
    cold.gets_answer(at.now + 0.1, 200, "tidegate-credit: keep")
    assert b"tidegate-cold-start-ms: 1500.000\r\n" in cold.extra
    warm = ask(at, UNARY)
    warm.gets_answer(at.now + 0.2, 200)
    assert b"cold-start" not in warm.extra


def test_questions_for_the_status_listen_to_the_replicas_and_wake_none() -> None:
    at = Door(table(1, ONE, protocol="openai"))
    status = ask(at, {}, line="GET /openai/v1/models/m")
    at.starting(ONE)
    assert json.loads(status.answer)["status"] == "starting"
    assert at.activations() == []
    at.ready(ONE, 1)
    assert json.loads(ask(at, {}, line="GET /v1/models/m").answer)["status"] == "ready"
