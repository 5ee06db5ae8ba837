"""Placement strategies: which device of those that fit a replica gets. One row of a registry each.

A strategy scores a device by what is free on it; the least score wins. Everything else is common to all: a device fits
if memory and share suffice, an exclusive replica needs an empty device, a replica on several devices has them on one
node, and its node has the cores and the memory that it needs. The local ledger
(``tidegate.deploy.placement.ledger``) chooses units by the same rows.

- ``best-fit``: the device with the least memory, then the least share left over (Cho et al., SLA-driven ML inference
  framework, section 4.5). Large gaps stay for large replicas.
- ``worst-fit``: empty devices first, then the one with the most free memory, and never two replicas of one model on one
  device, since equal models slow each other most (Mo et al., HetSev, algorithm 1). "Empty first" is our reading: on
  devices of 16 and 32 GB pure worst fit would fill half of the large one first.
- ``worst-fit-soft``: the same, but a device with the same model is the last choice and not excluded.
- ``least-interference``: the device on which the replica and its neighbours slow each other the least, by what was
  learnt of their models (``tidegate.deploy.placement.interference``); among equals as best fit. So empty devices come
  first.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from math import inf
from types import MappingProxyType
from typing import Final, NamedTuple

from tidegate.deploy.placement.interference import Interference
from tidegate.deploy.placement.ties import TIE, Score, least, ranked
from tidegate.errors import Fault, InvalidInputError


class Free(NamedTuple):
    """What a strategy knows of a device. Memory in any unit, share in percent."""

    memory: float
    """Free memory."""
    share: float
    """Free share."""
    tenants: tuple[str, ...] = ()
    """Model of each replica on it."""
    slow_down: float = 0.0
    """What the replica would add to the slow-down on it: its own and its neighbours'."""


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """One row of the registry."""

    name: str
    sentence: str
    score: Callable[[Free, float, float, str], Score]
    """(device, memory and share of the replica, its model) -> its score. Equal scores go to the smallest id."""
    keeps_models_apart: bool = False
    """Whether two replicas of one model never share a device."""
    reads_tenants: bool = False
    """Whether the score reads the models on a device."""
    reads_slow_down: bool = False
    """Whether the score reads what a replica would add to the slow-down on a device."""
    by_node: bool = False
    """Whether equal scores go to the smallest name of a node before the smallest id."""


def _leftover(free: Free, memory: float, share: float, model: str) -> Score:
    return (free.memory - memory, free.share - share)


def _emptiest(free: Free, memory: float, share: float, model: str) -> Score:
    return (float(bool(free.tenants)), -free.memory, float(len(free.tenants)))


def _emptiest_apart(free: Free, memory: float, share: float, model: str) -> Score:
    return (float(model in free.tenants), *_emptiest(free, memory, share, model))


def _least_slowed(free: Free, memory: float, share: float, model: str) -> Score:
    return (free.slow_down, *_leftover(free, memory, share, model))


BEST_FIT: Final = StrategyRow(
    "best-fit", "the device with the least memory, then the least share left over", _leftover, by_node=True
)
WORST_FIT: Final = StrategyRow(
    "worst-fit",
    "empty devices first, then the most free memory; never two replicas of one model on a device",
    _emptiest,
    keeps_models_apart=True,
    reads_tenants=True,
)
WORST_FIT_SOFT: Final = StrategyRow(
    "worst-fit-soft",
    "as worst-fit, but a device with the same model is the last choice",
    _emptiest_apart,
    reads_tenants=True,
)
LEAST_INTERFERENCE: Final = StrategyRow(
    "least-interference",
    "the device where it and its neighbours slow each other the least, by what was learnt; among equals as best-fit",
    _least_slowed,
    reads_tenants=True,
    reads_slow_down=True,
)

STRATEGIES: Final[Mapping[str, StrategyRow]] = MappingProxyType(
    {row.name: row for row in (BEST_FIT, WORST_FIT, WORST_FIT_SOFT, LEAST_INTERFERENCE)}
)


def strategy(name: str) -> StrategyRow:
    """Returns the row of a strategy; raises InvalidInputError that lists the known names."""
    found = STRATEGIES.get(name)
    if found is None:
        raise InvalidInputError("placement", [Fault("strategy", repr(name), "one of " + ", ".join(STRATEGIES))])
    return found


# --- devices of several nodes ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device, or one partition of a device, of a cluster."""

    id: str
    node: str
    kind: str
    memory: float
    """Total memory, in the unit of :attr:`Instance.memory`."""
    free: Free
    is_shared: bool = True
    """Whether several replicas may have a part of it (MPS)."""
    is_healthy: bool = True

    @property
    def is_empty(self) -> bool:
        return not self.free.tenants and self.free.memory >= self.memory - TIE and self.free.share >= 100.0 - TIE


class Node(NamedTuple):
    """What is free on a node beside its devices."""

    cores: float = inf
    memory: float = inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A replica that is to be placed."""

    id: str
    model: str
    memory: float
    """Memory that it needs on each of its devices."""
    share: float = 0.0
    """Percent of each of its devices."""
    count: int = 1
    """Devices that it needs, all on one node."""
    kind: str | None = None
    """The only kind of device that it takes; None: any."""
    is_exclusive: bool = False
    """Whether it needs whole devices."""
    cores: float = 0.0
    """Cores of the node."""
    node_memory: float = 0.0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"{self.id} needs 1 device or more, not {self.count}")


class Cluster:
    """The ledger of devices on several nodes. ``nodes``: None if no node limits cores or memory; a node that is missing
    has none. ``interference``: between models, by kind of device."""

    __slots__ = ("_devices", "_interference", "_nodes")

    def __init__(
        self,
        devices: Iterable[Device],
        nodes: Mapping[str, Node] | None = None,
        interference: Interference | None = None,
    ) -> None:
        self._devices = {each.id: each for each in devices}
        self._nodes = None if nodes is None else dict(nodes)
        self._interference = interference or Interference()

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices with what is free on them now."""
        return tuple(self._devices.values())

    def assign(self, row: StrategyRow, instance: Instance) -> tuple[str, ...] | None:
        """Places an instance and takes what it needs. Returns the ids of its devices, sorted; None if nothing fits."""
        ids = self.choose(row, instance)
        for id_ in ids or ():
            self._devices[id_] = _with(self._devices[id_], instance)
        if ids and self._nodes is not None:
            name = self._devices[ids[0]].node
            node = self._nodes[name]
            self._nodes[name] = Node(node.cores - instance.cores, node.memory - instance.node_memory)
        return ids

    def choose(self, row: StrategyRow, instance: Instance) -> tuple[str, ...] | None:
        """Returns the ids of the devices that :meth:`assign` would take."""
        fitting = [
            each for each in self._devices.values() if _fits(row, each, instance) and self._carries(each, instance)
        ]
        fitting.sort(key=lambda each: (each.node, each.id))
        if row.reads_slow_down:
            fitting = [self._slowed(each, instance) for each in fitting]
        score = partial(_score, row, instance)
        found: list[list[Device]] = []
        for _, here in groupby(fitting, key=lambda each: each.node):
            best = ranked(here, score)[: instance.count]
            if len(best) == instance.count:
                found.append(sorted(best, key=lambda each: each.id))
        if not found:
            return None
        if not row.by_node:
            found.sort(key=lambda taken: [each.id for each in taken])
        chosen = least(found, lambda taken: [sum(parts) for parts in zip(*map(score, taken), strict=True)])
        return tuple(each.id for each in chosen)

    def _slowed(self, device: Device, instance: Instance) -> Device:
        added = self._interference.added(device.kind, instance.model, device.free.tenants)
        return replace(device, free=device.free._replace(slow_down=added))

    def _carries(self, device: Device, instance: Instance) -> bool:
        if self._nodes is None:
            return True
        node = self._nodes.get(device.node)
        if node is None:
            return False
        return node.cores >= instance.cores - TIE and node.memory >= instance.node_memory - TIE

    def __repr__(self) -> str:
        return f"<Cluster {len(self._devices)} devices>"


def _fits(row: StrategyRow, device: Device, instance: Instance) -> bool:
    if not device.is_healthy or (instance.kind is not None and device.kind != instance.kind):
        return False
    if row.keeps_models_apart and instance.model in device.free.tenants:
        return False
    if instance.is_exclusive:
        return device.is_empty and device.memory >= instance.memory - TIE
    has_room = device.free.memory >= instance.memory - TIE and device.free.share >= instance.share - TIE
    return device.is_shared and has_room


def _score(row: StrategyRow, instance: Instance, device: Device) -> Score:
    return row.score(device.free, instance.memory, instance.share, instance.model)


def _with(device: Device, instance: Instance) -> Device:
    """Returns the device with the instance on it. An exclusive instance leaves nothing free."""
    free = device.free
    tenants = (*free.tenants, instance.model)
    if instance.is_exclusive:
        return replace(device, free=Free(0.0, 0.0, tenants))
    return replace(device, free=Free(free.memory - instance.memory, free.share - instance.share, tenants))
