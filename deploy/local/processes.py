"""Children of the control process: spawned, watched, ended, adopted; shared by replicas and gateway workers.

A child has a session of its own (Ctrl-C reaches the control process only), no pipes, and a record on disk
(``records.py``). It is watched through a pidfd, so its end is detected at once, whether this process started it or an
earlier one. Without pidfds it is polled four times a second.

Spawning takes under a millisecond (``vfork``: 0.3 to 0.7 ms from a parent of 100 MB) and is done on the loop. A child
gets no descriptor but the ones named for it, because all others are close-on-exec. Closing them one by one in the child
instead takes the parent ten times as long on busy cores (28 ms instead of 3 ms for two spawns).
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tidegate.deploy.local.logs import mark, open_log, tail, trim
from tidegate.deploy.local.proc import ProcessHandle, boot_id, child_start_time, continue_sessions, is_stopped
from tidegate.deploy.local.records import MARK, ProcessKind, ProcessRecord, RecordStore, ReplicaDetails
from tidegate.deploy.local.recovery import clear, end_hidden, survey
from tidegate.errors import TidegateError

KILL_AFTER_S: Final = 5.0
"""Time between SIGTERM and SIGKILL."""
_POLL_INTERVAL_S: Final = 0.25
"""Interval of polling without pidfds."""

Warn = Callable[[str], None]
Fork = Callable[[Mapping[str, str], Mapping[int, int]], int | None]
"""Makes a child of this process from an environment and our descriptors by the number that it gets. Returns its pid.
Returns None if the process has to be spawned."""


def warn_on_stderr(message: str) -> None:
    """Writes one line to standard error."""
    sys.stderr.write(f"{message}\n")


def keep_descriptors_private() -> None:
    """Makes the descriptors that this process itself inherited (a shell's or a build tool's pipes) close-on-exec.
    Python's own descriptors are anyway."""
    folder = Path("/dev/fd")
    for name in os.listdir(folder) if folder.is_dir() else ():  # noqa: PTH208 - names, not paths
        if name.isdigit() and int(name) > 2:
            with contextlib.suppress(OSError):  # The descriptor of the listing itself.
                os.set_inheritable(int(name), False)


class SpawnError(TidegateError):
    """The program could not be started. The message names it and the reason."""


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a process. Both are None for an adopted one: only its own parent gets its status."""

    status: int | None = None
    signal: int | None = None

    def __str__(self) -> str:
        if self.signal is not None:
            return f"was killed by {_signal_name(self.signal)}"
        return "ended" if self.status is None else f"exited with status {self.status}"


def _spawn(argv: Sequence[str], env: Mapping[str, str], cwd: str | None, output: int, fds: Sequence[int]) -> int:
    """Returns the pid of the new process. Raises OSError and ValueError."""
    try:
        for fd in fds:
            os.set_inheritable(fd, True)
        popen = subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            close_fds=False,
            start_new_session=True,
        )
    finally:
        for fd in fds:
            os.set_inheritable(fd, False)
    popen.returncode = 0  # The table waits for it; avoids Popen's warning.
    return popen.pid


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Child:
    """A process of a :class:`ProcessTable`."""

    __slots__ = ("_callbacks", "_exited", "_handle", "_is_own", "_status", "_table", "log_start", "record")

    def __init__(
        self,
        table: "ProcessTable",
        record: ProcessRecord,
        handle: ProcessHandle | None,
        *,
        is_own: bool,
        log_start: int = 0,
    ) -> None:
        """``is_own``: it is a child of this process, which takes its status."""
        self._table = table
        self.record = record
        self.log_start = log_start
        """Size of the log at its start. Its own output follows."""
        self._handle = handle
        self._is_own = is_own
        self._status: int | None = None
        """As waitpid(2) reports it. None if it has not been taken."""
        self._exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._callbacks: list[Callable[[Exit], None]] = []

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def pid(self) -> int:
        return self.record.pid or 0

    @property
    def is_alive(self) -> bool:
        """Asks the system. :attr:`exit` follows a moment later."""
        if self._handle is None:
            return False
        if self._is_own and self._handle.fd is None:
            return not self._has_ended()
        return self._handle.is_alive()

    @property
    def exit(self) -> Exit | None:
        """Its end. None while it lives."""
        return self._exited.result() if self._exited.done() else None

    def on_exit(self, callback: Callable[[Exit], None]) -> None:
        """Calls ``callback`` once when the end is detected, or at once if it has ended."""
        if self._exited.done():
            callback(self._exited.result())
        else:
            self._callbacks.append(callback)

    async def wait(self) -> Exit:
        return await asyncio.shield(self._exited)

    def send(self, number: signal.Signals) -> None:
        """Signals the process and its group while it lives."""
        if self._exited.done():
            return
        if self._is_own:
            # It has not been waited for, so its pid and its group are still its own.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
        elif self._handle is not None:
            self._handle.send(number)

    def resume(self) -> None:
        """Continues its processes if they are stopped (SIGSTOP)."""
        was_stopped = not self._is_own and not self._exited.done() and is_stopped(self.pid)
        self.send(signal.SIGCONT)
        if was_stopped:  # The signal went to the first process alone.
            continue_sessions({self.pid})

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.send(signal.SIGKILL)

    async def stop(self, grace_s: float = KILL_AFTER_S) -> Exit:
        """Sends SIGTERM, and SIGKILL after ``grace_s`` seconds. Returns when it has ended. A stopped process (SIGSTOP)
        is continued, or it could not obey."""
        self.send(signal.SIGTERM)
        self.resume()
        try:
            return await asyncio.wait_for(self.wait(), grace_s)
        except TimeoutError:
            self.send(signal.SIGKILL)
            return await self.wait()

    def rewrite(self, record: ProcessRecord) -> None:
        """Changes the record on disk, while the process lives."""
        if not self._exited.done():
            self.record = record
            self._table.write(record)

    def mark_stopping(self) -> None:
        """Excludes it from adoption by a later control process."""
        if not self.record.stopping:
            self.rewrite(replace(self.record, stopping=True))

    def last_output(self, lines: int = 20) -> list[str]:
        """Returns the last lines that it wrote."""
        return tail(Path(self.record.log), lines, self.log_start)

    def note(self, text: str, at: float, *, as_json: bool) -> None:
        """Appends a line of Tidegate's own to its log. ``at`` is Unix seconds."""
        mark(Path(self.record.log), text, at, self.record.replica if as_json else None)

    # --- the table's side ---

    def watch(self) -> None:
        fd = self._handle.fd if self._handle is not None else None
        loop = asyncio.get_running_loop()
        if fd is not None:
            loop.add_reader(fd, self._on_end)
        else:
            loop.call_later(_POLL_INTERVAL_S, self._poll)

    def _poll(self) -> None:
        if self._handle is None:
            return
        if self.is_alive:
            asyncio.get_running_loop().call_later(_POLL_INTERVAL_S, self._poll)
        else:
            self._on_end()

    def _on_end(self) -> None:
        how = self._reap()
        self.release()
        self._table.forget(self)
        if not self._exited.done():
            self._exited.set_result(how)
            for callback in self._callbacks:
                callback(how)
            self._callbacks.clear()

    def _reap(self) -> Exit:
        """Ends the rest of its group, then takes its status. Processes outside the group are found by their mark."""
        if not self._is_own:
            return Exit()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        try:
            status = os.waitpid(self.pid, 0)[1] if self._status is None else self._status
        except ChildProcessError:
            return Exit()
        code = os.waitstatus_to_exitcode(status)
        return Exit(signal=-code) if code < 0 else Exit(status=code)

    def _has_ended(self) -> bool:
        """Checks without taking the status if the system can (its pid stays its own until then)."""
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None

    def release(self) -> None:
        """Stops watching. A living child goes on running."""
        if self._handle is not None:
            if self._handle.fd is not None:
                asyncio.get_running_loop().remove_reader(self._handle.fd)
            self._handle.close()
            self._handle = None

    def __repr__(self) -> str:
        return f"<Child {self.id} pid {self.pid}: {self.exit or 'alive'}>"


class ProcessTable:
    """All children of one deployment and their records. Made inside the running loop that watches them."""

    def __init__(self, store: RecordStore, epoch: int, warn: Warn = warn_on_stderr) -> None:
        self.store = store
        self.epoch = epoch
        self._warn = warn
        self._untrimmed: set[str] = set()
        """Logs that could not be trimmed; each was warned about."""
        self._children: dict[str, Child] = {}
        self.write_failure: str | None = None
        """Reason why the last record could not be written (a full disk). None if it was written."""
        keep_descriptors_private()

    @property
    def children(self) -> tuple[Child, ...]:
        return tuple(self._children.values())

    def spawn(
        self,
        kind: ProcessKind,
        record_id: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        cwd: str | None = None,
        fds: Sequence[int] = (),
        replica: ReplicaDetails | None = None,
        details: Mapping[str, str] | None = None,
        program: Sequence[str] | None = None,
        fork: Fork | None = None,
    ) -> Child:
        """Starts ``argv`` with exactly ``env`` (and its mark). ``fds`` are inherited under their own numbers.
        ``program``: the command that ``argv`` becomes, for people. ``fork`` is tried before the spawn.

        Raises SpawnError if the program or its folder cannot be used.
        """
        if record_id in self._children:
            raise SpawnError(f"{record_id} is running already")
        record = ProcessRecord(
            id=record_id,
            kind=kind,
            boot_id=boot_id(),
            epoch=self.epoch,
            program=" ".join((program or argv)[:4]),
            log=str(log),
            replica=replica,
            details=details or {},
        )
        self.write(record)
        try:
            output = open_log(log)
        except OSError as error:
            self.store.delete(record_id)
            raise SpawnError(f"cannot write {log}: {error.strerror}") from error
        log_start = os.fstat(output).st_size
        mark = {MARK: str(self.store.path(record_id))}
        marked = mark | dict(env) | mark  # It comes first: of a fork, the system may show no more than that.
        try:
            pid = None if fork is None else fork(marked, {1: output, 2: output} | {fd: fd for fd in fds})
            if pid is None:
                pid = _spawn(argv, marked, cwd, output, fds)
        except (OSError, ValueError) as error:
            self.store.delete(record_id)
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            what = error.filename if isinstance(error, OSError) and error.filename else argv[0]
            raise SpawnError(f"cannot start {what}: {why}") from error
        finally:
            os.close(output)
        record = replace(record, pid=pid)
        child = Child(self, record, ProcessHandle.of_child(pid), is_own=True, log_start=log_start)
        self._children[record_id] = child
        child.watch()
        asyncio.get_running_loop().call_soon(self._complete, child)
        return child

    def _complete(self, child: Child) -> None:
        """Adds the process's identity to the record. Not in the spawn itself: reading ``/proc/PID/stat`` waits for the
        process's ``exec``, two milliseconds that a cold start need not pay."""
        if child.exit is None and child.record.start_time is None:
            child.rewrite(replace(child.record, start_time=child_start_time(child.pid)))

    async def recover(self) -> tuple[ProcessRecord, ...]:
        """Returns the records of living processes of an earlier control process. Called once, before any spawn.

        Each of them is then adopted or ended by the caller that knows its kind. Processes with our mark and without
        such a record are ended here; stale records are deleted.
        """
        found = survey(self.store)
        if found.strangers or found.stale:
            await asyncio.to_thread(clear, found, KILL_AFTER_S)
        return found.living

    def continue_stopped(self) -> None:
        """Continues stopped children (SIGSTOP) before everything ends, so that others need not wait for them."""
        for child in self._children.values():
            child.resume()

    async def end(self, record: ProcessRecord, grace_s: float = KILL_AFTER_S) -> None:
        """Ends a living process that is not adopted, and deletes its record."""
        child = self._children.get(record.id) or self.adopt(record)
        if child is None:
            self.store.delete(record.id)
        else:
            child.mark_stopping()
            await child.stop(grace_s)
            await self.end_hidden(child)

    async def end_hidden(self, *children: Child) -> None:
        """Kills the processes that ended children started and left behind."""
        await asyncio.to_thread(end_hidden, {str(self.store.path(child.id)) for child in children})

    def adopt(self, record: ProcessRecord) -> Child | None:
        """Takes over a child of an earlier control process. Returns None if it does not live or is not the recorded
        one."""
        if record.pid is None or record.start_time is None or record.id in self._children:
            return None
        handle = ProcessHandle.open(record.pid, record.start_time, record.boot_id)
        if handle is None:
            return None
        child = Child(self, record, handle, is_own=False)
        self._children[record.id] = child
        child.watch()
        return child

    def write(self, record: ProcessRecord) -> None:
        """Writes a record. A full disk stops nothing (the mark in the environment still finds the process): the failure
        is logged and kept in :attr:`write_failure`."""
        try:
            self.store.write(record)
            self.write_failure = None
        except OSError as error:
            self.write_failure = f"cannot write {self.store.path(record.id)}: {error.strerror}"
            self._warn(self.write_failure)

    def forget(self, child: Child) -> None:
        """Drops a child that has ended. Its log is trimmed a last time."""
        self._trim(child)
        self._children.pop(child.id, None)
        self.store.delete(child.id)

    def trim_logs(self) -> None:
        """Keeps the children's logs bounded. Called ten times a second."""
        for child in self._children.values():
            self._trim(child)

    def _trim(self, child: Child) -> None:
        log = child.record.log
        try:
            trim(Path(log))
            self._untrimmed.discard(log)
        except OSError as error:
            if log not in self._untrimmed:
                self._warn(f"cannot trim {log}: {error.strerror}")
            self._untrimmed.add(log)

    def close(self) -> None:
        """Stops watching. Living children go on running."""
        for child in self._children.values():
            child.release()
        self._children.clear()

    def __repr__(self) -> str:
        return f"<ProcessTable epoch {self.epoch}: {len(self._children)} children>"
