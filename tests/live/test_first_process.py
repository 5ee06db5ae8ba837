"""A program that is the first process of a PID namespace, as in a container, ends by SIGTERM while it still starts."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.deadline import Patience

pytestmark = [pytest.mark.live, pytest.mark.needs(tool="cluster")]
PROGRAMS = {
    "tidegate": ["tidegate", "up", "--state-directory=state"],
    "queue_proxy": ["tidegate.queue_proxy.main"],
    "model server": ["tidegate.runtime.main"],
    "ASGI server": ["tidegate.runtime.asgi.main"],
    "webhook": ["tidegate.deploy.kubernetes.webhook.main", "--certificate-folder=certificates"],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_sigterm_during_the_imports_of_a_first_process_ends_it(name: str, tmp_path: Path) -> None:
    """SIGTERM is sent again and again from before the program's first line. The code is that of an end by SIGTERM: the
    program's own handlers, which stand after the imports, end it by another one."""
    words = [sys.executable, "-P", "-m", *PROGRAMS[name]]
    process = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    code = _ended(process)
    output = process.communicate()[0].decode()
    assert (code, output) == (128 + signal.SIGTERM, "")


def _ended(process: "subprocess.Popen[bytes]") -> int:
    """Sends SIGTERM to the child of ``unshare`` until it has ended, at most 60 s. Returns its exit code."""
    patience = Patience(60.0)
    while not patience.is_over:
        for pid in _children(process.pid):
            os.kill(pid, signal.SIGTERM)
        try:
            return process.wait(0.002)
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    raise AssertionError("SIGTERM did not end it")


def _children(pid: int) -> Sequence[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
