"""The scenario of a simulation: accelerators, functions with their profiles, callers, and failures."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidegate.autoscaler.profiles.admission import KnownFigures
from tidegate.deploy.placement.strategies import BEST_FIT, StrategyRow
from tidegate.function import Function, Revision
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.simulator.devices import DeviceKind
from tidegate.loadgen.simulator.profiles import ColdStart, ServiceProfile

AUTO_LIMIT = 4
"""Initial and maximum slots of a replica if the function says ``auto`` and the profile has no width: the initial value
of live replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """One deployed function."""

    revision: Revision
    profiles: Mapping[str, ServiceProfile]
    """By accelerator; one for each that the function may use."""
    cold_starts: Mapping[str, ColdStart] = field(default_factory=dict)
    """By accelerator; others take one second to load."""
    ready: Mapping[str, int] = field(default_factory=dict)
    """Replicas ready at the beginning, by accelerator."""
    known: Mapping[str, KnownFigures] = field(default_factory=dict)
    """Service rates that policies have from the beginning, by accelerator, as of an offline profile. Others are learnt,
    or those of the accelerator's own profile."""
    deadline_s: float | None = None
    """Deadline that clients give to each request; the function's ``timeout`` caps it."""

    @property
    def timeout_s(self) -> float:
        """Time after its arrival at which a request without an answer ends with a 504."""
        timeout_s = self.revision.function.timeout_s
        return timeout_s if self.deadline_s is None else min(timeout_s, self.deadline_s)

    @property
    def limit(self) -> int:
        """Maximum slots of one replica on any accelerator; 0: no limit."""
        return max((self.limit_on(accelerator) for accelerator in self.profiles), default=AUTO_LIMIT)

    def limit_on(self, accelerator: str) -> int:
        """Initial slots of a replica on this accelerator; 0: no limit."""
        concurrency = self.revision.function.concurrency
        if concurrency is not None:
            return concurrency
        profile = self.profiles[accelerator]
        return profile.joins if profile.joins > 1 else profile.width or AUTO_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """A closed loop: each caller sends one request after the other, and waits for the answer."""

    function: str
    callers: int
    requests: int | None = None
    """Requests of all callers together, dealt evenly (the first ones get one more); None: no end."""
    rate: float | None = None
    """Maximum requests per second of one caller (:class:`tidegate.loadgen.arrivals.pace.Ticker`); None: no bound."""
    start_s: float = 0.0
    inferences: int = 1

    def __post_init__(self) -> None:
        if self.callers < 1 or self.inferences < 1 or not 0.0 <= self.start_s < math.inf:
            raise ValueError(f"callers and inferences are 1 or more, start_s not negative, got {self}")
        if (self.requests is not None and self.requests < 0) or (self.rate is not None and not self.rate > 0.0):
            raise ValueError(f"requests are not negative, a rate is positive, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The death of the replica of a function that has been ready longest, with all that it runs."""

    at_s: float
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenStarts:
    """The next starts of a function fail at the time at which they should become ready."""

    at_s: float
    function: str
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All inputs of a run: equal scenarios give equal runs. Raises ValueError if parts do not fit."""

    kinds: tuple[DeviceKind, ...]
    functions: tuple[Deployed, ...]
    seed: int = 1
    arrivals: Iterable[Arrival] = ()
    """Open loop, rising in time; an empty ``function`` means the first one. Read once, one by one."""
    pipelines: tuple[Function, ...] = ()
    """Pipelines of these functions; arrivals and callers may name them. Stages with conditions are not simulated."""
    callers: tuple[Callers, ...] = ()
    failures: tuple[Crash | BrokenStarts, ...] = ()
    hop_s: float = 0.0
    """Network time of a request and its answer together, between gateway and replica."""
    message_s: float = 0.0002
    """Delay of a message of a slot channel, an activation or a route table."""
    turn_s: float = 0.001
    """Length of a gateway's loop iteration: wants are sent at its end."""
    resize_s: float = 0.0
    """Time from the request for other cores until the replica has them."""
    strategy: StrategyRow = BEST_FIT
    """Which of the units that fit a replica gets."""
    keeps_scale: bool = False
    """Whether the initial replicas stay as they are, without decisions."""

    def __post_init__(self) -> None:
        here = {kind.accelerator.name for kind in self.kinds}
        names = [each.revision.function.name for each in self.functions]
        faults = []
        if not self.functions:
            faults.append("no function is deployed")
        if len(set(names)) < len(names):
            faults.append(f"functions have one name each, got {', '.join(names)}")
        if len(here) < len(self.kinds):
            faults.append("accelerators have one name each")
        for each in self.functions:
            faults += _faults_of(each, here)
        for pipeline in self.pipelines:
            unknown = [stage.function for stage in pipeline.server.stages if stage.function not in names]
            faults += [f"{pipeline.name} has a stage {name!r}, which is not deployed" for name in unknown]
            if any(stage.when is not None for stage in pipeline.server.stages):
                faults.append(f"{pipeline.name} has a stage with a condition: that is not simulated")
        names += [each.name for each in self.pipelines]
        named = {each.function for each in (*self.callers, *self.failures)}
        faults += [f"no function {name!r} is deployed" for name in sorted(named.difference(names))]
        if min(self.hop_s, self.message_s, self.turn_s, self.resize_s) < 0.0:
            faults.append("hop_s, message_s, turn_s and resize_s are not negative")
        if faults:
            raise ValueError("; ".join(faults))


def _faults_of(deployed: Deployed, here: set[str]) -> list[str]:
    name, allowed = deployed.revision.function.name, deployed.revision.function.accelerators
    usable = here.intersection(allowed) if allowed else here
    faults = []
    if not usable:
        faults.append(f"{name} may use none of the accelerators {', '.join(sorted(here)) or '(none)'}")
    if missing := sorted(usable - deployed.profiles.keys()):
        faults.append(f"{name} has no profile for {', '.join(missing)}")
    if unknown := sorted(deployed.ready.keys() - usable):
        faults.append(f"{name} cannot be ready on {', '.join(unknown)}")
    return faults
