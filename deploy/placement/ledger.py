"""Accelerators and the replicas that hold them: a ledger that is never over-committed.

An :class:`Accelerator` is one *kind* of hardware on this machine (``t4``, ``cpu-1core``) with ``count`` equal *units*.
A replica holds part of one unit: a share in percent and an amount of memory. On a CPU kind a unit is ``cores`` cores
and always belongs to one replica; on a GPU several replicas may divide a unit if the function asks for MPS. For each
unit the shares sum to at most 100 and the memory to at most the unit's.

The ledger also assigns host cores to CPU units: each new replica gets the cores that the fewest replicas hold. An
operator may declare more CPU cores than the machine has (on a laptop). Cores are then shared evenly instead of refused;
:attr:`Ledger.cores_overdrawn` reports it for a warning.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from tidegate.errors import TidegateError
from tidegate.function import Function

WHOLE = 100
"""Percent of a unit."""


class AcceleratorKind(StrEnum):
    CPU = "cpu"
    NVIDIA = "nvidia"
    EMULATED = "emulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Service time of an emulated accelerator: ``base_s + per_item_s * batch``, varied by ``jitter`` (0.05: 5%)."""

    base_s: float
    per_item_s: float
    jitter: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One kind of hardware on this machine, with ``count`` equal units."""

    name: str
    kind: AcceleratorKind
    count: int
    memory_bytes: int
    """Memory of one unit."""
    cores: int = 0
    """CPU cores of one unit. 0 for kinds other than ``cpu``."""
    quota: float = 100.0
    """CPU only: percent of its cores' time that a replica gets."""
    price_per_hour: float = 0.0
    """Price of one unit, in US dollars."""
    start_up_s: float = 0.0
    """Emulated only: time before the emulated server is ready."""
    profile: Profile | None = None
    """Emulated only."""
    devices: tuple[str, ...] = ()
    """NVIDIA only: UUID of each unit, in the form of CUDA_VISIBLE_DEVICES."""
    sm_count: int | None = None
    bandwidth_gb_s: float | None = None
    tdp_w: float | None = None
    mps: bool = False
    mig: bool = False

    @property
    def is_emulated(self) -> bool:
        return self.kind is AcceleratorKind.EMULATED


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The part of a unit that one replica takes."""

    memory_bytes: int = 0
    share: int = WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The part of a unit that one replica holds."""

    accelerator: str
    unit: int
    """Index of the unit, 0 <= unit < count."""
    memory_bytes: int
    share: int
    cores: tuple[int, ...] = ()
    """Host cores of a CPU unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The number of replicas of one function that an accelerator takes."""

    free: int
    """Replicas that fit in addition to the present ones. Negative if more are present than the accelerator still has
    units for."""
    total: int
    """Replicas that fit on an empty accelerator."""
    why: str | None = None
    """A limit other than the accelerator itself, for people."""


class NoRoomError(TidegateError):
    """The accelerator cannot take the replica. The message says what is held and what was requested."""


def demand_of(function: Function, accelerator: Accelerator, share: int = WHOLE) -> Demand:
    """Returns the demand of one replica of ``function`` on ``accelerator``.

    Memory is as the function declares (``gpu-mem-limit`` on a GPU, ``resources.memory`` on a CPU), else 0. Only MPS on
    a GPU divides a unit: the share is the smaller of the decision's share and the function's core percentage.
    """
    if accelerator.kind is AcceleratorKind.CPU:
        return Demand(memory_bytes=function.resources.memory_bytes or 0)
    gpu_memory = function.gpu.memory_gb
    memory = int(gpu_memory * 1e9) if gpu_memory is not None else 0
    if not function.gpu.mps:
        return Demand(memory_bytes=memory)
    return Demand(memory_bytes=memory, share=min(share, function.gpu.core_percentage))


def candidates(accelerators: Iterable[Accelerator], function: Function) -> tuple[Accelerator, ...]:
    """Returns the accelerators that ``function`` may use and that have a unit large enough, cheapest first, then by
    name."""
    allowed = [
        each
        for each in accelerators
        if _is_allowed(function, each)
        and demand_of(function, each).memory_bytes <= each.memory_bytes
        and each.count > 0
    ]
    return tuple(sorted(allowed, key=lambda each: (each.price_per_hour, each.name)))


def _is_allowed(function: Function, accelerator: Accelerator) -> bool:
    """Returns True if the function may use the accelerator.

    A list of accelerators decides if there is one, else the GPU model (``h100`` is also ``h100-80gb-hbm3``). A function
    that configures its GPU use needs a GPU, of any model.
    """
    name, gpu = accelerator.name, function.gpu
    if function.accelerators:
        return name in function.accelerators
    if gpu.model is None:
        return accelerator.kind is not AcceleratorKind.CPU or not (gpu.memory_gb is not None or gpu.mps)
    return name == gpu.model.lower() or name.startswith(f"{gpu.model.lower()}-")


class _Fill(NamedTuple):
    """The held part of one unit."""

    share: int = 0
    memory_bytes: int = 0


_EMPTY: Final = _Fill()


class _Units:
    """The held parts of the units of one kind.

    Every plan and every start needs them, so the sums are kept. Units with equal fill are grouped, since most are empty
    or whole.
    """

    __slots__ = ("alike", "beyond", "fills")

    def __init__(self, count: int) -> None:
        self.fills = [_EMPTY] * count
        self.alike: dict[_Fill, list[int]] = {_EMPTY: list(range(count))} if count else {}
        """Indices of the units by fill, ascending. Units without a share to spare are left out."""
        self.beyond = 0
        """Replicas on units that no longer exist."""

    def add(self, held: Assignment, sign: int = 1) -> None:
        if held.unit >= len(self.fills):
            self.beyond += sign
            return
        before = self.fills[held.unit]
        after = _Fill(before.share + sign * held.share, before.memory_bytes + sign * held.memory_bytes)
        self.fills[held.unit] = after
        if before.share < WHOLE:
            units = self.alike[before]
            del units[bisect_left(units, held.unit)]
            if not units:
                del self.alike[before]
        if after.share < WHOLE:
            insort(self.alike.setdefault(after, []), held.unit)

    def remove(self, held: Assignment) -> None:
        self.add(held, -1)

    @property
    def used(self) -> int:
        return len(self.fills) - len(self.alike.get(_EMPTY, ())) + self.beyond


@dataclass(slots=True)
class Ledger:
    """The assignments of all replicas. ``host_cores`` are the ids of the cores that CPU units may use."""

    accelerators: Mapping[str, Accelerator]
    host_cores: tuple[int, ...] = ()
    _held: dict[str, Assignment] = field(default_factory=dict)
    _units: dict[str, _Units] = field(init=False, repr=False, compare=False)
    """Held units by kind."""
    _core_load: Counter[int] = field(init=False, repr=False, compare=False)
    """Replicas by host core."""

    def __post_init__(self) -> None:
        self._recount()

    @classmethod
    def of(cls, accelerators: Iterable[Accelerator], host_cores: Sequence[int] = ()) -> "Ledger":
        return cls(MappingProxyType({each.name: each for each in accelerators}), tuple(sorted(host_cores)))

    @property
    def held(self) -> Mapping[str, Assignment]:
        """Assignments by replica."""
        return MappingProxyType(self._held)

    @property
    def names(self) -> str:
        """Names for messages: ``t4, v100``, or ``none``."""
        return ", ".join(sorted(self.accelerators)) or "none"

    @property
    def cores_overdrawn(self) -> int:
        """Declared cores of all CPU units beyond the host's. 0 if they fit."""
        declared = sum(each.cores * each.count for each in self.accelerators.values())
        return max(0, declared - len(self.host_cores))

    def assign(self, replica: str, accelerator: str, demand: Demand) -> Assignment:
        """Takes a unit for ``replica``: of the units that fit, the one with the least memory and share to spare.

        Raises NoRoomError, also for an unknown accelerator or a replica that already holds a unit.
        """
        if replica in self._held:
            raise NoRoomError(f"{replica} already holds a unit of {self._held[replica].accelerator}")
        kind = self.kind(accelerator)
        fitting = [
            (kind.memory_bytes - fill.memory_bytes, WHOLE - fill.share, units[0])
            for fill, units in self._units[kind.name].alike.items()
            if self._fits(kind, fill, demand)
        ]
        if not fitting:
            raise NoRoomError(f"no room on {accelerator}: {self.describe(accelerator)}")
        return self._take(replica, kind, min(fitting)[2], demand, self._choose_cores(kind.cores))

    def restore(self, replica: str, assignment: Assignment) -> None:
        """Records the assignment of an adopted replica. Raises NoRoomError if its unit is no longer there."""
        kind = self.kind(assignment.accelerator)
        demand = Demand(memory_bytes=assignment.memory_bytes, share=assignment.share)
        if replica in self._held or assignment.unit >= kind.count:
            raise NoRoomError(f"{replica} cannot hold unit {assignment.unit} of {kind.name}")
        if not self._fits(kind, self._units[kind.name].fills[assignment.unit], demand):
            raise NoRoomError(f"unit {assignment.unit} of {kind.name} is taken: {self.describe(kind.name)}")
        known = set(self.host_cores)
        kept = tuple(core for core in assignment.cores if core in known)
        cores = kept if len(kept) == len(assignment.cores) else self._choose_cores(kind.cores)
        self._take(replica, kind, assignment.unit, demand, cores)

    def reassign_cores(self, replica: str, count: int) -> Assignment:
        """Gives a CPU replica ``count`` cores of its unit, 1 up to the unit's. Raises NoRoomError beyond."""
        held = self._held[replica]
        kind = self.kind(held.accelerator)
        if kind.kind is not AcceleratorKind.CPU or not 1 <= count <= kind.cores:
            raise NoRoomError(f"{replica} on {kind.name} cannot have {count} cores; a unit has {kind.cores}")
        self._return(replica)
        kept = held.cores[:count]
        more = self._choose_cores(count - len(kept), without=kept)
        demand = Demand(memory_bytes=held.memory_bytes, share=held.share)
        return self._take(replica, kind, held.unit, demand, kept + more)

    def release(self, replica: str) -> None:
        """Releases the unit of ``replica``, if it holds one."""
        if replica not in self._held:
            return
        held = self._return(replica)
        if self.kind(held.accelerator).count == 0 and self._units[held.accelerator].beyond == 0:
            self.set_accelerators([each for each in self.accelerators.values() if each.count], self.host_cores)

    def set_accelerators(self, accelerators: Iterable[Accelerator], host_cores: Sequence[int]) -> None:
        """Replaces the accelerators. Replicas keep what they hold: a removed kind stays, without units, until its last
        replica has released its unit. The same holds for units by which a kind has become smaller."""
        fresh = {each.name: each for each in accelerators}
        for name in sorted({held.accelerator for held in self._held.values()} - fresh.keys()):
            fresh[name] = replace(self.accelerators[name], count=0)
        self.accelerators, self.host_cores = MappingProxyType(fresh), tuple(sorted(host_cores))
        self._recount()

    def room(self, accelerator: str, demand: Demand) -> Room:
        """Returns how many replicas of this demand fit on the accelerator, now and when it is empty."""
        kind = self.kind(accelerator)
        held = self._units[kind.name]
        free = sum(len(units) * self._times(kind, fill, demand) for fill, units in held.alike.items()) - held.beyond
        return Room(free=free, total=kind.count * self._times(kind, _EMPTY, demand))

    def describe(self, accelerator: str) -> str:
        """Returns ``2 of 2 units in use``, for reasons that people read."""
        kind = self.kind(accelerator)
        return f"{self._units[kind.name].used} of {kind.count} units in use"

    def kind(self, accelerator: str) -> Accelerator:
        """Returns the accelerator of this name. Raises NoRoomError if there is none."""
        kind = self.accelerators.get(accelerator)
        if kind is None:
            raise NoRoomError(f"no accelerator {accelerator}; there are: {self.names}")
        return kind

    def _recount(self) -> None:
        """Computes the sums from the assignments."""
        self._units = {name: _Units(kind.count) for name, kind in self.accelerators.items()}
        self._core_load = Counter()
        for held in self._held.values():
            self._units[held.accelerator].add(held)
            self._core_load.update(held.cores)

    @staticmethod
    def _fits(kind: Accelerator, fill: _Fill, demand: Demand) -> bool:
        return (
            0 < demand.share <= WHOLE - fill.share and 0 <= demand.memory_bytes <= kind.memory_bytes - fill.memory_bytes
        )

    @classmethod
    def _times(cls, kind: Accelerator, fill: _Fill, demand: Demand) -> int:
        if not cls._fits(kind, fill, demand):
            return 0
        by_share = (WHOLE - fill.share) // demand.share
        if demand.memory_bytes == 0:
            return by_share
        return min(by_share, (kind.memory_bytes - fill.memory_bytes) // demand.memory_bytes)

    def _choose_cores(self, count: int, without: tuple[int, ...] = ()) -> tuple[int, ...]:
        if count <= 0 or not self.host_cores:
            return ()
        free = [core for core in self.host_cores if core not in without]
        return tuple(sorted(sorted(free, key=lambda core: (self._core_load[core], core))[:count]))

    def _take(self, replica: str, kind: Accelerator, unit: int, demand: Demand, cores: tuple[int, ...]) -> Assignment:
        assignment = Assignment(
            accelerator=kind.name, unit=unit, memory_bytes=demand.memory_bytes, share=demand.share, cores=cores
        )
        self._held[replica] = assignment
        self._units[kind.name].add(assignment)
        self._core_load.update(cores)
        return assignment

    def _return(self, replica: str) -> Assignment:
        held = self._held.pop(replica)
        self._units[held.accelerator].remove(held)
        self._core_load.subtract(held.cores)
        return held
