"""Quotas: the gateway's side and the pool's, by themselves and four gateways together in virtual time."""

import math
import random
from dataclasses import replace

import pytest

from tests.support.worlds.quota_world import TIMEOUT_S, QuotaWorld
from tidegate.flow.quota import (
    BATCH,
    Ask,
    Budget,
    GatewayQuotas,
    Pool,
    QuotaAnswer,
    QuotaGrant,
    QuotaReport,
    Refused,
    Reservation,
)

MINUTE = Budget("tenant", 6000, 60)
RPM = Budget("rpm", 2400, 60)
UNEVEN = (0.7, 0.2, 0.08, 0.02)


def exchange(quotas: GatewayQuotas, pool: Pool, now: float, member: str = "a") -> None:
    quotas.answer(pool.exchange(member, quotas.take(now), now), now)


def granted(
    quotas: GatewayQuotas, pool: Pool, budget: Budget, amount: int, now: float, member: str = "a"
) -> Reservation:
    """Reserves, over one exchange where needed."""
    verdict = quotas.reserve(budget, amount, now)
    if isinstance(verdict, Ask):
        exchange(quotas, pool, now, member)
        verdict = quotas.reserve(budget, amount, now, is_again=True)
    assert isinstance(verdict, Reservation)
    return verdict


def test_a_first_request_asks_and_those_after_it_do_not() -> None:
    quotas, pool, asks = GatewayQuotas(), Pool(), []
    for request in range(200):
        now = request * 0.01
        if isinstance(quotas.reserve(MINUTE, 1, now), Ask):
            asks.append(request)
            exchange(quotas, pool, now)
            assert isinstance(quotas.reserve(MINUTE, 1, now, is_again=True), Reservation)
        if quotas.is_urgent or quotas.next_wakeup() <= now:
            exchange(quotas, pool, now)
    assert asks[0] == 0
    assert len(asks) <= 3, asks
    assert quotas.read(MINUTE, 2.0).used == 200


def test_spent_is_refused_without_asking_and_the_next_window_is_whole() -> None:
    quotas, pool = GatewayQuotas(), Pool()
    granted(quotas, pool, MINUTE, 6000, 1.0)
    verdict = quotas.reserve(MINUTE, 1, 1.1)
    assert isinstance(verdict, Refused)
    assert verdict.retry_after_s == pytest.approx(58.9)
    assert isinstance(quotas.reserve(MINUTE, 1, 60.0), Ask)
    assert granted(quotas, pool, MINUTE, 6000, 60.0).window == 1


def test_more_than_the_budget_ever_has() -> None:
    assert GatewayQuotas().reserve(MINUTE, 6001, 0) == Refused(math.inf)


def test_what_comes_back_and_what_is_owed() -> None:
    quotas, pool = GatewayQuotas(), Pool()
    first = granted(quotas, pool, MINUTE, 1000, 1.0)
    quotas.settle(first, 400, 2.0)
    assert quotas.read(MINUTE, 2.0).used == 400
    second = granted(quotas, pool, MINUTE, 5600, 2.0)
    quotas.settle(second, 5700, 3.0)
    assert quotas.read(MINUTE, 3.0).used == 6100
    exchange(quotas, pool, 4.0)
    other = GatewayQuotas()
    assert isinstance(other.reserve(MINUTE, 1, 4.0), Ask)
    exchange(other, pool, 4.0, "b")
    assert isinstance(other.reserve(MINUTE, 1, 4.0, is_again=True), Refused)
    assert other.read(MINUTE, 4.0).used == 6100


def test_of_a_window_that_is_over_only_more_counts() -> None:
    quotas, pool = GatewayQuotas(), Pool()
    first, second = (granted(quotas, pool, MINUTE, 100, 1.0) for _ in range(2))
    quotas.settle(first, 10, 61.0)
    assert quotas.read(MINUTE, 61.0).used == 0
    quotas.settle(second, 130, 61.0)
    assert quotas.read(MINUTE, 61.0).used == 30


def test_a_report_that_is_lost_or_comes_twice_changes_nothing() -> None:
    pool = Pool()
    report = QuotaReport(MINUTE, 0, 100, 50)
    assert pool.exchange("a", [report], 1.0).grants == pool.exchange("a", [report], 1.0).grants
    assert pool.exchange("b", [QuotaReport(MINUTE, 0, 0, 9999)], 1.0).grants == (QuotaGrant(5850, 0, 100),)


def test_a_pool_that_forgot_knows_all_after_one_report_of_each() -> None:
    one, other, pool = GatewayQuotas(), GatewayQuotas(), Pool()
    granted(one, pool, MINUTE, 3000, 1.0, "a")
    granted(other, pool, MINUTE, 2900, 1.0, "b")
    pool = Pool()
    for quotas, member in ((one, "a"), (other, "b")):
        quotas.reserve(MINUTE, 1, 3.0)
        exchange(quotas, pool, 3.0, member)
    assert pool.exchange("c", [QuotaReport(MINUTE, 0, 0, 0)], 3.0).grants[0].others == 5902


def test_what_a_report_gives_back_is_not_spent_while_it_is_under_way() -> None:
    quotas, pool = GatewayQuotas(), Pool()
    quotas.settle(granted(quotas, pool, MINUTE, 5000, 1.0), 0, 2.0)
    assert isinstance(quotas.reserve(MINUTE, 1, 2.0), Reservation), "it holds 5000"
    reports = quotas.take(3.0)
    assert isinstance(quotas.reserve(MINUTE, 4000, 3.0), Ask)
    pool.exchange("a", reports, 3.0)
    assert pool.exchange("b", [QuotaReport(MINUTE, 0, 0, 6000)], 3.0).grants[0].ceiling > 4000


def test_what_a_report_gives_back_may_be_asked_for_at_once() -> None:
    quotas, pool = GatewayQuotas(), Pool()
    quotas.settle(granted(quotas, pool, MINUTE, 5500, 1.0), 0, 1.1)
    quotas.take(1.4)
    assert isinstance(quotas.reserve(MINUTE, 4000, 1.4), Ask), "it is not spent"


@pytest.mark.parametrize("skew_s", [-3600, -50, 50, 3600])
def test_windows_are_cut_by_the_clock_of_the_pool(skew_s: float) -> None:
    """A gateway with a wrong clock counts in the pool's window from the first answer on."""
    quotas, pool, now = GatewayQuotas(), Pool(), 7205.0
    assert isinstance(quotas.reserve(MINUTE, 1, now + skew_s), Ask)
    quotas.answer(pool.exchange("a", quotas.take(now + skew_s), now), now + skew_s)
    while isinstance(verdict := quotas.reserve(MINUTE, 1, now + skew_s, is_again=True), Ask):
        quotas.answer(pool.exchange("a", quotas.take(now + skew_s), now), now + skew_s)
    assert isinstance(verdict, Reservation)
    assert verdict.window == 120
    assert quotas.read(MINUTE, now + skew_s).resets_in_s == pytest.approx(55)


def test_the_share_of_a_gateway_that_is_gone() -> None:
    """Its use counts on; the amount that it held is free again."""
    pool = Pool()
    pool.exchange("dead", [QuotaReport(MINUTE, 0, 1000, 500)], 1.0)
    assert pool.exchange("b", [QuotaReport(MINUTE, 0, 0, 6000)], 2.0).grants[0].ceiling == 4500
    answer = pool.exchange("b", [QuotaReport(MINUTE, 0, 0, 6000)], 7.0)
    assert (answer.grants[0].ceiling, answer.members) == (5000, 1)


def test_a_bound_gets_back_what_a_gateway_that_is_gone_held() -> None:
    pool, bound = Pool(), Budget("waiting", 100)
    pool.exchange("dead", [QuotaReport(bound, 0, 60, 0)], 1.0)
    assert pool.exchange("b", [QuotaReport(bound, 0, 0, 100)], 2.0).grants[0].ceiling == 40
    assert pool.exchange("b", [QuotaReport(bound, 0, 0, 100)], 7.0).grants[0].ceiling == 100


def test_a_bound_gets_back_what_a_gateway_no_longer_reports() -> None:
    """Its last report was lost; it reports others."""
    pool, bound = Pool(), Budget("waiting", 100)
    pool.exchange("a", [QuotaReport(bound, 0, 60, 0)], 1.0)
    for second in range(2, 8):
        pool.exchange("a", [], float(second))
        ceiling = pool.exchange("b", [QuotaReport(bound, 0, 0, 100)], float(second)).grants[0].ceiling
        assert ceiling == (40 if second <= 6 else 100)


def test_a_bound_of_a_gateway_that_is_gone_is_forgotten() -> None:
    """Also if no other gateway ever has it: gateways that were killed do not pile up here."""
    pool = Pool()
    pool.exchange("dead", [QuotaReport(Budget("waiting", 100), 0, 60, 0)], 1.0)
    pool.exchange("b", (), 5.0)
    assert repr(pool) == "<Pool 1 windows, 2 gateways>"
    pool.exchange("b", (), 7.0)
    assert repr(pool) == "<Pool 0 windows, 1 gateways>"


def test_on_its_own_and_back() -> None:
    """Four gateways: each gets a quarter of what was free, of the next window a quarter, then what it asks for."""
    pool, quotas = Pool(), GatewayQuotas(members=4)
    for member in "bcd":
        pool.exchange(member, [], 1.0)
    granted(quotas, pool, MINUTE, 2000, 1.0)
    quotas.take(2.0)
    quotas.failed()
    assert isinstance(quotas.reserve(MINUTE, 1000, 2.0), Reservation)
    assert isinstance(quotas.reserve(MINUTE, 30, 2.0), Refused)
    quotas.take(3.0)
    quotas.failed()
    assert isinstance(quotas.reserve(MINUTE, 30, 3.0), Refused), "a second failure gives nothing more"
    assert isinstance(quotas.reserve(MINUTE, 1500, 60.0), Reservation)
    assert isinstance(quotas.reserve(MINUTE, 1, 60.0), Refused)
    exchange(quotas, pool, 61.0)
    assert isinstance(granted(quotas, pool, MINUTE, 4000, 61.0), Reservation)
    assert pool.exchange("b", [QuotaReport(MINUTE, 1, 0, 6000)], 61.0).grants[0].ceiling <= 500


def test_a_budget_below_the_number_of_gateways_is_not_nothing() -> None:
    quotas, small = GatewayQuotas(members=4), Budget("small", 2, 60)
    quotas.failed()
    assert isinstance(quotas.reserve(small, 1, 0), Reservation)
    assert isinstance(quotas.reserve(small, 1, 0), Refused)


def test_idle_keys_are_forgotten_and_their_shares_return() -> None:
    quotas, pool = GatewayQuotas(), Pool()
    reservation = granted(quotas, pool, Budget("held", 10), 1, 0.0)
    for tenant in range(3):
        granted(quotas, pool, Budget(str(tenant), 6000, 60), 1, 0.0)
    quotas.settle(reservation, 0, 1.0)
    now = 1.0
    while now < 70:
        exchange(quotas, pool, now := max(now + 0.01, quotas.next_wakeup()))
    assert "0 keys" in repr(quotas)
    while now < 200:
        exchange(quotas, pool, now := max(now + 0.01, quotas.next_wakeup()))
    assert "0 windows" in repr(pool)


def test_windows_that_are_over_are_looked_for_once_a_second() -> None:
    pool = Pool()
    pool.exchange("a", [QuotaReport(MINUTE, 0, 1, 0)], 119.5)
    for now, left in ((120.4, "1 windows"), (120.5, "0 windows")):
        pool.exchange("a", [], now)
        assert left in repr(pool)


def test_many_keys_go_in_several_exchanges() -> None:
    quotas = GatewayQuotas()
    for tenant in range(BATCH + 5):
        quotas.reserve(Budget(str(tenant), 10, 60), 1, 0.0)
    assert len(quotas.take(0.0)) == BATCH
    quotas.answer(QuotaAnswer(tuple(QuotaGrant(1, 9, 0) for _ in range(BATCH)), 0.0, 1), 0.0)
    assert quotas.next_wakeup() <= 0.0
    assert len(quotas.take(0.0)) == 5


def test_keys_that_a_full_exchange_leaves_out_come_first_in_the_next() -> None:
    """Three exchanges' worth of keys with a quota a second, of which the first ones are due again and again; nor does
    a caller who asks for one more time put its key behind them."""
    quotas, heard = GatewayQuotas(), set[str]()
    budgets = [Budget(str(tenant), 1000, 1) for tenant in range(3 * BATCH)]
    for exchange_number in range(6):
        now = exchange_number * 0.06
        for budget in budgets:
            quotas.reserve(budget, 1, now, is_again=exchange_number > 0)
        reports = quotas.take(now)
        heard |= {report.budget.key for report in reports}
        quotas.answer(QuotaAnswer(tuple(QuotaGrant(report.used, 1000, 0) for report in reports), now, 1), now)
    assert len(heard) == len(budgets)


@pytest.mark.parametrize("is_part", [False, True])
def test_a_pool_that_is_another_hears_also_of_keys_without_news(is_part: bool) -> None:
    """Spent long ago, nothing to tell since; then the pool's process is another one, or answers for a part."""
    quotas, pool, now = GatewayQuotas(), Pool(), 1.0
    granted(quotas, pool, Budget("small", 100, 60), 60, now)
    while now < 20.0:
        exchange(quotas, pool, now := max(now + 0.01, quotas.next_wakeup()))
    pool = Pool()
    for _ in range(3):
        now = max(now + 0.01, quotas.next_wakeup())
        answer = pool.exchange("a", quotas.take(now), now)
        quotas.answer(replace(answer, is_part=is_part, is_new=answer.is_new and not is_part), now)
    assert now < 30.0
    assert pool.exchange("b", [QuotaReport(Budget("small", 100, 60), 0, 0, 100)], now).grants[0].ceiling == 40


@pytest.mark.parametrize("budget", [("a", -1, 60.0), ("a", 1, 0.0), ("a", 1, -1.0), ("a", 1, math.nan)])
def test_bad_budgets(budget: tuple[str, int, float]) -> None:
    with pytest.raises(ValueError, match="a budget has"):
        Budget(*budget)


def world(
    budget: Budget, load: float, windows: int, *, lost: tuple[float, float] = (0, 0), size: int = 1
) -> QuotaWorld:
    """Four gateways with uneven shares of ``load`` times the budget; requests of 1 to ``2 * size - 1``."""
    made = QuotaWorld(budget, seed=7, lost=lost)
    sizes = random.Random(8)
    for gateway, part in enumerate(UNEVEN):
        rate = load * part * budget.amount / budget.window_s / size
        made.load(gateway, rate, 0, windows * budget.window_s, lambda: sizes.randint(1, 2 * size - 1))
    return made


@pytest.mark.parametrize(
    ("budget", "size"),
    [(RPM, 1), (Budget("a", 600, 60), 1), (Budget("a", 1000, 1), 1), (Budget("tokens", 100_000, 60), 300)],
    ids=["rpm", "small", "second", "tokens"],
)
def test_uneven_load_spends_the_budget_within_two_percent(budget: Budget, size: int) -> None:
    tally = world(budget, 2.0, 3, size=size).run(3 * budget.window_s)
    for window in range(3):
        assert 0.98 * budget.amount <= tally.admitted[window] <= budget.amount
    assert tally.waited <= 0.1 * tally.requests
    assert tally.longest_wait_s < 0.05


@pytest.mark.parametrize(("budget", "size"), [(RPM, 1), (Budget("tokens", 100_000, 60), 30)], ids=["rpm", "tokens"])
def test_below_the_budget_none_is_refused_and_hardly_anybody_waits(budget: Budget, size: int) -> None:
    tally = world(budget, 0.9, 3, size=size).run(180)
    assert not tally.refused
    assert tally.waited <= 0.02 * tally.requests


def test_a_load_that_moves_from_gateway_to_gateway() -> None:
    made = QuotaWorld(RPM, seed=7)
    for part in range(18):
        made.load(part % 4, 80, part * 10, part * 10 + 10, lambda: 1)
    tally = made.run(180)
    for window in range(3):
        assert 0.98 * RPM.amount <= tally.admitted[window] <= RPM.amount


@pytest.mark.parametrize("begin", [70.0, 100.0, 115.0])
def test_the_pool_is_gone_for_thirty_seconds(begin: float) -> None:
    """Never above the budget; none below its even part; none waits for longer than the pool's time; and back."""
    tally = world(RPM, 2.0, 4, lost=(begin, begin + 30)).run(240)
    for window in range(4):
        assert tally.admitted[window] <= 1.02 * RPM.amount
    for window in (0, 3):
        assert tally.admitted[window] >= 0.98 * RPM.amount
    for gateway, part in enumerate(UNEVEN):
        least = min(RPM.amount / 4, part * RPM.amount)
        assert all(tally.by_gateway[window, gateway] >= 0.6 * least for window in range(4)), gateway
    assert tally.longest_wait_s <= TIMEOUT_S + 0.05


def test_the_pool_is_gone_for_a_whole_window() -> None:
    """Each gateway has a quarter, no more; the loads of 0.7 and 0.2 spend theirs, the others all they get."""
    tally = world(RPM, 2.0, 4, lost=(50, 130)).run(240)
    assert tally.admitted[1] <= 1.02 * RPM.amount
    assert tally.by_gateway[1, 0] == tally.by_gateway[1, 1] == pytest.approx(600, abs=50)
    assert tally.admitted[3] >= 0.98 * RPM.amount


def test_a_bound_over_four_gateways() -> None:
    """200 at the same time, 300 wanted: never more, and all of them in use."""
    bound = Budget("waiting", 200)
    made = QuotaWorld(bound, seed=7)
    for gateway, part in enumerate(UNEVEN):
        when = 0.0
        while (when := when + made.random.expovariate(300 * part)) < 30:
            made.at(when, lambda gateway=gateway: made.hold(gateway, 1, 1.0))  # type: ignore[misc]
    tally = made.run(30)
    assert 0.98 * 200 <= made.held_at_most <= 200
    assert tally.admitted[0] >= 0.9 * 200 * 29


def test_gateways_that_have_not_reported_yet_have_their_even_part_too() -> None:
    """The pool knows of one gateway; there are two, and the other one's first request comes when the pool is gone."""
    budget, quotas = Budget("k", 40, 1.0), GatewayQuotas(members=2)
    quotas.take(0.0)
    quotas.answer(QuotaAnswer((), 0.0, 1), 0.0)
    quotas.failed()
    admitted = sum(isinstance(quotas.reserve(budget, 1, 0.5), Reservation) for _ in range(40))
    assert admitted == 20


def test_an_answer_that_comes_after_the_gateway_went_on_alone_is_taken() -> None:
    """A request stops waiting for the pool while its reports are under way; then the answer comes after all."""
    quotas, pool = GatewayQuotas(members=2), Pool()
    assert isinstance(quotas.reserve(MINUTE, 1, 1.0), Ask)
    reports = quotas.take(1.0)
    quotas.failed()
    assert isinstance(quotas.reserve(MINUTE, 1, 1.5, is_again=True), Reservation)
    quotas.answer(pool.exchange("a", reports, 1.6), 1.6)
    assert not quotas.is_lost
    exchange(quotas, pool, 1.7)
    assert quotas.read(MINUTE, 1.7).used == 1


def test_a_lowered_budget_holds_at_once_whatever_was_granted_or_is_settled() -> None:
    quotas, pool, before = GatewayQuotas(), Pool(), []
    for step in range(50):
        before.append(granted(quotas, pool, MINUTE, 1, 1.0 + step / 100))
        exchange(quotas, pool, 1.0 + step / 100)
    lowered = Budget("tenant", 51, 60)
    now, admitted = 2.0, 0
    for reservation in before:
        now += 0.3
        verdict = quotas.reserve(lowered, 1, now)
        quotas.settle(reservation, 1, now)
        exchange(quotas, pool, now)
        if isinstance(verdict, Ask):
            verdict = quotas.reserve(lowered, 1, now, is_again=True)
        admitted += isinstance(verdict, Reservation)
    assert admitted == 1


@pytest.mark.parametrize(
    ("window_s", "report_s"), [(1.0, 0.05), (10.0, 0.05), (60.0, 0.3), (3600.0, 0.5), (math.inf, 0.1)]
)
def test_reports_come_two_hundred_times_a_window_within_bounds(window_s: float, report_s: float) -> None:
    assert Budget("k", 1, window_s).report_s == report_s


def test_a_gateway_alone_and_without_a_pool_has_the_whole_budget() -> None:
    quotas = GatewayQuotas()
    quotas.failed()
    assert isinstance(quotas.reserve(MINUTE, MINUTE.amount, 0.0), Reservation)
    assert isinstance(quotas.reserve(MINUTE, 1, 0.0), Refused)


def test_a_pool_that_takes_over_knows_what_its_gateways_hold() -> None:
    pool = Pool()
    report = QuotaReport(MINUTE, 0, 10, 30)
    pool.note("a", (report,), QuotaAnswer((QuotaGrant(40, 600, 0),), 1.0, 1))
    assert pool.taken(report) == 40
    (grant,) = pool.exchange("b", (QuotaReport(Budget("tenant", 190, 60), 0, 0, 1000),), 1.5).grants
    assert (grant.ceiling, grant.free) == (150, 0), "of a part of the budget"


def test_a_key_that_is_new_asks_for_its_requests_and_nothing_in_advance() -> None:
    quotas = GatewayQuotas()
    assert isinstance(quotas.reserve(Budget("hourly", 100, 3600), 1, 10.0), Ask)
    assert [report.want for report in quotas.take(10.0)] == [1]


def test_a_share_that_lasts_makes_no_hurry() -> None:
    quotas, pool = GatewayQuotas(), Pool()
    for request in range(400):
        granted(quotas, pool, MINUTE, 10, request * 0.05)
        exchange(quotas, pool, request * 0.05)
    assert isinstance(quotas.reserve(MINUTE, 1, 20.0), Reservation)
    assert not quotas.is_urgent


def test_it_hurries_when_less_than_half_of_what_it_wants_is_left() -> None:
    quotas, pool = GatewayQuotas(), Pool()
    for request in range(400):
        granted(quotas, pool, MINUTE, 10, request * 0.05)
        exchange(quotas, pool, request * 0.05)
    (report,) = quotas.take(20.5)
    answer = pool.exchange("a", (report,), 20.5)
    quotas.answer(answer, 20.5)
    want, left = report.want, answer.grants[0].ceiling - report.used
    assert left > want // 2 > 10
    while not quotas.is_urgent:
        assert isinstance(quotas.reserve(MINUTE, 1, 20.5), Reservation)
        left -= 1
    assert 2 * left < want <= 2 * (left + 1)


def test_what_was_used_of_a_window_is_known_when_the_clock_of_the_pool_went_back_and_returns() -> None:
    quotas, pool = GatewayQuotas(), Pool()
    granted(quotas, pool, MINUTE, 100, 310.0)  # window 5
    quotas.answer(QuotaAnswer((), 190.0, 1, is_new=False), 310.0)  # window 3, by a clock that is two minutes behind
    assert quotas.read(MINUTE, 310.0).used == 0
    assert quotas.read(MINUTE, 370.0).used == 0, "window 4"
    assert quotas.read(MINUTE, 430.0).used == 100, "window 5 again"


def test_a_gateway_on_its_own_hurries_to_none() -> None:
    quotas, pool = GatewayQuotas(), Pool()
    for request in range(400):
        granted(quotas, pool, MINUTE, 10, request * 0.05)
    quotas.failed()
    quotas.take(20.0)
    for _ in range(100):
        if not isinstance(quotas.reserve(MINUTE, 10, 20.0), Reservation):
            break
    assert not quotas.is_urgent, "there is no pool to ask"


def test_what_an_answer_said_to_be_free_may_be_asked_for_and_more_is_refused_at_once() -> None:
    for amount, verdict in ((10, Ask), (11, Refused)):
        quotas = GatewayQuotas()
        assert isinstance(quotas.reserve(MINUTE, 100, 1.0), Ask)
        assert len(quotas.take(1.0)) == 1
        quotas.answer(QuotaAnswer((QuotaGrant(100, 10, 5890),), 1.0, 1), 1.0)
        assert isinstance(quotas.reserve(MINUTE, 100, 1.0, is_again=True), Reservation)
        assert isinstance(quotas.reserve(MINUTE, amount, 1.0), verdict)


def test_a_gateway_without_keys_shows_its_presence_every_second() -> None:
    quotas = GatewayQuotas()
    assert quotas.next_wakeup() == -math.inf
    assert quotas.take(7.5) == ()
    assert quotas.next_wakeup() == 8.5


@pytest.mark.parametrize(
    ("amount", "members", "asked", "want"),
    [(6000, 1, 100, 115), (6000, 1, 7, 14), (6000, 200, 100, 107), (800, 1, 100, 102), (399, 1, 100, 100)],
)
def test_a_first_report_asks_for_the_request_and_a_four_hundredth_beside_it(
    amount: int, members: int, asked: int, want: int
) -> None:
    budget, quotas = Budget("tenant", amount, 60), GatewayQuotas(members=members)
    assert isinstance(quotas.reserve(budget, asked, 1.0), Ask)
    assert quotas.take(1.0) == (QuotaReport(budget, 0, 0, want),)


@pytest.mark.parametrize(("at", "want"), [(11.0, 15), (11.1, 8)])
def test_an_amount_is_held_for_ten_seconds_then_what_three_reports_use(at: float, want: int) -> None:
    quotas = GatewayQuotas()
    quotas.reserve(MINUTE, 100, 1.0)
    quotas.take(1.0)
    quotas.answer(QuotaAnswer((QuotaGrant(0, 0, 6000),), 1.0, 1), 1.0)
    assert quotas.take(at) == (QuotaReport(MINUTE, 0, 0, want),)


def test_a_window_is_forgotten_one_window_after_its_end() -> None:
    pool = Pool()
    pool.exchange("a", [QuotaReport(MINUTE, 0, 100, 0)], 1.0)
    for at, is_known in ((119.0, True), (120.0, True), (121.0, False)):
        pool.exchange("a", [], at)
        assert bool(pool.totals(0.0)) is is_known
