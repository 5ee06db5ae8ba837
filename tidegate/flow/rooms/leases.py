"""Leases of the bounds of waiting rooms: one bound holds over gateways on several machines.

A gateway worker leases a part of each function's bound from the pool that quotas have too, by the same messages
(:mod:`tidegate.flow.quota`): it reports what waits and what more it wants, and receives a ceiling. The ceilings add up
to the bound at most. Unlike a quota, nothing is reserved before a request waits. A request beyond the ceiling waits
*on approval*: it may get a slot, and it leaves with a refusal if the pool's next answer shows that the bound is spent.
While it is known to be spent, further requests are refused at once.

So a burst at one gateway gets the whole bound, and the room holds no more than the bound beside what is on approval:
the requests of one exchange, some milliseconds old.

Without the pool a worker goes on with its last ceiling and an even part of what was free. After ``GONE_S``, when the
pool has given its part away, it goes on with an even part of the bound.
"""

import math
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from tidegate.flow.quota import BEAT_S, FLOOR_PARTS, GONE_S, LEAVE_S, Budget, QuotaAnswer, QuotaReport
from tidegate.flow.rooms.figures import Others

URGENT_S: Final = 0.01
"""Least time between two exchanges."""
CHANGED_S: Final = 0.05
"""Longest time until the pool knows that fewer requests wait here."""
BUSY_S: Final = 0.5
"""Longest time between two exchanges while something waits or is leased; else ``BEAT_S``: the pool counts gateways."""
_NONE: Final = Others()


class _Lease:
    """One bound of a function, in requests or bytes, and this worker's part of it."""

    __slots__ = ("bound", "free", "granted", "is_spent", "leave_s", "level", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.bound = 0
        self.leave_s = LEAVE_S
        self.level = 0
        """What waits here now."""
        self.granted = 0
        self.free: int | None = None
        """What was left by the last answer; None before the first one."""
        self.is_spent = False
        """By the last answer there was less than this worker wanted: it keeps to ``granted``."""

    @property
    def is_used(self) -> bool:
        return self.level > 0 or self.granted > 0 or self.is_spent

    def elsewhere(self) -> int:
        """Returns the part of the bound that this worker may not use."""
        return max(0, self.bound - self.granted) if self.is_spent else 0

    def is_over(self) -> bool:
        """Returns whether more waits here than the pool allows."""
        return self.is_spent and self.level > self.granted

    def is_undecided(self) -> bool:
        """Returns whether requests are on approval."""
        return not self.is_spent and self.level > self.granted

    def report(self) -> QuotaReport:
        used = min(self.level, self.granted)
        spare = max(1, self.bound // FLOOR_PARTS) if self.is_spent else 0  # shows when there is more again
        self.granted = min(self.granted, self.level + spare)  # given back from now on: the pool may grant it to others
        return QuotaReport(Budget(self.name, self.bound, leave_s=self.leave_s), 0, used, self.level - used + spare)

    def decide(self, report: QuotaReport, ceiling: int, free: int) -> None:
        self.granted, self.free = ceiling, free
        self.is_spent = ceiling < report.used + report.want

    def go_on_alone(self, members: int, *, is_even: bool) -> None:
        if is_even or self.free is None:
            # At least 1, else a bound below the number of gateways would be none.
            self.granted = min(self.bound, max(1, self.bound // members))
        else:
            self.granted += self.free // members
        self.free, self.is_spent = 0, True

    def __repr__(self) -> str:
        return f"<_Lease {self.name}: {self.level} of {self.granted}{', spent' if self.is_spent else ''}>"


class LeasedFigures:
    """One function's bounds, as its waiting room reads them (a ``FunctionBoard``)."""

    __slots__ = ("__weakref__", "_changed", "requests", "size")

    def __init__(self, function: str, changed: Callable[["LeasedFigures"], None]) -> None:
        """``changed`` is called when the pool has to hear of it."""
        self._changed = changed
        self.requests = _Lease(function)
        self.size = _Lease(f"{function}/bytes")

    @property
    def is_used(self) -> bool:
        """True while the pool has to hear of it."""
        return self.requests.is_used or self.size.is_used

    def resize(self, requests: int, size: int, longest_s: float) -> None:
        """Takes the bounds of the route table."""
        self.requests.bound, self.size.bound = requests, size
        self.requests.leave_s = self.size.leave_s = longest_s

    def publish(self, requests: int, size: int, load: float) -> None:
        """Takes this worker's figures. Loads of tenants are not compared over machines."""
        self.requests.level, self.size.level = requests, size
        self._changed(self)

    def others(self) -> Others:
        """Returns what this worker may not use of the bounds, once one of them is spent."""
        if self.requests.is_spent or self.size.is_spent:
            return Others(self.requests.elsewhere(), self.size.elsewhere())
        return _NONE

    def is_undecided(self) -> bool:
        """Returns whether requests wait on approval."""
        return self.requests.is_undecided() or self.size.is_undecided()

    def drop_ended(self) -> bool:
        """Returns False: the pool leaves out workers that have ended."""
        return False

    def __repr__(self) -> str:
        return f"<LeasedFigures {self.requests!r} {self.size!r}>"


class RoomLeases:
    """The leases of one gateway worker (a ``Board``). ``take`` and then ``answer`` or ``failed``, at ``next_at``."""

    def __init__(self, *, members: int, wake: Callable[[], None]) -> None:
        """``members``: least number of gateway workers; ``wake``: called when ``next_at`` has come nearer."""
        self._least = self._members = max(1, members)
        self._wake = wake
        self._functions: WeakValueDictionary[str, LeasedFigures] = WeakValueDictionary()
        """Those that a room holds, or that are in use."""
        self._used: dict[str, LeasedFigures] = {}
        self._changed: dict[str, LeasedFigures] = {}
        self._reported: list[tuple[_Lease, QuotaReport]] = []
        self._taken_at = -math.inf
        self._alone_since: float | None = None
        self._is_part = False

    def of(self, function: str) -> LeasedFigures:
        """Returns the bounds of a function."""
        found = self._functions.get(function)
        if found is None:
            found = LeasedFigures(function, self._note)
            self._functions[function] = found
        return found

    @property
    def is_lost(self) -> bool:
        """True if this worker goes by a part of the bounds, because not all gateways can be reached."""
        return self._alone_since is not None or self._is_part

    def next_at(self) -> float:
        """Returns when :meth:`take` is to be called."""
        if any(each.is_undecided() for each in self._changed.values()):
            return self._taken_at + URGENT_S
        if self._changed:
            return self._taken_at + CHANGED_S
        return self._taken_at + (BUSY_S if self._used else BEAT_S)

    def take(self, now: float) -> tuple[QuotaReport, ...]:
        """Returns a report for each bound in use."""
        self._taken_at = now
        self._changed.clear()
        self._used = {name: each for name, each in self._used.items() if each.is_used}
        self._reported = [
            (lease, lease.report())
            for figures in self._used.values()
            for lease in (figures.requests, figures.size)
            if lease.is_used
        ]
        return tuple(report for _, report in self._reported)

    def answer(self, answer: QuotaAnswer) -> tuple[str, ...]:
        """Takes the pool's answer. Returns the functions of which more waits here than it allows."""
        self._members = max(self._least, answer.members)
        self._alone_since, self._is_part = None, answer.is_part
        for (lease, report), grant in zip(self._reported, answer.grants, strict=True):
            lease.decide(report, grant.ceiling, grant.free)
        self._reported = []
        return self._over()

    def failed(self, now: float) -> tuple[str, ...]:
        """Goes on without the pool. Returns the functions of which more waits here than this worker's part."""
        if self._alone_since is None:
            self._alone_since = now
        is_even = now - self._alone_since > GONE_S
        for lease, _ in self._reported:
            lease.go_on_alone(self._members, is_even=is_even)
        self._reported = []
        return self._over()

    def leave(self) -> tuple[QuotaReport, ...]:
        """Returns the last reports: everything is given back."""
        found = (lease for each in self._used.values() for lease in (each.requests, each.size))
        return tuple(QuotaReport(Budget(lease.name, lease.bound), 0, 0, 0) for lease in found if lease.is_used)

    def _note(self, figures: LeasedFigures) -> None:
        function = figures.requests.name
        if function not in self._changed:
            self._changed[function] = self._used[function] = figures
            self._wake()
        elif figures.is_undecided():
            self._wake()

    def _over(self) -> tuple[str, ...]:
        return tuple(name for name, each in self._used.items() if each.requests.is_over() or each.size.is_over())

    def __repr__(self) -> str:
        return f"<RoomLeases {len(self._used)} functions in use{', on its own' if self.is_lost else ''}>"
