"""More functions than places: an idle function locks no other out, and everything says why."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.deadline import Patience
from tests.support.live.deployment import Deployment, deployment, places

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]


def ready(world: Deployment) -> set[str]:
    return {each["name"] for each in world.ask("list") if each["ready"]}


def in_flight(world: Deployment, name: str) -> int:
    (revision,) = world.status(name)["revisions"]
    return sum(replica["in_flight"] or 0 for replica in revision["replicas"])


def is_used(world: Deployment, name: str) -> bool:
    """That a round has seen a use of the function: the traffic is known a little before that."""
    (revision,) = world.status(name)["revisions"]
    return revision["idle"] is not None and not revision["idle"]["is_unused"]


def is_idle(world: Deployment, name: str) -> bool:
    """That rounds have seen the function ready and without work for a while."""
    (revision,) = world.status(name)["revisions"]
    return revision["idle"] is not None and revision["idle"]["idle_s"] > 0.0


@pytest.mark.early
def test_three_deploys_in_a_row_work_on_one_place_and_each_function_answers(tmp_path: Path) -> None:
    with deployment(tmp_path, *places(tmp_path, 1)) as world:
        world.up()
        for name in ("a", "b", "c"):
            world.deploy(world.handler(name=name), "--wait", name=name)
            assert ready(world) == {name}
        for name in ("c", "a", "b"):
            patience = Patience(15.0)
            assert world.infer(name=name).status_code == 200
            assert not patience.is_over, "no idle window is waited for"


def test_a_request_takes_the_place_of_the_function_that_was_never_used(tmp_path: Path) -> None:
    with deployment(tmp_path, *places(tmp_path, 2)) as world:
        world.up()
        for name in ("a", "b"):  # A deploy that waits asks each for its metadata.
            world.cli("deploy", world.handler(name=name), "--name", name)
        # Of replicas that have been idle for two seconds that of b goes first: rounds see both before a is used.
        world.until(lambda: is_idle(world, "a") and is_idle(world, "b"), 15.0, "rounds to see both idle")
        assert world.infer(name="a").status_code == 200
        world.until(lambda: is_used(world, "a"), 10.0, "the use of a to be known")
        world.deploy(world.handler(name="c"), "--initial-scale", "0", name="c")
        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda _: world.infer(name="c").status_code, range(4)))
        assert answers == [200] * 4
        assert ready(world) == {"a", "c"}
        status = world.status("b")
        assert status["state"] == "asleep"
        assert "given up for a function that had no place (to c: " in status["message"]
        assert "never used" in status["message"]
        assert "place_given_up: a replica of it was given up" in world.ask("explain", "b")["text"]


@pytest.mark.early
def test_a_refusal_names_the_functions_that_hold_the_places(tmp_path: Path) -> None:
    with deployment(tmp_path, *places(tmp_path, 1)) as world:
        world.up()
        is_refused = tmp_path / "refused"
        is_refused.touch()  # A server computes once before it is ready.
        world.deploy(world.handler(name="a", work_until=is_refused), "--wait", name="a")
        is_refused.unlink()
        world.deploy(world.handler(name="c"), "--initial-scale", "0", name="c")
        with ThreadPoolExecutor(1) as threads:
            long = threads.submit(world.infer, name="a", timeout=40.0)
            world.until(lambda: in_flight(world, "a") == 1, 10.0, "the long request to run")
            refused = world.infer(name="c")
            is_refused.touch()
            assert refused.status_code == 503
            assert "held by a with 1 (busy, kept until 2 s after its last request)" in refused.text
            assert long.result().status_code == 200, "running work is not given up"


def test_a_latency_critical_function_gets_a_place_that_a_throughput_oriented_one_works_on(tmp_path: Path) -> None:
    with deployment(tmp_path, *places(tmp_path, 2)) as world:
        world.up()
        is_done = tmp_path / "done"
        is_done.touch()  # A server computes once before it is ready.
        size = ("--concurrency", "1", "--max-scale", "2", "--initial-scale", "2")
        bulk = world.handler(name="bulk", work_until=is_done)
        world.deploy(bulk, "--wait", "--task-class", "throughput-oriented", *size, name="bulk")
        world.until(lambda: world.status("bulk")["revisions"][0]["ready"] == 2, 15.0, "both replicas to be ready")
        is_done.unlink()
        world.deploy(world.handler(name="c"), "--initial-scale", "0", name="c")
        with ThreadPoolExecutor(3) as threads:
            work = [threads.submit(world.infer, name="bulk", timeout=40.0) for _ in range(2)]
            world.until(lambda: in_flight(world, "bulk") == 2, 10.0, "both replicas to work")
            critical = threads.submit(world.infer, name="c", timeout=40.0)
            world.until(
                lambda: "place_given_up" in world.ask("explain", "bulk")["text"], 15.0, "a replica to be given up"
            )
            is_done.touch()
            assert critical.result().status_code == 200
            assert [each.result().status_code for each in work] == [200, 200], "running work ends first"
        assert "bulk" in ready(world), "it goes on with the other replica"
