"""Rollouts as developers see them: ``tidegate up``, real requests, a bad version and a good one."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live.deployment import REQUEST, Deployment, deployment
from tests.support.live.strict_clients import Hammer

pytestmark = [pytest.mark.live, pytest.mark.timeout(150)]

VERSION = """
import time
class Echo:
    arrays = "plain"
    inputs = {"x": ("FP32", [-1, 2])}
    outputs = {"y": ("FP32", [-1, 2])}
    concurrency = 8
    def predict(self, inputs):
        time.sleep(WORK_S)
        if BROKEN:
            raise RuntimeError("weights are garbage")
        return {"y": [[FACTOR * value for value in row] for row in inputs["x"]]}
"""
USES = """
class Uses:
    arrays = "plain"
    def predict(self, inputs):
        from parts import scale
        return {"y": [[scale.FACTOR * value for value in row] for row in inputs["x"]]}
"""
ROLLOUT = ("--canary-steps", "1,50", "--canary-window", "3s")


def deploy(world: Deployment, *flags: str, factor: int = 1, broken: bool = False, work_s: float = 0.0) -> None:
    """Another version of echo."""
    path = world.folder / f"version{factor}.py"
    path.write_text(f"FACTOR, BROKEN, WORK_S = {factor}, {broken}, {work_s}\n{VERSION}")
    world.deploy(f"{path}:Echo", "--min-scale", "1", "--percentile", "98", "--wait", *flags)


@contextmanager
def users(world: Deployment, pause_s: float = 0.005) -> Iterator[Hammer]:
    """A few hundred requests a second."""
    body = json.dumps(REQUEST).encode()
    with Hammer(world.gateway, body, path="/v2/models/echo/infer", fresh=0, kept=4, pause_s=pause_s) as hammer:
        yield hammer


def until(world: Deployment, phase: str, limit_s: float = 40.0) -> Any:
    """The rollout once it is in this phase."""

    def found() -> bool:
        with world.sdk() as tidegate:
            return tidegate.rollout("echo").phase == phase

    world.until(found, limit_s, f"a rollout that is {phase}; it was {world.ask('rollout', 'echo')}")
    return world.ask("rollout", "echo")


def factor(world: Deployment, **headers: str) -> float:
    """Which version answers."""
    url = f"{world.gateway}/v2/models/echo/infer"
    answer = httpx.post(url, json=REQUEST, headers=headers, timeout=20.0, trust_env=False, verify=False)
    assert answer.status_code == 200, answer.text
    return float(answer.json()["outputs"][0]["data"][0])


@pytest.mark.early
def test_a_bad_version_is_taken_back_and_a_good_one_gets_everything(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        deploy(world)
        with users(world) as hammer:
            deploy(world, *ROLLOUT, factor=2, broken=True)
            taken_back = until(world, "taken-back")
            assert "went badly" in taken_back["verdict"]
            hit = sum(hammer.failures.values())
            assert 0 < hit < 0.01 * hammer.answered, hammer.counts
        assert world.ask("traffic", "echo")["parts"][0]["revision"] == "echo-00001"
        with users(world) as hammer:
            deploy(world, *ROLLOUT, factor=3)
            promoted = until(world, "promoted")
            codes = [event["code"] for event in promoted["events"] if event["code"] != "waits_for_traffic"]
            assert codes == ["begun", "ready", "step", "promoted"]
            assert factor(world) == 3.0
            world.cli("rollback", "echo")
            world.until(lambda: factor(world) == 1.0, 15.0, "the first version to serve again")
            assert not hammer.failures, "no request is lost while the traffic moves"
        text = world.cli("explain", "echo", "--last", "100").stdout
        assert re.search("rollout_(judged_bad|promoted)", text)


def test_a_shadow_tells_how_it_differs_and_a_split_by_hand_holds(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        deploy(world)
        with users(world, 0.02) as hammer:
            deploy(world, "--shadow-percent", "50", factor=2, work_s=0.02)
            world.until(
                lambda: world.ask("rollout", "echo")["shadow"]["output_differs"] >= 20, 20.0, "compared answers"
            )
            shadow = world.ask("rollout", "echo")["shadow"]
            assert shadow["p50_s"] > shadow["served_p50_s"]
            assert shadow["status_differs"] == shadow["failed"] == 0
            assert {factor(world) for _ in range(20)} == {1.0}, "no client sees it"
            world.cli("traffic", "echo", "--to", "1=80", "--to", "2=20", "--tag", "next=2")
            world.until(lambda: {factor(world) for _ in range(30)} == {1.0, 2.0}, 10.0, "both versions to answer")
            assert {factor(world, **{"tidegate-tag": "next"}) for _ in range(5)} == {2.0}
            assert not hammer.failures
        world.kill()
        world.up()
        assert [part["percent"] for part in world.ask("traffic", "echo")["parts"]] == [80.0, 20.0]


ACCELERATORS = """
accelerators:
  - {name: t4, kind: emulated, count: 1, memory: 16Gi, profile: {base: 9ms, per-item: 4ms}}
  - {name: v100, kind: emulated, count: 1, memory: 16Gi, profile: {base: 9ms, per-item: 1.2ms}}
"""


@pytest.mark.early
@pytest.mark.timeout(300)
def test_large_requests_go_to_the_stronger_group_and_nothing_is_lost_when_it_dies(tmp_path: Path) -> None:
    """How soon says nothing on a busy machine; what has to happen, and that nothing else is lost, does."""
    (tmp_path / "accelerators.yaml").write_text(ACCELERATORS)
    large = {"inputs": [{"name": "x", "shape": [64, 2], "datatype": "FP32", "data": [0.0] * 128}]}
    flags = ("--min-scale", "2", "--latency", "5s", "--concurrency", "1", "--idempotent", "true", "--wait")
    with deployment(tmp_path, "--accelerators-file", str(tmp_path / "accelerators.yaml")) as world:
        world.up()
        world.deploy(world.handler(), *flags)
        world.until(lambda: groups(world) == {"t4", "v100"}, 60.0, "a replica of each kind")
        path = "/v2/models/echo/infer"
        with (
            Hammer(world.gateway, json.dumps(large).encode(), path=path, fresh=0, kept=1, pause_s=0.2) as big,
            Hammer(world.gateway, json.dumps(REQUEST).encode(), path=path, fresh=0, kept=1, pause_s=0.03) as small,
        ):
            world.until(lambda: routing(world).startswith("cut by size"), 90.0, "a cut")
            world.until(lambda: "sizes_cut" in said(world), 60.0, "a decision that tells of it")
            freed = said(world).count("sizes_by_weights")
            stronger = next(key for key in world.living() if key.endswith(".server") and on(world, key) == "v100")
            world.end(stronger)
            world.until(lambda: said(world).count("sizes_by_weights") > freed, 60.0, "its sizes to be free")
            before = big.answered
            world.until(lambda: big.answered > before + 5, 60.0, "large requests to be served by the other")
            lost = [*big.failures.items(), *small.failures.items()]
            assert sum(count for _, count in lost) <= 1, f"but for what it was running: {lost}"


def said(world: Deployment) -> str:
    """What decided: codes and texts of the last decisions."""
    with world.sdk() as tidegate:
        return str(tidegate.explain("echo", last=200))


def groups(world: Deployment) -> set[str]:
    replicas = world.status("echo")["revisions"][0]["replicas"]
    return {each["accelerator"] for each in replicas if each["state"] == "ready"}


def routing(world: Deployment) -> str:
    return str(world.status("echo")["revisions"][0]["size_routing"])


def on(world: Deployment, server: str) -> str | None:
    """The accelerator of the replica whose model server this record is."""
    replicas = world.status("echo")["revisions"][0]["replicas"]
    return next((each["accelerator"] for each in replicas if server.startswith(each["id"])), None)


def test_a_rollback_runs_the_old_helper_modules_too(tmp_path: Path) -> None:
    """Only a module that the class imports changes; its folder is gone when the old revision returns."""
    folder = tmp_path / "code"
    (folder / "parts").mkdir(parents=True)
    (folder / "uses.py").write_text(USES)
    (folder / "parts" / "__init__.py").write_text("")

    def deployed(world: Deployment, factor: int) -> None:
        (folder / "parts" / "scale.py").write_text(f"FACTOR = {factor}\n")
        world.cli("deploy", f"{folder}/uses.py:Uses", "--name", "echo", "--min-scale", "0")

    with deployment(tmp_path) as world:
        world.up()
        deployed(world, 3)
        assert factor(world) == 3.0
        deployed(world, 5)
        world.until(lambda: factor(world) == 5.0, 15.0, "the second version")
        assert world.ask("list")[0]["revision"] == "echo-00002"
        shutil.rmtree(folder)
        world.cli("rollback", "echo")
        world.until(lambda: factor(world) == 3.0, 20.0, "the first version, with its helper")
