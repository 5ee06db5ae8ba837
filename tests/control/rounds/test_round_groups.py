"""Decisions by accelerator, as they are written down, carried out and shown."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.worlds.control_world import ControlWorld, function, in_world
from tidegate.autoscaler.profiles.admission import assess
from tidegate.control.views.functions import GroupView
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind, Profile
from tidegate.function import Revision, Scaling, Sla
from tidegate.records.replica_state import ReplicaState

T4 = Accelerator(
    name="t4",
    kind=AcceleratorKind.EMULATED,
    count=2,
    memory_bytes=1 << 30,
    price_per_hour=0.5,
    profile=Profile(base_s=0.01, per_item_s=0.0),
)
V100 = replace(T4, name="v100", count=4, price_per_hour=3.0)


def present(world: ControlWorld) -> dict[str, int]:
    """Replicas that are wanted to go on, by accelerator."""
    return Counter(each.accelerator for each in world.replicas() if each.is_wanted)


def shown(world: ControlWorld) -> dict[str, GroupView]:
    return {each.accelerator: each for each in world.view().revisions[0].groups}


def test_what_is_decided_for_each_accelerator_is_carried_out_and_shown(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        world.backend.set_accelerators([T4, V100])
        await world.deploy(function(scaling=Scaling(min_scale=3)))
        await world.advance(3.0)
        (decision,) = (each.decision for each in world.loop.world.tracked("echo"))
        assert decision is not None
        assert decision.groups is not None
        decided = {each.accelerator: each.replicas for each in decision.groups}
        assert decided == {"t4": 2, "v100": 1}, "the cheaper one first"
        assert present(world) == decided
        groups = shown(world)
        assert {name: (each.wanted, each.ready, each.room) for name, each in groups.items()} == {
            "t4": (2, 2, 0),
            "v100": (1, 1, 3),
        }
        assert {each.share for each in groups.values()} == {each.share for each in decision.groups} == {100}
        assert all(each.emulated for each in groups.values())
        assert decision.reasons
        assert [each.code for each in world.view().revisions[0].reasons] == [each.code for each in decision.reasons]
        (logged,) = world.loop.autoscaler.core.decisions("echo", 1)
        assert logged.groups == decision.groups

    in_world(tmp_path, tell)


@pytest.mark.parametrize("policy", ["smif", "kpa"])
def test_the_first_replica_starts_where_the_deploy_said_that_the_target_can_be_met(tmp_path: Path, policy: str) -> None:
    async def tell(world: ControlWorld) -> None:
        quick = replace(V100, profile=Profile(base_s=0.004, per_item_s=0.0))
        world.backend.set_accelerators([T4, quick])
        wanted = function(scaling=Scaling(policy=policy, scale_to_zero_after_s=10.0), sla=Sla(latency_s=0.008))
        answer = assess(wanted, world.loop.profiles.kinds(Revision(wanted, 1)))
        assert [(each.accelerator, each.meets_latency) for each in answer.kinds] == [("t4", False), ("v100", True)]
        assert answer.price_per_hour == 3.0
        await world.deploy(wanted)
        await world.advance(3.0)
        assert present(world) == {"v100": 1}
        codes = [each.code for each in world.loop.autoscaler.core.decisions("echo", 100)[0].reasons]
        assert "passed_over" in codes, "the log says why the cheaper one was left out"

    in_world(tmp_path, tell)


def test_other_service_times_in_the_accelerators_file_count_for_the_next_start(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        world.backend.set_accelerators([T4, V100])
        await world.deploy(function(scaling=Scaling(initial_scale=0), sla=Sla(latency_s=0.05)))
        world.backend.set_accelerators([replace(T4, profile=Profile(base_s=0.1, per_item_s=0.0)), V100])
        world.loop.profiles.accelerators_changed()
        given = {name: world.loop.profiles.given("echo-00001", name) for name in ("t4", "v100")}
        assert {name: each and each.one_s for name, each in given.items()} == {"t4": 0.1, "v100": 0.01}

    in_world(tmp_path, tell)


def test_replicas_leave_an_accelerator_that_is_gone_when_others_are_ready(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        world.backend.set_accelerators([T4, V100])
        await world.deploy(function(scaling=Scaling(min_scale=2, max_scale=2)))
        await world.advance(3.0)
        assert present(world) == {"t4": 2}
        world.backend.set_accelerators([V100])
        ready = []
        for _ in range(6):
            await world.second()
            ready.append(len(world.replicas(ReplicaState.READY)))
            await world.advance(1.0)
        assert min(ready) >= 2, "no moment with less than before"
        assert present(world) == {"v100": 2}
        assert [each.name for each in world.backend.devices()] == ["v100"]

    in_world(tmp_path, tell)


def test_a_smaller_accelerator_keeps_what_fits(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        world.backend.set_accelerators([V100])
        await world.deploy(function(scaling=Scaling(min_scale=4, max_scale=4)))
        await world.advance(3.0)
        world.backend.set_accelerators([replace(V100, count=1)])
        await world.advance(3.0)
        assert present(world) == {"v100": 1}
        reasons = {each.code for each in world.view().revisions[0].reasons}
        assert "capped_by_capacity" in reasons

    in_world(tmp_path, tell)
