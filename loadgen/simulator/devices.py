"""Virtual accelerators: units of a kind that execute the requests of their replicas.

The kind itself is the product's :class:`tidegate.deploy.placement.ledger.Accelerator` (memory, SM count, bandwidth,
TDP, price per hour, number of units), and the product's ledger places replicas on units. This file models one unit: how
long it is busy, and how executions that share it slow each other.
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
    """How simultaneous executions on one unit affect each other."""

    EXCLUSIVE = "exclusive"
    """Not at all: a replica has the unit to itself, and each of its slots works at full speed."""
    TIME_MULTIPLEXED = "time-multiplexed"
    """Time slices: each of k executions gets 1/k of the speed of a single one, times the gain."""
    MPS = "mps"
    """Side by side: together they do more than a single one, by the measured gain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """A kind of accelerator and how its units are shared."""

    accelerator: Accelerator
    sharing: Sharing = Sharing.EXCLUSIVE
    gain: Mapping[int, float] = field(default_factory=dict)
    """Work done by that many executions at once, where a single one does 1.0; linear between the points, constant
    beyond the last."""
    interference: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Slow-down of an execution of the first function beside one of the second (1.18: 18 %), which may be the same one.
    Executions of one replica do not slow each other by it."""

    def __post_init__(self) -> None:
        if any(count < 2 or not gain > 0.0 for count, gain in self.gain.items()):
            raise ValueError(f"gains are positive and of two executions or more, got {dict(self.gain)}")
        if any(not factor >= 1.0 for factor in self.interference.values()):
            raise ValueError("interference makes nothing faster: factors are 1 or more")
        if self.sharing is Sharing.EXCLUSIVE and (self.gain or self.interference):
            raise ValueError(f"{self.accelerator.name} is exclusive: gain and interference mean nothing there")

    def total_gain(self, executions: int) -> float:
        """Returns the work done by that many executions at once, in units of a single one."""
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
    replica: str
    speed: float = 1.0


class Unit:
    """One unit. ``begin`` and ``end`` are for executions of known length; ``run`` is for those that share it."""

    __slots__ = ("_at", "_epoch", "_jobs", "_kernel", "_kind", "_name", "_number", "busy", "executions", "since")

    def __init__(self, kernel: Kernel, kind: DeviceKind, number: int) -> None:
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
        """Finished busy times; the reader takes the list."""

    def begin(self, now: float) -> None:
        """Begins an execution."""
        if not self.executions:
            self.since = now
        self.executions += 1

    def end(self, now: float) -> None:
        """Ends an execution."""
        self.executions -= 1
        if not self.executions and now > self.since:
            self.busy.append((self._name, self._number, self.since, now))

    def cut(self, now: float) -> None:
        """Records the busy time up to now; the execution continues."""
        if self.executions and now > self.since:
            self.busy.append((self._name, self._number, self.since, now))
            self.since = now

    def run(
        self, function: str, work_s: float, done: Done, argument: object, now: float, *, replica: str = ""
    ) -> object:
        """Executes ``work_s`` seconds of work at the speed that the present executions leave; then calls ``done(now,
        argument)``. Returns a handle for :meth:`abort`. ``replica``: whose work it is; empty: of one by itself."""
        self.begin(now)
        self._advance(now)
        job = _Job(function, work_s, done, argument, replica)
        self._jobs[job] = None
        self._settle(now)
        return job

    def abort(self, handle: object, now: float) -> None:
        """Ends an execution without completing it; does nothing if it has ended."""
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
        """Updates the speeds of all executions and the time of the next end."""
        self._epoch += 1
        if not self._jobs:
            return
        each = self._kind.total_gain(len(self._jobs)) / len(self._jobs)
        table = self._kind.interference
        for job in self._jobs:
            job.speed = each
            if table:
                for other in self._jobs:
                    if other is not job and not (job.replica and other.replica == job.replica):
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

    def __init__(self, kernel: Kernel, kinds: tuple[DeviceKind, ...]) -> None:
        self.kinds: Mapping[str, DeviceKind] = MappingProxyType({kind.accelerator.name: kind for kind in kinds})
        self._units = {
            (name, number): Unit(kernel, kind, number)
            for name, kind in self.kinds.items()
            for number in range(kind.accelerator.count)
        }

    def unit(self, accelerator: str, number: int) -> Unit:
        return self._units[accelerator, number]

    def take_busy(self, now: float) -> list[Busy]:
        """Returns the busy times since the last call, in order of the units."""
        taken: list[Busy] = []
        for unit in self._units.values():
            unit.cut(now)
            if unit.busy:
                taken += unit.busy
                unit.busy = []
        return taken
