"""Groups of unequal accelerators in virtual time: equal utilisation, and shorter tails than the common balancers.

``benchmarks/micro/groups_sim.py`` has the model. No policy that gives the slowest group its share has a p99 below one
request's time there, so with several slots per replica and little load there is nothing to win: one slot, or none.
"""

import pytest

from benchmarks.micro.groups_sim import (
    RATES,
    Load,
    Service,
    Simulation,
    balanced,
    least_request,
    power_of_two,
    requests,
)

BOTH = list(Service)


def check(load: Load) -> None:
    tidegate = Simulation(load).run()
    others = [balanced(load, balancer) for balancer in (least_request, power_of_two)]
    assert tidegate.spread <= 1.15, f"utilisation {tidegate.per_group}"
    assert tidegate.p99_s < min(other.p99_s for other in others), f"{tidegate}, {others}"


@pytest.mark.parametrize("service", BOTH)
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("limit", [1, 0])
def test_equal_utilisation_and_shorter_tails(limit: int, workers: int, service: Service) -> None:
    check(Load(0.7, service, workers, requests=2500, limit=limit))


@pytest.mark.deep
@pytest.mark.timeout(300)
@pytest.mark.parametrize("service", BOTH)
@pytest.mark.parametrize("workers", [1, 4, 8])
@pytest.mark.parametrize("limit", [1, 0])
@pytest.mark.parametrize("utilisation", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("replicas", [1, 3])
def test_the_same_for_every_load(replicas: int, utilisation: float, limit: int, workers: int, service: Service) -> None:
    check(Load(utilisation, service, workers, requests=8000, limit=limit, replicas=replicas))


APART: dict[str, tuple[int, int | None]] = {"l4": (1, 8), "a10": (9, None), "h100": (9, None)}
OVERLAPPING = APART | {"a10": (1, None)}
"""Nine of ten requests have 1 inference, one has 64: an eighth of the work, which is what the L4 does of all."""


@pytest.mark.parametrize(("cuts", "workers"), [(APART, 1), (OVERLAPPING, 4)])
def test_two_sizes_apart_lose_no_throughput(cuts: dict[str, tuple[int, int | None]], workers: int) -> None:
    """The oracle knows all requests before and splits them so that all groups it may use end together."""
    flood = Load(3.0, Service.FIXED, workers, requests=1000, large=0.1, classes=cuts)
    sizes = [request.inferences for request in requests(flood)]
    small_s = sizes.count(1) / RATES["l4"]
    large_s = 64 * sizes.count(64) / (RATES["a10"] + RATES["h100"])
    oracle_s = max(small_s, large_s) if cuts is APART else sum(sizes) / sum(RATES.values())
    assert Simulation(flood).run().answered_ips >= 0.95 * sum(sizes) / oracle_s


def test_small_requests_wait_for_small_ones_alone() -> None:
    p99_s = []
    for classes in (None, APART):
        simulation = Simulation(Load(0.8, Service.FIXED, 1, requests=1500, large=0.1, classes=classes))
        simulation.run()
        small = sorted(seconds for inferences, seconds in simulation.latencies if inferences == 1)
        p99_s.append(small[int(0.99 * len(small))])
    assert p99_s[1] < 0.5 * p99_s[0]
