"""A replica that breaks after it was ready: it is replaced, and every view says what happened to it."""

import contextlib
import time
from pathlib import Path

import httpx
import pytest

from tests.support.deadline import Patience
from tests.support.live.deployment import REQUEST, Deployment, deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

ABORTS = """
import os
class Model:
    arrays = "plain"
    def predict(self, inputs):
        if inputs["x"][0][0] < 0:
            os.abort()
        return {"y": inputs["x"]}
"""


def only_replica(world: Deployment, name: str = "echo") -> str:
    (found,) = (each for each in world.living() if each.startswith(f"{name}-") and each.endswith(".server"))
    return found.removesuffix(".server")


def is_replaced(world: Deployment, before: str, name: str = "echo") -> bool:
    (revision,) = world.status(name)["revisions"]
    return any(each["state"] == "ready" and each["id"] != before for each in revision["replicas"])


def test_a_last_replica_that_was_killed_is_replaced_without_a_request_and_everything_says_so(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "0", "--wait")
        before = only_replica(world)
        time.sleep(2.5)  # The initial scale has been reached and seen: nothing but the crash asks for a replica.
        world.end(f"{before}.server")
        seen: set[str] = set()
        patience = Patience(30.0)
        while not is_replaced(world, before):
            assert not patience.is_over
            seen.add(world.ask("list")[0]["state"])
        assert "asleep" not in seen
        said = "the model server was killed by SIGKILL (out of memory?)"
        (revision,) = world.status("echo")["revisions"]
        assert revision["crash"]["count"] == 1
        assert revision["crash"]["reason"].startswith(said)
        assert said in " ".join(world.cli("list").stdout.split())
        assert said in " ".join(world.cli("status", "echo").stdout.split())
        assert said in world.cli("explain", "echo").stdout
        explained = world.cli("explain", "echo", "-v").stdout
        assert "restart: the last replica broke before it was idle" in explained
        assert f"replica_broke: a replica broke after it had been ready ({before}: {said}" in explained
        marks = [line for line in world.cli("logs", "echo").stdout.splitlines() if "| -- tidegate " in line]
        assert len(marks) == 1
        assert marks[0].startswith(f"{before} | ")
        assert said in marks[0]
        with world.sdk() as tidegate:
            labels = 'function="echo",revision="echo-00001",accelerator="cpu-1core",cause="killed"'
            assert f"tidegate_replica_failures_total{{{labels}}} 1\n" in tidegate.metrics()


def test_a_model_that_aborts_costs_its_request_and_the_next_one_is_served(tmp_path: Path) -> None:
    path = tmp_path / "aborts.py"
    path.write_text(ABORTS)
    bad = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [-1, 2]}]}
    with deployment(tmp_path) as world:
        world.up()
        world.deploy(f"{path}:Model", "--min-scale", "0", "--wait")
        before = only_replica(world)
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.post(
                f"{world.gateway}/v2/models/echo/infer", json=bad, timeout=20.0, trust_env=False, verify=False
            )
            assert answer.status_code == 502
        good = httpx.post(
            f"{world.gateway}/v2/models/echo/infer", json=REQUEST, timeout=20.0, trust_env=False, verify=False
        )
        assert good.status_code == 200
        world.until(lambda: is_replaced(world, before), 20.0, "another replica")
        (revision,) = world.status("echo")["revisions"]
        assert "killed by SIGABRT" in revision["crash"]["reason"]
