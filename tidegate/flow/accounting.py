"""The accounts of a slot ledger, and the steps that its decisions are made of.

Outstanding credits, the channels' wants, the waiting head with the best key. The decisions are made by
:class:`tidegate.flow.slots.SlotLedger`, which is built on this.
"""

import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from math import inf
from typing import Final

from tidegate.flow.credits import BUSY, GONE, IDLE, Admit, Channel, Command, Credit, Place, Send, Visit
from tidegate.flow.messages import Grant, ProxyMessage, Recall, Void
from tidegate.flow.wants import DEFAULT_PRIORITY, Want
from tidegate.records.replica_state import ConcurrencyUnit

SILENCE_S: Final = 0.1
"""A recall without an answer, or a grant without a request while others wait, voids after this time."""
LOST_S: Final = 1.0
"""An idle credit of a worker with a want, unused for this long though no other worker waits, must be lost. Our
choice."""
CREDITS_PER_LINE: Final = 1000
"""Keeps a message far below ``messages.LINE_LIMIT``."""


class SlotAccounting:
    """Credits, wants and virtual time of one replica.

    A base class of :class:`~tidegate.flow.slots.SlotLedger` and not a member of it: as a member every request pays for
    one more attribute on each access. Measured in turns on one core: a request on a kept credit 0.67 -> 0.72 us (+7 %),
    one without a credit 0.25 -> 0.28 us (+11 %); 3 % was the limit.
    """

    def __init__(self, *, incarnation: str, limit: int, unit: ConcurrencyUnit) -> None:
        self.incarnation = incarnation
        """Names this process; credits are numbered within it."""
        self.limit = limit
        """Slots; 0: no limit."""
        self.unit = unit
        self.out: list[Command] = []
        """Commands to carry out; the shell takes the list and leaves an empty one."""
        self._fifo: deque[Visit] = deque()
        self._fifo_spent = 0
        """Account of the FIFO: together its requests count as one worker with requests like the last that was
        charged."""
        self._virtual_time = 0
        """The lowest account of the waiting parties at the last charge: a new waiter is not behind it."""
        self._last_cost = 0
        self._channels: list[Channel] = []
        self._credits: dict[int, Credit] = {}
        self._charged = 0
        """Units of all outstanding credits, idle or busy, and of visits that run."""
        self.running = 0
        """Units in the model now."""
        self._wanting = 0
        """Number of channels with a want above zero."""
        self._recalled = 0
        """Number of recalled idle credits."""
        # A request may reach the successor of the process that granted its credit: their numbers must not meet.
        self._last_number = zlib.crc32(incarnation.encode()) << 20

    @property
    def queued(self) -> int:
        """Requests that wait in the proxy's own FIFO."""
        return len(self._fifo)

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The open channels."""
        return tuple(self._channels)

    # --- waiting parties --------------------------------------------------------------------------------------------

    def _need(self, units: int) -> int:
        """Returns the units that are charged: a request larger than the limit runs alone."""
        return min(units, self.limit) if self.limit else units

    def _set_want(self, channel: Channel, want: Want, now: float) -> None:
        if want.amount:
            if not channel.want.amount:
                self._wanting += 1
        elif channel.want.amount:
            self._wanting -= 1
        if not channel.want.amount:
            channel.wants_since = now
            if channel.spent < self._virtual_time:
                channel.spent = self._virtual_time
        channel.want = want
        units, limit = want.units, self.limit
        channel.need = units if units <= limit or not limit else limit
        channel.sequence = want.sequence
        channel.head_at = now - want.age_ms / 1000
        channel.tail_at = now - want.tail_ms / 1000
        channel.short_sent = False

    def _best(self, passed: Iterable[Channel]) -> Channel | Visit | None:
        """Returns the waiting party with the best key; ``passed`` are left out."""
        best: Channel | Visit | None = None
        best_place: Place | None = None
        if self._fifo:
            best = self._fifo[0]
            best_place = (DEFAULT_PRIORITY, self._fifo_spent, best.arrived)
        if self._wanting:
            for channel in self._channels:
                if channel.lacks > 0 and channel not in passed:
                    place = channel.place()
                    if best_place is None or place < best_place:
                        best, best_place = channel, place
        return best

    def _charge(self, channel: Channel) -> None:
        """Charges a channel for a slot that it waited for: its account grows by the cost of the head."""
        cost = channel.want.cost
        if cost:
            self._virtual_time = max(
                self._virtual_time, min(other.spent for other in self._channels if other.want.amount)
            )
            self._last_cost = cost
            channel.spent += cost

    def _others_wait(self, channel: Channel) -> bool:
        return bool(self._fifo) or any(other.lacks > 0 for other in self._channels if other is not channel)

    def _missing(self) -> int:
        """Returns the units that the waiting parties need beyond what is free."""
        units = sum(self._need(visit.units) for visit in self._fifo)
        for channel in self._channels:
            if channel.lacks > 0:
                units += channel.lacks * channel.need
        return units - (self.limit - self._charged)

    # --- credits ------------------------------------------------------------------------------------------------------

    def _issue(self, channel: Channel, units: int, now: float) -> Credit:
        self._last_number += 1
        credit = Credit(self._last_number, units, channel, now)
        self._charged += units
        self._credits[credit.number] = credit
        channel.idle[credit.number] = credit
        return credit

    def _admit(self, visit: Visit, now: float) -> None:
        """Starts a request without a channel, on a credit that is in no index."""
        units = self._need(visit.units)
        self._last_number += 1
        visit.credit = credit = Credit(self._last_number, units, None, now)
        credit.state = BUSY
        self._charged += units
        self.running += units

    def _admit_first(self, now: float) -> None:
        """Starts the first request of the FIFO."""
        visit = self._fifo.popleft()
        self._fifo_spent += self._last_cost
        self._admit(visit, now)
        self.out.append(Admit(visit))

    def _take_back(self, channel: Channel, numbers: Iterable[int]) -> None:
        for number in numbers:
            credit = self._credits.get(number)
            if credit is None or credit.channel is not channel:
                continue  # Void or returned already.
            if credit.state == IDLE:
                self._drop(credit)
            else:
                credit.returned = True

    def _drop(self, credit: Credit) -> None:
        """Ends a credit: its units are free."""
        if credit.recalled_at is not None:
            credit.recalled_at = None
            self._recalled -= 1
        credit.state = GONE
        self._charged -= credit.units
        if credit.channel is not None:
            self._credits.pop(credit.number, None)
            credit.channel.idle.pop(credit.number, None)

    def _void(self, channel: Channel, credits: Iterable[Credit]) -> None:  # noqa: A002
        numbers = [credit.number for credit in credits]
        for credit in tuple(credits):
            self._drop(credit)
        for part in parts(numbers):
            self.out.append(Send(channel, Void(part)))

    def _due(self, channel: Channel, credit: Credit) -> float:
        """Returns when an idle credit becomes void without a message."""
        if credit.recalled_at is not None:
            return credit.recalled_at + SILENCE_S
        if channel.want.amount == 0:
            return inf
        since = max(credit.since, channel.wants_since)
        return since + (SILENCE_S if self._others_wait(channel) else LOST_S)

    def _first_due(self, channel: Channel) -> float:
        """Returns the least :meth:`_due` of its idle credits without computing each: they are in the order of
        ``since``."""
        idle = channel.idle.values()
        if not self._recalled:
            return self._due(channel, next(iter(idle))) if idle else inf
        kept = next((credit for credit in idle if credit.recalled_at is None), None)
        first = min((credit.recalled_at for credit in idle if credit.recalled_at is not None), default=inf)
        return min(first + SILENCE_S, inf if kept is None else self._due(channel, kept))

    def _first_lapse(self) -> float | None:
        """Returns when the first idle credit becomes void without a message. Returns None if time alone voids none."""
        if not (self._wanting or self._recalled):
            return None
        first = min((self._first_due(channel) for channel in self._channels), default=inf)
        return None if first == inf else first

    # --- messages -----------------------------------------------------------------------------------------------------

    def _send_grant(self, channel: Channel, credits: list[Credit]) -> None:  # noqa: A002
        for start in range(0, len(credits), CREDITS_PER_LINE):
            part = credits[start : start + CREDITS_PER_LINE]
            self.out.append(Send(channel, Grant(tuple((credit.number, credit.units) for credit in part))))

    def _send_recall(self, channel: Channel, credits: list[Credit], now: float) -> None:  # noqa: A002
        for credit in credits:
            credit.recalled_at = now
        self._recalled += len(credits)
        for part in parts([credit.number for credit in credits]):
            self.out.append(Send(channel, Recall(part)))

    def _broadcast(self, message: ProxyMessage) -> None:
        self.out.extend(Send(channel, message) for channel in self._channels)


def parts(numbers: list[int]) -> Iterator[tuple[int, ...]]:
    """Yields the numbers, as many to a message as it may have."""
    for start in range(0, len(numbers), CREDITS_PER_LINE):
        yield tuple(numbers[start : start + CREDITS_PER_LINE])
