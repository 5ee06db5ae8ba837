"""Growth of what runs: a burst is met by idle cores of the machine first, and by new replicas once these are ready.

A replica that a burst finds alone is given as many cores again, and twice its slots, at the next round; a new replica
has to start first. The cores are given back when the new replica is ready on them (by the backend), or when the burst
is over (here). A replica whose server cannot use more cores is left alone, and the flow is as without.

- *Short* is a revision for which requests wait, and of which its decision wants more replicas than are ready or would
  want more but for a limit (maximum scale, places), or for which ``BACKLOG`` times as many wait as it has slots.
- *Calm* is a replica with borrowed cores if no request waits and its own slots are enough. What the decision wants is
  no part of that: a policy may hold its size for a minute after a burst.

Our choice, as are the constants: a single waiting request is no burst (at seven tenths of its capacity a replica with
one slot has one at every second look), and cores that are given back between two waves of a burst would be missing in
the second. A policy never sees the borrowed slots: it goes on to ask for the replicas that the load needs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.activator.state.revisions import BACKLOG
from tidegate.deploy.backend import ReplicaStatus
from tidegate.function import Batching
from tidegate.records.decision import Decision
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ReplicaState

CALM_S: Final = 10.0
"""Time without need after which borrowed cores are given back."""
CAPS: Final = frozenset({"capped_by_max", "capped_by_capacity", "capped_by_total"})
"""Reasons of a decision for fewer replicas than the load asks for."""
REFUSED_S: Final = 30.0
"""Time for which a replica whose backend refused is not asked again."""


@dataclass(frozen=True, slots=True)
class Resize:
    """An order to the backend: a replica and its cores."""

    replica: str
    cores: int
    is_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSize:
    """What each ready replica of a revision is to have. None: as it is configured, or grows."""

    cores: int | None = None
    batching: Batching | None = None


def unsized(size: ReplicaSize, here: Sequence[ReplicaStatus]) -> list[ReplicaStatus]:
    """Returns the ready replicas that do not have ``size``."""
    return [
        each
        for each in here
        if each.state is ReplicaState.READY
        and (
            (size.cores is not None and len(each.cores) != size.cores)
            or (size.batching is not None and each.batching != size.batching)
        )
    ]


class Growth:
    """Decides which replicas get cores, and which give them back. Time is an argument."""

    def __init__(self) -> None:
        self._needed_at: dict[str, float] = {}
        """Replicas with borrowed cores: when they were last needed."""
        self._refused_at: dict[str, float] = {}

    def orders(
        self,
        decision: Decision,
        here: Sequence[ReplicaStatus],
        waiting: int,
        samples: Mapping[str, ReplicaSample],
        now: float,
    ) -> list[Resize]:
        """Returns the orders of this round for one revision. ``waiting``: its requests without a replica."""
        ready = [each for each in here if each.state is ReplicaState.READY and each.cores]
        lacks = 0 if decision.is_dry_run else _lacking(decision, len(ready))
        found = []
        for each in ready:
            if not each.borrowed:
                self._needed_at.pop(each.id, None)
                continue
            sample = samples.get(each.id)
            uses_more = sample is not None and 0 < sample.limit < sample.in_flight
            if waiting or uses_more:
                self._needed_at[each.id] = now
            elif now - self._needed_at.setdefault(each.id, now) >= CALM_S:
                found.append(Resize(each.id, len(each.cores) - each.borrowed, is_more=False))
        if waiting and ready:
            slots = sum(each.limit or 1 for each in ready)
            count = lacks if lacks > 0 else len(ready) if waiting >= BACKLOG * slots else 0
            alone = [each for each in ready if not each.borrowed and not self.is_refused(each.id, now)]
            count -= sum(1 for each in ready if each.borrowed)
            found += [Resize(each.id, 2 * len(each.cores), is_more=True) for each in alone[: max(0, count)]]
        return found

    def may_grow(self, here: Sequence[ReplicaStatus], now: float) -> bool:
        """Returns whether some ready replica could be ordered more cores."""
        return any(
            each.state is ReplicaState.READY and each.cores and not each.borrowed and not self.is_refused(each.id, now)
            for each in here
        )

    def refused(self, replica: str, now: float) -> None:
        """Records that the backend refused an order for more."""
        self._refused_at = {name: at for name, at in self._refused_at.items() if now - at < REFUSED_S}
        self._refused_at[replica] = now

    def is_refused(self, replica: str, now: float) -> bool:
        """Returns whether an order for the replica was refused a moment ago."""
        return now - self._refused_at.get(replica, float("-inf")) < REFUSED_S

    def __repr__(self) -> str:
        return f"<Growth {len(self._needed_at)} replicas with borrowed cores>"


def _lacking(decision: Decision, ready: int) -> int:
    """Returns how many replicas the decision wants beyond the ready ones; at least 1 if a limit keeps it from more."""
    is_capped = any(each.code in CAPS for each in decision.reasons)
    return max((decision.desired or 0) - ready, 1 if is_capped else 0)
