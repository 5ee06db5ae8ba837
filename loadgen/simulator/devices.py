"""Virtual accelerators: units of a kind that execute what the replicas on them were given.

The kind itself is the product's :class:`tidegate.deploy.placement.ledger.Accelerator` (memory, SM count, bandwidth,
TDP, price per hour, number of units) and the product's ledger places replicas on units. Here is what happens on one:
how long it is busy, and how executions that share it slow each other.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from types import MappingProxyType

from tidegate.deploy.placement.ledger import Accelerator
from tidegate.loadgen.simulator.kernel import Kernel

Busy = tuple[str, int, float, float]
"""(accelerator, unit, since, until): a time in which the unit executed something."""
Done = Callable[[float, object], None]


class Sharing(StrEnum):
    """What executions that are on one unit at once do to each other."""

    EXCLUSIVE = "exclusive"
    """Nothing: a replica has the unit to itself, each of its slots works at full speed."""
    TIME_MULTIPLEXED = "time-multiplexed"
    """They take turns: k of them get a k-th each of what one would have alone, times the gain."""
    MPS = "mps"
    """They run side by side, and together do more than one would alone: the gain, as measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of accelerator and how its units are shared."""

    accelerator: Accelerator
    sharing: Sharing = Sharing.EXCLUSIVE
    gain: Mapping[int, float] = field(default_factory=dict)
    """Work done by so many executions at once, one alone does 1.0; straight lines between, the last one beyond."""
    interference: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """How much longer (1.18: 18 %) an execution of the first function takes beside one of the second."""

    def __post_init__(self) -> None:
        if any(count < 2 or not gain > 0.0 for count, gain in self.gain.items()):
            raise ValueError(f"gains are positive and of two executions or more, got {dict(self.gain)}")
        if any(not factor >= 1.0 for factor in self.interference.values()):
            raise ValueError("interference makes nothing faster: factors are 1 or more")
        if self.sharing is Sharing.EXCLUSIVE and (self.gain or self.interference):
            raise ValueError(f"{self.accelerator.name} is exclusive: gain and interference mean nothing there")

    def total_gain(self, executions: int) -> float:
        """Work done at once by so many, in units of what one does alone."""
        points = sorted({1: 1.0, **self.gain}.items())
        for (low, least), (high, most) in pairwise(points):
            if executions <= high:
                return least + (most - least) * (executions - low) / (high - low)
        return points[-1][1]


@dataclass(slots=True, eq=False)
class _Job:
    function: str
    left_s: float
    """Work left, in seconds at full speed."""
    done: Done
    argument: object
    speed: float = 1.0


class Unit:
    """One unit. ``begin`` and ``end`` are for executions whose length is known; ``run`` for those that share it."""

    __slots__ = ("_at", "_epoch", "_jobs", "_kernel", "_kind", "_name", "_number", "busy", "executions", "since")

    def __init__(self, kernel: Kernel, kind: Kind, number: int) -> None:
        self._kernel = kernel
        self._kind = kind
        self._name = kind.accelerator.name
        self._number = number
        self._jobs: dict[_Job, None] = {}
        self._at = 0.0
        self._epoch = 0
        self.executions = 0
        self.since = 0.0
        self.busy: list[Busy] = []
        """Times that are over; whoever reads them takes the list."""

    def begin(self, now: float) -> None:
        """One more execution."""
        if not self.executions:
            self.since = now
        self.executions += 1

    def end(self, now: float) -> None:
        """One fewer."""
        self.executions -= 1
        if not self.executions and now > self.since:
            self.busy.append((self._name, self._number, self.since, now))

    def cut(self, now: float) -> None:
        """What was busy up to now counts, and goes on."""
        if self.executions and now > self.since:
            self.busy.append((self._name, self._number, self.since, now))
            self.since = now

    def run(self, function: str, work_s: float, done: Done, argument: object, now: float) -> object:
        """Executes ``work_s`` seconds at the speed that those who are here leave; then ``done(now, argument)``. Returns
        a handle for :meth:`abort`."""
        self.begin(now)
        self._advance(now)
        job = _Job(function, work_s, done, argument)
        self._jobs[job] = None
        self._settle(now)
        return job

    def abort(self, handle: object, now: float) -> None:
        """It ends without being done; nothing where it has ended."""
        if isinstance(handle, _Job) and handle in self._jobs:
            self._advance(now)
            del self._jobs[handle]
            self.end(now)
            self._settle(now)

    def _advance(self, now: float) -> None:
        passed = now - self._at
        self._at = now
        for job in self._jobs:
            job.left_s -= passed * job.speed

    def _settle(self, now: float) -> None:
        """Speeds of all, and when the first of them ends."""
        self._epoch += 1
        if not self._jobs:
            return
        each = self._kind.total_gain(len(self._jobs)) / len(self._jobs)
        table = self._kind.interference
        for job in self._jobs:
            job.speed = each
            if table:
                for other in self._jobs:
                    if other is not job:
                        job.speed /= table.get((job.function, other.function), 1.0)
        first = min(job.left_s / job.speed for job in self._jobs)
        self._kernel.at(now + max(0.0, first), self._ended, self._epoch)

    def _ended(self, now: float, epoch: int) -> None:
        if epoch != self._epoch:
            return
        self._advance(now)
        # What is left at the moment that was computed for it is the error of that computation.
        over = [job for job in self._jobs if job.left_s <= 1e-12 + 1e-12 * now]
        for job in over:
            del self._jobs[job]
            self.end(now)
        self._settle(now)
        for job in over:
            job.done(now, job.argument)

    def __repr__(self) -> str:
        return f"<Unit {self._number} of {self._name}, {self.executions} executions>"


class Devices:
    """All kinds of a simulation, by name."""

    __slots__ = ("_units", "kinds")

    def __init__(self, kernel: Kernel, kinds: tuple[Kind, ...]) -> None:
        self.kinds: Mapping[str, Kind] = MappingProxyType({kind.accelerator.name: kind for kind in kinds})
        self._units = {
            (name, number): Unit(kernel, kind, number)
            for name, kind in self.kinds.items()
            for number in range(kind.accelerator.count)
        }

    def unit(self, accelerator: str, number: int) -> Unit:
        return self._units[accelerator, number]

    def take_busy(self, now: float) -> list[Busy]:
        """Busy times since the last call, in order of the units."""
        taken: list[Busy] = []
        for unit in self._units.values():
            unit.cut(now)
            if unit.busy:
                taken += unit.busy
                unit.busy = []
        return taken
