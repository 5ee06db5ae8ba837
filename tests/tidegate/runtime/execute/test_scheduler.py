"""The driver of the batcher, on virtual time with an engine that takes as long as a test says."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.support.worlds.virtual_loop import run_virtual
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.runtime.errors import ModelError, RequestError
from tidegate.runtime.execute.engine import Execution, NotBatchable
from tidegate.runtime.execute.model import Inputs
from tidegate.runtime.execute.scheduler import Scheduler
from tidegate.runtime.metrics import RuntimeCounters
from tidegate.runtime.protocols.tensors import Tensor


class FakeEngine:
    """Doubles one number per row, after ``base_s + per_row_s * rows``; bad numbers make a batch fail."""

    def __init__(self, base_s: float = 0.010, per_row_s: float = 0.0, runners: int = 1, interrupts: bool = False):
        self.runners = runners
        self.can_interrupt = interrupts
        self.base_s, self.per_row_s = base_s, per_row_s
        self.runs: list[tuple[float, list[int]]] = []
        self.fail: Callable[[list[int]], BaseException | None] = lambda values: None
        self.interrupted = 0

    async def execute(self, requests: list[Inputs], arrived: float) -> Execution:
        values = [int(value) for inputs in requests for value in bytes(inputs[0].data)]  # type: ignore[arg-type]  # not BYTES
        self.runs.append((round(asyncio.get_running_loop().time(), 6), values))
        try:
            await asyncio.sleep(self.base_s + self.per_row_s * len(values))
        except asyncio.CancelledError:
            self.interrupted += 1
            raise
        if (error := self.fail(values)) is not None:
            raise error
        outputs = []
        for inputs in requests:
            raw = bytes(2 * value for value in bytes(inputs[0].data))  # type: ignore[arg-type]  # not BYTES
            outputs.append({"y": Tensor("y", "UINT8", inputs[0].shape, raw)})
        return Execution(outputs, 0.001, self.base_s, 0.002)


def one(*values: int, name: str = "x", width: tuple[int, ...] = ()) -> Inputs:
    return [Tensor(name, "UINT8", (len(values), *width), bytes(values))]


Story = Callable[[Scheduler, FakeEngine, RuntimeCounters], Awaitable[None]]


def play(
    story: Story, engine: FakeEngine | None = None, *, max_batch: int = 8, delay_s: float = 0.0, reports: int = 0
) -> tuple[FakeEngine, RuntimeCounters]:
    """Runs a story and then checks that nothing is left over and how many tasks reported an error."""
    engine = engine or FakeEngine()
    counters = RuntimeCounters()
    reported: list[BaseException] = []

    async def main() -> None:
        owner = TaskOwner("test", lambda name, error: reported.append(error))
        scheduler = Scheduler(engine, owner, counters, max_batch=max_batch, delay_s=delay_s)
        await story(scheduler, engine, counters)
        await asyncio.sleep(1)
        assert scheduler.waiting == 0
        assert len(owner) == 0
        assert repr(scheduler) == f"<Scheduler <Batcher 0/{engine.runners} running, 0 waiting, max {max_batch} rows>>"

    run_virtual(main())
    assert len(reported) == reports
    return engine, counters


async def ask(scheduler: Scheduler, *values: int) -> list[int]:
    return list(bytes((await scheduler.infer(one(*values)))["y"].data))  # type: ignore[arg-type]  # not BYTES


def test_requests_that_come_during_a_run_share_the_next_and_get_their_own_rows() -> None:
    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        answers = await asyncio.gather(ask(scheduler, 1), ask(scheduler, 2, 3), ask(scheduler, 4))
        assert list(answers) == [[2], [4, 6], [8]]

    engine, counters = play(story)
    assert engine.runs == [(0.0, [1]), (0.010, [2, 3, 4])]
    assert (counters.executions, counters.inferences) == (2, 4)
    assert counters.measured == 3
    assert counters.queue_s == pytest.approx(0.020)  # two requests waited 10 ms each
    assert counters.infer_s == pytest.approx(0.030)  # each request saw a run of 10 ms
    assert counters.input_s == pytest.approx(0.003)


def test_eight_callers_in_a_loop_end_up_in_one_batch() -> None:
    async def caller(scheduler: Scheduler, number: int) -> None:
        for _ in range(5):
            await ask(scheduler, number)
            await asyncio.sleep(0.0001 * number)

    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        await asyncio.gather(*(caller(scheduler, number) for number in range(8)))

    engine, _ = play(story, delay_s=0.005)
    assert [len(values) for _, values in engine.runs] == [1, 8, 8, 8, 8, 7]


def test_without_batching_everything_runs_alone() -> None:
    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        await asyncio.gather(*(ask(scheduler, number) for number in range(3)))

    engine, _ = play(story, max_batch=1)
    assert [values for _, values in engine.runs] == [[0], [1], [2]]


def test_other_shapes_and_unequal_rows_are_not_mixed() -> None:
    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        uneven = [*one(5, 6), Tensor("w", "UINT8", (1,), b"\x00")]
        await asyncio.gather(
            ask(scheduler, 1),
            ask(scheduler, 2),
            scheduler.infer(one(3, width=(1,))),
            scheduler.infer([Tensor("x", "INT8", (1,), b"\x04")]),
            scheduler.infer(uneven),
            ask(scheduler, 7),
        )

    engine, _ = play(story)
    assert [values for _, values in engine.runs] == [[1], [2, 7], [3], [4], [5, 6]]


def test_one_bad_request_does_not_fail_the_others() -> None:
    engine = FakeEngine()
    engine.fail = lambda values: ModelError("no threes") if 3 in values else None

    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        answers = await asyncio.gather(*(ask(scheduler, number) for number in range(5)), return_exceptions=True)
        assert [str(answer) for answer in answers] == ["[0]", "[2]", "[4]", "no threes", "[8]"]

    play(story, engine)
    assert [values for _, values in engine.runs] == [[0], [1, 2, 3, 4], [1], [2], [3], [4]]


def test_a_model_that_is_not_batchable_gets_no_more_batches(capsys: pytest.CaptureFixture[str]) -> None:
    engine = FakeEngine()
    engine.fail = lambda values: NotBatchable("one row for all") if len(values) > 1 else None

    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        assert await asyncio.gather(*(ask(scheduler, number) for number in range(3))) == [[0], [2], [4]]
        assert await asyncio.gather(*(ask(scheduler, number) for number in range(3))) == [[0], [2], [4]]

    play(story, engine)
    assert [len(values) for _, values in engine.runs] == [1, 2, 1, 1, 1, 1, 1]
    assert capsys.readouterr().err == "no more batches: one row for all\n"


def test_the_callers_fault_stays_the_callers_fault() -> None:
    engine = FakeEngine()
    engine.fail = lambda values: RequestError("not that", 422)

    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        with pytest.raises(RequestError, match="not that") as caught:
            await ask(scheduler, 1)
        assert caught.value.status == 422

    play(story, engine)


def test_an_error_of_our_own_is_reported_and_does_not_stop_the_work() -> None:
    engine = FakeEngine()
    engine.fail = lambda values: ZeroDivisionError("ours") if 1 in values else None

    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        with pytest.raises(ZeroDivisionError):
            await ask(scheduler, 1)
        assert await ask(scheduler, 2) == [4]

    play(story, engine, reports=1)


def test_a_client_that_goes_away_takes_its_waiting_request_with_it() -> None:
    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ask(scheduler, 1))
            gone = group.create_task(ask(scheduler, 2))
            kept = group.create_task(ask(scheduler, 3))
            await asyncio.sleep(0.001)
            assert scheduler.waiting == 2
            gone.cancel()
            await asyncio.sleep(0)
            assert scheduler.waiting == 1
        assert kept.result() == [6]

    engine, _ = play(story)
    assert [values for _, values in engine.runs] == [[1], [3]]


def test_a_running_request_of_a_gone_client_ends_in_silence() -> None:
    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await ask(scheduler, 1)
        assert await ask(scheduler, 2) == [4]

    engine, _ = play(story)
    assert engine.runs == [(0.0, [1]), (0.010, [2])]
    assert engine.interrupted == 0


def test_an_engine_that_can_be_interrupted_is() -> None:
    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await ask(scheduler, 1)
        assert await ask(scheduler, 2) == [4]

    engine, _ = play(story, FakeEngine(interrupts=True))
    assert engine.runs == [(0.0, [1]), (0.001, [2])]
    assert engine.interrupted == 1


def test_a_run_that_cancels_itself_fails_its_request_and_nothing_else() -> None:
    """A handler's own task may be cancelled by a library; what waits for it must not wait for ever."""
    engine = FakeEngine()
    engine.fail = lambda values: asyncio.CancelledError() if 1 in values else None

    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        with pytest.raises(ModelError, match="the run was cancelled"):
            await ask(scheduler, 1)
        assert await ask(scheduler, 2) == [4]

    play(story, engine)


def test_several_runners_run_at_a_time() -> None:
    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        await asyncio.gather(*(ask(scheduler, number) for number in range(4)))

    engine, _ = play(story, FakeEngine(runners=2), max_batch=1)
    assert engine.runs == [(0.0, [0]), (0.0, [1]), (0.010, [2]), (0.010, [3])]


def test_a_request_that_runs_without_its_client_counts_as_abandoned_until_its_run_ends() -> None:
    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        async with asyncio.TaskGroup() as group:
            running, waiting = (group.create_task(ask(scheduler, value)) for value in (1, 2))
            await asyncio.sleep(0.001)
            assert scheduler.abandoned == 0
            running.cancel()
            waiting.cancel()
            await asyncio.sleep(0.001)
            assert scheduler.abandoned == 1, "the waiting one left its queue"
            await asyncio.sleep(0.010)
            assert scheduler.abandoned == 0

    play(story)


def test_a_request_that_is_cancelled_as_its_run_ends_is_not_abandoned_for_ever() -> None:
    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(ask(scheduler, 1))
            asyncio.get_running_loop().call_later(0.010, asked.cancel)
        await asyncio.sleep(0.1)
        assert scheduler.abandoned == 0

    play(story)


def test_more_runs_at_a_time_start_at_once_and_fewer_let_the_others_end() -> None:
    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        async with asyncio.TaskGroup() as group:
            asks = [group.create_task(ask(scheduler, number)) for number in (1, 2, 3, 4)]
            await asyncio.sleep(0.005)
            assert len(engine.runs) == 1
            scheduler.set_runners(3)
            await asyncio.sleep(0)
            assert len(engine.runs) == 3
            scheduler.set_runners(1)
        assert [each.result() for each in asks] == [[2], [4], [6], [8]]

    engine, _ = play(story, max_batch=1)
    assert [at for at, _ in engine.runs] == [0.0, 0.005, 0.005, 0.015], "the fourth when all others have ended"


def test_batches_change_while_the_model_runs_and_no_request_is_lost() -> None:
    """Eight wait behind the first. Batches of at most 2 from 5 ms on, of 8 again from 25 ms on."""

    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        async with asyncio.TaskGroup() as group:
            asks = [group.create_task(ask(scheduler, number)) for number in range(1, 10)]
            await asyncio.sleep(0.005)
            scheduler.set_batching(2, 0.0)
            assert scheduler.batching == (2, 0.0)
            await asyncio.sleep(0.020)
            scheduler.set_batching(8, 0.0)
        assert [each.result() for each in asks] == [[2 * number] for number in range(1, 10)]

    engine, _ = play(story, max_batch=8)
    assert [len(values) for _, values in engine.runs] == [1, 2, 2, 4]


def test_a_batch_beyond_the_models_own_is_refused() -> None:
    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        for wrong in (0, 9):
            with pytest.raises(RequestError, match="1 to 8"):
                scheduler.set_batching(wrong, 0.0)
        assert scheduler.batching == (8, 0.0)

    play(story, max_batch=8)


def test_a_model_without_batches_takes_one_at_a_time_only() -> None:
    async def story(scheduler: Scheduler, engine: FakeEngine, counters: RuntimeCounters) -> None:
        with pytest.raises(RequestError, match="takes no batches"):
            scheduler.set_batching(2, 0.0)

    play(story, max_batch=1)
