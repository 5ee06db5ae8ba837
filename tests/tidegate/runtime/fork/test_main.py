"""The fork server's answers, without a control process."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="fork servers are for Linux")


def first_answer(folder: Path, *modules: str) -> tuple[dict[str, object], int, str]:
    """The answer that a fork server gives when it has imported the modules; its status once its socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (
        ours,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "tidegate.runtime.fork.main", str(theirs.fileno()), *modules],
            pass_fds=(theirs.fileno(),),
            env={"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
            stderr=subprocess.PIPE,
            text=True,
        ) as server,
    ):
        theirs.close()
        ours.settimeout(60)
        answer = json.loads(ours.recv(1 << 16))
        ours.close()
        errors = server.communicate(timeout=60)[1]
        return answer, server.returncode, errors


def test_a_module_that_is_not_there_is_the_affair_of_the_process_that_needs_it(tmp_path: Path) -> None:
    answer, status, errors = first_answer(tmp_path, "json", "no_such_module")
    assert answer == {"ready": True} and status == 0, "it ends with its socket"
    assert "no_such_module is not imported" in errors


def test_a_process_with_threads_is_never_forked(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    answer, status, _ = first_answer(tmp_path, "busy")
    assert answer == {"fault": "busy starts threads when it is imported (1)"}
    assert status == 4
