"""The predictor's process and its link: real processes."""

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from tests.control.predictor.test_service import OF, seen
from tidegate.autoscaler.oltunes.prediction.predictor import RECENT, THETA, SampleVerdict
from tidegate.clock import ManualClock
from tidegate.control.predictor.link import PredictorAway, PredictorDown, PredictorProcess
from tidegate.control.predictor.messages import Question, Turn, TurnAnswer
from tidegate.deploy.environment import inherited

pytestmark = pytest.mark.live

QUESTION = Turn(questions=(OF,))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def runs(link: PredictorProcess) -> bool:
    return link.pid is not None


def test_a_killed_predictor_is_started_again_after_a_pause_and_knows_its_samples(tmp_path: Path) -> None:
    async def run() -> None:
        clock = ManualClock(100.0)
        link = PredictorProcess(tmp_path / "samples.jsonl", inherited(os.environ), clock.now)
        for _ in range(40):
            await link.ask(Turn(seen=(seen(0.02),)))
        (before,) = (await link.ask(QUESTION)).predictions
        assert before is not None
        first = link.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        with pytest.raises(PredictorDown, match=r"(it has ended|Connection.*Error.*); it is started again after 1 s"):
            await link.ask(QUESTION)
        with pytest.raises(PredictorAway, match="it is started again after 1 s"):
            await link.ask(QUESTION)
        clock.advance(1.5)
        (after,) = (await link.ask(QUESTION)).predictions
        assert after is not None
        assert after.one_s == pytest.approx(before.one_s, rel=0.1)
        second = link.pid
        assert second is not None
        assert second != first
        assert os.getpriority(os.PRIO_PROCESS, second) == os.getpriority(os.PRIO_PROCESS, 0) + 10
        await link.close()
        assert not is_alive(second)

    asyncio.run(run())


def test_it_starts_with_the_first_sample(tmp_path: Path) -> None:
    async def run() -> None:
        link = PredictorProcess(tmp_path / "samples.jsonl", inherited(os.environ), ManualClock(1.0).now)
        assert (await link.ask(QUESTION)).predictions == (None,)
        assert not runs(link)
        await link.ask(Turn(seen=(seen(0.02),)))
        assert runs(link)
        await link.close()
        again = PredictorProcess(tmp_path / "samples.jsonl", inherited(os.environ), ManualClock(1.0).now)
        await again.ask(QUESTION)
        assert runs(again), "there are samples of before"
        await again.close()

    asyncio.run(run())


def test_one_that_hangs_is_killed_and_named(tmp_path: Path) -> None:
    async def run() -> None:
        link = PredictorProcess(tmp_path / "samples.jsonl", inherited(os.environ), ManualClock(1.0).now, answer_s=0.3)
        await link.ask(Turn(seen=(seen(0.02),)))
        pid = link.pid
        assert pid is not None
        with pytest.raises(UnicodeEncodeError):
            await link.ask(Turn(graphs={"m": "/\udcff.onnx"}))
        assert link.pid == pid, "a message that cannot be written costs no process"
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(PredictorDown, match="it did not answer in time; it is started again after 1 s"):
            await link.ask(QUESTION)
        assert not is_alive(pid)
        await link.close()

    asyncio.run(run())


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_drift_of_a_served_model_is_named_and_learnt_within_the_samples_of_a_retraining(
    tmp_path: Path, factor: float
) -> None:
    noise = random.Random(1)
    steady = Question(model="n", device=OF.device, share_pct=OF.share_pct)

    def turn(one_s: float) -> Turn:
        pairs = ((one_s, OF), (0.05, steady))
        samples = tuple(seen(time_s * noise.uniform(0.95, 1.05), of) for time_s, of in pairs)
        return Turn(seen=samples, questions=(OF, steady))

    async def run() -> None:
        link = PredictorProcess(tmp_path / "samples.jsonl", inherited(os.environ), ManualClock(1.0).now)
        before = await link.ask(turn(0.02))
        for _ in range(200):
            before = await link.ask(turn(0.02))
        assert _relative(before, 0.02) <= THETA
        first = await link.ask(turn(0.02 * factor))
        assert first.verdicts == {SampleVerdict.DRIFT: 1, SampleVerdict.LEARNT: 1}
        # Every turn brings a sample of each model, so that as many of the latest ones show the drift.
        answers = [first] + [await link.ask(turn(0.02 * factor)) for _ in range(RECENT // 2 - 1)]
        later = [await link.ask(turn(0.02 * factor)) for _ in range(RECENT)]
        errors = [_relative(each, 0.02 * factor) for each in answers + later]
        within = next(count for count, error in enumerate(errors, 1) if error <= THETA)
        others = max(_relative(each, 0.05, 1) for each in answers + later)
        print(f"x {factor:g}: within {THETA:g} after {within} samples; the other model is off by {others:.2f} at most")  # noqa: T201
        await link.close()
        assert max(errors[RECENT // 2 - 1 :]) <= THETA
        assert others <= THETA

    asyncio.run(run())


def _relative(answer: TurnAnswer, true_s: float, of: int = 0) -> float:
    found = answer.predictions[of]
    assert found is not None
    return abs(found.one_s / true_s - 1.0)
