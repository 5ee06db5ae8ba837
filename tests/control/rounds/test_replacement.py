"""A new revision takes the place of the old one: the rules alone, then as timelines of the control round."""

from pathlib import Path

import pytest

from tests.support.worlds.autoscaling import demand
from tests.support.worlds.control_world import ControlWorld, function, in_world
from tidegate.control.rounds.handover import DRAIN_S, HOLD_S, PLACE_S, PlaceHandovers, less_held
from tidegate.control.views.functions import FunctionState
from tidegate.deploy.placement.ledger import Room
from tidegate.function import Scaling
from tidegate.records.replica_state import ReplicaState

READY = ReplicaState.READY


@pytest.mark.parametrize(
    ("free", "holders_free", "left"),
    [(0, 0, 0), (1, 1, 0), (3, 3, 2), (4, 2, 2), (4, 0, 0), (1, 2, 0)],
)
def test_a_held_place_is_taken_from_what_others_see(free: int, holders_free: int, left: int) -> None:
    assert less_held(Room(free=free, total=4), holders_free) == Room(free=left, total=4)


def test_a_hold_ends_by_itself_or_is_prolonged() -> None:
    takes = PlaceHandovers()
    takes.hold("echo", ["cpu"], 10.0)
    takes.hold("idle", [], 10.0)
    assert takes.holds(10.0 + HOLD_S - 0.1).keys() == {"echo"}
    takes.hold("echo", ["t4"], 20.0)
    assert takes.holds(10.0 + HOLD_S)["echo"].accelerators == {"cpu", "t4"}
    assert takes.holds(20.0 + HOLD_S) == {}


def test_going_ahead_is_in_vain_when_work_or_the_place_takes_too_long() -> None:
    takes = PlaceHandovers()
    takes.promote_early("echo", "echo-00002", 2, 100.0)
    assert takes.promoted_early("echo") == 2
    assert not takes.is_in_vain("echo", 101.0, is_old_there=True)
    assert takes.is_in_vain("echo", 100.0 + DRAIN_S, is_old_there=True)
    assert not takes.is_in_vain("echo", 110.0, is_old_there=False)
    assert takes.is_in_vain("echo", 110.0 + PLACE_S, is_old_there=False)
    takes.end("echo")
    assert takes.promoted_early("echo") is None
    assert takes.was_tried("echo-00002")


async def fill(world: ControlWorld) -> None:
    """All three places are taken, and a function waits for one."""
    await world.deploy(function("other", scaling=Scaling(min_scale=2)))
    await world.deploy(function(scaling=Scaling(min_scale=1)))
    await world.advance(2.0)
    assert len(world.replicas(READY)) == 3
    await world.deploy(function("greedy", scaling=Scaling(min_scale=1)))
    await world.advance(3.0)


def of(world: ControlWorld, name: str) -> list[str]:
    return [each.revision for each in world.replicas() if each.function == name]


def test_the_freed_place_goes_to_the_candidate_and_to_no_other_that_waits(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await fill(world)
        world.activate("greedy-00001")
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        for _ in range(8):
            world.activate("greedy-00001")
            await world.advance(1.0)
            assert of(world, "greedy") == []
        assert of(world, "echo") == ["echo-00002"]
        assert world.shares()["echo-00002"] == 100.0
        await world.delete("echo")
        await world.advance(3.0)
        assert of(world, "greedy") == ["greedy-00001"], "nothing is held for ever"

    in_world(tmp_path, tell)


def test_the_place_is_held_for_the_old_revision_when_the_new_one_does_not_start(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await fill(world)
        world.backend.break_starts("echo-00002", "no such weights", times=100)
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        await world.advance(15.0)
        assert of(world, "greedy") == []
        assert [each.revision for each in world.replicas(READY) if each.function == "echo"] == ["echo-00001"]
        assert world.shares()["echo-00001"] == 100.0

    in_world(tmp_path, tell)


def test_a_candidate_of_several_gets_one_place_while_others_wait(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(min_scale=3)))
        await world.advance(2.0)
        await world.deploy(function("greedy", scaling=Scaling(min_scale=1)))
        await world.deploy(function(scaling=Scaling(min_scale=1, max_scale=1)))
        for _ in range(3):
            world.activate("greedy-00001")
            await world.advance(1.0)
        assert "echo-00002" in of(world, "echo")
        await world.advance(5.0)
        assert of(world, "echo") == ["echo-00002"]
        assert of(world, "greedy") == ["greedy-00001"]

    in_world(tmp_path, tell)


def test_the_old_revision_serves_again_when_its_own_work_keeps_the_place(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await fill(world)
        (old,) = (each for each in world.replicas() if each.function == "echo")
        world.backend.begin_work(old.id)
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        await world.advance(8.0)
        assert world.shares()["echo-00002"] == 100.0, "it went ahead"
        assert world.loop.replacement.stuck(world.tracked("echo-00002"), world.clock.now()) is None, "and there is hope"
        await world.advance(DRAIN_S + 3.0)
        assert world.shares()["echo-00001"] == 100.0
        assert [each.id for each in world.replicas(READY) if each.function == "echo"] == [old.id], "taken back"
        stuck = world.loop.replacement.stuck(world.tracked("echo-00002"), world.clock.now())
        assert stuck == (
            "no accelerator has room for it: cpu has 0 of 3 places free; held by "
            "echo with 1 (kept as long as its minimum scale is 1), "
            "other with 2 (kept as long as its minimum scale is 2)"
        )

    in_world(tmp_path, tell)


def test_a_function_that_finds_no_room_says_so_after_two_seconds(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function("other", scaling=Scaling(min_scale=3)))
        await world.advance(2.0)
        await world.deploy(function())
        assert world.view().revisions[0].stuck is None
        await world.advance(3.0)
        assert world.view().revisions[0].stuck == (
            "no accelerator has room for it: cpu has 0 of 3 places free; "
            "held by other with 3 (kept as long as its minimum scale is 3)"
        )
        assert world.view().state is FunctionState.UNPLACED
        await world.delete("other")
        await world.advance(3.0)
        assert world.view().revisions[0].stuck is None
        assert world.view().state is FunctionState.READY
        assert of(world, "echo") == ["echo-00001"]

    in_world(tmp_path, tell)


def test_what_a_dry_run_wishes_lacks_no_place(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        dry = Scaling(min_scale=1, dry_run=True, policy="kpa", parameters={"metric": "rps", "target": "1"})
        await world.deploy(function(scaling=dry))
        for second in range(1, 12):
            arrivals = 100 * second
            report = demand("echo-00001", arrivals=arrivals, answered=arrivals, within_sla=arrivals)
            world.gateways.demands["echo-00001"] = report
            await world.advance(1.0)
        assert world.view().message is None
        (revision,) = world.view().revisions
        assert (revision.ready, revision.desired, revision.reasons[-1].code) == (1, 3, "capped_by_capacity")
        assert revision.unplaced == ()

    in_world(tmp_path, tell)


def test_a_dry_run_gives_up_a_place_of_those_that_it_really_has(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        dry = Scaling(min_scale=1, initial_scale=3, dry_run=True)
        await world.deploy(function(scaling=dry))
        await world.advance(3.0)
        assert len(world.replicas(ReplicaState.READY)) == 3
        await world.deploy(function(scaling=Scaling(min_scale=1, dry_run=True)))
        await world.advance(8.0)
        assert world.shares()["echo-00002"] == 100.0
        text = "\n".join(world.loop.autoscaler.core.explain("echo", 20))
        for sentence in ("gives up a replica for a new revision", "another revision serves, so this one ends"):
            assert sentence in text, "what the round makes of decisions is reported"

    in_world(tmp_path, tell)
