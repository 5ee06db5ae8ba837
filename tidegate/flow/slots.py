"""SlotLedger: the queue_proxy's half of the slots, the only authority over one replica's concurrency.

A *credit* is the right of one gateway worker to run one request of so many units. The ledger grants credits on slot
channels, checks every request's credit, and says at the head of each answer whether the credit stays with the worker
(``keep``) or comes home. Steady state costs no message: a kept credit carries one request after the other.

Life of a credit::

    granted --> IDLE --start--> BUSY --ended, kept--> IDLE ...
                 |                |
                 | returned,      | ended, home
                 | void, closed   v
                 +-------------> GONE

Who gets a free slot: the waiting head with the best key (priority class, turn, arrival) over all channels and the
proxy's own FIFO. Turns count where workers tell what their heads cost, which they do for tenants' requests: a channel
is charged for what it is granted, and who has had least goes first (start-time fair queueing between workers, as
:mod:`tidegate.flow.fair_queue` does between tenants).

Channels tell their waiting requests as a level (:class:`~tidegate.flow.wants.Want`); what a channel lacks is its level
minus the idle credits it holds. While somebody lacks, idle credits of others are recalled, and a worker that does not
answer for 100 ms loses its idle credits and counts as wanting nothing until it is heard again.

Pure: ``now`` is an argument (seconds, one clock for all calls), and after each call ``out`` holds what has to be
done, in order. Steady state leaves it empty.
"""

import zlib
from collections import deque
from collections.abc import Hashable, Iterable
from heapq import heapify, heappop, heapreplace
from typing import Final

from tidegate.flow.credits import (
    BUSY,
    GONE,
    IDLE,
    Admit,
    Channel,
    Command,
    Credit,
    Place,
    Reject,
    Send,
    StateIs,
    Visit,
)
from tidegate.flow.messages import (
    Grant,
    Limit,
    ProxyMessage,
    Recall,
    Return,
    Short,
    State,
    Void,
    Welcome,
    WorkerMessage,
)
from tidegate.flow.wants import DEFAULT_PRIORITY, Want
from tidegate.phases import ColdStartPhases
from tidegate.replica import ConcurrencyUnit, ReplicaEvent, ReplicaState, advance

__all__ = ["Admit", "Channel", "Command", "Credit", "Reject", "Send", "SlotLedger", "StateIs", "Visit"]

SILENCE_S: Final = 0.1
"""A recall without an answer, or a grant without a request while others wait, voids after this time."""
LOST_S: Final = 1.0
"""An idle credit of a worker that wants, unused for this long though nobody else waits, must be lost. Our choice."""
_READY: Final = ReplicaState.READY
"""On the path of every request: a member of an enum is looked up much slower than a name of the module."""
CREDITS_PER_LINE: Final = 1000
"""Keeps a message far below ``messages.LINE_LIMIT``."""


class SlotLedger:
    """The only authority over one replica's slots."""

    def __init__(
        self,
        *,
        incarnation: str,
        limit: int,
        unit: ConcurrencyUnit = ConcurrencyUnit.REQUESTS,
        fifo_bound: int = 100,
        state: ReplicaState = ReplicaState.STARTING,
    ) -> None:
        self.incarnation = incarnation
        """Names this process; credits are numbered within it."""
        self.limit = limit
        """Slots; 0: no limit."""
        self.unit = unit
        self._counts_requests = unit is ConcurrencyUnit.REQUESTS
        self.state = state
        self.out: list[Command] = []
        """What has to be done; the shell takes the list and leaves an empty one."""
        self.running = 0
        """Units in the model now."""
        self._phases: ColdStartPhases | None = None
        self._fifo_bound = fifo_bound
        self._fifo: deque[Visit] = deque()
        self._fifo_turn = 0
        """Of those who wait there: together they count as one worker with requests like the last that was charged."""
        self._time = 0
        """The lowest turn of those who waited at the last charge: who begins to wait is not behind it."""
        self._last_cost = 0
        self._channels: list[Channel] = []
        self._credits: dict[int, Credit] = {}
        self._charged = 0
        """Units of all outstanding credits, idle or busy, and of visits that run."""
        self._wanting = 0
        """Channels whose want is above zero."""
        self._recalled = 0
        """Idle credits that are recalled."""
        # A request may reach the successor of the process that granted its credit: their numbers must not meet.
        self._last_number = zlib.crc32(incarnation.encode()) << 20
        self._dealer = 0
        """Who goes first among equals when slots are dealt next."""
        self._wake: float | None = None

    def __repr__(self) -> str:
        return (
            f"<SlotLedger {self.state.value}, {self.running}/{self.limit} running, {self._charged} charged, "
            f"{len(self._channels)} channels, {len(self._fifo)} queued>"
        )

    @property
    def queued(self) -> int:
        """Requests that wait in the proxy's own FIFO."""
        return len(self._fifo)

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The open channels."""
        return tuple(self._channels)

    # --- channels ---------------------------------------------------------------------------------------------------

    def opened(self, worker: str, now: float) -> Channel:
        """A channel said hello: it is welcomed, told the state, and dealt slots that nobody asked for."""
        channel = Channel(worker)
        self._channels.append(channel)
        self.out.append(Send(channel, Welcome(self.incarnation, self.limit, self.unit)))
        self.out.append(Send(channel, State(self.state, self._phases)))
        self._settle(now)
        if self.state is ReplicaState.READY and not (channel.idle or self._wanting or self._fifo):
            # Its part of what others hold: a worker chooses at once only among slots that it holds.
            self._recall(self.limit // len(self._channels), now)
            self._arm()
        return channel

    def closed(self, channel: Channel, now: float) -> None:
        """The channel is gone: idle credits are free at once, busy ones when their requests end."""
        if not channel.open:
            return
        channel.open = False
        self._channels.remove(channel)
        self._set_want(channel, Want(channel.sequence, 0), now)
        for credit in tuple(channel.idle.values()):
            self._drop(credit)
        self._settle(now)

    def heard(self, channel: Channel, message: WorkerMessage, now: float) -> None:
        """A want or a return arrived."""
        if not channel.open:
            return
        channel.silent = False
        if type(message) is Want:
            if message.sequence <= channel.sequence:
                return
            self._set_want(channel, message, now)
        elif type(message) is Return:
            self._take_back(channel, message.credits)
        if channel.idle or not self._is_settled():
            self._settle(now)

    # --- requests ---------------------------------------------------------------------------------------------------

    def start(self, number: int, units: int, want: Want | None, now: float) -> Credit | None:
        """A request with ``tidegate-credit: number`` and ``tidegate-want: want`` (None where absent) arrived.

        None: the credit is not outstanding, or cannot carry so much: answer 409 STALE_CREDIT with outcome not-started
        before the model sees it.
        """
        credit = self._credits.get(number)
        if credit is None or credit.state != IDLE:
            return None
        channel = credit.channel
        assert channel is not None  # visits' credits are in no index
        channel.silent = False
        limit = self.limit
        if self._counts_requests:
            units = 1
        elif limit and units > limit:
            units = limit
        if units > credit.units or (limit and self.running + units > limit):
            # The limit shrank since the grant, or the worker asked for less than it sends.
            self._drop(credit)
            self._settle(now)
            return None
        del channel.idle[number]
        credit.state = BUSY
        credit.kept = credit.returned = False
        if credit.recalled_at is not None:
            credit.recalled_at = None
            self._recalled -= 1
        if units < credit.units:
            self._charged -= credit.units - units
            credit.units = units
        self.running += units
        channel.typical = units
        if want is not None and want.sequence > channel.sequence:
            self._set_want(channel, want, now)
        if (channel.idle and self._wanting) or not self._is_settled():
            self._settle(now)
        return credit

    def enter(self, request: Hashable, units: int, now: float) -> Visit | None:
        """A request without a credit, from nowhere or at a replica without a limit.

        ``visit.credit`` set: run it now; unset: it waits for an ``Admit`` or a ``Reject``; None: the FIFO is full or
        the replica has drained, refuse it.
        """
        if self.state not in (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING):
            return None
        if self.unit is ConcurrencyUnit.REQUESTS:
            units = 1
        visit = Visit(request, units, now)
        serving = self.state is not ReplicaState.STARTING
        nobody_waits = not self._fifo and not (self._wanting and any(channel.lacks > 0 for channel in self._channels))
        if serving and (self.limit == 0 or (nobody_waits and self._need(units) <= self.limit - self._charged)):
            self._admit(visit, now)
            return visit
        if len(self._fifo) >= self._fifo_bound:
            return None
        if not self._fifo and self._fifo_turn < self._time:
            self._fifo_turn = self._time
        self._fifo.append(visit)
        self._settle(now)
        if visit.credit is not None:
            self.out = [command for command in self.out if not (type(command) is Admit and command.visit is visit)]
        return visit

    def enter_at_once(self, units: int) -> int:
        """The short way of :meth:`enter` while nobody waits: the units that the request is charged, for ``left``.

        0: it must :meth:`enter`. What passes here needs no visit and no credit, and changes nothing for others.
        """
        if self._fifo or self._wanting or self.state is not _READY:
            return 0
        if self._counts_requests:
            units = 1
        limit = self.limit
        if limit:
            if units > limit:
                units = limit
            if self._charged + units > limit:
                return 0
        self._charged += units
        self.running += units
        return units

    def left(self, units: int, now: float) -> bool:
        """A request that entered at once, and its connections, are over. False: nobody is there to get the slot."""
        self.running -= units
        self._charged -= units
        if self._channels or self._fifo or self.state is not _READY:
            self._settle(now)
            return True
        return False

    def leave(self, visit: Visit, now: float) -> None:
        """A request that still waits in the FIFO went away (cancelled or past its deadline)."""
        if visit.credit is None and visit in self._fifo:
            self._fifo.remove(visit)
            self._settle(now)

    def keeps(self, credit: Credit, now: float) -> bool:
        """At the head of the answer: True for ``tidegate-credit: keep``, False for ``home``. Once per request."""
        channel = credit.channel
        if (
            channel is None
            or not channel.open
            or channel.silent
            or credit.returned
            or self.state is not _READY
            or self._charged > self.limit
        ):
            return False
        if self._wanting or self._fifo:
            if not self._deserves(channel, credit):
                return False
            if channel.want.cost and channel.lacks > 0:
                self._charge(channel)
        credit.kept = True
        return True

    def ended(self, credit: Credit, now: float, *, aborted: bool = False) -> None:
        """The request and its connections are over. ``aborted``: the answer did not end, the slot comes home anyway."""
        if credit.state != BUSY:
            return
        self.running -= credit.units
        channel = credit.channel
        if credit.kept and not aborted and not credit.returned and channel is not None and channel.open:
            if self.limit:
                credit.state = IDLE
                credit.since = now
                channel.idle[credit.number] = credit
                if self._is_settled():
                    if self._wanting and self._wake is None:
                        self._wake = now + LOST_S
                    return
            else:  # It was lifted after the head had said keep.
                self._void(channel, (credit,))
        else:
            self._drop(credit)
            if not self._channels and not self._fifo and self.state is _READY:
                return  # Nobody is there to get the slot.
        self._settle(now)

    # --- replica ----------------------------------------------------------------------------------------------------

    def ready(self, now: float, phases: ColdStartPhases | None = None) -> None:
        """The model answers: whoever waits gets slots."""
        self._phases = phases
        self._turn(ReplicaEvent.MODEL_READY)
        self._settle(now)

    def drain(self, now: float) -> None:
        """No new credits, idle ones are recalled; ``StateIs(DRAINED)`` follows when all is home and nothing runs."""
        if self.state not in (ReplicaState.STARTING, ReplicaState.READY):
            return
        self._turn(ReplicaEvent.DRAIN_ORDERED)
        self._settle(now)

    def revive(self, now: float) -> None:
        """Takes a drain back, also from drained."""
        if self.state not in (ReplicaState.DRAINING, ReplicaState.DRAINED):
            return
        self._turn(ReplicaEvent.REVIVE_ORDERED)
        self._settle(now)

    def resize(self, limit: int, now: float) -> None:
        """Another limit; 0: none. Running work goes on, nothing starts above the new limit."""
        if limit == self.limit:
            return
        self.limit = limit
        self._tell_all(Limit(limit))
        for channel in self._channels:
            channel.need = self._need(channel.want.units)
        if limit == 0:
            for channel in self._channels:
                self._void(channel, tuple(channel.idle.values()))
        self._settle(now)

    # --- time -------------------------------------------------------------------------------------------------------

    def next_wakeup(self) -> float | None:
        """When ``on_wakeup`` has something to do; None: not by time alone."""
        return self._wake

    def on_wakeup(self, now: float) -> None:
        """Voids what was recalled, or granted and not used while others wait, for 100 ms."""
        for channel in tuple(self._channels):
            late = [credit for credit in channel.idle.values() if self._due(channel, credit) <= now]
            if not late:
                continue
            channel.silent = any(credit.recalled_at is not None for credit in late) or self._others_wait(channel)
            self._void(channel, tuple(channel.idle.values()) if channel.silent else late)
            self._set_want(channel, Want(channel.sequence, 0), now)
        self._settle(now)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _need(self, units: int) -> int:
        """Units that are charged: a request larger than the limit runs alone."""
        return min(units, self.limit) if self.limit else units

    def _is_settled(self) -> bool:
        """Whether :meth:`_settle` has nothing to assign and nothing to ask for.

        Every slot is taken, nothing is recalled, and nobody waits; or those who wait are all of the only channel, whose
        head can use each credit that it holds.
        """
        return (
            self._charged == self.limit
            and not self._recalled
            and not self._fifo
            and self.state is _READY
            and (not self._wanting or (len(self._channels) == 1 and self._channels[0].need == 1))
        )

    def _set_want(self, channel: Channel, want: Want, now: float) -> None:
        if want.amount:
            if not channel.want.amount:
                self._wanting += 1
        elif channel.want.amount:
            self._wanting -= 1
        if not channel.want.amount:
            channel.wants_since = now
            if channel.turn < self._time:
                channel.turn = self._time
        channel.want = want
        units, limit = want.units, self.limit
        channel.need = units if units <= limit or not limit else limit
        channel.sequence = want.sequence
        channel.head_at = now - want.age_ms / 1000
        channel.tail_at = now - want.tail_ms / 1000
        channel.short_told = False

    def _take_back(self, channel: Channel, numbers: Iterable[int]) -> None:
        for number in numbers:
            credit = self._credits.get(number)
            if credit is None or credit.channel is not channel:
                continue  # Void or returned already.
            if credit.state == IDLE:
                self._drop(credit)
            else:
                credit.returned = True

    def _deserves(self, channel: Channel, credit: Credit) -> bool:
        """Whether a credit stays with its channel although somebody waits.

        With fewer slots than wanting parties each answer sends its credit home, so that one slot serves all of them
        in arrival order; else it stays if the channel's own head is the next in order, and fits.
        """
        if not self._fifo and len(self._channels) == 1 and channel.need == 1:
            return True  # Nobody else is there, and any credit serves its head.
        parties = self._wanting + bool(self._fifo)
        if parties > max(1, self.limit // max(1, credit.units)):
            return False
        best = self._best(())
        if best is None:
            return True
        return best is channel and channel.need <= credit.units

    def _best(self, passed: Iterable[Channel]) -> Channel | Visit | None:
        """Who waits with the best key; ``passed`` are left out."""
        best: Channel | Visit | None = None
        best_place: Place | None = None
        if self._fifo:
            best = self._fifo[0]
            best_place = (DEFAULT_PRIORITY, self._fifo_turn, best.arrived)
        if self._wanting:
            for channel in self._channels:
                if channel.lacks > 0 and channel not in passed:
                    place = channel.place()
                    if best_place is None or place < best_place:
                        best, best_place = channel, place
        return best

    def _charge(self, channel: Channel) -> None:
        """The channel gets a slot that it waited for: its next turn goes back by what the head costs."""
        cost = channel.want.cost
        if cost:
            self._time = max(self._time, min(other.turn for other in self._channels if other.want.amount))
            self._last_cost = cost
            channel.turn += cost

    def _others_wait(self, channel: Channel) -> bool:
        return bool(self._fifo) or any(other.lacks > 0 for other in self._channels if other is not channel)

    def _settle(self, now: float) -> None:
        """Makes all assignments that are possible now, then asks for what is missing."""
        if self.limit == 0:
            self._settle_without_limit(now)
        elif self.state is ReplicaState.READY:
            self._grant(now)
            if self._best(()) is not None:
                if any(channel.idle for channel in self._channels):
                    self._recall(self._missing(), now)
            elif self._charged > self.limit:
                self._recall(self._charged - self.limit, now)
            else:
                self._deal(now)
        elif self.state is ReplicaState.DRAINING:
            while self._fifo and self._need(self._fifo[0].units) <= self.limit - self._charged:
                self._admit_first(now)
            self._recall(self._charged, now)
        if self.state is ReplicaState.DRAINING and not self._charged and not self._fifo:
            self._turn(ReplicaEvent.LAST_WORK_ENDED)
        self._arm()

    def _settle_without_limit(self, now: float) -> None:
        while self._fifo and self.state is not ReplicaState.STARTING:
            self._admit_first(now)

    def _grant(self, now: float) -> None:
        """Free slots to the best heads, whole or nothing."""
        granted: dict[Channel, list[Credit]] = {}
        passed: list[Channel] = []
        while self._charged < self.limit:
            best = self._best(passed)
            if best is None:
                break
            need = self._need(best.units) if isinstance(best, Visit) else best.need
            free = self.limit - self._charged
            if isinstance(best, Visit):
                if need > free:
                    break  # It has nowhere else to go: nothing younger passes it.
                self._admit_first(now)
            elif need <= free:
                granted.setdefault(best, []).append(self._issue(best, need, now))
                self._charge(best)
            elif best.want.reserves:
                break
            else:
                passed.append(best)
        for channel, credits in granted.items():  # noqa: A001
            self._send_grant(channel, credits)
        for channel in passed:
            if not channel.short_told and channel.lacks > 0:
                channel.short_told = True
                self.out.append(Send(channel, Short(self.limit - self._charged)))

    def _missing(self) -> int:
        """Units that those who lack need beyond what is free."""
        units = sum(self._need(visit.units) for visit in self._fifo)
        for channel in self._channels:
            if channel.lacks > 0:
                units += channel.lacks * channel.need
        return units - (self.limit - self._charged)

    def _recall(self, units: int, now: float) -> None:
        """Recalls idle credits of so many units, less those that are recalled already, from those who hold most."""
        if self._recalled:
            idle = (credit for channel in self._channels for credit in channel.idle.values())
            units -= sum(credit.units for credit in idle if credit.recalled_at is not None)
        if units <= 0:
            return
        draining = self.state is not ReplicaState.READY or self._charged > self.limit
        for channel in sorted(self._channels, key=lambda one: one.want.amount - len(one.idle)):
            # What it holds for its own waiting requests stays: their use is under way.
            claims = 0 if draining else min(channel.want.amount, channel.serving)
            kept = [credit for credit in channel.idle.values() if credit.recalled_at is None]
            kept.sort(key=lambda credit: credit.units >= channel.need)
            recalled = []
            for credit in kept[: max(0, len(kept) - claims)]:
                if units <= 0:
                    break
                units -= credit.units
                credit.recalled_at = now
                self._recalled += 1
                recalled.append(credit.number)
            for part in _parts(recalled):
                self.out.append(Send(channel, Recall(part)))

    def _deal(self, now: float) -> None:
        """Slots that nobody asked for: to the channel that holds fewest of those that are heard; ties rotate."""
        hearing = [channel for channel in self._channels if not channel.silent]
        if not hearing or self._charged >= self.limit:
            return
        first = self._dealer % len(hearing)
        self._dealer += 1
        poorest = [(len(channel.idle), turn, channel) for turn, channel in enumerate(hearing[first:] + hearing[:first])]
        heapify(poorest)
        dealt: dict[Channel, list[Credit]] = {}
        while poorest and self._charged < self.limit:
            held, turn, channel = poorest[0]
            units = self._need(channel.typical)
            if units > self.limit - self._charged:
                heappop(poorest)
                continue
            dealt.setdefault(channel, []).append(self._issue(channel, units, now))
            heapreplace(poorest, (held + 1, turn, channel))
        for channel, credits in dealt.items():  # noqa: A001
            self._send_grant(channel, credits)

    def _issue(self, channel: Channel, units: int, now: float) -> Credit:
        self._last_number += 1
        credit = Credit(self._last_number, units, channel, now)
        self._charged += units
        self._credits[credit.number] = credit
        channel.idle[credit.number] = credit
        return credit

    def _send_grant(self, channel: Channel, credits: list[Credit]) -> None:  # noqa: A002
        for start in range(0, len(credits), CREDITS_PER_LINE):
            part = credits[start : start + CREDITS_PER_LINE]
            self.out.append(Send(channel, Grant(tuple((credit.number, credit.units) for credit in part))))

    def _admit(self, visit: Visit, now: float) -> None:
        units = self._need(visit.units)
        self._last_number += 1
        visit.credit = credit = Credit(self._last_number, units, None, now)
        credit.state = BUSY
        self._charged += units
        self.running += units

    def _admit_first(self, now: float) -> None:
        visit = self._fifo.popleft()
        self._fifo_turn += self._last_cost
        self._admit(visit, now)
        self.out.append(Admit(visit))

    def _drop(self, credit: Credit) -> None:
        """The credit is outstanding no more, its units are free."""
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
        for part in _parts(numbers):
            self.out.append(Send(channel, Void(part)))

    def _due(self, channel: Channel, credit: Credit) -> float:
        """When an idle credit becomes void if nothing is heard."""
        if credit.recalled_at is not None:
            return credit.recalled_at + SILENCE_S
        if channel.want.amount == 0:
            return float("inf")
        since = max(credit.since, channel.wants_since)
        return since + (SILENCE_S if self._others_wait(channel) else LOST_S)

    def _arm(self) -> None:
        wake = float("inf")
        if self._wanting or self._recalled:
            for channel in self._channels:
                for credit in channel.idle.values():
                    wake = min(wake, self._due(channel, credit))
        self._wake = None if wake == float("inf") else wake

    def _turn(self, event: ReplicaEvent) -> None:
        self.state = advance(self.state, event)
        self.out.append(StateIs(self.state))
        self._tell_all(State(self.state, self._phases))
        if self.state is ReplicaState.DRAINED:
            self.out.extend(Reject(visit) for visit in self._fifo)
            self._fifo.clear()

    def _tell_all(self, message: ProxyMessage) -> None:
        self.out.extend(Send(channel, message) for channel in self._channels)


def _parts(numbers: list[int]) -> Iterable[tuple[int, ...]]:
    for start in range(0, len(numbers), CREDITS_PER_LINE):
        yield tuple(numbers[start : start + CREDITS_PER_LINE])
