"""What is deployed survives a restart; a revision that never was ready does not replace one that was."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.control.state.registry import KEPT_REVISIONS, Deployed, Registry
from tidegate.function import Function, Scaling, Server, ServerKind
from tidegate.records.rollout import Phase, Rollout, RolloutPlan
from tidegate.store.embedded import EmbeddedStore
from tidegate.store.records import StoreFaultError


def function(name: str = "echo", **changes: object) -> Function:
    return Function(name=name, server=Server(kind=ServerKind.MODEL, target="/m.onnx"), models=(name,), **changes)  # type: ignore[arg-type]  # keywords pass through


def story(tmp_path: Path, tell: Callable[[Registry], Awaitable[None]]) -> None:
    async def run() -> None:
        store = await EmbeddedStore.open(tmp_path / "state.db")
        try:
            await tell(await Registry.load(store))
        finally:
            await store.close()

    asyncio.run(run())


async def deploy(registry: Registry, wanted: Function, now: float = 1.0) -> int:
    return (await registry.deploy(wanted, manifest="text", source="echo.yaml", now=now)).number


def test_the_first_revision_is_current_and_unproven(tmp_path: Path) -> None:
    async def tell(registry: Registry) -> None:
        await deploy(registry, function())
        deployed = registry.get("echo")
        assert deployed is not None
        assert (deployed.current.number, deployed.candidate, deployed.proven) == (1, None, False)
        assert registry.revision("echo-00001") == deployed.current
        assert registry.revision("echo-00002") is None
        assert registry.revision("echo") is None

    story(tmp_path, tell)


def test_a_redeploy_waits_as_candidate_until_it_was_ready(tmp_path: Path) -> None:
    async def tell(registry: Registry) -> None:
        await deploy(registry, function())
        registry.promote("echo", 1)
        await registry.save("echo")
        await deploy(registry, function(timeout_s=10.0))
        deployed = registry.get("echo")
        assert deployed is not None
        assert deployed.current.number == 1
        assert deployed.candidate is not None
        assert deployed.candidate.function.timeout_s == 10.0
        registry.promote("echo", 2)
        await registry.save("echo")
        deployed = registry.get("echo")
        assert deployed is not None
        assert (deployed.current.number, deployed.candidate, deployed.proven) == (2, None, True)

    story(tmp_path, tell)


def test_a_revision_that_never_was_ready_is_replaced_at_once(tmp_path: Path) -> None:
    async def tell(registry: Registry) -> None:
        await deploy(registry, function())
        await deploy(registry, function())
        deployed = registry.get("echo")
        assert deployed is not None
        assert (deployed.current.number, deployed.candidate) == (2, None)

    story(tmp_path, tell)


def test_a_function_that_starts_at_zero_takes_traffic_at_once(tmp_path: Path) -> None:
    async def tell(registry: Registry) -> None:
        await deploy(registry, function())
        registry.promote("echo", 1)
        await registry.save("echo")
        await deploy(registry, function(scaling=Scaling(initial_scale=0)))
        deployed = registry.get("echo")
        assert deployed is not None
        assert (deployed.current.number, deployed.candidate) == (2, None)

    story(tmp_path, tell)


def test_everything_survives_a_restart(tmp_path: Path) -> None:
    async def before(registry: Registry) -> None:
        await deploy(registry, function("a", env={"KEY": "value"}), now=5.0)
        registry.promote("a", 1)
        await registry.save("a")
        await deploy(registry, function("a"))
        await deploy(registry, function("b"))

    async def after(registry: Registry) -> None:
        first, second = registry.all()
        assert first.candidate is not None
        assert (first.name, first.current.number, first.candidate.number) == ("a", 1, 2)
        assert first.current.function.env == {"KEY": "value"}
        assert (first.current.manifest, first.current.source, first.current.created_at) == ("text", "echo.yaml", 5.0)
        assert (second.name, second.proven) == ("b", False)

    story(tmp_path, before)
    story(tmp_path, after)


def test_numbers_go_on_after_a_delete(tmp_path: Path) -> None:
    async def tell(registry: Registry) -> None:
        await deploy(registry, function())
        registry.promote("echo", 1)
        await registry.save("echo")
        assert await registry.delete("echo")
        assert not await registry.delete("echo")
        assert registry.get("echo") is None
        assert registry.all() == ()
        assert await deploy(registry, function()) == 2
        deployed = registry.get("echo")
        assert deployed is not None
        assert not deployed.proven

    story(tmp_path, tell)


def test_old_revisions_are_forgotten_but_not_the_serving_one(tmp_path: Path) -> None:
    async def tell(registry: Registry) -> None:
        await deploy(registry, function())
        registry.promote("echo", 1)
        await registry.save("echo")
        for _ in range(KEPT_REVISIONS + 3):
            await deploy(registry, function())
        assert registry.revision("echo-00001") is not None
        assert registry.revision("echo-00002") is None
        assert registry.revision(f"echo-{KEPT_REVISIONS + 4:05d}") is not None

    story(tmp_path, tell)


def test_a_deploy_that_cannot_be_kept_is_refused_and_a_promotion_holds(tmp_path: Path) -> None:
    async def run() -> None:
        store = await EmbeddedStore.open(tmp_path / "state.db", max_pages=12)
        registry = await Registry.load(store)
        await deploy(registry, function())
        with pytest.raises(StoreFaultError, match="full"):
            await registry.deploy(function(), manifest="x" * 200_000, source="", now=1.0)
        registry.promote("echo", 1)
        await registry.save("echo")
        deployed = registry.get("echo")
        assert deployed is not None
        assert (deployed.current.number, deployed.proven) == (1, True)
        await store.close()

    asyncio.run(run())


def test_a_record_from_elsewhere_is_said_aloud(tmp_path: Path) -> None:
    async def run() -> None:
        store = await EmbeddedStore.open(tmp_path / "state.db")
        await store.put("functions/x", b'{"name": 7}')
        with pytest.raises(StoreFaultError, match="cannot be read"):
            await Registry.load(store)
        await store.close()

    asyncio.run(run())


def test_the_way_back_leads_past_what_was_left_before(tmp_path: Path) -> None:
    async def tell(registry: Registry) -> None:
        for number in (1, 2, 3):
            await deploy(registry, function(timeout_s=float(number)))
            registry.promote("echo", number)
        assert registry.earlier("echo") == 2
        await registry.give_back("echo", 2, 1.0)
        registry.promote("echo", 2)
        assert registry.earlier("echo") == 1
        await registry.give_back("echo", 1, 1.0)
        registry.promote("echo", 1)
        assert registry.earlier("echo") is None
        await deploy(registry, function(timeout_s=4.0))
        registry.promote("echo", 4)
        assert registry.earlier("echo") == 1, "not to those that were rolled back from"

    story(tmp_path, tell)


def test_what_is_in_use_is_kept_however_old(tmp_path: Path) -> None:
    async def tell(registry: Registry) -> None:
        for number in (1, 2):
            await deploy(registry, function(timeout_s=float(number)))
            registry.promote("echo", number)
        await registry.split("echo", {2: 100.0}, {"stable": 1}, 1.0)
        for number in range(3, KEPT_REVISIONS + 6):
            await deploy(registry, function(timeout_s=float(number)))
        kept = registry.numbers("echo")
        assert {1, 2} <= kept.keys()
        assert 3 not in kept
        deployed = registry.get("echo")
        assert deployed is not None
        assert (deployed.current.number, [each.number for each in deployed.others]) == (2, [1])
        assert not deployed.is_direct

    story(tmp_path, tell)


def test_what_was_asked_for_last_is_what_a_restart_finds(tmp_path: Path) -> None:
    async def run() -> None:
        store = await EmbeddedStore.open(tmp_path / "state.db")
        registry = await Registry.load(store)
        await deploy(registry, function())
        registry.promote("echo", 1)
        await deploy(registry, function(timeout_s=9.0))
        rollout = Rollout(candidate=2, base=1, plan=RolloutPlan(canary_steps=(1.0,)), began_at=0.0)
        await registry.begin("echo", rollout)

        async def step() -> None:
            """A decision of the control process while the other write is under way."""
            registry.roll("echo", replace(rollout, phase=Phase.RUNNING))
            await registry.save("echo")

        await asyncio.gather(registry.steer("echo", replace(rollout, phase=Phase.ABORTED)), step())
        found = (await Registry.load(store)).get("echo")
        assert found is not None
        assert found.rollout is not None
        assert found.rollout.phase is Phase.ABORTED
        assert found == registry.get("echo")
        await store.close()

    asyncio.run(run())


Ask = Callable[[Registry, Rollout], Awaitable[object]]


@pytest.mark.parametrize(
    "ask",
    [
        lambda registry, _: registry.split("echo", None, {"stable": 1}, 1.0),
        lambda registry, rollout: registry.steer("echo", replace(rollout, phase=Phase.PAUSED)),
        lambda registry, _: deploy(registry, function(timeout_s=8.0)),
        lambda registry, rollout: registry.give_back("echo", 1, 1.0, replace(rollout, phase=Phase.ABORTED)),
    ],
)
def test_what_is_judged_while_a_wish_is_written_stays(tmp_path: Path, ask: Ask) -> None:
    async def tell(registry: Registry) -> None:
        await deploy(registry, function())
        registry.promote("echo", 1)
        await deploy(registry, function(timeout_s=9.0))
        rollout = Rollout(candidate=2, base=1, plan=RolloutPlan(canary_steps=(1.0,)), began_at=0.0)
        await registry.begin("echo", replace(rollout, phase=Phase.RUNNING))

        async def judged() -> None:
            registry.roll("echo", replace(rollout, phase=Phase.TAKEN_BACK))
            await registry.save("echo")

        await asyncio.gather(ask(registry, rollout), judged())
        found = registry.get("echo")
        assert found is not None
        assert found.rollout is not None
        assert (found.rollout.phase, found.current.number) == (Phase.TAKEN_BACK, 1)
        seen.append(found)

    async def again(registry: Registry) -> None:
        assert registry.get("echo") == seen[0]

    seen: list[Deployed] = []
    story(tmp_path, tell)
    story(tmp_path, again)


def test_revisions_of_a_deleted_function_are_none_of_a_new_one_of_its_name(tmp_path: Path) -> None:
    async def tell(registry: Registry) -> None:
        await deploy(registry, function())
        registry.promote("echo", 1)
        await registry.delete("echo")
        await deploy(registry, function(timeout_s=9.0))
        registry.promote("echo", 2)
        assert registry.earlier("echo") is None
        await deploy(registry, function(timeout_s=8.0))
        registry.promote("echo", 3)
        await registry.save("echo")

    async def again(registry: Registry) -> None:
        assert (sorted(registry.numbers("echo")), registry.earlier("echo")) == ([2, 3], 2)
        assert registry.revision("echo-00001") is not None, "it may still be draining"

    story(tmp_path, tell)
    story(tmp_path, again)
