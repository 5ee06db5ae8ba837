"""``scaling.max-replicas`` where it binds: deploys go through, and no function loses its place to a name."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.worlds.control_world import CPU, ControlWorld, function, in_world
from tidegate.function import Scaling
from tidegate.records.replica_state import ReplicaState
from tidegate.records.rollout import RolloutPlan

AWAKE = Scaling(min_scale=1)
LAZY = Scaling(scale_to_zero_after_s=300.0, initial_scale=0)
ROOMY = replace(CPU, count=9)
CANARY = RolloutPlan(canary_steps=(10.0, 50.0), canary_window_s=20.0)


def ready(world: ControlWorld) -> set[str]:
    return {each.revision for each in world.replicas(ReplicaState.READY)}


def test_the_only_place_goes_from_the_old_revision_to_the_new_one(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function("z", scaling=Scaling()))
        await world.advance(5.0)
        await world.deploy(function("z", timeout_s=99.0, scaling=Scaling()))
        message = world.view("z").message
        assert message is not None and "scaling.max-replicas" in message
        await world.advance(10.0)
        assert world.shares() == {"z-00002": 100.0}
        assert (ready(world), world.view("z").message) == ({"z-00002"}, None)

    in_world(tmp_path, tell, accelerator=ROOMY, max_replicas=1)


@pytest.mark.parametrize(("deployed", "other"), [("a", "z"), ("z", "a")])
def test_a_deploy_takes_no_other_functions_replica(tmp_path: Path, deployed: str, other: str) -> None:
    async def tell(world: ControlWorld) -> None:
        for name in ("a", "z"):
            await world.deploy(function(name, scaling=AWAKE))
        await world.advance(5.0)
        await world.deploy(function(deployed, timeout_s=99.0, scaling=AWAKE))
        for _ in range(10):
            await world.advance(1.0)
            assert f"{other}-00001" in ready(world)
            assert len(world.replicas()) <= 2
        assert f"{deployed}-00002" in ready(world)

    in_world(tmp_path, tell, accelerator=ROOMY, max_replicas=2)


@pytest.mark.parametrize(("idle", "asked"), [("a", "z"), ("z", "a")])
def test_a_request_has_the_place_of_a_replica_that_only_waits_for_its_time(
    tmp_path: Path, idle: str, asked: str
) -> None:
    async def tell(world: ControlWorld) -> None:
        for name in ("a", "z"):
            await world.deploy(function(name, scaling=LAZY))
        world.activate(f"{idle}-00001")
        await world.advance(3.0)
        world.answered(f"{idle}-00001")
        await world.advance(20.0)
        assert ready(world) == {f"{idle}-00001"}
        world.activate(f"{asked}-00001")
        await world.advance(4.0)
        assert ready(world) == {f"{asked}-00001"}
        assert world.refusal(f"{asked}-00001") is None

    in_world(tmp_path, tell, accelerator=ROOMY, max_replicas=1)


def test_a_rollout_waits_for_its_place_and_says_so(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        for name in ("a", "z"):
            await world.deploy(function(name, scaling=AWAKE))
        await world.advance(5.0)
        await world.deploy(function("z", timeout_s=99.0, scaling=Scaling(), rollout=CANARY))
        await world.advance(10.0)
        assert ready(world) == {"a-00001", "z-00001"}
        assert "scaling.max-replicas" in str(world.view("z").message)
        await world.delete("a")
        await world.advance(5.0)
        assert world.shares() == {"z-00001": 90.0, "z-00002": 10.0}

    in_world(tmp_path, tell, accelerator=ROOMY, max_replicas=2)


def test_a_draining_replica_is_taken_back_though_the_limit_is_used_up(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function("z"))
        await world.advance(3.0)
        (replica,) = world.replicas()
        world.backend.begin_work(replica.id)
        await world.advance(30.0)
        assert [each.state for each in world.replicas()] == [ReplicaState.DRAINING]
        world.activate("z-00001")
        await world.settle()
        assert [(each.id, each.state) for each in world.replicas()] == [(replica.id, ReplicaState.READY)]

    in_world(tmp_path, tell, accelerator=ROOMY, max_replicas=1)


def test_a_canary_that_has_its_place_keeps_it(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function("z", scaling=AWAKE))
        await world.deploy(function("a", scaling=LAZY))
        await world.advance(5.0)
        await world.deploy(function("z", timeout_s=99.0, scaling=Scaling(), rollout=CANARY))
        await world.advance(5.0)
        assert "z-00002" in ready(world)
        world.activate("a-00001")
        for _ in range(30):
            await world.advance(1.0)
            assert ready(world) == {"z-00001", "z-00002"}

    in_world(tmp_path, tell, accelerator=ROOMY, max_replicas=2)


def test_a_start_is_let_to_its_end_though_another_asks_meanwhile(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        world.backend.start_up_s = 8.0
        for name in ("a", "z"):
            await world.deploy(function(name, scaling=LAZY))
        await world.advance(3.0)
        world.activate("a-00001")
        for asked, other in (("z", "a"), ("a", "z"), ("z", "a")):
            await world.advance(3.0)
            world.answered(f"{other}-00001")
            world.activate(f"{asked}-00001")
        assert ready(world) == {"a-00001"}

    in_world(tmp_path, tell, accelerator=ROOMY, max_replicas=1)
