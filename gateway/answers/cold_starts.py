"""Cold starts as this worker saw them: which replicas it waited for, and what their first answers are told of it."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import Final

from tidegate.gateway.counting.counters import Report
from tidegate.headers import COLD_START_MS
from tidegate.records.gateway_sample import ColdStartSeen
from tidegate.records.replica_state import ColdStartPhases, ReplicaState, known_phases
from tidegate.records.route_table import FunctionRoute, ReplicaRoute

START_S: Final = 5.0
"""A start of which nothing is known yet takes about so long. Our choice."""
KEPT_TIMES: Final = 1024
"""Functions whose last start is remembered."""


class ColdStarts:
    """States of replicas and the phases of the starts that somebody waited for."""

    __slots__ = ("_functions", "_report", "_starts", "_states", "_took", "_woken", "unanswered")

    def __init__(self, report: Report) -> None:
        self._report = report
        self._functions: dict[str, tuple[str, str]] = {}
        """(function, revision) of each replica in the table."""
        self._states: dict[str, ReplicaState] = {}
        """What each replica said last on its channel."""
        self._starts: dict[str, tuple[float, ColdStartPhases]] = {}
        """Replicas that this worker saw become ready: when, and after what."""
        self.unanswered: set[str] = set()
        """Of those, the ones that have not answered yet; always this object."""
        self._took: dict[str, float] = {}
        """How long the last start of a function took, in seconds; the newest last."""
        self._woken: set[str] = set()
        """Revisions for which this worker asked for activation, until one of their replicas was ready."""

    def apply(self, functions: dict[str, tuple[str, str]]) -> None:
        """The replicas of a new table, with their function and revision; others are forgotten."""
        self._functions = functions
        for known in (self._states, self._starts):
            for name in known.keys() - functions.keys():
                del known[name]
        self.unanswered.intersection_update(functions)

    def revision_of(self, replica: str) -> str | None:
        """The revision of a replica in the table."""
        named = self._functions.get(replica)
        return None if named is None else named[1]

    def activated(self, revision: str) -> None:
        """Activation was asked for."""
        self._woken.add(revision)

    def unlinked(self, replica: str) -> None:
        self._states.pop(replica, None)

    def reported(self, replica: str, state: ReplicaState, phases: ColdStartPhases | None, now: float) -> None:
        """Notes when a replica that this worker waited for became ready."""
        before = self._states.get(replica)
        self._states[replica] = state
        named = self._functions.get(replica)
        if state is not ReplicaState.READY or named is None:
            return
        was_woken = named[1] in self._woken
        self._woken.discard(named[1])
        if replica in self._starts or phases is None:
            return
        # A fast start may be over before its first state is heard: then the activation tells that it was one.
        if before is ReplicaState.STARTING or (before is None and was_woken):
            self._starts[replica] = (now, phases)
            self.unanswered.add(replica)
            self._took.pop(named[0], None)
            self._took[named[0]] = sum(seconds for _, seconds in known_phases(phases))
            if len(self._took) > KEPT_TIMES:
                del self._took[next(iter(self._took))]

    def is_awake(self, route: FunctionRoute) -> bool:
        """Whether some replica of it is ready, as far as the channels told."""
        return any(self._states.get(replica.id) is ReplicaState.READY for replica in _replicas(route))

    def retry_after_s(self, function: str, waited_s: float) -> int:
        """When a start that was asked for so long ago may be over, by the function's last one: whole seconds, 1 or
        more."""
        return max(1, ceil(self._took.get(function, START_S) - waited_s))

    def phase(self, function: str) -> str:
        """How far a function's start has come, as far as this worker knows: ``decide``, ``schedule``, ``load``, or
        ``queue`` once a replica is ready."""
        replicas = [replica for replica, (name, _) in self._functions.items() if name == function]
        states = {self._states.get(replica) for replica in replicas}
        if ReplicaState.READY in states:
            return "queue"
        if not replicas:
            return "decide"
        return "schedule" if states == {None} else "load"

    def status(self, route: FunctionRoute) -> str:
        """``ready``, ``starting``, ``asleep`` or ``failed``: as far as the channels told, without asking anybody."""
        if self.is_awake(route):
            return "ready"
        serving = [revision for revision in route.revisions if revision.percent > 0.0]
        if serving and all(revision.failure is not None for revision in serving):
            return "failed"
        return "starting" if any(group.replicas for revision in serving for group in revision.groups) else "asleep"

    def lines(self, replica: str, received: float, bound_at: float, told: bytes | None, now: float) -> bytes:
        """Header lines of an answer: ``Server-Timing``, and for who waited through a cold start how long."""
        lines = b"server-timing: %b\r\n" % self.server_timing(replica, received, bound_at, told, now)
        start = self._starts.get(replica)
        if start is not None and received < start[0]:
            lines += b"%b: %.3f\r\n" % (COLD_START_MS, (start[0] - received) * 1e3)
        return lines

    def server_timing(self, replica: str, received: float, bound_at: float, told: bytes | None, now: float) -> bytes:
        """``Server-Timing``: wait, the phases of a cold start that the request waited through, queue, model.

        ``told``: what the queue_proxy said, ``queue=MS,model=MS``.
        """
        wait = b"wait;dur=%.3f, " % ((bound_at - received) * 1e3)
        queue, _, model = (told or b"").partition(b",model=")
        ours = b"queue;dur=%b, model;dur=%b" % (queue.removeprefix(b"queue="), model) if told is not None else b""
        return (wait + self._phases(replica, received, now) + ours).removesuffix(b", ")

    def _phases(self, replica: str, received: float, now: float) -> bytes:
        """Records the first answer of a replica; its phases as ``Server-Timing`` for who waited through them.

        Each entry ends with a comma; empty for a replica whose start nobody saw, or a request that came later.
        """
        start = self._starts.get(replica)
        if start is None:
            return b""
        ready_at, phases = start
        waited = received < ready_at
        if replica in self.unanswered:
            self.unanswered.discard(replica)
            # First response: measured only where somebody waited, else it would be idle time.
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


def _replicas(route: FunctionRoute) -> Iterator[ReplicaRoute]:
    return (replica for revision in route.revisions for group in revision.groups for replica in group.replicas)
