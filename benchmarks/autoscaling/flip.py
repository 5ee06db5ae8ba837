"""Weights and cuts that change under load: is a request lost? (SMIF, F17)

*Learnt*: the mix of sizes changes every few seconds, from single inferences to single ones and batches and back, so
that weights and cuts follow it. *Deployed*: the split over the groups is changed by hand again and again, each time as
a new revision, for which the one before makes room. Every request must be answered with 200.
"""

import itertools
import random
import time
from collections.abc import Iterator

from benchmarks.autoscaling.lab import Kind, Lab, lab
from benchmarks.autoscaling.results import Judge, Row
from benchmarks.autoscaling.setup import Setup, client_rows, write_timeline
from benchmarks.autoscaling.timeline import Run
from tidegate.loadgen.arrivals.processes import poisson
from tidegate.loadgen.clients.bodies import v2_body
from tidegate.loadgen.clients.call import Request
from tidegate.loadgen.clients.outcomes import Shot

KINDS = (
    Kind(name="weak", base_s=0.004, per_item_s=0.008, price=0.5),
    Kind(name="strong", base_s=0.020, per_item_s=0.001, price=3.0),
)
RATE = 40.0
LARGE = 16
EVERY_S = 8.0


def run(setup: Setup, judge: Judge) -> Iterator[Row]:
    with lab(KINDS, workers=2) as world:
        yield from _learnt(setup, judge, world)
        yield from _deployed(setup, judge, world)


def _learnt(setup: Setup, judge: Judge, world: Lab) -> Iterator[Row]:
    seconds = setup.long(80, 12)
    _deploy(world, "auto")
    found = world.open("flip", _shots(setup, seconds, EVERY_S), seconds)
    yield from client_rows(judge, "learnt", found)
    yield _changes(judge, "learnt", found)
    write_timeline(setup, "flip-learnt", found, 1.0)


def _deployed(setup: Setup, judge: Judge, world: Lab) -> Iterator[Row]:
    seconds = setup.long(60, 12)

    def redeploy(began: float) -> None:
        turn = 0
        while time.monotonic() - began < seconds - 5.0:
            turn += 1
            _deploy(world, "weak=1,strong=9" if turn % 2 else "weak=9,strong=1")
            time.sleep(2.0)

    found = world.open("flip", _shots(setup, seconds, seconds), seconds, during=redeploy)
    yield from client_rows(judge, "deployed", found)
    yield _changes(judge, "deployed", found)
    write_timeline(setup, "flip-deployed", found, 1.0)


def _deploy(world: Lab, weights: str) -> None:
    annotations: dict[str, object] = {"policy": "kpa", "min-scale": 2, "max-scale": 2, "timeout": "20s"}
    if weights != "auto":
        annotations["group-weights"] = weights
    world.deploy("flip", replicas=2, annotations=annotations)


def _shots(setup: Setup, seconds: float, every_s: float) -> list[Shot]:
    """In every second span of ``every_s`` a third of the requests are large."""
    rng = random.Random(setup.seed)
    shots = []
    for at_s in poisson(lambda at_s: RATE, seconds, RATE, rng):
        size = LARGE if int(at_s / every_s) % 2 and rng.random() < 1 / 3 else 1
        shots.append((at_s, Request(v2_body(size), size)))
    return shots


def _changes(judge: Judge, case: str, found: Run) -> Row:
    published = [tuple(sorted(look.weights.items())) for look in found.looks if look.weights]
    changes = sum(one != other for one, other in itertools.pairwise(published))
    spread = sorted({round(dict(each).get("strong", 0.0), 2) for each in published})
    note = f"weight of the strong group between {spread[0]:g} and {spread[-1]:g}" if spread else ""
    return judge.row(case, "weight_changes_seen", changes, least=1, note=note)
