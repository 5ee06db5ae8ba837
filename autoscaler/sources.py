"""What is kept of each source of samples: gateway workers and replicas, as they were last heard of.

A sample that repeats a sequence number is dropped, a new incarnation starts from zero. What a sample adds to the
figures of its revision is in ``autoscaler.meters``.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from autoscaler.plausible import ReplicaCounters, is_plausible_group
from autoscaler.series import NO_GAIN, NOTHING_SEEN, Gain, Seen, gained, seen
from tidegate.records import AppSample, GroupTraffic, RevisionDemand

YOUNG_S = 5.0
"""A source first seen at a lower age than this is counted from its start, an older one from its first sample on."""
PATIENCE = 3
"""So many samples in a row that run backwards are a reset that nobody announced: the next one is a new start."""


class Waiting(NamedTuple):
    """What one gateway worker contributes to a revision: means over its last interval, levels at its end."""

    at: float
    rps: float = 0.0
    waiting_mean: float = 0.0
    waiting_inferences_mean: float = 0.0
    waiting: int = 0
    waiting_inferences: int = 0
    oldest_waiting_s: float = 0.0
    is_measured: bool = True
    """False: it has counted requests before its first sample here, so what comes now is not known before the next."""


@dataclass(slots=True)
class Told:
    """What one gateway worker has told of one revision."""

    demand: RevisionDemand | None = None
    """The last usable one."""
    latency: Seen = NOTHING_SEEN
    """Its histogram."""
    groups: tuple[GroupTraffic, ...] = ()
    """Groups when their latencies were last taken: at the revision's turn. Their window is of thirty seconds, in slots
    of five; a revision's own latencies are taken every second."""
    latencies: tuple[Seen, ...] = ()
    """Their histograms."""
    waiting: Waiting | None = None
    strikes: int = 0
    """Impossible demands in a row."""

    def begin_at(self, demand: RevisionDemand) -> None:
        """What comes is counted from this demand on."""
        self.demand, self.latency = demand, seen(demand.latency)
        self.groups, self.latencies = demand.groups, tuple([seen(each.latency) for each in demand.groups])
        self.strikes = 0

    def group_gains(self, groups: tuple[GroupTraffic, ...]) -> tuple[list[tuple[str, Gain]], tuple[Seen, ...]] | None:
        """What the histograms of ``groups`` got, by group, and what is to be kept of them; None: one cannot be true."""
        gains, kept = [], []
        known, count, others = self.groups, len(self.groups), None
        for index, group in enumerate(groups):
            # They nearly always come in the same order.
            if index < count and known[index].group == group.group:
                before = self.latencies[index]
            else:
                if others is None:
                    others = {each.group: latency for each, latency in zip(known, self.latencies, strict=True)}
                before = others.get(group.group, NOTHING_SEEN)
            found = gained(group.latency, before)
            if found is None or not is_plausible_group(group):
                return None
            gain, latency = found
            kept.append(latency)
            if gain is not NO_GAIN and gain[2]:
                gains.append((group.group, gain))
        return gains, tuple(kept)


@dataclass(slots=True)
class GatewaySource:
    incarnation: str
    sequence: int
    uptime_s: float
    at: float
    """When its last usable sample arrived."""
    told: dict[str, Told] = field(default_factory=dict)
    """By revision."""
    refused: int = 0
    """Samples in a row that were not newer than the last usable one."""


Means = tuple[int | None, int, float, float, float, float, float]
"""Of replicas together: slots of the one with fewest (0: no limit, None: not known), how many they are, mean requests
and inferences in flight, requests and inferences per second, and the mean number of them that had work."""
NO_MEANS: Means = (None, 0, 0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(slots=True)
class ReplicaSource:
    incarnation: str
    counters: ReplicaCounters
    """Of its last usable sample."""
    app: AppSample | None
    """What its model server said in it."""
    at: float
    means: Means
    interval_s: float = 0.0
    """What the means are of."""
    refused: int = 0
    """Samples in a row that were not newer than the last usable one, or ran backwards."""
    executions: Seen = NOTHING_SEEN
    """Its execution times when they were last taken."""
    executions_due: float = 0.0


def began_here(last_heard: float | None, uptime_s: float, now: float) -> bool:
    """Whether all that a process counted happened under our eyes: it is young, or began after its predecessor's last
    sample."""
    return uptime_s <= YOUNG_S if last_heard is None else uptime_s <= now - last_heard + YOUNG_S
