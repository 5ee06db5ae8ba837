"""Shared counters: the pool in memory and the one in Redis grant the same; four gateways share a budget for real."""

import asyncio
import math
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.deadline import Patience
from tests.support.live.redis_server import RedisServer
from tests.support.worlds.virtual_loop import run_virtual
from tidegate.clock import LiveClock
from tidegate.flow.quota import (
    BATCH,
    Budget,
    Pool,
    QuotaAnswer,
    QuotaGrant,
    QuotaReport,
    QuotaTotal,
    Refused,
    Reservation,
)
from tidegate.store.counters import ASK_S, Asking, EmbeddedPool, SharedCounters, SharedPool, ShortBudget
from tidegate.store.fallback_counters import CommonPool, FallbackPool
from tidegate.store.records import StoreFaultError

MINUTE = Budget("tenant/ä key:1", 6000, 60)
BOUND = Budget("waiting", 100)


@pytest.fixture(params=["embedded", pytest.param("redis", marks=[pytest.mark.live, pytest.mark.needs(tool="redis")])])
def open_pool(request: pytest.FixtureRequest) -> Callable[[], CommonPool]:
    if request.param == "embedded":
        clock = LiveClock()
        return lambda: EmbeddedPool(clock)
    server: RedisServer = request.getfixturevalue("redis_server")

    def redis() -> CommonPool:
        from tidegate.store.redis_counters import RedisPool

        return RedisPool(server.url)

    return redis


def test_grants_are_those_of_the_arithmetic(open_pool: Callable[[], SharedPool]) -> None:
    """Many random reports: each answer is what the core says, in every store."""
    chance = random.Random(3)

    async def run() -> None:
        pool, model, answer = open_pool(), Pool(), None
        now = time.time()
        for _ in range(200):
            member = chance.choice("abcd")
            chosen = chance.sample([MINUTE, BOUND, Budget("large", 2**50, 3600)], chance.randint(0, 3))
            reports = [
                QuotaReport(
                    budget,
                    int(now / budget.window_s),
                    chance.randint(0, budget.amount // 3),
                    chance.randint(0, budget.amount // 4),
                )
                for budget in chosen
            ]
            answer = await pool.exchange(member, reports)
            modelled = model.exchange(member, reports, now)
            assert (answer.grants, answer.is_new) == (modelled.grants, modelled.is_new)
            assert abs(answer.time_s - time.time()) < 60
        assert answer is not None and answer.members == 4
        await pool.close()

    asyncio.run(run())


def test_what_is_taken_of_all_that_was_reported_since_is_listed(open_pool: Callable[[], CommonPool]) -> None:
    """As the core lists it, in every store."""
    second = Budget("often", 100, 1.0)

    async def run() -> None:
        pool, model, now = open_pool(), Pool(), time.time()
        window = int(now / 60)

        async def report(member: str, *reports: QuotaReport) -> float:
            model.exchange(member, reports, now)
            return (await pool.exchange(member, reports)).time_s

        since = await report("a", QuotaReport(MINUTE, window, 100, 50), QuotaReport(BOUND, 0, 60, 20))
        await report("b", QuotaReport(BOUND, 0, 10, 50), QuotaReport(second, int(now), 1, 1))
        found = set((await pool.totals(0.0))[0])
        expected = {QuotaTotal(MINUTE.key, 60.0, window, 150), QuotaTotal(BOUND.key, math.inf, 0, 100)}
        assert found >= expected
        assert {each for each in model.totals(0.0) if each.window_s > 1.0} == expected
        assert found - expected <= {QuotaTotal("often", 1.0, int(now), 2)}, "short windows need not be there"
        await asyncio.sleep(0.001)
        await report("a", QuotaReport(BOUND, 0, 0, 0))
        assert QuotaTotal(BOUND.key, math.inf, 0, 20) in (await pool.totals(since))[0]
        assert await pool.totals(since + 3600.0) == ((), None)
        await pool.close()

    asyncio.run(run())


def test_one_gateway_by_itself(open_pool: Callable[[], SharedPool]) -> None:
    async def run() -> None:
        counters = SharedCounters(open_pool(), LiveClock(), member="a")
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            loop = group.create_task(counters.run())
            taken = await counters.reserve(BOUND, 60)
            assert isinstance(taken, Reservation)
            assert isinstance(await counters.reserve(BOUND, 60), Refused)
            assert counters.read(BOUND).used == 60
            counters.settle(taken, 0)
            assert isinstance(await counters.reserve(BOUND, 60), Reservation)
            assert not counters.is_lost
            loop.cancel()
        await counters.close()

    asyncio.run(run())


class DeafPool:
    """Never answers."""

    async def exchange(self, member: str, reports: object) -> "object":
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        pass


class BrokenPool(DeafPool):
    async def exchange(self, member: str, reports: object) -> "object":
        raise StoreFaultError("gone")


@pytest.mark.parametrize("pool", [DeafPool(), BrokenPool()], ids=["deaf", "broken"])
@pytest.mark.parametrize("is_running", [True, False])
def test_a_request_never_waits_for_longer_than_the_limit(pool: DeafPool, is_running: bool) -> None:
    """A pool that hangs or fails, even a loop that is not run: the even part decides."""

    async def run() -> None:
        clock = asyncio.get_running_loop().time
        counters = SharedCounters(pool, _LoopClock(), member="a", members=4)  # type: ignore[arg-type]  # never answers
        async with asyncio.TaskGroup() as group:
            loop = group.create_task(counters.run()) if is_running else None
            verdicts = await asyncio.gather(*(counters.reserve(BOUND, 10) for _ in range(4)))
            assert clock() <= ASK_S
            assert sum(isinstance(verdict, Reservation) for verdict in verdicts) == 2
            begun = clock()
            assert isinstance(await counters.reserve(BOUND, 10), Refused)
            assert clock() == begun, "on its own a gateway decides at once"
            assert counters.is_lost
            if loop is not None:
                loop.cancel()

    run_virtual(run())


class SlowPool:
    """Takes longer for an answer than there is between two reports."""

    def __init__(self) -> None:
        self._pool = EmbeddedPool(_LoopClock())

    async def exchange(self, member: str, reports: Sequence[QuotaReport]) -> QuotaAnswer:
        await asyncio.sleep(0.15)
        return await self._pool.exchange(member, reports)

    async def close(self) -> None:
        pass


def test_who_waited_for_a_slow_pool_gets_what_it_has_granted() -> None:
    async def run() -> None:
        counters = SharedCounters(SlowPool(), _LoopClock(), member="a")
        async with asyncio.TaskGroup() as group:
            loop = group.create_task(counters.run())
            begun = asyncio.get_running_loop().time()
            assert isinstance(await counters.reserve(BOUND, 60), Reservation)
            assert asyncio.get_running_loop().time() <= begun + 0.3, "one exchange was under way, one was its own"
            loop.cancel()

    run_virtual(run())


class _LoopClock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()


def test_a_client_that_leaves_while_it_waits_takes_nothing() -> None:
    async def run() -> None:
        counters = SharedCounters(EmbeddedPool(_LoopClock()), _LoopClock(), member="a")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(counters.reserve(BOUND, 100))
            await asyncio.sleep(0)
            waiting.cancel()
            loop = group.create_task(counters.run())
            await asyncio.sleep(1)
            assert isinstance(await counters.reserve(BOUND, 100), Reservation)
            loop.cancel()

    run_virtual(run())


class Gateways:
    """Four gateways, each on a machine of its own, with uneven, endless load on one budget, and what it admitted."""

    PAUSES_S = (0.001, 0.004, 0.01, 0.04)

    def __init__(self, url: str) -> None:
        from tidegate.store.redis_counters import RedisPool

        self.budget = Budget("rpm", 1000, 2)
        self.admitted: Counter[int] = Counter()
        self.spent = dict.fromkeys(range(len(self.PAUSES_S)), 0)
        """The last window of which each gateway knew that it was spent."""
        self.is_away = False
        """True while Redis is killed, or about to be."""
        self.disturbed: set[int] = set()
        """Windows in which a gateway missed Redis although it was there: an answer took longer than ``CALL_S``."""
        self.slowest_s = 0.0
        self.counters = [
            SharedCounters(
                FallbackPool(RedisPool(url), LiveClock()),
                LiveClock(),
                member=uuid.uuid4().hex,
                members=len(self.PAUSES_S),
            )
            for _ in self.PAUSES_S
        ]

    @property
    def window(self) -> int:
        """The present window."""
        return int(time.time() / self.budget.window_s)

    @property
    def lost(self) -> int:
        """How many gateways go by a part of the budget."""
        return sum(counters.is_lost for counters in self.counters)

    async def run(self, story: Callable[[], None]) -> None:
        """Runs until the ``story``, in a thread of its own, is over."""
        async with asyncio.TaskGroup() as group:
            loops = [group.create_task(counters.run()) for counters in self.counters]
            clients = [group.create_task(self._client(number)) for number in range(len(self.PAUSES_S))]
            await asyncio.to_thread(story)
            for task in loops + clients:
                task.cancel()
        for counters in self.counters:
            await counters.close()

    async def _client(self, number: int) -> None:
        counters, was_lost = self.counters[number], False
        while True:
            begun, window = time.monotonic(), self.window
            for _ in range(3):
                verdict = await counters.reserve(self.budget, 1)
                if isinstance(verdict, Reservation):
                    self.admitted[verdict.window] += 1
                elif window == self.window and not counters.is_lost:
                    self.spent[number] = window
            if counters.is_lost and not was_lost and not self.is_away:
                self.disturbed |= {window, self.window}
            was_lost = counters.is_lost
            self.slowest_s = max(self.slowest_s, time.monotonic() - begun)
            await asyncio.sleep(self.PAUSES_S[number])

    def until(self, is_so: Callable[[], bool]) -> None:
        patience = Patience(30.0)
        while not is_so():
            assert not patience.is_over, f"waited {patience}"
            time.sleep(0.01)

    def whole_window(self) -> int:
        """Waits for a window from its beginning to its end, in which no gateway is lost; returns it."""
        while True:
            self.until(lambda: self.lost == 0)
            found = self.window + 1
            self.until_after(found)
            if self.lost == 0 and found not in self.disturbed:
                return found

    def until_after(self, window: int) -> None:
        self.until(lambda: self.window > window)

    def until_spent(self) -> int:
        """Waits until each gateway knows that the present window is spent; returns it."""
        self.until(lambda: set(self.spent.values()) == {self.window})
        return self.spent[0]


@pytest.mark.live
@pytest.mark.needs(tool="redis")
def test_four_gateways_spend_a_budget_within_two_percent(redis_server: RedisServer) -> None:
    gateways, windows = Gateways(redis_server.url), list[int]()
    asyncio.run(gateways.run(lambda: windows.extend(gateways.whole_window() for _ in range(2))))
    for window in windows:
        assert 980 <= gateways.admitted[window] <= 1000, gateways.admitted


@pytest.mark.live
@pytest.mark.needs(tool="redis")
def test_redis_goes_and_comes_back_under_four_gateways(redis_server: RedisServer) -> None:
    """Killed for more than a window: never more than the budget, none hangs; then shares follow the load again.

    When Redis goes, a gateway may take its part also of what others were granted since its last report: a tenth of a
    second, which is much of a window of two. So it goes in a window that is spent, of which each gateway knows all.
    ``test_outage.py`` has the other moments, in virtual time.
    """
    gateways, after = Gateways(redis_server.url), list[int]()

    def story() -> None:
        gateways.whole_window()
        spent = gateways.until_spent()
        gateways.is_away = True
        redis_server.kill()
        if spent != gateways.window:  # The machine was busy: the next window had begun before Redis was gone.
            gateways.disturbed |= {spent, gateways.window}
        gateways.until(lambda: gateways.lost == 4)
        gateways.until_after(gateways.window + 1)
        redis_server.start()
        gateways.until(lambda: gateways.lost == 0)
        gateways.is_away = False
        after.append(gateways.whole_window())

    asyncio.run(gateways.run(story))
    found = {window: count for window, count in gateways.admitted.items() if window not in gateways.disturbed}
    assert max(found.values()) <= 1000, found
    assert found[after[0]] >= 980, found
    assert gateways.slowest_s < 5


@pytest.mark.live
@pytest.mark.needs(tool="redis")
def test_a_gateway_that_was_silent_for_long_is_new_again(redis_server: RedisServer) -> None:
    from tidegate.store.redis_counters import RedisPool
    from tidegate.store.redis_link import RedisLink, Script

    async def run() -> list[bool]:
        pool, link, found = RedisPool(redis_server.url), RedisLink(redis_server.url), list[bool]()
        for member in ("a", "a", "b"):
            found.append((await pool.exchange(member, [])).is_new)
        await link.script(Script("return redis.call('ZADD', KEYS[1], 1, 'a')"), ["tidegate:quota:members"], [])
        found += [(await pool.exchange("a", [])).is_new for _ in range(2)]
        await pool.close()
        await link.close()
        return found

    assert asyncio.run(run()) == [True, False, True, True, False]


@pytest.mark.live
@pytest.mark.needs(tool="redis")
def test_redis_keeps_nothing_for_good(redis_server: RedisServer) -> None:
    from tidegate.store.redis_counters import RedisPool
    from tidegate.store.redis_link import RedisLink, Script

    every = """
    local found = {}
    for _, key in ipairs(redis.call('KEYS', 'tidegate:quota:*')) do found[#found + 1] = redis.call('PTTL', key) end
    return found
    """

    async def run() -> list[int]:
        pool, link = RedisPool(redis_server.url), RedisLink(redis_server.url)
        await pool.exchange("a", [QuotaReport(BOUND, 0, 60, 0), QuotaReport(MINUTE, int(time.time() / 60), 1, 0)])
        await pool.totals(0.0)
        left: list[int] = await link.script(Script(every), [], [])
        await pool.close()
        await link.close()
        return left

    left = asyncio.run(run())
    assert len(left) == 4
    assert all(0 < each <= 120_001 for each in left)


@pytest.mark.live
@pytest.mark.needs(tool="redis")
def test_redis_lists_many_budgets_in_several_calls(redis_server: RedisServer) -> None:
    from tidegate.store.redis_counters import LIST_MOST, RedisPool

    async def run() -> tuple[Counter[str], list[int]]:
        pool, found, lengths = RedisPool(redis_server.url), Counter[str](), list[int]()
        for start in range(0, 2 * LIST_MOST, BATCH):
            await pool.exchange("a", [QuotaReport(Budget(f"{start + each}", 9), 0, 1, 0) for each in range(BATCH)])
        more: float | None = 0.0
        while more is not None:
            totals, more = await pool.totals(more)
            found.update(each.key for each in totals)
            lengths.append(len(totals))
        await pool.close()
        return found, lengths

    found, lengths = asyncio.run(run())
    assert max(lengths) == LIST_MOST > BATCH
    assert len(found) == -(-2 * LIST_MOST // BATCH) * BATCH, "each is there, some twice"


@pytest.mark.live
@pytest.mark.needs(tool="redis")
def test_redis_counts_no_bound_that_a_present_gateway_no_longer_reports(redis_server: RedisServer) -> None:
    """An entry without a time is one of an older version, and counts."""
    from tidegate.store.redis_counters import RedisPool
    from tidegate.store.redis_link import RedisLink, Script

    async def run() -> list[int]:
        pool, link, found = RedisPool(redis_server.url), RedisLink(redis_server.url), list[int]()
        await pool.exchange("a", [QuotaReport(BOUND, 0, 60, 0)])
        for entry in ("", "60:60", "60:60:1.5"):
            if entry:
                write = f"return redis.call('HSET', KEYS[1], 'a', '{entry}')"
                await link.script(Script(write), [f"tidegate:quota:inf:0:{BOUND.key}"], [])
            found.append((await pool.exchange("b", [QuotaReport(BOUND, 0, 0, 100)])).grants[0].ceiling)
        await pool.close()
        await link.close()
        return found

    assert asyncio.run(run()) == [40, 40, 100]


def test_a_url_that_is_none(tmp_path: Path) -> None:
    from tidegate.errors import InvalidInputError
    from tidegate.store.redis_counters import RedisPool

    with pytest.raises(InvalidInputError, match="port: got something else"):
        RedisPool("redis://here:x")


@pytest.mark.live
@pytest.mark.needs(tool="redis")
def test_fault_of_a_pool_that_is_not_there(redis_server: RedisServer) -> None:
    from tidegate.store.redis_counters import RedisPool

    async def run() -> None:
        pool = RedisPool(redis_server.url)
        redis_server.kill()
        with pytest.raises(StoreFaultError, match=str(redis_server.port)):
            await pool.exchange("a", [])
        redis_server.start()
        await asyncio.sleep(0.1)
        assert (await pool.exchange("a", [QuotaReport(BOUND, 0, 1, 2)])).grants == (QuotaGrant(3, 97, 0),)
        await pool.close()

    asyncio.run(run())


def test_several_budgets_are_reserved_together_or_not_at_all(open_pool: Callable[[], SharedPool]) -> None:
    rich, poor = Budget("rich", 10), Budget("poor", 1)

    async def run() -> None:
        counters = SharedCounters(open_pool(), LiveClock(), member="a")
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            loop = group.create_task(counters.run())
            wanted = [(rich, 4), (poor, 1)]
            asking = counters.try_all(wanted)
            assert isinstance(asking, Asking), "nothing is known before the first answer"
            held = await counters.go_on(wanted, asking)
            assert isinstance(held, tuple) and len(held) == 2
            short = await counters.go_on(wanted, Asking(()))
            assert isinstance(short, ShortBudget) and short.at == 1
            assert counters.read(rich).used == 4, "what was reserved before the short one is given back"
            assert counters.try_all([(rich, 11)]) == ShortBudget(0, float("inf"))
            for each in held:
                counters.settle(each, 0)
            assert isinstance(await counters.go_on(wanted, Asking(())), tuple)
            loop.cancel()
        await counters.close()

    asyncio.run(run())


def test_who_leaves_gives_back_all_that_it_holds_in_exchanges_of_the_usual_size() -> None:
    """Those of thousands of tenants at once would be more than the control process reads."""
    sizes = []

    class Heard(EmbeddedPool):
        async def exchange(self, member: str, reports: Sequence[QuotaReport]) -> QuotaAnswer:
            sizes.append(len(reports))
            return await super().exchange(member, reports)

    async def run() -> None:
        counters = SharedCounters(Heard(LiveClock()), LiveClock(), member="a")
        for number in range(2 * BATCH + 1):
            counters.try_all([(Budget(f"tenant {number}", 10), 1)])
        await counters.close()

    asyncio.run(run())
    assert sizes == [BATCH, BATCH, 1]


def test_who_stops_waiting_has_reserved_nothing() -> None:
    async def run() -> None:
        counters = SharedCounters(EmbeddedPool(LiveClock()), LiveClock(), member="a")
        first, second = Budget("first", 10), Budget("second", 10)
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            loop = group.create_task(counters.run())
            held = await counters.reserve(first, 3)
            assert isinstance(held, Reservation)
            loop.cancel()
        wanted = [(first, 3), (second, 1)]
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(counters.go_on(wanted, Asking((held,))))
            await asyncio.sleep(0)
            waiting.cancel()
        assert counters.read(first).used == 0

    asyncio.run(run())
