"""What an SLA costs at the load so far, at its latency, half and twice of it."""

import pytest

from tidegate.autoscaler.profiles.admission import KindFigures, Source
from tidegate.autoscaler.profiles.sla_cost import SeenLoad, Streams, sla_costs
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


CHAT = SeenLoad(
    requests_per_s=4.0,
    size=1.0,
    streams={
        # Four streams at a time of 100 tokens: 20 ms each alone, 40 ms with four.
        "gpu": Streams(first_s=0.2, most=4.0, whole_s=4.2, pace=((1.0, 0.02), (4.0, 0.04)), between=100.0)
    },
)


def test_a_stream_holds_its_slot_until_its_last_token() -> None:
    sla = Sla(latency_s=2.0, percentile=99.0)
    found = sla_costs(sla, [kind("gpu", 0.2, 3.0), kind("cpu", 0.01, 0.1)], CHAT)
    # 16.8 streams at a time on replicas of four. The accelerator without a stream so far is not compared.
    assert [(each.accelerator, each.latency_s, each.per_token_s) for each in found] == [
        ("gpu", 2.0, None),
        ("gpu", 1.0, None),
        ("gpu", 4.0, None),
    ]
    assert all(each.replicas >= 5 for each in found)
    assert found[1].replicas >= found[0].replicas >= found[2].replicas


def test_a_time_per_output_token_bounds_the_streams_of_a_replica() -> None:
    sla = Sla(latency_s=2.0, percentile=99.0, per_token_s=0.045)
    asked, half, twice = sla_costs(sla, [kind("gpu", 0.2, 3.0)], CHAT)
    assert (asked.accelerator, asked.per_token_s) == ("gpu", 0.045)
    # 40.5 ms a token: four streams. 20.2 ms: one stream, each in 2.2 s: 8.8 of them.
    assert half.replicas > 8 > asked.replicas >= twice.replicas
    assert half.per_token_s == pytest.approx(0.0225)


def test_a_looser_target_never_costs_more() -> None:
    """Two streams at a time take 3.2 s each; four, which 180 ms a token allow, pass more slowly."""
    pace = ((1.0, 0.02), (2.0, 0.03), (8.0, 0.4))
    streams = {"gpu": Streams(first_s=0.2, most=8.0, whole_s=40.0, pace=pace, between=100.0)}
    load = SeenLoad(requests_per_s=4.0, size=1.0, streams=streams)
    sla = Sla(latency_s=2.0, percentile=99.0, per_token_s=0.2)
    asked, half, twice = sla_costs(sla, [kind("gpu", 0.2, 3.0)], load)
    assert asked.replicas == half.replicas == twice.replicas > 6
    assert [each.per_token_s for each in (asked, half, twice)] == pytest.approx([0.2, 0.1, 0.4])
    assert [each.latency_s for each in (asked, half, twice)] == [2.0, 1.0, 4.0]


def test_a_time_per_output_token_that_one_stream_misses_is_met_by_no_accelerator() -> None:
    found = sla_costs(Sla(latency_s=2.0, percentile=99.0, per_token_s=0.01), [kind("gpu", 0.2, 3.0)], CHAT)
    assert [each.accelerator for each in found] == [None, None, "gpu"]


def test_a_first_token_that_comes_too_late_is_met_by_no_accelerator() -> None:
    found = sla_costs(Sla(latency_s=0.3, percentile=99.0), [kind("gpu", 0.2, 3.0)], CHAT)
    assert [each.accelerator for each in found] == ["gpu", None, "gpu"]


def test_a_time_per_output_token_without_a_measured_pace_is_not_answered() -> None:
    load = SeenLoad(requests_per_s=4.0, size=1.0, streams={"gpu": Streams(first_s=0.2, most=4.0, whole_s=4.2)})
    assert sla_costs(Sla(latency_s=2.0, percentile=99.0, per_token_s=0.05), [kind("gpu", 0.2, 3.0)], load) == ()
    assert sla_costs(Sla(latency_s=2.0, percentile=99.0), [kind("gpu", 0.2, 3.0)], load)
