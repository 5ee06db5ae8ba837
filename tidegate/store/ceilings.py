"""What the gateways here may take of each budget while the common pool is away.

While the pool answers it is known of each budget and window how much all gateways have taken: from the answers to own
reports, and once a second from a list of all that others have reported. When the pool fails, the gateways here have
the ceilings that it granted them, and their part (:mod:`tidegate.store.parts`) of what was free::

    ceiling = granted here + part * (amount - taken)

The parts are the whole at most, so the ceilings of all machines together exceed the amount at most by what the pool
granted after a machine last knew what was taken: about a second's. Of a budget or window of which nothing was taken the
ceiling is the part of its whole amount.

What is held leaves in time, but it is not known when it has left elsewhere. After ``KEPT_S`` a bound is filled again up
to the part of its whole amount at most; ``LEAVE_S`` later nothing is held beyond that, and the part is the ceiling.
Pure; ``now`` in seconds of the pool's clock.
"""

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Final

from tidegate.flow.quota import GONE_S, QuotaAnswer, QuotaReport, QuotaTotal

KEPT_S: Final = 60.0
LEAVE_S: Final = 300.0
"""Requests wait no longer, unless their function's timeout is longer. Both are our choice."""
_Name = tuple[str, float, int]


class _Taken:
    """What all gateways have of one budget and window."""

    __slots__ = ("amount", "at", "ceiling", "fixed")

    def __init__(self, amount: int, at: float) -> None:
        self.amount = amount
        self.at = at
        self.ceiling = self.fixed = 0
        """Of the gateways here while the pool is away, for a budget of ``fixed``; 0 before the first report."""

    def __repr__(self) -> str:
        return f"<_Taken {self.amount}, ceiling {self.ceiling} of {self.fixed}>"


class OutageCeilings:
    """The ceilings of the gateways here together."""

    def __init__(self) -> None:
        self._taken: dict[_Name, _Taken] = {}

    def note(self, reports: Sequence[QuotaReport], answer: QuotaAnswer) -> None:
        """Notes the common pool's answer."""
        for report, grant in zip(reports, answer.grants, strict=True):
            budget = report.budget
            self._note((budget.key, budget.window_s, report.window), budget.amount - grant.free, answer.time_s)

    def list(self, totals: Iterable[QuotaTotal], now: float) -> None:
        """Notes what was reported since the last list. Forgets windows that have ended, and bounds without reports."""
        for each in totals:
            self._note((each.key, each.window_s, each.window), each.taken, now)
        for name, taken in list(self._taken.items()):
            _, window_s, window = name
            if now - taken.at > GONE_S if math.isinf(window_s) else now > (window + 1) * window_s:
                del self._taken[name]

    def end(self) -> None:
        """Notes that an outage is over: all has been listed again. What was free before it may be taken now."""
        for taken in self._taken.values():
            taken.ceiling = taken.fixed = 0

    def of(self, report: QuotaReport, held: int, part: Fraction, away_s: float) -> int:
        """Returns the ceiling of a report's budget when the pool has been away for ``away_s``. ``held``: what the
        gateways here have of it, which counts once, at the first report."""
        amount = report.budget.amount
        # At least 1, else a budget below the number of gateways would be none.
        whole = min(amount, max(1, int(amount * part)))
        taken = self._taken.get((report.budget.key, report.budget.window_s, report.window))
        if taken is None:
            return whole
        if not taken.fixed:
            taken.fixed = max(1, amount)
            taken.ceiling = held + int(max(0, amount - taken.amount) * part)
        ceiling = min(amount, taken.ceiling * amount // taken.fixed)
        if not report.budget.is_bound or away_s < KEPT_S:
            return ceiling
        return min(ceiling, whole) if away_s < KEPT_S + LEAVE_S else whole

    def _note(self, name: _Name, amount: int, now: float) -> None:
        if amount > 0:
            self._taken[name] = _Taken(amount, now)
        else:
            self._taken.pop(name, None)

    def __repr__(self) -> str:
        return f"<OutageCeilings of {len(self._taken)} budgets>"
