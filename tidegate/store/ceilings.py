"""What the gateways here may take of each budget while the common pool is away.

While the pool answers it is known of each budget and window how much all gateways have taken: from the answers to own
reports, and from lists of all that others have reported. When the pool fails, the gateways here have the ceilings that
it granted them, and their part (:mod:`tidegate.store.parts`) of what was free::

    ceiling = granted here + part * (amount - taken)

The parts are the whole at most, so the ceilings of all machines together exceed the amount at most by what the pool
granted after a machine last knew what was taken. Of a budget or window of which nothing was taken the ceiling is the
part of its whole amount.

A ceiling holds until the outage is over for all gateways (:meth:`OutageCeilings.end`). If the pool fails before that,
others may have begun a new outage with what they had by then, or may not have noticed that the pool was back: the
ceiling is the lesser of the one of before and a new one.

What is held leaves in time, but it is not known when it has left elsewhere. After ``KEPT_S`` a bound is filled again up
to the part of its whole amount at most; a ``Budget.leave_s`` later nothing is held beyond that, and the part is the
ceiling. Pure; ``now`` in seconds of the pool's clock.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Final

from tidegate.flow.quota import GONE_S, QuotaAnswer, QuotaReport, QuotaTotal

KEPT_S: Final = 60.0
"""Our choice."""
_Name = tuple[str, float, int]


class _Ceiling:
    """The ceiling of one budget and window, for an amount of at least 1."""

    __slots__ = ("most", "report", "whole")

    def __init__(self, report: QuotaReport, most: int, whole: int) -> None:
        self.report = report
        self.most = most
        self.whole = whole
        """The part of the whole amount."""

    def after(self, away_s: float) -> int:
        """Returns the ceiling after an outage of ``away_s``."""
        budget = self.report.budget
        if not budget.is_bound or away_s < KEPT_S:
            return self.most
        return min(self.most, self.whole) if away_s < KEPT_S + budget.leave_s else self.whole

    def __repr__(self) -> str:
        return f"<_Ceiling {self.most} of {self.report.budget.amount}>"


class OutageCeilings:
    """The ceilings of the gateways here together."""

    def __init__(self) -> None:
        self._taken: dict[_Name, tuple[int, float]] = {}
        """What all gateways have of a budget and window, and when that was noted."""
        self._before: dict[_Name, int] = {}
        """What all had when the outage began."""
        self._part = Fraction()
        self._ceilings: dict[_Name, _Ceiling] = {}
        """Of each budget those of an even and of an odd window: the present one and the next, or the one before."""

    def note(self, reports: Sequence[QuotaReport], answer: QuotaAnswer) -> None:
        """Notes the common pool's answer."""
        for report, grant in zip(reports, answer.grants, strict=True):
            self._note(_name(report), report.budget.amount - grant.free, answer.time_s)

    def list(self, totals: Iterable[QuotaTotal], now: float) -> None:
        """Notes what was reported since the last list. Forgets windows that have ended, and bounds without reports."""
        for each in totals:
            self._note((each.key, each.window_s, each.window), each.taken, now)
        for name, (_, at) in list(self._taken.items()):
            _, window_s, window = name
            if now - at > GONE_S if math.isinf(window_s) else now > (window + 1) * window_s:
                del self._taken[name]

    def begin(self, part: Fraction, held: Callable[[QuotaReport], int], away_s: float) -> None:
        """Notes that the pool fails: at first, or again before :meth:`end`, ``away_s`` after it failed last. ``held``:
        what the gateways here have of a report's budget."""
        before = {name: taken for name, (taken, _) in self._taken.items()}
        for name, taken in self._before.items():
            if _slot(name) not in self._ceilings:
                before[name] = max(taken, before.get(name, 0))
        self._before, self._part = before, part
        for each in self._ceilings.values():
            each.most = min(each.after(away_s), self._new(each.report, held(each.report)).most)

    def end(self) -> None:
        """Notes that the outage is over for all gateways."""
        self._before = {}
        self._ceilings = {}

    def of(self, report: QuotaReport, held: int, away_s: float) -> int:
        """Returns the ceiling of a report's budget, ``away_s`` after the pool failed. ``held``: what the gateways here
        have of it, which counts once, at the first report."""
        slot = _slot(_name(report))
        found = self._ceilings.get(slot)
        if found is None or found.report.window != report.window:
            found = self._ceilings[slot] = self._new(report, held)
        amount = report.budget.amount
        return min(amount, found.after(away_s) * amount // max(1, found.report.budget.amount))

    def _new(self, report: QuotaReport, held: int) -> _Ceiling:
        amount = max(1, report.budget.amount)
        # At least 1, else a budget below the number of gateways would be none.
        whole = min(amount, max(1, int(amount * self._part)))
        taken = self._before.get(_name(report), 0)
        return _Ceiling(report, held + int(max(0, amount - taken) * self._part) if taken else whole, whole)

    def _note(self, name: _Name, amount: int, now: float) -> None:
        if amount > 0:
            self._taken[name] = amount, now
        else:
            self._taken.pop(name, None)

    def __repr__(self) -> str:
        return f"<OutageCeilings {len(self._ceilings)}, {len(self._taken)} budgets in use>"


def _name(report: QuotaReport) -> _Name:
    return report.budget.key, report.budget.window_s, report.window


def _slot(name: _Name) -> _Name:
    key, window_s, window = name
    return key, window_s, window % 2
