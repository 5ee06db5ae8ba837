"""Commands that are typed before the deployment has come up."""

import subprocess
import time
from pathlib import Path

import pytest

from tests.support.live.deployment import Deployment, deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


def program(world: Deployment, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a command as the program that people start, and not as a fork of one that is running."""
    command = world.command(*words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=world.folder, check=False)
    assert done.returncode == code, f"{words} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


def test_deploy_may_be_called_in_one_line_with_up(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        handler = world.handler()
        with world.log.open("ab") as output:
            world.process = subprocess.Popen(world.command("up", *world.flags), stdout=output, stderr=output)
        program(world, "deploy", handler, "--name", "echo")
        assert world.infer().status_code == 200


def test_deploy_where_nothing_comes_up_ends_with_the_reason(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        began = time.monotonic()
        refused = program(world, "deploy", world.handler(), "--name", "echo", code=1)
        assert time.monotonic() - began > 5.0
        assert "start one with `tidegate up`" in refused.stderr
