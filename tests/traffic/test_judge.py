"""The rule by which a canary is judged."""

import math
import random

import pytest

from tidegate.traffic.judge import EVIDENCE, MIN_REQUESTS, Tally, Verdict, judge

HEALTHY = Tally(answered=990, failed=2)
BUDGET = 0.02


def test_three_bad_requests_are_no_evidence_and_six_are() -> None:
    assert judge(Tally(failed=3), HEALTHY, BUDGET).verdict is Verdict.FEW
    assert judge(Tally(failed=5), HEALTHY, BUDGET).verdict is Verdict.FEW
    assert judge(Tally(failed=6), HEALTHY, BUDGET).verdict is Verdict.BAD


@pytest.mark.parametrize("budget", [0.5, 0.1, 0.02, 0.001, 1e-5, 0.0])
def test_under_no_budget_are_three_enough(budget: float) -> None:
    assert judge(Tally(failed=3), Tally(answered=100_000), budget).verdict is not Verdict.BAD


@pytest.mark.parametrize("kind", ["failed", "refused", "expired", "overdue"])
def test_every_way_to_go_badly_counts(kind: str) -> None:
    assert judge(Tally(**{kind: 8}), HEALTHY, BUDGET).verdict is Verdict.BAD


def test_late_answers_burn_the_budget_like_errors() -> None:
    found = judge(Tally(answered=100, late=30), Tally(answered=1000, late=10), BUDGET)
    assert found.verdict is Verdict.BAD
    assert found.burn == pytest.approx(15.0)
    assert found.old_burn == pytest.approx(0.5)
    assert "30 late" in found.words(Tally(answered=100, late=30), Tally(answered=1000, late=10))


def test_it_is_not_blamed_for_what_the_old_revision_suffers_too() -> None:
    assert judge(Tally(answered=100, late=30), Tally(answered=1000, late=310), BUDGET).verdict is Verdict.GOOD


def test_a_pass_needs_enough_requests() -> None:
    assert judge(Tally(), HEALTHY, BUDGET).verdict is Verdict.FEW
    assert judge(Tally(answered=MIN_REQUESTS - 1), HEALTHY, BUDGET).verdict is Verdict.FEW
    assert judge(Tally(answered=MIN_REQUESTS), HEALTHY, BUDGET).verdict is Verdict.GOOD


def test_evidence_that_only_leans_decides_nothing() -> None:
    assert judge(Tally(answered=18, failed=3), HEALTHY, BUDGET).verdict is Verdict.OPEN


def test_without_the_old_ones_figures_the_budget_is_the_measure() -> None:
    assert judge(Tally(answered=50), Tally(), BUDGET).verdict is Verdict.GOOD
    assert judge(Tally(answered=40, failed=10), Tally(), BUDGET).verdict is Verdict.BAD


def ever_bad(rng: random.Random, fraction: float, requests: int) -> int | None:
    """Looks after each request; after how many the canary is bad."""
    bad = 0
    for n in range(1, requests + 1):
        bad += rng.random() < fraction
        if (
            judge(Tally(answered=n - bad, failed=bad), Tally(answered=49_000, failed=1_000), BUDGET).verdict
            is Verdict.BAD
        ):
            return n
    return None


def test_a_version_as_good_as_allowed_is_hardly_ever_taken_back_though_one_looks_all_the_time() -> None:
    rng = random.Random(5)
    taken_back = sum(ever_bad(rng, BUDGET, 400) is not None for _ in range(300))
    assert taken_back <= 2, "at most one in a thousand is expected"


def test_a_bad_version_is_found_soon() -> None:
    rng = random.Random(6)
    found = [ever_bad(rng, 0.5, 400) for _ in range(100)]
    assert all(n is not None for n in found)
    assert sorted(n or 0 for n in found)[50] < 20
    slow = [ever_bad(rng, 0.1, 2000) for _ in range(50)]
    assert all(n is not None for n in slow)


def test_the_test_never_divides_by_nothing() -> None:
    for old in (Tally(failed=100), Tally(answered=100), Tally()):
        for new in (Tally(failed=1000), Tally(answered=1000), Tally()):
            assert math.isfinite(judge(new, old, 0.0).evidence)
    assert judge(Tally(failed=1000), Tally(failed=100_000), BUDGET).verdict is not Verdict.BAD, "all of it is broken"
    assert EVIDENCE > 6.9


def test_requests_are_the_sum_of_how_they_ended_and_late_ones_are_among_the_answered() -> None:
    tally = Tally(answered=7, failed=3, refused=3, expired=5, late=2, overdue=6)
    assert (tally.requests, tally.bad) == (24, 19)
    assert tally.fraction == pytest.approx(19 / 24)
    assert Tally().fraction == 0.0


def test_a_little_evidence_that_it_is_worse_leaves_it_open_and_none_is_good() -> None:
    little = judge(Tally(answered=19, failed=1), Tally(), BUDGET)
    assert 0.0 < little.evidence < 1.0, "one bad request of 20, a budget of 2 %"
    assert little.verdict is Verdict.OPEN
    assert judge(Tally(answered=20), Tally(), BUDGET).verdict is Verdict.GOOD


def test_twenty_requests_are_enough_and_nineteen_are_not() -> None:
    assert judge(Tally(answered=MIN_REQUESTS - 1), HEALTHY, BUDGET).verdict is Verdict.FEW
    assert judge(Tally(answered=MIN_REQUESTS), HEALTHY, BUDGET).verdict is Verdict.GOOD


def test_the_formula_of_the_module_by_hand() -> None:
    new, old = Tally(answered=95, failed=5), Tally(answered=180, failed=20)
    found = judge(new, old, BUDGET)
    allowed = (20 + 20 * BUDGET) / (200 + 20)
    worse = 4 * allowed / (1 + 3 * allowed)
    evidence = 5 * math.log(worse / allowed) + 95 * math.log((1 - worse) / (1 - allowed))
    assert found.allowed == pytest.approx(allowed)
    assert found.evidence == pytest.approx(evidence)
    assert found.burn == pytest.approx(2.5)
    assert found.old_burn == pytest.approx(5.0)


def test_evidence_a_little_below_zero_is_good() -> None:
    found = judge(Tally(answered=39, failed=1), Tally(), BUDGET)
    assert -1.0 < found.evidence < 0.0, "one bad request of 40, a budget of 2 %"
    assert found.verdict is Verdict.GOOD


def test_the_budget_has_bounds() -> None:
    assert judge(Tally(), Tally(), 0.0).allowed == pytest.approx(1e-6)
    assert judge(Tally(), Tally(), 0.9).allowed == 0.5
    assert judge(Tally(), Tally(failed=10**9), 0.02).allowed == 1.0 - 1e-6
    assert judge(Tally(answered=4, failed=1), Tally(answered=8, failed=2), 0.9).burn == pytest.approx(0.4)


@pytest.mark.parametrize(("bad", "requests"), [(0, 0), (0, 20), (1, 30), (5, 100), (9, 20)])
@pytest.mark.parametrize("budget", [0.001, 0.02, 0.3])
def test_what_is_allowed_is_the_budget_or_what_the_old_one_suffers(budget: float, bad: int, requests: int) -> None:
    found = judge(Tally(), Tally(answered=requests - bad, failed=bad), budget)
    assert found.allowed == pytest.approx(max(budget, (bad + 20 * budget) / (requests + 20)))
    assert found.evidence == 0.0


def test_the_words_name_each_way_to_go_badly_and_the_figures() -> None:
    new, old = Tally(answered=90, failed=1, refused=2, expired=3, late=4, overdue=5), Tally(answered=50)
    words = judge(new, old, BUDGET).words(new, old)
    assert words.startswith(
        "15 of 101 requests went badly (1 failed, 2 refused, 3 expired, 4 late, 5 overdue), burn 7.4 "
    )
    assert "against 0.0 of 50 before; evidence " in words
    assert words.endswith(" of 6.9")
    assert "(none)" in judge(old, old, BUDGET).words(old, old)


def test_each_way_to_go_badly_is_added() -> None:
    assert Tally(failed=3, refused=1).bad == 4
    assert Tally(failed=1, refused=3, expired=5, late=7, overdue=9).bad == 25
    assert Tally(answered=1, failed=3, refused=5, expired=7, overdue=9).requests == 25
