"""Outputs of a simulation, passed to a sink as they arise: memory does not grow with the trace unless a sink keeps
all."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tidegate.histogram import Histogram
from tidegate.loadgen.simulator.counters import ANSWERED, Ended
from tidegate.loadgen.simulator.devices import Busy
from tidegate.loadgen.simulator.lease import Lease
from tidegate.records.decision import Decision


class FunctionSecond(NamedTuple):
    """One function at the end of one second."""

    at_s: float
    function: str
    wanted: int
    """Desired replicas of the last decision that was not a hold."""
    ready: int
    starting: int
    draining: int
    waiting: int


class Start(NamedTuple):
    """A replica that became ready, or was ready at the beginning."""

    replica: str
    function: str
    accelerator: str
    asked_s: float
    """Time at which it was requested."""
    ready_s: float


class Sink(Protocol):
    """Receives the events of a run, at least once a second and in order of time."""

    def requests(self, ended: Sequence[Ended]) -> None:
        """Takes the requests that ended since the last call."""
        ...

    def busy(self, spans: Sequence[Busy]) -> None:
        """Takes times in which units worked; one that continues is cut."""
        ...

    def decision(self, decision: Decision) -> None:
        """Takes a decision as the live log records it: changes, and one a minute."""
        ...

    def start(self, start: Start) -> None:
        """Takes a start at its time, before any request that the replica answers."""
        ...

    def lease(self, lease: Lease) -> None:
        """Takes a lease: a replica is gone, has other cores from now on, or the run is over."""
        ...

    def second(self, second: FunctionSecond) -> None: ...


class Totals:
    """A sink that only adds up, in constant memory."""

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}
        """Requests by how they ended."""
        self.inferences = 0
        """Inferences of answered requests."""
        self.latency = Histogram()
        """Latency of answered requests."""
        self.latency_s = self.queued_s = 0.0
        """Sums over answered requests: their latency, and the part before they were sent to a replica."""
        self.busy_s: dict[str, float] = {}
        """Busy seconds of units, by accelerator."""
        self.leased_s: dict[str, float] = {}
        """Seconds of replicas, by accelerator."""
        self.decisions = 0

    @property
    def answered(self) -> int:
        return self.ends.get(ANSWERED, 0)

    def requests(self, ended: Sequence[Ended]) -> None:
        answered = [each for each in ended if each[5] == ANSWERED]
        latencies = [each[2] - each[0][2] for each in answered]
        self.latency.record_all(latencies)
        self.latency_s += sum(latencies)
        self.queued_s += sum([each[1] - each[0][2] for each in answered])
        self.inferences += sum([each[0][3] for each in answered])
        for end, count in Counter([each[5] for each in ended]).items():
            self.ends[end] = self.ends.get(end, 0) + count

    def busy(self, spans: Sequence[Busy]) -> None:
        for accelerator, _, since, until in spans:
            self.busy_s[accelerator] = self.busy_s.get(accelerator, 0.0) + until - since

    def decision(self, decision: Decision) -> None:
        self.decisions += 1

    def start(self, start: Start) -> None:
        pass

    def lease(self, lease: Lease) -> None:
        self.leased_s[lease.accelerator] = self.leased_s.get(lease.accelerator, 0.0) + lease.end_s - lease.start_s

    def second(self, second: FunctionSecond) -> None:
        pass


@dataclass(slots=True)
class Everything:
    """A sink that keeps everything, for runs that fit into memory."""

    ended: list[Ended] = field(default_factory=list)
    spans: list[Busy] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    seconds: list[FunctionSecond] = field(default_factory=list)

    def requests(self, ended: Sequence[Ended]) -> None:
        self.ended += ended

    def busy(self, spans: Sequence[Busy]) -> None:
        self.spans += spans

    def decision(self, decision: Decision) -> None:
        self.decisions.append(decision)

    def start(self, start: Start) -> None:
        self.starts.append(start)

    def lease(self, lease: Lease) -> None:
        self.leases.append(lease)

    def second(self, second: FunctionSecond) -> None:
        self.seconds.append(second)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """Totals of a finished run."""

    simulated_s: float
    requests: int
    """Requests that arrived."""
    unended: int
    """Requests that had not ended at the end of the run."""
    cold_starts: int
    """Replicas that became ready after the beginning."""
    switched: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Requests that another variant of the model served, by the function that they were for and the one that did."""
