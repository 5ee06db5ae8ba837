"""Tokens of requests to functions that speak OpenAI's protocol: expected, read from the answer, counted once."""

import gzip
import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.worlds.fake_exchange import FakeExchange
from tests.support.worlds.gateway_chain import ONE, TWO, Door, table
from tidegate.flow.outliers import Outliers
from tidegate.gateway.counting.token_metrics import Operation
from tidegate.gateway.counting.tokens import Tokens
from tidegate.histogram import quantile
from tidegate.metrics import Exposition
from tidegate.records.gateway_sample import GroupTokens, TokensSeen
from tidegate.records.route_table import Hedging

JSON, SSE = "content-type: application/json", "content-type: text/event-stream; charset=utf-8"
CHAT = "POST /functions/f/v1/chat/completions"
USAGE = {"prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 32}}


def open_door(**settings: Any) -> Door:
    """Two slots are free, and the request that opened the links has gone."""
    known: dict[str, Any] = {"protocol": "openai", "queue_requests": 100, "models": ("m", "lora")}
    door = Door(table(1, ONE, TWO, **(known | settings)))
    door.arrive("GET /functions/f/health").client_leaves(door.now)
    door.ready(ONE, *range(1, 9))
    door.ready(TWO, *range(11, 19))
    return door


def ask(door: Door, line: str = CHAT, *fields: str, **members: Any) -> FakeExchange:
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 131}]} | members
    return door.arrive(line, *(fields or ("content-type: application/json",)), body=json.dumps(body).encode())


def tokens(ex: FakeExchange) -> Tokens:
    found: Tokens = ex.context.tokens
    assert found is not None
    return found


class Ended:
    """The final figures of a request: equal to a list with one entry once it has ended, to an empty list before."""

    def __init__(self, ex: FakeExchange) -> None:
        self._ex = ex
        self._tokens = tokens(ex)

    def figures(self) -> list[tuple[int, int, int, bool]]:
        found = self._tokens
        carriers = [ex for ex in (self._ex, getattr(self._ex, "twin", None)) if ex is not None and ex.context]
        if not any(ex.ended and ex.context.tokens is found for ex in carriers):
            return []
        return [(found.prompt, found.completion, found.cached, found.is_estimated)]

    def __eq__(self, other: object) -> bool:
        return self.figures() == other

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return repr(self.figures())


def ended(ex: FakeExchange) -> Ended:
    """Returns what the request's final figures will be."""
    return Ended(ex)


def seen(door: Door) -> TokensSeen:
    found = door.demand().tokens
    assert found is not None
    return found


def event(content: str = "a", **more: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"content": content}}], **more}).encode()


def begins(ex: FakeExchange, door: Door, body: bytes = b"") -> None:
    """A stream's head goes out."""
    ex.gets_answer(door.now, 200, SSE, "tidegate-credit: keep", length=None, body=body, ends=False)


class Call(FakeExchange):
    """An exchange that is a gRPC call."""

    is_rpc = True


def hears(ex: FakeExchange, door: Door, after_s: float, data: bytes) -> None:
    door.now += after_s
    ex.tap(data)


def series(door: Door) -> dict[tuple[str, ...], float]:
    """Returns the values of a scrape by name and distinguishing labels."""
    text = Exposition()
    for _ in door.report.expose(
        text, door.now, table=(1, 1), connections=0, waiting=lambda _: None, outliers=Outliers(), log_lines_dropped=0
    ):
        pass
    return {
        (
            sample.name,
            *(value for name, value in sorted(sample.labels.items()) if name not in ("function", "revision")),
        ): sample.value
        for family in text_string_to_metric_families(text.render().decode())
        for sample in family.samples
    }


# --- before the room ------------------------------------------------------------------------------------------------


def test_a_request_is_sized_before_it_is_routed() -> None:
    door = open_door()
    asked = tokens(ask(door, max_tokens=16))
    assert (asked.call, asked.model, asked.max_tokens) == (Operation.CHAT, "m", 16)
    assert asked.prompt_estimate == 41, "a quarter of 164 bytes of messages"
    assert asked.expected == 41 + 16
    assert tokens(ask(door)).expected == 41 + 256, "no limit: what answers are like"
    embedded = door.arrive("POST /functions/f/v1/embeddings", body=b'{"model":"lora","input":"%b"}' % (b"x" * 38))
    assert tokens(embedded).expected == tokens(embedded).prompt_estimate == 10, "no answer is written"
    assert tokens(embedded).model == "lora"
    assert seen(door).arrived == 57 + 297 + 10


def test_what_answers_report_corrects_the_estimates_over_route_tables_too() -> None:
    door = open_door()
    for number in range(2, 102):
        door.core.apply(table(number, ONE, TWO, protocol="openai", models=("m",)))
        usage = {"prompt_tokens": 84, "completion_tokens": 30}
        ask(door).gets_answer(door.now, 200, JSON, "tidegate-credit: keep", body=json.dumps({"usage": usage}).encode())
    found = tokens(ask(door))
    assert found.prompt_estimate == pytest.approx(84, rel=0.1)
    assert found.expected - found.prompt_estimate == pytest.approx(30, rel=0.2)


@pytest.mark.parametrize(
    ("fields", "body", "complete", "estimate"),
    [
        (("content-type: application/json",), b'{"messages":[', False, 25_000),
        (("content-type: application/json",), b'{"messages":[{"content":"%b' % (b"word " * 2000), False, 25_000),
        (("content-type: application/json",), b'{"messages":[{"content":"%b' % (b"iVBORw0K" * 2000), False, 3072),
        (("content-type: application/json",), b'{"messages":[{"content":"%b' % (rb"iVBO\/w0K" * 2000), False, 3072),
        (
            ("content-type: application/json",),
            b'{"messages":[{"content":"%b"},{"url":"%b' % (b"word " * 2400, b"iVBORw0K" * 2000),
            False,
            4033,
        ),
        (("content-type: application/json",), b"not json", True, 25_000),
        ((), b'{"prompt": 1', False, 25_000),
        (("content-type: multipart/form-data; boundary=b",), b"--b", False, 1),
        (("content-type: application/json",), b'{"model":5,"prompt":"x"}', True, 25_000),
    ],
)
def test_bodies_that_are_not_there_yet_or_are_none(
    fields: tuple[str, ...], body: bytes, complete: bool, estimate: int
) -> None:
    """The rest of a large body is not waited for: all of it counts, but a picture's bytes are no text."""
    door = open_door(request_buffering=False)
    asked = door.arrive(CHAT, *fields, body=b"x" * 100_000, complete=False)
    asked.body, asked.body_complete = body, complete
    asked.context.tokens = None
    router = asked.context.target.router
    door.chain._tokens.estimate(asked, asked.context, router.tokens, router.route)
    if complete:
        estimate = -(-len(body) // 4)
    assert tokens(asked).prompt_estimate == estimate


def test_a_short_body_that_none_has_read_is_read_once() -> None:
    """Its function was named by the path: what follows finds the place of its prompt and its model there."""
    asked = ask(open_door(), max_tokens=9)
    found = asked.context.asked
    assert (found.model, found.max_tokens) == ("m", 9)
    assert asked.body[found.prompt_start :].startswith(b'[{"role"')
    assert tokens(asked).request.asked is found
    form = open_door().arrive(CHAT, "content-type: text/plain", body=b'{"model":"m"}')
    assert form.context.asked is None


def test_a_length_that_is_only_claimed_is_believed_up_to_a_million_tokens() -> None:
    door = open_door()
    asked = door.arrive(CHAT, "content-type: application/json", body=b"x" * (8 << 20), complete=False)
    asked.body, asked.context.tokens = b'{"messages":[', None
    router = asked.context.target.router
    door.chain._tokens.estimate(asked, asked.context, router.tokens, router.route)
    assert tokens(asked).prompt_estimate == 1 << 20


def test_other_protocols_and_methods_have_none() -> None:
    door = open_door(protocol="http")
    asked = ask(door)
    assert asked.context.tokens is None
    asked.gets_answer(door.now, 200, JSON, body=json.dumps({"usage": USAGE}).encode())
    assert door.demand().tokens is None
    door = open_door()
    assert door.arrive("GET /functions/f/v1/files").context.tokens is None
    call = ask(door)
    call.context.tokens = None
    call.__class__ = Call
    router = call.context.target.router
    door.chain._tokens.estimate(call, call.context, router.tokens, router.route)
    assert call.context.tokens is None


# --- answers --------------------------------------------------------------------------------------------------------


def test_an_answer_that_reports_its_usage() -> None:
    door = open_door()
    asked = ask(door)
    counted = ended(asked)
    asked.gets_answer(door.now + 0.5, 200, JSON, body=json.dumps({"id": "c", "usage": USAGE}).encode())
    assert counted == [(40, 3, 32, False)]
    found = seen(door)
    assert (found.prompt, found.completion, found.cached, found.answers, found.estimated) == (40, 3, 32, 1, 0)
    assert found.groups == (GroupTokens(group="cpu", inferences=1, prompt=40, completion=3),)
    assert found.groups[0].streams == 0
    assert (found.first, found.between) == ((), ()), "no stream"


def test_a_stream_is_timed_from_output_to_output() -> None:
    door = open_door()
    asked = ask(door, stream=True)
    counted = ended(asked)
    begins(asked, door, b": waiting\n\n")
    hears(asked, door, 0.1, event(""))
    hears(asked, door, 0.3, event("first"))
    hears(asked, door, 0.05, event())
    hears(asked, door, 0.06, event() + event())
    hears(asked, door, 0.01, memoryview(b"data: %b\n\ndata: [DONE]\n\n" % json.dumps({"usage": USAGE}).encode()))  # type: ignore[arg-type]  # pieces of a large read come so
    asked.ends(door.now)
    assert counted == [(40, 3, 32, False)], "what is reported counts, not the events"
    found = seen(door)
    assert quantile(found.first, 1.0) == pytest.approx(0.4, rel=1 / 8)
    assert sum(count for _, count in found.between) == 3
    assert quantile(found.between, 0.5) == pytest.approx(0.03, rel=1 / 8), "two that came together share their time"
    assert quantile(found.between, 1.0) == pytest.approx(0.05, rel=1 / 8)
    assert found.groups[0].first_s == pytest.approx(0.4), "it had its slot at once"
    demand = door.demand()
    assert quantile(demand.latency, 1.0) == pytest.approx(0.4, rel=1 / 8), "the SLA's latency is to the first output"
    assert demand.within_sla == 0, "0.2 s, though the head came at once"


def test_a_stream_is_in_time_with_its_first_output_and_the_ones_behind_it() -> None:
    for per_token_s, within in ((0.051, 1), (0.049, 0), (None, 1)):
        door = open_door(latency_s=0.5, per_token_s=per_token_s)
        before = door.demand().within_sla
        asked = ask(door, stream=True)
        begins(asked, door)
        hears(asked, door, 0.4, event())
        hears(asked, door, 0.02, event())
        hears(asked, door, 0.08, event() + b"data: [DONE]\n\n")
        asked.ends(door.now)
        assert door.demand().within_sla - before == within
        (group,) = seen(door).groups
        assert group.between == 2
        assert group.between_s == pytest.approx(0.1)


def test_a_stream_without_usage_is_counted_by_its_events() -> None:
    door = open_door()
    asked = ask(door, stream=True)
    counted, before = ended(asked), tokens(asked).prompt_estimate
    begins(asked, door, event() * 5)
    hears(asked, door, 0.1, event() * 2 + b"data: [DONE]\n\n")
    asked.ends(door.now)
    assert counted == [(before, 7, 0, True)]
    assert seen(door).estimated == 1
    assert tokens(ask(door)).prompt_estimate == before, "an estimate teaches nothing about prompts"


def test_anthropics_stream_tells_the_prompt_at_its_beginning() -> None:
    door = open_door()
    asked = ask(door, "POST /functions/f/v1/messages", stream=True)
    counted = ended(asked)
    begins(asked, door)
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 25, "output_tokens": 1}}}
    hears(asked, door, 0.1, b"event: message_start\ndata: %b\n\n" % json.dumps(start).encode())
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hi"}}
    hears(asked, door, 0.1, b"event: content_block_delta\ndata: %b\n\n" % json.dumps(delta).encode())
    stop = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 15}}
    hears(asked, door, 0.1, b"event: message_delta\ndata: %b\n\n" % json.dumps(stop).encode())
    asked.ends(door.now)
    assert counted == [(25, 15, 0, False)]
    assert any(
        key[:1] == ("gen_ai_server_time_to_first_token_seconds_count",) and "anthropic" in key for key in series(door)
    )


def test_a_stream_that_breaks_off_had_reported_of_its_beginning_only() -> None:
    door = open_door()
    asked = ask(door, "POST /functions/f/v1/messages", stream=True)
    counted = ended(asked)
    begins(asked, door)
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 25, "output_tokens": 1}}}
    hears(asked, door, 0.1, b"event: message_start\ndata: %b\n\n" % json.dumps(start).encode())
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hi"}}
    for _ in range(7):
        hears(asked, door, 0.1, b"event: content_block_delta\ndata: %b\n\n" % json.dumps(delta).encode())
    asked.client_leaves(door.now)
    assert counted == [(25, 7, 0, True)]
    counts = {key[0]: value for key, value in series(door).items()}
    assert counts["gen_ai_server_time_to_first_token_seconds_count"] == 1
    assert counts["gen_ai_server_time_per_output_token_seconds_count"] == 0, "it is not known what it would have been"


def test_answers_that_broke_off_or_report_nothing_tell_nothing_of_the_next() -> None:
    door = open_door()
    broken = ask(door, stream=True)
    begins(broken, door, event() * 2)
    broken.client_leaves(door.now)
    ask(door).gets_answer(door.now, 200, JSON, "tidegate-credit: keep", body=b"{}")
    fresh = tokens(ask(door))
    assert fresh.expected - fresh.prompt_estimate == 256


def test_the_bytes_of_a_form_are_no_text() -> None:
    door = open_door()
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n' + b"\0" * 50_000 + b"\r\n--b--\r\n"
    asked = door.arrive(
        "POST /functions/f/v1/audio/transcriptions", "content-type: multipart/form-data; boundary=b", body=form
    )
    assert tokens(asked).expected == 1


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "APPLICATION/JSON"])
def test_whatever_is_read_as_json_has_a_size(kind: str) -> None:
    """curl states the type of a form for every body by default."""
    body = json.dumps({"model": "m", "prompt": "word " * 800}).encode()
    asked = open_door().arrive(CHAT, f"content-type: {kind}", body=body)
    assert tokens(asked).prompt_estimate == pytest.approx(1000, rel=0.01)


def test_the_type_of_an_answer_may_be_written_in_capitals() -> None:
    door = open_door()
    asked = ask(door)
    counted = ended(asked)
    body = json.dumps({"usage": USAGE}).encode()
    asked.gets_answer(door.now, 200, "Content-Type: Application/JSON", "tidegate-credit: keep", body=body)
    assert counted == [(40, 3, 32, False)]


def test_what_cannot_be_read_is_estimated() -> None:
    door = open_door()
    for fields in (
        (JSON, "content-encoding: gzip"),
        (JSON, "content-encoding: br"),
        ("content-type: text/plain",),
        (JSON,),
    ):
        asked = ask(door)
        counted, before = ended(asked), tokens(asked).prompt_estimate
        asked.gets_answer(door.now, 200, *fields, "tidegate-credit: keep", body=b"{}")
        assert counted == [(before, 0, 0, True)], fields
    assert seen(door).estimated == 4


def test_a_packed_answer_is_read() -> None:
    door = open_door()
    asked = ask(door)
    counted = ended(asked)
    body = gzip.compress(json.dumps({"usage": USAGE}).encode())
    asked.gets_answer(door.now, 200, JSON, "content-encoding: gzip", "tidegate-credit: keep", body=body)
    assert counted == [(40, 3, 32, False)]


def test_calls_that_are_not_known_count_only_what_they_report() -> None:
    door = open_door()
    for body, expected in ((b"{}", (0, 0, 0, True)), (json.dumps({"usage": USAGE}).encode(), (40, 3, 32, False))):
        asked = ask(door, "POST /functions/f/tokenize")
        counted = ended(asked)
        asked.gets_answer(door.now, 200, JSON, "tidegate-credit: keep", body=body)
        assert counted == [expected]
    assert seen(door).answers == 1


# --- ends -----------------------------------------------------------------------------------------------------------


def test_every_end_is_reported_once() -> None:
    door = open_door()
    nothing = (0, 0, 0, True)

    asked = ask(door)
    counted, estimate = ended(asked), tokens(asked).prompt_estimate
    asked.client_leaves(door.now)
    assert counted == [(estimate, 0, 0, True)], "a replica was at it"

    asked = ask(door, stream=True)
    counted = ended(asked)
    begins(asked, door, event() * 4)
    asked.client_leaves(door.now + 1.0)
    assert counted == [(estimate, 4, 0, True)], "what was written until then"

    asked = ask(door, stream=True)
    counted = ended(asked)
    begins(asked, door, event() * 2)
    asked.ends(door.now, truncated=True)
    assert counted == [(estimate, 2, 0, True)]

    for status in (400, 429, 500, 503):
        asked = ask(door)
        counted = ended(asked)
        asked.gets_answer(door.now, status, JSON, "tidegate-credit: keep", body=json.dumps({"usage": USAGE}).encode())
        assert counted == [nothing], "a failure takes nothing"

    asked = ask(door)
    counted = ended(asked)
    asked.expires(door.now + 11.0)
    assert counted == [(estimate, 0, 0, True)], "it ran until its deadline"

    asked = ask(door)
    counted = ended(asked)
    asked.gets_answer(door.now, 503, "tidegate-outcome: not-started")
    assert counted == [], "it is tried again"
    asked.gets_answer(door.now, 200, JSON, "tidegate-credit: keep", body=json.dumps({"usage": USAGE}).encode())
    assert counted == [(40, 3, 32, False)]


def test_a_client_that_leaves_behind_the_last_event_has_had_its_answer() -> None:
    door = open_door()
    before = door.demand()
    asked = ask(door, stream=True)
    counted = ended(asked)
    begins(asked, door, event() * 3)
    hears(asked, door, 0.1, b"data: %b\n\ndata: [DONE]\n\n" % json.dumps({"usage": USAGE}).encode())
    asked.client_leaves(door.now)
    assert counted == [(40, 3, 32, False)]
    demand = door.demand()
    assert (demand.answered - before.answered, demand.cancelled - before.cancelled) == (1, 0)
    assert demand.within_sla - before.within_sla == 1
    assert series(door)["gen_ai_server_time_per_output_token_seconds_count", "chat", "openai", "m"] == 1
    assert ask(door).log != [], "its slot is settled as that of any client that has gone"


def test_those_that_wait_and_get_no_replica_take_nothing() -> None:
    door = Door(table(1, ONE, protocol="openai", queue_requests=2))
    waiting = [ask(door), ask(door)]
    counted = [ended(each) for each in waiting]
    assert ask(door).log == ["answer 429"], "the room is full"
    waiting[0].client_leaves(door.now)
    waiting[1].expires(door.now + 11.0)
    assert counted == [[(0, 0, 0, True)]] * 2
    found = seen(door)
    assert (found.prompt, found.completion, found.groups) == (0, 0, ())
    assert found.arrived == 3 * (41 + 256), "lambda counts all that arrived"


def test_of_two_copies_the_one_that_answers_has_the_tokens() -> None:
    door = open_door(idempotent=True, hedging=Hedging(percentile=None, after_s=0.05))
    asked = ask(door, stream=True)
    counted = ended(asked)
    door.now += 0.05
    door.core.on_hedges_due()
    twin = asked.twin
    twin.gets_answer(door.now, 200, SSE, "tidegate-credit: keep", length=None, ends=False)
    assert asked.status == 499
    assert counted == [], "the other one's end is not the end"
    hears(twin, door, 0.01, event() + b"data: %b\n\n" % json.dumps({"usage": USAGE}).encode())
    twin.ends(door.now)
    assert counted == [(40, 3, 32, False)]
    assert seen(door).answers == 1


# --- metrics --------------------------------------------------------------------------------------------------------


def test_a_scrape_has_our_names_and_the_conventions() -> None:
    door = open_door()
    asked = ask(door, stream=True)
    door.now += 0.1
    begins(asked, door)
    hears(asked, door, 0.1, event())
    for _ in range(9):
        hears(asked, door, 0.03, event())
    hears(asked, door, 0.0, b"data: %b\n\n" % json.dumps({"usage": {**USAGE, "completion_tokens": 10}}).encode())
    asked.ends(door.now)
    ask(door, model="unheard-of").gets_answer(door.now, 404, JSON)
    found = series(door)
    assert found["tidegate_gateway_prompt_tokens_total", "cpu"] == 40
    assert found["tidegate_gateway_completion_tokens_total", "cpu"] == 10
    assert found["tidegate_gateway_cached_prompt_tokens_total",] == 32
    assert found["tidegate_gateway_first_token_seconds_count",] == 1
    assert found["tidegate_gateway_first_token_seconds_sum",] == pytest.approx(0.2, abs=1e-5)
    assert found["tidegate_gateway_between_tokens_seconds_count",] == 9
    labels = ("chat", "openai", "m")
    assert found["gen_ai_server_time_to_first_token_seconds_sum", *labels] == pytest.approx(0.2, abs=1e-5)
    assert found["gen_ai_server_time_per_output_token_seconds_sum", *labels] == pytest.approx(0.03, abs=1e-5)
    assert found["gen_ai_server_request_duration_seconds_sum", "", *labels] == pytest.approx(0.47, abs=1e-5)
    assert found["gen_ai_client_operation_duration_seconds_count", "", *labels] == 1
    assert found["gen_ai_client_token_usage_sum", *labels, "input"] == 40
    assert found["gen_ai_client_token_usage_sum", *labels, "output"] == 10
    assert found["gen_ai_server_request_duration_seconds_count", "rejected", "chat", "openai", "_OTHER"] == 1


def test_what_clients_call_their_models_makes_no_series() -> None:
    door = open_door()
    for number in range(50):
        ask(door, f"POST /functions/f/v1/{number}/chat/completions", model=f"m{number}").gets_answer(
            door.now, 200, JSON, "tidegate-credit: keep", body=json.dumps({"usage": USAGE}).encode()
        )
    counted = door.report.revision("f", "f-00001").tokens
    assert counted is not None
    assert list(counted.gen_ai) == [(Operation.CHAT, "_OTHER")]


@pytest.mark.parametrize(
    ("path", "call"),
    [
        (b"/v1/chat/completions", Operation.CHAT),
        (b"/openai/v1/chat/completions", Operation.CHAT),
        (b"/v1/completions", Operation.TEXT_COMPLETION),
        (b"/v1/responses", Operation.CHAT),
        (b"/v1/messages", Operation.MESSAGES),
        (b"/v1/messages/count_tokens", Operation.OTHER),
        (b"/v1/embeddings", Operation.EMBEDDINGS),
        (b"/rerank", Operation.RERANK),
        (b"/v1/audio/speech", Operation.OTHER),
        (b"/", Operation.OTHER),
    ],
)
def test_calls(path: bytes, call: Operation) -> None:
    assert Operation.of(path) is call
