"""A pool that continues with its gateways' part while the pool behind it is away.

While the common pool answers, its answers are passed on, and its grants noted. When it does not, the gateways that
report here go on with what they hold by its grants and their part of what was free (:mod:`tidegate.store.ceilings`).
The part was leased in advance, by use (:mod:`tidegate.store.parts`); before the first lease it is nothing. So an absent
Redis goes unnoticed among the gateways of one machine, and entirely where they are all there are.

A list of what all gateways have taken that fails is no outage: the grants beside it count. It is asked for again after
``AGAIN_S``, so that few exchanges wait for one that is late; until then an outage would begin with an older list.

A common pool that is back gets all reports again. For ``SETTLE_S`` its grants count up to the ceilings of the outage:
others still take what their parts allow, and it does not know of it. Then all gateways have reported, and none goes by
its part alone. One that starts and has no part yet goes by its grants at once, as if it had started a moment later.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final, Protocol

from tidegate.clock import Clock
from tidegate.flow.quota import BEAT_S, GONE_S, Pool, QuotaAnswer, QuotaGrant, QuotaReport, QuotaTotal
from tidegate.store.ceilings import OutageCeilings
from tidegate.store.counters import SharedPool
from tidegate.store.parts import WHOLE, Parts
from tidegate.store.records import StoreError, StoreFaultError

AGAIN_S: Final = 0.5
"""Time for which the common pool is not called after a failure, nor for a list after one that has failed."""
REST_S: Final = 1.0
"""Time for which the link to the common pool rests at most."""
LIST_S: Final = BEAT_S / 2
"""Least time between two lists: one at each exchange of a gateway without news."""
CALLS_S: Final = 1.0
"""Time of the calls by which a worker reports all that it has: up to 4 of 0.25 s."""
SETTLE_S: Final = REST_S + AGAIN_S + 2 * BEAT_S + CALLS_S
"""Time in which all gateway workers report to a pool that is back: each machine finds it with the next exchange of one
worker, and the others follow with theirs."""


BACK: Final = "it answers again, and its grants count alone once all gateways have reported"
"""The fault after an outage."""


class CommonPool(SharedPool, Protocol):
    """A pool of several machines."""

    async def totals(self, since: float) -> tuple[Sequence[QuotaTotal], float | None]:
        """Returns what is taken of budgets that were reported since this time of its clock, and the time from which the
        next call continues; None if these are all. Raises StoreError."""
        ...


class FallbackPool:
    """The pool. ``fault``: why the gateways here have only a part; None if the common pool's grants count alone."""

    def __init__(
        self, common: CommonPool, clock: Clock, *, part: int = 0, keep: Callable[[int], bool] | None = None
    ) -> None:
        """``part``: of ``WHOLE``, that of the process before, used until the common pool has answered. ``keep``: called
        with each new part; returns whether it is kept, and is called again at the next lease if it is not."""
        self._common = common
        self._clock = clock
        self._own = Pool()
        self._parts = Parts(part)
        self._kept: int | None = part
        """The part that is kept; None if that has failed."""
        self._keep = keep
        self._ceilings = OutageCeilings()
        self._seen: dict[str, float] = {}
        """When each gateway last reported here."""
        self._members = 1
        """Number of gateways, by the common pool's last answer."""
        self._offset_s = 0.0
        """The common pool's clock less ours."""
        self._listed_at = 0.0
        """Time of the common pool's clock up to which totals are listed."""
        self._again_at = self._list_again_at = self._away_since = 0.0
        self._failures = 0
        self._back_at: float | None = None
        """When the common pool answered again; long ago for a gateway that starts, if it was away for a moment."""
        self._met: set[str] = set()
        """Gateways here that it has answered since."""
        self.fault: str | None = None
        self.unlisted: str | None = None
        """Why the last list failed; None if it did not."""

    async def exchange(self, member: str, reports: Sequence[QuotaReport]) -> QuotaAnswer:
        """Never raises: if the common pool does not answer, the answer comes from the part."""
        now = self._clock.now()
        is_known = member in self._seen and now - self._seen[member] <= GONE_S
        self._seen[member] = now
        self._seen = {name: at for name, at in self._seen.items() if now - at <= GONE_S}
        self._parts.note(member, reports, now + self._offset_s)
        answer = None
        if self.fault is None:
            answer = await self._ask(member, reports, is_known=is_known)
        elif self._back_at is not None or now >= self._again_at:
            self._again_at = now + AGAIN_S  # the others do not wait for a call that may fail
            answer = await self._ask_within(member, reports, is_known=is_known)
        return answer or replace(self._own.exchange(member, *self._within(reports)), is_part=True)

    async def _ask_within(self, member: str, reports: Sequence[QuotaReport], *, is_known: bool) -> QuotaAnswer | None:
        """Returns the common pool's answer within the ceilings of the outage: no more is wanted, and no more granted
        if others here were faster."""
        is_first = member not in self._met
        wanted = _wanting(reports, self._own.grants(member, *self._within(reports)))
        answer = await self._ask(member, wanted, is_known=is_known and not is_first)
        if answer is None or self.fault is None:
            return answer
        self._met.add(member)
        if self._back_at is None:
            now = self._clock.now()
            is_new = self._parts.is_starting and not self._parts.part
            self._back_at = -math.inf if is_new and now - self._away_since <= REST_S + AGAIN_S else now
            self.fault = BACK
        own = self._own.exchange(member, *self._within(_wanting(reports, answer.grants)))
        grants = (
            QuotaGrant(each.ceiling, min(grant.free, each.free), grant.others)
            for grant, each in zip(answer.grants, own.grants, strict=True)
        )
        return replace(answer, grants=tuple(grants), is_part=True, is_new=answer.is_new or is_first)

    async def _ask(self, member: str, reports: Sequence[QuotaReport], *, is_known: bool) -> QuotaAnswer | None:
        """Returns the common pool's answer; None if it is away, or if its grants would not be sound: it has forgotten
        the gateway that ``is_known``, or another gateway's call has failed meanwhile."""
        failures, more = self._failures, self._part_reports(member)
        try:
            answer = await self._common.exchange(member, (*reports, *more))
            if answer.is_new and is_known:
                raise StoreFaultError("the pool has forgotten its gateways")
        except StoreError as error:
            self._fail(str(error))
            return None
        await self._list(answer.time_s)
        if self._failures != failures:
            return None
        self._members = max(1, answer.members)
        self._offset_s = answer.time_s - self._clock.now()
        if more:
            self._parts.answer(member, answer.grants[len(reports) :], answer.time_s)
            self._keep_part()
        answer = replace(answer, grants=answer.grants[: len(reports)])
        if self.fault is None:
            self._own.note(member, reports, answer)
        self._ceilings.note(reports, answer)
        return answer

    def _part_reports(self, member: str) -> tuple[QuotaReport, ...]:
        """Returns the reports about a gateway's part. In an outage the part stays as it is."""
        if self.fault is not None:
            return self._parts.held(member)
        now = self._clock.now() + self._offset_s
        self._parts.drop_ended(now, self._seen)
        return self._parts.reports(member, self._members, now)

    async def _list(self, now: float) -> None:
        """Lists what all gateways have taken, twice a second; a long list at several exchanges. Ends an outage with a
        list of what all have reported since the pool is back."""
        is_settled = self._back_at is not None and self._clock.now() - self._back_at >= SETTLE_S
        if self._clock.now() < self._list_again_at or (abs(now - self._listed_at) < LIST_S and not is_settled):
            return
        failures = self._failures
        try:
            totals, more = await self._common.totals(self._listed_at)
        except StoreError as error:
            self.unlisted = str(error)
            self._list_again_at = self._clock.now() + AGAIN_S
            return
        self.unlisted = None
        if self._failures != failures:
            return
        self._listed_at = now if more is None else more
        self._ceilings.list(totals, now)
        if more is None and is_settled:
            self.fault = self._back_at = None
            self._ceilings.end()

    def _fail(self, fault: str) -> None:
        now = self._clock.now()
        if self.fault is None or self._back_at is not None:
            self._ceilings.begin(Fraction(self._parts.part, WHOLE), self._own.taken, now - self._away_since)
            self._away_since = now
        self.fault, self.unlisted = fault, None
        self._failures += 1
        self._back_at = None
        self._met.clear()
        self._again_at = now + AGAIN_S

    async def close(self) -> None:
        await self._common.close()

    def _keep_part(self) -> None:
        part = self._parts.part
        if self._keep is not None and self._kept != part:
            self._kept = part if self._keep(part) else None

    def _within(self, reports: Sequence[QuotaReport]) -> tuple[list[QuotaReport], float]:
        """Returns the reports with the ceilings of the gateways here as the amounts of their budgets, and the time."""
        now = self._clock.now()
        found = []
        for report in reports:
            amount = self._ceilings.of(report, self._own.taken(report), now - self._away_since)
            found.append(replace(report, budget=replace(report.budget, amount=amount)))
        return found, now + self._offset_s

    def __repr__(self) -> str:
        return f"<FallbackPool on {self._common!r}, {self.fault or 'well'}>"


def _wanting(reports: Sequence[QuotaReport], grants: Sequence[QuotaGrant]) -> list[QuotaReport]:
    """Returns reports that want no more than these grants."""
    return [replace(report, want=grant.ceiling - report.used) for report, grant in zip(reports, grants, strict=True)]
