"""The program of the MPS daemon: one that ends before it was written to. ``tests/live/test_mps.py`` has the rest."""

import asyncio
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

import pytest

from tests.support.http.loopback import LOOPS
from tidegate.deploy.devices.mps import PROGRAM, MpsDaemon


async def ended(*words: str, **settings: Any) -> Process:
    """Starts a program and returns it when it has ended."""
    process = await asyncio.create_subprocess_exec(*words, **settings)
    await process.wait()
    return process


@pytest.mark.parametrize("loop", sorted(LOOPS))
@pytest.mark.parametrize(("code", "fault"), [(0, None), (3, f"{PROGRAM} exited with 3")])
def test_a_program_that_ended_before_it_was_written_to_is_judged_by_its_exit_code(
    tmp_path: Path, loop: str, code: int, fault: str | None
) -> None:
    (tmp_path / PROGRAM).write_text(f"#!/bin/sh\nexit {code}\n")
    (tmp_path / PROGRAM).chmod(0o755)
    daemon = MpsDaemon(tmp_path, {"PATH": str(tmp_path)}, lambda text: None, lambda pid: False, spawn=ended)
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        assert runner.run(daemon._command((), b"quit\n")) == fault
