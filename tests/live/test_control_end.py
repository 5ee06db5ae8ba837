"""The orderly end of a deployment, at whatever moment it is asked for; and what counts as up."""

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.live.deployment import deployment, places

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


@pytest.mark.early
def test_an_end_at_any_moment_of_the_round_leaves_no_replica(tmp_path: Path) -> None:
    """The minimum scale asks for replacements as soon as replicas leave: the end must not listen to it."""
    rng = random.Random(5)
    with deployment(tmp_path, "--gateway-workers", "1") as world:
        for attempt in range(6):
            world.up()
            if attempt == 0:
                world.deploy(world.handler(), "--min-scale", "2", "--max-scale", "2", "--initial-scale", "2", "--wait")
            world.until_replicas(2)
            threading.Event().wait(rng.uniform(0.0, 1.1))
            assert world.stop() == 0
            assert world.living() == {}, f"attempt {attempt}"
            assert list(world.state.processes.glob("*.json")) == []


def test_a_deployment_that_is_up_answers_on_every_worker(tmp_path: Path) -> None:
    with deployment(tmp_path, "--gateway-workers", "3") as world:
        world.up()
        assert {each["state"] for each in world.status()["gateways"]} == {"serving"}
        world.deploy(world.handler(), "--initial-scale", "0")
        gateway = world.gateway
        with ThreadPoolExecutor(24) as threads:
            answers = list(threads.map(lambda _: world.infer(gateway=gateway).status_code, range(24)))
        assert Counter(answers) == {200: 24}


def test_a_worker_that_is_just_being_started_again_knows_what_is_deployed_now(tmp_path: Path) -> None:
    with deployment(tmp_path, "--gateway-workers", "1") as world:
        world.up()
        for name in ("first", "second"):
            world.end("gateway-g0")
            world.deploy(world.handler(name=name), "--initial-scale", "0", name=name)
            assert world.infer(name=name).status_code == 200


def test_what_drains_when_the_control_process_is_killed_is_drained_by_the_next(tmp_path: Path) -> None:
    names = ("gone", "changed")
    with deployment(tmp_path, "--gateway-workers", "1", *places(tmp_path, 4)) as world:
        world.up()
        is_up_again = tmp_path / "again"
        is_up_again.touch()  # A server computes once before it is ready.
        for name in names:
            handler = world.handler(work_until=is_up_again, name=name)
            world.deploy(handler, "--max-scale", "1", "--wait", name=name)
        is_up_again.unlink()
        gateway = world.gateway
        with ThreadPoolExecutor(2) as threads:
            answers = [threads.submit(world.infer, name=name, gateway=gateway) for name in names]
            with world.sdk() as sdk:
                world.until(lambda: all(sdk.function(name).traffic.requests for name in names), 3.0, "two requests")
                sdk.delete("gone")
            world.deploy(world.handler(name="changed"), "--max-scale", "1", "--wait", name="changed")
            world.kill()
            world.up()
            is_up_again.touch()
            assert [answer.result().status_code for answer in answers] == [200, 200]
        world.until_replicas(0, name="gone")
        world.until_replicas(1, name="changed")
