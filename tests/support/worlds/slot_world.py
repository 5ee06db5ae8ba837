"""A small world of slot ledgers and waiting rooms: workers, replicas, wires that delay, things that break.

Nothing here decides when something arrives: every message, request and answer is posted to a ``post`` under a key, in
order per key, and a test (or a simulation) lets it arrive. So one world serves timelines, random interleavings and
virtual-time simulations alike.

What is checked all along: the model never runs more than the limit, no credit is held twice, every request ends once.
"""

import random
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from enum import StrEnum

from tests.support.worlds.routes import table
from tidegate.activator.commands import Activate, Link, Refuse, Send, Unlink
from tidegate.activator.room import WaitingRoom
from tidegate.activator.state.bind import Bind
from tidegate.flow import slots
from tidegate.flow.fair_queue import TenantCharge
from tidegate.flow.messages import (
    Hello,
    ProxyMessage,
    Void,
    WorkerMessage,
    decode_proxy_line,
    decode_worker_line,
    encode_message,
)
from tidegate.flow.slots import Channel, Credit, SlotLedger, Visit
from tidegate.flow.wants import read_want
from tidegate.function import ConcurrencyUnit
from tidegate.records.gateway_sample import Activation
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import RouteTable

Action = Callable[[], None]


class End(StrEnum):
    ANSWERED = "answered"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    BROKEN = "broken"
    """The replica died, or the worker did, while it ran or waited."""


@dataclass(eq=False)
class Job:
    """One client request and what became of it."""

    number: int
    inferences: int
    worker: int
    arrived: float
    avoid: str | None = None
    again: bool = False
    """May be sent again after it was started."""
    claim: TenantCharge | None = None
    """Whose it is."""
    is_spare: bool = False
    """Takes a free slot or none, and is sent once."""
    end: End | None = None
    started: list[float] = field(default_factory=list)
    refusal: str = ""

    def ends(self, end: End) -> None:
        assert self.end is None, f"{self} ended twice, now {end}"
        self.end = end


@dataclass(eq=False)
class Flight:
    """One sending of a job to a replica."""

    job: Job
    bind: Bind
    worker: "Worker"
    life: int
    """Which life of the worker sent it."""
    credit: Credit | None = None
    units: int = 0
    aborted: bool = False
    at_model: bool = False


@dataclass(eq=False)
class Wire:
    """One slot channel."""

    worker: "Worker"
    replica: "Replica"
    number: int
    channel: Channel | None = None
    cut: bool = False


class Replica:
    def __init__(self, world: "World", name: str, limit: int, unit: ConcurrencyUnit) -> None:
        self.world = world
        self.id = name
        self.unit = unit
        self.limit = limit
        self.life = 0
        self.model = 0
        """Units in the model now, counted there."""
        self.peak = 0
        self.flights: dict[Flight, None] = {}
        self.wires: dict[Wire, None] = {}
        self.visits: dict[Visit, Job] = {}
        self.messages = 0
        self.born()

    def born(self) -> None:
        self.life += 1
        self.ledger = SlotLedger(incarnation=f"{self.id}.{self.life}", limit=self.limit, unit=self.unit, fifo_bound=8)

    def act(self) -> None:
        """Carries out what the ledger wants."""
        while self.ledger.out:
            commands, self.ledger.out = self.ledger.out, []
            for command in commands:
                if isinstance(command, slots.Send):
                    self.messages += 1
                    self.world.voids += isinstance(command.message, Void)
                    for wire in self.wires:
                        if wire.channel is command.channel:
                            self.world.down(wire, encode_message(command.message))
                elif isinstance(command, slots.Admit):
                    job = self.visits[command.visit]
                    self.world.visit_runs(self, command.visit, job)
                elif isinstance(command, slots.Reject):
                    self.visits.pop(command.visit).ends(End.REFUSED)
        self.check()

    def enter_model(self, units: int) -> None:
        self.model += units
        self.peak = max(self.peak, self.model)
        limit = self.ledger.limit
        assert not limit or self.model <= limit, f"{self.model} units run at {self.id}, limit {limit}"

    def check(self) -> None:
        if not self.world.is_checked:
            return
        ledger = self.ledger
        idle = [credit for channel in ledger.channels for credit in channel.idle.values()]
        running = sum(flight.units for flight in self.flights)
        running += sum(visit.credit.units for visit in self.visits if visit.credit is not None)
        assert ledger.running == self.model == running, f"{ledger!r}: {self.model} at the model, {running} counted"
        assert ledger._charged == running + sum(credit.units for credit in idle), repr(ledger)
        assert ledger._recalled == sum(credit.recalled_at is not None for credit in idle)
        for channel in ledger.channels:
            due = min((ledger._due(channel, credit) for credit in channel.idle.values()), default=float("inf"))
            assert ledger._first_due(channel) == due, repr(channel)
        assert ledger._wanting == sum(channel.want.amount > 0 for channel in ledger.channels)


class Worker:
    def __init__(self, world: "World", index: int) -> None:
        self.world = world
        self.index = index
        self.life = 0
        self.stopped = False
        self.jobs: dict[Job, None] = {}
        """Accepted and not ended."""
        self.flights: dict[Job, Flight] = {}
        self.wires: dict[str, Wire] = {}
        self.linking: dict[str, int] = {}
        self.activations: list[Activation] = []
        self.messages = 0
        self.order: list[Job] = []
        self.born()

    def born(self) -> None:
        self.life += 1
        self.room = WaitingRoom(rng=random.Random(self.index), worker_index=self.index)
        self.room.apply(self.world.table, self.world.now)
        self.wires = {}
        self.linking = {}
        self.jobs = {}
        self.flights = {}

    def act(self) -> None:
        """Carries out what the room wants, then ends the loop turn."""
        while self.room.out or self.room.unsettled:
            commands = self.room.out[:]
            self.room.out.clear()
            for command in commands:
                if isinstance(command, Bind):
                    assert isinstance(command.request, Job)
                    self.world.send(self, command.request, command)
                elif isinstance(command, Refuse):
                    assert isinstance(command.request, Job)
                    self.end(command.request, End.REFUSED)
                    command.request.refusal = command.kind.code
                elif isinstance(command, Send):
                    wire = self.wires.get(command.replica)
                    if wire is not None:
                        self.messages += 1
                        self.world.up(wire, encode_message(command.message))
                elif isinstance(command, Link):
                    assert command.replica not in self.linking, "linked twice"
                    self.linking[command.replica] = self.linking.get(command.replica, 0) + 1
                    self.world.connect(self, command.replica)
                elif isinstance(command, Unlink):
                    del self.linking[command.replica]
                    wire = self.wires.pop(command.replica, None)
                    if wire is not None:
                        self.world.cut_by_worker(wire)
                elif isinstance(command, Activate):
                    self.activations.append(command.activation)
            if self.room.unsettled:
                self.room.settle(self.world.now)
        self.check()

    def end(self, job: Job, end: End) -> None:
        job.ends(end)
        self.jobs.pop(job, None)
        self.flights.pop(job, None)

    def check(self) -> None:
        if not self.world.is_checked:
            return
        held = self.held()
        for replica, numbers in held.items():
            assert len(numbers) == len(set(numbers)), f"worker {self.index} holds a credit of {replica} twice"
        waiting = {job for job in self.jobs if job not in self.flights}
        assert self.room.waiting == len(waiting), f"{self.room!r}, {len(waiting)} counted"
        for revision in self.room._fleet.revisions.values():
            lanes = revision.lanes.values()
            assert revision.waiting == sum(len(lane.queue) for lane in lanes) + len(revision.reserved)
            assert all(revision.lane_of(bind) is bind.lane for lane in lanes for bind in lane.queue)
            assert all(lane in group.lanes for lane in lanes for group in lane.groups)
            for group in revision.groups:
                for view in group.replicas:
                    flying = sum(flight.bind.replica is view for flight in self.flights.values())
                    assert view.in_flight == flying, f"{view!r}, {flying} counted"
                    free = view.free
                    view.refresh()
                    assert view.free == free, f"{view!r}: {free} counted free, {view.free} are"

    def held(self) -> dict[str, list[int]]:
        """Idle credits by replica."""
        return {view.id: [number for number, _ in view.idle] for view in self.room._fleet.replicas.values()}


class World:
    """Workers and replicas of one function ``f`` with one revision ``f-00001``."""

    def __init__(
        self,
        post: Callable[[Hashable, Action], None],
        *,
        workers: int,
        limits: tuple[int, ...],
        unit: ConcurrencyUnit = ConcurrencyUnit.REQUESTS,
        route_table: RouteTable | None = None,
        serve: Callable[["World", Replica, Flight], None] | None = None,
        is_checked: bool = True,
    ) -> None:
        """``serve`` is called when a flight reaches the model; by default the answer is posted at once.

        ``is_checked``: False where so much happens that a check after each event takes too long.
        """
        self.is_checked = is_checked
        self.now = 1000.0
        self.post = post
        self.serve = serve or (lambda world, replica, flight: world.post_finish(replica, flight))
        self.table = route_table or table(
            [(f"r{index}", "cpu") for index in range(len(limits))],
            workers=workers,
            unit_inferences=unit is ConcurrencyUnit.INFERENCES,
        )
        self.replicas = {f"r{index}": Replica(self, f"r{index}", limit, unit) for index, limit in enumerate(limits)}
        self.workers = [Worker(self, index) for index in range(workers)]
        self.jobs: list[Job] = []
        self.refusals = 0
        """Sendings that were answered not-started."""
        self.voids = 0
        """Void messages that ledgers sent."""
        self._serial = 0

    def serial(self) -> int:
        self._serial += 1
        return self._serial

    # --- what a test may do ---

    def arrive(
        self,
        worker: Worker,
        inferences: int = 1,
        timeout_s: float = 60.0,
        priority: int = 5,
        avoid: str | None = None,
        again: bool = False,
        claim: TenantCharge | None = None,
    ) -> Job:
        job = Job(len(self.jobs), inferences, worker.index, self.now, avoid, again, claim)
        self.jobs.append(job)
        self.arrive_job(worker, job, timeout_s, priority)
        return job

    def arrive_job(self, worker: Worker, job: Job, timeout_s: float = 60.0, priority: int = 5) -> None:
        """The client's request reaches the worker."""
        deadline = self.now + timeout_s
        outcome = worker.room.arrive(
            job,
            "f-00001",
            job.inferences,
            deadline,
            self.now,
            100,
            priority,
            b"%d" % job.number,
            False,
            job.avoid,
            job.claim,
        )
        if isinstance(outcome, Refuse):
            job.ends(End.REFUSED)
            job.refusal = outcome.kind.code
        else:
            worker.jobs[job] = None
            if isinstance(outcome, Bind):
                self.send(worker, job, outcome)
        worker.act()

    def arrive_spare(self, worker: Worker, inferences: int = 1) -> Job:
        """Work that waits for no slot."""
        job = Job(len(self.jobs), inferences, worker.index, self.now, is_spare=True)
        self.jobs.append(job)
        bind = worker.room.take_idle_slot(job, "f-00001", inferences, self.now)
        if bind is None:
            job.ends(End.REFUSED)
        else:
            worker.jobs[job] = None
            self.send(worker, job, bind)
        worker.act()
        return job

    def cancel(self, worker: Worker, job: Job) -> None:
        """The client goes away."""
        flight = worker.flights.get(job)
        if flight is None:
            assert worker.room.withdraw(job, self.now)
        else:
            worker.room.aborted(flight.bind, self.now)
            self._abort(flight)
        worker.end(job, End.CANCELLED)
        worker.act()

    def kill_worker(self, worker: Worker) -> None:
        """SIGKILL and a new one in its place: sockets close behind what was written."""
        for flight in worker.flights.values():
            self._abort(flight)
        for wire in worker.wires.values():
            self.cut_by_worker(wire)
        for job in worker.jobs:
            job.ends(End.BROKEN)
        worker.stopped = False
        worker.born()
        worker.act()

    def crash_replica(self, replica: Replica) -> None:
        """Ends the pair of processes and starts it again under the same name."""
        for flight in replica.flights:
            flight.credit = None
            self._breaks(flight)
        replica.flights.clear()
        replica.model = 0
        for visit, job in replica.visits.items():
            job.ends(End.BROKEN)
            visit.credit = None
        replica.visits.clear()
        wires, replica.wires = replica.wires, {}
        for wire in wires:
            wire.channel = None
            self._wire_breaks(wire)
        replica.born()
        replica.act()

    def break_channel(self, wire: Wire) -> None:
        """The connection breaks and nothing else: each side sees it behind what it has yet to read."""
        self.post(("up", wire.number), lambda: self._cut_at_replica(wire))
        self._wire_breaks(wire)

    def visit(self, replica: Replica, inferences: int = 1) -> Job:
        """A request without a channel."""
        job = Job(len(self.jobs), inferences, -1, self.now)
        self.jobs.append(job)
        visit = replica.ledger.enter(job, inferences, self.now)
        if visit is None:
            job.ends(End.REFUSED)
        else:
            replica.visits[visit] = job
            if visit.credit is not None:
                self.visit_runs(replica, visit, job)
        replica.act()
        return job

    def cancel_visit(self, replica: Replica, visit: Visit) -> None:
        if visit.credit is None:
            replica.visits.pop(visit).ends(End.CANCELLED)
            replica.ledger.leave(visit, self.now)
            replica.act()

    def advance(self, seconds: float) -> None:
        """Lets time pass; each party with a due timer wakes."""
        self.now += seconds
        self.wake()

    def wake(self) -> None:
        for replica in self.replicas.values():
            when = replica.ledger.next_wakeup()
            if when is not None and when <= self.now:
                replica.ledger.on_wakeup(self.now)
                replica.act()
        for worker in self.workers:
            when = worker.room.next_wakeup()
            if not worker.stopped and when is not None and when <= self.now:
                worker.room.on_wakeup(self.now)
                worker.act()

    # --- the network ---

    def connect(self, worker: Worker, replica_id: str) -> None:
        life = worker.life

        def opens() -> None:
            if worker.life != life or replica_id not in worker.linking or replica_id in worker.wires:
                return
            replica = self.replicas[replica_id]
            wire = Wire(worker, replica, self.serial())
            replica.wires[wire] = None
            worker.wires[replica_id] = wire
            worker.room.linked(replica_id, self.now)
            self.up(wire, encode_message(Hello(f"g{worker.index}")))
            worker.act()

        self.post(("worker", worker.index, "connect", self.serial()), opens)

    def up(self, wire: Wire, line: bytes) -> None:
        message = decode_worker_line(line[:-1])
        assert message is not None
        self.post(("up", wire.number), lambda: self._to_replica(wire, message))

    def down(self, wire: Wire, line: bytes) -> None:
        message = decode_proxy_line(line[:-1])
        assert message is not None
        self.post(("worker", wire.worker.index, "down", wire.number), lambda: self._to_worker(wire, message))

    def cut_by_worker(self, wire: Wire) -> None:
        wire.cut = True
        self.post(("up", wire.number), lambda: self._cut_at_replica(wire))

    def _cut_at_replica(self, wire: Wire) -> None:
        wire.replica.wires.pop(wire, None)
        if wire.channel is not None:
            wire.replica.ledger.closed(wire.channel, self.now)
            wire.channel = None
            wire.replica.act()

    def _cut_at_worker(self, wire: Wire) -> None:
        if wire.cut:
            return
        wire.cut = True
        worker = wire.worker
        if worker.wires.get(wire.replica.id) is wire:
            del worker.wires[wire.replica.id]
            worker.room.unlinked(wire.replica.id, self.now)
            self.connect(worker, wire.replica.id)
            worker.act()

    def _wire_breaks(self, wire: Wire) -> None:
        self.post(("worker", wire.worker.index, "down", wire.number), lambda: self._cut_at_worker(wire))

    def _to_replica(self, wire: Wire, message: WorkerMessage) -> None:
        replica = wire.replica
        if wire not in replica.wires:
            return
        if isinstance(message, Hello):
            # Set before the ledger speaks: its first messages are for this wire.
            wire.channel = replica.ledger.opened(message.worker, self.now)
        elif wire.channel is not None:
            replica.ledger.heard(wire.channel, message, self.now)
        replica.act()

    def _to_worker(self, wire: Wire, message: ProxyMessage) -> None:
        if not wire.cut and wire.worker.wires.get(wire.replica.id) is wire:
            wire.worker.room.heard(wire.replica.id, message, self.now)
            wire.worker.act()

    # --- requests ---

    def send(self, worker: Worker, job: Job, bind: Bind) -> None:
        flight = Flight(job, bind, worker, worker.life)
        assert job not in worker.flights, "bound twice"
        assert bind.replica.id != job.avoid, "bound to the replica that it avoids"
        assert bind.replica.group.serves(job.inferences), "bound to a group that does not serve its size"
        assert not bind.replica.ejected_until, "bound to a replica that is ejected"
        worker.flights[job] = flight
        replica = self.replicas[bind.replica.id]
        life = replica.life
        self.post(("request", self.serial()), lambda: self._arrives(replica, life, flight))

    def _arrives(self, replica: Replica, life: int, flight: Flight) -> None:
        bind = flight.bind
        if replica.life != life:
            self._breaks(flight)
            return
        # One that was aborted meanwhile may have been written before: the proxy reads it, then the close.
        if not bind.credit:
            visit = replica.ledger.enter(flight.job, flight.job.inferences, self.now)
            flight.credit = None if visit is None else visit.credit
            if visit is not None and visit.credit is None:
                replica.ledger.leave(visit, self.now)  # There is a limit by now; a strict proxy does not queue it.
        else:
            want = dict(line.split(b": ") for line in bind.header().split(b"\r\n") if line).get(b"tidegate-want", b"")
            flight.credit = replica.ledger.start(bind.credit, flight.job.inferences, read_want(want), self.now)
        if flight.credit is None:
            self.post(("worker", flight.worker.index, "answer", self.serial()), lambda: self._refused(flight))
        else:
            flight.units = flight.credit.units
            flight.at_model = True
            replica.flights[flight] = None
            flight.job.started.append(self.now)
            replica.enter_model(flight.units)
            if flight.aborted:
                self.post(("abort", self.serial()), lambda: self._ended(replica, flight, aborted=True))
            else:
                self.serve(self, replica, flight)
        replica.act()

    def post_finish(self, replica: Replica, flight: Flight) -> None:
        self.post(("finish", self.serial()), lambda: self.finish(replica, flight))

    def finish(self, replica: Replica, flight: Flight) -> None:
        """The model answers; head and end in one."""
        if flight not in replica.flights or flight.credit is None:
            return
        keep = replica.ledger.keeps(flight.credit, self.now)
        self._ended(replica, flight, aborted=False)
        self.post(("worker", flight.worker.index, "answer", self.serial()), lambda: self._answered(flight, keep))

    def answer_head(self, replica: Replica, flight: Flight) -> None:
        """The model begins a long answer; ``finish_body`` ends it."""
        if flight not in replica.flights or flight.credit is None:
            return
        keep = replica.ledger.keeps(flight.credit, self.now)
        replica.act()
        answer = ("worker", flight.worker.index, "answer", self.serial())
        if keep:
            self.post(answer, lambda: self._keeps(flight))

        def ends() -> None:
            if flight in replica.flights and flight.credit is not None:
                self._ended(replica, flight, aborted=False)
                self.post(answer, lambda: self._answered(flight, keep))

        self.post(("finish", self.serial()), ends)

    def _ended(self, replica: Replica, flight: Flight, *, aborted: bool) -> None:
        if flight not in replica.flights or flight.credit is None:
            return
        replica.flights.pop(flight, None)
        replica.model -= flight.units
        replica.ledger.ended(flight.credit, self.now, aborted=aborted)
        replica.act()

    def _abort(self, flight: Flight) -> None:
        flight.aborted = True
        if flight.at_model:
            replica = self.replicas[flight.bind.replica.id]
            self.post(("abort", self.serial()), lambda: self._ended(replica, flight, aborted=True))

    def _keeps(self, flight: Flight) -> None:
        worker = flight.worker
        if not flight.aborted and worker.life == flight.life and worker.flights.get(flight.job) is flight:
            worker.room.keep_credit(flight.bind)

    def _answered(self, flight: Flight, keep: bool) -> None:
        worker = flight.worker
        if flight.aborted or worker.life != flight.life:
            return
        worker.end(flight.job, End.ANSWERED)
        worker.room.answered(flight.bind, keep, self.now)
        worker.act()

    def _refused(self, flight: Flight) -> None:
        worker = flight.worker
        if flight.aborted or worker.life != flight.life:
            return
        self.refusals += 1
        if flight.job.is_spare:
            worker.room.aborted(flight.bind, self.now)
            worker.end(flight.job, End.REFUSED)
        else:
            del worker.flights[flight.job]
            worker.room.refused(flight.bind, self.now)
        worker.act()

    def _breaks(self, flight: Flight) -> None:
        self.post(("worker", flight.worker.index, "answer", self.serial()), lambda: self._broken(flight))

    def _broken(self, flight: Flight) -> None:
        """The connection broke: before a byte was sent it goes elsewhere, else the client gets a failure."""
        worker = flight.worker
        if flight.aborted or worker.life != flight.life:
            return
        if flight.at_model and flight.job.again:
            del worker.flights[flight.job]
            worker.room.broke_off(flight.bind, self.now)
        elif flight.at_model or flight.job.is_spare:
            worker.room.aborted(flight.bind, self.now)
            worker.end(flight.job, End.BROKEN)
        else:
            del worker.flights[flight.job]
            worker.room.unsent(flight.bind, self.now)
        worker.act()

    def visit_runs(self, replica: Replica, visit: Visit, job: Job) -> None:
        assert visit.credit is not None
        job.started.append(self.now)
        replica.enter_model(visit.credit.units)

        def ends() -> None:
            if visit in replica.visits and visit.credit is not None:
                replica.visits.pop(visit).ends(End.ANSWERED)
                replica.model -= visit.credit.units
                replica.ledger.ended(visit.credit, self.now)
                replica.act()

        self.post(("finish", self.serial()), ends)

    # --- whole-world checks ---

    def check_credits(self) -> None:
        """No credit is held by two."""
        for replica in self.replicas.values():
            holders: dict[int, int] = {}
            for worker in self.workers:
                wire = worker.wires.get(replica.id)
                if wire is None or wire.channel is None:
                    continue
                for number in worker.held().get(replica.id, []):
                    assert number not in holders, f"credit {number} of {replica.id} held twice"
                    holders[number] = worker.index

    def check_nothing_lost(self) -> None:
        """At rest: what a ledger counts as idle lies at its worker, and every slot is somewhere."""
        for replica in self.replicas.values():
            for wire in replica.wires:
                if wire.channel is None or wire.cut:
                    continue
                there = sorted(wire.worker.held().get(replica.id, []))
                assert there == sorted(wire.channel.idle), f"{wire.channel!r}: {there} at the worker"
            if replica.ledger.state is ReplicaState.READY and replica.ledger.limit and replica.wires:
                idle = sum(credit.units for channel in replica.ledger.channels for credit in channel.idle.values())
                if replica.unit is ConcurrencyUnit.REQUESTS:
                    assert idle == replica.ledger.limit, f"{replica.ledger!r}: only {idle} units dealt"


class Mailboxes:
    """Posts that wait until a test lets them arrive, in order per key."""

    def __init__(self) -> None:
        self.boxes: dict[Hashable, deque[Action]] = {}

    def __call__(self, key: Hashable, action: Action) -> None:
        self.boxes.setdefault(key, deque()).append(action)

    def __len__(self) -> int:
        return sum(len(box) for box in self.boxes.values())

    def keys(self) -> list[Hashable]:
        return list(self.boxes)

    def deliver(self, key: Hashable) -> None:
        """The oldest post under the key arrives."""
        box = self.boxes[key]
        action = box.popleft()
        if not box:
            del self.boxes[key]
        action()

    def deliver_all(self, limit: int = 100_000) -> None:
        """Everything arrives, and what follows from it."""
        for _ in range(limit):
            if not self.boxes:
                return
            self.deliver(next(iter(self.boxes)))
        raise AssertionError("the messages never end")
