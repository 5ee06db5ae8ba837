"""Sleeping replicas: the model server is paused (SIGSTOP), its unit is free, its memory stays.

A paused process gets no processor time. Its first request after the wake finds model, connections and caches as they
were: what a start would load is there. Only its memory is held meanwhile, and the system may need that: while less than
:data:`SPARE` of it is available, the backend ends the sleeping replica that holds the most.

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
from tidegate.deploy.local.proc import session_members, set_affinity, shared_once
from tidegate.deploy.local.registry import ReplicaRegistry
from tidegate.deploy.local.replica import LocalReplica
from tidegate.deploy.placement.ledger import AcceleratorKind, Ledger, NoRoomError, demand_of
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
        if replica.accelerator.kind is AcceleratorKind.NVIDIA:
            return "a paused process keeps the memory of its device, which another replica may need"
        return None

    def pause(self, replica: LocalReplica) -> None:
        """Lets a drained replica fall asleep."""
        if replica.server is None:
            return
        replica.paused = tuple(session_members(replica.server.pid))
        for pid in replica.paused:
            _signal(pid, signal.SIGSTOP)
        self._ledger.release(replica.id)
        self._registry.update(
            replica,
            state=ReplicaState.ASLEEP,
            asleep_at=self._clock.now(),
            held_bytes=shared_once(replica.paused) or 0,
            cores=(),
            reason=None,
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
        replica.details = replace(replica.details, assignment=held)
        for child in replica.children:
            child.rewrite(replace(child.record, replica=replica.details))
        if held.cores:
            for pid in replica.paused:
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
            _signal(pid, signal.SIGCONT)

    def surplus(self) -> LocalReplica | None:
        """Returns the sleeping replica to end, as the machine is short of memory. None if it is not, or none sleeps."""
        asleep = [each for each in self._registry.present.values() if each.status.state is ReplicaState.ASLEEP]
        if not asleep or not is_short(_meminfo()):
            return None
        return max(asleep, key=lambda each: each.status.held_bytes)

    def __repr__(self) -> str:
        return f"<Pauses of {self._registry!r}>"


def is_short(lines: Iterable[str]) -> bool:
    """Returns whether ``/proc/meminfo`` shows less than :data:`SPARE` of the memory as available. False if it does not
    say."""
    known = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines) if value.strip()}
    total, available = known.get("MemTotal"), known.get("MemAvailable")
    return total is not None and available is not None and available < SPARE * total


def _meminfo() -> list[str]:
    try:
        return MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return []


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # It has ended meanwhile, which its watcher reports.
        os.kill(pid, number)
