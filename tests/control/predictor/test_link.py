"""The predictor's process and its link: real processes."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.control.predictor.test_service import OF, seen
from tidegate.clock import ManualClock
from tidegate.control.predictor.link import PredictorAway, PredictorDown, PredictorProcess
from tidegate.control.predictor.messages import Turn
from tidegate.deploy.environment import inherited

pytestmark = pytest.mark.live

QUESTION = Turn(questions=(OF,))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


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


def test_one_that_hangs_is_killed_and_named(tmp_path: Path) -> None:
    async def run() -> None:
        link = PredictorProcess(tmp_path / "samples.jsonl", inherited(os.environ), ManualClock(1.0).now, answer_s=0.3)
        await link.ask(QUESTION)
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
