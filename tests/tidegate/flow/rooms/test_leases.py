"""Leases of a waiting room's bound: gateway workers against the pool, in virtual time."""

import random

import pytest

from tidegate.flow.quota import GONE_S, LEAVE_S, Pool
from tidegate.flow.rooms.leases import BUSY_S, CHANGED_S, URGENT_S, LeasedFigures, RoomLeases

BOUND = 100
BYTES = 1_000_000


class Gateway:
    """One worker with one function: requests wait until they are refused or leave."""

    def __init__(self, name: str, members: int = 1) -> None:
        self.name = name
        self.woken = 0
        self.leases = RoomLeases(members=members, wake=self._wake)
        self.figures: LeasedFigures = self.leases.of("echo")
        self.figures.resize(BOUND, BYTES, LEAVE_S)
        self.waiting = 0
        self.refused = 0

    def _wake(self) -> None:
        self.woken += 1

    def arrive(self, count: int = 1) -> None:
        for _ in range(count):
            if self.waiting + self.figures.others().requests + 1 > BOUND:
                self.refused += 1
            else:
                self.waiting += 1
                self._publish()

    def leave(self, count: int) -> None:
        self.waiting -= count
        self._publish()

    def _publish(self) -> None:
        self.figures.publish(self.waiting, 10 * self.waiting, 0.0)

    def exchange(self, pool: Pool, now: float) -> None:
        reports = self.leases.take(now)
        self._cut_back(self.leases.answer(pool.exchange(self.name, reports, now)))

    def fail(self, now: float) -> None:
        self.leases.take(now)
        self._cut_back(self.leases.failed(now))

    def _cut_back(self, functions: tuple[str, ...]) -> None:
        for _ in functions:
            over = self.waiting + self.figures.others().requests - BOUND
            self.waiting -= over
            self.refused += over
            self._publish()


def test_a_burst_at_one_gateway_gets_the_whole_bound_and_no_more() -> None:
    pool, one, other = Pool(), Gateway("a"), Gateway("b")
    other.exchange(pool, 0.0)
    one.arrive(3 * BOUND)
    assert (one.waiting, one.refused) == (BOUND, 2 * BOUND), "on approval no more than the bound waits here"
    one.exchange(pool, 0.01)
    assert one.waiting == BOUND
    other.arrive(5)
    assert other.waiting == 5, "on approval"
    other.exchange(pool, 0.02)
    assert (other.waiting, other.refused) == (0, 5), "the bound is spent: what came last leaves"
    other.arrive()
    assert (other.waiting, other.refused) == (0, 6), "and what comes then is refused at once"


def test_places_that_are_left_at_one_gateway_serve_another() -> None:
    pool, one, other = Pool(), Gateway("a"), Gateway("b")
    one.arrive(BOUND)
    one.exchange(pool, 0.0)
    other.arrive()
    other.exchange(pool, 0.0)
    assert other.waiting == 0
    one.leave(40)
    one.exchange(pool, 0.1)
    other.exchange(pool, 0.2)
    other.arrive(60)
    other.exchange(pool, 0.3)
    assert 38 <= other.waiting <= 40
    assert one.waiting + other.waiting <= BOUND


@pytest.mark.parametrize("seed", range(5))
def test_together_they_never_hold_more_than_the_bound(seed: int) -> None:
    """After each exchange of all what waits beyond approval is within the bound; and it is used."""
    rng = random.Random(seed)
    pool, gateways, now = Pool(), [Gateway(f"g{number}") for number in range(3)], 0.0
    for _ in range(300):
        for each in rng.sample(gateways, 3):
            if rng.random() < 0.5:
                each.arrive(rng.randrange(80))
            elif each.waiting:
                each.leave(rng.randrange(each.waiting + 1))
            now += 0.01
            each.exchange(pool, now)
            granted = sum(other.figures.requests.granted for other in gateways)
            assert granted <= BOUND
            assert each.waiting <= each.figures.requests.granted
    for each in gateways:
        each.arrive(BOUND)
        each.exchange(pool, now)
    assert sum(each.waiting for each in gateways) >= BOUND - 3


def test_bytes_are_a_bound_of_their_own() -> None:
    pool, one = Pool(), Gateway("a")
    one.figures.publish(2, BYTES + 1, 0.0)
    reports = one.leases.take(0.0)
    assert one.leases.answer(pool.exchange("a", reports, 0.0)) == ("echo",)
    assert one.figures.others().size == 0, "all of the bytes are here"
    assert one.figures.others().requests == 0


def test_without_the_pool_each_goes_on_with_its_part() -> None:
    pool, gateways = Pool(), [Gateway(f"g{number}") for number in range(3)]
    for each in gateways:
        each.arrive()
        each.exchange(pool, 0.0)
    gateways[0].arrive(69)
    for each in gateways:
        each.exchange(pool, 0.1)
    for each in gateways:
        each.fail(0.2)
    for each in gateways:
        each.arrive(BOUND)
        each.fail(0.3)
    assert sum(each.waiting for each in gateways) <= BOUND, "what one had leased is not given to others"
    assert gateways[0].waiting >= 70
    assert all(each.leases.is_lost for each in gateways)
    for each in gateways:
        each.leave(each.waiting)
    for each in gateways:
        each.fail(0.3 + GONE_S)
        each.arrive(BOUND)
        each.fail(0.4 + GONE_S)
    assert [each.waiting for each in gateways] == [BOUND // 3] * 3, "an even part, once leases have ended"
    for each in gateways:
        each.exchange(pool, 10.0)
    assert not any(each.leases.is_lost for each in gateways)


def test_a_bound_below_the_number_of_gateways_is_one_each() -> None:
    one = Gateway("a", members=3)
    one.figures.resize(1, BYTES, LEAVE_S)
    one.waiting = 1
    one.figures.publish(1, 10, 0.0)
    one.leases.take(0.0)
    assert one.leases.failed(0.0) == ()


def test_the_next_exchange_is_due_as_soon_as_it_is_useful() -> None:
    pool, one = Pool(), Gateway("a")
    one.exchange(pool, 0.0)
    assert one.leases.next_at() == 1.0, "it only shows that it is there"
    one.arrive()
    assert one.woken == 1
    assert one.leases.next_at() == pytest.approx(URGENT_S)
    one.exchange(pool, 0.1)
    assert one.leases.next_at() == pytest.approx(0.1 + BUSY_S)
    one.leave(1)
    assert one.leases.next_at() == pytest.approx(0.1 + CHANGED_S)
    one.exchange(pool, 0.2)
    assert one.leases.take(0.3) == (), "nothing is leased any more"


def test_at_the_end_everything_is_given_back() -> None:
    pool, one, other = Pool(), Gateway("a"), Gateway("b")
    one.arrive(BOUND)
    one.exchange(pool, 0.0)
    pool.exchange("a", one.leases.leave(), 0.1)
    other.arrive(BOUND)
    other.exchange(pool, 0.2)
    assert other.waiting == BOUND


def test_nothing_is_kept_of_functions_that_are_gone() -> None:
    pool, leases = Pool(), RoomLeases(members=1, wake=lambda: None)
    held = leases.of("held")
    for number in range(20):
        figures = leases.of(f"deleted{number}")
        figures.resize(BOUND, BYTES, LEAVE_S)
        figures.publish(3, 30, 0.0)
        leases.answer(pool.exchange("a", leases.take(0.1), 0.1))
        figures.publish(0, 0, 0.0)
        del figures
        reports = leases.take(0.2)
        assert [report.used for report in reports] == [0, 0], "the pool hears of the end"
        leases.answer(pool.exchange("a", reports, 0.2))
    leases.take(0.3)
    assert list(leases._functions) == ["held"]
    assert not leases._used
    assert leases.of("held") is held, "as long as its room is there"
