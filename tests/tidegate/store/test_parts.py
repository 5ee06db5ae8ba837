"""Parts of all budgets while the common pool is away: by use, and together never more than the whole."""

import random
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from tidegate.clock import ManualClock
from tidegate.flow.quota import GONE_S, Budget, Pool, QuotaAnswer, QuotaReport, QuotaTotal
from tidegate.store.fallback_counters import FallbackPool
from tidegate.store.parts import HELD_S, WHOLE
from tidegate.store.records import StoreFaultError

QUOTA = Budget("acme/requests", 1000, 60.0)
ROOM = Budget("echo", 1000)


def now(exchange: Coroutine[Any, Any, QuotaAnswer]) -> QuotaAnswer:
    """Runs an exchange, none of which waits here."""
    try:
        exchange.send(None)
    except StopIteration as end:
        assert isinstance(end.value, QuotaAnswer)
        return end.value
    raise AssertionError("it waits")


class Common:
    def __init__(self, clock: ManualClock) -> None:
        self.pool = Pool()
        self.clock = clock
        self.is_away = False

    async def exchange(self, member: str, reports: Sequence[QuotaReport]) -> QuotaAnswer:
        if self.is_away:
            raise StoreFaultError("gone")
        return self.pool.exchange(member, reports, self.clock.now())

    async def totals(self, since: float) -> tuple[Sequence[QuotaTotal], None]:
        return self.pool.totals(since), None

    async def close(self) -> None:
        return


class World:
    """Gateways on machines of their own."""

    def __init__(self, count: int = 3) -> None:
        self.clock = ManualClock(60_000.0)
        self.common = Common(self.clock)
        self.pools = [FallbackPool(self.common, self.clock) for _ in range(count)]

    def use(self, budget: Budget, *used: int, want: int = 0) -> list[int]:
        """Each gateway reports its use; returns their ceilings."""
        window = 0 if budget.is_bound else int(self.clock.now() // budget.window_s)
        found = []
        for number, (pool, mine) in enumerate(zip(self.pools, used, strict=True)):
            answer = now(pool.exchange(f"g{number}", [QuotaReport(budget, window, mine, want)]))
            assert len(answer.grants) == 1, "the leases of parts are not the worker's"
            found.append(answer.grants[0].ceiling)
        return found

    def settle(self, budget: Budget, *used: int, seconds: int = 5) -> None:
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.use(budget, *used)

    def whole(self) -> int:
        """All leased parts, of ``WHOLE``."""
        return sum(each._parts.part for each in self.pools)


def test_one_that_gets_nine_tenths_of_the_load_has_nine_tenths_of_each_window_without_the_pool() -> None:
    world = World()
    world.settle(QUOTA, 900, 50, 50)
    world.common.is_away = True
    assert world.use(QUOTA, 900, 50, 50, want=1000) == [900, 50, 50], "the window is spent"
    world.clock.advance(60.0)
    assert world.use(QUOTA, 0, 0, 0, want=1000) == pytest.approx([900, 50, 50], abs=1)


def test_what_no_gateway_needs_is_divided_evenly() -> None:
    world = World()
    world.settle(QUOTA, 0, 0, 0)
    assert world.whole() == pytest.approx(WHOLE, abs=9)
    world.settle(QUOTA, 300, 0, 0)
    world.common.is_away = True
    world.use(QUOTA, 300, 0, 0)
    world.clock.advance(60.0)
    assert world.use(QUOTA, 0, 0, 0, want=1000) == pytest.approx([533, 233, 233], abs=1)


def test_a_part_follows_the_window_before_and_is_forgotten_after_it() -> None:
    world = World()
    world.settle(QUOTA, 900, 50, 50, seconds=59)
    world.settle(QUOTA, 10, 10, 10, seconds=60)
    assert world.pools[0]._parts.part / WHOLE == pytest.approx(0.9, abs=0.01)
    world.settle(QUOTA, 10, 10, 10, seconds=10)
    assert world.pools[0]._parts.part / WHOLE == pytest.approx(1 / 3, abs=0.01)


def test_of_what_is_held_the_most_of_the_last_time_counts() -> None:
    world = World()
    world.settle(ROOM, 800, 100, 100)
    world.settle(ROOM, 0, 100, 0, seconds=20)
    world.common.is_away = True
    world.use(ROOM, 0, 100, 0)
    world.clock.advance(GONE_S + 1.0)
    assert sum(world.use(ROOM, 0, 0, 0, want=1000)) <= 1000
    assert world.use(ROOM, 0, 0, 0, want=1000)[0] >= 0.8 * 900, "of what was free"
    world.common.is_away = False
    world.settle(ROOM, 0, 0, 0, seconds=int(2 * HELD_S) + 3)
    assert world.pools[0]._parts.part / WHOLE == pytest.approx(1 / 3, abs=0.01)


def test_parts_are_never_more_than_the_whole_whatever_is_late() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        world = World(4)
        for _ in range(200):
            world.clock.advance(rng.choice((0.0, 0.05, 0.6, 1.0)))
            number = rng.randrange(4)
            budget = rng.choice((QUOTA, ROOM, Budget("other/requests", 50, 10.0)))
            window = 0 if budget.is_bound else int(world.clock.now() // budget.window_s)
            world.common.is_away = rng.random() < 0.1
            report = QuotaReport(budget, window, rng.randrange(budget.amount // 3), 5)
            now(world.pools[number].exchange(f"g{number}", [report]))
            for each in world.pools:
                at = max((at for _, at in each._parts._granted.values()), default=0.0)
                if world.clock.now() - at > GONE_S:  # the pool gives its part away
                    each._parts.drop_ended(world.clock.now(), each._seen)
            assert world.whole() <= WHOLE


def test_a_worker_that_ended_before_the_outage_leaves_its_part_to_others() -> None:
    world = World(2)
    world.settle(QUOTA, 500, 500)
    for _ in range(int(GONE_S) + 3):
        world.clock.advance(1.0)
        now(world.pools[0].exchange("g0", []))
    world.common.is_away = True
    now(world.pools[0].exchange("g0", []))
    world.clock.advance(60.0)
    assert world.use(QUOTA, 0, 0, want=1000)[0] == pytest.approx(1000, abs=1)


def test_one_that_starts_again_has_the_part_of_its_process_before_until_the_pool_leases_it_one() -> None:
    """Else a single late call in the first seconds would leave it one place of each room until the end of an outage."""
    world = World()
    world.settle(ROOM, 60, 60, 60)
    before = world.pools[2]._parts.part
    assert before == pytest.approx(WHOLE / 3, rel=0.02)
    for late_after in range(5):
        again = World()
        again.settle(ROOM, 60, 60, 60)
        again.pools[2] = FallbackPool(again.common, again.clock, part=before)
        for second in range(late_after + 1):
            again.clock.advance(1.0)
            for number, pool in enumerate(again.pools):
                now(pool.exchange(f"g{number}" if number < 2 else "again", []))
            assert again.whole() <= WHOLE + 1, f"second {second}"
        again.common.is_away = True
        answer = now(again.pools[2].exchange("again", [QuotaReport(ROOM, 0, 0, 1000)]))
        assert answer.grants[0].ceiling >= 100, f"late after {late_after} s"


def test_the_part_of_a_process_before_ends_although_none_is_leased() -> None:
    world = World(2)
    world.pools[1] = FallbackPool(world.common, world.clock, part=WHOLE // 2)
    world.settle(ROOM, 1000, 0, seconds=int(GONE_S) + 4)
    assert world.whole() <= WHOLE
