"""What a policy has learnt: kept over a restart and a kill, given to the next revision of the model, deleted."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from tests.support.worlds.autoscaling import T0, group, observation
from tidegate.autoscaler.autoscaler import StandaloneContext
from tidegate.autoscaler.live import LiveAutoscaler
from tidegate.autoscaler.measure.observation import ArrivalCounts, Observation
from tidegate.autoscaler.policies.policy_state import restored
from tidegate.autoscaler.policies.tide.memory import TideMemory
from tidegate.autoscaler.policies.tide.policy import ROW
from tidegate.clock import ManualClock
from tidegate.control.watch.memories import KEPT_EVERY_S, PREFIX, PolicyMemories
from tidegate.function import Batching, Function, Revision, Scaling, Server, ServerKind, Sla
from tidegate.store.embedded import EmbeddedStore


def revision(number: int = 1, **values: Any) -> Revision:
    function = Function(
        name="echo",
        server=Server(kind=ServerKind.HANDLER, target="/echo.py:Echo"),
        sla=Sla(latency_s=0.3, percentile=99.0),
        scaling=Scaling(policy="tide"),
    )
    return Revision(replace(function, **values), number)


class Life:
    """One life of a control process over a store."""

    def __init__(self, store: EmbeddedStore, now: float) -> None:
        self.clock = ManualClock(now)
        self.core = LiveAutoscaler(self.clock, StandaloneContext()).core
        self.memories = PolicyMemories(self.core, self.clock, store)
        self._arrived = 0.0

    def track(self, wanted: Revision) -> None:
        self.core.apply(wanted)
        self.memories.track(wanted)

    async def seconds(self, wanted: Revision, count: int, rate: float = 20.0) -> None:
        for _ in range(count):
            self.clock.advance(1.0)
            self._arrived += rate
            one = group("t4", ready=4, limit=1, services=((1.0, 0.1),), price_per_hour=0.5)
            seen = observation(one, at=self.clock.now(), counts=ArrivalCounts(((1.0, self._arrived),), 0.0))
            self.core.decider.tick(self.clock.now(), of_revision(seen, wanted))
            await self.memories.review()

    def learnt(self, wanted: Revision) -> TideMemory | None:
        plain = self.core.decider.memory(wanted.id)
        found: TideMemory | None = None if plain is None else restored(plain, wanted.function, ROW.keeps)
        return found


def of_revision(seen: Observation, wanted: Revision) -> Observation:
    return structs.replace(seen, revision=wanted.id, function=wanted.function.name)


def at_store(
    folder: Path, tell: Callable[[Callable[[float], Awaitable[Life]], EmbeddedStore], Awaitable[None]]
) -> None:
    """Runs a story of several lives over one store."""

    async def story() -> None:
        store = await EmbeddedStore.open(folder / "state.db")

        async def begin(now: float) -> Life:
            life = Life(store, now)
            await life.memories.load()
            return life

        try:
            await tell(begin, store)
        finally:
            await store.close()

    asyncio.run(story())


async def taught(begin: Callable[[float], Awaitable[Life]], seconds: int = 700) -> tuple[Life, Revision]:
    life, wanted = await begin(T0), revision()
    life.track(wanted)
    await life.seconds(wanted, seconds)
    return life, wanted


def test_what_was_learnt_outlives_the_end_and_the_time_away_passes(tmp_path: Path) -> None:
    async def tell(begin: Callable[[float], Awaitable[Life]], store: EmbeddedStore) -> None:
        life, wanted = await taught(begin)
        await life.memories.close()
        before = life.learnt(wanted)
        later = await begin(life.clock.now() + 3600.0)
        later.track(wanted)
        found = later.learnt(wanted)
        assert before is not None
        assert found is not None
        assert found.outlook.seconds == before.outlook.seconds + 3600
        assert (found.reference, found.ca2, found.shares) == ("t4", before.ca2, before.shares)
        assert repr(found.price) == repr(before.price)
        assert any("learnt: " in line for line in await lines_of(later, wanted))

    at_store(tmp_path, tell)


async def lines_of(life: Life, wanted: Revision) -> list[str]:
    await life.seconds(wanted, 2)
    return life.core.explain("echo")


def test_a_kill_loses_ten_minutes_at_most(tmp_path: Path) -> None:
    async def tell(begin: Callable[[float], Awaitable[Life]], store: EmbeddedStore) -> None:
        life, wanted = await taught(begin, int(KEPT_EVERY_S) + 60)
        killed_at = life.clock.now()
        later = await begin(killed_at + 5.0)
        later.track(wanted)
        found = later.learnt(wanted)
        assert found is not None
        assert found.outlook.seconds >= KEPT_EVERY_S

    at_store(tmp_path, tell)


def test_a_clock_that_was_set_back_loses_nothing(tmp_path: Path) -> None:
    async def tell(begin: Callable[[float], Awaitable[Life]], store: EmbeddedStore) -> None:
        life, wanted = await taught(begin)
        await life.memories.close()
        later = await begin(T0 - 86_400.0)
        later.track(wanted)
        found, before = later.learnt(wanted), life.learnt(wanted)
        assert found is not None
        assert before is not None
        assert found.outlook.seconds == before.outlook.seconds
        await later.seconds(wanted, 5)
        last = later.core.decider.last(wanted.id)
        assert last is not None
        assert last.desired in {4, 5}

    at_store(tmp_path, tell)


def test_a_redeploy_of_the_model_continues_and_another_model_begins_without_it(tmp_path: Path) -> None:
    async def tell(begin: Callable[[float], Awaitable[Life]], store: EmbeddedStore) -> None:
        life, wanted = await taught(begin)
        same = revision(2, sla=Sla(latency_s=0.4, percentile=99.0))
        other, kpa = revision(3, batching=Batching(max_size=8)), revision(4, scaling=Scaling(policy="kpa"))
        for each in (same, other, kpa):
            life.track(each)
        found = life.learnt(same)
        assert found is not None
        assert found.outlook.seconds == 700
        assert life.learnt(other) is None
        assert life.learnt(kpa) is None
        # The two go on apart.
        await life.seconds(wanted, 10)
        again = life.learnt(same)
        assert again is not None
        assert again.outlook.seconds == 700

    at_store(tmp_path, tell)


def test_the_load_so_far_is_the_newest_revisions(tmp_path: Path) -> None:
    async def tell(begin: Callable[[float], Awaitable[Life]], store: EmbeddedStore) -> None:
        life, _ = await taught(begin, 30)
        assert life.memories.load_of("other") is None
        life.track(revision(2))
        found = life.memories.load_of("echo")
        assert found is not None
        assert 18.0 <= found.requests_per_s <= 20.0
        assert found.size == 1.0

    at_store(tmp_path, tell)


def test_what_was_learnt_of_a_deleted_function_is_deleted(tmp_path: Path) -> None:
    async def tell(begin: Callable[[float], Awaitable[Life]], store: EmbeddedStore) -> None:
        life, wanted = await taught(begin, 5)
        await life.memories.close()
        assert await store.list(PREFIX)
        life.memories.forget(wanted.id)
        life.memories.drop("echo")
        await life.memories.review()
        assert not await store.list(PREFIX)

    at_store(tmp_path, tell)


def test_what_was_learnt_is_deleted_and_the_function_goes_on_from_nothing(tmp_path: Path) -> None:
    async def tell(begin: Callable[[float], Awaitable[Life]], store: EmbeddedStore) -> None:
        life, wanted = await taught(begin)
        last = life.core.decider.last(wanted.id)
        (said, *_) = await life.memories.unlearn("echo")
        assert said.startswith("over 700 s: changes from ")
        assert not await store.list(PREFIX)
        assert life.learnt(wanted) is None
        assert [each.code for each in life.core._notes[wanted.id]] == ["memory_forgotten"]
        await life.seconds(wanted, 1)
        found, now = life.learnt(wanted), life.core.decider.last(wanted.id)
        assert found is not None
        assert found.outlook.seconds == 1
        # The second after it is no burst, and what runs stays.
        assert last is not None
        assert now is not None
        assert now.observed["level"] == last.observed["level"]
        assert now.desired == last.desired
        # What is written next, and read by the next life, is what was learnt since.
        await life.memories.close()
        later = await begin(life.clock.now() + 5.0)
        later.track(wanted)
        again = later.learnt(wanted)
        assert again is not None
        assert again.outlook.seconds == 6

    at_store(tmp_path, tell)


def test_of_a_policy_that_learns_nothing_there_is_nothing_to_delete(tmp_path: Path) -> None:
    async def tell(begin: Callable[[float], Awaitable[Life]], store: EmbeddedStore) -> None:
        life, wanted = await begin(T0), revision(scaling=Scaling(policy="kpa"))
        life.track(wanted)
        assert await life.memories.unlearn("echo") == ()
        assert await life.memories.unlearn("other") == ()
        assert wanted.id not in life.core._notes

    at_store(tmp_path, tell)


def test_a_kill_in_the_first_minutes_loses_seconds(tmp_path: Path) -> None:
    async def tell(begin: Callable[[float], Awaitable[Life]], store: EmbeddedStore) -> None:
        life, wanted = await begin(T0), revision()
        life.track(wanted)
        for _ in range(60):  # No request yet: there is nothing to learn from.
            life.clock.advance(1.0)
            await life.memories.review()
        await life.seconds(wanted, 22)
        later = await begin(life.clock.now())
        later.track(wanted)
        found = later.learnt(wanted)
        assert found is not None
        assert found.outlook.seconds >= 10

    at_store(tmp_path, tell)


def test_a_memory_that_cannot_be_read_is_a_reason_and_no_end(tmp_path: Path) -> None:
    async def tell(begin: Callable[[float], Awaitable[Life]], store: EmbeddedStore) -> None:
        life, wanted = await taught(begin, 5)
        await life.memories.close()
        (record,) = await store.list(PREFIX)
        await store.put(record.key, record.value.replace(b'"state":"', b'"state":"AAAA'))
        later = await begin(T0 + 60.0)
        later.track(wanted)
        assert later.learnt(wanted) is None
        assert [each.code for each in later.core._notes[wanted.id]] == ["memory_left_out"]

    at_store(tmp_path, tell)
