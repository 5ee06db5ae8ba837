"""Requests of two sizes over two groups: the loss against the best split, computed with all figures known.

The weak group is quick with single inferences and slow with batches, the strong one the other way round. Callers in a
closed loop keep both busy; the oracle is the best split of both sizes, found by a search over all of them. A limit of
two: the next request is at the device when it is free.
"""

import random
from collections.abc import Iterator, Sequence

from benchmarks.autoscaling.lab import Kind, lab
from benchmarks.autoscaling.results import Judge, Row
from benchmarks.autoscaling.setup import Setup, client_rows, write_timeline
from benchmarks.autoscaling.timeline import Run, ended_s
from tidegate.loadgen.clients.bodies import v2_body
from tidegate.loadgen.clients.call import Request
from tidegate.loadgen.clients.runs import LoadRun as Load
from tidegate.loadgen.clients.workers import callers

CALLERS = 24
KINDS = (
    Kind(name="weak", base_s=0.004, per_item_s=0.008, price=0.5),
    Kind(name="strong", base_s=0.020, per_item_s=0.001, price=3.0),
)
SMALL, LARGE = 1, 32
SHARE_LARGE = 0.2
STEPS = 200


def oracle_rps(kinds: Sequence[Kind], share_large: float) -> tuple[float, float, float]:
    """(requests per second, share of the small ones that the first group takes, the same of the large ones): the best
    of all splits of two sizes over two groups, in steps of 1/200. Every group can be busy all the time."""
    first, second = ([kind.base_s + kind.per_item_s * size for size in (SMALL, LARGE)] for kind in kinds)
    best = (0.0, 0.0, 0.0)
    for small in range(STEPS + 1):
        for large in range(STEPS + 1):
            x, y = small / STEPS, large / STEPS
            one = (1.0 - share_large) * x * first[0] + share_large * y * first[1]
            other = (1.0 - share_large) * (1.0 - x) * second[0] + share_large * (1.0 - y) * second[1]
            best = max(best, (1.0 / max(one, other), x, y))
    return best


def run(setup: Setup, judge: Judge) -> Iterator[Row]:
    seconds = setup.long(60, 8)
    best, small, large = oracle_rps(KINDS, SHARE_LARGE)
    note = f"the weak group takes {small:.1%} of the small and {large:.1%} of the large requests"
    yield judge.row("oracle", "throughput_rps", best, note=note)
    with lab(KINDS) as world:
        for case, routing in (("cuts", "auto"), ("without cuts", "off")):
            annotations: dict[str, object] = {"min-scale": 2, "max-scale": 2, "concurrency": 2, "size-routing": routing}
            world.deploy("sizes", replicas=2, annotations=annotations)
            found = world.run(seconds, {"sizes": lambda load: _drive(load, seconds, setup.seed)})["sizes"]
            routed = world.route("sizes")
            groups = () if routed is None else routed.groups
            world.delete("sizes")
            yield from client_rows(judge, case, found)
            part = rate_rps(found) / best
            cuts = ", ".join(f"{each.accelerator} {each.smallest}-{each.largest or ''}" for each in groups)
            yield judge.row(case, "throughput_of_the_oracle", part, least=0.95 if case == "cuts" else None, note=cuts)
            write_timeline(setup, f"sizes-{routing}", found, 1.0)


def rate_rps(found: Run) -> float:
    """Good answers per second in the second half."""
    half = found.seconds / 2.0
    return sum(each.is_good and half <= ended_s(each) < found.seconds for each in found.outcomes) / half


async def _drive(load: Load, seconds: float, seed: int) -> None:
    small, large = (Request(v2_body(size), size) for size in (SMALL, LARGE))
    mix = mixed(small, large, random.Random(seed))
    await load.closed_loop(callers(CALLERS, seconds), lambda: next(mix))


def mixed(small: Request, large: Request, rng: random.Random) -> Iterator[Request]:
    """Without end, in an order that is shuffled and with a share that is exact in every twenty."""
    count = round(20 * SHARE_LARGE)
    while True:
        block = [large] * count + [small] * (20 - count)
        rng.shuffle(block)
        yield from block
