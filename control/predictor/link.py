"""The link to the predictor: its process is started, asked, and started again after its end. The first start waits for
a sample or a graph: without one it could answer no question.

A process that ends, or does not answer in time, is killed; the turn that it had is not sent again, since it
may be the reason. The next start follows after a back-off.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from tidegate.control.predictor.messages import MAX_BYTES, Turn, TurnAnswer, packed, unpacked_answer
from tidegate.control.predictor.service import PredictionService, SampleHistory

ANSWER_S: Final = 10.0
"""Longest time of a turn: a second of samples and a graph take milliseconds, a long history half a second."""
FIRST_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 60.0
"""Back-off after a failure, doubled with each one in a row."""


class PredictorDown(Exception):
    """The predictor cannot be asked now; the text says why."""


class PredictorAway(PredictorDown):
    """The predictor has not been sent the turn: its next start follows after a back-off."""


class Predictor(Protocol):
    async def ask(self, turn: Turn) -> TurnAnswer:
        """Returns the answer; raises PredictorDown, or PredictorAway if the turn was not sent. One caller at a
        time."""
        ...

    async def close(self) -> None: ...


class PredictorHere:
    """A predictor within this process: for simulations of a control process."""

    def __init__(self, history: SampleHistory | None = None) -> None:
        """``history``: as for :class:`PredictionService`."""
        self._service = PredictionService(history)

    async def ask(self, turn: Turn) -> TurnAnswer:
        return self._service.take(turn)

    async def close(self) -> None:
        """Does nothing."""


class PredictorProcess:
    """A predictor in a process of its own."""

    def __init__(
        self, history: Path, environment: Mapping[str, str], now: Callable[[], float], answer_s: float = ANSWER_S
    ) -> None:
        """``history``: the file of its samples. ``environment``: all that it gets of the control process's.
        ``answer_s``: the longest time of a turn after the first, which waits for the start as well."""
        self._history = history
        self._environment = dict(environment)
        self._now = now
        self._answer_s = answer_s
        self._process: asyncio.subprocess.Process | None = None
        self._failures = 0
        self._not_before = 0.0
        self._why = ""
        """Why it ended last."""

    @property
    def pid(self) -> int | None:
        """The process's id; None while none runs."""
        return None if self._process is None else self._process.pid

    async def ask(self, turn: Turn) -> TurnAnswer:
        message = packed(turn)
        if self._process is None and not (turn.graphs or turn.seen or self._has_history()):
            return TurnAnswer(predictions=(None,) * len(turn.questions))  # There is nothing to go by yet.
        try:
            async with asyncio.timeout(ANSWER_S if self._process is None else self._answer_s):
                process = self._process or await self._start()
                answer = await _exchange(process, message)
        except BaseException as error:
            await self._drop()
            if not isinstance(error, OSError | EOFError | msgspec.DecodeError | TimeoutError):
                raise
            self._failures += 1
            pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._failures - 1))
            self._not_before = self._now() + pause_s
            self._why = f"{_word(error)}; it is started again after {pause_s:.0f} s"
            raise PredictorDown(self._why) from error
        self._failures = 0
        return answer

    async def close(self) -> None:
        await self._drop()

    def _has_history(self) -> bool:
        try:
            return self._history.stat().st_size > 0
        except OSError:
            return False

    async def _start(self) -> asyncio.subprocess.Process:
        if self._now() < self._not_before:
            raise PredictorAway(self._why)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "tidegate.control.predictor.main",
            str(self._history),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
            limit=MAX_BYTES,
        )
        return self._process

    async def _drop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(process.wait())

    def __repr__(self) -> str:
        return f"<PredictorProcess {self.pid}>"


async def _exchange(process: asyncio.subprocess.Process, message: bytes) -> TurnAnswer:
    assert process.stdin is not None
    assert process.stdout is not None  # both are pipes
    try:
        process.stdin.write(message)
        await process.stdin.drain()
    except RuntimeError as error:  # uvloop, of a pipe whose reader has gone
        raise EOFError from error
    size = int.from_bytes(await process.stdout.readexactly(4), "big")
    if size > MAX_BYTES:
        raise EOFError(f"an answer of {size} bytes")
    return unpacked_answer(await process.stdout.readexactly(size))


def _word(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, EOFError):
        return "it has ended"
    return f"{type(error).__name__}: {error}"
