"""What the default policy has learnt of a function: it outlives the processes, and is deleted only by request."""

import re
from pathlib import Path

import pytest

from tests.support.live.deployment import Deployment, deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

ROUNDING_S = 3


def seconds_in(text: str) -> int:
    """Seconds of load that were learnt from; 0 if there are none."""
    found = re.search(r"over (\d+) s: changes", text)
    return int(found[1]) if found else 0


def learnt_s(world: Deployment) -> int:
    with world.sdk() as tidegate:
        return seconds_in(tidegate.explain("echo").text)


def until_learnt(world: Deployment, seconds: int) -> int:
    found: int = world.until(lambda: (at := learnt_s(world)) >= seconds and at, 60.0, f"{seconds} s to be learnt from")
    return found


def serve(world: Deployment, latency: str) -> None:
    """Deploys a function with a latency: then ``tide`` is its policy. It learns from the first service rate on."""
    world.deploy(world.handler(work_s=0.05), "--latency", latency, "--min-scale", "1", "--wait")
    for _ in range(15):
        assert world.infer().status_code == 200
    # A rate is known when the replica was full for long enough of a second.
    world.until(lambda: world.infer().status_code == 200 and learnt_s(world) >= 1, 40.0, "a service rate to be known")


@pytest.mark.early
def test_it_outlives_an_orderly_end_a_kill_and_a_redeploy_and_is_deleted_by_request(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        serve(world, "500ms")
        before = until_learnt(world, 12)
        assert world.stop() == 0
        world.up()
        # The first figure that is seen is the one of before: the time away has passed in it.
        before, known = until_learnt(world, 1), before
        assert before >= known - ROUNDING_S
        # Written ten seconds after the function was tracked.
        before = until_learnt(world, before + 14)
        world.kill()
        world.up()
        before, known = until_learnt(world, 1), before
        assert before >= known - ROUNDING_S
        serve(world, "400ms")
        world.until(lambda: world.status("echo")["revision"] == "echo-00002", 20.0, "the new revision to serve")
        before, known = until_learnt(world, 1), before
        assert before >= known - ROUNDING_S

        deleted = world.cli("forget", "echo").stdout
        assert deleted.startswith("forgot of echo:\n")
        assert seconds_in(deleted) >= before
        assert learnt_s(world) < before
        said = "memory_forgotten: what the policy had learnt was deleted by hand"
        world.until(lambda: said in world.cli("explain", "echo", "-v").stdout, 20.0, "the reason of the next decision")
        assert world.infer().status_code == 200
        assert world.stop() == 0
        world.up()
        assert until_learnt(world, 1) < before
        assert "echos" in world.cli("forget", "echos", code=2).stderr
