"""What an SLA costs at the load so far, at its latency, half and twice of it."""

import pytest

from tidegate.autoscaler.profiles.admission import KindFigures, Source
from tidegate.autoscaler.profiles.sla_cost import SeenLoad, sla_costs
from tidegate.function import Sla

SLA = Sla(latency_s=0.3, percentile=99.0)
LOAD = SeenLoad(requests_per_s=60.0, size=1.0)


def kind(name: str, one_s: float | None, price: float, mu_ips: float | None = None) -> KindFigures:
    return KindFigures(
        accelerator=name,
        emulated=False,
        source=Source.LEARNT,
        one_s=one_s,
        meets_latency=None,
        mu_ips=mu_ips,
        places=9,
        free=9,
        price_per_hour=price,
    )


def test_a_shorter_latency_costs_more_and_a_longer_one_less() -> None:
    found = sla_costs(SLA, [kind("cpu", 0.1, 0.5)], LOAD)
    assert [each.latency_s for each in found] == [0.3, 0.15, 0.6]
    # Six slots of load: eight keep 300 ms, as the table of the queueing formula says.
    assert [each.replicas for each in found] == [8, 10, 7]
    assert found[0].price_per_hour == pytest.approx(4.0)


def test_the_cheapest_accelerator_that_meets_the_latency_counts() -> None:
    found = sla_costs(SLA, [kind("cpu", 0.2, 0.2), kind("gpu", 0.02, 3.0)], LOAD)
    assert [each.accelerator for each in found] == ["cpu", "gpu", "cpu"]
    assert sla_costs(SLA, [kind("cpu", 0.8, 0.2)], LOAD)[0].accelerator is None


def test_a_replica_of_several_slots_counts_as_them() -> None:
    (one, *_), (four, *_) = (sla_costs(SLA, [kind("cpu", 0.1, 0.5, mu)], LOAD) for mu in (10.0, 40.0))
    assert (one.replicas, four.replicas) == (8, 2)


@pytest.mark.parametrize(
    ("sla", "kinds", "load"),
    [
        (Sla(percentile=99.0), [kind("cpu", 0.1, 0.5)], LOAD),
        (SLA, [kind("cpu", None, 0.5)], LOAD),
        (SLA, [kind("cpu", 0.1, 0.5)], None),
        (SLA, [], LOAD),
    ],
)
def test_what_is_not_known_is_not_answered(sla: Sla, kinds: list[KindFigures], load: SeenLoad | None) -> None:
    assert sla_costs(sla, kinds, load) == ()
