"""The parts of all budgets that gateways have while the common pool is away: leased in advance, by use.

A part is a fraction of every budget of a pool. Each member leases its own from the pool, by the same messages as the
budgets themselves: two bounds more, once a second. Of the first it reports what it *needs*: the largest fraction of a
budget that it has used, in the present window or in the one before (of what is held at the same time: the most in
``HELD_S`` to twice that). The other members' sum comes back. Of the second it wants its need and an even part of what
no member needs; where the needs are more than the whole, its need by their sum.

All parts are ceilings of one bound, so they never add up to more than the whole, whatever is late or lost. A gateway's
part is that of the members that report to it. Pure; ``now`` in seconds of the pool's clock.
"""

import math
from collections.abc import Collection, Sequence
from typing import Final

from tidegate.flow.quota import BEAT_S, ENDLESS, GONE_S, Budget, QuotaGrant, QuotaReport

WHOLE: Final = 720_720
"""Parts of the whole: up to 16 gateways divide it without a rest."""
HELD_S: Final = 30.0
NEEDS: Final = Budget("/needs", ENDLESS)
PARTS: Final = Budget("/parts", WHOLE)
"""Names that no tenant and no function has."""
CLOSE: Final = WHOLE // 200
"""A part that differs from the wanted one by more is leased again at the next exchange."""


class _Use:
    """The use of one budget by one member."""

    __slots__ = ("amount", "before", "high", "period")

    def __init__(self, period: int, amount: int) -> None:
        self.period = period
        self.amount = amount
        self.high = self.before = 0
        """The most of the period, and of the one before it."""

    def note(self, period: int, used: int, amount: int) -> None:
        if period > self.period:
            self.before = self.high if period == self.period + 1 else 0
            self.high, self.period = 0, period
        if period == self.period:
            self.high, self.amount = max(self.high, used), amount

    def need(self, period: int) -> int:
        used = max(self.high, self.before) if period <= self.period else self.high
        return min(WHOLE, used * WHOLE // max(1, self.amount)) if period <= self.period + 1 else 0


class Parts:
    """The parts of the members that report here."""

    def __init__(self, part: int = 0) -> None:
        """``part``: that of the process before. It counts until as much is leased, ``GONE_S`` at most: so long the
        pool keeps the part of a process that ended, and others give theirs up within some exchanges."""
        self._first = part
        self._first_until: float | None = None
        """Until when it counts at most; None before the first answer."""
        self.is_starting = True
        """Nothing is leased yet, because others have not given up theirs."""
        self._uses: dict[str, dict[tuple[str, float], _Use]] = {}
        self._needs: dict[str, int] = {}
        self._granted: dict[str, tuple[int, float]] = {}
        """By member: its part, and when it was leased."""
        self._others: dict[str, int] = {}
        """By member: the needs of all others, here and elsewhere."""

    def note(self, member: str, reports: Sequence[QuotaReport], now: float) -> None:
        """Notes what a member has used."""
        uses = self._uses.setdefault(member, {})
        for report in reports:
            budget = report.budget
            period = _period(budget.window_s, now) if budget.is_bound else report.window
            if report.used:
                uses.setdefault((budget.key, budget.window_s), _Use(period, budget.amount)).note(
                    period, report.used, budget.amount
                )

    def reports(self, member: str, members: int, now: float) -> tuple[QuotaReport, ...]:
        """Returns the reports to be sent with the member's own; none, if it has reported within a second and has what
        it wants. ``members``: of all gateways."""
        granted, at = self._granted.get(member, (0, now - BEAT_S))
        if now - at >= BEAT_S or member not in self._needs:
            self._needs[member] = self._need(member, now)
        elif abs(self._wanted(member, members) - granted) <= CLOSE:
            return ()
        wanted = self._wanted(member, members)
        if wanted < granted:  # given up from now on: the pool may grant it to others, although its answer is lost
            self._granted[member] = wanted, at
        return QuotaReport(NEEDS, 0, self._needs[member], 0), QuotaReport(PARTS, 0, 0, wanted)

    def held(self, member: str) -> tuple[QuotaReport, ...]:
        """Returns the reports by which a pool that was away knows of the member's part; none before its first lease."""
        if member not in self._granted:
            return ()
        return QuotaReport(NEEDS, 0, self._needs[member], 0), QuotaReport(PARTS, 0, self._granted[member][0], 0)

    def answer(self, member: str, grants: Sequence[QuotaGrant], now: float) -> None:
        """Takes the grants of :meth:`reports` or :meth:`held`."""
        needs, part = grants
        if self._first_until is None:
            self._first_until = now + GONE_S
        self.is_starting &= not part.ceiling and now < self._first_until
        self._others[member] = needs.others
        self._granted[member] = part.ceiling, now
        if self.part > self._first or now >= self._first_until:
            self._first = 0

    def drop_ended(self, now: float, present: Collection[str]) -> None:
        """Drops members that the pool no longer knows, and those without a part that are not ``present``. Not to be
        called while the pool is away: it keeps all of them then."""
        ended = [name for name, (_, at) in self._granted.items() if now - at > GONE_S]
        ended += [name for name in self._uses if name not in self._granted and name not in present]
        for member in ended:
            for each in (self._granted, self._others, self._needs, self._uses):
                each.pop(member, None)

    @property
    def part(self) -> int:
        """Part of the members here together, of ``WHOLE``."""
        return max(self._first, sum(part for part, _ in self._granted.values()))

    def _need(self, member: str, now: float) -> int:
        uses = self._uses.get(member, {})
        needs = {name: each.need(_period(name[1], now)) for name, each in uses.items()}
        self._uses[member] = {name: each for name, each in uses.items() if needs[name]}
        return max(needs.values(), default=0)

    def _wanted(self, member: str, members: int) -> int:
        need = self._needs[member]
        total = need + self._others.get(member, 0)
        return need * WHOLE // total if total > WHOLE else need + (WHOLE - total) // max(1, members)

    def __repr__(self) -> str:
        return f"<Parts {self.part / WHOLE:.3f} of {len(self._granted)} members>"


def _period(window_s: float, now: float) -> int:
    return int(now // (HELD_S if math.isinf(window_s) else window_s))
