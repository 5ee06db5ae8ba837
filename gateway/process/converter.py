"""Converter: the process in which a gateway worker converts large bodies of pipelines."""

import asyncio
import contextlib
import pickle
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tidegate.aio.log_stream import say
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.gateway.beside.live import spawned
from tidegate.gateway.pipelines.conversions import LENGTH, ConversionLostError

COMMAND: Final = (sys.executable, "-P", "-m", "tidegate.gateway.pipelines.main")
IDLE_S: Final = 60.0
"""Time without work after which the process is ended."""
MOST_S: Final = 10.0
"""Time after which a conversion counts as hanging; the largest body takes some three seconds."""
TRIES: Final = 2
"""Processes that a conversion is given to, if one ends amid it."""


class _Work(NamedTuple):
    """A conversion that waits for its turn. It is pickled then, so that its bytes are here once."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    done: Callable[[Any], None]
    is_wanted: Callable[[], bool]


class Converter:
    """Runs conversions one after another in one process, which is there while there are some."""

    def __init__(
        self, tasks: TaskOwner, command: tuple[str, ...] = COMMAND, *, idle_s: float = IDLE_S, most_s: float = MOST_S
    ) -> None:
        self._tasks = tasks
        self._most_s = most_s
        self._command = command
        self._idle_s = idle_s
        self._waiting: deque[_Work] = deque()
        self._has_work = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._link: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def run(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        done: Callable[[Any], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Calls ``function`` there; ``done`` gets its result, or the error that it raised, or a
        :class:`ConversionLostError`. What is not wanted any more when its turn comes is left out."""
        # Clients that leave one after another would else fill memory with bodies that wait for their turn.
        self._waiting = deque(each for each in self._waiting if each.is_wanted())
        self._waiting.append(_Work(function, arguments, done, is_wanted))
        self._has_work.set()
        if self._runner is None or self._runner.done():
            self._runner = self._tasks.spawn(self._run(), name="converter")

    async def _run(self) -> None:
        """Works until there has been nothing to do for a while."""
        try:
            while True:
                while self._waiting:
                    work = self._waiting.popleft()
                    if not work.is_wanted():
                        continue
                    try:
                        request = pickle.dumps((work.function, work.arguments), pickle.HIGHEST_PROTOCOL)
                        work.done(await self._converted(request))
                    except Exception as error:  # of one request: the others go on
                        self._tasks.report("converter", error)
                self._has_work.clear()
                try:
                    await asyncio.wait_for(self._has_work.wait(), self._idle_s)
                except TimeoutError:
                    if not self._waiting:
                        return  # Else work came in the very turn of the timeout.
        finally:
            self._end()

    async def _converted(self, request: bytes) -> Any:
        why = ""
        for _ in range(TRIES):
            try:
                async with asyncio.timeout(self._most_s):
                    reader, writer = self._link or await self._started()
                    writer.writelines((len(request).to_bytes(LENGTH, "big"), request))
                    await writer.drain()
                    size = int.from_bytes(await reader.readexactly(LENGTH), "big")
                    return pickle.loads(await reader.readexactly(size))
            except TimeoutError:
                self._end()
                why = f"it was hanging for {self._most_s:g} s"
            except (OSError, EOFError) as error:
                why = self._end() or str(error)
            say(f"the process that converts large bodies of pipelines has ended: {why}", level="warning")
        return ConversionLostError(f"the process that converts large bodies has ended: {why}")

    async def _started(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Starts the process. Raises OSError."""
        with contextlib.ExitStack() as opened:
            ours, theirs = (opened.enter_context(each) for each in socket.socketpair())
            self._process = spawned(self._command, theirs, output=subprocess.DEVNULL)
            opened.pop_all()
        theirs.close()
        ours.setblocking(False)
        self._link = await asyncio.open_connection(sock=ours)
        return self._link

    def _end(self) -> str:
        """Ends the process. Returns how it had ended, if it had."""
        link, process = self._link, self._process
        self._link = self._process = None
        if link is not None:
            link[1].close()
        if process is None:
            return ""
        code = process.poll()
        if code is None:
            process.kill()  # It holds nothing but copies.
            process.wait()
            return ""
        return f"exit code {code}"

    def __repr__(self) -> str:
        return f"<Converter {self._process!r}, {len(self._waiting)} waiting>"
