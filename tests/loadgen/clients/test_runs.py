"""When requests leave, on virtual time: what a slow server or a full client does to schedules, and what is reported."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.support.worlds.virtual_loop import run_virtual
from tidegate.loadgen.arrivals.pace import LoadPhase
from tidegate.loadgen.clients.call import Call, Request, WantedSla
from tidegate.loadgen.clients.client import LoadClient
from tidegate.loadgen.clients.runs import FAILED_PAUSE_S, LoadRun
from tidegate.loadgen.clients.workers import Caller, PacedWorker, callers, paced
from tidegate.loadgen.reports.tally import Tally

REQUEST = Request(b"{}")


class Scripted(LoadClient):
    """Answers the n-th call after ``took(n)`` seconds; None: never, a failure at once where it is negative."""

    def __init__(self, took: Callable[[int], float], *, most: int = 1000, timeout_s: float = 1e9) -> None:
        super().__init__(most=most, timeout_s=timeout_s, clock=asyncio.get_running_loop().time)
        self._took = took
        self.sends: list[float] = []

    def _send(self, call: Call) -> None:
        took_s = self._took(len(self.sends))
        self.sends.append(call.sent)
        loop = asyncio.get_running_loop()
        if took_s < 0:
            loop.call_soon(self.finish, call, "connect")
        else:
            loop.call_later(took_s, self._answer, call)

    def _answer(self, call: Call) -> None:
        if call in self.calls:
            call.code, call.is_good = "200", True
            self.finish(call)

    def _give_up(self, call: Call) -> None:
        """Its timer finds it ended."""

    async def _close(self) -> None:
        """Nothing is open."""


def driven(
    took: Callable[[int], float], drive: Callable[[LoadRun], Coroutine[Any, Any, None]], **options: Any
) -> tuple[Scripted, Tally, LoadRun]:
    async def all_of_it() -> tuple[Scripted, Tally, LoadRun]:
        client = Scripted(took, **options)
        tally = Tally(WantedSla(0.5, 98.0))
        run = LoadRun(client, lambda call: tally.add(call, run.began))
        await drive(run)
        left = run.unfinished
        await client.close()
        assert left == run.sent - tally.ended
        return client, tally, run

    return run_virtual(all_of_it())


def every(step_s: float, count: int) -> list[tuple[float, Request]]:
    return [(step_s * number, REQUEST) for number in range(count)]


def test_an_open_loop_sends_when_it_is_due_whatever_the_answers_do() -> None:
    client, tally, _ = driven(lambda number: 30.0, lambda run: run.open_loop(every(0.5, 20)))
    assert client.sends == pytest.approx([0.5 * number for number in range(20)], abs=1e-9)
    assert (tally.good, tally.late) == (20, 0)
    assert tally.latency.largest == pytest.approx(30.0)


def test_a_full_client_shows_in_the_latency_and_as_held_back() -> None:
    """One call at a time, a second each, ten that are due in the first second: the last one waits for the others."""
    _, tally, _ = driven(lambda number: 1.0, lambda run: run.open_loop(every(0.1, 10)), most=1)
    assert tally.good == 10
    assert (tally.late, tally.held) == (0, 9)
    assert tally.latency.largest == pytest.approx(10.0 - 0.9)
    assert tally.service.largest == pytest.approx(1.0)
    assert tally.within == 0


def test_what_is_due_at_once_is_sent_in_bursts_and_all_of_it() -> None:
    client, tally, _ = driven(lambda number: 0.0, lambda run: run.open_loop(every(0.0, 500)))
    assert len(client.sends) == tally.good == 500


@pytest.mark.parametrize("most", [1000, 1])
def test_a_stopped_open_loop_ends_now_and_says_what_was_on_its_way(most: int) -> None:
    async def drive(run: LoadRun) -> None:
        asyncio.get_running_loop().call_later(2.75, run.stop)
        await run.open_loop(every(1.0, 1000))
        assert asyncio.get_running_loop().time() == pytest.approx(2.75)

    client, tally, run = driven(lambda number: 0.1 if number < 2 else 50.0, drive, most=most)
    assert run.is_stopped
    assert (len(client.sends), tally.good) == (3, 2)


def test_callers_send_their_next_request_when_they_have_the_answer() -> None:
    client, tally, _ = driven(
        lambda number: 0.5, lambda run: run.closed_loop([Caller(9.9) for _ in range(3)], lambda: REQUEST)
    )
    assert tally.good == 3 * 20
    assert max(client.sends) == pytest.approx(9.5)


def test_a_closed_loop_keeps_its_number_of_requests_on_their_way() -> None:
    """F24, F41: whatever answers take, it never falls below by more than the one that is just being replaced, and each
    caller has one outstanding request."""
    levels: list[int] = []
    owners: list[int] = []

    async def drive(run: LoadRun) -> None:
        async def watch() -> None:
            for _ in range(1000):
                await asyncio.sleep(0.0096)
                levels.append(run.unfinished)
                owners.append(len({call.owner for call in run.on_their_way}))

        async with asyncio.TaskGroup() as group:
            group.create_task(watch(), name="watch")
            await run.closed_loop(callers(8, 10.0), lambda: REQUEST)

    driven(lambda number: 0.05 + 0.013 * (number % 17), drive)
    assert set(levels) <= {7, 8}
    assert levels.count(8) > 900
    assert owners == levels


def test_a_caller_that_is_refused_pauses_for_longer_each_time_until_it_gets_an_answer() -> None:
    client, tally, _ = driven(
        lambda number: 0.01 if number == 3 else -1.0, lambda run: run.closed_loop([Caller(1.0)], lambda: REQUEST)
    )
    assert tally.errors == {"connect": len(client.sends) - 1}
    pause = FAILED_PAUSE_S
    waits = [after - before for before, after in itertools.pairwise(client.sends)]
    assert waits == pytest.approx([pause, 2 * pause, 4 * pause, 0.01, pause, 2 * pause, 4 * pause], abs=1e-6)


@pytest.mark.parametrize(
    ("code", "asked_s", "paused_s"), [("503", 2.0, 2.0), ("503", 600.0, 5.0), ("429", 2.0, 2.0), ("500", 2.0, 0.0)]
)
def test_a_caller_comes_back_when_the_refusal_asks_for_it(code: str, asked_s: float, paused_s: float) -> None:
    class Refusing(Scripted):
        def _answer(self, call: Call) -> None:
            call.code, call.retry_after_s = code, asked_s
            self.finish(call)

    async def sends() -> list[float]:
        client = Refusing(lambda number: 1.0)
        run = LoadRun(client, lambda call: None)
        await run.closed_loop([Caller(9.0)], lambda: REQUEST)
        await client.close()
        return client.sends

    first, second, *_ = run_virtual(sends())
    assert second - first == pytest.approx(1.0 + paused_s)


def test_a_stopped_closed_loop_ends_now() -> None:
    async def drive(run: LoadRun) -> None:
        asyncio.get_running_loop().call_later(3.0, run.stop)
        await run.closed_loop([PacedWorker(0.0, 100, 1.0), PacedWorker(50.0, 100, 1.0)], lambda: REQUEST)
        assert asyncio.get_running_loop().time() == pytest.approx(3.0)

    _, tally, _ = driven(lambda number: 0.7, drive)
    assert tally.ended == 2


def test_hey_paces_by_a_ticker_of_one_slot() -> None:
    """Thesis, A8: ticks every second; the second answer takes 2.5 s, so the third request leaves at once at 4.5 s, the
    surplus tick is lost, and the fourth waits for the tick at 5 s."""
    client, _, _ = driven(
        lambda number: 2.5 if number == 1 else 0.1,
        lambda run: run.closed_loop([PacedWorker(0.0, 5, 1.0)], lambda: REQUEST),
    )
    assert client.sends == pytest.approx([1.0, 2.0, 4.5, 5.0, 6.0])


def test_phases_have_their_own_workers_from_their_start_on() -> None:
    phases = [LoadPhase(0.0, 10, 4, 1.0), LoadPhase(60.0, 3, 1, 2.0)]
    client, tally, _ = driven(lambda number: 0.0, lambda run: run.closed_loop(paced(phases), lambda: REQUEST))
    assert tally.good == 13
    assert [at_s for at_s in client.sends if at_s > 50.0] == pytest.approx([60.5, 61.0, 61.5])
    assert sum(at_s < 1.5 for at_s in client.sends) == 4


def test_calls_are_given_up_after_their_time() -> None:
    _, tally, _ = driven(lambda number: 9.0 if number else 0.5, lambda run: run.open_loop(every(1.0, 3)), timeout_s=2.0)
    assert (tally.good, tally.errors) == (1, {"timeout": 2})
