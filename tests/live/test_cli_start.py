"""Commands that are typed before the deployment has come up."""

import subprocess
import time
from pathlib import Path

import pytest

from tests.support.live.deployment import deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


def test_deploy_may_be_called_in_one_line_with_up(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        handler = world.handler()
        with world.log.open("ab") as output:
            world.process = subprocess.Popen(world.command("up", *world.flags), stdout=output, stderr=output)
        world.cli("deploy", handler, "--name", "echo", "--wait")
        assert world.infer().status_code == 200


def test_deploy_where_nothing_comes_up_ends_with_the_reason(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        began = time.monotonic()
        refused = world.cli("deploy", world.handler(), "--name", "echo", code=1)
        assert time.monotonic() - began > 5.0
        assert "start one with `tidegate up`" in refused.stderr
