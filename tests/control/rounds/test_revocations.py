"""A kind on which starts come to nothing is given up for a while, and the next kind serves."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.support.worlds.control_world import CPU, ControlWorld, function, in_world
from tidegate.function import Scaling
from tidegate.records.replica_state import ReplicaState

DEARER = replace(CPU, name="cpu-big", price_per_hour=0.4)


def test_a_start_that_stays_pending_moves_to_the_next_kind_with_a_reason(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        world.backend.stalled = {"cpu"}
        await world.deploy(function())
        (first,) = world.replicas()
        assert first.accelerator == "cpu"
        await world.advance(125.0)
        assert [each.id for each in world.replicas()] == [first.id], "within its start timeout it is let be"
        world.activate("echo-00001")
        await world.advance(10.0)
        (second,) = world.replicas()
        assert (second.accelerator, second.state) == ("cpu-big", ReplicaState.READY)
        codes = {why.code for each in world.loop.autoscaler.core.decisions("echo", 50) for why in each.reasons}
        assert "start_revoked" in codes
        assert 'tidegate_revoked_starts_total{revision="echo-00001",accelerator="cpu"} 1\n' in world.exposition()

    in_world(tmp_path, tell, others=(DEARER,))


def test_starts_that_break_on_every_kind_go_on_being_tried(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        world.backend.break_starts("echo-00001", "no module named x", 10_000)
        await world.deploy(function())
        tried: set[str] = set()
        for _ in range(60):
            world.activate("echo-00001")
            await world.advance(10.0)
            tried |= {each.accelerator for each in world.backend.replicas()}
        assert tried == {"cpu", "cpu-big"}
        assert world.loop.world.revocations.counts[("echo-00001", "cpu")] >= 1

    in_world(tmp_path, tell, others=(DEARER,))


def test_a_barred_kind_is_tried_again_when_the_other_is_full_or_gone(tmp_path: Path) -> None:
    async def tell(world: ControlWorld, full: bool) -> None:
        world.backend.stalled = {"cpu"}
        await world.deploy(function())
        await world.advance(132.0)
        assert world.loop.world.revocations.counts[("echo-00001", "cpu")] == 1
        world.backend.stalled = set()
        await world.advance(1.0)
        for each in world.replicas():
            await world.backend.remove(each.id)
        if full:
            await world.deploy(function("other", scaling=Scaling(min_scale=3), accelerators=("cpu-big",)))
        else:
            world.backend.set_accelerators([CPU])
        world.activate("echo-00001")
        await world.advance(3.0)
        there = {each.accelerator for each in world.replicas(ReplicaState.READY) if each.function == "echo"}
        assert there == {"cpu"}

    for full in (True, False):
        folder = tmp_path / str(full)
        folder.mkdir()
        in_world(folder, partial(tell, full=full), others=(DEARER,))


def test_a_ready_replica_proves_the_only_kind_too(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        world.backend.break_starts("echo-00001", "no space", 1)
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        await world.advance(5.0)
        assert world.replicas(ReplicaState.READY)
        assert not world.loop.world.revocations.needs_review("echo-00001", world.replicas())

    in_world(tmp_path, tell)
