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
from tidegate.deploy.environment import Host, search_path
from tidegate.deploy.local import sockets
from tidegate.deploy.local.checks import problems
from tidegate.deploy.local.cpu_quota import CpuQuotas
from tidegate.deploy.local.fixed_ports import FixedPorts
from tidegate.deploy.local.lifecycle import LocalLifecycle
from tidegate.deploy.local.logs import prune
from tidegate.deploy.local.proc import session_members, set_affinity
from tidegate.deploy.local.processes import KILL_AFTER_S, ProcessTable, Warn, warn_on_stderr
from tidegate.deploy.local.records import ProcessRecord
from tidegate.deploy.local.recovery import pair_up
from tidegate.deploy.local.registry import ReplicaRegistry
from tidegate.deploy.local.replica import Places
from tidegate.deploy.placement.ledger import (
    WHOLE,
    Accelerator,
    AcceleratorKind,
    Ledger,
    NoRoomError,
    Room,
    candidates,
    demand_of,
)
from tidegate.function import Revision
from tidegate.records.replica_state import ColdStartPhases, ReplicaState

REPORTED_WITHIN_S: Final = 2.0
"""Time for adopted queue_proxies to report their state before the first round."""
HOUSEKEEPING_S: Final = 2.0
"""Interval at which logs are trimmed and CPU quotas of ended replicas removed."""
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
        places: Places,
        host: Host,
        accelerators: Iterable[Accelerator],
        host_cores: Sequence[int],
        clock: Clock,
        rng: random.Random,
        warn: Warn = warn_on_stderr,
    ) -> None:
        self._table = table
        self._places = places
        self._host = host
        self._clock = clock
        self._warn = warn
        self._ledger = Ledger.of(accelerators, host_cores)
        self._quotas = CpuQuotas(places.run, warn)
        self._back_off = BackOff(rng)
        self._ports = FixedPorts()
        self._registry = ReplicaRegistry()
        self._tasks = TaskOwner("local backend", self._report)
        self._lifecycle = LocalLifecycle(
            registry=self._registry,
            table=table,
            places=places,
            host=host,
            ledger=self._ledger,
            quotas=self._quotas,
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
        ends = list(adoption.ends)
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
        self._tasks.spawn(self._housekeeping(), name="housekeeping")

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
        await self._tasks.close()
        self._quotas.sweep(each.id for each in registry.all())
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
        return self._lifecycle.start(replica_id, revision, accelerator, phases, share)

    async def remove(self, replica_id: str) -> None:
        """See the protocol."""
        self._lifecycle.remove(self._registry.find(replica_id))

    async def revive(self, replica_id: str) -> bool:
        """See the protocol."""
        return await self._lifecycle.revive(replica_id)

    async def resize(self, replica_id: str, *, threads: int | None = None, share: int | None = None) -> ReplicaStatus:
        """See the protocol. Cores of a CPU unit change in place; the share of a GPU is fixed when a process starts."""
        replica = self._registry.find(replica_id)
        if share is not None and share != replica.status.share:
            raise ResizeRefusedError(f"{replica_id}: a running process keeps its share of a device")
        if threads is None or threads == replica.status.threads:
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

    def room(self, revision: Revision, share: int = WHOLE) -> Mapping[str, Room]:
        """See the protocol."""
        function = revision.function
        fitting = candidates(self.devices(), function)
        found = {each.name: self._ledger.room(each.name, demand_of(function, each, share)) for each in fitting}
        if not self._ports.is_required(function):
            return found
        holder = self._registry.port_holder(function.port)
        one = 0 if holder else 1
        why = f"port {function.port} is held by {holder}" if holder else None
        return {name: Room(free=min(room.free, one), total=min(room.total, 1), why=why) for name, room in found.items()}

    def failure(self, revision_id: str) -> RevisionFailure | None:
        """See the protocol."""
        if self._back_off.failure(revision_id) is None:
            return None
        now = self._clock.now()
        for status in self.replicas():
            if status.revision == revision_id and status.state is ReplicaState.READY and status.ready_at is not None:
                self._back_off.healthy(revision_id, status.ready_at, now)
        return self._back_off.failure(revision_id)

    # --- housekeeping ---

    async def _housekeeping(self) -> None:
        while True:
            self._table.trim_logs()
            replicas = self._registry.all()
            kept = {each.id for each in replicas}
            self._quotas.sweep(kept)
            for function in {each.status.function for each in replicas}:
                prune(self._places.logs_of(function), KEPT_LOGS, kept)
            await asyncio.sleep(HOUSEKEEPING_S)

    def _report(self, name: str, error: BaseException) -> None:
        self._warn(f"{name}: {error!r}")

    def __repr__(self) -> str:
        return f"<LocalBackend {len(self._registry.present)} replicas, {len(self._registry.ending)} ending>"
