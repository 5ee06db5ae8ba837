"""The mix of policy ``tide``: the time of a round over many functions, and how far it is from the exact program.

Each function has ten kinds of accelerators at random: slots of a replica, price, replicas that are there, limit and
start-up time. Its mix is asked for once and nothing of it is kept from before, as in a round in which every load has
changed. The exact program is that of integers with the same costs (HiGHS). Prints one JSON line. Needs scipy
(``pip install 'tidegate[ilp]'``), and with ``--rounds-only`` does not.

    python -m benchmarks.micro.mix_bench [--functions 100] [--kinds 10] [--rounds 5] [--seed 1] [--rounds-only]
"""

import argparse
import json
import random
from statistics import fmean, median
from time import process_time

from tidegate.autoscaler.policies.tide.mix import WRITE_OFF_S, MixGroup, cheapest

Asked = tuple[tuple[MixGroup, ...], float]
"""The kinds, and the slots that are wanted."""


def drawn(kinds: int, rng: random.Random) -> Asked:
    """Returns kinds whose price follows their slots within a factor of 1.5, and a load of up to 60 slots."""
    found = []
    for _ in range(kinds):
        slots = rng.uniform(0.5, 8.0)
        price = slots * rng.uniform(0.8, 1.25)
        found.append(MixGroup(slots, price, rng.randrange(4), rng.randrange(4, 30), rng.choice((5.0, 30.0, 120.0))))
    return tuple(found), rng.uniform(0.5, min(60.0, 0.8 * sum(each.slots * each.most for each in found)))


def exact(groups: tuple[MixGroup, ...], slots: float) -> float:
    """Returns the least cost: integers for the replicas of each group, and for those of them that are new."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    count = len(groups)
    starts = [each.price * (each.start_s + 1.0) / WRITE_OFF_S for each in groups]
    carries = [each.slots for each in groups] + [0.0] * count
    news = []
    for index in range(count):
        row = [0.0] * (2 * count)
        row[index], row[count + index] = 1.0, -1.0
        news.append(row)
    most = [float(each.most) for each in groups]
    found = milp(
        [each.price for each in groups] + starts,
        integrality=[1] * count + [0] * count,
        bounds=Bounds([0.0] * (2 * count), most + most),
        constraints=[
            LinearConstraint([carries], [slots], [float("inf")]),
            LinearConstraint(news, [-float("inf")] * count, [float(each.present) for each in groups]),
        ],
        options={"mip_rel_gap": 0.0},
    )
    assert found.fun is not None, found.message
    return float(found.fun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", type=int, default=100)
    parser.add_argument("--kinds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds-only", action="store_true")
    given = parser.parse_args()
    rng = random.Random(given.seed)
    asked = [drawn(given.kinds, rng) for _ in range(given.functions)]
    times, single = list[float](), list[float]()
    chosen: list[float] = []
    for _ in range(given.rounds):
        cheapest.cache_clear()
        spent = []
        chosen = []
        for groups, slots in asked:
            began = process_time()
            chosen.append(cheapest(groups, slots)[0].cost)
            spent.append(process_time() - began)
        times.append(sum(spent))
        single.append(max(spent))
    row: dict[str, float | int] = {
        "functions": given.functions,
        "kinds": given.kinds,
        "round_ms": round(1e3 * median(times), 2),
        "worst_function_ms": round(1e3 * median(single), 2),
    }
    if not given.rounds_only:
        over = [cost / exact(*each) - 1.0 for cost, each in zip(chosen, asked, strict=True)]
        row["over_exact_mean_percent"] = round(100.0 * fmean(over), 3)
        row["over_exact_most_percent"] = round(100.0 * max(over), 3)
        row["exact_share"] = round(sum(each < 1e-6 for each in over) / len(over), 3)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
