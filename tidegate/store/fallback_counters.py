"""A pool that goes on with its gateways' part while the one behind it is away.

While the common pool answers, its answers are passed on. When it does not, the gateways that report here share their
part of each budget, by number: three of twelve gateways share a quarter. So what a Redis that is gone costs is not felt
by gateways of one machine among themselves, and where they are all there are, not at all. Figures are absolute: the
first report after an outage tells the common pool all again.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tidegate.clock import Clock
from tidegate.flow.quota import GONE_S, Answer, Budget, Pool, Report
from tidegate.store.counters import SharedPool
from tidegate.store.records import StoreError

AGAIN_S: Final = 0.5
"""How long the common pool is let alone after a failure."""


class FallbackPool:
    """``fault`` says why the common pool is away; None: it is not."""

    def __init__(self, common: SharedPool, clock: Clock) -> None:
        self._common = common
        self._clock = clock
        self._own = Pool()
        self._seen: dict[str, float] = {}
        """When each gateway last reported here."""
        self._members = 1
        """Gateways that there are, by the common pool's last answer."""
        self._offset_s = 0.0
        """The common pool's clock less ours."""
        self._again_at = 0.0
        self.fault: str | None = None

    async def exchange(self, member: str, reports: Sequence[Report]) -> Answer:
        """Never raises: what the common pool does not answer is answered from the part."""
        now = self._clock.now()
        self._seen[member] = now
        self._seen = {name: at for name, at in self._seen.items() if now - at <= GONE_S}
        if self.fault is None or now >= self._again_at:
            self._again_at = now + AGAIN_S
            try:
                answer = await self._common.exchange(member, reports)
            except StoreError as error:
                self.fault = str(error)
            else:
                self.fault = None
                self._members = max(1, answer.members)
                self._offset_s = answer.time_s - self._clock.now()
                return answer
        own = [replace(report, budget=self._part(report.budget)) for report in reports]
        answer = self._own.exchange(member, own, self._clock.now() + self._offset_s)
        return replace(answer, is_part=True)

    async def close(self) -> None:
        await self._common.close()

    def _part(self, budget: Budget) -> Budget:
        """At least 1, else a budget below the number of gateways would be none."""
        here, all_ = len(self._seen), max(self._members, len(self._seen))
        return replace(budget, amount=min(budget.amount, max(1, budget.amount * here // all_)))

    def __repr__(self) -> str:
        return f"<FallbackPool on {self._common!r}, {self.fault or 'well'}>"
