"""Instance types: what may be launched, what it costs, and rounding without noise."""

import pytest

from tidegate.autoscaler.policies.hetsev.instances import InstanceType, capacity_ips, ceil, floor


def kind(**fields: float | None) -> InstanceType:
    given: dict[str, float | None] = {"cost": 2.0, "throughput_ips": 10.0, "latency_s": 0.1}
    return InstanceType(**{**given, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "slo_s", "may"),
    [
        ({}, 0.1, True),
        ({}, 0.1 - 5e-10, True),
        ({}, 0.0999, False),
        ({}, 5.0, True),
        ({"latency_s": None}, 5.0, False),
        ({"latency_s": 0.0}, 0.0, True),
        ({"latency_s": 0.0}, -1.0, False),
        ({"throughput_ips": None}, 5.0, False),
        ({"throughput_ips": 0.0}, 5.0, False),
        ({"throughput_ips": 1e-9}, 5.0, False),
        ({"throughput_ips": 1e-8}, 5.0, True),
    ],
)
def test_a_type_is_launched_if_it_is_known_and_quick_enough(
    fields: dict[str, float | None], slo_s: float, may: bool
) -> None:
    assert kind(**fields).may_launch(slo_s) is may


def test_a_launch_costs_its_latency_at_the_weight() -> None:
    assert kind(launch_s=30.0).launch_cost(0.01) == pytest.approx(2.0 * 1.3)
    assert kind(launch_s=30.0).launch_cost(0.0) == kind().launch_cost(0.01) == 2.0


def test_the_capacity_is_that_of_what_runs() -> None:
    assert (
        capacity_ips(
            [kind(running=3), kind(running=2, throughput_ips=0.5), kind(), kind(running=9, throughput_ips=None)]
        )
        == 31.0
    )
    assert capacity_ips([]) == 0.0


@pytest.mark.parametrize(("value", "up", "down"), [(2.0, 2, 2), (2.5, 3, 2), (2.0 + 5e-10, 2, 2), (2.0 - 5e-10, 2, 2)])
def test_noise_adds_and_takes_no_instance(value: float, up: int, down: int) -> None:
    assert (ceil(value), floor(value)) == (up, down)
    assert (ceil(2.0 + 1e-8), floor(2.0 - 1e-8)) == (3, 1)
