"""Calls over HTTP/1.1 against scripted servers in memory, on virtual time: everything that happens has a name."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.models.load_servers import Script, ServedLoop, fixed
from tidegate.loadgen.clients.call import Call, Request
from tidegate.loadgen.clients.http_calls import HttpCalls
from tidegate.loadgen.clients.outcomes import RequestOutcome, outcome_of
from tidegate.loadgen.clients.runs import LoadRun
from tidegate.loadgen.reports.record import About, report_of
from tidegate.loadgen.reports.tally import Tally
from tidegate.loadgen.reports.text import facts, rows
from tidegate.wire.http1.fields import Rejected
from tidegate.wire.http1.response_cache import ResponseHeads
from tidegate.wire.http1.response_head import ResponseHead

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


def event(content: str) -> bytes:
    return chunk(b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % content.encode())


def called(
    script: Callable[[], Script], times: tuple[float, ...] = (0.0,), *, refused: int = 0, **options: object
) -> tuple[list[Call], ServedLoop]:
    """Sends a request at each of ``times``; the calls in the order of their ends."""
    ended: list[Call] = []
    loop = ServedLoop(script, refused)

    async def drive() -> None:
        given = {"most": 100, "timeout_s": 5.0, "clock": loop.time} | options
        client = HttpCalls("localhost", 80, "/infer?x=1", fields=[("x-own", "1")], **given)  # type: ignore[arg-type]
        run = LoadRun(client, ended.append)
        await run.open_loop((at_s, Request(b"{}", 4)) for at_s in times)
        await client.close()
        await asyncio.sleep(0.1)
        assert all(each.is_closed for each in loop.connections)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(drive())
    return ended, loop


def test_a_request_says_what_it_is_reported_to_say() -> None:
    _, loop = called(fixed((0.0, OK)), batch_field="x-batch", authority="f.localhost")
    (written,) = loop.connections[0].written
    head, _, body = written.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /infer?x=1 HTTP/1.1",
        b"host: f.localhost",
        b"x-own: 1",
        b"x-batch: 4",
        b"content-length: 2",
    ]
    assert body == b"{}"


def test_a_get_without_a_body_tells_no_length() -> None:
    _, loop = called(fixed((0.0, OK)), method="GET")
    assert b"content-length: 2" in loop.connections[0].written[0]
    client = HttpCalls("::1", 80, "/", method="GET", most=1, timeout_s=1.0, clock=lambda: 0.0)
    assert client.bytes_of(Call(Request(b""), 0.0)) == b"GET / HTTP/1.1\r\nhost: [::1]:80\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        ((0.0, OK),),
        ((0.0, OK[:10]), (0.1, OK[10:-1]), (0.2, OK[-1:])),
        ((0.0, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"), (0.1, chunk(b"ok")), (0.2, b"0\r\n\r\n")),
        ((0.0, b"HTTP/1.1 100 Continue\r\n\r\n" + OK),),
    ],
    ids=["at once", "in pieces", "chunked", "behind an interim answer"],
)
def test_whole_answers_keep_the_connection(pieces: tuple[tuple[float, bytes], ...]) -> None:
    calls, loop = called(fixed(*pieces), (0.0, 1.0, 2.0))
    assert [(call.code, call.is_good, call.error) for call in calls] == [("200", True, None)] * 3
    assert len(loop.connections) == 1
    assert calls[2].ended - calls[2].due == pytest.approx(pieces[-1][0])


def test_calls_at_once_have_a_connection_each() -> None:
    calls, loop = called(fixed((0.5, OK)), (0.0, 0.1, 0.2, 1.0))
    assert len(calls) == 4
    assert len(loop.connections) == 3


def test_an_answer_that_ends_the_connection_is_whole_and_the_next_call_has_another() -> None:
    ended = (0.0, b"HTTP/1.1 200 OK\r\n\r\nall"), (0.1, None)
    calls, loop = called(fixed(*ended), (0.0, 1.0))
    assert [call.is_good for call in calls] == [True, True]
    assert len(loop.connections) == 2


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        (((0.0, OK[:-1]), (0.1, None)), "broken"),
        (((0.0, None),), "broken"),
        (((0.0, b"SSH-2.0-x\r\n\r\n"),), "malformed"),
        ((), "timeout"),
        (((0.0, EVENTS + event("a")),), "timeout"),
    ],
    ids=["half an answer", "no answer", "another protocol", "silence", "a stream without an end"],
)
def test_no_answer_has_a_kind(pieces: tuple[tuple[float, bytes | None], ...], error: str) -> None:
    calls, loop = called(fixed(*pieces), (0.0, 10.0), takes_streams=True)
    assert [(call.code, call.is_good, call.error) for call in calls] == [(None, False, error)] * 2
    assert len(loop.connections) == 2, "nothing of the first one is used again"


def test_a_refused_connection_is_reported_and_the_next_call_tries_again() -> None:
    calls, _ = called(fixed((0.0, OK)), (0.0, 1.0), refused=1)
    assert [call.error for call in calls] == ["connect", None]


@pytest.mark.parametrize(
    "body", [b'{"error": {"code": "queue_full", "message": "x"}}', b'{"error": "x", "code": "queue_full"}']
)
def test_a_failure_is_named_by_its_body(body: bytes) -> None:
    answer = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    calls, loop = called(fixed((0.0, answer)), (0.0, 1.0))
    assert [(call.code, call.error) for call in calls] == [("429", "queue_full")] * 2
    assert len(loop.connections) == 1


def test_a_stream_has_the_times_of_its_outputs() -> None:
    usage = chunk(b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":7}}\n\n')
    done = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    pieces = ((0.1, EVENTS), (0.2, event("a")), (0.5, event("b")), (0.6, usage), (0.7, done))
    (call,), _ = called(fixed(*pieces), takes_streams=True)
    assert call.is_good
    assert call.first == pytest.approx(0.2)
    assert call.gaps == pytest.approx([0.3])
    assert call.tokens == 7


@pytest.mark.parametrize(
    ("head", "takes_streams", "judged"),
    [
        (EVENTS, True, 0.2),
        (EVENTS, False, 0.1),
        (EVENTS.replace(b"event-stream", b"plain"), True, 0.7),
    ],
    ids=["its first output", "its head, where outputs are not read", "its end, if it is no event stream"],
)
def test_a_stream_counts_as_the_gateway_counts_it(head: bytes, takes_streams: bool, judged: float) -> None:
    pieces = ((0.1, head), (0.2, event("a")), (0.7, chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"))
    (call,), _ = called(fixed(*pieces), takes_streams=takes_streams)
    assert call.is_good
    assert (call.judged, call.ended) == pytest.approx((judged, 0.7))


def test_a_stream_of_a_known_length_has_outputs_and_counts_until_its_end() -> None:
    body = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
    (call,), _ = called(fixed((0.1, head + body[:-5]), (0.4, body[-5:])), takes_streams=True)
    assert call.is_good
    assert (call.first, call.judged) == pytest.approx((0.1, 0.4))


def test_a_stream_that_ends_early_is_no_success() -> None:
    (call,), _ = called(fixed((0.1, EVENTS + event("a") + b"0\r\n\r\n")), takes_streams=True)
    assert (call.code, call.is_good, call.error) == ("200", False, "broken")


def test_the_thesis_latency_table_of_a_server_that_is_shown_how_long_to_take() -> None:
    """F52: a hundred answers after 10, 20, ... 1000 ms, a request every two seconds."""
    took_s = iter([0.01 * number for number in range(1, 101)])
    calls, _ = called(lambda: lambda written: [(next(took_s), OK)], tuple(2.0 * number for number in range(100)))
    tally = Tally()
    for call in calls:
        tally.add(call, 0.0)
    about = About(
        target="", mode="", protocol="http", seed=1, is_partial=False, began="", sent=100, wall_s=199.0, cpu_s=1.0,
    )  # fmt: skip
    report = report_of(tally, about)
    table = dict(rows(report.latency)) if report.latency is not None else {}
    assert list(table) == ["fastest", "10 %", "25 %", "50 %", "75 %", "90 %", "95 %", "99 %", "slowest", "mean"]
    assert report.latency is not None
    for percent, value in report.latency.percentiles_s.items():
        assert value == pytest.approx(int(percent) / 100, rel=0.01)
    assert (report.latency.fastest_s, report.latency.slowest_s) == pytest.approx((0.01, 1.0), abs=0.002)
    assert report.latency.mean_s == pytest.approx(0.505, abs=0.002)
    assert report.rate_per_s == pytest.approx(100 / 199.0, rel=0.001)
    assert dict(facts(report))["total"] == "199 s"


def test_the_times_of_a_call_are_those_of_its_socket_without_the_clients_own_work() -> None:
    """Connecting takes 20 s, formatting a request 3 s, the answer 1 s, and reading what it says 5 s."""
    own_s = 0.0

    def works(seconds: float) -> None:
        nonlocal own_s
        own_s += seconds

    class SlowToConnect(ServedLoop):
        async def create_connection(self, *arguments: Any, **options: Any) -> Any:
            works(20.0)
            return await super().create_connection(*arguments, **options)

    class SlowHeads(ResponseHeads):
        def parse(self, data: bytes) -> ResponseHead | Rejected | None:
            works(5.0)
            return super().parse(data)

    class SlowCalls(HttpCalls):
        def bytes_of(self, call: Call) -> bytes:
            works(3.0)
            return super().bytes_of(call)

    loop = SlowToConnect(fixed((1.0, OK)))
    calls: list[Call] = []
    outcomes: list[RequestOutcome] = []

    async def drive() -> None:
        client = SlowCalls("localhost", 80, "/", most=1, timeout_s=90.0, clock=lambda: loop.time() + own_s)
        client.heads = SlowHeads()
        run = LoadRun(client, calls.append)
        await run.open_loop([(0.0, Request(b"{}"))])
        outcomes.extend(outcome_of(call, run.began) for call in calls)
        await client.close()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(drive())
    (outcome,) = outcomes
    assert outcome.served_s == pytest.approx(1.0)
    assert outcome.latency_s == pytest.approx(24.0), "from the due time: with the connection and the request's bytes"
    assert outcome.lag_s == 0.0
