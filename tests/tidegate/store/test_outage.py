"""Three gateways and a pool that goes away at any moment: no bound and no quota is exceeded, whatever the load did."""

import itertools
import math
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.worlds.outage_world import CALL_S, LATE_S, OutageWorld
from tidegate.flow.quota import (
    BEAT_S,
    GONE_S,
    LEAVE_S,
    Ask,
    Budget,
    GatewayQuotas,
    QuotaAnswer,
    QuotaReport,
    Reservation,
)
from tidegate.flow.rooms.leases import LeasedFigures, RoomLeases
from tidegate.store.ceilings import KEPT_S
from tidegate.store.counters import ASK_S
from tidegate.store.fallback_counters import AGAIN_S, LIST_S, REST_S, SETTLE_S

GATEWAYS = 3
BOUND = 200
BYTES = 10**9
ROOMS = ("one", "two")
TICK_S = 0.1
SWING_S = BEAT_S + (LIST_S + BEAT_S + 4 * LATE_S)
"""What changes within this time before the pool is away for all need not be known everywhere: a second in which calls
are lost here and there, and the time between two lists and their calls."""
TOLERANCE = 0.02


class RoomWorker:
    """The rooms of one gateway, with as many requests as its load wants and it lets wait."""

    def __init__(self) -> None:
        self.leases = RoomLeases(members=GATEWAYS, wake=lambda: None)
        self.waiting = dict.fromkeys(ROOMS, 0)
        self.wanted = dict.fromkeys(ROOMS, 0)
        self.figures: dict[str, LeasedFigures] = {name: self.leases.of(name) for name in ROOMS}
        for figures in self.figures.values():
            figures.resize(BOUND, BYTES, LEAVE_S)
        self._now = 0.0

    def next_at(self) -> float:
        return self.leases.next_at()

    def take(self, now: float) -> Sequence[QuotaReport]:
        return self.leases.take(now)

    def answered(self, answer: QuotaAnswer, now: float) -> None:
        approved = {name: self.approved(name) for name in ROOMS}
        for name in self.leases.answer(answer):
            self._set(name, BOUND - self.figures[name].others().requests)
        for name in ROOMS:
            assert self.approved(name) >= approved[name], "what was let in stays"

    def approved(self, name: str) -> int:
        return min(self.waiting[name], self.figures[name].requests.granted)

    def tick(self) -> None:
        for name in ROOMS:
            waiting, wanted = self.waiting[name], self.wanted[name]
            most = BOUND - self.figures[name].others().requests
            if wanted < waiting:
                self._set(name, wanted)
            elif wanted > waiting and most > waiting:
                self._set(name, min(wanted, most))

    def _set(self, name: str, waiting: int) -> None:
        self.waiting[name] = waiting
        self.figures[name].publish(waiting, waiting, 0.0)


class RoomWorld:
    """The machines, and what is approved of each room in time."""

    def __init__(self, rng: random.Random) -> None:
        self.workers = [RoomWorker() for _ in range(GATEWAYS)]
        self.taken: dict[str, list[tuple[float, int]]] = {name: [(0.0, 0)] for name in ROOMS}
        self.world = OutageWorld(self.workers, rng, self._called)
        self._tick()

    def _called(self) -> None:
        for name in ROOMS:
            self.taken[name].append((self.world.now, self.granted(name)))

    def _tick(self) -> None:
        for worker in self.workers:
            worker.tick()
        self.world.at(self.world.now + TICK_S, self._tick)

    def want(self, **rooms: Sequence[int]) -> None:
        for name, wanted in rooms.items():
            for worker, each in zip(self.workers, wanted, strict=True):
                worker.wanted[name] = each

    def approved(self, name: str) -> int:
        return sum(worker.approved(name) for worker in self.workers)

    def granted(self, name: str) -> int:
        return self.world.pool.taken(QuotaReport(Budget(name, BOUND), 0, 0, 0))

    def swing(self, name: str) -> int:
        """By how much what was taken has changed in the last exchanges."""
        since = self.world.now - SWING_S
        before = [taken for at, taken in self.taken[name] if at < since]
        found = before[-1:] + [taken for at, taken in self.taken[name] if at >= since]
        return max(found) - min(found)

    def lose(self) -> None:
        self.world.lose()

    def find(self, after_s: Sequence[float] = (0.0,) * GATEWAYS) -> None:
        self.world.find(after_s)

    def jump(self, rng: random.Random, seconds: float) -> Iterator[int]:
        """Moves all load of a room from gateway to gateway, or to all, or away. Returns what waits, tick by tick."""
        left = 0
        for _ in range(int(seconds / TICK_S) + 1):
            if left == 0:
                left, to = rng.randint(1, 12), rng.choice((1, 2, 4, 7, 0))
                self.want(one=[3 * BOUND if to >> number & 1 else 0 for number in range(GATEWAYS)])
            left -= 1
            self.world.run(TICK_S)
            yield self.approved("one")


LEVELS = st.sampled_from((0, 0, 5, 60, 3 * BOUND))
WANTED = st.fixed_dictionaries({name: st.tuples(*[LEVELS] * GATEWAYS) for name in ROOMS})
PHASES = st.lists(st.tuples(st.floats(0.05, 4.0), WANTED), min_size=1, max_size=4)


@pytest.mark.timeout(120)
@settings(max_examples=40, deadline=None)
@given(
    before=PHASES,
    after=PHASES,
    starts=st.tuples(*[st.tuples(st.floats(0.0, BEAT_S), st.booleans())] * GATEWAYS),
    seed=st.integers(0, 2**32),
)
def test_a_room_never_holds_more_than_its_bound_with_the_pool_and_without_it(
    before: list[tuple[float, dict[str, tuple[int, ...]]]],
    after: list[tuple[float, dict[str, tuple[int, ...]]]],
    starts: tuple[tuple[float, bool], ...],
    seed: int,
) -> None:
    """Load moves as it likes. The outage begins at each gateway at a moment of its own, within a second. Beyond the
    bound waits at most what the last exchanges before have changed."""
    rooms = RoomWorld(random.Random(seed))
    for seconds, wanted in before:
        rooms.want(**wanted)
        for _ in range(int(seconds / TICK_S) + 1):
            rooms.world.run(TICK_S)
            for name in ROOMS:
                assert rooms.granted(name) <= BOUND
                assert rooms.approved(name) <= BOUND
    for machine, (after_s, runs) in zip(rooms.world.machines, starts, strict=True):
        machine.common.runs_lost = runs
        rooms.world.at(rooms.world.now + after_s, machine.common.lose)
    rooms.world.run(BEAT_S)
    allowed = {name: BOUND * (1 + TOLERANCE) + rooms.swing(name) for name in ROOMS}
    for seconds, wanted in [*after, (GONE_S + 1.0, dict.fromkeys(ROOMS, (BOUND,) * GATEWAYS))]:
        rooms.want(**wanted)
        for _ in range(int(seconds / TICK_S) + 1):
            rooms.world.run(TICK_S)
            for name in ROOMS:
                assert rooms.approved(name) <= allowed[name]


def test_several_gateways_that_each_filled_the_room_in_turn_hold_no_more_than_its_bound() -> None:
    rooms = RoomWorld(random.Random(1))
    for number in range(GATEWAYS):
        rooms.want(one=[3 * BOUND if each == number else 0 for each in range(GATEWAYS)])
        rooms.world.run(5.0)
        assert rooms.approved("one") == BOUND
    rooms.lose()
    rooms.want(one=(BOUND,) * GATEWAYS)
    most = 0
    for _ in range(300):
        rooms.world.run(TICK_S)
        most = max(most, rooms.approved("one"))
    assert most == BOUND


def test_a_room_that_is_full_elsewhere_stays_within_its_bound_at_gateways_that_fill_another_one() -> None:
    rooms = RoomWorld(random.Random(1))
    rooms.want(one=(BOUND, 0, 0), two=(0, BOUND, 0))
    rooms.world.run(10.0)
    rooms.lose()
    rooms.want(one=(BOUND,) * GATEWAYS, two=(BOUND,) * GATEWAYS)
    rooms.world.run(20.0)
    assert [rooms.approved(name) for name in ROOMS] == [BOUND, BOUND]
    assert [rooms.workers[0].approved("one"), rooms.workers[1].approved("two")] == [BOUND, BOUND]


@pytest.mark.parametrize("load", [(180, 10, 10), (BOUND, 0, 0), (0, 20, 400), (100, 100, 100)])
def test_in_an_outage_each_keeps_what_it_held_and_the_room_is_used(load: tuple[int, ...]) -> None:
    rooms = RoomWorld(random.Random(2))
    rooms.want(one=load)
    rooms.world.run(5.0)
    held = [worker.approved("one") for worker in rooms.workers]
    assert sum(held) >= 0.97 * BOUND
    rooms.lose()
    rooms.want(one=(0,) * GATEWAYS)
    rooms.world.run(GONE_S + 1.0)
    rooms.want(one=[2 * each for each in load])
    rooms.world.run(2.0)
    assert [worker.approved("one") for worker in rooms.workers] == pytest.approx(held, abs=1)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("longest_s", [10.0, LEAVE_S, 2 * LEAVE_S])
def test_a_room_that_emptied_just_before_is_open_to_all_when_what_was_held_must_have_left(longest_s: float) -> None:
    """``longest_s``: the most that the function lets a request wait."""
    rooms = RoomWorld(random.Random(7))
    for worker in rooms.workers:
        worker.figures["one"].resize(BOUND, BYTES, longest_s)
    rooms.want(one=(0, 0, BOUND))
    rooms.world.run(5.0)
    rooms.want(one=(0, 0, 0))
    rooms.world.run(0.1)
    rooms.lose()
    rooms.world.run(10.0)
    rooms.want(one=(40, 40, 0))
    rooms.world.run(KEPT_S + longest_s - 12.0)
    assert [worker.approved("one") for worker in rooms.workers] == [0, 0, 0], "it could still be full elsewhere"
    rooms.world.run(5.0)
    assert 2 <= rooms.approved("one") <= BOUND


def test_what_was_let_in_stays_and_is_not_replaced_beyond_the_part_after_a_minute() -> None:
    rooms = RoomWorld(random.Random(8))
    for number in range(GATEWAYS):
        rooms.want(one=[3 * BOUND if each == number else 0 for each in range(GATEWAYS)])
        rooms.world.run(7.0)
    rooms.lose()
    rooms.world.run(KEPT_S + 5.0)
    assert rooms.workers[2].approved("one") == BOUND
    rooms.want(one=(BOUND, BOUND, 0))
    rooms.world.run(5.0)
    rooms.want(one=(BOUND,) * GATEWAYS)
    rooms.world.run(5.0)
    assert [worker.approved("one") for worker in rooms.workers] == pytest.approx([0, 0, BOUND / 3], abs=7)
    rooms.world.run(LEAVE_S)
    assert [worker.approved("one") for worker in rooms.workers] == pytest.approx([BOUND / 3] * GATEWAYS, abs=7)
    assert rooms.approved("one") <= BOUND


def test_an_empty_room_is_divided_by_the_load_of_before() -> None:
    rooms = RoomWorld(random.Random(3))
    rooms.want(one=(180, 10, 10))
    rooms.world.run(5.0)
    rooms.want(one=(0, 0, 0))
    rooms.world.run(2.0)
    rooms.lose()
    rooms.want(one=(BOUND,) * GATEWAYS)
    rooms.world.run(5.0)
    assert [worker.approved("one") for worker in rooms.workers] == pytest.approx([180, 10, 10], abs=2)


def full_elsewhere(seed: int) -> RoomWorld:
    """A room that the second and the third gateway fill."""
    rooms = RoomWorld(random.Random(seed))
    rooms.want(one=(0, 100, 100))
    rooms.world.run(5.0)
    return rooms


def assert_stays_full_elsewhere(rooms: RoomWorld) -> None:
    rooms.want(one=(BOUND, 100, 100))
    for _ in range(50):
        rooms.world.run(TICK_S)
        assert [worker.approved("one") for worker in rooms.workers] == [0, 100, 100]
    rooms.want(one=(BOUND, 0, 0))
    rooms.world.run(2.0)
    assert rooms.workers[0].approved("one") >= 0.97 * BOUND, "the places are shared again"


@pytest.mark.parametrize("forgets", [False, True])
def test_a_pool_that_is_back_gives_none_what_others_hold(forgets: bool) -> None:
    for seed in range(5):
        rooms = full_elsewhere(seed)
        rooms.lose()
        rooms.world.run(GONE_S + 2.0)
        if forgets:
            rooms.world.forget()
        rooms.find()
        assert_stays_full_elsewhere(rooms)


def test_a_pool_that_has_forgotten_all_gives_none_what_others_hold() -> None:
    for seed in range(5):
        rooms = full_elsewhere(seed)
        rooms.world.forget()
        assert_stays_full_elsewhere(rooms)


def test_a_room_that_emptied_at_one_gateway_in_an_outage_is_open_to_the_others_after_it() -> None:
    rooms = RoomWorld(random.Random(1))
    rooms.want(one=(BOUND, 0, 0))
    rooms.world.run(5.0)
    rooms.lose()
    rooms.want(one=(0, 0, 0))
    rooms.world.run(3.0)
    rooms.find()
    rooms.world.run(3.0)
    rooms.want(one=(0, BOUND, 0))
    rooms.world.run(GONE_S + 2.0)
    assert rooms.workers[1].approved("one") == BOUND


def fills_in_an_outage(seed: int) -> RoomWorld:
    """What was free of a room that all have used little is taken while the pool is away."""
    rooms = RoomWorld(random.Random(seed))
    rooms.want(one=(20, 20, 20))
    rooms.world.run(8.0)
    rooms.lose()
    rooms.world.run(1.0)
    rooms.want(one=(BOUND,) * GATEWAYS)
    rooms.world.run(rooms.world.rng.uniform(1.0, 2.0))
    assert 0.97 * BOUND <= rooms.approved("one") <= BOUND
    return rooms


def test_a_pool_that_was_away_for_a_moment_gives_none_what_others_have_taken_in_it() -> None:
    for seed in range(5):
        rooms = fills_in_an_outage(seed)
        for machine in rooms.world.machines:
            machine.common.is_lost = False
            rooms.world.run(0.4)
        for _ in range(80):
            assert rooms.approved("one") <= BOUND
            rooms.world.run(TICK_S / 2)


FOUND = st.tuples(*[st.floats(0.0, REST_S)] * GATEWAYS)
"""Time after which each machine calls again, of a pool that is back for all."""
AWAY = st.floats(BEAT_S + 2 * CALL_S, 6.0)
"""Time in which all notice that the pool is away."""


@pytest.mark.timeout(120)
@settings(max_examples=60, deadline=None)
@given(
    before=st.sampled_from(((0, 0, 0), (20, 20, 20), (BOUND, 0, 0), (0, 60, 5), (100, 100, 0))),
    returns=st.lists(st.tuples(FOUND, st.floats(0.1, SETTLE_S - 2 * TICK_S), AWAY), max_size=2),
    first=AWAY,
    last=FOUND,
    seed=st.integers(0, 2**32),
)
def test_load_that_jumps_while_an_outage_ends_never_exceeds_the_bound(
    before: tuple[int, ...],
    returns: list[tuple[tuple[float, ...], float, float]],
    first: float,
    last: tuple[float, ...],
    seed: int,
) -> None:
    """The pool is back, goes away again before its grants count alone, and stays at last. Gateways notice each at
    moments of their own."""
    rng = random.Random(seed)
    rooms = RoomWorld(rng)
    rooms.want(one=before)
    rooms.world.run(SWING_S + 2.0)
    rooms.lose()
    assert max(rooms.jump(rng, first)) <= BOUND
    for found, back_s, away_s in returns:
        rooms.find(found)
        assert max(rooms.jump(rng, back_s)) <= BOUND
        rooms.lose()
        assert max(rooms.jump(rng, away_s)) <= BOUND
    rooms.find(last)
    assert max(rooms.jump(rng, 9.0)) <= BOUND
    rooms.want(one=(BOUND,) * GATEWAYS)
    rooms.world.run(3.0)
    assert rooms.approved("one") >= 0.97 * BOUND, "the whole room is used again"


def equal_parts(seed: int) -> RoomWorld:
    """Gateways that have filled a room each in turn: each has a third of what is free."""
    rooms = RoomWorld(random.Random(seed))
    for number in range(GATEWAYS):
        rooms.want(two=[BOUND if each == number else 0 for each in range(GATEWAYS)])
        rooms.world.run(3.0)
    rooms.want(two=(0,) * GATEWAYS)
    return rooms


def assert_all_together_have_the_bound(rooms: RoomWorld) -> None:
    rooms.want(one=(BOUND,) * GATEWAYS)
    for _ in range(40):
        rooms.world.run(TICK_S)
        assert rooms.approved("one") <= BOUND


@pytest.mark.parametrize("seed", range(6))
def test_when_one_has_more_than_its_part_again_the_others_do_not_go_by_theirs_alone(seed: int) -> None:
    """The load jumps at the moment when the grants of a pool that is back count alone for the first gateway."""
    rooms, first = equal_parts(seed), seed % GATEWAYS
    rooms.world.run(3.0)
    rooms.lose()
    rooms.world.run(3.0)
    rooms.find([0.0 if number == first else REST_S + AGAIN_S for number in range(GATEWAYS)])
    rooms.want(one=[BOUND if number == first else 0 for number in range(GATEWAYS)])
    while rooms.workers[first].approved("one") <= BOUND / GATEWAYS:
        rooms.world.run(TICK_S / 5)
    assert_all_together_have_the_bound(rooms)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["fills", "moves"])
def test_a_swing_just_before_an_outage_is_known_everywhere_after_two_seconds(kind: str) -> None:
    """An empty room fills at one gateway, or the load of a full one moves to another. It prints the most that waited in
    the outage, by the time from the change to the outage."""
    most: dict[float, int] = {}
    for seed, swing_s in itertools.product(range(20), (0.25, 0.5, 1.0, 1.5, 2.0, 2.5)):
        rooms = equal_parts(seed)
        rooms.want(one=(BOUND if kind == "moves" else 0, 0, 0))
        rooms.world.run(4.0 + seed / 20)
        rooms.want(one=(0, BOUND, 0))
        rooms.world.run(swing_s)
        rooms.lose()
        rooms.want(one=(BOUND,) * GATEWAYS)
        for _ in range(20):
            rooms.world.run(TICK_S)
            most[swing_s] = max(most.get(swing_s, 0), rooms.approved("one"))
    sys.stdout.write(f"\na room of {BOUND} {kind} so many seconds before an outage: at most {most} wait in it\n")
    assert max(each for swing_s, each in most.items() if swing_s >= 2.0) <= BOUND
    assert max(most.values()) <= 2 * BOUND


@pytest.mark.parametrize("seed", range(6))
def test_a_pool_that_fails_when_an_outage_is_over_for_some_divides_what_is_free_once(seed: int) -> None:
    """One gateway filled the room, which has emptied since, and is the last one for which the outage is over."""
    rooms, last = equal_parts(seed), seed % GATEWAYS
    rooms.want(one=[BOUND if number == last else 0 for number in range(GATEWAYS)])
    rooms.world.run(6.0)
    rooms.lose()
    rooms.want(one=(0,) * GATEWAYS)
    rooms.world.run(3.0)
    rooms.find([REST_S if number == last else 0.0 for number in range(GATEWAYS)])
    pools = [machine.pool for machine in rooms.world.machines]
    while pools[last - 1].fault is not None:
        rooms.world.run(TICK_S / 5)
    assert pools[last].fault is not None
    rooms.lose()
    assert_all_together_have_the_bound(rooms)


@pytest.mark.parametrize("seed", range(6))
def test_one_that_meets_an_emptied_pool_for_a_moment_gets_no_larger_part_of_what_others_hold(seed: int) -> None:
    rooms, first = equal_parts(seed), seed % GATEWAYS
    rooms.want(one=[0 if number == first else 40 for number in range(GATEWAYS)])
    rooms.world.run(6.0)
    rooms.lose()
    rooms.world.run(GONE_S + 2.0)
    rooms.world.forget()
    rooms.find([0.0 if number == first else math.inf for number in range(GATEWAYS)])
    rooms.world.run(2 * BEAT_S + REST_S)
    rooms.lose()
    rooms.world.run(2 * BEAT_S)
    assert_all_together_have_the_bound(rooms)


@pytest.mark.parametrize("back_s", [0.3, 0.8, SETTLE_S, SETTLE_S + 0.1, SETTLE_S + 0.3])
def test_a_pool_that_comes_and_goes_divides_what_was_free_once(back_s: float) -> None:
    for seed in range(5):
        rooms = fills_in_an_outage(seed)
        for _ in range(6):
            rooms.find()
            rooms.world.run(back_s)
            rooms.lose()
            for _ in range(rooms.world.rng.randint(10, 20)):
                rooms.world.run(TICK_S)
                assert rooms.approved("one") <= BOUND


QUOTA = 200
WINDOW_S = 10.0
TENANTS = ("acme", "second")


class QuotaWorker:
    """The quotas of one gateway: so many requests of each tenant come in each tick."""

    def __init__(self) -> None:
        self.quotas = GatewayQuotas(members=GATEWAYS)
        self.wanted = dict.fromkeys(TENANTS, 0)
        self.admitted: Counter[tuple[str, int]] = Counter()
        self._asking: list[tuple[str, float]] = []
        self._taken_at = 0.0

    def next_at(self) -> float:
        return self._taken_at + 0.01 if self.quotas.is_urgent else self.quotas.next_wakeup()

    def take(self, now: float) -> Sequence[QuotaReport]:
        self._taken_at = now
        return self.quotas.take(now)

    def answered(self, answer: QuotaAnswer, now: float) -> None:
        self.quotas.answer(answer, now)
        asking, self._asking = self._asking, []
        for tenant, since in asking:
            self._request(tenant, since, now)

    def tick(self, now: float) -> None:
        for tenant, wanted in self.wanted.items():
            for _ in range(wanted):
                self._request(tenant, now, now)

    def _request(self, tenant: str, since: float, now: float) -> None:
        budget = Budget(tenant, QUOTA, WINDOW_S)
        found = self.quotas.reserve(budget, 1, now, is_again=since < now)
        if isinstance(found, Reservation):
            self.admitted[tenant, found.window] += 1
        elif isinstance(found, Ask) and now - since < ASK_S:
            self._asking.append((tenant, since))


class QuotaWorld:
    """The machines, and what is admitted in each window."""

    def __init__(self, rng: random.Random) -> None:
        self.workers = [QuotaWorker() for _ in range(GATEWAYS)]
        self.world = OutageWorld(self.workers, rng, lambda: None)
        self._tick()

    def _tick(self) -> None:
        for worker in self.workers:
            worker.tick(self.world.now)
        self.world.at(self.world.now + TICK_S, self._tick)

    def want(self, **tenants: Sequence[int]) -> None:
        for name, wanted in tenants.items():
            for worker, each in zip(self.workers, wanted, strict=True):
                worker.wanted[name] = each

    def admitted(self) -> Counter[tuple[str, int]]:
        return sum((worker.admitted for worker in self.workers), Counter())

    def jump(self, rng: random.Random, seconds: float) -> None:
        """Moves all load of a tenant from gateway to gateway, or to all, or away."""
        end = self.world.now + seconds
        while self.world.now < end:
            to = rng.choice((1, 2, 4, 7, 0))
            self.want(acme=[12 if to >> number & 1 else 0 for number in range(GATEWAYS)])
            self.world.run(min(end - self.world.now, rng.uniform(0.1, 1.2)))

    def lose(self) -> None:
        self.world.lose()

    def find(self, after_s: Sequence[float]) -> None:
        self.world.find(after_s)


@pytest.mark.timeout(120)
@settings(max_examples=20, deadline=None)
@given(
    returns=st.lists(st.tuples(FOUND, st.floats(0.1, SETTLE_S - 2 * TICK_S), AWAY), max_size=2),
    last=FOUND,
    seed=st.integers(0, 2**32),
)
def test_requests_that_jump_while_an_outage_ends_never_exceed_the_quota(
    returns: list[tuple[tuple[float, ...], float, float]], last: tuple[float, ...], seed: int
) -> None:
    """As for rooms."""
    rng = random.Random(seed)
    quotas = QuotaWorld(rng)
    quotas.want(acme=(1, 1, 1))
    quotas.world.run(rng.uniform(0.5, WINDOW_S))
    quotas.want(acme=(0, 0, 0))
    quotas.world.run(SWING_S)
    for found, back_s, away_s in [(None, 0.0, 3.0), *returns, (last, 2 * WINDOW_S, 0.0)]:
        if found is not None:
            quotas.find(found)
            quotas.jump(rng, back_s)
        quotas.lose()
        quotas.jump(rng, away_s)
    assert max(quotas.admitted().values()) <= QUOTA


RATES = st.sampled_from((0, 0, 1, 4, 12))
ASKED = st.fixed_dictionaries({name: st.tuples(*[RATES] * GATEWAYS) for name in TENANTS})
SPELLS = st.lists(st.tuples(st.floats(0.05, 7.0), ASKED), min_size=1, max_size=3)


@pytest.mark.timeout(120)
@settings(max_examples=20, deadline=None)
@given(
    before=SPELLS,
    after=SPELLS,
    starts=st.tuples(*[st.tuples(st.floats(0.0, BEAT_S), st.booleans())] * GATEWAYS),
    seed=st.integers(0, 2**32),
)
def test_a_quota_is_never_exceeded_with_the_pool_and_without_it(
    before: list[tuple[float, dict[str, tuple[int, ...]]]],
    after: list[tuple[float, dict[str, tuple[int, ...]]]],
    starts: tuple[tuple[float, bool], ...],
    seed: int,
) -> None:
    """As for rooms: beyond the quota of the window in which the pool fails at most the amount of the last exchanges is
    admitted, and nothing beyond that of later windows."""
    quotas = QuotaWorld(random.Random(seed))
    history = []
    for seconds, asked in before:
        quotas.want(**asked)
        for _ in range(int(seconds / TICK_S) + 1):
            quotas.world.run(TICK_S)
            history.append((quotas.world.now, quotas.admitted()))
            assert max(history[-1][1].values(), default=0) <= QUOTA
    for machine, (after_s, runs) in zip(quotas.world.machines, starts, strict=True):
        machine.common.runs_lost = runs
        quotas.world.at(quotas.world.now + after_s, machine.common.lose)
    quotas.world.run(BEAT_S)
    now, known = quotas.world.now, Counter[tuple[str, int]]()
    for at, admitted in history:
        if at < now - SWING_S:
            known = admitted
    recent = quotas.admitted() - known
    for seconds, asked in [*after, (2 * WINDOW_S, dict.fromkeys(TENANTS, (4,) * GATEWAYS))]:
        quotas.want(**asked)
        quotas.world.run(seconds)
    for window, amount in quotas.admitted().items():
        assert amount <= QUOTA * (1 + TOLERANCE) + recent[window]


def test_a_quota_that_is_spent_at_one_gateway_is_spent_at_another_one_when_the_pool_fails() -> None:
    """Load of the tenant moves; the other gateway has not seen it before."""
    quotas = QuotaWorld(random.Random(6))
    quotas.want(second=(0, 2, 2))
    quotas.world.run(WINDOW_S)
    quotas.want(acme=(40, 0, 0), second=(0, 0, 0))
    quotas.world.run(4.0)
    quotas.lose()
    quotas.want(acme=(0, 40, 40))
    quotas.world.run(3.0)
    assert quotas.admitted()["acme", 6001] == QUOTA
    quotas.world.run(WINDOW_S)
    assert quotas.admitted()["acme", 6002] == pytest.approx(QUOTA / 2, abs=2), "the part of these two by their use"
