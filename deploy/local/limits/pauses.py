"""Sleeping replicas: the model server is paused (SIGSTOP), its unit is free, its memory stays.

A paused process gets no processor time. Its first request after the wake finds model, connections and caches as they
were: what a start would load is there. Only its memory is held meanwhile, and the system may need that: while less than
:data:`SPARE` of it is available, the backend ends the sleeping replica that holds the most.

A container has the memory that its control group allows.

The queue_proxy stays awake: it is drained, refuses work, and takes the order to revive.
"""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Final

from tidegate.clock import Clock
from tidegate.deploy.local.limits.cgroups import memory_bounds
from tidegate.deploy.local.proc import session_members, set_affinity, shared_once
from tidegate.deploy.local.records import ReplicaDetails
from tidegate.deploy.local.registry import ReplicaRegistry
from tidegate.deploy.local.replica import LocalReplica
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind, Ledger, NoRoomError, demand_of
from tidegate.records.replica_state import ReplicaState

SPARE: Final = 0.1
"""Part of the machine's memory that is to be available while replicas sleep. Our choice."""
MEMINFO: Final = Path("/proc/meminfo")


class Pauses:
    """Pauses and resumes the model servers of a registry's replicas, and keeps their units in the ledger."""

    def __init__(self, registry: ReplicaRegistry, ledger: Ledger, clock: Clock) -> None:
        self._registry = registry
        self._ledger = ledger
        self._clock = clock

    @staticmethod
    def refusal(replica: LocalReplica) -> str | None:
        """Returns why a replica cannot fall asleep. None if it can."""
        status = replica.status
        if status.state is not ReplicaState.READY or replica.server is None:
            return f"it is {status.state.value}"
        if replica.borrowed:
            return "it has borrowed cores"
        return None

    def pause(self, replica: LocalReplica) -> None:
        """Lets a drained replica fall asleep."""
        if replica.server is None:
            return
        while born := set(session_members(replica.server.pid)).difference(replica.paused):
            for pid in born:
                _signal(pid, replica.server.pid, signal.SIGSTOP)
            replica.paused = (*replica.paused, *born)
        now = self._clock.now()
        _record(replica, replace(replica.details, asleep_at=now))  # Before its unit is another one's.
        self._ledger.release(replica.id)
        self._note(replica, now)

    def adopt(self, replica: LocalReplica, asleep_at: float) -> None:
        """Takes over a replica that slept under an earlier control process."""
        if replica.server is not None:
            replica.paused = tuple(session_members(replica.server.pid))
        self._note(replica, asleep_at)

    def _note(self, replica: LocalReplica, asleep_at: float) -> None:
        held_bytes = shared_once(replica.paused) or 0
        self._registry.update(
            replica, state=ReplicaState.ASLEEP, asleep_at=asleep_at, held_bytes=held_bytes, cores=(), reason=None
        )

    def wake(self, replica: LocalReplica) -> bool:
        """Takes a unit for a sleeping replica and resumes its model server. Returns False if no unit is free."""
        kind, status, server = replica.accelerator, replica.status, replica.server
        if server is None:
            return False
        replica.woken_at = monotonic()
        try:
            held = self._ledger.assign(replica.id, kind.name, demand_of(replica.revision.function, kind, status.share))
        except NoRoomError:
            return False
        _record(replica, replace(replica.details, assignment=held, asleep_at=None))
        if held.cores:
            for pid in replica.paused:
                if _is_member(pid, server.pid):
                    set_affinity(pid, held.cores)
        self.resume(replica)
        self._registry.update(replica, cores=held.cores, unit=held.unit, more_units=held.more, devices=held.devices)
        return True

    def woken(self, replica: LocalReplica) -> None:
        """Records that a replica serves again."""
        if replica.status.asleep_at is not None:
            self._registry.update(replica, asleep_at=None, wake_s=monotonic() - replica.woken_at)

    @staticmethod
    def resume(replica: LocalReplica) -> None:
        """Resumes a paused model server, also to let it end."""
        paused, replica.paused = replica.paused, ()
        for pid in paused:
            _signal(pid, 0 if replica.server is None else replica.server.pid, signal.SIGCONT)

    def surplus(self) -> LocalReplica | None:
        """Returns the sleeping replica to end, as the machine is short of memory. None if it is not, or none sleeps."""
        asleep = [each for each in self._registry.present.values() if each.status.state is ReplicaState.ASLEEP]
        if not asleep or not is_short(_meminfo(), memory_bounds()):
            return None
        return max(asleep, key=lambda each: each.status.held_bytes)

    def __repr__(self) -> str:
        return f"<Pauses of {self._registry!r}>"


def refusal_on(accelerator: Accelerator) -> str | None:
    """Returns why no replica on this accelerator can fall asleep. None if one can."""
    if accelerator.kind is AcceleratorKind.NVIDIA:
        return "a paused process keeps the memory of its device, which another replica may need"
    return None


def is_short(lines: Iterable[str], bounds: Iterable[tuple[int, int]] = ()) -> bool:
    """Returns whether less than :data:`SPARE` of the memory is available: by ``/proc/meminfo``, or in a group with a
    limit (``bounds``: limit and use). False if neither says."""
    if any(limit - used < SPARE * limit for limit, used in bounds):
        return True
    known = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines) if value.strip()}
    total, available = known.get("MemTotal"), known.get("MemAvailable")
    return total is not None and available is not None and available < SPARE * total


def _meminfo() -> list[str]:
    try:
        return MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return []


def _record(replica: LocalReplica, details: ReplicaDetails) -> None:
    replica.details = details
    for child in replica.children:
        child.rewrite(replace(child.record, replica=details))


def _is_member(pid: int, leader: int) -> bool:
    """Returns whether a process still is of the session: its pid may be another process's by now."""
    try:
        return os.getsid(pid) == leader
    except ProcessLookupError:
        return False


def _signal(pid: int, leader: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # It has ended meanwhile, which its watcher reports.
        if _is_member(pid, leader):
            os.kill(pid, number)
