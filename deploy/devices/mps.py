"""The MPS control daemon of this machine: found where one runs, else started, watched and stopped.

MPS lets processes share a GPU's processors at the same time. Its daemon keeps a folder of pipes, in which it writes its
process id; clients find it by ``CUDA_MPS_PIPE_DIRECTORY``. A daemon that runs already, in the folder of the
environment or in NVIDIA's default one, is used as it is and never stopped.
"""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

PROGRAM: Final = "nvidia-cuda-mps-control"
DEFAULT_PIPES: Final = Path("/tmp/nvidia-mps")
"""NVIDIA's folder of pipes where no variable names another."""
PID_FILE: Final = "nvidia-cuda-mps-control.pid"
WATCH_EVERY_S: Final = 2.0
MAX_WAIT_S: Final = 60.0
"""Longest time between two starts of a daemon that keeps ending."""
ANSWER_S: Final = 10.0
"""Time for one command of the daemon's program."""


class MpsDaemon:
    """One daemon. ``own``: the folder of a daemon that is started here; ``note`` receives what is wrong, or None;
    ``is_alive`` says whether a process runs (a zombie, which nothing may reap, does not)."""

    def __init__(
        self,
        own: Path,
        environ: Mapping[str, str],
        note: Callable[[str | None], None],
        is_alive: Callable[[int], bool],
        spawn: Callable[..., Awaitable[Process]] = asyncio.create_subprocess_exec,
    ) -> None:
        """``spawn`` starts its program."""
        self._environ = environ
        self._spawn = spawn
        self._note = note
        self._is_alive = is_alive
        named = environ.get("CUDA_MPS_PIPE_DIRECTORY")
        places = (Path(named) if named else DEFAULT_PIPES, own)
        self.pipes = next((place for place in places if self._runs(place)), own)
        """Folder of its pipes."""
        self.is_own = self.pipes == own
        """True if it is started and stopped here."""

    async def run(self, is_wanted: Callable[[], bool]) -> None:
        """Keeps the daemon running while it is wanted, until it is cancelled."""
        wait_s = WATCH_EVERY_S
        while True:
            fault = None
            if is_wanted() and not self._runs(self.pipes):
                fault = await self._start() if self.is_own else f"the daemon at {self.pipes} has ended"
            self._note(None if fault is None else f"{fault}; replicas with mps-on cannot start")
            wait_s = WATCH_EVERY_S if fault is None else min(MAX_WAIT_S, 2.0 * wait_s)
            await asyncio.sleep(wait_s)

    async def stop(self) -> None:
        """Stops a daemon that was started here, with its servers."""
        if not self.is_own or not self._runs(self.pipes):
            return
        fault = await self._command((), b"quit\n")
        pid = _pid(self.pipes)
        if fault is not None and pid is not None:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)

    async def _start(self) -> str | None:
        """Starts the daemon, which puts itself into the background. Returns why it does not run; None if it does."""
        try:
            (self.pipes / "log").mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            return f"{self.pipes}: {error.strerror}"
        fault = await self._command(("-d",), b"")
        return fault if fault is not None or self._runs(self.pipes) else f"{PROGRAM} -d ended without a daemon"

    async def _command(self, words: tuple[str, ...], typed: bytes) -> str | None:
        """Runs the daemon's program. Returns why it failed; None if it did not."""
        folders = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipes), "CUDA_MPS_LOG_DIRECTORY": str(self.pipes / "log")}
        try:
            process = await self._spawn(
                PROGRAM,
                *words,
                stdin=asyncio.subprocess.PIPE if typed else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env={**self._environ, **folders},
                start_new_session=True,
            )
        except OSError as error:
            return f"{PROGRAM} cannot be run: {error.strerror}"
        try:
            await asyncio.wait_for(process.communicate(typed or None), ANSWER_S)
        except TimeoutError:
            process.kill()
            return f"{PROGRAM} did not end within {ANSWER_S:.0f} s"
        except RuntimeError:  # uvloop's word for the pipe of a process that ended before it was written to.
            await process.wait()
        return None if process.returncode == 0 else f"{' '.join((PROGRAM, *words))} exited with {process.returncode}"

    def _runs(self, pipes: Path) -> bool:
        """Returns whether a daemon has its pipes in this folder."""
        pid = _pid(pipes)
        return pid is not None and self._is_alive(pid)

    def __repr__(self) -> str:
        return f"<MpsDaemon at {self.pipes}, {'own' if self.is_own else 'found'}>"


def _pid(pipes: Path) -> int | None:
    try:
        return int((pipes / PID_FILE).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
