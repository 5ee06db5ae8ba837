"""Accelerators and the replicas that hold them: a ledger that is never over-committed.

An :class:`Accelerator` is one *kind* of hardware on this machine (``t4``, ``cpu-1core``) with ``count`` equal *units*.
A replica holds part of one unit: a share in percent and an amount of memory. On a CPU kind a unit is ``cores`` cores
and always belongs to one replica; on a GPU several replicas may divide a unit if the function asks for MPS, and one may
hold several whole units (``gpu-count``). For each unit the shares sum to at most 100 and the memory to at most the
unit's.

The ledger also assigns host cores to CPU units: each new replica gets the cores that the fewest replicas hold. An
operator may declare more CPU cores than the machine has (on a laptop). Cores are then shared evenly instead of refused;
:attr:`Ledger.cores_overdrawn` reports it for a warning.

Which of the units that fit a replica gets is up to a strategy (``tidegate.deploy.placement.strategies``). A *tainted*
unit, whose device has failed, takes no replica; those that hold it keep it until they have ended.

A unit with a device is known by the device's UUID. Its index may change with a reload or a restart, when a device is
missing or a kind has another name; what runs on the device is counted where the device is now.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from tidegate.deploy.placement.interference import Interference
from tidegate.deploy.placement.strategies import BEST_FIT, Free, StrategyRow
from tidegate.deploy.placement.ties import least
from tidegate.errors import TidegateError
from tidegate.function import Function, GpuNeeds, StoredForm

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
    driver: str | None = None
    """NVIDIA only: version of its driver."""
    compute_capability: str | None = None
    """NVIDIA only: CUDA's number for the generation of its processors (``9.0``)."""

    @property
    def is_emulated(self) -> bool:
        return self.kind is AcceleratorKind.EMULATED

    @property
    def processors(self) -> float | None:
        """Processor cores of one unit that a replica gets, in parts of a core; None for kinds other than ``cpu``."""
        return self.cores * self.quota / 100.0 if self.kind is AcceleratorKind.CPU else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The part of a unit that one replica takes."""

    memory_bytes: int = 0
    share: int = WHOLE
    model: str = ""
    """Its model, for strategies that keep equal models apart."""
    count: int = 1
    """Units that it takes. More than one only as whole units; the memory is then that of each."""


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
    model: str = ""
    more: tuple[int, ...] = ()
    """Further units that it holds in the same way."""
    devices: tuple[str, ...] = ()
    """UUIDs of its units, in the same order. Empty if they have none."""

    @property
    def units(self) -> tuple[int, ...]:
        """All units that it holds."""
        return (self.unit, *self.more)


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

    Memory is as the function declares (``gpu-mem-limit`` on a GPU, ``resources.memory`` on a CPU), else 0. Two things
    divide a GPU: MPS, where the share is the smaller of the decision's share and the function's core percentage; and
    time slices, of which each replica takes one. A device without MPS is not divided by ``mps-on``.
    """
    model = model_of(function)
    if accelerator.kind is AcceleratorKind.CPU:
        return Demand(memory_bytes=function.resources.memory_bytes or 0, model=model)
    gpu_memory = function.gpu.memory_gb
    memory = int(gpu_memory * 1e9) if gpu_memory is not None else 0
    if function.gpu.time_slices > 1:
        return Demand(memory_bytes=memory, share=WHOLE // function.gpu.time_slices, model=model)
    has_mps = accelerator.mps or accelerator.is_emulated
    if not function.gpu.mps or not has_mps:
        return Demand(memory_bytes=memory, model=model, count=function.gpu.count)
    return Demand(memory_bytes=memory, share=min(share, function.gpu.core_percentage), model=model)


def part_of(function: Function, accelerator: Accelerator) -> float:
    """Returns how much of a unit a replica is charged for: whole units, by their number; or the part of one that it
    shares, above 0 and below 1, by its memory, or by its share if it states none. So HetSev charges instances."""
    demand = demand_of(function, accelerator)
    if demand.share >= WHOLE:
        return float(demand.count)
    if demand.memory_bytes and accelerator.memory_bytes:
        return min(1.0, demand.memory_bytes / accelerator.memory_bytes)
    return demand.share / WHOLE


def model_of(function: Function) -> str:
    """Returns the name by which two functions have the same model: ``dnn-model``, else the function's own name."""
    return function.dnn.name or function.name


def candidates(accelerators: Iterable[Accelerator], function: Function) -> tuple[Accelerator, ...]:
    """Returns the accelerators that ``function`` may use and that have a unit large enough, cheapest first, then by
    name."""
    allowed = [
        each
        for each in accelerators
        if _is_allowed(function, each)
        and demand_of(function, each).memory_bytes <= each.memory_bytes
        and each.count >= demand_of(function, each).count
    ]
    return tuple(sorted(allowed, key=lambda each: (each.price_per_hour, each.name)))


_Needs = tuple[
    tuple[str, ...], str | None, float | None, bool, int, int, int, int | None, int, str, tuple[StoredForm, ...]
]
"""What a function's accelerators and demands follow from."""


def _needs(function: Function, share: int, model: str) -> _Needs:
    gpu = function.gpu
    memory_bytes = function.resources.memory_bytes
    kinds, forms = function.accelerators, function.server.forms
    use = (gpu.model, gpu.memory_gb, gpu.mps, gpu.core_percentage, gpu.count, gpu.time_slices)
    return kinds, *use, memory_bytes, share, model, forms


def _is_allowed(function: Function, accelerator: Accelerator) -> bool:
    """Returns True if the function may use the accelerator.

    A list of accelerators decides if there is one, else the GPU model (``h100`` is also ``h100-80gb-hbm3``). A function
    that configures its GPU use needs a GPU, of any model. One with a model repository needs a stored form for it.
    """
    name, gpu = accelerator.name, function.gpu
    if function.server.forms and function.server.form_on(name) is None:
        return False
    if function.accelerators:
        return name in function.accelerators
    if gpu.model is None:
        return accelerator.kind is not AcceleratorKind.CPU or gpu == GpuNeeds()
    return name == gpu.model.lower() or name.startswith(f"{gpu.model.lower()}-")


class _Fill(NamedTuple):
    """The held part of one unit."""

    share: int = 0
    memory_bytes: int = 0
    tenants: tuple[str, ...] = ()
    """Model of each replica on it, sorted; left out unless the strategy reads them."""


_EMPTY: Final = _Fill()


class _Units:
    """The held parts of the units of one kind.

    Every plan and every start needs them, so the sums are kept. Units with equal fill are grouped, since most are empty
    or whole.
    """

    __slots__ = ("_reads_tenants", "alike", "beyond", "fills", "tainted")

    def __init__(self, kind: Accelerator, *, reads_tenants: bool, failed: Collection[str]) -> None:
        self._reads_tenants = reads_tenants
        devices = kind.devices[: kind.count]
        self.tainted = frozenset(unit for unit, uuid in enumerate(devices) if uuid in failed)
        self.fills = [_EMPTY] * kind.count
        empty = [unit for unit in range(kind.count) if unit not in self.tainted]
        self.alike: dict[_Fill, list[int]] = {_EMPTY: empty} if empty else {}
        """Indices of the units by fill, ascending. Units without a share to spare, and tainted ones, are left out."""
        self.beyond: dict[int, _Fill] = {}
        """Held parts of units that no longer exist, by index."""

    def add(self, held: Assignment, unit: int, sign: int = 1) -> None:
        """Counts what a replica holds of one unit; with ``sign`` -1, no longer."""
        is_beyond = unit >= len(self.fills)
        before = self.beyond.pop(unit, _EMPTY) if is_beyond else self.fills[unit]
        tenants = self._tenants(before.tenants, held.model, sign) if self._reads_tenants else ()
        after = _Fill(before.share + sign * held.share, before.memory_bytes + sign * held.memory_bytes, tenants)
        if is_beyond:
            if after != _EMPTY:
                self.beyond[unit] = after
            return
        self.fills[unit] = after
        if unit in self.tainted:
            return
        if before.share < WHOLE:
            units = self.alike[before]
            del units[bisect_left(units, unit)]
            if not units:
                del self.alike[before]
        if after.share < WHOLE:
            insort(self.alike.setdefault(after, []), unit)

    @staticmethod
    def _tenants(before: tuple[str, ...], model: str, sign: int) -> tuple[str, ...]:
        tenants = list(before)
        if sign > 0:
            insort(tenants, model)
        else:
            tenants.remove(model)
        return tuple(tenants)

    @property
    def used(self) -> int:
        held = sum(self.fills[unit] != _EMPTY for unit in self.tainted)
        return len(self.fills) - len(self.tainted) - len(self.alike.get(_EMPTY, ())) + held + len(self.beyond)


def _failed(units: _Units) -> str:
    count = len(units.tainted)
    return "1 unit has failed" if count == 1 else f"{count} units have failed"


@dataclass(slots=True)
class Ledger:
    """The assignments of all replicas. ``host_cores`` are the ids of the cores that CPU units may use."""

    accelerators: Mapping[str, Accelerator]
    host_cores: tuple[int, ...] = ()
    _held: dict[str, Assignment] = field(default_factory=dict)
    strategy: StrategyRow = field(default=BEST_FIT, kw_only=True)
    interference: Interference = field(default_factory=Interference, kw_only=True, compare=False)
    _failed: frozenset[str] = frozenset()
    """UUIDs of devices that have failed. Their units are tainted."""
    _unit_of: dict[str, tuple[str, int]] = field(init=False, repr=False, compare=False)
    """Kind and index of each unit with a device, by UUID. Of one that is held and gone, an index of its own beyond the
    kind's units."""
    _units: dict[str, _Units] = field(init=False, repr=False, compare=False)
    """Held units by kind."""
    _core_load: Counter[int] = field(init=False, repr=False, compare=False)
    """Replicas by host core."""
    _fitting: dict[_Needs, tuple[tuple[str, Demand], ...]] = field(init=False, repr=False, compare=False)
    """Accelerators and demands by what functions need, until the accelerators change."""
    _rooms: dict[_Needs, Mapping[str, Room]] = field(init=False, repr=False, compare=False)
    """Rooms by what functions need, until a replica takes or releases a unit."""

    def __post_init__(self) -> None:
        self._recount()

    @classmethod
    def of(
        cls,
        accelerators: Iterable[Accelerator],
        host_cores: Sequence[int] = (),
        strategy: StrategyRow = BEST_FIT,
        interference: Interference | None = None,
    ) -> "Ledger":
        kinds = MappingProxyType({each.name: each for each in accelerators})
        known = interference or Interference()
        return cls(kinds, tuple(sorted(host_cores)), strategy=strategy, interference=known)

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
        """Takes a unit for ``replica``: of the units that fit, the one that the strategy scores least.

        Raises NoRoomError, also for an unknown accelerator or a replica that already holds a unit.
        """
        if replica in self._held:
            raise NoRoomError(f"{replica} already holds a unit of {self._held[replica].accelerator}")
        kind = self.kind(accelerator)
        if demand.count > 1:
            return self._take(replica, kind, self._whole_units(kind, demand), demand, ())
        fitting = sorted(
            (units[0], self._free(kind, fill, demand.model))
            for fill, units in self._units[kind.name].alike.items()
            if self._takes(kind, fill, demand)
        )
        if not fitting:
            raise NoRoomError(f"no room on {accelerator}: {self.describe(accelerator)}")
        score = self.strategy.score
        unit, _ = least(fitting, lambda each: score(each[1], demand.memory_bytes, demand.share, demand.model))
        return self._take(replica, kind, (unit,), demand, self._choose_cores(kind.cores))

    def _free(self, kind: Accelerator, fill: _Fill, model: str) -> Free:
        """Returns what the strategy knows of units with this fill."""
        is_read = self.strategy.reads_slow_down
        added = self.interference.added(kind.name, model, fill.tenants) if is_read else 0.0
        return Free(float(kind.memory_bytes - fill.memory_bytes), float(WHOLE - fill.share), fill.tenants, added)

    def _whole_units(self, kind: Accelerator, demand: Demand) -> tuple[int, ...]:
        """Returns the first empty units, as many as are demanded. Raises NoRoomError if there are fewer."""
        empty = self._units[kind.name].alike.get(_EMPTY, ()) if self._takes(kind, _EMPTY, demand) else ()
        if len(empty) < demand.count:
            raise NoRoomError(f"no room for {demand.count} units on {kind.name}: {self.describe(kind.name)}")
        return tuple(empty[: demand.count])

    def restore(self, replica: str, assignment: Assignment) -> None:
        """Records the assignment of an adopted replica. Raises NoRoomError if its unit is no longer there."""
        kind = self.kind(assignment.accelerator)
        demand = Demand(memory_bytes=assignment.memory_bytes, share=assignment.share, model=assignment.model)
        places = self._places(assignment)
        is_gone = any(name != kind.name or unit >= kind.count for name, unit in places)
        if replica in self._held or is_gone:
            what = ", ".join(assignment.devices) or f"unit {max(assignment.units)}"
            raise NoRoomError(f"{replica} cannot hold {what} of {kind.name}")
        for _, unit in places:
            if not self._fits(kind, self._units[kind.name].fills[unit], demand):
                raise NoRoomError(f"unit {unit} of {kind.name} is taken: {self.describe(kind.name)}")
        known = set(self.host_cores)
        kept = tuple(core for core in assignment.cores if core in known)
        cores = kept if len(kept) == len(assignment.cores) else self._choose_cores(kind.cores)
        self._take(replica, kind, tuple(unit for _, unit in places), demand, cores)

    def idle_cores(self, count: int, without: Collection[int] = ()) -> tuple[int, ...]:
        """Returns ``count`` host cores outside ``without`` that no replica holds. Raises NoRoomError if there are
        fewer."""
        idle = tuple(core for core in self.host_cores if not self._core_load[core] and core not in without)[:count]
        if len(idle) < count:
            raise NoRoomError(f"{len(idle)} cores of this machine are held by no replica, not {count}")
        return idle

    def reassign_cores(self, replica: str, count: int) -> Assignment:
        """Gives a CPU replica ``count`` cores of its unit, 1 up to the unit's. Raises NoRoomError beyond."""
        held = self._held[replica]
        kind = self.kind(held.accelerator)
        if kind.kind is not AcceleratorKind.CPU or not 1 <= count <= kind.cores:
            raise NoRoomError(f"{replica} on {kind.name} cannot have {count} cores; a unit has {kind.cores}")
        self._return(replica)
        kept = held.cores[:count]
        more = self._choose_cores(count - len(kept), without=kept)
        demand = Demand(memory_bytes=held.memory_bytes, share=held.share, model=held.model)
        return self._take(replica, kind, held.units, demand, kept + more)

    def release(self, replica: str) -> None:
        """Releases the unit of ``replica``, if it holds one."""
        if replica not in self._held:
            return
        held = self._return(replica)
        if self.kind(held.accelerator).count == 0 and not self._units[held.accelerator].beyond:
            self.set_accelerators([each for each in self.accelerators.values() if each.count], self.host_cores)

    def set_accelerators(self, accelerators: Iterable[Accelerator], host_cores: Sequence[int]) -> None:
        """Replaces the accelerators. Replicas keep what they hold: a removed kind stays, without units, until its last
        replica has released its unit. The same holds for units by which a kind has become smaller."""
        fresh = {each.name: each for each in accelerators}
        for name in sorted({held.accelerator for held in self._held.values()} - fresh.keys()):
            fresh[name] = replace(self.accelerators[name], count=0)
        self.accelerators, self.host_cores = MappingProxyType(fresh), tuple(sorted(host_cores))
        self._recount()
        for replica, held in self._held.items():
            places = self._places(held)
            if all(name == held.accelerator for name, _ in places):
                unit, *more = (unit for _, unit in places)
                self._held[replica] = replace(held, unit=unit, more=tuple(more))

    def set_failed(self, devices: Collection[str]) -> None:
        """Replaces the devices that have failed, given by UUID."""
        self._failed = frozenset(devices)
        self._recount()

    def is_tainted(self, replica: str) -> bool:
        """Returns whether a device that ``replica`` holds has failed."""
        held = self._held.get(replica)
        return held is not None and not self._failed.isdisjoint(held.devices)

    def room(self, accelerator: str, demand: Demand) -> Room:
        """Returns how many replicas of this demand fit on the accelerator, now and when it is empty."""
        kind = self.kind(accelerator)
        held = self._units[kind.name]
        why = _failed(held) if held.tainted else None
        if demand.count > 1:
            fits = self._takes(kind, _EMPTY, demand)
            empty, there = len(held.alike.get(_EMPTY, ())) - len(held.beyond), kind.count - len(held.tainted)
            return Room(free=fits * (empty // demand.count), total=fits * (there // demand.count), why=why)
        free = sum(len(units) * self._times(kind, fill, demand) for fill, units in held.alike.items())
        on_empty = self._times(kind, _EMPTY, demand)
        # What is held of a unit that is gone needs as much of another one.
        displaced = sum(on_empty - self._times(kind, fill, demand) for fill in held.beyond.values())
        return Room(free=free - displaced, total=(kind.count - len(held.tainted)) * on_empty, why=why)

    def rooms(self, function: Function, share: int = WHOLE) -> Mapping[str, Room]:
        """Returns the room on each accelerator that ``function`` may use, cheapest first; the same object until
        something changes. Thousands of functions ask each second, and few kinds of needs are among them."""
        needs = _needs(function, share, model_of(function) if self.strategy.keeps_models_apart else "")
        found = self._rooms.get(needs)
        if found is None:
            fitting = self._fitting.get(needs)
            if fitting is None:
                usable = candidates(self.accelerators.values(), function)
                fitting = tuple((each.name, demand_of(function, each, share)) for each in usable)
                self._fitting[needs] = fitting
            found = MappingProxyType({name: self.room(name, demand) for name, demand in fitting})
            self._rooms[needs] = found
        return found

    def describe(self, accelerator: str) -> str:
        """Returns ``2 of 2 units in use``, for reasons that people read."""
        kind = self.kind(accelerator)
        units = self._units[kind.name]
        failed = f", {_failed(units)}" if units.tainted else ""
        return f"{units.used} of {kind.count} units in use{failed}"

    def kind(self, accelerator: str) -> Accelerator:
        """Returns the accelerator of this name. Raises NoRoomError if there is none."""
        kind = self.accelerators.get(accelerator)
        if kind is None:
            raise NoRoomError(f"no accelerator {accelerator}; there are: {self.names}")
        return kind

    def _recount(self) -> None:
        """Computes the sums from the assignments."""
        reads_tenants = self.strategy.reads_tenants
        self._units = {
            name: _Units(kind, reads_tenants=reads_tenants, failed=self._failed)
            for name, kind in self.accelerators.items()
        }
        self._unit_of = {
            uuid: (kind.name, unit)
            for kind in self.accelerators.values()
            for unit, uuid in enumerate(kind.devices[: kind.count])
        }
        gone: Counter[str] = Counter()
        for held in self._held.values():
            for uuid in held.devices:
                if uuid not in self._unit_of:
                    index = self.accelerators[held.accelerator].count + gone[held.accelerator]
                    self._unit_of[uuid] = held.accelerator, index
                    gone[held.accelerator] += 1
        self._core_load = Counter()
        self._fitting, self._rooms = {}, {}
        for held in self._held.values():
            self._count(held)

    def _count(self, held: Assignment, sign: int = 1) -> None:
        for name, unit in self._places(held):
            self._units[name].add(held, unit, sign)
        for core in held.cores:
            self._core_load[core] += sign

    def _places(self, held: Assignment) -> list[tuple[str, int]]:
        """Returns kind and index of each unit that is held: where its device is now. One that is gone has an index
        beyond the kind's units."""
        gone = self.accelerators[held.accelerator].count
        if held.devices:
            return [self._unit_of.get(uuid, (held.accelerator, gone)) for uuid in held.devices]
        return [(held.accelerator, unit) for unit in held.units]

    @staticmethod
    def _fits(kind: Accelerator, fill: _Fill, demand: Demand) -> bool:
        return (
            0 < demand.share <= WHOLE - fill.share and 0 <= demand.memory_bytes <= kind.memory_bytes - fill.memory_bytes
        )

    def _takes(self, kind: Accelerator, fill: _Fill, demand: Demand) -> bool:
        """Returns whether the demand fits and the strategy allows it. A replica that exists already is restored
        wherever it fits."""
        is_apart = not self.strategy.keeps_models_apart or demand.model not in fill.tenants
        return is_apart and self._fits(kind, fill, demand)

    def _times(self, kind: Accelerator, fill: _Fill, demand: Demand) -> int:
        if not self._takes(kind, fill, demand):
            return 0
        if self.strategy.keeps_models_apart:
            return 1
        by_share = (WHOLE - fill.share) // demand.share
        if demand.memory_bytes == 0:
            return by_share
        return min(by_share, (kind.memory_bytes - fill.memory_bytes) // demand.memory_bytes)

    def _choose_cores(self, count: int, without: tuple[int, ...] = ()) -> tuple[int, ...]:
        if count <= 0 or not self.host_cores:
            return ()
        free = [core for core in self.host_cores if core not in without]
        return tuple(sorted(sorted(free, key=lambda core: (self._core_load[core], core))[:count]))

    def _take(
        self, replica: str, kind: Accelerator, units: tuple[int, ...], demand: Demand, cores: tuple[int, ...]
    ) -> Assignment:
        assignment = Assignment(
            accelerator=kind.name,
            unit=units[0],
            more=units[1:],
            memory_bytes=demand.memory_bytes,
            share=demand.share,
            cores=cores,
            model=demand.model,
            devices=tuple(kind.devices[unit] for unit in units) if max(units) < len(kind.devices) else (),
        )
        self._held[replica] = assignment
        self._rooms.clear()
        self._count(assignment)
        return assignment

    def _return(self, replica: str) -> Assignment:
        held = self._held.pop(replica)
        self._rooms.clear()
        self._count(held, -1)
        return held
