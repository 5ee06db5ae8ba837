"""The order in which pending instances are placed: similarity queues, and a fair pick among them (HetSev, algorithm 1,
steps 1 and 2).

Instances of like models and sizes wait in one queue, so that a buffer of a few instances from every queue mixes models,
and devices get unlike tenants. A queue counts by its length and by how long its instances have waited.
"""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

from tidegate.deploy.placement.strategies import Cluster, Instance, StrategyRow
from tidegate.deploy.placement.ties import TIE, least, ranked

QUEUES: Final = 4
"""Queues of one round. Our choice: the number of models in the paper's evaluation."""
BUFFER: Final = 8
"""Instances placed in one round (beta). Our choice; the paper gives none."""
MOST_STEPS: Final = 50
"""Steps after which the queues stay as they are, settled or not."""


class Pending(NamedTuple):
    """An instance that waits for a device."""

    instance: Instance
    since: float
    """Time since when it has waited."""


class Pick(NamedTuple):
    """How many instances each queue gives to a round."""

    counts: tuple[int, ...]
    """By queue, in the order given."""
    order: tuple[int, ...]
    """Indices of the queues that give any, the heaviest first."""


class _Centre(NamedTuple):
    memory: float
    model: str


def similarity_queues(instances: Sequence[Instance], count: int = QUEUES) -> list[list[str]]:
    """Returns the ids of the instances in at most ``count`` queues; ids and queues are sorted.

    k-means with the L1 distance, of memory as a part of the largest and of the model (equal or not). It starts at the
    smallest instance and goes on with the farthest one, so that equal instances always give equal queues.
    """
    if not instances:
        return []
    largest = max(each.memory for each in instances)
    points = [_Centre(each.memory / largest if largest > 0.0 else 0.0, each.model) for each in instances]
    centres = _seeds(instances, points, count)
    before: list[int] | None = None
    for _ in range(MOST_STEPS):
        nearest = [_nearest(point, centres) for point in points]
        if nearest == before:
            break
        before = nearest
        for index in range(len(centres)):
            own = [point for point, centre in zip(points, nearest, strict=True) if centre == index]
            if own:
                centres[index] = _mean(own)
    queues: list[list[str]] = [[] for _ in centres]
    for instance, centre in zip(instances, before or (), strict=True):
        queues[centre].append(instance.id)
    return sorted(sorted(queue) for queue in queues if queue)


def _seeds(instances: Sequence[Instance], points: Sequence[_Centre], count: int) -> list[_Centre]:
    kinds = len({(each.memory, each.model) for each in instances})
    by_id = sorted(range(len(points)), key=lambda index: instances[index].id)
    centres = [points[least(by_id, lambda index: (points[index].memory,))]]
    while len(centres) < min(max(1, count), kinds):
        apart = [min(_distance(point, centre) for centre in centres) for point in points]
        farthest = max(apart)
        centres.append(next(point for point, far in zip(points, apart, strict=True) if far >= farthest - TIE))
    return centres


def _nearest(point: _Centre, centres: Sequence[_Centre]) -> int:
    apart = [_distance(point, centre) for centre in centres]
    nearest = min(apart)
    return next(index for index, far in enumerate(apart) if far <= nearest + TIE)


def _distance(one: _Centre, other: _Centre) -> float:
    return abs(one.memory - other.memory) + (one.model != other.model)


def _mean(points: Sequence[_Centre]) -> _Centre:
    models = Counter(point.model for point in points)
    model = min(models, key=lambda name: (-models[name], name))
    return _Centre(math.fsum(point.memory for point in points) / len(points), model)


def fair_pick(waits: Sequence[Sequence[float]], budget: int = BUFFER) -> Pick:
    """Returns how many instances each queue gives to a round of at most ``budget``. ``waits``: by queue, the time that
    each of its instances has waited.

    A queue weighs its length times its median waiting time, or its length alone while nothing has waited. It gets its
    part of the budget, never more than it holds; the largest fractions are rounded up, and what full queues leave is
    shared again.
    """
    held = [len(queue) for queue in waits]
    weights = [len(queue) * median(queue) if queue else 0.0 for queue in waits]
    if not any(weight > 0.0 for weight in weights):
        weights = [float(length) for length in held]
    counts = [0] * len(held)
    left = min(max(0, budget), sum(held))
    while left > 0:
        left -= _share_out(left, weights, held, counts)
    order = ranked(range(len(held)), lambda index: (-weights[index],))
    return Pick(tuple(counts), tuple(index for index in order if counts[index]))


def _share_out(left: int, weights: Sequence[float], held: Sequence[int], counts: list[int]) -> int:
    """Adds one round's parts of ``left`` to ``counts``; returns how many were given."""
    playing = [index for index, length in enumerate(held) if counts[index] < length]
    parts = {index: weights[index] for index in playing}
    if not any(part > 0.0 for part in parts.values()):
        parts = {index: float(held[index] - counts[index]) for index in playing}
    total = math.fsum(parts.values())
    ideal = {index: left * parts[index] / total for index in playing}
    whole = {index: math.floor(ideal[index] + TIE) for index in playing}
    given = 0
    for index in playing:
        take = min(whole[index], held[index] - counts[index])
        counts[index] += take
        given += take
    spare = left - sum(whole.values())
    for index in ranked(playing, lambda index: (whole[index] - ideal[index], -parts[index])):
        if spare > 0 and counts[index] < held[index]:
            counts[index] += 1
            spare -= 1
            given += 1
    return given


def schedule(
    cluster: Cluster,
    row: StrategyRow,
    pending: Sequence[Pending],
    now: float,
    *,
    queues: int = QUEUES,
    buffer: int = BUFFER,
) -> list[tuple[str, tuple[str, ...]]]:
    """Places pending instances in rounds of queues, fair pick and placement, until a full round places nothing. Returns
    (instance, its devices) in the order of placement; the others wait for a release or a new node."""
    waiting = sorted(pending, key=lambda each: (each.since, each.instance.id))
    done: dict[str, tuple[str, ...]] = {}
    while waiting:
        names = similarity_queues([each.instance for each in waiting], queues)
        lines = [[each for each in waiting if each.instance.id in queue] for queue in map(set, names)]
        pick = fair_pick([[max(0.0, now - each.since) for each in line] for line in lines], buffer)
        before = len(done)
        for instance in (each.instance for index in pick.order for each in lines[index][: pick.counts[index]]):
            ids = cluster.assign(row, instance)
            if ids is not None:
                done[instance.id] = ids
        if len(done) == before:
            break
        waiting = [each for each in waiting if each.instance.id not in done]
    return list(done.items())
