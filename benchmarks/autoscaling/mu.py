"""Service rates learnt from traffic alone: how near, and how soon?

Two groups at 80 % of what they can do, Poisson arrivals. *Injected*: fixed service times, one inference a request;
after 30 s the learnt rates are within 5 %. *Profile*: times that vary by half of their mean to both sides, batches of
4; after 200 requests of a group its rate is within 10 % of the profile's. *Mixed*: the same with batches of 1 to 8,
where the rate is that of the mean batch. The rates are those of ``tidegate_group_service_rate``.
"""

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.autoscaling.lab import Kind, Lab, lab, series
from benchmarks.autoscaling.results import Judge, Row
from benchmarks.autoscaling.setup import Setup, client_rows
from tidegate.loadgen.arrivals.processes import poisson
from tidegate.loadgen.clients.bodies import v2_body
from tidegate.loadgen.clients.call import Request

USE = 0.8
POLL_S = 0.5
GROUPS = ("quick", "slow")
INJECTED = (Kind(name="quick", base_s=0.020), Kind(name="slow", base_s=0.036))
PROFILE = (
    Kind(name="quick", base_s=0.00905, per_item_s=0.00553, jitter=0.5),
    Kind(name="slow", base_s=0.016, per_item_s=0.0099, jitter=0.5),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The rates at one moment; only those that were learnt."""

    at_s: float
    requests: dict[str, float]
    mu_ips: dict[str, float]


def run(setup: Setup, judge: Judge) -> Iterator[Row]:
    yield from _case(setup, judge, "injected", INJECTED, (1,), setup.long(35, 10))
    yield from _case(setup, judge, "profile", PROFILE, (4,), setup.long(35, 10))
    if not setup.smoke:
        yield from _case(setup, judge, "mixed", PROFILE, (1, 2, 4, 8), 45.0)


def _case(
    setup: Setup, judge: Judge, name: str, kinds: Sequence[Kind], batches: Sequence[int], seconds: float
) -> Iterator[Row]:
    mean = sum(batches) / len(batches)
    truth = {kind.name: mean / (kind.base_s + kind.per_item_s * mean) for kind in kinds}
    rng = random.Random(setup.seed)
    rate = USE * sum(truth.values()) / mean
    times = poisson(lambda at_s: rate, seconds, rate, rng)
    shots = [(at_s, Request(v2_body(batch), batch)) for at_s, batch in zip(times, _endless(batches, rng), strict=False)]
    seen: list[Seen] = []
    with lab(kinds) as world:
        annotations = {"latency": "500ms", "min-scale": 2, "max-scale": 2, "percentile": "98"}
        world.deploy("rates", on=GROUPS, replicas=2, annotations=annotations)
        found = world.open("rates", shots, seconds, during=lambda began: seen.extend(_poll(world, began, seconds)))
    yield from client_rows(judge, name, found)
    for group in GROUPS:
        if name == "injected":
            at = next((each for each in reversed(seen) if each.at_s <= 30.0), None)
            yield _row(judge, name, group, at, truth[group], 0.05, "error_after_30_s")
        else:
            at = next((each for each in seen if each.requests.get(group, 0) >= 200), None)
            most = 0.10 if name == "profile" else None
            yield _row(judge, name, group, at, truth[group], most, "error_after_200_requests")
        first = next((e for e in seen if abs(e.mu_ips.get(group, 0.0) / truth[group] - 1.0) <= 0.05), None)
        yield judge.row(f"{name}, {group}", "first_within_5_percent_s", None if first is None else first.at_s)


def _row(judge: Judge, name: str, group: str, at: Seen | None, truth: float, most: float | None, measure: str) -> Row:
    mu = None if at is None else at.mu_ips.get(group)
    if at is None or mu is None:
        return judge.row(f"{name}, {group}", measure, 1.0, most=most, note="nothing was learnt by then")
    note = f"{mu:.2f} learnt, {truth:.2f} true, after {at.at_s:.1f} s and {at.requests.get(group, 0):.0f} requests"
    return judge.row(f"{name}, {group}", measure, abs(mu / truth - 1.0), most=most, note=note)


def _endless(batches: Sequence[int], rng: random.Random) -> Iterator[int]:
    while True:
        yield rng.choice(batches)


def _poll(world: Lab, began: float, seconds: float) -> Iterator[Seen]:
    while (at_s := time.monotonic() - began) < seconds:
        text = world.client.metrics()
        yield Seen(
            at_s=at_s,
            requests=series(text, "tidegate_gateway_group_requests_total", "group"),
            mu_ips=series(text, "tidegate_group_service_rate", "group"),
        )
        time.sleep(POLL_S)
