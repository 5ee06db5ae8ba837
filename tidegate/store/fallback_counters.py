"""A pool that continues with its gateways' part while the pool behind it is away.

While the common pool answers, its answers are passed on. When it does not, the gateways that report here share their
part of each budget. It was leased in advance, by use (:mod:`tidegate.store.parts`); before the first lease it goes by
number. It is a part of what was free in the present window, and of each new one. Of what may be held at the same time
it is a part of what was free, and after ``GONE_S`` of the whole. So an absent Redis goes unnoticed among the gateways
of one machine, and entirely where they are all there are. For that the grants of the common pool are noted here. After
an outage, or when it has forgotten a gateway, all reports are sent to it before it grants again.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from tidegate.clock import Clock
from tidegate.flow.quota import BATCH, GONE_S, Pool, QuotaAnswer, QuotaReport
from tidegate.store.counters import SharedPool
from tidegate.store.parts import Parts
from tidegate.store.records import StoreError

AGAIN_S: Final = 0.5
"""Time for which the common pool is not called after a failure."""


class FallbackPool:
    """The pool. ``fault``: why the common pool is away; None if it is not."""

    def __init__(self, common: SharedPool, clock: Clock) -> None:
        self._common = common
        self._clock = clock
        self._own = Pool()
        self._parts = Parts()
        self._seen: dict[str, float] = {}
        """When each gateway last reported here."""
        self._members = 1
        """Number of gateways, by the common pool's last answer."""
        self._offset_s = 0.0
        """The common pool's clock less ours."""
        self._answered_at = 0.0
        self._again_at = 0.0
        self.fault: str | None = None

    async def exchange(self, member: str, reports: Sequence[QuotaReport]) -> QuotaAnswer:
        """Never raises: if the common pool does not answer, the answer comes from the part."""
        now = self._clock.now()
        is_known = member in self._seen and now - self._seen[member] <= GONE_S
        self._seen[member] = now
        self._seen = {name: at for name, at in self._seen.items() if now - at <= GONE_S}
        self._parts.note(member, reports, now + self._offset_s)
        if self.fault is None:
            self._parts.drop_ended(now + self._offset_s)
        if self.fault is None or now >= self._again_at:
            self._again_at = now + AGAIN_S
            try:
                answer = await self._exchange_common(member, reports, is_known=is_known)
            except StoreError as error:
                self.fault = str(error)
            else:
                self.fault = None
                self._answered_at = self._clock.now()
                self._offset_s = answer.time_s - self._answered_at
                self._own.note(member, reports, answer, self._share)
                return answer
        if now - self._answered_at > GONE_S:
            self._own.forget_far()
        own = [report if self._own.knows(report) else self._part(report) for report in reports]
        answer = self._own.exchange(member, own, self._clock.now() + self._offset_s)
        return replace(answer, is_part=True)

    async def _exchange_common(self, member: str, reports: Sequence[QuotaReport], *, is_known: bool) -> QuotaAnswer:
        """Returns the common pool's answer. A pool that was away, or has forgotten a gateway, gets the last reports of
        all of them before: otherwise it would grant what the others have spent."""
        if self.fault is not None:
            await self._replay_reports()
        answer = await self._exchange_with_part(member, reports)
        if answer.is_new and is_known:
            await self._replay_reports()
            answer = replace(await self._exchange_with_part(member, reports), is_new=True)
        return answer

    async def _exchange_with_part(self, member: str, reports: Sequence[QuotaReport]) -> QuotaAnswer:
        """Exchanges the reports, and leases the member's part with them."""
        more = self._parts.reports(member, self._members, self._clock.now() + self._offset_s)
        answer = await self._common.exchange(member, (*reports, *more))
        self._members = max(1, answer.members)
        if more:
            self._parts.answer(member, answer.grants[len(reports) :], answer.time_s)
        return replace(answer, grants=answer.grants[: len(reports)])

    async def _replay_reports(self) -> None:
        """Sends the last reports of all gateways here."""
        for member, reports in self._own.last_reports().items():
            for start in range(0, len(reports), BATCH):
                await self._common.exchange(member, reports[start : start + BATCH])

    async def close(self) -> None:
        await self._common.close()

    @property
    def _share(self) -> Fraction:
        """Part of the gateways that report here."""
        here, leased = len(self._seen), self._parts.share
        return Fraction(here, max(self._members, here)) if leased is None else leased

    def _part(self, report: QuotaReport) -> QuotaReport:
        """Returns the report with this pool's part of the budget: at least 1, else a budget below the number of
        gateways would be none."""
        budget = report.budget
        amount = min(budget.amount, max(1, int(budget.amount * self._share)))
        return replace(report, budget=replace(budget, amount=amount))

    def __repr__(self) -> str:
        return f"<FallbackPool on {self._common!r}, {self.fault or 'well'}>"
