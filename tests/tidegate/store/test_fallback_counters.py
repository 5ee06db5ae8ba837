"""Gateways of one machine share their part of a budget while the common pool is away."""

import asyncio
from collections.abc import Sequence

from tidegate.clock import ManualClock
from tidegate.flow.quota import GONE_S, Budget, Pool, QuotaAnswer, QuotaReport
from tidegate.store.fallback_counters import AGAIN_S, FallbackPool
from tidegate.store.records import StoreFaultError

MINUTE = Budget("acme/requests", 120, 60.0)
AHEAD_S = 1000.0


class Common:
    """A pool with a clock of its own, which may be away."""

    def __init__(self, clock: ManualClock) -> None:
        self.pool = Pool()
        self.clock = clock
        self.is_away = False
        self.asked = 0

    async def exchange(self, member: str, reports: Sequence[QuotaReport]) -> QuotaAnswer:
        self.asked += 1
        if self.is_away:
            raise StoreFaultError("gone")
        return self.pool.exchange(member, reports, self.clock.now() + AHEAD_S)

    async def close(self) -> None:
        self.asked = -1


class World:
    def __init__(self) -> None:
        self.clock = ManualClock(60_000.0)
        self.common = Common(self.clock)
        self.pool = FallbackPool(self.common, self.clock)

    def settle(self, *members: str) -> None:
        """Lets gateways here, and ``far`` elsewhere, lease their parts."""
        far = FallbackPool(self.common, self.clock)
        for _ in range(3):
            for member in members:
                asyncio.run(self.pool.exchange(member, []))
            asyncio.run(far.exchange("far", []))

    def tell(self, member: str, used: int, want: int, budget: Budget = MINUTE) -> QuotaAnswer:
        window = 0 if budget.is_bound else int((self.clock.now() + AHEAD_S) / budget.window_s)
        return asyncio.run(self.pool.exchange(member, [QuotaReport(budget, window, used, want)]))


def test_what_the_common_pool_answers_is_passed_on() -> None:
    world = World()
    answer = world.tell("a", 10, 20)
    assert (answer.grants[0].ceiling, answer.is_part, world.pool.fault) == (30, False, None)


def test_two_of_three_gateways_share_two_thirds_by_the_common_pools_clock() -> None:
    world = World()
    for member in ("a", "b"):
        world.tell(member, 0, 0)
    world.settle("a", "b")
    world.tell("a", 0, 0)
    world.common.is_away = True
    first, second = world.tell("a", 10, 50), world.tell("b", 5, 200)
    assert first.is_part and world.pool.fault == "gone"
    assert (first.grants[0].ceiling, second.grants[0].ceiling) == (60, 20), "120 * 2 / 3 together"
    assert first.time_s == world.clock.now() + AHEAD_S, "windows go on as they were"
    assert world.tell("a", 60, 50).grants[0].ceiling == 60
    assert world.tell("a", 0, 50, Budget("acme/concurrency", 3)).grants[0].ceiling == 2


def test_a_common_pool_that_is_away_is_asked_now_and_then_and_reported_all_when_it_is_back() -> None:
    world = World()
    world.tell("a", 0, 0)
    world.common.is_away = True
    before = world.common.asked
    for _ in range(10):
        world.tell("a", 40, 0)
    assert world.common.asked == before + 1
    world.common.is_away = False
    world.clock.advance(AGAIN_S)
    assert not world.tell("a", 45, 0).is_part
    assert (
        world.common.pool.exchange("other", [QuotaReport(MINUTE, int(61_000.5 / 60), 0, 120)], 61_000.5)
        .grants[0]
        .ceiling
        == 75
    ), "what was spent meanwhile counts"


def test_a_gateway_that_is_gone_has_no_part() -> None:
    world = World()
    for member in ("a", "b"):
        world.tell(member, 0, 0)
    world.tell("a", 0, 0)
    world.clock.advance(GONE_S + 1)
    world.common.is_away = True
    assert world.tell("a", 0, 200, Budget("acme/tokens", 120, 60.0)).grants[0].ceiling == 60


def test_what_was_spent_before_an_outage_is_spent_whichever_asks_first() -> None:
    """Two machines share 120 of a minute and have spent all but 30 of it, unevenly; then each is by itself."""
    world = World()
    for member in ("a", "b"):
        world.tell(member, 0, 0)
    world.settle("a", "b")
    far = QuotaReport(MINUTE, int((world.clock.now() + AHEAD_S) / 60), 70, 0)
    asyncio.run(world.common.exchange("far", [far]))
    world.tell("b", 20, 0)
    world.common.is_away = True
    assert world.tell("a", 0, 120).grants[0].ceiling == 20, "two thirds of what was free; neither b's nor far's"
    assert world.tell("b", 20, 120).grants[0].ceiling == 20
    world.clock.advance(60.0)
    world.tell("b", 0, 0)
    assert world.tell("a", 0, 120).grants[0].ceiling == 80, "their part of a new window"


def test_a_common_pool_that_is_back_hears_of_all_before_it_grants() -> None:
    world = World()
    for member in ("a", "b"):
        world.tell(member, 0, 0)
    world.common.is_away = True
    world.tell("b", 100, 5)
    world.common.is_away = False
    world.clock.advance(AGAIN_S)
    assert world.tell("a", 0, 120).grants[0].ceiling == 15, "what b has spent and holds is not there"


def test_a_common_pool_that_has_forgotten_all_is_reported_all_before_it_grants() -> None:
    world = World()
    world.tell("a", 0, 0)
    world.tell("b", 100, 5)
    world.common.pool = Pool()
    answer = world.tell("a", 0, 120)
    assert (answer.grants[0].ceiling, answer.is_new) == (15, True)
    assert not world.tell("a", 0, 120).is_new


def test_its_end_is_the_end_of_the_common_pool() -> None:
    world = World()
    asyncio.run(world.pool.close())
    assert world.common.asked == -1


def test_of_a_bound_a_gateway_keeps_what_it_held_until_others_have_lost_theirs() -> None:
    world, bound = World(), Budget("echo", 100)
    world.settle("a")
    asyncio.run(world.common.exchange("far", [QuotaReport(bound, 0, 60, 0)]))
    world.tell("a", 10, 0, bound)
    world.common.is_away = True
    answer = world.tell("a", 10, 90, bound)
    assert answer.is_part and answer.grants[0].ceiling == 10 + 30 // 2, "half of what was free"
    world.clock.advance(GONE_S + 0.1)
    assert world.tell("a", 10, 90, bound).grants[0].ceiling == 50, "half of the bound"
