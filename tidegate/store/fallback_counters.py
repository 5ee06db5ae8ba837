"""A pool that continues with its gateways' part while the pool behind it is away.

While the common pool answers, its answers are passed on. When it does not, the gateways that report here share their
part of each budget, by number: three of twelve gateways share a quarter of what was free in the present window, and of
each new one. Of what may be held at the same time they share a quarter of what was free, and a quarter of the whole
once the common pool has given their part away (``GONE_S``). So an absent Redis goes unnoticed among the gateways of one
machine, and entirely where they are all there are. For that the grants of the common pool are noted here. After an
outage, or when it has forgotten a gateway, all reports are sent to it before it grants again.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final

from tidegate.clock import Clock
from tidegate.flow.quota import BATCH, GONE_S, Pool, QuotaAnswer, QuotaReport
from tidegate.store.counters import SharedPool
from tidegate.store.records import StoreError

AGAIN_S: Final = 0.5
"""Time for which the common pool is not called after a failure."""


class FallbackPool:
    """The pool. ``fault``: why the common pool is away; None if it is not."""

    def __init__(self, common: SharedPool, clock: Clock) -> None:
        self._common = common
        self._clock = clock
        self._own = Pool()
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
        if self.fault is None or now >= self._again_at:
            self._again_at = now + AGAIN_S
            try:
                answer = await self._exchange_common(member, reports, is_known=is_known)
            except StoreError as error:
                self.fault = str(error)
            else:
                self.fault = None
                self._members = max(1, answer.members)
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
        answer = await self._common.exchange(member, reports)
        if answer.is_new and is_known:
            await self._replay_reports()
            answer = replace(await self._common.exchange(member, reports), is_new=True)
        return answer

    async def _replay_reports(self) -> None:
        """Sends the last reports of all gateways here."""
        for member, reports in self._own.last_reports().items():
            for start in range(0, len(reports), BATCH):
                await self._common.exchange(member, reports[start : start + BATCH])

    async def close(self) -> None:
        await self._common.close()

    @property
    def _share(self) -> Fraction:
        """Fraction of the gateways that report here."""
        here = len(self._seen)
        return Fraction(here, max(self._members, here))

    def _part(self, report: QuotaReport) -> QuotaReport:
        """Returns the report with this pool's part of the budget: at least 1, else a budget below the number of
        gateways would be none."""
        budget = report.budget
        amount = min(budget.amount, max(1, int(budget.amount * self._share)))
        return replace(report, budget=replace(budget, amount=amount))

    def __repr__(self) -> str:
        return f"<FallbackPool on {self._common!r}, {self.fault or 'well'}>"
