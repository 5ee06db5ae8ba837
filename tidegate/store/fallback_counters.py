"""A pool that continues with its gateways' part while the pool behind it is away.

While the common pool answers, its answers are passed on, and its grants noted. When it does not, the gateways that
report here go on with what they hold by its grants and their part of what was free (:mod:`tidegate.store.ceilings`).
The part was leased in advance, by use (:mod:`tidegate.store.parts`); before the first lease it is nothing. So an absent
Redis goes unnoticed among the gateways of one machine, and entirely where they are all there are.

A common pool that is back gets the reports of all gateways here before it grants again. Its grants count after
``SETTLE_S``: by then the gateways elsewhere have reported too, which have taken of what was free by their parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final, Protocol

from tidegate.clock import Clock
from tidegate.flow.quota import BATCH, BEAT_S, GONE_S, Pool, QuotaAnswer, QuotaReport, QuotaTotal
from tidegate.store.ceilings import OutageCeilings
from tidegate.store.counters import SharedPool
from tidegate.store.parts import WHOLE, Parts
from tidegate.store.records import StoreError

AGAIN_S: Final = 0.5
"""Time for which the common pool is not called after a failure."""
REST_S: Final = 1.0
"""Time for which the link to the common pool rests at most."""
SETTLE_S: Final = REST_S + AGAIN_S + BEAT_S
"""Time in which every gateway reports to a pool that is back: each calls at its exchanges, at least once a beat."""


class CommonPool(SharedPool, Protocol):
    """A pool of several machines."""

    async def totals(self, since: float) -> tuple[Sequence[QuotaTotal], float | None]:
        """Returns what is taken of budgets that were reported since this time of its clock, and the time from which the
        next call continues; None if these are all. Raises StoreError."""
        ...


class FallbackPool:
    """The pool. ``fault``: why the common pool is away; None if it is not."""

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
        self._again_at = self._away_since = 0.0
        self._untold: dict[str, None] = {}
        """Gateways here whose reports the common pool does not have again."""
        self._back_at: float | None = None
        """When the common pool answered again, or was found to have forgotten gateways."""
        self.fault: str | None = None

    async def exchange(self, member: str, reports: Sequence[QuotaReport]) -> QuotaAnswer:
        """Never raises: if the common pool does not answer, the answer comes from the part."""
        now = self._clock.now()
        is_known = member in self._seen and now - self._seen[member] <= GONE_S
        self._seen[member] = now
        self._seen = {name: at for name, at in self._seen.items() if now - at <= GONE_S}
        self._parts.note(member, reports, now + self._offset_s)
        if self.fault is not None and now >= self._again_at:
            await self._try_again()
        if self.fault is None:
            answer = await self._exchange_common(member, reports, is_known=is_known)
            if answer is not None:
                return answer
        own = [self._part(report) for report in reports]
        answer = self._own.exchange(member, own, self._clock.now() + self._offset_s)
        return replace(answer, is_part=True)

    async def _exchange_common(
        self, member: str, reports: Sequence[QuotaReport], *, is_known: bool
    ) -> QuotaAnswer | None:
        """Returns the common pool's answer; None if it is away, or if its grants would not be sound: it has forgotten
        gateways, or another gateway's call has failed meanwhile."""
        now = self._clock.now() + self._offset_s
        self._parts.drop_ended(now, self._seen)
        more = self._parts.reports(member, self._members, now)
        try:
            answer = await self._common.exchange(member, (*reports, *more))
            await self._list(answer.time_s)
        except StoreError as error:
            self._fail(str(error))
            return None
        if self.fault is not None:
            return None
        if answer.is_new and is_known:
            self._fail("the pool has forgotten its gateways")
            return None
        self._members = max(1, answer.members)
        self._offset_s = answer.time_s - self._clock.now()
        if more:
            self._parts.answer(member, answer.grants[len(reports) :], answer.time_s)
            self._keep_part()
        answer = replace(answer, grants=answer.grants[: len(reports)])
        self._own.note(member, reports, answer)
        self._ceilings.note(reports, answer)
        return answer

    async def _list(self, now: float) -> None:
        """Lists what all gateways have taken, once a second; a long list at several exchanges."""
        if abs(now - self._listed_at) >= BEAT_S:
            totals, more = await self._common.totals(self._listed_at)
            if self.fault is None:
                self._listed_at = now if more is None else more
                self._ceilings.list(totals, now)
                if more is None:
                    self._ceilings.end()

    def _fail(self, fault: str) -> None:
        if self.fault is None:
            self._away_since = self._clock.now()
        self.fault = fault
        self._back_at = None
        self._untold = {}
        self._again_at = self._clock.now() + AGAIN_S

    async def _try_again(self) -> None:
        """Sends the last reports of all gateways here. Ends the outage when they have been sent for ``SETTLE_S``.

        A caller may give up before all are sent: the next one continues with the others."""
        now = self._clock.now()
        self._again_at = now + AGAIN_S
        self._untold = self._untold or dict.fromkeys(self._seen)
        used = self._own.last_reports()
        try:
            for member in tuple(self._untold):
                await self._tell(member, used.get(member, []))
                self._untold.pop(member, None)
        except StoreError as error:
            self._fail(str(error))
            return
        if self._back_at is not None and now - self._back_at >= SETTLE_S:
            self.fault = self._back_at = None

    async def _tell(self, member: str, reports: Sequence[QuotaReport]) -> None:
        """Sends the last reports of a gateway."""
        parts = self._parts.held(member)
        answer = await self._common.exchange(member, parts)
        if answer.is_new or self._back_at is None:
            self._back_at = self._clock.now()
        if parts:
            self._parts.answer(member, answer.grants, answer.time_s)
        for start in range(0, len(reports), BATCH):
            await self._common.exchange(member, reports[start : start + BATCH])

    async def close(self) -> None:
        await self._common.close()

    def _keep_part(self) -> None:
        part = self._parts.part
        if self._keep is not None and self._kept != part:
            self._kept = part if self._keep(part) else None

    def _part(self, report: QuotaReport) -> QuotaReport:
        """Returns the report with the ceiling of the gateways here as the amount of its budget."""
        part, away_s = Fraction(self._parts.part, WHOLE), self._clock.now() - self._away_since
        amount = self._ceilings.of(report, self._own.taken(report), part, away_s)
        return replace(report, budget=replace(report.budget, amount=amount))

    def __repr__(self) -> str:
        return f"<FallbackPool on {self._common!r}, {self.fault or 'well'}>"
