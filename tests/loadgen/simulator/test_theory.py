"""Against queueing theory: what must come out when times are as the theory assumes them.

Formulas: Kleinrock, Queueing Systems, volume 1 (M/M/c: Erlang's C; M/D/1: Pollaczek and Khinchin).
"""

from math import factorial
from statistics import fmean

import pytest

from tests.loadgen.simulator.worlds import deployed, fixed, function, kind, latencies, poisson, run, waits
from tidegate.function import QueueBounds
from tidegate.loadgen.simulator.scenario import Callers, Deployed, Scenario

ROOMY = QueueBounds(requests=1_000_000)


def erlang_wait_s(rate: float, service_s: float, servers: int) -> float:
    """Mean waiting time of M/M/c."""
    load = rate * service_s
    busy = load**servers / factorial(servers) / (1 - load / servers)
    waits_at_all = busy / (sum(load**k / factorial(k) for k in range(servers)) + busy)
    return waits_at_all * service_s / (servers - load)


def mean_wait_s(of: Deployed, rate: float, seeds: range, count: int = 5_000) -> float:
    """Over seeds; the first tenth of each run is left out, it begins empty."""
    found = []
    for seed in seeds:
        scenario = Scenario(
            kinds=(kind(),),
            functions=(of,),
            seed=seed,
            arrivals=poisson(rate, count, seed),
            keeps_scale=True,
            message_s=0.0,
            turn_s=0.0,
        )
        found += waits(run(scenario)[1])[count // 10 :]
    return fmean(found)


@pytest.mark.parametrize(("replicas", "slots", "load"), [(1, 1, 0.6), (4, 1, 0.7), (1, 4, 0.7), (2, 2, 0.7)])
def test_exponential_service_waits_as_erlang_says(replicas: int, slots: int, load: float) -> None:
    """Late binding makes one queue of all slots, in whichever replicas they are."""
    rate = load * replicas * slots / 0.01
    of = deployed(fixed(0.01, is_exponential=True), of=function(concurrency=slots, queue=ROOMY), ready={"t4": replicas})
    expected = erlang_wait_s(rate, 0.01, replicas * slots)
    assert mean_wait_s(of, rate, range(1, 4)) == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_fixed_service_waits_half_as_long(load: float) -> None:
    of = deployed(fixed(0.01), of=function(queue=ROOMY))
    expected = load * 0.01 / (2 * (1 - load))
    assert mean_wait_s(of, load / 0.01, range(1, 4)) == pytest.approx(expected, rel=0.08)


def test_a_queue_inside_the_model_server_is_the_same_queue() -> None:
    """Without a limit a request waits where it cannot be seen: the time is no other."""
    of = deployed(fixed(0.01, width=1), of=function(concurrency=0))
    scenario = Scenario(
        kinds=(kind(),), functions=(of,), arrivals=poisson(70.0, 10_000), keeps_scale=True, message_s=0.0, turn_s=0.0
    )
    _, sink = run(scenario)
    assert fmean(latencies(sink)) - 0.01 == pytest.approx(0.7 * 0.01 / 0.6, rel=0.1)
    assert fmean(waits(sink)) == pytest.approx(0.0, abs=1e-9)


def test_closed_callers_obey_little() -> None:
    """N callers without a pause: throughput times latency is N."""
    scenario = Scenario(
        kinds=(kind(),),
        functions=(deployed(fixed(0.02, jitter=0.3), ready={"t4": 2}),),
        callers=(Callers(function="f", callers=7),),
        keeps_scale=True,
    )
    result, sink = run(scenario, 60.0)
    answered = latencies(sink)
    assert len(answered) / result.simulated_s * fmean(answered) == pytest.approx(7, rel=0.01)
    assert len(answered) / result.simulated_s == pytest.approx(100, rel=0.01)
