"""The life of a replica on this machine: made or adopted, followed, failed, drained, ended.

The queue_proxy is the authority over readiness and slots. Its event stream is followed from the spawn on; the end of
either process ends the other one.

A removal takes these steps:

1. the drain is ordered,
2. the queue_proxy reports ``drained``,
3. the stop is *recorded* (a revive is possible until here),
4. both processes get SIGTERM, after five seconds SIGKILL.

The unit is released when both processes have ended. A replica that is to fall asleep goes to ``limits.pauses`` in place
of the third step.
"""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Final

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.clock import Clock
from tidegate.deploy.backend import BackendError, ReplicaStatus, SleepRefusedError
from tidegate.deploy.backoff import BackOff
from tidegate.deploy.devices.health import DeviceFault
from tidegate.deploy.environment import Host, is_ours, is_shipped, threads_of
from tidegate.deploy.failures import failure_text
from tidegate.deploy.local.admin_link import LinkError, ProxyState
from tidegate.deploy.local.fixed_ports import FixedPorts, lost_port, port_hint
from tidegate.deploy.local.fork_servers import ForkServers
from tidegate.deploy.local.limits.cpu_quota import CpuQuotas
from tidegate.deploy.local.limits.memory import MemoryLimits, above_limit, amount
from tidegate.deploy.local.limits.pauses import Pauses, refusal_on
from tidegate.deploy.local.proc import listening_ports, set_affinity
from tidegate.deploy.local.processes import Child, Exit, ProcessTable, SpawnError, Warn
from tidegate.deploy.local.records import ReplicaDetails
from tidegate.deploy.local.recovery import ProcessPair
from tidegate.deploy.local.registry import ReplicaRegistry
from tidegate.deploy.local.replica import (
    LocalReplica,
    ReplicaPlaces,
    addresses,
    exit_text,
    metrics_port,
    new_replica,
    spawn_pair,
)
from tidegate.deploy.placement.ledger import Accelerator, Assignment, Ledger, NoRoomError, demand_of
from tidegate.function import Revision
from tidegate.records.replica_state import ColdStartPhases, FailureCause, ReplicaState

START_SLACK_S: Final = 5.0
"""A start that exceeds its timeout is reported by the queue_proxy. Without a report, the backend fails it this much
later."""


class LocalLifecycle:
    """Moves replicas of a registry through their states. Made inside the running loop."""

    def __init__(
        self,
        *,
        registry: ReplicaRegistry,
        table: ProcessTable,
        forks: ForkServers,
        places: ReplicaPlaces,
        host: Host,
        ledger: Ledger,
        quotas: CpuQuotas,
        memory: MemoryLimits,
        ports: FixedPorts,
        back_off: BackOff,
        clock: Clock,
        tasks: TaskOwner,
        warn: Warn,
    ) -> None:
        self._registry = registry
        self._table = table
        self._forks = forks
        self._places = places
        self._host = host
        self._ledger = ledger
        self._quotas = quotas
        self._memory = memory
        self._ports = ports
        self._back_off = back_off
        self._clock = clock
        self._tasks = tasks
        self._warn = warn
        self._pauses = Pauses(registry, ledger, clock)
        self.is_closing = False
        """Nothing is started or revived any more."""

    # --- making and adopting ---

    def start(
        self, replica_id: str, revision: Revision, accelerator: str, phases: ColdStartPhases, share: int
    ) -> ReplicaStatus:
        """Takes a unit and spawns both processes. See ``Backend.create``."""
        began = self._clock.now()
        if self.is_closing:
            raise BackendError(f"{replica_id} is not started: the backend is closing")
        if self._registry.get(replica_id) is not None:
            raise BackendError(f"{replica_id} exists")
        kind = self._ledger.kind(accelerator)
        assignment = self._ledger.assign(replica_id, accelerator, demand_of(revision.function, kind, share))
        try:
            replica = self._make(replica_id, revision, kind, assignment, began)
        except OSError as error:
            self._ledger.release(replica_id)
            raise BackendError(f"{replica_id} found no free port: {error.strerror}") from error

        def phases_so_far() -> ColdStartPhases:
            spent = (phases.schedule_s or 0.0) + self._clock.now() - began
            return replace(phases, schedule_s=spent, pull_s=phases.pull_s or 0.0)

        try:
            self._registry.check_socket(replica)
            spawn_pair(self._table, self._places, self._host, replica, phases_so_far, self._forks)
        except (SpawnError, OSError) as error:
            self._registry.present[replica_id] = replica
            self._fail(replica, str(error), FailureCause.START)
            return replica.status
        if replica.server is not None:
            self._quotas.hold(replica.id, replica.server.pid, kind)
            self._memory.hold(replica.id, replica.server.pid, replica.memory_limit_bytes)
        self._enter(replica)
        pids = tuple(child.pid for child in replica.children)
        self._registry.update(replica, phases=phases_so_far(), pids=pids)
        return replica.status

    def _make(
        self, replica_id: str, revision: Revision, kind: Accelerator, assignment: Assignment, now: float
    ) -> LocalReplica:
        function = revision.function
        shipped = is_shipped(function, kind)
        taken = self._registry.ports()
        address, admin, upstream = addresses(self._places, revision, replica_id, is_ours(function, kind), taken)
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
        )
        if details.port is not None:
            taken.add(details.port)
        details = replace(details, metrics_port=metrics_port(function, shipped, taken))
        return new_replica(details, revision, kind, self._ledger.held[replica_id].cores, adopted=False)

    def adopt(self, pair: ProcessPair, revision: Revision) -> bool:
        """Takes a living pair over. Returns False if its unit is gone or a process has just ended."""
        details, asleep_at = pair.details, pair.details.asleep_at
        if asleep_at is not None and not self._host.sleeps:
            return False
        try:
            kind = self._ledger.kind(details.assignment.accelerator)
            if asleep_at is None:  # The unit of one that sleeps may be another one's by now.
                self._ledger.restore(details.id, details.assignment)
        except NoRoomError as error:
            self._warn(f"{details.id} is not adopted: {error}")
            return False
        proxy, server = self._table.adopt(pair.proxy), self._table.adopt(pair.server)
        if proxy is None or server is None:
            self._ledger.release(details.id)
            return False
        # Its unit may have another number.
        details = replace(details, assignment=self._ledger.held.get(details.id, details.assignment))
        replica = new_replica(details, revision, kind, details.assignment.cores, adopted=True)
        replica.proxy, replica.server = proxy, server
        if asleep_at is not None:
            replica.leaving = True
        elif details.assignment.cores:
            set_affinity(server.pid, details.assignment.cores)  # It may have borrowed others.
        self._enter(replica)
        self._registry.update(replica, pids=(proxy.pid, server.pid))
        if asleep_at is not None:
            self._pauses.adopt(replica, asleep_at)
        else:
            server.resume()  # It may have been paused a moment ago: its drain goes on, and it ends.
        return True

    def _enter(self, replica: LocalReplica) -> None:
        """Registers a replica with two living processes and follows it."""
        self._registry.present[replica.id] = replica
        for child in replica.children:
            child.on_exit(partial(self._process_ended, replica, child))
        replica.follow_task = self._tasks.spawn(self._follow(replica), name=f"follow {replica.id}")
        function = replica.revision.function
        limit_s = function.readiness.start_timeout_s + START_SLACK_S
        if function.warmup is not None:
            limit_s += function.timeout_s  # The warm-up request follows readiness.
        loop = asyncio.get_running_loop()
        replica.start_timer = loop.call_later(limit_s, self._start_timed_out, replica)

    # --- following the queue_proxy ---

    async def _follow(self, replica: LocalReplica) -> None:
        try:
            async for reported in replica.link.states():
                first = not replica.reported.is_set()
                replica.reported.set()
                self._on_reported(replica, reported)
                if first and replica.status.adopted:
                    await self._take_over(replica, reported)
        except LinkError as error:
            self._fail(replica, failure_text(str(error), replica.output), FailureCause.GONE)

    def _on_reported(self, replica: LocalReplica, reported: ProxyState) -> None:
        if replica.stop_recorded:
            return
        phases = _merged(replica.status.phases, reported.phases)
        limit = replica.status.limit if reported.limit is None else reported.limit
        match reported.state:
            case ReplicaState.FAILED:
                if replica.server is not None and not replica.server.is_alive:
                    return  # The exit of its process follows in a moment, with the status.
                what = reported.message or "the queue_proxy gave up on the model server"
                hint = self._port_hint(replica) if replica.status.ready_at is None else None
                self._fail(replica, failure_text(what, replica.output, hint), reported.cause or FailureCause.GONE)
            case ReplicaState.READY if not replica.leaving:
                replica.drained.clear()  # An event from before a revive may be read after it.
                if replica.start_timer is not None:
                    replica.start_timer.cancel()
                ready_at = replica.status.ready_at or self._clock.now()
                self._registry.update(
                    replica, state=reported.state, phases=phases, limit=limit, ready_at=ready_at, reason=None
                )
            case ReplicaState.DRAINED | ReplicaState.STOPPED if replica.status.state is not ReplicaState.ASLEEP:
                self._registry.update(replica, state=ReplicaState.DRAINED, phases=phases, limit=limit)
                replica.drained.set()
            case ReplicaState.STARTING | ReplicaState.DRAINING:
                self._registry.update(
                    replica, state=reported.state, phases=phases, limit=limit, reason=reported.message
                )
            case ReplicaState.DRAINED:  # It sleeps.
                self._registry.update(replica, phases=phases, limit=limit)
            case _:
                pass  # Ready, sent before the order to drain arrived.

    async def _take_over(self, replica: LocalReplica, reported: ProxyState) -> None:
        """Sends the new epoch to an adopted queue_proxy; that of one which sleeps gets it with the order to wake. A
        drain that was under way goes on under this backend."""
        if replica.status.state is ReplicaState.ASLEEP:
            if reported.state is not ReplicaState.DRAINED:
                self.remove(replica)
        elif reported.state in (ReplicaState.DRAINING, ReplicaState.DRAINED):
            self.remove(replica)
        elif reported.limit is not None and not replica.stop_recorded:
            try:
                await replica.link.command("limit", {"limit": reported.limit, "epoch": self._table.epoch})
                await replica.link.command("boost", {"boost": 1, "epoch": self._table.epoch})
            except LinkError as error:
                self._warn(f"{replica.id} did not take epoch {self._table.epoch}: {error}")

    # --- failing ---

    def _process_ended(self, replica: LocalReplica, child: Child, how: Exit) -> None:
        if replica.stop_recorded:
            return
        age_s = self._clock.now() - replica.status.created_at
        limit_bytes = replica.memory_limit_bytes
        if child is replica.server and limit_bytes is not None and self._memory.was_exceeded(replica.id):
            cause = FailureCause.MEMORY
        else:
            cause = FailureCause.EXITED if how.signal is None else FailureCause.KILLED
        self._fail(replica, exit_text(replica, child, how, cause, age_s, self._lost_port(replica)), cause)

    async def watch_memory(self) -> None:
        """Ends the model servers that use more than ``resources.memory``, where the kernel does not."""
        limited = {
            each.server.pid: each
            for each in self._registry.present.values()
            if each.server is not None and each.memory_limit_bytes is not None and not each.stop_recorded
        }
        if not limited:
            return
        limits = {pid: each.memory_limit_bytes or 0 for pid, each in limited.items()}
        for pid, used in (await asyncio.to_thread(above_limit, limits)).items():
            replica = limited[pid]
            if replica.stop_recorded or replica.server is None or not replica.server.is_alive:
                continue
            allowed = amount(limits[pid])
            what = f"the model server used {amount(used)} of the {allowed} that resources.memory allows, and was ended"
            self._fail(replica, failure_text(what, replica.output), FailureCause.MEMORY)
            replica.server.kill()

    def leave_device(self, replica: LocalReplica, fault: DeviceFault) -> None:
        """Moves a replica away from a device that has failed: it drains, or has failed itself if the device is lost."""
        if fault.is_lost:
            self._fail(replica, f"its device is lost: {fault.reason}", FailureCause.DEVICE)
        else:
            self.remove(replica)

    def _start_timed_out(self, replica: LocalReplica) -> None:
        if replica.status.state is not ReplicaState.STARTING or replica.stop_recorded:
            return
        limit_s = replica.revision.function.readiness.start_timeout_s
        what = f"not ready within its start timeout of {limit_s:g} s, and its queue_proxy reported nothing"
        self._fail(replica, failure_text(what, replica.output, self._port_hint(replica)), FailureCause.START)

    def _fail(self, replica: LocalReplica, reason: str, cause: FailureCause) -> None:
        """Marks the replica as failed at once and ends its processes in the background. A replica that was killed, or
        gave another sign of its end, before it was ever ready has failed its start."""
        if replica.stop_recorded:
            return
        function = replica.revision.function
        is_for_port = (
            replica.status.ready_at is None
            and self._registry.port_holder(function.port) is not None
            and self._ports.has_failed_for_it(function, replica.details.port, replica.output)
        )
        # A missing port is a lack of room, and a lost device says nothing about the server: no back-off.
        if not replica.leaving and not is_for_port and cause is not FailureCause.DEVICE:
            status, now = replica.status, self._clock.now()
            was_killed = cause is FailureCause.KILLED
            self._back_off.failed(status.revision, reason, now, status.ready_at, was_killed=was_killed)
        if replica.server is not None:
            now = self._clock.now()
            replica.server.note(reason.splitlines()[0], now, as_json=self._host.json_logs)
        replica.stop_recorded = True
        if replica.status.ready_at is None:
            self._make_way(replica)
        known = FailureCause.START if replica.status.ready_at is None else cause
        self._registry.update(replica, state=ReplicaState.FAILED, reason=reason, cause=known)
        if replica.leaving:
            self._registry.withdraw(replica)
        self._tasks.spawn(self._end(replica), name=f"end {replica.id}")

    def _make_way(self, failed: LocalReplica) -> None:
        """Ends the sleeping replicas that may hold what a start lacked: a port, a socket, a lock."""
        holder = self._registry.port_holder(failed.revision.function.port)
        for each in tuple(self._registry.present.values()):
            is_near = each.status.function == failed.status.function or each.id == holder
            if is_near and each.status.state is ReplicaState.ASLEEP:
                self.remove(each)

    def _port_hint(self, replica: LocalReplica) -> str | None:
        """Returns where the server listens instead of its port. Returns None if that is unknown or it is right."""
        port = replica.details.port
        if replica.server is None or port is None:
            return None
        return port_hint(port, listening_ports(replica.server.pid), self._lost_port(replica))

    def _lost_port(self, replica: LocalReplica) -> str | None:
        """Returns a hint if the server did not get its fixed port and was never ready."""
        if replica.status.ready_at is not None:
            return None
        function = replica.revision.function
        return lost_port(function, replica.details.port, self._registry.port_holder(function.port))

    # --- leaving ---

    def remove(self, replica: LocalReplica) -> None:
        """Orders the removal of a replica. See ``Backend.remove``."""
        replica.falls_asleep = False
        state = replica.status.state
        if replica.leaving and state is not ReplicaState.ASLEEP:
            return
        replica.leaving = True
        if state is ReplicaState.FAILED:
            self._registry.withdraw(replica)
        elif state in (ReplicaState.STARTING, ReplicaState.ASLEEP):
            self._record_stop(replica)
            self._tasks.spawn(self._end(replica), name=f"end {replica.id}")
        else:
            if state is ReplicaState.READY:
                self._registry.update(replica, state=ReplicaState.DRAINING)
            replica.drain_task = self._tasks.spawn(self._drain(replica), name=f"drain {replica.id}")

    def sleep(self, replica: LocalReplica) -> None:
        """Orders a replica to drain and fall asleep. Raises SleepRefusedError."""
        why = self.sleep_refusal(replica.accelerator) or self._pauses.refusal(replica)
        if self.is_closing:
            why = "the backend is closing"
        elif self._ports.is_wanted(replica.details.port):
            why = f"a server requires its port {replica.details.port}"
        if why is not None:
            raise SleepRefusedError(f"{replica.id} does not fall asleep: {why}")
        self.remove(replica)
        replica.falls_asleep = True

    def sleep_refusal(self, accelerator: Accelerator) -> str | None:
        """Returns why no replica on this accelerator can fall asleep. None if one can."""
        return refusal_on(accelerator) if self._host.sleeps else "servers.sleep is false"

    def spare_memory(self) -> None:
        """Ends a sleeping replica where the machine is short of memory."""
        replica = self._pauses.surplus()
        if replica is not None:
            held = amount(replica.status.held_bytes)
            self._warn(f"{replica.id}, which slept with {held}, is ended: the machine is short of memory")
            self.remove(replica)

    async def revive(self, replica_id: str) -> bool:
        """Takes a drain back, or wakes a sleeping replica. See ``Backend.revive``."""
        replica = self._registry.present.get(replica_id)
        if self.is_closing or replica is None or not replica.leaving or self._ledger.is_tainted(replica_id):
            return False
        # Shielded from cancellation: half of it would leave a serving queue_proxy whose drain is still awaited.
        task = self._tasks.spawn(self._revive(replica), name=f"revive {replica_id}")
        revived: bool = await asyncio.shield(task)
        return revived

    async def _revive(self, replica: LocalReplica) -> bool:
        async with replica.stop_lock:
            if self.is_closing or not replica.is_revivable:
                return False
            if replica.status.state is ReplicaState.ASLEEP and not self._pauses.wake(replica):
                return False
            replica.falls_asleep = False
            try:
                await replica.link.command("revive", {"epoch": self._table.epoch})
            except LinkError as error:
                self._warn(f"{replica.id} cannot be revived: {error}")
                # It may have obeyed nevertheless, and would serve while its drain is awaited.
                await self._order_drain(replica)
                if replica.status.state is ReplicaState.ASLEEP:
                    self.remove(replica)
                return False
            if replica.id not in self._registry.present:
                return False  # It broke meanwhile.
            replica.leaving = False
            replica.drained.clear()
            if replica.drain_task is not None:
                replica.drain_task.cancel()
            self._registry.update(replica, state=ReplicaState.READY)
            self._pauses.woken(replica)
        return True

    async def _drain(self, replica: LocalReplica) -> None:
        async with replica.stop_lock:
            if replica.stop_recorded:
                return
            await self._order_drain(replica)
        limit_s = replica.revision.function.timeout_s
        try:
            await asyncio.wait_for(replica.drained.wait(), limit_s)
        except TimeoutError:
            self._warn(f"{replica.id} still had work after the function's timeout of {limit_s:g} s")
        async with replica.stop_lock:
            if not replica.is_revivable:
                return
            if replica.falls_asleep and replica.drained.is_set() and not replica.borrowed:
                self._pauses.pause(replica)
                return
            self._record_stop(replica)
        await self._end(replica)

    async def _order_drain(self, replica: LocalReplica) -> None:
        try:
            await replica.link.command("drain", {"epoch": self._table.epoch})
        except LinkError as error:
            self._warn(f"{replica.id} cannot be ordered to drain: {error}")
            replica.falls_asleep = False  # It may be at work.
            replica.drained.set()  # SIGTERM drains too.

    def _record_stop(self, replica: LocalReplica) -> None:
        """Records the stop: the point of no return."""
        replica.stop_recorded = True
        for child in replica.children:
            child.mark_stopping()
        self._registry.withdraw(replica)

    async def _end(self, replica: LocalReplica) -> None:
        """Ends both processes and releases the unit."""
        try:
            self._pauses.resume(replica)
            if replica.start_timer is not None:
                replica.start_timer.cancel()
            for child in replica.children:
                child.mark_stopping()
            await asyncio.gather(*(child.stop() for child in replica.children))
            if replica.children:
                await self._table.end_hidden(*replica.children)
            if replica.follow_task is not None and replica.follow_task is not asyncio.current_task():
                replica.follow_task.cancel()
            await replica.link.close()
        finally:
            if all(child.exit is not None for child in replica.children):
                self._ledger.release(replica.id)
                self._registry.unlink_sockets(replica.details)
                self._registry.ended(replica)
        if replica.id in self._registry.present:
            self._registry.update(replica, pids=())

    def __repr__(self) -> str:
        return f"<LocalLifecycle of {self._registry!r}>"


def _merged(known: ColdStartPhases, reported: ColdStartPhases) -> ColdStartPhases:
    """Merges cold-start phases: up to the spawn as measured here, the later ones as the queue_proxy reports them.

    For an adopted replica all phases are the queue_proxy's, which was given the first ones at its start.
    """
    return replace(
        reported,
        decide_s=reported.decide_s if known.decide_s is None else known.decide_s,
        schedule_s=reported.schedule_s if known.schedule_s is None else known.schedule_s,
        pull_s=reported.pull_s if known.pull_s is None else known.pull_s,
    )
