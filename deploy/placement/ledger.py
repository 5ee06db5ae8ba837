"""Accelerators and who holds them: a ledger that is never over-committed.

An :class:`Accelerator` is one *kind* of hardware on this machine (``t4``, ``cpu-1core``) of which ``count`` equal
*units* exist. A replica holds part of one unit: a share in percent and an amount of memory. On a CPU kind a unit is
``cores`` cores and always wholly one replica's; on a GPU several replicas may divide a unit where the function asks
for MPS. For each unit the shares sum to at most 100 and the memory to at most the unit's, whatever is asked.

Host cores are dealt to CPU units by the same ledger: each new replica gets the cores that the fewest hold. A machine
whose declared CPU units need more cores than it has (an operator may say so, on a laptop) shares cores evenly
instead of refusing; :attr:`Ledger.cores_overdrawn` tells, so that it can be said aloud.
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
    """One kind of hardware on this machine; ``count`` equal units of it."""

    name: str
    kind: AcceleratorKind
    count: int
    memory_bytes: int
    """Of one unit."""
    cores: int = 0
    """CPU cores of one unit; 0 for kinds that are not ``cpu``."""
    quota: float = 100.0
    """CPU only: percent of its cores' time that a replica gets."""
    price_per_hour: float = 0.0
    """Of one unit, in US dollars."""
    start_up_s: float = 0.0
    """Emulated only: time before the emulated server is ready."""
    profile: Profile | None = None
    """Emulated only."""
    devices: tuple[str, ...] = ()
    """NVIDIA only: UUID of each unit, as CUDA_VISIBLE_DEVICES wants them."""
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
    """What one replica takes of a unit."""

    memory_bytes: int = 0
    share: int = WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one replica holds."""

    accelerator: str
    unit: int
    """Index of the unit, 0 <= unit < count."""
    memory_bytes: int
    share: int
    cores: tuple[int, ...] = ()
    """Host cores of a CPU unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many replicas of one function an accelerator takes."""

    free: int
    """More than are there now; negative: so many are there that the accelerator has no unit for any more."""
    total: int
    """If nobody else were there."""
    why: str | None = None
    """What else than the accelerator itself leaves no more, for people."""


class NoRoomError(TidegateError):
    """The accelerator cannot take the replica; the message says what is held and what was asked."""


def demand_of(function: Function, accelerator: Accelerator, share: int = WHOLE) -> Demand:
    """What one replica of ``function`` takes on ``accelerator``.

    Memory is what the function declares (``gpu-mem-limit`` on a GPU, ``resources.memory`` on a CPU), none if it does
    not. Only MPS on a GPU divides a unit: the smaller of the decision's share and the function's core percentage.
    """
    if accelerator.kind is AcceleratorKind.CPU:
        return Demand(memory_bytes=function.resources.memory_bytes or 0)
    gpu_memory = function.gpu.memory_gb
    memory = int(gpu_memory * 1e9) if gpu_memory is not None else 0
    if not function.gpu.mps:
        return Demand(memory_bytes=memory)
    return Demand(memory_bytes=memory, share=min(share, function.gpu.core_percentage))


def candidates(accelerators: Iterable[Accelerator], function: Function) -> tuple[Accelerator, ...]:
    """The accelerators that ``function`` may use and whose unit could hold it, cheapest first, then by name."""
    allowed = [
        each
        for each in accelerators
        if _is_allowed(function, each)
        and demand_of(function, each).memory_bytes <= each.memory_bytes
        and each.count > 0
    ]
    return tuple(sorted(allowed, key=lambda each: (each.price_per_hour, each.name)))


def _is_allowed(function: Function, accelerator: Accelerator) -> bool:
    """By the list of accelerators where there is one, else by the GPU model (``h100`` is also ``h100-80gb-hbm3``). A
    function that says how it uses a GPU wants one, whatever model."""
    name, gpu = accelerator.name, function.gpu
    if function.accelerators:
        return name in function.accelerators
    if gpu.model is None:
        return accelerator.kind is not AcceleratorKind.CPU or not (gpu.memory_gb is not None or gpu.mps)
    return name == gpu.model.lower() or name.startswith(f"{gpu.model.lower()}-")


class _Fill(NamedTuple):
    """What is held of one unit."""

    share: int = 0
    memory_bytes: int = 0


_EMPTY: Final = _Fill()


class _Units:
    """What is held of the units of one kind. Every plan and every start asks, so the sums are kept, and units that are
    filled alike stand together: most are empty or whole."""

    __slots__ = ("alike", "beyond", "fills")

    def __init__(self, count: int) -> None:
        self.fills = [_EMPTY] * count
        self.alike: dict[_Fill, list[int]] = {_EMPTY: list(range(count))} if count else {}
        """Indices of the units of each fill, ascending; those that have no share to spare are left out."""
        self.beyond = 0
        """Replicas on units that are no longer there."""

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
    """Who holds what. ``host_cores``: ids of the cores that CPU units may use."""

    accelerators: Mapping[str, Accelerator]
    host_cores: tuple[int, ...] = ()
    _held: dict[str, Assignment] = field(default_factory=dict)
    _units: dict[str, _Units] = field(init=False, repr=False, compare=False)
    """By kind."""
    _core_load: Counter[int] = field(init=False, repr=False, compare=False)
    """Replicas by host core."""

    def __post_init__(self) -> None:
        self._add_up()

    @classmethod
    def of(cls, accelerators: Iterable[Accelerator], host_cores: Sequence[int] = ()) -> "Ledger":
        return cls(MappingProxyType({each.name: each for each in accelerators}), tuple(sorted(host_cores)))

    @property
    def held(self) -> Mapping[str, Assignment]:
        """Assignment by replica."""
        return MappingProxyType(self._held)

    @property
    def names(self) -> str:
        """For messages: ``t4, v100``, or ``none``."""
        return ", ".join(sorted(self.accelerators)) or "none"

    @property
    def cores_overdrawn(self) -> int:
        """Declared cores of all CPU units beyond the host's; 0 where they fit."""
        declared = sum(each.cores * each.count for each in self.accelerators.values())
        return max(0, declared - len(self.host_cores))

    def assign(self, replica: str, accelerator: str, demand: Demand) -> Assignment:
        """Takes a unit for ``replica``: of the units that fit, the one with the least memory and share to spare.

        Raises NoRoomError, also for an unknown accelerator or a replica that already holds something.
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
        return self._take(replica, kind, min(fitting)[2], demand, self._deal_cores(kind.cores))

    def restore(self, replica: str, assignment: Assignment) -> None:
        """Takes back what an adopted replica held before; raises NoRoomError where that is no longer there."""
        kind = self.kind(assignment.accelerator)
        demand = Demand(memory_bytes=assignment.memory_bytes, share=assignment.share)
        if replica in self._held or assignment.unit >= kind.count:
            raise NoRoomError(f"{replica} cannot hold unit {assignment.unit} of {kind.name}")
        if not self._fits(kind, self._units[kind.name].fills[assignment.unit], demand):
            raise NoRoomError(f"unit {assignment.unit} of {kind.name} is taken: {self.describe(kind.name)}")
        known = set(self.host_cores)
        kept = tuple(core for core in assignment.cores if core in known)
        cores = kept if len(kept) == len(assignment.cores) else self._deal_cores(kind.cores)
        self._take(replica, kind, assignment.unit, demand, cores)

    def reassign_cores(self, replica: str, count: int) -> Assignment:
        """Gives a CPU replica ``count`` cores of its unit, 1 up to the unit's; raises NoRoomError beyond."""
        held = self._held[replica]
        kind = self.kind(held.accelerator)
        if kind.kind is not AcceleratorKind.CPU or not 1 <= count <= kind.cores:
            raise NoRoomError(f"{replica} on {kind.name} cannot have {count} cores; a unit has {kind.cores}")
        self._give_back(replica)
        kept = held.cores[:count]
        more = self._deal_cores(count - len(kept), without=kept)
        demand = Demand(memory_bytes=held.memory_bytes, share=held.share)
        return self._take(replica, kind, held.unit, demand, kept + more)

    def release(self, replica: str) -> None:
        """Gives back what ``replica`` holds; nothing if it holds nothing."""
        if replica not in self._held:
            return
        held = self._give_back(replica)
        if self.kind(held.accelerator).count == 0 and self._units[held.accelerator].beyond == 0:
            self.set_accelerators([each for each in self.accelerators.values() if each.count], self.host_cores)

    def set_accelerators(self, accelerators: Iterable[Accelerator], host_cores: Sequence[int]) -> None:
        """Other accelerators from now on. What replicas hold they keep: a kind that is gone stays, without units, until
        its last replica has given back what it holds; so does a unit of which there are fewer."""
        fresh = {each.name: each for each in accelerators}
        for name in sorted({held.accelerator for held in self._held.values()} - fresh.keys()):
            fresh[name] = replace(self.accelerators[name], count=0)
        self.accelerators, self.host_cores = MappingProxyType(fresh), tuple(sorted(host_cores))
        self._add_up()

    def room(self, accelerator: str, demand: Demand) -> Room:
        """How many replicas of this demand the accelerator takes, now and empty."""
        kind = self.kind(accelerator)
        held = self._units[kind.name]
        free = sum(len(units) * self._times(kind, fill, demand) for fill, units in held.alike.items()) - held.beyond
        return Room(free=free, total=kind.count * self._times(kind, _EMPTY, demand))

    def describe(self, accelerator: str) -> str:
        """``2 of 2 units in use``: for reasons that people read."""
        kind = self.kind(accelerator)
        return f"{self._units[kind.name].used} of {kind.count} units in use"

    def kind(self, accelerator: str) -> Accelerator:
        """The accelerator of that name; raises NoRoomError where there is none."""
        kind = self.accelerators.get(accelerator)
        if kind is None:
            raise NoRoomError(f"no accelerator {accelerator}; there are: {self.names}")
        return kind

    def _add_up(self) -> None:
        """The sums anew, from what is held."""
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

    def _deal_cores(self, count: int, without: tuple[int, ...] = ()) -> tuple[int, ...]:
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

    def _give_back(self, replica: str) -> Assignment:
        held = self._held.pop(replica)
        self._units[held.accelerator].remove(held)
        self._core_load.subtract(held.cores)
        return held
