"""The process that converts large bodies of pipelines: starts, ends, deaths, and what a gateway does meanwhile."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.gateway.pipelines.bodies import OpenedBody, StageBody, UnfitAnswerError, opened, tensors
from tidegate.gateway.pipelines.conversions import ConversionLostError
from tidegate.gateway.process.converter import Converter

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]

BODY = StageBody(b'{"inputs": [%b], "outputs": []}' % b",".join([b"1"] * 100_000))


class Calls:
    """A converter and what it has answered."""

    def __init__(self, **settings: Any) -> None:
        self.tasks = TaskOwner("test")
        self.converter = Converter(self.tasks, **settings)

    async def result(self, function: Any, *arguments: Any) -> Any:
        found = asyncio.get_running_loop().create_future()
        self.converter.run(function, arguments, found.set_result)
        return await found

    @property
    def pid(self) -> int | None:
        process = self.converter._process
        return None if process is None else process.pid


def test_it_gives_results_and_errors_in_order_and_ends_with_its_owner() -> None:
    async def run() -> int:
        calls = Calls()
        found = await asyncio.gather(
            calls.result(opened, BODY, True), calls.result(tensors, StageBody(b"{")), calls.result(opened, BODY, False)
        )
        assert isinstance(found[0], OpenedBody) and found[0].asked == {"outputs": []}
        assert isinstance(found[1], UnfitAnswerError) and "not JSON" in str(found[1])
        assert found[2].first == BODY
        pid = calls.pid
        assert pid is not None
        await calls.tasks.close()
        return pid

    pid = asyncio.run(run())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_that_is_killed_costs_no_request() -> None:
    async def run() -> None:
        calls = Calls()
        await calls.result(opened, BODY, True)
        first = calls.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(calls.result(opened, BODY, True))
            await asyncio.sleep(0)
            os.kill(first, signal.SIGKILL)
        assert waiting.result().asked == {"outputs": []}
        assert calls.pid not in (None, first)
        await calls.tasks.close()

    asyncio.run(run())


def test_a_process_that_hangs_is_replaced() -> None:
    async def run() -> None:
        calls = Calls(most_s=2.0)
        await calls.result(opened, BODY, True)
        first = calls.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        assert (await calls.result(opened, BODY, True)).asked == {"outputs": []}
        assert calls.pid not in (None, first)
        await calls.tasks.close()

    asyncio.run(run())


def test_what_nothing_waits_for_is_neither_kept_nor_converted() -> None:
    """Clients that leave, while one conversion hangs, do not fill memory."""

    async def run() -> None:
        calls = Calls()
        await calls.result(opened, BODY, True)
        first = calls.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        gone: list[Any] = []
        for _ in range(20):
            calls.converter.run(opened, (BODY, True), gone.append, lambda: False)
        assert len(calls.converter._waiting) == 1, "until it is taken up, or the next one comes"
        os.kill(first, signal.SIGCONT)
        assert isinstance(await calls.result(opened, BODY, False), OpenedBody)
        assert not gone
        await calls.tasks.close()

    asyncio.run(run())


def test_it_ends_after_a_while_without_work_and_starts_again() -> None:
    async def run() -> None:
        calls = Calls(idle_s=0.05)
        for _ in range(2):
            await calls.result(opened, BODY, True)
            runner = calls.converter._runner
            assert runner is not None and calls.pid is not None
            await runner
            assert calls.pid is None
        await calls.tasks.close()

    asyncio.run(run())


@pytest.mark.parametrize("command", [("/absent/program",), (sys.executable, "-c", "raise SystemExit(3)")])
def test_one_that_does_not_come_up_is_an_error_of_the_request(command: tuple[str, ...]) -> None:
    async def run() -> Any:
        calls = Calls(command=command)
        found = await calls.result(opened, BODY, True)
        await calls.tasks.close()
        return found

    found = asyncio.run(run())
    assert isinstance(found, ConversionLostError), found
    assert "the process that converts large bodies" in str(found)


def test_it_ends_when_its_worker_is_killed(tmp_path: Path) -> None:
    """The socket that is its standard input closes."""
    script = tmp_path / "worker.py"
    script.write_text(
        "import asyncio\n"
        "from tests.live.test_converter import BODY, Calls, opened\n"
        "async def run():\n"
        "    calls = Calls()\n"
        "    await calls.result(opened, BODY, True)\n"
        "    print(calls.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(run())\n"
    )

    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(Path.cwd())}) as worker:
        assert worker.stdout is not None
        pid = int(worker.stdout.readline())
        worker.kill()
    of = Path(f"/proc/{pid}/cmdline")
    while of.exists() and of.read_bytes():
        time.sleep(0.02)  # at most for the test's limit of time
