"""Replicas as process pairs on this machine.

A replica is a queue_proxy and a model server. The control process starts both at the same moment, each in a session of
its own. This file is the face of the Backend protocol; the transitions of a replica are in ``lifecycle.py``.

The backend keeps the ledger of units and the back-off of revisions. It never restarts a replica by itself: the plan
does, within that back-off.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.clock import Clock
from tidegate.deploy.backend import BackendError, Listener, ReplicaStatus, ResizeRefusedError, RevisionFailure
from tidegate.deploy.backoff import BackOff
from tidegate.deploy.devices.health import DeviceFault
from tidegate.deploy.environment import Host, batching_refusal, can_borrow, interpreter_of, preload_of, search_path
from tidegate.deploy.local import sockets
from tidegate.deploy.local.admin_link import LinkError, order_batching
from tidegate.deploy.local.checks import problems
from tidegate.deploy.local.fixed_ports import FixedPorts
from tidegate.deploy.local.fork_servers import ForkServer, ForkServers
from tidegate.deploy.local.lifecycle import LocalLifecycle
from tidegate.deploy.local.limits.cpu_quota import CpuQuotas
from tidegate.deploy.local.limits.memory import WATCH_EVERY_S, MemoryLimits
from tidegate.deploy.local.logs import prune
from tidegate.deploy.local.proc import session_members, set_affinity
from tidegate.deploy.local.processes import KILL_AFTER_S, ProcessTable, Warn, warn_on_stderr
from tidegate.deploy.local.records import ProcessKind, ProcessRecord
from tidegate.deploy.local.recovery import pair_up
from tidegate.deploy.local.registry import ReplicaRegistry
from tidegate.deploy.local.replica import LocalReplica, ReplicaPlaces
from tidegate.deploy.placement.interference import Interference
from tidegate.deploy.placement.ledger import (
    WHOLE,
    Accelerator,
    AcceleratorKind,
    Ledger,
    NoRoomError,
    Room,
    candidates,
)
from tidegate.deploy.placement.strategies import BEST_FIT, StrategyRow
from tidegate.function import Batching, Revision
from tidegate.records.replica_state import ColdStartPhases, ReplicaState

REPORTED_WITHIN_S: Final = 2.0
"""Time for adopted queue_proxies to report their state before the first round."""
HOUSEKEEPING_S: Final = 2.0
"""Interval at which old logs and CPU quotas of ended replicas are removed."""
TRIM_EVERY_S: Final = 0.1
"""Interval at which logs are trimmed: a process that prints without end writes some 40 MB in this time."""
KEPT_LOGS: Final = 40
"""Log files per function. Older files of stopped replicas are deleted."""


class LocalBackend:
    """Implements ``tidegate.deploy.backend.Backend``.

    Made inside the running loop; :meth:`start` comes first, :meth:`close` last.
    """

    def __init__(
        self,
        *,
        table: ProcessTable,
        places: ReplicaPlaces,
        host: Host,
        accelerators: Iterable[Accelerator],
        host_cores: Sequence[int],
        clock: Clock,
        rng: random.Random,
        strategy: StrategyRow = BEST_FIT,
        interference: Interference | None = None,
        warn: Warn = warn_on_stderr,
    ) -> None:
        self._table = table
        self._places = places
        self._host = host
        self._clock = clock
        self._warn = warn
        self._ledger = Ledger.of(accelerators, host_cores, strategy, interference)
        self._quotas = CpuQuotas(places.run, warn)
        self._memory = MemoryLimits(places.run)
        self._back_off = BackOff(rng)
        self._ports = FixedPorts()
        self._registry = ReplicaRegistry()
        self._tasks = TaskOwner("local backend", self._report)
        self._forks = ForkServers(table, host, places.logs, warn)
        self._lifecycle = LocalLifecycle(
            registry=self._registry,
            table=table,
            forks=self._forks,
            places=places,
            host=host,
            ledger=self._ledger,
            quotas=self._quotas,
            memory=self._memory,
            ports=self._ports,
            back_off=self._back_off,
            clock=clock,
            tasks=self._tasks,
            warn=warn,
        )

    # --- start and end ---

    async def start(self, revisions: Mapping[str, Revision], living: Sequence[ProcessRecord]) -> None:
        """Adopts replicas of an earlier control process and ends the processes that are not adopted.

        ``living`` comes from ``ProcessTable.recover``, ``revisions`` are the known ones by id. Waits up to two seconds
        for the states of the adopted replicas.
        """
        adoption = pair_up(living, revisions)
        ends = [*adoption.ends, *(record for record in living if record.kind is ProcessKind.FORK_SERVER)]
        for pair in adoption.pairs:
            if not self._lifecycle.adopt(pair, revisions[pair.details.revision]):
                ends += [pair.proxy, pair.server]
        await asyncio.gather(*(self._table.end(record) for record in ends))
        for record in ends:
            if record.replica is not None:
                self._registry.unlink_sockets(record.replica)
        in_use = {address for each in self._registry.all() for address in each.details.addresses}
        sockets.sweep(self._places.run, in_use)
        reports = [
            asyncio.wait_for(each.reported.wait(), REPORTED_WITHIN_S) for each in self._registry.present.values()
        ]
        await asyncio.gather(*reports, return_exceptions=True)
        self._registry.watch(self._on_status)
        self._tasks.spawn(self._housekeeping(), name="housekeeping")
        self._tasks.spawn(self._trim_logs(), name="logs")
        self._tasks.spawn(self._watch_memory(), name="memory")
        if self._host.fork_servers and not self._host.queue_proxy:
            self._forks.prepare("queue_proxy", self._host.python)
        for revision in revisions.values():
            self._prepare(revision)

    async def close(self, stop_replicas: bool, grace_s: float = 30.0) -> None:
        """See the protocol."""
        self._lifecycle.is_closing = True
        registry = self._registry
        if stop_replicas:
            deadline = self._clock.now() + grace_s
            while registry.present or registry.ending:
                # In a loop: a revive that was under way brings back a replica that was leaving.
                for replica in tuple(registry.present.values()):
                    self._lifecycle.remove(replica)
                if not await self._end_within(max(0.0, deadline - self._clock.now())):
                    break
        for replica in registry.all():
            if replica.start_timer is not None:
                replica.start_timer.cancel()
        await self._forks.close()
        await self._tasks.close()
        left = {each.id for each in registry.all()}
        self._quotas.sweep(left)
        self._memory.sweep(left)
        for replica in registry.present.values():
            await replica.link.close()

    async def _end_within(self, grace_s: float) -> bool:
        """Waits for the end of every replica, and kills those that outlive the grace period.

        Returns False if a process survives SIGKILL.
        """
        replicas = self._registry.all()
        waiting = [self._tasks.spawn(each.ended.wait(), name=f"end of {each.id}") for each in replicas]
        if not waiting:
            return True
        await asyncio.wait(waiting, timeout=grace_s)
        for each in replicas:
            if not each.ended.is_set():
                self._warn(f"{each.id} had not ended after {grace_s:g} s and is killed")
                for child in each.children:
                    child.kill()
        _, left = await asyncio.wait(waiting, timeout=KILL_AFTER_S)
        return not left

    # --- Backend ---

    @property
    def runs_images(self) -> bool:
        """See the protocol."""
        return False

    async def apply(self, revision: Revision) -> None:
        """See the protocol."""
        wrong = problems(revision.function, search_path(revision.function, self._host))
        if not candidates(self.devices(), revision.function):
            wrong.append(f"none of its accelerators is here and large enough; there are {self._ledger.names}")
        if wrong:
            raise BackendError(f"{revision.id} cannot be started: " + "; ".join(wrong))
        self._prepare(revision)

    def _prepare(self, revision: Revision) -> None:
        """Starts the fork servers that replicas of the revision can come from."""
        function, host = revision.function, self._host
        for kind in candidates(self.devices(), function):
            preload = preload_of(function, kind, host)
            if preload is not None:
                self._forks.prepare(preload, interpreter_of(function, kind, host))

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
        kind = self._ledger.accelerators.get(accelerator)
        preload = None if kind is None else preload_of(revision.function, kind, self._host)
        if kind is not None and preload is not None:
            await self._forks.settle(preload, interpreter_of(revision.function, kind, self._host))
            phases = replace(phases, schedule_s=(phases.schedule_s or 0.0) + self._clock.now() - began)
        return self._lifecycle.start(replica_id, revision, accelerator, phases, share)

    async def remove(self, replica_id: str) -> None:
        """See the protocol."""
        self._lifecycle.remove(self._registry.find(replica_id))

    async def sleep(self, replica_id: str) -> None:
        """See the protocol."""
        self._lifecycle.sleep(self._registry.find(replica_id))

    def sleep_refusal(self, accelerator: Accelerator) -> str | None:
        """See the protocol."""
        return self._lifecycle.sleep_refusal(accelerator)

    async def revive(self, replica_id: str) -> bool:
        """See the protocol."""
        return await self._lifecycle.revive(replica_id)

    async def resize(self, replica_id: str, *, threads: int | None = None, share: int | None = None) -> ReplicaStatus:
        """See the protocol. Cores of a CPU unit change in place; the share of a GPU is fixed when a process starts."""
        replica = self._registry.find(replica_id)
        unit = replica.accelerator.cores
        if threads is not None and unit and replica.server is not None and (threads > unit or replica.borrowed):
            await self._borrow(replica, max(0, threads - unit))
            threads = min(threads, unit)
        if share is not None and share != replica.status.share:
            raise ResizeRefusedError(f"{replica_id}: a running process keeps its share of a device")
        has = len(replica.status.cores) - replica.status.borrowed
        if threads is None or (threads == replica.status.threads and has in (0, threads)):
            return replica.status
        if replica.accelerator.kind is not AcceleratorKind.CPU or replica.server is None:
            raise ResizeRefusedError(f"{replica_id} on {replica.status.accelerator} has no cores to change")
        try:
            assignment = self._ledger.reassign_cores(replica_id, threads)
        except NoRoomError as error:
            raise ResizeRefusedError(str(error)) from error
        for pid in session_members(replica.server.pid):
            set_affinity(pid, assignment.cores)
        replica.details = replace(replica.details, assignment=assignment, threads=threads)
        for child in replica.children:
            child.rewrite(replace(child.record, replica=replica.details))
        self._registry.update(replica, cores=assignment.cores, threads=threads)
        return replica.status

    async def configure(self, replica_id: str, batching: Batching) -> ReplicaStatus:
        """See the protocol."""
        replica = self._registry.find(replica_id)
        why = batching_refusal(replica.revision.function, replica.accelerator, batching)
        if why is None and replica.status.state is not ReplicaState.READY:
            why = f"it is {replica.status.state.value}"
        if why is not None:
            raise ResizeRefusedError(f"{replica_id}: {why}")
        try:
            await order_batching(replica.details.upstream, batching, self._table.epoch)
        except LinkError as error:
            raise ResizeRefusedError(f"{replica_id}: {error}") from error
        self._registry.update(replica, batching=batching)
        return replica.status

    async def _borrow(self, replica: LocalReplica, count: int) -> None:
        """Gives a model server ``count`` cores beyond its own; 0 takes them back. Raises ResizeRefusedError."""
        unit, server = replica.accelerator.cores, replica.server
        if count % unit or not can_borrow(replica.revision.function, replica.accelerator) or server is None:
            raise ResizeRefusedError(f"{replica.id} cannot use {unit + count} cores; a unit has {unit}")
        if count == len(replica.borrowed):
            return
        try:
            others = (each.borrowed for each in self._registry.present.values() if each is not replica)
            more = self._ledger.idle_cores(count, without={core for cores in others for core in cores})
        except NoRoomError as error:
            raise ResizeRefusedError(f"{replica.id} cannot borrow cores: {error}") from error
        own = self._ledger.held[replica.id].cores
        replica.borrowed = more
        if not more:  # Fewer slots first: what runs ends on the cores that it has.
            await self._order_boost(replica, 1)
        if replica.borrowed == more:
            for pid in session_members(server.pid):
                set_affinity(pid, (*own, *more))
            self._registry.update(replica, cores=(*own, *more), borrowed=count)
        if more and replica.borrowed == more:
            await self._order_boost(replica, 1 + count // unit)

    async def _order_boost(self, replica: LocalReplica, boost: int) -> None:
        try:
            await replica.link.command("boost", {"boost": boost, "epoch": self._table.epoch})
        except LinkError as error:
            self._warn(f"{replica.id} does not change the multiple of its slots to {boost}: {error}")

    def _on_status(self, status: ReplicaStatus) -> None:
        """Takes borrowed cores back that another revision's replica gets, or on which one of the same is ready."""
        for each in tuple(self._registry.present.values()):
            if each.id == status.id or not set(each.borrowed).intersection(status.cores):
                continue
            if status.borrowed == 0 and (status.state is ReplicaState.READY or status.revision != each.status.revision):
                self._tasks.spawn(self._borrow(each, 0), name=f"cores of {each.id}")

    def watch(self, listener: Listener) -> Callable[[], None]:
        """See the protocol."""
        return self._registry.watch(listener)

    def replicas(self) -> tuple[ReplicaStatus, ...]:
        """See the protocol."""
        return tuple(each.status for each in self._registry.present.values())

    def devices(self) -> tuple[Accelerator, ...]:
        """See the protocol."""
        return tuple(self._ledger.accelerators.values())

    def set_accelerators(self, accelerators: Iterable[Accelerator], host_cores: Sequence[int]) -> None:
        """Replaces the accelerators. Replicas stay where they are until the plan removes them."""
        self._ledger.set_accelerators(accelerators, host_cores)
        for replica in tuple(self._registry.present.values()):
            held = self._ledger.held.get(replica.id)
            if held is not None:  # Its unit may have another number.
                self._registry.update(replica, unit=held.unit, more_units=held.more)

    def set_device_faults(self, faults: Mapping[str, DeviceFault]) -> None:
        """Takes the devices that have failed, by UUID. Nothing is placed on them, and their replicas leave."""
        self._ledger.set_failed(faults)
        for replica in tuple(self._registry.present.values()):
            held = self._ledger.held.get(replica.id)
            found = [faults[uuid] for uuid in (held.devices if held is not None else ()) if uuid in faults]
            if found:
                self._lifecycle.leave_device(replica, max(found, key=lambda fault: fault.is_lost))

    def room(self, revision: Revision, share: int = WHOLE) -> Mapping[str, Room]:
        """See the protocol."""
        function = revision.function
        found = self._ledger.rooms(function, share)
        if not self._ports.is_required(function):
            return found
        holder = self._registry.port_holder(function.port)
        one = 0 if holder else 1
        why = f"port {function.port} is held by {holder}" if holder else None
        return {name: Room(free=min(room.free, one), total=min(room.total, 1), why=why) for name, room in found.items()}

    def failure(self, revision_id: str) -> RevisionFailure | None:
        """See the protocol."""
        return self._back_off.failure_beside(revision_id, self.replicas, self._clock.now())

    @property
    def fork_servers(self) -> Mapping[str, ForkServer]:
        """The fork servers by name, for measurements."""
        return self._forks.servers

    # --- housekeeping ---

    async def _housekeeping(self) -> None:
        while True:
            replicas = self._registry.all()
            kept = {each.id for each in replicas}
            self._quotas.sweep(kept)
            self._memory.sweep(kept)
            for function in {each.status.function for each in replicas}:
                prune(self._places.logs_of(function), KEPT_LOGS, kept)
            await asyncio.sleep(HOUSEKEEPING_S)

    async def _trim_logs(self) -> None:
        while True:
            self._table.trim_logs()
            await asyncio.sleep(TRIM_EVERY_S)

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            await self._lifecycle.watch_memory()
            self._lifecycle.spare_memory()

    def _report(self, name: str, error: BaseException) -> None:
        self._warn(f"{name}: {error!r}")

    def __repr__(self) -> str:
        return f"<LocalBackend {len(self._registry.present)} replicas, {len(self._registry.ending)} ending>"
