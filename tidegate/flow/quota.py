"""Quotas over several gateways: budgets that all may spend together, counted where the requests are.

A *budget* is an amount per window of time (requests, tokens), or without a window an amount held at the same time. A
gateway admits from its *share* of it: what it was granted in advance and has not used. In the background it reports to
a common pool, key by key, what it has used and how much more it wants to hold, and receives its new *ceiling*::

    gateway -> pool   used 120, want 30                     (absolute figures of this window)
    pool -> gateway   ceiling 150, still free 800

    sum of all ceilings <= amount     so no gateway can overspend, however slow or uneven they are

Figures are absolute, never steps: a report that was lost or counted twice changes nothing, and a pool that has lost its
memory knows all again after one report of each gateway. The want is the gateway's own expected use in the next three
reports, so shares follow the load, and an unneeded share goes back with the next report.

If the share does not suffice and it is not known that the budget is spent, the caller gets an :class:`Ask`: it waits
for the next report's answer. A key with steady traffic holds its share in advance, that of the next window too.

Without a pool each gateway continues with an even part of what was free, and of each new window.

Both sides are here, pure: :class:`GatewayQuotas` in the gateway, :class:`Pool` where all meet. ``now`` in seconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

REPORTS_PER_WINDOW: Final = 200
"""Our choice, within the two bounds below: a share can be wrong by the use between two reports."""
MIN_REPORT_S: Final = 0.05
MAX_REPORT_S: Final = 0.5
AHEAD: Final = 3
"""Reports with use that is held in advance: one under way, one that may be late, one to spare."""
FLOOR_PARTS: Final = 400
FLOOR_S: Final = 10.0
"""For this time after a request a gateway holds the same amount again, up to ``1 / FLOOR_PARTS`` of the budget (four
gateways: 1 %)."""
JUMP_S: Final = 1.0
"""A clock that is wrong by more moves to the pool's window; by less, a gateway's windows only ever go forward."""
ENDLESS: Final = 2**50
BATCH: Final = 512
"""Maximum reports in one exchange."""
BEAT_S: Final = 1.0
"""A gateway without news reports its presence at this interval."""
LEAVE_S: Final = 300.0
"""As long as requests wait where nothing else is configured."""
GONE_S: Final = 5.0
"""A gateway without a report for this long gives its unused share back."""


@dataclass(frozen=True, slots=True)
class Budget:
    key: str
    amount: int
    window_s: float = math.inf
    """Infinite: reservations count until they are settled with 0."""
    leave_s: float = LEAVE_S
    """Longest time for which an amount is held, of a budget without a window."""

    def __post_init__(self) -> None:
        if self.amount < 0 or not self.window_s > 0:
            raise ValueError(f"a budget has an amount of at least 0 and a window above 0, got {self}")

    @property
    def is_bound(self) -> bool:
        return math.isinf(self.window_s)

    @property
    def report_s(self) -> float:
        """Interval of reports."""
        if self.is_bound:
            return 2 * MIN_REPORT_S
        return min(max(self.window_s / REPORTS_PER_WINDOW, MIN_REPORT_S), MAX_REPORT_S)


@dataclass(frozen=True, slots=True)
class Reservation:
    """An admitted amount; to be settled (:meth:`GatewayQuotas.settle`) with the true one."""

    budget: Budget
    window: int
    amount: int


@dataclass(frozen=True, slots=True)
class Refused:
    retry_after_s: float
    """Time until the budget is whole again; infinite if it is more than the budget ever has."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The result is not known here: to be tried again after the next answer."""


@dataclass(frozen=True, slots=True)
class QuotaReport:
    budget: Budget
    window: int
    used: int
    want: int
    """Amount wanted beyond ``used``."""


@dataclass(frozen=True, slots=True)
class QuotaGrant:
    """The pool's reply to a report, in the order of the reports."""

    ceiling: int
    free: int
    """Free amount after this grant."""
    others: int
    """Amount that the other gateways have used."""


@dataclass(frozen=True, slots=True)
class QuotaAnswer:
    grants: tuple[QuotaGrant, ...]
    time_s: float
    """The pool's clock: all gateways cut windows by it."""
    members: int
    """Number of present gateways."""
    is_part: bool = False
    """True if the budgets are only the part of some of the gateways: the others cannot be reached."""
    is_new: bool = False
    """True if the pool did not know this gateway: it is new, or its reports are forgotten."""


@dataclass(frozen=True, slots=True)
class QuotaTotal:
    """What all gateways together have of a budget in a window: their ceilings, of those that are gone their use."""

    key: str
    window_s: float
    window: int
    taken: int


@dataclass(frozen=True, slots=True)
class Reading:
    """The use of a budget as known here, at most one report old."""

    used: int
    amount: int
    resets_in_s: float


_UNREPORTED: Final = (0, 0)


class _Share:
    """One gateway's part of one window."""

    __slots__ = ("answered_at", "ceiling", "free", "others", "pooled", "requested", "used")

    def __init__(self) -> None:
        self.used = 0
        self.ceiling = 0
        self.requested = 0
        """Amount that callers wait for."""
        self.free: int | None = None
        """Free amount by the last answer; None before the first answer."""
        self.others = 0
        self.pooled = _UNREPORTED
        """(used, ceiling) as the pool has them, by its last answer."""
        self.answered_at = -math.inf

    def __repr__(self) -> str:
        return f"<_Share {self.used}/{self.ceiling}, asked {self.requested}, free {self.free}>"


class _Key:
    __slots__ = ("budget", "demand", "due_at", "last", "last_at", "measured_at", "rate", "shares", "want", "window")

    def __init__(self, budget: Budget, window: int, now: float) -> None:
        self.budget = budget
        self.window = window
        self.shares: dict[int, _Share] = {}
        self.due_at = now
        self.rate = 0.0
        """Requested amount per second, smoothed."""
        self.demand = 0
        """Requested amount since ``measured_at``."""
        self.last = 0
        """The largest of the last requests, older ones fading; the youngest came at ``last_at``."""
        self.last_at = now
        self.measured_at = now
        self.want = 0

    def measure(self, now: float) -> None:
        passed = now - self.measured_at
        if passed <= 0:
            return
        self.rate += (self.demand / passed - self.rate) * -math.expm1(-passed / (2 * self.budget.report_s))
        self.demand, self.measured_at = 0, now


class GatewayQuotas:
    """One gateway's side. ``reserve`` and ``settle`` cost no message; ``take`` makes the reports that are due."""

    def __init__(self, *, members: int = 1) -> None:
        """``members``: least number of gateways, whether they have reported to the pool or not."""
        self._keys: dict[tuple[str, float], _Key] = {}
        self._least = self._members = max(1, members)
        self._offset_s = 0.0
        self.is_urgent = False
        """True if a caller waits or a share runs low: call :meth:`take` at once."""
        self._is_lost = False
        self._is_part = False
        self._taken_at = -math.inf
        self._reported: tuple[QuotaReport, ...] = ()

    @property
    def is_lost(self) -> bool:
        """True if each gateway is on its own."""
        return self._is_lost

    @property
    def is_part(self) -> bool:
        """True if the answering pool has only a part of the budgets."""
        return self._is_part

    def reserve(
        self, budget: Budget, amount: int, now: float, *, is_again: bool = False
    ) -> Reservation | Refused | Ask:
        """Reserves ``amount`` of the budget. ``is_again``: the caller has waited and there was an answer."""
        key = self._key(budget, now)
        share = self._share(key, key.window)
        if not is_again:
            key.demand += amount
            key.last, key.last_at = max(amount, key.last * 7 // 8), now
        if share.used + amount <= share.ceiling:
            share.used += amount
            if 2 * (share.ceiling - share.used) < key.want and not self._is_lost:
                key.want = 0  # once until the next report
                self._hurry(key, now)
            return Reservation(budget, key.window, amount)
        if amount > budget.amount:
            return Refused(math.inf)
        is_fresh = share.free is not None and now - share.answered_at <= AHEAD * budget.report_s
        if self._is_lost or (is_fresh and share.used + amount > share.ceiling + (share.free or 0)):
            return Refused(self._resets_in_s(key, now))
        share.requested += amount
        self._hurry(key, now)
        return Ask()

    def settle(self, reservation: Reservation, real: int, now: float) -> None:
        """Settles a reservation with the true amount: less comes back, more is owed. For a window that is over only
        more counts."""
        budget = reservation.budget
        key = self._keys.get((budget.key, budget.window_s))
        if key is None:
            key = self._key(budget, now)
        else:  # with the present amount, which may differ from the one at the reservation
            self._roll(key, now)
        difference = real - reservation.amount
        share = key.shares.get(reservation.window)
        if share is None:
            share, difference = self._share(key, key.window), max(0, difference)
        share.used = max(0, share.used + difference)
        key.due_at = min(key.due_at, now + key.budget.report_s)

    def read(self, budget: Budget, now: float) -> Reading:
        key = self._keys.get((budget.key, budget.window_s))
        if key is None:
            return Reading(0, budget.amount, budget.window_s)
        share = self._share(self._key(budget, now), key.window)
        return Reading(share.others + share.used, budget.amount, self._resets_in_s(key, now))

    def next_wakeup(self) -> float:
        """Returns when :meth:`take` is to be called; sooner if ``is_urgent`` is set."""
        return min(min((key.due_at for key in self._keys.values()), default=math.inf), self._taken_at + BEAT_S)

    def take(self, now: float) -> tuple[QuotaReport, ...]:
        """Returns the reports that are due, for the next exchange; :meth:`answer` or :meth:`failed` follows. Without
        reports the exchange is a beat."""
        reports: list[QuotaReport] = []
        due = [key for key in self._keys.values() if key.due_at <= now]
        due.sort(key=lambda key: key.due_at)  # a full exchange leaves the others to the next one
        for key in due:
            if len(reports) >= BATCH:
                break
            self._roll(key, now)
            key.measure(now)
            if self._is_quiet(key, now):
                if key.shares.get(key.window, _NOTHING).used == 0:
                    del self._keys[key.budget.key, key.budget.window_s]
                    continue
                key.due_at = now + self._resets_in_s(key, now)
            else:
                key.due_at = now + key.budget.report_s
            reports += self._reports_of(key, now)
        self._taken_at = now
        self.is_urgent = False
        self._reported = tuple(reports)
        return self._reported

    def answer(self, answer: QuotaAnswer, now: float) -> None:
        self._is_lost = False
        self._members = max(self._least, answer.members)
        self._set_clock(answer.time_s - now, now)
        if answer.is_new or answer.is_part != self._is_part:
            self._is_part = answer.is_part
            self._report_all(now)
        for report, grant in zip(self._reported, answer.grants, strict=True):
            key = self._keys.get((report.budget.key, report.budget.window_s))
            share = None if key is None else key.shares.get(report.window)
            if share is None:
                continue
            share.ceiling, share.free, share.others = grant.ceiling, grant.free, grant.others
            share.pooled = (report.used, grant.ceiling)
            share.answered_at = now
        self._reported = ()

    def failed(self) -> None:
        """Notes that the pool cannot be reached: each gateway takes its even part of what is free."""
        self._is_lost = True  # reports may be under way; a late answer to them still counts
        for key in self._keys.values():
            for share in key.shares.values():
                self._take_even_part(key, share)

    def leave(self) -> tuple[QuotaReport, ...]:
        """Returns the last reports: the use, with no want; amounts held at the same time are given back."""
        return tuple(
            QuotaReport(key.budget, window, 0 if key.budget.is_bound else share.used, 0)
            for key in self._keys.values()
            for window, share in key.shares.items()
        )

    def _report_all(self, now: float) -> None:
        """Reports every key again, also those without news: another pool answers, or one that has forgotten."""
        for key in self._keys.values():
            key.due_at = min(key.due_at, now)
            for share in key.shares.values():
                share.pooled = _UNREPORTED

    def _set_clock(self, offset_s: float, now: float) -> None:
        is_jump = abs(offset_s - self._offset_s) > JUMP_S
        self._offset_s = offset_s
        for key in self._keys.values() if is_jump else ():
            key.window = self._window(key.budget, now)

    def _hurry(self, key: _Key, now: float) -> None:
        key.due_at = min(key.due_at, now)
        self.is_urgent = True

    def _key(self, budget: Budget, now: float) -> _Key:
        name = (budget.key, budget.window_s)
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = _Key(budget, self._window(budget, now), now)
            return key
        if budget.amount < key.budget.amount:  # grants in advance of a larger amount are void
            for share in key.shares.values():
                share.ceiling = min(share.ceiling, max(share.used, budget.amount))
        key.budget = budget
        self._roll(key, now)
        return key

    def _window(self, budget: Budget, now: float) -> int:
        return 0 if budget.is_bound else math.floor((now + self._offset_s) / budget.window_s)

    def _roll(self, key: _Key, now: float) -> None:
        window = self._window(key.budget, now)
        if window > key.window:
            key.window = window
            key.shares = {number: share for number, share in key.shares.items() if number >= window}
            key.due_at = min(key.due_at, now + key.budget.report_s)

    def _resets_in_s(self, key: _Key, now: float) -> float:
        if key.budget.is_bound:
            return key.budget.report_s
        return max(0.0, (key.window + 1) * key.budget.window_s - now - self._offset_s)

    def _share(self, key: _Key, window: int) -> _Share:
        share = key.shares.get(window)
        if share is None:
            share = key.shares[window] = _Share()
            if self._is_lost:
                self._take_even_part(key, share)
        return share

    def _take_even_part(self, key: _Key, share: _Share) -> None:
        if share.free is None:
            # At least 1, else a budget below the number of gateways would be none.
            share.ceiling = max(share.ceiling, min(key.budget.amount, max(1, key.budget.amount // self._members)))
        else:
            share.ceiling += share.free // self._members
        share.free = 0

    def _is_quiet(self, key: _Key, now: float) -> bool:
        """Returns whether nothing is held, requested or expected."""
        share = key.shares.get(key.window, _NOTHING)
        is_kept = share.ceiling > share.used or share.requested > 0 or (key.budget.is_bound and share.used > 0)
        is_reported = share.pooled == (share.used, share.ceiling)
        return is_reported and not is_kept and self._hold(key, now) == 0 and key.rate * key.budget.report_s < 0.01

    def _hold(self, key: _Key, now: float) -> int:
        """Returns the amount to hold in advance."""
        ahead = int(key.rate * AHEAD * key.budget.report_s)
        floor = min(key.last, key.budget.amount // FLOOR_PARTS) if now - key.last_at <= FLOOR_S else 0
        return min(max(ahead, floor), key.budget.amount // (4 * self._members))

    def _reports_of(self, key: _Key, now: float) -> list[QuotaReport]:
        share = self._share(key, key.window)
        hold = key.want = self._hold(key, now)
        report = QuotaReport(key.budget, key.window, share.used, hold + share.requested)
        share.requested = 0
        if not self._is_lost:  # given back from this moment on, so that nothing is spent twice
            kept = min(share.ceiling, report.used + report.want)
            if share.free is not None:
                share.free += share.ceiling - kept  # free for callers here
            share.ceiling = kept
        reports = [report]
        if hold and self._resets_in_s(key, now) < AHEAD * key.budget.report_s and not key.budget.is_bound:
            following = self._share(key, key.window + 1)
            reports.append(QuotaReport(key.budget, key.window + 1, following.used, hold))
        return reports

    def __repr__(self) -> str:
        return (
            f"<GatewayQuotas {len(self._keys)} keys, {self._members} gateways{', on its own' if self._is_lost else ''}>"
        )


_NOTHING: Final = _Share()


class Pool:
    """Joins the gateways' figures, in the memory of one process; the pool in Redis does the same arithmetic."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._entries: dict[tuple[str, float, int], dict[str, tuple[int, int, float]]] = {}
        """(used, ceiling, time of the report) by gateway. That of a bound is void after ``GONE_S``: what is used is
        reported sooner."""
        self._changed_at: dict[tuple[str, float, int], float] = {}
        self._forgot_at = -math.inf

    def exchange(self, member: str, reports: Sequence[QuotaReport], now: float) -> QuotaAnswer:
        is_new = self._meet(member, now)
        grants = self.grants(member, reports, now)
        for report, grant in zip(reports, grants, strict=True):
            self._enter(member, report, grant, now)
        return QuotaAnswer(grants, now, len(self._seen), is_new=is_new)

    def grants(self, member: str, reports: Sequence[QuotaReport], now: float) -> tuple[QuotaGrant, ...]:
        """Returns what an exchange would grant."""
        return tuple(self._grant(member, report, now) for report in reports)

    def totals(self, since: float) -> tuple[QuotaTotal, ...]:
        """Returns what is taken of each budget and window that was reported since then."""
        return tuple(
            QuotaTotal(*name, self._taken(name)) for name, changed_at in self._changed_at.items() if changed_at >= since
        )

    def note(self, member: str, reports: Sequence[QuotaReport], answer: QuotaAnswer) -> None:
        """Notes the grants of a larger pool: this one may have to continue from there."""
        self._meet(member, answer.time_s)
        for report, grant in zip(reports, answer.grants, strict=True):
            self._enter(member, report, grant, answer.time_s)

    def taken(self, report: QuotaReport) -> int:
        """Returns what is taken of the budget and window of a report."""
        return self._taken(_name(report))

    def _taken(self, name: tuple[str, float, int]) -> int:
        is_bound = math.isinf(name[1])
        return sum(
            ceiling if member in self._seen else 0 if is_bound else used
            for member, (used, ceiling, _) in self._entries.get(name, {}).items()
        )

    def _meet(self, member: str, now: float) -> bool:
        """Notes that the gateway is present; returns whether it was unknown."""
        self._seen = {name: at for name, at in self._seen.items() if now - at <= GONE_S}
        is_new = member not in self._seen
        self._seen[member] = now
        if abs(now - self._forgot_at) >= BEAT_S:  # scans all windows: milliseconds with thousands of tenants
            self._forgot_at = now
            self._forget(now)
        return is_new

    def _enter(self, member: str, report: QuotaReport, grant: QuotaGrant, now: float) -> None:
        name = _name(report)
        self._changed_at[name] = now
        self._entries.setdefault(name, {})[member] = (report.used, grant.ceiling, now)

    def _grant(self, member: str, report: QuotaReport, now: float) -> QuotaGrant:
        budget = report.budget
        entries = self._entries.get(_name(report), {})
        taken = others = 0
        for name, (used, ceiling, at) in list(entries.items()):
            if name == member:
                continue
            if name in self._seen and not (budget.is_bound and now - at > GONE_S):
                taken, others = taken + ceiling, others + used
            elif budget.is_bound:
                del entries[name]
            else:
                taken, others = taken + used, others + used
        room = budget.amount - taken
        ceiling = max(report.used, min(report.used + report.want, room))
        return QuotaGrant(ceiling, max(0, room - ceiling), others)

    def _forget(self, now: float) -> None:
        """Forgets windows that ended more than a window ago, and bounds that no gateway has reported for a while."""
        for name in list(self._entries):
            _, window_s, window = name
            if now - self._changed_at[name] > GONE_S if math.isinf(window_s) else now > (window + 2) * window_s:
                del self._entries[name], self._changed_at[name]

    def __repr__(self) -> str:
        return f"<Pool {len(self._entries)} windows, {len(self._seen)} gateways>"


def _name(report: QuotaReport) -> tuple[str, float, int]:
    return report.budget.key, report.budget.window_s, report.window
