"""Replicas as process pairs on this machine.

A replica is a queue_proxy and a model server, both started by the control process at the same moment, each in a session
of its own. The queue_proxy is the authority over readiness and slots; this backend follows its event stream, orders
drains, ends both processes when one of them dies, and keeps the ledger of units. It never starts a replica again by
itself: that is the plan's, within the back-off kept here.

Life of a removal: the drain is ordered, the queue_proxy says ``drained``, the stop is *recorded* (until here a revive
takes it back), both processes get SIGTERM, after five seconds SIGKILL. Its room is free when both have ended.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.clock import Clock
from tidegate.deploy.backend import (
    BackendError,
    Listener,
    ReplicaStatus,
    ResizeRefusedError,
    RevisionFailure,
    UnknownReplicaError,
)
from tidegate.deploy.backoff import BackOff
from tidegate.deploy.environment import Host, is_shipped, search_path, threads_of
from tidegate.deploy.local import sockets
from tidegate.deploy.local.admin_link import LinkError, ProxyLink, ProxyState
from tidegate.deploy.local.adoption import Pair, pair_up
from tidegate.deploy.local.checks import problems
from tidegate.deploy.local.cpu_quota import Quotas
from tidegate.deploy.local.fixed_ports import FixedPorts, is_replaceable
from tidegate.deploy.local.logs import prune
from tidegate.deploy.local.proc import listening_ports, members, set_affinity
from tidegate.deploy.local.processes import (
    KILL_AFTER_S,
    Child,
    Complaint,
    Exit,
    ProcessTable,
    SpawnError,
    complain_to_stderr,
)
from tidegate.deploy.local.records import ProcessRecord, ReplicaDetails
from tidegate.deploy.local.replica import LocalReplica, Places, addresses, metrics_port, spawn_pair, story
from tidegate.deploy.placement.ledger import (
    WHOLE,
    Accelerator,
    AcceleratorKind,
    Assignment,
    Ledger,
    NoRoomError,
    Room,
    candidates,
    demand_of,
)
from tidegate.function import Batching, Revision
from tidegate.records.cold_start_phases import ColdStartPhases
from tidegate.records.replica_state import ReplicaState

START_SLACK_S: Final = 5.0
"""The queue_proxy reports a start that takes too long; this much later it is not believed to do so any more."""
HEARD_WITHIN_S: Final = 2.0
"""Time for adopted queue_proxies to tell their state before the first round."""
HOUSEKEEPING_S: Final = 2.0
KEPT_LOGS: Final = 40
"""Log files per function; older ones of stopped replicas are deleted."""


class LocalBackend:
    """See ``tidegate.deploy.backend.Backend``. Made inside the running loop; :meth:`start` first, :meth:`close`
    last."""

    def __init__(
        self,
        *,
        table: ProcessTable,
        places: Places,
        host: Host,
        accelerators: Iterable[Accelerator],
        host_cores: Sequence[int],
        clock: Clock,
        rng: random.Random,
        complain: Complaint = complain_to_stderr,
    ) -> None:
        self._table = table
        self._places = places
        self._host = host
        self._clock = clock
        self._complain = complain
        self._ledger = Ledger.of(accelerators, host_cores)
        self._quotas = Quotas(places.run, complain)
        self._back_off = BackOff(rng)
        self._replicas: dict[str, LocalReplica] = {}
        self._ending: set[LocalReplica] = set()
        self._batching: dict[tuple[str, str], Batching] = {}
        self._ports = FixedPorts()
        self._listeners: list[Listener] = []
        self._closing = False
        self._tasks = TaskOwner("local backend", self._report)

    # --- start and end ---

    async def start(self, revisions: Mapping[str, Revision], living: Sequence[ProcessRecord]) -> None:
        """Adopts the whole replicas of ``revisions`` (by id) among ``living`` (from ``ProcessTable.recover``), ends the
        rest of them, and waits up to two seconds for the adopted ones to tell their state."""
        found = pair_up(living, revisions)
        ends = list(found.ends)
        for pair in found.pairs:
            if not self._adopt(pair, revisions[pair.details.revision]):
                ends += [pair.proxy, pair.server]
        await asyncio.gather(*(self._table.end(record) for record in ends))
        for record in ends:
            self._unlink(record.replica)
        sockets.sweep(self._places.run, {address for each in self._all() for address in each.details.addresses})
        heard = [asyncio.wait_for(each.heard.wait(), HEARD_WITHIN_S) for each in self._replicas.values()]
        await asyncio.gather(*heard, return_exceptions=True)
        self._tasks.spawn(self._keep_house(), name="housekeeping")

    async def close(self, stop_replicas: bool, grace_s: float = 30.0) -> None:
        """See the protocol."""
        self._closing = True
        if stop_replicas:
            deadline = self._clock.now() + grace_s
            while self._replicas or self._ending:
                # More than once: a revive that was under way gives back what had been told to leave.
                for replica_id in tuple(self._replicas):
                    await self.remove(replica_id)
                if not await self._end_within(max(0.0, deadline - self._clock.now())):
                    break
        for replica in (*self._replicas.values(), *self._ending):
            if replica.overdue is not None:
                replica.overdue.cancel()
        await self._tasks.close()
        self._quotas.sweep(each.id for each in self._all())
        for replica in self._replicas.values():
            await replica.link.close()

    async def _end_within(self, grace_s: float) -> bool:
        """Waits for the end of all that is there now; False if something survives even being killed."""
        everyone = {*self._ending, *self._replicas.values()}
        waiting = [self._tasks.spawn(each.ended.wait(), name=f"end of {each.id}") for each in everyone]
        if not waiting:
            return True
        await asyncio.wait(waiting, timeout=grace_s)
        for each in everyone:
            if not each.ended.is_set():
                self._complain(f"{each.id} had not ended after {grace_s:g} s and is killed")
                for child in each.children:
                    child.kill()
        _, left = await asyncio.wait(waiting, timeout=KILL_AFTER_S)
        return not left

    # --- Backend ---

    async def apply(self, revision: Revision) -> None:
        """See the protocol."""
        wrong = problems(revision.function, search_path(revision.function, self._host))
        if not candidates(self.devices(), revision.function):
            wrong.append(f"none of its accelerators is here and large enough; there are {self._ledger.names}")
        if wrong:
            raise BackendError(f"{revision.id} cannot be started: " + "; ".join(wrong))

    async def create(
        self,
        replica_id: str,
        revision: Revision,
        accelerator: str,
        phases: ColdStartPhases,
        *,
        share: int = WHOLE,
    ) -> ReplicaStatus:
        """See the protocol."""
        began = self._clock.now()
        if self._closing:
            raise BackendError(f"{replica_id} is not started: everything ends")
        if replica_id in self._replicas or any(each.id == replica_id for each in self._ending):
            raise BackendError(f"{replica_id} exists")
        kind = self._ledger.kind(accelerator)
        assignment = self._ledger.assign(replica_id, accelerator, demand_of(revision.function, kind, share))
        try:
            replica = self._make(replica_id, revision, kind, assignment, began)
        except OSError as error:
            self._ledger.release(replica_id)
            raise BackendError(f"{replica_id} finds no free port: {error.strerror}") from error

        def so_far() -> ColdStartPhases:
            spent = (phases.schedule_s or 0.0) + self._clock.now() - began
            return replace(phases, schedule_s=spent, pull_s=phases.pull_s or 0.0)

        batching = self._batching.get((revision.id, accelerator), revision.function.batching)
        try:
            self._check_socket(replica)
            spawn_pair(self._table, self._places, self._host, replica, batching, so_far)
        except (SpawnError, OSError) as error:
            self._replicas[replica_id] = replica
            self._fail(replica, str(error))
            return replica.status
        if replica.server is not None:
            self._quotas.hold(replica.id, replica.server.pid, kind)
        self._enter(replica)
        self._set(replica, phases=so_far(), pids=tuple(child.pid for child in replica.children))
        return replica.status

    async def remove(self, replica_id: str) -> None:
        """See the protocol."""
        replica = self._find(replica_id)
        if replica.leaving:
            return
        replica.leaving = True
        state = replica.status.state
        if state is ReplicaState.FAILED:
            self._depart(replica)
        elif state is ReplicaState.STARTING:
            self._record_stop(replica)
            self._tasks.spawn(self._end(replica), name=f"end {replica_id}")
        else:
            if state is ReplicaState.READY:
                self._set(replica, state=ReplicaState.DRAINING)
            replica.drain = self._tasks.spawn(self._drain(replica), name=f"drain {replica_id}")

    async def revive(self, replica_id: str) -> bool:
        """See the protocol."""
        replica = self._replicas.get(replica_id)
        if self._closing or replica is None or not replica.leaving:
            return False
        # Not to be cut in half: the queue_proxy would serve while this side goes on waiting for its drain.
        task = self._tasks.spawn(self._revive(replica), name=f"revive {replica_id}")
        revived: bool = await asyncio.shield(task)
        return revived

    async def _revive(self, replica: LocalReplica) -> bool:
        async with replica.turn:
            if self._closing or not replica.is_revivable:
                return False
            try:
                await replica.link.command("revive", {"epoch": self._table.epoch})
            except LinkError as error:
                self._complain(f"{replica.id} cannot be revived: {error}")
                # It may have obeyed all the same, and would serve while this side waits for its drain.
                await self._tell_to_drain(replica)
                return False
            if replica.id not in self._replicas:
                return False  # it broke meanwhile
            replica.leaving = False
            replica.drained.clear()
            if replica.drain is not None:
                replica.drain.cancel()
            self._set(replica, state=ReplicaState.READY)
        return True

    async def resize(self, replica_id: str, *, threads: int | None = None, share: int | None = None) -> ReplicaStatus:
        """See the protocol. Cores of a CPU unit change in place; the share of a GPU is fixed when a process starts."""
        replica = self._find(replica_id)
        if share is not None and share != replica.status.share:
            raise ResizeRefusedError(f"{replica_id}: a running process keeps its share of a device")
        if threads is None or threads == replica.status.threads:
            return replica.status
        if replica.accelerator.kind is not AcceleratorKind.CPU or replica.server is None:
            raise ResizeRefusedError(f"{replica_id} on {replica.status.accelerator} has no cores to change")
        try:
            assignment = self._ledger.recore(replica_id, threads)
        except NoRoomError as error:
            raise ResizeRefusedError(str(error)) from error
        for pid in members(replica.server.pid):
            set_affinity(pid, assignment.cores)
        replica.details = replace(replica.details, assignment=assignment, threads=threads)
        for child in replica.children:
            child.rewrite(replace(child.record, replica=replica.details))
        self._set(replica, cores=assignment.cores, threads=threads)
        return replica.status

    async def configure(self, revision_id: str, accelerator: str, *, max_batch: int, batch_delay_s: float) -> int:
        """See the protocol. A model server reads its batching when it starts; running ones keep what they have."""
        self._batching[revision_id, accelerator] = Batching(max_size=max_batch, delay_s=batch_delay_s)
        return 0

    def watch(self, listener: Listener) -> Callable[[], None]:
        """See the protocol."""
        self._listeners.append(listener)
        return partial(self._listeners.remove, listener)

    def replicas(self) -> tuple[ReplicaStatus, ...]:
        """See the protocol."""
        return tuple(each.status for each in self._replicas.values())

    def devices(self) -> tuple[Accelerator, ...]:
        """See the protocol."""
        return tuple(self._ledger.accelerators.values())

    def equip(self, accelerators: Iterable[Accelerator], host_cores: Sequence[int]) -> None:
        """Other accelerators from now on: replicas go on where they are until the plan removes them."""
        self._ledger.equip(accelerators, host_cores)

    def room(self, revision: Revision, share: int = WHOLE) -> Mapping[str, Room]:
        """See the protocol."""
        function = revision.function
        fitting = candidates(self.devices(), function)
        found = {each.name: self._ledger.room(each.name, demand_of(function, each, share)) for each in fitting}
        if not self._ports.insists(function):
            return found
        holder = self._holder(function.port)
        one = 0 if holder else 1
        why = f"port {function.port} is held by {holder}" if holder else None
        return {name: Room(free=min(room.free, one), total=min(room.total, 1), why=why) for name, room in found.items()}

    def failure(self, revision_id: str) -> RevisionFailure | None:
        """See the protocol."""
        if self._back_off.failure(revision_id) is None:
            return None
        now = self._clock.now()
        for each in self._replicas.values():
            status = each.status
            if status.revision == revision_id and status.state is ReplicaState.READY and status.ready_at is not None:
                self._back_off.healthy(revision_id, status.ready_at, now)
        return self._back_off.failure(revision_id)

    # --- making and adopting ---

    def _make(
        self, replica_id: str, revision: Revision, kind: Accelerator, assignment: Assignment, now: float
    ) -> LocalReplica:
        function = revision.function
        shipped = is_shipped(function, kind)
        taken = {port for each in self._all() for port in _ports(each.details)}
        address, admin, upstream = addresses(self._places, revision, replica_id, shipped, taken)
        details = ReplicaDetails(
            id=replica_id,
            function=function.name,
            revision=revision.id,
            assignment=assignment,
            address=address,
            admin=admin,
            upstream=upstream,
            created_at=now,
            threads=threads_of(function, kind),
            shipped=shipped,
            metrics_port=metrics_port(function, shipped, taken | _port_of(upstream)),
        )
        return self._replica_of(details, revision, kind, adopted=False)

    def _replica_of(
        self, details: ReplicaDetails, revision: Revision, kind: Accelerator, *, adopted: bool
    ) -> LocalReplica:
        status = ReplicaStatus(
            id=details.id,
            function=details.function,
            revision=details.revision,
            accelerator=kind.name,
            state=ReplicaState.STARTING,
            address=details.address,
            admin=details.admin,
            created_at=details.created_at,
            cores=self._ledger.held[details.id].cores,
            unit=details.assignment.unit,
            share=details.assignment.share,
            threads=details.threads,
            emulated=kind.is_emulated,
            adopted=adopted,
        )
        return LocalReplica(status, revision, kind, details, ProxyLink(details.admin))

    def _adopt(self, pair: Pair, revision: Revision) -> bool:
        """Takes a living pair over; False if its place in the ledger is gone or a process has just ended."""
        details = pair.details
        try:
            kind = self._ledger.kind(details.assignment.accelerator)
            self._ledger.restore(details.id, details.assignment)
        except NoRoomError as error:
            self._complain(f"{details.id} is not adopted: {error}")
            return False
        proxy, server = self._table.adopt(pair.proxy), self._table.adopt(pair.server)
        if proxy is None or server is None:
            self._ledger.release(details.id)
            return False
        replica = self._replica_of(details, revision, kind, adopted=True)
        replica.proxy, replica.server = proxy, server
        self._enter(replica)
        self._set(replica, pids=(proxy.pid, server.pid))
        return True

    def _enter(self, replica: LocalReplica) -> None:
        """Both processes live: follow them."""
        self._replicas[replica.id] = replica
        for child in replica.children:
            child.on_exit(partial(self._process_ended, replica, child))
        replica.follow = self._tasks.spawn(self._follow(replica), name=f"follow {replica.id}")
        function = replica.revision.function
        limit_s = function.readiness.start_timeout_s + START_SLACK_S
        if function.warmup is not None:
            limit_s += function.timeout_s  # the warm-up request comes after the server is ready
        replica.overdue = asyncio.get_running_loop().call_later(limit_s, self._overdue, replica)

    # --- what the queue_proxy says ---

    async def _follow(self, replica: LocalReplica) -> None:
        try:
            async for told in replica.link.states():
                first = not replica.heard.is_set()
                replica.heard.set()
                self._hear(replica, told)
                if first and replica.status.adopted:
                    await self._take_over(replica, told)
        except LinkError as error:
            self._fail(replica, story(str(error), self._output(replica)))

    def _hear(self, replica: LocalReplica, told: ProxyState) -> None:
        if replica.stop_recorded:
            return
        phases = _merged(replica.status.phases, told.phases)
        limit = replica.status.limit if told.limit is None else told.limit
        match told.state:
            case ReplicaState.FAILED:
                if replica.server is not None and not replica.server.is_alive:
                    return  # how it ended is told by its process in a moment
                what = told.message or "the queue_proxy gave up on the model server"
                self._fail(replica, story(what, self._output(replica), self._port_hint(replica)))
            case ReplicaState.READY if not replica.leaving:
                replica.drained.clear()  # told before a revive, read after it
                if replica.overdue is not None:
                    replica.overdue.cancel()
                ready_at = replica.status.ready_at or self._clock.now()
                self._set(replica, state=told.state, phases=phases, limit=limit, ready_at=ready_at, reason=None)
            case ReplicaState.DRAINED | ReplicaState.STOPPED:
                self._set(replica, state=ReplicaState.DRAINED, phases=phases, limit=limit)
                replica.drained.set()
            case ReplicaState.STARTING | ReplicaState.DRAINING:
                self._set(replica, state=told.state, phases=phases, limit=limit, reason=told.message)
            case ReplicaState.READY:
                pass  # said before our drain arrived

    async def _take_over(self, replica: LocalReplica, told: ProxyState) -> None:
        """An adopted queue_proxy learns the new epoch; one that was draining goes on draining, under this backend."""
        if told.state in (ReplicaState.DRAINING, ReplicaState.DRAINED):
            await self.remove(replica.id)
        elif told.limit is not None and not replica.stop_recorded:
            try:
                await replica.link.command("limit", {"limit": told.limit, "epoch": self._table.epoch})
            except LinkError as error:
                self._complain(f"{replica.id} did not take epoch {self._table.epoch}: {error}")

    # --- failure ---

    def _process_ended(self, replica: LocalReplica, child: Child, how: Exit) -> None:
        if replica.stop_recorded:
            return
        now = self._clock.now()
        age = f"{now - replica.status.created_at:.1f} s after its start"
        if child is replica.server:
            reason = story(f"the model server {how} {age}", self._output(replica), self._held_port(replica))
        else:
            words = "\n".join(f"  {line}" for line in child.last_output())
            reason = f"its queue_proxy {how} {age}" + (f"; its last output:\n{words}" if words else "")
        self._fail(replica, reason, was_killed=how.signal is not None)

    def _overdue(self, replica: LocalReplica) -> None:
        if replica.status.state is not ReplicaState.STARTING or replica.stop_recorded:
            return
        limit_s = replica.revision.function.readiness.start_timeout_s
        what = f"not ready within its start timeout of {limit_s:g} s, and its queue_proxy said nothing"
        self._fail(replica, story(what, self._output(replica), self._port_hint(replica)))

    def _fail(self, replica: LocalReplica, reason: str, *, was_killed: bool = False) -> None:
        """The replica is broken: seen at once, ended behind the scenes, tried again when the plan says so."""
        if replica.stop_recorded:
            return
        function, output = replica.revision.function, self._output(replica)
        is_for_port = (
            replica.status.ready_at is None
            and self._holder(function.port) is not None
            and self._ports.has_failed_for_it(function, _port(replica.details), output)
        )
        if not replica.leaving and not is_for_port:  # For the port it waits as for other room, without a back-off.
            status, now = replica.status, self._clock.now()
            self._back_off.failed(status.revision, reason, now, status.ready_at, was_killed=was_killed)
        replica.stop_recorded = True
        self._set(replica, state=ReplicaState.FAILED, reason=reason)
        if replica.leaving:
            self._depart(replica)
        self._tasks.spawn(self._end(replica), name=f"end {replica.id}")

    def _output(self, replica: LocalReplica) -> list[str]:
        return replica.server.last_output() if replica.server is not None else []

    def _port_hint(self, replica: LocalReplica) -> str | None:
        """Where the server listens instead, if that is known."""
        port = _port(replica.details)
        if replica.server is None or port is None:
            return None
        others = listening_ports(replica.server.pid)
        if port in others:
            return None
        if (held := self._held_port(replica)) is not None:
            return held
        if not others:
            return f"it listens on no port, {port} was expected (PORT, {{port}})"
        return f"it listens on port {', '.join(map(str, others))}, {port} was expected (PORT, {{port}})"

    # --- leaving ---

    async def _drain(self, replica: LocalReplica) -> None:
        async with replica.turn:
            if replica.stop_recorded:
                return
            await self._tell_to_drain(replica)
        limit_s = replica.revision.function.timeout_s
        try:
            await asyncio.wait_for(replica.drained.wait(), limit_s)
        except TimeoutError:
            self._complain(f"{replica.id} still had work after the function's timeout of {limit_s:g} s")
        async with replica.turn:
            if not replica.is_revivable:
                return
            self._record_stop(replica)
        await self._end(replica)

    async def _tell_to_drain(self, replica: LocalReplica) -> None:
        try:
            await replica.link.command("drain", {"epoch": self._table.epoch})
        except LinkError as error:
            self._complain(f"{replica.id} cannot be told to drain: {error}")
            replica.drained.set()  # SIGTERM drains too

    def _record_stop(self, replica: LocalReplica) -> None:
        """The point of no return."""
        replica.stop_recorded = True
        for child in replica.children:
            child.mark_stopping()
        self._depart(replica)

    def _depart(self, replica: LocalReplica) -> None:
        """The replica is no longer there for others; its processes may still be ending."""
        if self._replicas.pop(replica.id, None) is None:
            return
        if not replica.ended.is_set():
            self._ending.add(replica)
        self._set(replica, state=ReplicaState.STOPPED)

    async def _end(self, replica: LocalReplica) -> None:
        """Ends both processes and gives the room back."""
        try:
            if replica.overdue is not None:
                replica.overdue.cancel()
            for child in replica.children:
                child.mark_stopping()
            await asyncio.gather(*(child.stop() for child in replica.children))
            if replica.children:
                await self._table.end_hidden(*replica.children)
            if replica.follow is not None and replica.follow is not asyncio.current_task():
                replica.follow.cancel()
            await replica.link.close()
        finally:
            if all(child.exit is not None for child in replica.children):
                self._ledger.release(replica.id)
                self._unlink(replica.details)
                replica.ended.set()
                self._ending.discard(replica)
        if replica.id in self._replicas:
            self._set(replica, pids=())

    # --- small things ---

    def _set(self, replica: LocalReplica, **changes: object) -> None:
        status = replace(replica.status, **changes)  # type: ignore[arg-type]  # field names of ReplicaStatus
        if status == replica.status:
            return
        replica.status = status
        for listener in tuple(self._listeners):
            listener(status)

    def _find(self, replica_id: str) -> LocalReplica:
        replica = self._replicas.get(replica_id)
        if replica is None:
            raise UnknownReplicaError(f"no replica {replica_id}")
        return replica

    def _all(self) -> tuple[LocalReplica, ...]:
        return (*self._replicas.values(), *self._ending)

    def _check_socket(self, replica: LocalReplica) -> None:
        """A function's own socket serves one replica, unless its path tells them apart."""
        for each in self._all():
            if each is not replica and each.details.upstream == replica.details.upstream:
                raise SpawnError(
                    f"{replica.details.upstream} is the socket of {each.id}; for more than one replica on a machine "
                    "write {replica} in the function's `socket`"
                )

    def _held_port(self, replica: LocalReplica) -> str | None:
        """That it did not get its fixed port, and who has it."""
        function, given = replica.revision.function, _port(replica.details)
        if replica.status.ready_at is not None or function.port in (None, given) or is_replaceable(function):
            return None
        holder = self._holder(function.port) or "another program"
        return f"port {function.port} is held by {holder}, so it was told to take {given} (PORT)"

    def _holder(self, port: int | None) -> str | None:
        """The replica that has the port."""
        return next((each.id for each in self._all() if port is not None and _port(each.details) == port), None)

    def _unlink(self, details: ReplicaDetails | None) -> None:
        if details is None:
            return
        others = {each.details.upstream for each in self._all() if each.id != details.id}
        for address in {*details.addresses} - others:
            sockets.unlink(address)

    async def _keep_house(self) -> None:
        while True:
            self._table.trim_logs()
            kept = {each.id for each in self._all()}
            self._quotas.sweep(kept)
            for function in {each.status.function for each in self._all()}:
                prune(self._places.logs_of(function), KEPT_LOGS, kept)
            await asyncio.sleep(HOUSEKEEPING_S)

    def _report(self, name: str, error: BaseException) -> None:
        self._complain(f"{name}: {error!r}")

    def __repr__(self) -> str:
        return f"<LocalBackend {len(self._replicas)} replicas, {len(self._ending)} ending>"


def _port(details: ReplicaDetails) -> int | None:
    """The model server's; None where it has a unix socket."""
    return next(iter(_port_of(details.upstream)), None)


def _port_of(upstream: str) -> set[int]:
    return set() if upstream.startswith("unix:") else {int(upstream.rpartition(":")[2])}


def _ports(details: ReplicaDetails) -> tuple[int, ...]:
    """All that its model server was told to take."""
    return tuple(port for port in (_port(details), details.metrics_port) if port is not None)


def _merged(known: ColdStartPhases, told: ColdStartPhases) -> ColdStartPhases:
    """Up to the spawn as this backend measured it (an adopted replica: as its queue_proxy was told), then as told."""
    return replace(
        told,
        decide_s=told.decide_s if known.decide_s is None else known.decide_s,
        schedule_s=told.schedule_s if known.schedule_s is None else known.schedule_s,
        pull_s=told.pull_s if known.pull_s is None else known.pull_s,
    )
