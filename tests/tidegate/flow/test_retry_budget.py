"""Second copies against the requests of the last ten seconds."""

from tidegate.flow.retry_budget import FLOOR_PER_S, WINDOW_S, RetryBudget

FLOOR = FLOOR_PER_S * WINDOW_S


def spent(budget: RetryBudget, percent: float, now: float, wanted: int) -> int:
    """Returns how many of the wanted copies may be sent."""
    sent = 0
    for _ in range(wanted):
        if budget.allows(percent, now):
            budget.spend()
            sent += 1
    return sent


def test_a_small_function_may_retry_up_to_the_floor() -> None:
    budget = RetryBudget(0.0)
    budget.requests += 1
    assert spent(budget, 20.0, 0.1, 1000) == FLOOR


def test_a_busy_one_a_percentage_more() -> None:
    budget = RetryBudget(0.0)
    budget.requests += 1000
    assert spent(budget, 20.0, 0.1, 1000) == FLOOR + 200


def test_without_a_percentage_nothing_is_sent_twice() -> None:
    budget = RetryBudget(0.0)
    budget.requests += 1000
    assert spent(budget, 0.0, 0.1, 10) == 0


def test_requests_and_copies_count_for_ten_seconds() -> None:
    budget = RetryBudget(0.0)
    budget.requests += 100
    assert spent(budget, 50.0, 0.5, 1000) == FLOOR + 50
    for second in range(1, WINDOW_S):
        budget.roll(float(second))
        assert not budget.allows(50.0, second + 0.9), "requests and copies of the first second still count"
    assert spent(budget, 50.0, 10.1, 1000) == FLOOR, "both are forgotten together"


def test_the_window_slides_by_seconds() -> None:
    budget = RetryBudget(0.0)
    sent = 0
    for second in range(60):
        budget.requests += 100
        sent += spent(budget, 20.0, second + 0.5, 100)
    assert 60 * 20 <= sent <= 60 * 20 + 6 * FLOOR, "a retry storm of a minute, every request failing"


def test_a_long_silence_leaves_an_empty_window() -> None:
    budget = RetryBudget(0.0)
    budget.requests += 10_000
    budget.roll(1.0)
    budget.roll(1e6)
    assert spent(budget, 20.0, 1e6, 10_000) == FLOOR
    assert repr(budget) == f"<RetryBudget {FLOOR} copies of 0 requests in 10 s>"


def test_the_floor_is_three_copies_a_second() -> None:
    assert spent(RetryBudget(0.0), 1.0, 0.0, 100) == 30
    budget = RetryBudget(0.0)
    budget.requests = 99
    assert spent(budget, 1.0, 0.0, 100) == 30
    budget.requests = 100
    assert spent(budget, 1.0, 0.0, 100) == 1


def test_a_second_ends_when_it_is_over() -> None:
    budget = RetryBudget(5.0)
    budget.requests = 100
    budget.roll(5.9)
    assert budget.requests == 100
    budget.roll(6.0)
    assert (budget.requests, repr(budget)) == (0, "<RetryBudget 0 copies of 100 requests in 10 s>")
    budget.roll(14.9)
    assert "100 requests" in repr(budget)
    budget.roll(15.0)
    assert "0 copies of 0 requests" in repr(budget)
