"""Counters that gateways share: a gateway calls :class:`SharedCounters`; they meet in a :class:`SharedPool`.

The arithmetic is in :mod:`tidegate.flow.quota`; here are the loop and the waiting. ``try_all`` decides at once from the
gateway's share. Only if that share and the known figures do not suffice is there a wait: for one answer of the pool, at
most ``ASK_S``. If the pool fails or is slow every gateway continues with its even part.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from tidegate.clock import Clock
from tidegate.flow.quota import (
    BATCH,
    Ask,
    Budget,
    GatewayQuotas,
    Pool,
    QuotaAnswer,
    QuotaReport,
    QuotaTotal,
    Reading,
    Refused,
    Reservation,
)
from tidegate.store.records import StoreError

ASK_S: Final = 0.5


Wanted = Sequence[tuple[Budget, int]]
"""Amounts of several budgets, to be reserved together or not at all."""


@dataclass(frozen=True, slots=True)
class ShortBudget:
    """Nothing was reserved: the budget at this place of the wanted ones does not suffice."""

    at: int
    retry_after_s: float
    """As in :class:`Refused`."""


@dataclass(frozen=True, slots=True)
class Asking:
    """The budget after those that are ``held`` needs an answer of the pool: :meth:`SharedCounters.go_on`."""

    held: tuple[Reservation, ...]


class SharedPool(Protocol):
    async def exchange(self, member: str, reports: Sequence[QuotaReport]) -> QuotaAnswer:
        """Takes the figures of the gateway ``member`` and grants. Raises StoreError."""
        ...

    async def close(self) -> None: ...


class EmbeddedPool:
    """A pool in the memory of one process. It forgets at its end; the next reports restore it."""

    fault: str | None = None
    unlisted: str | None = None
    """None, because it is never away."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pool = Pool()

    async def exchange(self, member: str, reports: Sequence[QuotaReport]) -> QuotaAnswer:
        return self._pool.exchange(member, reports, self._clock.now())

    async def totals(self, since: float) -> tuple[Sequence[QuotaTotal], None]:
        return self._pool.totals(since), None

    async def close(self) -> None:
        pass


class SharedCounters:
    """One gateway's counters. Its owner keeps :meth:`run` running, and calls :meth:`close` after that has ended."""

    def __init__(self, pool: SharedPool, clock: Clock, *, member: str, members: int = 1) -> None:
        """``member``: a name that no other gateway process has or had; ``members``: least number of gateways."""
        self._pool = pool
        self._clock = clock
        self._member = member
        self._quotas = GatewayQuotas(members=members)
        self._wake = asyncio.Event()
        self._answered = asyncio.Event()

    @property
    def is_lost(self) -> bool:
        """True if budgets are a part that this gateway has, alone or with some of the others."""
        return self._quotas.is_lost or self._quotas.is_part

    async def run(self) -> None:
        """Exchanges figures with the pool until it is cancelled."""
        while True:
            await self._sleep()
            await self._exchange()

    def try_all(self, wanted: Wanted) -> tuple[Reservation, ...] | ShortBudget | Asking:
        """Reserves all that is wanted, if this gateway's share suffices."""
        held: list[Reservation] = []
        quotas, now = self._quotas, self._clock.now()
        found: ShortBudget | Asking | None = None
        for budget, amount in wanted:
            verdict = quotas.reserve(budget, amount, now)
            if type(verdict) is Reservation:
                held.append(verdict)
                continue
            if type(verdict) is Refused:
                found = ShortBudget(len(held), verdict.retry_after_s)
                self._give_back(held)
            else:
                found = Asking(tuple(held))
            break
        if quotas.is_urgent:
            self._wake.set()
        return tuple(held) if found is None else found

    async def go_on(self, wanted: Wanted, asking: Asking) -> tuple[Reservation, ...] | ShortBudget:
        """Continues after ``try_all``: waits for the pool and returns the result. If cancelled, nothing is reserved."""
        held = list(asking.held)
        try:
            while len(held) < len(wanted):
                budget, amount = wanted[len(held)]
                is_first = len(held) == len(asking.held)
                verdict = await (self._after_answer(budget, amount) if is_first else self.reserve(budget, amount))
                if isinstance(verdict, Refused):
                    self._give_back(held)
                    return ShortBudget(len(held), verdict.retry_after_s)
                held.append(verdict)
        except asyncio.CancelledError:
            self._give_back(held)
            raise
        return tuple(held)

    async def reserve(self, budget: Budget, amount: int = 1) -> Reservation | Refused:
        verdict = self._reserve(budget, amount, is_again=False)
        return await self._after_answer(budget, amount) if isinstance(verdict, Ask) else verdict

    async def _after_answer(self, budget: Budget, amount: int) -> Reservation | Refused:
        """The verdict after the next answers of the pool."""
        verdict: Reservation | Refused | Ask = Ask()
        try:
            async with asyncio.timeout(ASK_S):
                while isinstance(verdict, Ask):
                    await self._answered.wait()
                    verdict = self._reserve(budget, amount, is_again=True)
        except TimeoutError:
            self._quotas.failed()
            verdict = self._reserve(budget, amount, is_again=True)
        assert not isinstance(verdict, Ask), "a gateway on its own never asks"
        return verdict

    def settle(self, reservation: Reservation, real: int) -> None:
        """Settles a reservation with the true amount; 0 gives all back."""
        self._quotas.settle(reservation, real, self._clock.now())

    def read(self, budget: Budget) -> Reading:
        return self._quotas.read(budget, self._clock.now())

    async def close(self) -> None:
        """Gives back the amounts that this gateway holds; closes the pool."""
        reports = self._quotas.leave()
        with suppress(StoreError):
            for start in range(0, len(reports), BATCH):
                await self._pool.exchange(self._member, reports[start : start + BATCH])
        await self._pool.close()

    def _give_back(self, held: Sequence[Reservation]) -> None:
        for reservation in held:
            self.settle(reservation, 0)

    def _reserve(self, budget: Budget, amount: int, *, is_again: bool) -> Reservation | Refused | Ask:
        verdict = self._quotas.reserve(budget, amount, self._clock.now(), is_again=is_again)
        if self._quotas.is_urgent:
            self._wake.set()
        return verdict

    async def _sleep(self) -> None:
        self._wake.clear()
        delay = self._quotas.next_wakeup() - self._clock.now()
        if delay > 0 and not self._quotas.is_urgent:
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wake.wait()

    async def _exchange(self) -> None:
        reports = self._quotas.take(self._clock.now())
        try:
            answer = await self._pool.exchange(self._member, reports)
        except StoreError:
            self._quotas.failed()
        else:
            self._quotas.answer(answer, self._clock.now())
        answered, self._answered = self._answered, asyncio.Event()
        answered.set()
        await asyncio.sleep(0)  # waiting callers take the grant before the next report gives it back

    def __repr__(self) -> str:
        return f"<SharedCounters of {self._member}: {self._quotas!r}>"
