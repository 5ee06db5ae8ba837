"""The counters of a gateway worker for one revision, fed with many finished requests at a time."""

from collections.abc import Sequence
from math import inf
from typing import Final

from tidegate.activator.room import RoomCounts
from tidegate.histogram import Histogram, bucket_index
from tidegate.records.gateway_sample import GroupTraffic, RevisionDemand

Request = tuple[int, str, float, int, int | None, int, int]
"""(number, revision, arrival time, inferences, caller of a closed loop, tokens of the prompt, tokens of the answer): a
plain tuple, since there is one per request."""
Ended = tuple[Request, float, float, str, str, str]
"""(request, time sent to a replica, end time, accelerator, replica, result): ``answered``, ``failed`` (the replica
broke) or the code of the refusal. A request that never reached a replica has neither accelerator nor replica, and its
send time is its end. Times in seconds since the beginning."""
ANSWERED: Final = "answered"


class _Group:
    __slots__ = ("failures", "inferences", "latency", "requests")

    def __init__(self) -> None:
        self.requests = self.inferences = self.failures = 0
        self.latency = Histogram()

    def add(self, ended: Sequence[Ended], target_s: float) -> int:
        """Adds finished requests; returns how many were answered within the target."""
        latencies = [each[2] - each[0][2] for each in ended if each[5] == ANSWERED]
        self.requests += len(ended)
        self.inferences += sum([each[0][3] for each in ended])
        self.failures += len(ended) - len(latencies)
        self.latency.record_all(latencies)
        if target_s == inf:
            return len(latencies)
        return sum([latency_s <= target_s for latency_s in latencies])


class Counters:
    """Cumulative counters, as in :class:`tidegate.records.gateway_sample.RevisionDemand`."""

    __slots__ = ("_groups", "_revision", "_target_s", "_within", "sizes")

    def __init__(self, revision: str, target_s: float | None) -> None:
        """``target_s`` is the SLA's latency."""
        self._revision = revision
        self._target_s = inf if target_s is None else target_s
        self._groups: dict[str, _Group] = {}
        self._within = 0
        self.sizes: dict[int, int] = {}
        """Arrivals by inferences of a request; the gateway counts them."""

    def add(self, ended: Sequence[Ended]) -> None:
        """Adds finished requests."""
        accelerators = {each[3] for each in ended}
        for accelerator in sorted(accelerators.difference(self._groups, {""})):
            self._groups[accelerator] = _Group()
        for accelerator, group in self._groups.items():
            if accelerator in accelerators:
                there = ended if len(accelerators) == 1 else [each for each in ended if each[3] == accelerator]
                self._within += group.add(there, self._target_s)

    def demand(self, room: RoomCounts | None) -> RevisionDemand | None:
        """Returns the present values as they cross the process border; None before the first request, or if no room
        knows the revision."""
        if room is None or not room.arrivals:
            return None
        groups = tuple(
            GroupTraffic(
                group=name,
                requests=group.requests,
                inferences=group.inferences,
                failures=group.failures,
                latency=group.latency.sparse(),
            )
            for name, group in self._groups.items()
        )
        return RevisionDemand(
            function=self._revision.rpartition("-")[0],
            revision=self._revision,
            arrivals=room.arrivals,
            arrivals_inferences=room.arrivals_inferences,
            refused=room.refused,
            expired=room.expired,
            cancelled=room.cancelled,
            answered=sum(group.requests - group.failures for group in self._groups.values()),
            failed=sum(group.failures for group in self._groups.values()),
            within_sla=self._within,
            missed=room.refused + room.expired,
            waiting=room.waiting,
            waiting_inferences=room.waiting_inferences,
            oldest_waiting_s=room.oldest_waiting_s,
            waiting_request_s=room.waiting_request_s,
            waiting_inference_s=room.waiting_inference_s,
            latency=groups[0].latency if len(groups) == 1 else self._whole().sparse(),
            groups=groups,
            sizes=self._sizes(),
        )

    def _sizes(self) -> tuple[tuple[int, int], ...]:
        """Returns the arrivals by bucket, as a gateway worker reports them."""
        buckets: dict[int, int] = {}
        for inferences, count in self.sizes.items():
            index = bucket_index(inferences)
            buckets[index] = buckets.get(index, 0) + count
        return tuple(sorted(buckets.items()))

    def _whole(self) -> Histogram:
        """Returns the latencies of all groups together."""
        whole = Histogram()
        for group in self._groups.values():
            whole.counts = [one + other for one, other in zip(whole.counts, group.latency.counts, strict=True)]
        return whole
