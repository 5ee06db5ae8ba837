"""Cold starts as this worker saw them: the replicas that it waited for, and the timing fields of their first
answers."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import Final

from tidegate.gateway.counting.counters import Report
from tidegate.headers import COLD_START_MS
from tidegate.records.gateway_sample import ColdStartSeen
from tidegate.records.replica_state import ColdStartPhases, ReplicaState, known_phases
from tidegate.records.route_table import FunctionRoute, ReplicaRoute, RevisionRoute

START_S: Final = 5.0
"""Assumed duration of a function's first start. Our choice."""
KEPT_TIMES: Final = 1024
"""Functions with a remembered last start."""


class ColdStarts:
    """States of replicas, and the phases of the starts that requests waited for."""

    __slots__ = ("_functions", "_report", "_starts", "_states", "_took", "_woken", "changes", "unanswered")

    def __init__(self, report: Report) -> None:
        self._report = report
        self._functions: dict[str, tuple[str, str]] = {}
        """(function, revision) of each replica in the table."""
        self._states: dict[str, ReplicaState] = {}
        """The last state that each replica reported on its channel."""
        self.changes = 0
        """Number of changes of the states so far."""
        self._starts: dict[str, tuple[float, ColdStartPhases]] = {}
        """Replicas that this worker saw become ready: the time, and the phases before."""
        self.unanswered: set[str] = set()
        """Those of ``_starts`` that have not answered yet; always this object."""
        self._took: dict[str, float] = {}
        """Duration of each function's last start in seconds; the newest last."""
        self._woken: set[str] = set()
        """Revisions that this worker requested activation for, until one of their replicas was ready."""

    def apply(self, functions: dict[str, tuple[str, str]]) -> None:
        """Takes over the replicas of a new table, with their function and revision; others are forgotten."""
        self._functions = functions
        for known in (self._states, self._starts):
            for name in known.keys() - functions.keys():
                del known[name]
        self.unanswered.intersection_update(functions)

    def revision_of(self, replica: str) -> str | None:
        """Returns the revision of a replica in the table."""
        named = self._functions.get(replica)
        return None if named is None else named[1]

    def function_of(self, replica: str) -> str | None:
        """Returns the function of a replica in the table."""
        named = self._functions.get(replica)
        return None if named is None else named[0]

    def activated(self, revision: str) -> None:
        """Records that activation was requested."""
        self._woken.add(revision)

    def unlinked(self, replica: str) -> None:
        """The channel to a replica broke or was closed: its state is not known any more."""
        self._states.pop(replica, None)
        self.changes += 1

    def reported(self, replica: str, state: ReplicaState, phases: ColdStartPhases | None, now: float) -> None:
        """Records the state of a replica, and when one that this worker waited for became ready."""
        before = self._states.get(replica)
        self._states[replica] = state
        self.changes += 1
        named = self._functions.get(replica)
        if state is not ReplicaState.READY or named is None:
            return
        was_woken = named[1] in self._woken
        self._woken.discard(named[1])
        if replica in self._starts or phases is None:
            return
        # A fast start may be over before its first state arrives: then the activation shows that it was one.
        if before is ReplicaState.STARTING or (before is None and was_woken):
            self._starts[replica] = (now, phases)
            self.unanswered.add(replica)
            self._took.pop(named[0], None)
            self._took[named[0]] = sum(seconds for _, seconds in known_phases(phases))
            if len(self._took) > KEPT_TIMES:
                del self._took[next(iter(self._took))]

    def waited_for(self, replica: str, received: float) -> tuple[float, ColdStartPhases] | None:
        """Returns when a replica became ready, and the phases before, if a request that came then waited for it."""
        start = self._starts.get(replica)
        return start if start is not None and received < start[0] else None

    def is_awake(self, route: FunctionRoute) -> bool:
        """Returns whether some replica of the function is ready, as far as the channels show."""
        return any(self._states.get(replica.id) is ReplicaState.READY for replica in _replicas(route))

    def silent(self, route: FunctionRoute) -> list[tuple[str, str]]:
        """Returns (revision, replica) for each state that the function's status depends on and that this worker does
        not know: the route table says which replicas sleep, and has no other state."""
        if self.is_awake(route):
            return []
        pairs = ((each.id, replica) for each in _serving(route) for replica in _not_asleep(each))
        return [(revision, replica) for revision, replica in pairs if replica not in self._states]

    def replica_to_ask(self, revision: RevisionRoute) -> ReplicaRoute | None:
        """Returns a replica of the revision, a ready one if the channels show one; None if it has none."""
        replicas = [replica for group in revision.groups for replica in group.replicas]
        ready = (replica for replica in replicas if self._states.get(replica.id) is ReplicaState.READY)
        return next(ready, replicas[0] if replicas else None)

    def retry_after_s(self, function: str, waited_s: float) -> int:
        """Returns when a start requested ``waited_s`` ago may be over, by the function's last start: whole seconds, at
        least 1."""
        return max(1, ceil(self._took.get(function, START_S) - waited_s))

    def phase(self, function: str) -> str:
        """Returns the phase of a function's start, as far as this worker knows.

        It is ``decide``, ``schedule``, ``load``, or ``queue`` once a replica is ready.
        """
        replicas = [replica for replica, (name, _) in self._functions.items() if name == function]
        states = {self._states.get(replica) for replica in replicas}
        if ReplicaState.READY in states:
            return "queue"
        if not replicas:
            return "decide"
        return "schedule" if states == {None} else "load"

    def status(self, route: FunctionRoute) -> str:
        """Returns ``ready``, ``starting``, ``asleep`` or ``failed``, as far as the channels show."""
        if self.is_awake(route):
            return "ready"
        serving = _serving(route)
        if serving and all(revision.failure is not None for revision in serving):
            return "failed"
        here = (replica for revision in serving for replica in _not_asleep(revision))
        is_asleep = all(self._states.get(replica) is ReplicaState.DRAINED for replica in here)
        return "asleep" if is_asleep else "starting"

    def lines(self, replica: str, received: float, bound_at: float, timing: bytes | None, now: float) -> bytes:
        """Returns header lines of an answer: ``Server-Timing``, and the time that the request waited through a cold
        start."""
        lines = b"server-timing: %b\r\n" % self.server_timing(replica, received, bound_at, timing, now)
        start = self._starts.get(replica)
        if start is not None and received < start[0]:
            lines += b"%b: %.3f\r\n" % (COLD_START_MS, (start[0] - received) * 1e3)
        return lines

    def server_timing(self, replica: str, received: float, bound_at: float, timing: bytes | None, now: float) -> bytes:
        """Returns ``Server-Timing``: wait, the phases of a cold start that the request waited through, queue, model.

        ``timing``: the field of the queue_proxy, ``queue=MS,model=MS``.
        """
        wait = b"wait;dur=%.3f, " % ((bound_at - received) * 1e3)
        queue, _, model = (timing or b"").partition(b",model=")
        ours = b"queue;dur=%b, model;dur=%b" % (queue.removeprefix(b"queue="), model) if timing is not None else b""
        return (wait + self._phases(replica, received, now) + ours).removesuffix(b", ")

    def _phases(self, replica: str, received: float, now: float) -> bytes:
        """Records the first answer of a replica. Returns its phases as ``Server-Timing`` if the request waited through
        them.

        Each entry ends with a comma. Empty for a replica with an unobserved start, or a request that came later.
        """
        start = self._starts.get(replica)
        if start is None:
            return b""
        ready_at, phases = start
        waited = received < ready_at
        if replica in self.unanswered:
            self.unanswered.discard(replica)
            # First response: measured only if a request waited, else it would be idle time.
            phases = replace(phases, first_response_s=now - ready_at if waited else None)
            self._starts[replica] = (ready_at, phases)
            named = self._functions.get(replica)
            if named is not None:
                seen = ColdStartSeen(function=named[0], revision=named[1], replica=replica, phases=phases)
                self._report.cold_start(seen)
        if not waited:
            return b""
        return b"".join(
            b"cold-%b;dur=%.3f, " % (name.replace("_", "-").encode(), seconds * 1e3)
            for name, seconds in known_phases(phases)
        )

    def __repr__(self) -> str:
        return f"<ColdStarts {len(self._starts)} seen, {len(self.unanswered)} not answered yet>"


def _serving(route: FunctionRoute) -> list[RevisionRoute]:
    return [revision for revision in route.revisions if revision.percent > 0.0]


def _replicas_of(revision: RevisionRoute) -> Iterator[ReplicaRoute]:
    return (replica for group in revision.groups for replica in group.replicas)


def _not_asleep(revision: RevisionRoute) -> Iterator[str]:
    """Yields the replicas of a revision that do not sleep, as far as the route table says."""
    for group in revision.groups:
        asleep = frozenset(group.asleep)
        yield from (replica.id for replica in group.replicas if replica.id not in asleep)


def _replicas(route: FunctionRoute) -> Iterator[ReplicaRoute]:
    return (replica for revision in route.revisions for replica in _replicas_of(revision))
