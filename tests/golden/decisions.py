"""Runs of the policies in a world of their own, second by second: ``python -m tests.golden.decisions`` writes them.

A change of a policy shows as a difference of ``data/decisions.jsonl``, to be read line by line before it is committed.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.autoscaler.queueing import Kind, QueueWorld, batched, exponential, fixed
from tests.golden.vectors import OWN
from tests.support.worlds.autoscaling import revision
from tidegate.function import Scaling, Sla
from tidegate.records.decision import Decision

LOADS = ((4.0, 60), (22.0, 60), (3.0, 90), (0.0, 90), (9.0, 60))
"""(requests per second, seconds)."""
TWO_KINDS = {
    "cpu": Kind(exponential(0.2), slots=1, price=0.5, start_up_s=8.0),
    "gpu": Kind(batched(0.04, 0.01), slots=4, price=2.0, start_up_s=20.0, room=3),
}
ONE_KIND = {"cpu": Kind(fixed(0.15), slots=2, price=1.0)}
RATES = {"cpu": 5.0, "gpu": 20.0}
THEMIS = {"profile": "150,0,0,0"}
CASES: Mapping[str, tuple[str, Mapping[str, str], Mapping[str, Kind], Mapping[str, float]]] = {
    "kpa": ("kpa", {}, ONE_KIND, {}),
    "hpa": ("hpa", {}, ONE_KIND, {}),
    "smif": ("smif", {}, ONE_KIND, {}),
    "smif with two kinds": ("smif", {}, TWO_KINDS, RATES),
    "tide": ("tide", {}, ONE_KIND, {}),
    "tide with two kinds": ("tide", {}, TWO_KINDS, {}),
    "themis": ("themis", THEMIS, ONE_KIND, {}),
    "hetsev-greedy": ("hetsev-greedy", {}, TWO_KINDS, RATES),
    "hetsev-ilp": ("hetsev-ilp", {}, TWO_KINDS, RATES),
}
"""(policy, its parameters, kinds, rates of a profile)."""


def runs(case: str) -> Iterator[dict[str, Any]]:
    """Yields each decision of a case that has another size than the one before, and every tenth one."""
    policy, parameters, kinds, rates = CASES[case]
    scaling = Scaling(policy=policy, parameters=dict(parameters), scale_to_zero_after_s=20.0)
    spec = revision(scaling=scaling, sla=Sla(latency_s=0.6, percentile=95.0))
    world = QueueWorld(spec, kinds, seed=5, ready={"cpu": 1}, mu_ips=rates)
    before: object = None
    second = 0
    for rate, seconds in LOADS:
        world.rate = rate
        for _ in range(seconds):
            second += 1
            world.are_samples_lost = 100 <= second < 104
            decided = world.second()
            size = (decided.desired, decided.cores, decided.groups)
            if size != before or second % 10 == 0:
                yield {"case": case, "second": second, **facts_of(decided)}
            before = size


def facts_of(decided: Decision) -> dict[str, Any]:
    """Returns the figures of a decision, to six digits: libm's last ones differ by platform."""
    return {
        "desired": decided.desired,
        "cores": decided.cores,
        "groups": {each.accelerator: each.replicas for each in decided.groups or ()},
        "reasons": [f"{each.code}: {each.detail}" for each in decided.reasons],
        "observed": {name: float(f"{value:.6g}") for name, value in decided.observed.items()},
    }


if __name__ == "__main__":
    with (OWN / "decisions.jsonl").open("w", encoding="utf-8") as lines:
        for name in CASES:
            for row in runs(name):
                lines.write(json.dumps(row) + "\n")
