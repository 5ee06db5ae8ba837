"""Idle functions lock no other out: the round over a fake backend with fewer places than functions."""

from dataclasses import replace
from pathlib import Path

from tests.support.worlds.control_world import CPU, ControlWorld, function, in_world
from tidegate.control.views.functions import FunctionState
from tidegate.function import Scaling
from tidegate.records.replica_state import ReplicaState
from tidegate.records.tenants import AccessRule

LONG = Scaling(scale_to_zero_after_s=600.0)
TWO = replace(CPU, count=2)


def ready(world: ControlWorld) -> set[str]:
    return {each.function for each in world.replicas(ReplicaState.READY)}


def test_three_deploys_work_in_a_row_on_one_place_and_each_can_be_called(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        for name in ("a", "b", "c"):
            await world.deploy(function(name, scaling=LONG))
            await world.advance(6.0)
            assert ready(world) == {name}
        for name in ("a", "b"):
            world.activate(f"{name}-00001")
            await world.advance(6.0)
            assert (ready(world), world.refusal(f"{name}-00001")) == ({name}, None)
            world.answered(f"{name}-00001")
            await world.advance(4.0)

    in_world(tmp_path, tell, accelerator=replace(CPU, count=1))


def test_the_request_is_held_meanwhile_and_both_functions_say_why(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        for name in ("a", "b"):
            await world.deploy(function(name, scaling=LONG))
        await world.deploy(function("c", scaling=replace(LONG, initial_scale=0)))
        await world.advance(5.0)
        (held,) = (each for each in world.replicas() if each.function == "a")
        world.backend.begin_work(held.id)  # its process takes long to end
        world.activate("c-00001")
        await world.settle()
        await world.second()
        assert world.view("c").state is FunctionState.STARTING
        assert world.view("c").message == "a place is being freed for it: a gives up an idle replica on cpu"
        await world.advance(8.0)
        assert world.refusal("c-00001") is None, "held, however long the place takes"
        world.backend.end_work(held.id)
        await world.advance(3.0)
        assert ready(world) == {"b", "c"}
        message = world.view("a").message
        assert message is not None and "given up" in message and "to c: 1 waiting; never used" in message
        text = "\n".join(world.loop.autoscaler.core.explain("a"))
        now = text[text.index("now, a-00001") :]
        assert "place_given_up: a replica of it was given up for a function that had no place (to c" in now
        assert "the next request starts it" in now

    in_world(tmp_path, tell, accelerator=TWO)


def test_a_refusal_names_who_holds_the_places_and_until_when_but_no_protected_function(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function("a", scaling=replace(LONG, min_scale=1)))
        await world.deploy(function("secret", scaling=replace(LONG, min_scale=1), access=AccessRule(api_keys=True)))
        await world.deploy(function("c", scaling=replace(LONG, initial_scale=0)))
        for _ in range(8):
            world.activate("c-00001")
            await world.advance(1.0)
        assert world.refusal("c-00001") == (
            "no accelerator has room for it: cpu has 0 of 2 places free; "
            "held by a with 1 (kept as long as its minimum scale is 1), 1 other function"
        )
        assert "secret with 1" in str(world.view("c").message), "the operator sees all"

    in_world(tmp_path, tell, accelerator=TWO)


def test_under_the_limit_over_all_functions_the_never_used_one_gives_way(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        for name in ("a", "b"):
            await world.deploy(function(name, scaling=LONG))
        await world.deploy(function("c", scaling=replace(LONG, initial_scale=0)))
        await world.advance(3.0)
        world.activate("a-00001")
        await world.advance(2.0)
        world.answered("a-00001")
        await world.advance(5.0)
        world.activate("c-00001")
        await world.advance(5.0)
        assert ready(world) == {"a", "c"}

    in_world(tmp_path, tell, accelerator=replace(CPU, count=9), max_replicas=2)


def test_a_deploy_that_does_not_start_takes_a_place_once(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        world.backend.break_starts("bad-00001", "no module named x", 1000)
        await world.deploy(function("a", scaling=LONG))
        await world.advance(5.0)
        await world.deploy(function("bad", scaling=LONG))
        await world.advance(5.0)
        assert ready(world) == set(), "it was tried"
        world.activate("a-00001")
        await world.advance(5.0)
        world.answered("a-00001")
        for _ in range(60):
            await world.advance(1.0)
            assert ready(world) == {"a"}

    in_world(tmp_path, tell, accelerator=replace(CPU, count=1))
