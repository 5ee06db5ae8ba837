"""A virtual replica: the product's slot ledger and counters over a model server in virtual time.

It takes the place of queue_proxy and model server: it checks each request's credit, runs the request, reports with the
answer whether the credit stays, and measures what a queue_proxy measures.
"""

import random
from collections import deque
from collections.abc import Callable
from heapq import heappush

from tidegate.activator.state.bind import Bind
from tidegate.errors import DEADLINE
from tidegate.flow.credits import Channel, Credit, Send, StateIs
from tidegate.flow.messages import Hello, ProxyMessage, WorkerMessage
from tidegate.flow.slots import SlotLedger
from tidegate.loadgen.simulator.counters import Request
from tidegate.loadgen.simulator.devices import Sharing, Unit
from tidegate.loadgen.simulator.kernel import Kernel
from tidegate.loadgen.simulator.profiles import ServiceProfile
from tidegate.queue_proxy.metrics import Identity, ReplicaCounters, ReplicaLevels
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ColdStartPhases, ConcurrencyUnit, ReplicaState

KEPT_TIMES = 4096
"""Batch sizes whose nominal time is cached."""

Answered = Callable[["VirtualReplica", Bind, bool, float, float], None]
"""Called with (replica, request, whether the credit stays, send time, now)."""
Expired = Callable[["VirtualReplica", Bind, float, float], None]
"""Called with (replica, request, send time, now)."""
OnMessage = Callable[["VirtualReplica", ProxyMessage], None]


class VirtualReplica:
    """One replica, from its creation to its end."""

    __slots__ = (
        "_channel",
        "_done",
        "_drained",
        "_first_s",
        "_flights",
        "_goes_on",
        "_handles",
        "_held",
        "_hop_s",
        "_is_by_token",
        "_is_shared",
        "_is_steady",
        "_kernel",
        "_line",
        "_nominal",
        "_on_message",
        "_rng",
        "_running",
        "_unit",
        "_wake",
        "_width",
        "accelerator",
        "answered",
        "cores",
        "expired",
        "function",
        "id",
        "ledger",
        "measure",
        "phases",
        "profile",
        "share",
    )

    def __init__(
        self,
        identity: Identity,
        *,
        kernel: Kernel,
        profile: ServiceProfile,
        unit: Unit,
        sharing: Sharing,
        limit: int,
        counts: ConcurrencyUnit,
        cores: int,
        share: int,
        hop_s: float,
        goes_on: bool,
        rng: random.Random,
        answered: Answered,
        expired: Expired,
        on_message: OnMessage,
        drained: Callable[[str], None],
    ) -> None:
        """``goes_on``: the model server computes on after a request's deadline, which holds its slot until the end.
        ``on_message`` receives the messages of the slot channel; ``drained`` receives the id when all credits have
        returned after a drain."""
        self.id = identity.replica
        self.function = identity.function
        self.accelerator = identity.group
        self.profile = profile
        self.cores = cores
        self.share = share
        self.answered = answered
        self.expired = expired
        self.ledger = SlotLedger(incarnation=identity.incarnation, limit=limit, unit=counts)
        self.measure = ReplicaCounters(identity, kernel.now())
        self.phases = ColdStartPhases()
        self._kernel = kernel
        self._unit = unit
        self._is_shared = sharing is not Sharing.EXCLUSIVE
        self._is_by_token = profile.is_by_token
        self._is_steady = not (profile.jitter or profile.is_exponential or profile.variation)
        self._hop_s = hop_s
        self._rng = rng
        self._on_message = on_message
        self._drained = drained
        self._done = self._ended
        self._channel: Channel | None = None
        self._flights: dict[Bind, Credit | int] = {}
        """Requests here with their credit, or without a limit with the units charged."""
        self._goes_on = goes_on
        self._handles: dict[Bind, object] = {}
        """Executions on a shared unit."""
        self._held: dict[Bind, Credit | int] = {}
        """As :attr:`_flights`: executions that go on past their deadline, without a client."""
        self._line: deque[tuple[Bind, float]] = deque()
        """Requests that wait inside the model server, with their send times."""
        self._running = 0
        self._first_s = profile.first_s
        """0 once the first execution is over, or if it is like any other."""
        self._width = 1 if profile.first_s else profile.width or 1 << 30
        self._nominal: dict[int, float] = {}
        self._wake = float("inf")

    # --- requests ---

    def begin(self, bind: Bind, now: float) -> bool:
        """Takes a request; returns False if it was not started and must go elsewhere."""
        ledger = self.ledger
        if bind.credit:
            credit = ledger.start(bind.credit, bind.inferences, bind.want, now)
            if credit is None:
                self.act(now)
                return False
            self._flights[bind] = credit
        else:
            units = ledger.enter_at_once(bind.inferences)
            if not units:
                return False
            self._flights[bind] = units
        self.measure.began(now, bind.inferences)
        if ledger.out:
            self.act(now)
        if self._running < self._width:
            self._run(bind, now, now)
        else:
            self._line.append((bind, now))
            self._kernel.at(bind.deadline, self._deadline, (bind, now))
        return True

    def _run(self, bind: Bind, sent_at: float, now: float, took: float | None = None) -> None:
        """Begins an execution; ``took``: that of the batch that the request is part of."""
        self._running += 1
        if took is None:
            nominal = self._nominal.get(bind.inferences)
            if nominal is None:
                nominal = self._nominal_of(bind.inferences)
            if self._is_by_token:
                nominal += self._of_tokens(bind.request)  # type: ignore[arg-type]  # what was given to the room
            took = nominal if self._is_steady else self.profile.varied(nominal, self._rng)
        if self._first_s:
            took = max(took, self._first_s)
        if self._is_shared:
            self._handles[bind] = self._unit.run(
                self.function, took, self._shared_ended, (bind, sent_at), now, replica=self.id
            )
            self._kernel.at(bind.deadline, self._deadline, (bind, sent_at))  # The others decide how long it takes.
        else:
            kernel, unit = self._kernel, self._unit
            if not unit.executions:  # Unit.begin, written out.
                unit.since = now
            unit.executions += 1
            ends_at = now + took + self._hop_s
            if ends_at > bind.deadline:
                kernel.at(bind.deadline, self._deadline, (bind, sent_at))
                if not self._goes_on:
                    return
            heappush(kernel.heap, (ends_at, next(kernel.sequence), self._done, (bind, sent_at)))

    def _run_next(self, now: float) -> None:
        """Runs what waits inside the model server, as far as there is room: one request after the other, or joined to
        batches. All requests of a batch count as running, so that the next batch begins at its end."""
        line, most = self._line, self.profile.joins
        while line and self._running < self._width:
            if most == 1:
                self._run(*line.popleft(), now)
                continue
            batch, size = [line.popleft()], 0
            size += batch[0][0].inferences
            while line and size + line[0][0].inferences <= most:
                batch.append(line.popleft())
                size += batch[-1][0].inferences
            took = self.profile.varied(self._nominal_of(size), self._rng)
            for bind, sent_at in batch:
                self._run(bind, sent_at, now, took)

    def _nominal_of(self, inferences: int) -> float:
        if len(self._nominal) >= KEPT_TIMES:
            self._nominal.clear()
        found = self._nominal[inferences] = self.profile.nominal(inferences, cores=self.cores, share=self.share)
        return found

    def _of_tokens(self, request: Request) -> float:
        return self.profile.of_tokens(request[5], request[6], cores=self.cores, share=self.share)

    def _shared_ended(self, now: float, argument: object) -> None:
        """Takes the end of an execution on the unit; the answer is sent."""
        if self._hop_s:
            self._kernel.at(now + self._hop_s, self._done, argument)
        else:
            self._ended(now, argument)  # type: ignore[arg-type]  # as it was handed to the unit

    def _ended(self, now: float, argument: tuple[Bind, float]) -> None:
        bind, sent_at = argument
        charged = self._flights.pop(bind, None)
        if charged is None:
            self._finished(bind, now)
            return
        ledger = self.ledger
        if type(charged) is Credit:
            kept = ledger.keeps(charged, now)
            ledger.ended(charged, now)
        else:
            kept = False
            ledger.left(charged, now)  # type: ignore[arg-type]  # `type() is` narrows nothing
        self._running -= 1
        if self._is_shared:
            del self._handles[bind]
        elif self._unit.executions > 1:  # Unit.end, written out.
            self._unit.executions -= 1
        else:
            self._unit.end(now)
        self.measure.ended(now, sent_at + self._hop_s, bind.inferences, 0.0, None, 200, False)
        if self._first_s:
            self._first_over()
        if self._line:
            self._run_next(now)
        if ledger.out:
            self.act(now)
        self.answered(self, bind, kept, sent_at, now)

    # --- deadlines ---

    def _deadline(self, now: float, argument: tuple[Bind, float]) -> None:
        """Ends a request whose deadline passes here. One that runs leaves the model server at once, or it holds its
        slot until it has ended."""
        bind, sent_at = argument
        charged = self._flights.pop(bind, None)
        if charged is None:
            return  # It has ended in time.
        self.measure.ended(now, sent_at + self._hop_s, bind.inferences, 0.0, None, DEADLINE.status, False, True)
        if argument in self._line:
            self._line.remove(argument)
            self._free(charged, now)
        elif self._goes_on:
            self._held[bind] = charged
        else:
            self._leave(bind, now)
            self._free(charged, now)
        self.act(now)
        self.expired(self, bind, sent_at, now)

    def _finished(self, bind: Bind, now: float) -> None:
        """Takes the end of an execution whose client has its 504; does nothing if the replica broke meanwhile."""
        charged = self._held.pop(bind, None)
        if charged is not None:
            self._first_over()
            self._leave(bind, now)
            self._free(charged, now)
            self.act(now)

    def _first_over(self) -> None:
        """Takes the end of the first execution: others may run beside the next."""
        if self._first_s:
            self._first_s, self._width = 0.0, self.profile.width or 1 << 30

    def _free(self, charged: Credit | int, now: float) -> None:
        """Frees a slot without an answer."""
        if isinstance(charged, Credit):
            self.ledger.ended(charged, now, aborted=True)
        else:
            self.ledger.left(charged, now)

    def _leave(self, bind: Bind, now: float) -> None:
        """Ends an execution; those that wait inside the model server follow."""
        self._running -= 1
        if self._is_shared:
            self._unit.abort(self._handles.pop(bind), now)
        else:
            self._unit.end(now)
        self._run_next(now)

    def breaks(self, now: float) -> list[Bind]:
        """Ends the replica abruptly; returns its requests."""
        lost, waited = list(self._flights), {bind for bind, _ in self._line}
        for bind in lost:
            if bind in self._handles:
                self._unit.abort(self._handles[bind], now)
            elif bind not in waited and not self._is_shared:
                self._unit.end(now)
        for bind in self._held:
            if bind in self._handles:
                self._unit.abort(self._handles[bind], now)
            else:
                self._unit.end(now)
        self._flights.clear()
        self._held.clear()
        self._handles.clear()
        self._line.clear()
        self._running = 0
        self._channel = None
        return lost

    # --- the slot channel ---

    def opened(self, message: Hello, now: float) -> None:
        """Takes the hello of the gateway's channel."""
        self._channel = self.ledger.opened(message.worker, now)
        self.act(now)

    def closed(self, now: float) -> None:
        """Takes the close of the gateway's channel."""
        if self._channel is not None:
            channel, self._channel = self._channel, None
            self.ledger.closed(channel, now)
            self.act(now)

    def heard(self, message: WorkerMessage, now: float) -> None:
        if self._channel is not None:
            self.ledger.heard(self._channel, message, now)
            self.act(now)

    def act(self, now: float) -> None:
        """Executes the ledger's commands."""
        ledger = self.ledger
        while ledger.out:
            commands, ledger.out = ledger.out, []
            for command in commands:
                if type(command) is Send:
                    if command.channel is self._channel or self._channel is None:
                        self._on_message(self, command.message)
                elif type(command) is StateIs and command.state is ReplicaState.DRAINED:
                    self._drained(self.id)
        when = ledger.next_wakeup()
        if when is not None and (when < self._wake or self._wake <= now):
            self._wake = when
            self._kernel.at(when, self._woken)

    def _woken(self, now: float, _: None) -> None:
        self._wake = float("inf")
        when = self.ledger.next_wakeup()
        if when is not None and when <= now:
            self.ledger.on_wakeup(now)
        self.act(now)

    # --- life ---

    def resized(self, cores: int) -> None:
        """Works with that many cores from the next execution on."""
        self.cores = cores
        self._nominal.clear()

    def sample(self, now: float) -> ReplicaSample:
        """Returns its queue_proxy's answer to ``GET /sample``."""
        ledger = self.ledger
        level = ReplicaLevels(state=ledger.state, limit=ledger.limit, queued=ledger.queued, phases=self.phases)
        return self.measure.sample(now, level)

    def __repr__(self) -> str:
        return f"<VirtualReplica {self.id}, {len(self._flights)} requests>"
