"""What a process of pytest that is killed leaves behind is ended by a guard: a process beside it, in a session of its
own, that reads what is there to end and waits for the end of the pipe.

At an ordinary end it finds nothing: each process is known by its pid and start, each deployment by its records.
"""

import atexit
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from tidegate.control.state.directory import StateDirectory
from tidegate.deploy.local.proc import start_time
from tidegate.deploy.local.recovery import end_all
from tidegate.errors import TidegateError

PROCESS, STATE, RECORDS, NODE = "process", "state", "records", "node"
GRACE_S: Final = 0.2
ROOT: Final = Path(__file__).resolve().parents[3]


@cache
def _guard() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", __name__]
    null = subprocess.DEVNULL
    # No process inherits the pipe's other end: its end is that of this process.
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=null, stderr=null, text=True, start_new_session=True, cwd=ROOT
    )
    atexit.register(process.communicate)
    return process


def _name(kind: str, what: str) -> None:
    pipe = _guard().stdin
    assert pipe is not None
    pipe.write(f"{kind} {what}\n")
    pipe.flush()


def guard_process(pid: int) -> None:
    """Has a process killed when this one is gone."""
    if (started := start_time(pid)) is not None:
        _name(PROCESS, f"{pid} {started}")


def guard_state(folder: Path) -> None:
    """Has the control process of a state directory, its gateway workers and replicas killed when this process is
    gone."""
    _name(STATE, str(folder))


def guard_records(folder: Path) -> None:
    """Has the recorded processes of a folder killed when this process is gone."""
    _name(RECORDS, str(folder))


def guard_node(bridge: str) -> None:
    """Has the containers of a node killed and its network removed when this process is gone. Its namespaces begin with
    the name of its bridge."""
    _name(NODE, bridge)


def end(kind: str, what: str) -> None:
    """Ends what was named to the guard."""
    if kind == PROCESS:
        pid, started = map(int, what.split())
        if start_time(pid) == started:
            _kill(pid)
    elif kind == NODE:
        listed = _ip("netns", "list").splitlines()
        for namespace in [line.split()[0] for line in listed if line.startswith(f"{what}-")]:
            for inside in _ip("netns", "pids", namespace).split():
                _kill(int(inside))
            _ip("netns", "del", namespace)
        _ip("link", "del", what)
    else:
        if kind == STATE:
            with suppress(TidegateError):
                holder = StateDirectory(Path(what)).holder()
                if holder is not None and holder.pid:  # It has the lock first, and then a name in it.
                    _kill(holder.pid)
        records = Path(what) / "processes" if kind == STATE else Path(what)
        if records.exists():
            end_all(records, grace_s=GRACE_S)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _ip(*words: str) -> str:
    with suppress(OSError):
        return subprocess.run(("ip", *words), text=True, capture_output=True, check=False).stdout
    return ""


def main() -> None:
    """Waits for the end of the process that started it, then ends what it has named, the newest first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    named = [line.rstrip("\n").split(" ", 1) for line in sys.stdin]
    for kind, what in reversed(named):
        with suppress(Exception):  # What cannot be ended must not keep the others.
            end(kind, what)


if __name__ == "__main__":
    main()
