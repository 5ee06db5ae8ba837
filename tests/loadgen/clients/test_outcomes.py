"""What is kept of each request of a run, against scripted servers in memory, on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.support.models.load_servers import Piece, ServedLoop, fixed
from tidegate.loadgen.clients.call import Request
from tidegate.loadgen.clients.outcomes import RequestOutcome, posts
from tidegate.loadgen.clients.runs import LoadRun
from tidegate.loadgen.clients.workers import callers

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
FULL = b'HTTP/1.1 429 Too Many Requests\r\ncontent-length: 33\r\n\r\n{"error": {"code": "queue_full"}}'


def driven(drive: Callable[[LoadRun], Awaitable[None]], *pieces: Piece) -> tuple[list[RequestOutcome], ServedLoop]:
    outcomes: list[RequestOutcome] = []
    loop = ServedLoop(fixed(*pieces), 0)

    async def whole() -> None:
        async with posts("localhost:80", "/v2/models/m/infer", outcomes.append, timeout_s=5.0, clock=loop.time) as run:
            await drive(run)
        await asyncio.sleep(0.1)
        assert all(each.is_closed for each in loop.connections)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(whole())
    return outcomes, loop


def test_outcomes_tell_when_requests_were_due_and_what_they_took() -> None:
    shots = [(2.0 * number, Request(b"{}", 3)) for number in range(3)]
    outcomes, loop = driven(lambda run: run.open_loop(shots), (0.25, OK))
    assert [each.at_s for each in outcomes] == pytest.approx([0.0, 2.0, 4.0])
    assert [each.latency_s for each in outcomes] == pytest.approx([0.25] * 3, abs=0.002)
    assert {(each.inferences, each.status, each.error, each.is_good) for each in outcomes} == {(3, 200, None, True)}
    assert loop.connections[0].written[0].startswith(b"POST /v2/models/m/infer HTTP/1.1\r\nhost: localhost:80\r\n")


@pytest.mark.parametrize(
    ("pieces", "status", "error"),
    [([(0.1, FULL)], 429, "queue_full"), ([(0.1, None)], None, "broken"), ([], None, "timeout")],
)
def test_a_failure_has_its_kind(pieces: list[Piece], status: int | None, error: str) -> None:
    (outcome,), _ = driven(lambda run: run.open_loop([(0.0, Request(b"{}"))]), *pieces)
    assert (outcome.status, outcome.error, outcome.is_good) == (status, error, False)


def test_callers_can_be_kept_from_sending_too_often() -> None:
    """Three callers, one request every 3 s each, their beginnings a second apart."""
    outcomes, _ = driven(lambda run: run.closed_loop(callers(3, 6.5, every_s=3.0), lambda: Request(b"{}")), (0.2, OK))
    assert [each.at_s for each in outcomes] == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0], abs=0.01)


def test_a_slow_answer_puts_the_callers_next_request_off() -> None:
    outcomes, _ = driven(lambda run: run.closed_loop(callers(1, 3.5, every_s=1.0), lambda: Request(b"{}")), (1.5, OK))
    assert [each.at_s for each in outcomes] == pytest.approx([0.0, 1.5, 3.0], abs=0.01)
