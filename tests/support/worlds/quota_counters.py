"""Quotas of one gateway by itself: decided at once, unless the pool is to be asked."""

from collections import Counter

from tidegate.flow.quota import Budget, Reservation
from tidegate.store.counters import Asking, ShortBudget, Wanted


class FakeQuotaCounters:
    """Counts the amounts taken of each budget; with ``knows`` False every decision has to be asked for."""

    def __init__(self) -> None:
        self.taken: Counter[Budget] = Counter()
        self.knows = True
        self.is_lost = False

    def try_all(self, wanted: Wanted) -> tuple[Reservation, ...] | ShortBudget | Asking:
        return self.answer(wanted) if self.knows else Asking(())

    def answer(self, wanted: Wanted) -> tuple[Reservation, ...] | ShortBudget:
        """Returns the decision of the pool."""
        for at, (budget, amount) in enumerate(wanted):
            if self.taken[budget] + amount > budget.amount:
                return ShortBudget(at, float("inf") if amount > budget.amount else 12.3)
        self.taken.update(dict(wanted))
        return tuple(Reservation(budget, 0, amount) for budget, amount in wanted)

    def settle(self, reservation: Reservation, real: int) -> None:
        self.taken[reservation.budget] += real - reservation.amount
