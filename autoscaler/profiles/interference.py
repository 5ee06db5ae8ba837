"""Interference between replicas that share a device, learnt from served requests.

In each second the execution time of a replica is set against the part of it in which its neighbours were at work. Over
many seconds that is a line, ``alone * (1 + increase * busy)``, whose slope is the increase. It needs no second in which
the replica was alone: neighbours that are now more and now less at work suffice.

Execution times also depend on the batch size and on the replica's own requests in flight, so there is a line for each
*cell* of both (half and quarter octaves); the increases of the cells are averaged by how much they say. With several
other models on the device, a second counts for one of them if the increases beside the others are known, or for the
others too if they were idle.

Only replicas with a share of a device are looked at. Pure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidegate.autoscaler.measure.rates import WARM_REQUESTS
from tidegate.deploy.placement.interference import Interference
from tidegate.records.replica_sample import ReplicaSample

ENOUGH_REQUESTS: Final = 50.0
"""Requests of a cell, and of those the requests beside the other model, from which on its line counts."""
MIN_SPREAD: Final = 0.02
"""Variance of the neighbours' work (0..1) below which a line has no slope. Of 30 and of 60 % by turns it is 0.0225."""
IDLE: Final = 0.02
"""A neighbour that was at work for less of the interval was idle."""
MEMORY_REQUESTS: Final = 2000.0
"""Requests that a line remembers."""
MAX_INCREASE: Final = 9.0
"""A larger increase is a disturbance of another kind (ten times as slow)."""
MAX_CELLS, MAX_PAIRS = 32, 32
"""Cells and other models kept of one model on one kind, the latest ones."""
CELL_STAYS: Final = 4 * MAX_CELLS
"""Points of a model without one of a cell, until it makes room for another. More cells by turns than are kept would
else drive each other out before any is learnt."""
MAX_MODELS: Final = 1024
"""Models by kind that are kept, the latest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWork:
    """The work of one replica that shares its device, in one interval."""

    kind: str
    model: str
    share: int
    seconds: float
    requests: float
    inferences: float
    busy_s: float
    """Time with at least one request in the model."""
    request_s: float
    """Integral of requests in flight."""
    execution_s: float

    @property
    def busy(self) -> float:
        return min(1.0, self.busy_s / self.seconds)

    @property
    def is_measured(self) -> bool:
        """Whether requests have ended in it, with their times."""
        total = self.requests + self.inferences + self.busy_s + self.request_s + self.execution_s
        return math.isfinite(total) and self.requests >= 1.0 and self.busy_s > 0.0 and self.execution_s > 0.0

    @property
    def cell(self) -> tuple[int, int, int]:
        """The line that it is a point of: share, batch size and occupancy."""
        size, occupancy = self.inferences / self.requests, max(1.0, self.request_s / self.busy_s)
        return self.share, round(2.0 * math.log2(max(1.0, size))), round(4.0 * math.log2(occupancy))


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntPair:
    """The increase beside one other model, as it is kept over a restart."""

    beside: str
    increase: float
    requests: float
    """Requests that were served beside it, as far as they are remembered."""


def shared_work(before: ReplicaSample, after: ReplicaSample, kind: str, model: str, share: int) -> SharedWork | None:
    """Returns the work between two samples of one incarnation; None if no time has passed, or the replica is cold."""
    seconds = after.uptime_s - before.uptime_s
    if seconds <= 0.0 or before.requests < WARM_REQUESTS:
        return None
    return SharedWork(
        kind=kind,
        model=model,
        share=share,
        seconds=seconds,
        requests=after.requests - before.requests,
        inferences=after.inferences - before.inferences,
        busy_s=after.busy_s - before.busy_s,
        request_s=after.in_flight_request_s - before.in_flight_request_s,
        execution_s=after.execution_s - before.execution_s,
    )


class _Estimate(NamedTuple):
    increase: float
    weight: float


@dataclass(slots=True)
class _Points:
    """Sums over requests: number, neighbours' work and its square, execution time, and its product with that work."""

    requests: float = 0.0
    busy: float = 0.0
    busy_squared: float = 0.0
    execution_s: float = 0.0
    product_s: float = 0.0

    def add(self, requests: float, busy: float, execution_s: float) -> None:
        """Adds an interval: its requests, the neighbours' work, and its mean execution time."""
        self.requests += requests
        self.busy += requests * busy
        self.busy_squared += requests * busy * busy
        self.execution_s += requests * execution_s
        self.product_s += requests * busy * execution_s
        if self.requests > MEMORY_REQUESTS:
            kept = MEMORY_REQUESTS / self.requests
            self.requests, self.busy, self.busy_squared = MEMORY_REQUESTS, kept * self.busy, kept * self.busy_squared
            self.execution_s, self.product_s = kept * self.execution_s, kept * self.product_s


@dataclass(slots=True)
class _Cell:
    alone: _Points = field(default_factory=_Points)
    beside: dict[str, _Points] = field(default_factory=dict)
    """By other model, the latest one last."""
    used: int = 0
    """Points of its model when it got its last one."""

    def near(self, other: str) -> _Points:
        """Returns the points beside a model, for one more."""
        points = self.beside[other] = self.beside.pop(other) if other in self.beside else _Points()
        if len(self.beside) > MAX_PAIRS:
            del self.beside[next(iter(self.beside))]
        return points

    def estimate(self, other: str) -> _Estimate | None:
        """Returns the increase beside a model by the least-squares line; None while the points show none."""
        near, alone = self.beside.get(other), self.alone
        if near is None or near.requests < ENOUGH_REQUESTS:
            return None
        requests = alone.requests + near.requests
        busy, execution_s = near.busy / requests, (alone.execution_s + near.execution_s) / requests
        spread = near.busy_squared / requests - busy * busy
        if spread < MIN_SPREAD:
            return None
        slope_s = (near.product_s / requests - busy * execution_s) / spread
        alone_s = execution_s - slope_s * busy
        if alone_s <= 0.0:
            return None
        return _Estimate(min(MAX_INCREASE, max(0.0, slope_s / alone_s)), requests * spread)


@dataclass(slots=True)
class _Model:
    """One model on one kind of accelerator."""

    cells: dict[tuple[int, int, int], _Cell] = field(default_factory=dict)
    """The latest one last."""
    known: dict[str, LearntPair] = field(default_factory=dict)
    """By other model, the latest one last."""
    points: int = 0

    def cell(self, key: tuple[int, int, int]) -> _Cell | None:
        """Returns the cell of one more point; None if all that are kept are in use."""
        self.points += 1
        if key not in self.cells and len(self.cells) >= MAX_CELLS:
            oldest = next(iter(self.cells))
            if self.points - self.cells[oldest].used < CELL_STAYS:
                return None
            del self.cells[oldest]
        cell = self.cells[key] = self.cells.pop(key) if key in self.cells else _Cell()
        cell.used = self.points
        return cell

    def estimate(self, other: str) -> LearntPair | None:
        found = [each for cell in self.cells.values() if (each := cell.estimate(other)) is not None]
        if not found:
            return None
        weight = math.fsum(each.weight for each in found)
        served = math.fsum(cell.beside[other].requests for cell in self.cells.values() if other in cell.beside)
        increase = math.fsum(each.increase * each.weight for each in found) / weight
        return LearntPair(beside=other, increase=increase, requests=served)


class InterferenceLearner:
    """Learns the increases of ``table``, which placement reads."""

    __slots__ = ("_models", "_table")

    def __init__(self, table: Interference) -> None:
        self._table = table
        self._models: dict[tuple[str, str], _Model] = {}

    def learn(self, works: Mapping[str, SharedWork], neighbours: Mapping[str, Sequence[str]]) -> None:
        """Takes one second. ``works``: by replica; ``neighbours``: the other replicas on the device, of each replica to
        learn from. One with a neighbour whose work is not known (it starts) is passed over."""
        for replica, names in neighbours.items():
            work, others = works.get(replica), [works[each] for each in names if each in works]
            if work is not None and work.is_measured and len(others) == len(names):
                self._point(work, others)

    def _point(self, work: SharedWork, others: Iterable[SharedWork]) -> None:
        busy: dict[str, float] = {}
        for each in others:
            if each.busy > IDLE:
                busy[each.model] = busy.get(each.model, 0.0) + each.busy
        model = self._model(work.kind, work.model)
        cell, execution_s = model.cell(work.cell), work.execution_s / work.requests
        if cell is None:
            return
        if not busy:
            cell.alone.add(work.requests, 0.0, execution_s)
            return
        for other, at_work in busy.items():
            rest = [name for name in busy if name != other]
            if any(name not in model.known for name in rest):
                continue
            slowed = 1.0 + math.fsum(model.known[name].increase * busy[name] for name in rest)
            cell.near(other).add(work.requests, at_work, execution_s / slowed)
            found = model.estimate(other)
            if found is not None:
                self._know(work.kind, work.model, found)

    def learnt(self, kind: str, model: str) -> tuple[LearntPair, ...]:
        """Returns what is known of one model, by the names of the others."""
        known = self._models.get((kind, model))
        return () if known is None else tuple(pair for _, pair in sorted(known.known.items()))

    def restore(self, kind: str, model: str, pairs: Iterable[LearntPair]) -> None:
        """Takes what an earlier process has learnt; what was learnt here counts more."""
        known = self._model(kind, model).known
        for pair in pairs:
            if pair.beside not in known and 0.0 <= pair.increase <= MAX_INCREASE and len(known) < MAX_PAIRS:
                self._know(kind, model, pair)

    def _model(self, kind: str, model: str) -> _Model:
        found = self._models.get((kind, model))
        if found is None:
            if len(self._models) >= MAX_MODELS:
                oldest = next(iter(self._models))
                for beside in self._models.pop(oldest).known:
                    self._table.forget(*oldest, beside)
            found = self._models[kind, model] = _Model()
        return found

    def _know(self, kind: str, model: str, pair: LearntPair) -> None:
        known = self._models[kind, model].known
        known.pop(pair.beside, None)
        known[pair.beside] = pair
        if len(known) > MAX_PAIRS:
            oldest = next(iter(known))
            del known[oldest]
            self._table.forget(kind, model, oldest)
        self._table.set(kind, model, pair.beside, pair.increase)

    def __repr__(self) -> str:
        return f"<InterferenceLearner of {len(self._models)} models>"
