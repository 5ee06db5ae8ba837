"""A process of pytest that is killed leaves no deployment behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live.deployment import Deployment
from tests.support.live.guard import ROOT
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
            subprocess.run(["kill", "-9", str(control)], check=True)
        killed.kill()
    pids = {control, *living.values()}
    seen.until(lambda: not any(start_time(pid) for pid in pids), 20.0, "the end of all its processes")
