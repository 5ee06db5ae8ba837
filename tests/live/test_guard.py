"""A process of pytest that is killed leaves no deployment behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live.deployment import Deployment
from tests.support.live.guard import PROCESS, ROOT, STATE
from tidegate.control.state.directory import StateDirectory
from tidegate.deploy.local.proc import start_time

pytestmark = [pytest.mark.live]
KILLED = """
import sys
from pathlib import Path
from tests.support.live.deployment import Deployment
live = Deployment(Path(sys.argv[1]))
live.up()
live.deploy(live.handler(), "--min-scale", "1", "--wait")
print(live.process.pid, flush=True)
sys.stdin.read()
"""
STARTING = """
import sys
from pathlib import Path
from tests.support.live.deployment import Deployment
live = Deployment(Path(sys.argv[1]))
live.begin()
print(live.process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("with_control", [True, False])
def test_the_processes_of_a_killed_one_are_ended(tmp_path: Path, with_control: bool) -> None:
    """Also those that have outlived their control process."""
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        control = int(killed.stdout.readline())
        seen = Deployment(tmp_path)
        living = seen.living()
        assert any(key.endswith(".server") for key in living)
        if not with_control:
            os.kill(control, signal.SIGKILL)
        killed.kill()
    pids = {control, *living.values()}
    seen.until(lambda: not any(start_time(pid) for pid in pids), 20.0, "the end of all its processes")


def test_a_control_process_that_has_not_locked_its_directory_yet_is_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTING, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        control = int(killed.stdout.readline())
        killed.kill()
    seen = Deployment(tmp_path)
    seen.until(lambda: not start_time(control), 20.0, "its end")
    assert seen.state.holder() is None


def test_one_that_has_locked_it_without_a_name_keeps_no_other_from_its_end(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    lock = state.lock()
    with subprocess.Popen(command, stdin=subprocess.PIPE) as other:
        named = f"{PROCESS} {other.pid} {start_time(other.pid)}\n{STATE} {state.root}\n"
        guard = [sys.executable, "-m", "tests.support.live.guard"]
        done = subprocess.run(guard, cwd=ROOT, input=named, text=True, check=False, start_new_session=True)
        assert (done.returncode, other.wait()) == (0, -9)
    lock.release()
