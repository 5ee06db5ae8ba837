"""SlotLedger: the queue_proxy's half of the slots, the only authority over one replica's concurrency.

A *credit* is the right of one gateway worker to run one request of a number of units. The ledger grants credits on slot
channels, checks every request's credit, and states at the head of each answer whether the credit stays with the worker
(``keep``) or comes home. Steady state costs no message: a kept credit carries one request after the other.

Life of a credit::

    granted --> IDLE --start--> BUSY --ended, kept--> IDLE ...
                 |                |
                 | returned,      | ended, home
                 | void, closed   v
                 +-------------> GONE

A free slot goes to the waiting head with the best key (priority class, account, arrival) over all channels and the
proxy's own FIFO. Accounts count where workers report the cost of their heads, which they do for tenants' requests: a
channel is charged for what it is granted, and the lowest account goes first (start-time fair queueing between workers,
as :mod:`tidegate.flow.fair_queue` does between tenants).

Channels report their waiting requests as a level (:class:`~tidegate.flow.wants.Want`); a channel's deficit is its level
minus the idle credits it holds. While one has a deficit, idle credits of others are recalled. A worker that does not
answer for 100 ms loses its idle credits and counts as wanting nothing until its next message.

Pure: ``now`` is an argument (seconds, one clock for all calls), and after each call ``out`` holds the commands to carry
out, in order. Steady state leaves it empty.
"""

from collections.abc import Hashable
from typing import Final

from tidegate.flow.accounting import LOST_S, SlotAccounting
from tidegate.flow.credits import (
    BUSY,
    IDLE,
    Admit,
    Channel,
    Command,
    Credit,
    Reject,
    Send,
    StateIs,
    Visit,
    to_deal,
    to_recall,
)
from tidegate.flow.messages import (
    Limit,
    Return,
    Short,
    State,
    Welcome,
    WorkerMessage,
)
from tidegate.flow.wants import Want
from tidegate.records.replica_state import ColdStartPhases, ConcurrencyUnit, ReplicaEvent, ReplicaState, advance

__all__ = ["Admit", "Channel", "Command", "Credit", "Reject", "Send", "SlotLedger", "StateIs", "Visit"]

_READY: Final = ReplicaState.READY
"""A member of an enum is looked up much slower than a name of the module, and every request uses this one."""


class SlotLedger(SlotAccounting):
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
        super().__init__(incarnation=incarnation, limit=limit, unit=unit)
        self.state = state
        self._counts_requests = unit is ConcurrencyUnit.REQUESTS
        self._phases: ColdStartPhases | None = None
        self._fifo_bound = fifo_bound
        self._deal_offset = 0
        """Round-robin offset for dealing free slots among equally loaded channels."""
        self._wake: float | None = None

    def __repr__(self) -> str:
        return (
            f"<SlotLedger {self.state.value}, {self.running}/{self.limit} running, {self._charged} charged, "
            f"{len(self._channels)} channels, {len(self._fifo)} queued>"
        )

    # --- channels ---------------------------------------------------------------------------------------------------

    def opened(self, worker: str, now: float) -> Channel:
        """Opens a channel after its hello: it gets the welcome, the state, and slots that are dealt unasked."""
        channel = Channel(worker)
        self._channels.append(channel)
        self.out.append(Send(channel, Welcome(self.incarnation, self.limit, self.unit)))
        self.out.append(Send(channel, State(self.state, self._phases)))
        self._settle(now)
        if self.state is ReplicaState.READY and not (channel.idle or self._wanting or self._fifo):
            # Its part of the others' slots: a worker chooses at once only among slots that it holds.
            self._recall(self.limit // len(self._channels), now)
            self._wake = self._first_lapse()
        return channel

    def closed(self, channel: Channel, now: float) -> None:
        """Closes a channel: its idle credits are free at once, busy ones when their requests end."""
        if not channel.open:
            return
        channel.open = False
        self._channels.remove(channel)
        self._set_want(channel, Want(channel.sequence, 0), now)
        for credit in tuple(channel.idle.values()):
            self._drop(credit)
        self._settle(now)

    def heard(self, channel: Channel, message: WorkerMessage, now: float) -> None:
        """Processes a want or a return."""
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
        """Starts a request with ``tidegate-credit: number`` and ``tidegate-want: want`` (None if absent).

        Returns None if the credit is not outstanding, or cannot carry so much: the answer is then 409 STALE_CREDIT with
        outcome not-started before the model sees the request.
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
        """Enters a request without a credit, from outside the channels or at a replica without a limit.

        With ``visit.credit`` set it runs now; without it waits for an ``Admit`` or a ``Reject``. Returns None if the
        FIFO is full or the replica has drained: the request is refused.
        """
        if self.state not in (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING):
            return None
        if self.unit is ConcurrencyUnit.REQUESTS:
            units = 1
        visit = Visit(request, units, now)
        serving = self.state is not ReplicaState.STARTING
        is_idle = not self._fifo and not (self._wanting and any(channel.lacks > 0 for channel in self._channels))
        if serving and (self.limit == 0 or (is_idle and self._need(units) <= self.limit - self._charged)):
            self._admit(visit, now)
            return visit
        if len(self._fifo) >= self._fifo_bound:
            return None
        if not self._fifo and self._fifo_spent < self._virtual_time:
            self._fifo_spent = self._virtual_time
        self._fifo.append(visit)
        self._settle(now)
        if visit.credit is not None:
            self.out = [command for command in self.out if not (type(command) is Admit and command.visit is visit)]
        return visit

    def enter_at_once(self, units: int) -> int:
        """Enters a request on the short way of :meth:`enter` while no request waits; returns the units that it is
        charged, for ``left``.

        Returns 0 if it must :meth:`enter`. A request that passes here needs no visit and no credit, and changes nothing
        for others.
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
        """Ends a request that entered at once, and its connections. Returns False if no party is there to get the
        slot."""
        self.running -= units
        self._charged -= units
        if self._channels or self._fifo or self.state is not _READY:
            self._settle(now)
            return True
        return False

    def leave(self, visit: Visit, now: float) -> None:
        """Removes a request that still waits in the FIFO (cancelled or past its deadline)."""
        if visit.credit is None and visit in self._fifo:
            self._fifo.remove(visit)
            self._settle(now)

    def keeps(self, credit: Credit, now: float) -> bool:
        """Decides at the head of the answer: True for ``tidegate-credit: keep``, False for ``home``. Once per
        request."""
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
            is_only = not self._fifo and len(self._channels) == 1 and channel.need == 1  # Any credit serves its head.
            if not is_only and not self._may_keep(channel, credit):
                return False
            if channel.want.cost and channel.lacks > 0:
                self._charge(channel)
        credit.kept = True
        return True

    def ended(self, credit: Credit, now: float, aborted: bool = False) -> None:
        """Ends a request and its connections. ``aborted``: the answer did not end, the slot comes home anyway."""
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
            else:  # The limit was lifted after the head had said keep.
                self._void(channel, (credit,))
        else:
            self._drop(credit)
            if not self._channels and not self._fifo and self.state is _READY:
                return  # No party is there to get the slot.
        self._settle(now)

    # --- replica ----------------------------------------------------------------------------------------------------

    def ready(self, now: float, phases: ColdStartPhases | None = None) -> None:
        """Notes that the model answers: waiting requests get slots."""
        self._phases = phases
        self._advance(ReplicaEvent.MODEL_READY)
        self._settle(now)

    def drain(self, now: float) -> None:
        """Begins a drain: no new credits, idle ones are recalled. ``StateIs(DRAINED)`` follows when all is home and
        nothing runs."""
        if self.state not in (ReplicaState.STARTING, ReplicaState.READY):
            return
        self._advance(ReplicaEvent.DRAIN_ORDERED)
        self._settle(now)

    def revive(self, now: float) -> None:
        """Takes a drain back, also from drained."""
        if self.state not in (ReplicaState.DRAINING, ReplicaState.DRAINED):
            return
        self._advance(ReplicaEvent.REVIVE_ORDERED)
        self._settle(now)

    def resize(self, limit: int, now: float) -> None:
        """Sets another limit; 0: none. Running work goes on, nothing starts above the new limit."""
        if limit == self.limit:
            return
        self.limit = limit
        self._broadcast(Limit(limit))
        for channel in self._channels:
            channel.need = self._need(channel.want.units)
        if limit == 0:
            for channel in self._channels:
                self._void(channel, tuple(channel.idle.values()))
        self._settle(now)

    # --- time -------------------------------------------------------------------------------------------------------

    def next_wakeup(self) -> float | None:
        """Returns when ``on_wakeup`` has something to do; None if time alone changes nothing."""
        return self._wake

    def on_wakeup(self, now: float) -> None:
        """Voids credits that were recalled, or granted and not used while others wait, for 100 ms."""
        for channel in tuple(self._channels):
            late = [credit for credit in channel.idle.values() if self._due(channel, credit) <= now]
            if not late:
                continue
            channel.silent = any(credit.recalled_at is not None for credit in late) or self._others_wait(channel)
            self._void(channel, tuple(channel.idle.values()) if channel.silent else late)
            self._set_want(channel, Want(channel.sequence, 0), now)
        self._settle(now)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _is_settled(self) -> bool:
        """Returns whether :meth:`_settle` has nothing to assign and nothing to recall.

        Every slot is taken, nothing is recalled, and no request waits; or all waiting requests are of the only channel,
        and its head can use each credit that it holds.
        """
        return (
            self._charged == self.limit
            and not self._recalled
            and not self._fifo
            and self.state is _READY
            and (not self._wanting or (len(self._channels) == 1 and self._channels[0].need == 1))
        )

    def _may_keep(self, channel: Channel, credit: Credit) -> bool:
        """Returns whether a credit stays with its channel although a request waits.

        With fewer slots than wanting parties each answer sends its credit home, so that one slot serves all of them in
        arrival order; else it stays if the channel's own head is the next in order, and fits.
        """
        parties = self._wanting + bool(self._fifo)
        if parties > max(1, self.limit // max(1, credit.units)):
            return False
        best = self._best(())
        if best is None:
            return True
        return best is channel and channel.need <= credit.units

    def _settle(self, now: float) -> None:
        """Makes all assignments that are possible now, then recalls what is missing."""
        if self.limit == 0:
            while self._fifo and self.state is not ReplicaState.STARTING:
                self._admit_first(now)
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
            self._advance(ReplicaEvent.LAST_WORK_ENDED)
        self._wake = self._first_lapse()

    def _grant(self, now: float) -> None:
        """Grants free slots to the best heads, whole or nothing."""
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
            if not channel.short_sent and channel.lacks > 0:
                channel.short_sent = True
                self.out.append(Send(channel, Short(self.limit - self._charged)))

    def _recall(self, units: int, now: float) -> None:
        """Recalls idle credits of this many units, less those that are recalled already."""
        if self._recalled:
            idle = (credit for channel in self._channels for credit in channel.idle.values())
            units -= sum(credit.units for credit in idle if credit.recalled_at is not None)
        is_shrinking = self.state is not ReplicaState.READY or self._charged > self.limit
        for channel, credits in to_recall(self._channels, units, is_shrinking):  # noqa: A001
            self._send_recall(channel, credits, now)

    def _deal(self, now: float) -> None:
        """Deals unasked slots to the responsive channels."""
        responsive = [channel for channel in self._channels if not channel.silent]
        free = self.limit - self._charged
        if not responsive or free <= 0:
            return
        first = self._deal_offset % len(responsive)
        self._deal_offset += 1
        dealt: dict[Channel, list[Credit]] = {}
        for channel, units in to_deal(responsive[first:] + responsive[:first], free, self.limit):
            dealt.setdefault(channel, []).append(self._issue(channel, units, now))
        for channel, credits in dealt.items():  # noqa: A001
            self._send_grant(channel, credits)

    def _advance(self, event: ReplicaEvent) -> None:
        self.state = advance(self.state, event)
        self.out.append(StateIs(self.state))
        self._broadcast(State(self.state, self._phases))
        if self.state is ReplicaState.DRAINED:
            self.out.extend(Reject(visit) for visit in self._fifo)
            self._fifo.clear()
