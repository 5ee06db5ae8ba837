"""Gateways of one machine share their part of a budget while the common pool is away."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from tests.support.worlds.virtual_loop import run_virtual
from tidegate.clock import ManualClock
from tidegate.flow.quota import BEAT_S, GONE_S, Budget, Pool, QuotaAnswer, QuotaReport, QuotaTotal
from tidegate.gateway.access.quota_pool import CALL_S
from tidegate.store.fallback_counters import AGAIN_S, BACK, SETTLE_S, FallbackPool
from tidegate.store.parts import WHOLE
from tidegate.store.records import StoreFaultError

MINUTE = Budget("acme/requests", 120, 60.0)
AHEAD_S = 1000.0


class Common:
    """A pool with a clock of its own, which may be away."""

    def __init__(self, clock: ManualClock) -> None:
        self.pool = Pool()
        self.clock = clock
        self.is_away = self.is_unlisted = False
        self.asked = self.listed = 0

    async def exchange(self, member: str, reports: Sequence[QuotaReport]) -> QuotaAnswer:
        self.asked += 1
        if self.is_away:
            raise StoreFaultError("gone")
        return self.pool.exchange(member, reports, self.clock.now() + AHEAD_S)

    async def totals(self, since: float) -> tuple[Sequence[QuotaTotal], None]:
        self.listed += 1
        if self.is_unlisted:
            raise StoreFaultError("no list")
        return self.pool.totals(since), None

    async def close(self) -> None:
        self.asked = -1


class World:
    def __init__(self) -> None:
        self.clock = ManualClock(60_000.0)
        self.common = Common(self.clock)
        self.pool = FallbackPool(self.common, self.clock)
        self.last: dict[str, QuotaReport] = {}
        """The last report of each gateway here."""

    def fault(self) -> str | None:
        return self.pool.fault

    def unlisted(self) -> str | None:
        return self.pool.unlisted

    def settle(self, *members: str) -> None:
        """Lets gateways here, and ``far`` elsewhere, lease their parts."""
        far = FallbackPool(self.common, self.clock)
        for _ in range(3):
            for member in members:
                asyncio.run(self.pool.exchange(member, []))
            asyncio.run(far.exchange("far", []))

    def far(self, used: int, want: int) -> int:
        """Returns the ceiling of a gateway elsewhere."""
        now = self.clock.now() + AHEAD_S
        report = QuotaReport(MINUTE, int(now / 60), used, want)
        return self.common.pool.exchange("other", [report], now).grants[0].ceiling

    def return_(self) -> None:
        """Lets the common pool answer until its grants count again."""
        self.common.is_away = False
        for _ in range(int(SETTLE_S / AGAIN_S) + 1):
            self.clock.advance(AGAIN_S)
            for member in tuple(self.pool._seen):
                answer = asyncio.run(self.pool.exchange(member, []))
                if answer.is_new and member in self.last:  # as gateway workers do
                    asyncio.run(self.pool.exchange(member, [self.last[member]]))

    def tell(self, member: str, used: int, want: int, budget: Budget = MINUTE) -> QuotaAnswer:
        window = 0 if budget.is_bound else int((self.clock.now() + AHEAD_S) / budget.window_s)
        self.last[member] = report = QuotaReport(budget, window, used, want)
        return asyncio.run(self.pool.exchange(member, [report]))


def test_what_the_common_pool_answers_is_passed_on() -> None:
    world = World()
    answer = world.tell("a", 10, 20)
    assert (answer.grants[0].ceiling, answer.is_part, world.pool.fault) == (30, False, None)


def test_a_list_that_fails_is_no_outage() -> None:
    world = World()
    for member in ("a", "b"):
        world.tell(member, 0, 0)
    world.settle("a", "b")
    world.common.is_unlisted = True
    world.clock.advance(BEAT_S)
    answer = world.tell("a", 10, 80)
    assert (answer.grants[0].ceiling, answer.is_part, world.pool.fault) == (90, False, None)
    assert world.unlisted() == "no list"
    listed = world.common.listed
    world.tell("b", 0, 0)
    assert (world.common.listed, world.unlisted()) == (listed, "no list"), "not with each exchange: it may be late"
    world.common.is_unlisted = False
    world.far(5, 5)
    world.clock.advance(AGAIN_S)
    world.tell("a", 10, 80)
    assert (world.common.listed, world.unlisted()) == (listed + 1, None)
    world.common.is_unlisted = world.common.is_away = True
    answer = world.tell("b", 0, 30)
    assert (answer.is_part, world.pool.fault, world.unlisted()) == (True, "gone", None)


def test_without_a_list_an_outage_does_not_end() -> None:
    world = World()
    world.tell("a", 0, 10)
    world.common.is_away = True
    world.tell("a", 0, 10)
    world.common.is_unlisted = True
    world.return_()
    assert (world.pool.fault, world.unlisted()) == (BACK, "no list"), "others may have taken what is not known here"
    world.common.is_unlisted = False
    world.clock.advance(AGAIN_S)
    world.tell("a", 0, 10)
    assert (world.fault(), world.unlisted()) == (None, None)


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
    world.return_()
    assert not world.tell("a", 45, 0).is_part
    assert world.far(0, 120) == 75, "what was spent meanwhile counts"


@pytest.mark.needs(tool="redis")
def test_a_link_that_rests_has_reported_within_the_time_to_settle() -> None:
    from tidegate.store.redis_link import REST_MAX_S

    assert SETTLE_S >= REST_MAX_S + AGAIN_S + BEAT_S


def test_a_common_pool_that_has_forgotten_is_reported_all_and_grants_nothing_until_the_others_have_reported() -> None:
    world = World()
    world.tell("a", 0, 0)
    world.common.is_away = True
    world.tell("a", 40, 0)
    world.common.is_away = False
    world.common.pool = Pool()
    for _ in range(int(SETTLE_S / AGAIN_S) + 1):
        assert world.tell("a", 45, 120).is_part
        world.clock.advance(AGAIN_S)
    assert world.far(0, 0) == 0
    assert world.common.pool.taken(QuotaReport(MINUTE, int(61_000 / 60), 0, 0)) >= 40
    assert not world.tell("a", 45, 0).is_part
    assert world.pool.fault is None


def test_a_gateway_that_is_gone_has_no_part() -> None:
    world = World()
    for member in ("a", "b"):
        world.tell(member, 0, 0)
    for _ in range(int(GONE_S) + 2):
        world.clock.advance(1.0)
        world.settle("a")
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
    world.return_()
    assert world.tell("a", 0, 120).grants[0].ceiling == 15, "what b has spent and holds is not there"


def test_a_common_pool_that_has_forgotten_all_is_reported_all_before_it_grants() -> None:
    world = World()
    world.tell("a", 0, 0)
    world.tell("b", 100, 5)
    world.settle("a", "b")
    world.common.pool = Pool()
    answer = world.tell("a", 0, 120)
    assert answer.is_part and answer.grants[0].ceiling <= 15
    assert world.pool.fault == "the pool has forgotten its gateways"
    world.return_()
    answer = world.tell("a", 0, 120)
    assert (answer.grants[0].ceiling, answer.is_part) == (15, False)


class LoopClock(ManualClock):
    def now(self) -> float:
        return 60_000.0 + asyncio.get_running_loop().time()


class FarCommon(Common):
    """A round trip is long."""

    async def exchange(self, member: str, reports: Sequence[QuotaReport]) -> QuotaAnswer:
        await asyncio.sleep(0.06)
        return await super().exchange(member, reports)


def test_an_outage_ends_although_each_caller_gives_up_before_all_gateways_here_are_reported() -> None:
    bound, members = Budget("echo", 100), [f"worker{number}" for number in range(8)]

    async def run() -> None:
        clock = LoopClock()
        common = FarCommon(clock)
        pool = FallbackPool(common, clock)

        async def report(member: str) -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CALL_S):
                    await pool.exchange(member, [QuotaReport(bound, 0, 5, 0)])

        async def all_report() -> None:
            await asyncio.gather(*map(report, members))

        await all_report()
        common.is_away = True
        await all_report()
        assert str(pool.fault) == "gone"
        common.is_away = False
        common.pool = Pool()
        for _ in range(20):
            await asyncio.sleep(AGAIN_S)
            await all_report()
        assert pool.fault is None
        assert common.pool.taken(QuotaReport(bound, 0, 0, 0)) == 40

    run_virtual(run())


def test_its_end_is_the_end_of_the_common_pool() -> None:
    world = World()
    asyncio.run(world.pool.close())
    assert world.common.asked == -1


def test_of_a_bound_a_gateway_keeps_what_it_held_and_its_part_of_what_was_free() -> None:
    world, bound = World(), Budget("echo", 100)
    world.settle("a")
    asyncio.run(world.common.exchange("far", [QuotaReport(bound, 0, 60, 0)]))
    world.tell("a", 10, 0, bound)
    world.common.is_away = True
    answer = world.tell("a", 10, 90, bound)
    assert answer.is_part and answer.grants[0].ceiling == 10 + 30 // 2, "half of what was free"
    world.clock.advance(GONE_S + 0.1)
    assert world.tell("a", 0, 90, bound).grants[0].ceiling == 25, "as long as the pool is away"
    assert world.tell("a", 0, 90, Budget("echo", 200)).grants[0].ceiling == 50, "of a bound that is raised"


def test_a_bound_that_is_lowered_in_an_outage_and_raised_again_is_not_exceeded() -> None:
    world, bound = World(), Budget("echo", 100)
    world.settle("a")
    world.tell("a", 80, 0, bound)
    world.common.is_away = True
    for amount in (10, 100, 0, 100):
        assert world.tell("a", 0, 999, Budget("echo", amount)).grants[0].ceiling <= amount


def test_nothing_is_kept_of_gateways_that_came_and_went_in_an_outage() -> None:
    world, bound = World(), Budget("echo", 100)
    world.settle("a")
    world.common.is_away = True
    for number in range(10):
        world.tell(f"a{number}", 1, 0, bound)
        world.clock.advance(GONE_S + 1.0)
    world.tell("a", 1, 0, bound)
    world.return_()
    world.tell("a", 1, 0, bound)
    assert world.pool.fault is None
    assert list(world.pool._parts._uses) == ["a"]


def test_of_a_bound_that_is_held_elsewhere_alone_only_the_rest_is_free() -> None:
    world, bound = World(), Budget("echo", 100)
    world.settle("a")
    asyncio.run(world.common.exchange("far", [QuotaReport(bound, 0, 60, 0)]))
    world.clock.advance(1.0)
    asyncio.run(world.pool.exchange("a", []))
    world.common.is_away = True
    assert world.tell("a", 0, 100, bound).grants[0].ceiling == 20
    assert world.tell("a", 0, 100, Budget("other", 100)).grants[0].ceiling == 50, "none uses that one"


def test_what_is_held_elsewhere_is_forgotten_when_it_is_no_longer_reported() -> None:
    world, bound = World(), Budget("echo", 100)
    asyncio.run(world.common.exchange("far", [QuotaReport(bound, 0, 60, 0)]))
    for _ in range(int(GONE_S) + 3):
        world.clock.advance(1.0)
        world.settle("a")
    world.common.is_away = True
    assert world.tell("a", 0, 100, bound).grants[0].ceiling == 50


def test_the_part_of_the_process_before_counts_until_the_common_pool_has_answered() -> None:
    world, kept = World(), list[int]()

    def keep(part: int) -> bool:
        kept.append(part)
        return True

    world.settle("a")
    world.common.is_away = True
    world.pool = FallbackPool(world.common, world.clock, part=WHOLE // 4, keep=keep)
    assert world.tell("b", 0, 120).grants[0].ceiling == 30
    world.clock.advance(GONE_S)
    world.tell("b", 0, 0)
    world.return_()
    world.settle("b")
    world.clock.advance(1.0)
    world.tell("b", 0, 0)
    assert kept[-1] == WHOLE // 2
    assert world.pool._parts.part == kept[-1], "the one before is over"


def test_a_part_that_could_not_be_kept_is_kept_at_the_next_lease() -> None:
    world, kept, disk = World(), list[int](), {"is_full": True}

    def keep(part: int) -> bool:
        kept.append(part)
        return not disk["is_full"]

    world.pool = FallbackPool(world.common, world.clock, keep=keep)
    for _ in range(3):
        world.tell("a", 0, 0)
        world.clock.advance(1.0)
    assert kept == [WHOLE] * 3
    disk["is_full"] = False
    for _ in range(3):
        world.tell("a", 0, 0)
        world.clock.advance(1.0)
    assert kept == [WHOLE] * 4


def test_a_gateway_that_has_never_reached_the_common_pool_has_one_of_each() -> None:
    world = World()
    world.common.is_away = True
    assert world.tell("a", 0, 100).grants[0].ceiling == 1


@pytest.mark.parametrize(("away_s", "goes_on"), [(AGAIN_S, True), (3.0, False)])
def test_one_that_starts_and_has_no_part_yet_goes_on_at_once_after_a_late_call(away_s: float, goes_on: bool) -> None:
    """It took nothing by a part. Else it would have one place of each room for as long as an outage takes to end."""
    world = World()
    world.settle("a", "b")
    starts = FallbackPool(world.common, world.clock)

    def ask(want: int = 50) -> QuotaAnswer:
        return asyncio.run(starts.exchange("new", [QuotaReport(Budget("echo", 100), 0, 0, want)]))

    ask(0)
    world.common.is_away = True
    assert ask().grants[0].ceiling <= 1
    world.common.is_away = False
    world.clock.advance(away_s)
    ask()
    world.clock.advance(0.1)
    answer = ask()
    assert (answer.is_part, starts.fault is None) == (not goes_on, goes_on)
    assert ask().grants[0].ceiling == (50 if goes_on else 1)
