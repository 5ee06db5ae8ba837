"""The state in which a replica that is not needed is kept: ready, asleep, or gone.

Each state has the time until it serves and the part of a unit that it holds meanwhile. Over an idle time the cost of a
state is what it has held plus what its return takes: the unit while it returns, and the price of a late request where
that takes longer than the target leaves time for. All costs are in seconds of one replica.

The length of an idle time is not known before. So a replica is kept in the state that is cheapest *if it ended now*,
and goes on to the next one when that one has become cheaper: the lower envelope of the costs as lines over time. That
costs at most twice what the best choice in hindsight does (the ski rental of a machine with several states of rest:
Irani, Shukla, Gupta 2003). A policy's own hold is the first step of it, for the state *ready*; here are the others.

Where a start takes hardly longer than a wake, sleep makes no difference, and a replica ends as it always did.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.placement.ledger import Accelerator
from tidegate.function import Function
from tidegate.records.replica_state import ReplicaState, known_phases

ASSUMED_WAKE_S: Final = 0.02
"""Time of a wake before the first one was measured."""
REMEMBERED: Final = 20
"""Starts, and wakes, of which the median is taken."""
LEAST_SAVED_S: Final = 1.0
"""Replica seconds that a sleep must be able to save. Our choice: below it the states make no difference."""
LONGEST_S: Final = 6 * 3600.0
"""Longest sleep, however much a late request is worth: memory that nothing asks for all night is given back."""
READY: Final = "ready"
ASLEEP: Final = "asleep"
GONE: Final = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleState:
    """One state of a replica that is not needed."""

    name: str
    ready_s: float
    """Time until it serves again."""
    held: float
    """Part of its unit that it holds, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stakes:
    """What the delay of a request costs."""

    late_s: float = 0.0
    """Price of a late request, in seconds of one replica. 0 if the policy has none."""
    in_time_s: float | None = None
    """Time until it serves within which a request is not late. None without a latency target."""

    def of(self, ready_s: float) -> float:
        """Returns the cost of a return that takes so long."""
        is_late = self.in_time_s is not None and ready_s > self.in_time_s
        return ready_s + (self.late_s if is_late else 0.0)


def stakes_of(function: Function, late_s: float) -> Stakes:
    """Returns the stakes of a function. Half of its latency is left for the execution itself."""
    latency_s = function.sla.latency_s
    return Stakes(late_s=late_s, in_time_s=None if latency_s is None else 0.5 * latency_s)


def cheapest(states: Sequence[IdleState], idle_s: float, stakes: Stakes) -> IdleState:
    """Returns the state that costs least if the idle time ends now; of equal ones the first."""
    return min(states, key=lambda each: each.held * idle_s + stakes.of(each.ready_s))


def kept_s(state: IdleState, states: Sequence[IdleState], stakes: Stakes) -> float:
    """Returns the idle time from which on another state is cheaper than ``state``; infinity if none ever is."""
    others = [each for each in states if each.held < state.held]
    return min(
        (max(0.0, stakes.of(each.ready_s) - stakes.of(state.ready_s)) / (state.held - each.held) for each in others),
        default=float("inf"),
    )


class IdleStates:
    """Measured starts and wakes by revision and accelerator, and the choice of states. Time is an argument."""

    def __init__(self) -> None:
        self._starts: dict[tuple[str, str], deque[float]] = {}
        self._wakes: dict[tuple[str, str], deque[float]] = {}
        self._held: dict[tuple[str, str], int] = {}
        """Memory that a sleeping replica holds, by revision and accelerator."""
        self._refused: dict[tuple[str, str], str] = {}
        """Why the last replica that should have slept did not."""
        self._seen: dict[str, ReplicaStatus] = {}
        """Replicas by id, as last seen."""

    def observe(self, replicas: Iterable[ReplicaStatus]) -> None:
        """Takes all replicas, once a second: learns what their starts and wakes took."""
        before, self._seen = self._seen, {}
        for each in replicas:
            self._seen[each.id] = each
            last, key = before.get(each.id), (each.revision, each.accelerator)
            if last is each:
                continue
            if (took_s := _start_s(each)) is not None and (last is None or _start_s(last) is None):
                self._starts.setdefault(key, deque(maxlen=REMEMBERED)).append(took_s)
            if each.wake_s is not None and (last is None or last.wake_s != each.wake_s):
                self._wakes.setdefault(key, deque(maxlen=REMEMBERED)).append(each.wake_s)
            if each.state is ReplicaState.ASLEEP:
                self._held[key] = each.held_bytes
                self._refused.pop(key, None)

    def refused(self, replica: ReplicaStatus, why: str) -> None:
        """Notes that the backend does not let a replica sleep. ``why`` is for people."""
        self._refused[replica.revision, replica.accelerator] = why

    def forget(self, revision: str) -> None:
        """Drops a revision."""
        for key in [each for each in self._starts if each[0] == revision]:
            for known in (self._starts, self._wakes, self._held, self._refused):
                known.pop(key, None)

    def states(self, revision: str, kind: Accelerator, held_bytes: int | None = None) -> tuple[IdleState, ...]:
        """Returns the states of a revision's replicas on an accelerator, by what they hold; the last two alone are
        known before the first start was measured."""
        key = revision, kind.name
        starts, wakes = self._starts.get(key), self._wakes.get(key)
        memory = self._held.get(key, 0) if held_bytes is None else held_bytes
        held = min(1.0, memory / kind.memory_bytes) if kind.memory_bytes else 1.0
        return (
            IdleState(name=READY, ready_s=0.0, held=1.0),
            IdleState(name=ASLEEP, ready_s=median(wakes) if wakes else ASSUMED_WAKE_S, held=held),
            IdleState(name=GONE, ready_s=median(starts) if starts else 0.0, held=0.0),
        )

    def sleeps(self, replica: ReplicaStatus, kind: Accelerator, stakes: Stakes) -> str | None:
        """Returns why a ready replica that is not needed sleeps in place of its end, for people. None if it ends."""
        _, asleep, gone = self.states(replica.revision, kind)
        saved_s = stakes.of(gone.ready_s) - stakes.of(asleep.ready_s)
        if replica.state is not ReplicaState.READY or saved_s < LEAST_SAVED_S:
            return None
        wake = self._wake_words(replica.revision, kind, asleep)
        return f"{replica.id}: {wake}; a start takes {_time(gone.ready_s)}"

    def ends(self, replica: ReplicaStatus, kind: Accelerator, stakes: Stakes, now: float) -> str | None:
        """Returns why a sleeping replica ends now, for people. None if it sleeps on."""
        if replica.asleep_at is None:
            return None
        slept_s, most_s = now - replica.asleep_at, self.sleep_s(replica, kind, stakes)
        if slept_s < most_s:
            return None
        return f"{replica.id} slept for {_time(slept_s)}: its memory has cost what a start does"

    def sleep_s(self, replica: ReplicaStatus, kind: Accelerator, stakes: Stakes) -> float:
        """Returns how long the replica may sleep."""
        if (replica.revision, kind.name) not in self._starts:
            return LONGEST_S  # An adopted one, of which no more is known.
        states = self.states(replica.revision, kind, replica.held_bytes)
        return min(LONGEST_S, kept_s(states[1], states, stakes))

    def words(self, revision: str, kind: Accelerator, stakes: Stakes, refusal: str | None = None) -> str | None:
        """Returns the states with their figures, for people. None before the first start was measured. ``refusal``: why
        no replica sleeps on this accelerator (``Backend.sleep_refusal``)."""
        if (revision, kind.name) not in self._starts:
            return None
        states = self.states(revision, kind)
        _, asleep, gone = states
        start = f"a start takes {_time(gone.ready_s)}"
        if stakes.of(gone.ready_s) - stakes.of(asleep.ready_s) < LEAST_SAVED_S:
            return f"{start}: surplus ones end, as sleep would save less than {LEAST_SAVED_S:g} s"
        if (why := refusal or self._refused.get((revision, kind.name))) is not None:
            return f"{start}: surplus ones end ({why})"
        if (revision, kind.name) not in self._held:
            return f"{start}: surplus ones sleep"
        sleep_s = min(LONGEST_S, kept_s(asleep, states, stakes))
        wake = self._wake_words(revision, kind, asleep)
        holds = f"holds {100.0 * asleep.held:.2g} % of a place"
        return f"{start}: surplus ones sleep ({wake}, {holds}) for {_time(sleep_s)}"

    def _wake_words(self, revision: str, kind: Accelerator, asleep: IdleState) -> str:
        if (revision, kind.name) not in self._wakes:
            return f"no wake was measured yet, {_time(asleep.ready_s)} are assumed"
        return f"a wake takes {_time(asleep.ready_s)}"

    def __repr__(self) -> str:
        return f"<IdleStates of {len(self._starts)} groups>"


def _start_s(replica: ReplicaStatus) -> float | None:
    """Returns what the start of a replica took. None before it has ended. An adopted one's was measured by its
    queue_proxy."""
    if replica.adopted:
        return None if replica.phases.load_s is None else sum(spent for _, spent in known_phases(replica.phases))
    return None if replica.ready_at is None else replica.ready_at - replica.created_at


def _time(seconds: float) -> str:
    if seconds < 1.0:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 100.0:
        return f"{seconds:.3g} s"
    return f"{seconds / 60.0:.3g} min" if seconds < 6000.0 else f"{seconds / 3600.0:.3g} h"
