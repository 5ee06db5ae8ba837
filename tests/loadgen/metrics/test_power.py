"""Power: straight lines from idle to TDP, sampled every two seconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.loadgen.metrics.power import PowerMeter, PowerSample, epc, watts

TDP_W = {("a100", 0): 250.0, ("a100", 1): 250.0, ("t4", 0): 50.0}


def test_a_unit_draws_between_idle_and_its_tdp() -> None:
    assert watts(0.0, 250.0) == 60.0
    assert watts(0.5, 250.0) == 155.0
    assert watts(1.0, 250.0) == 250.0
    assert watts(0.0, 50.0) == watts(1.0, 50.0) == 50.0


def test_samples_tell_what_all_units_draw_and_which_of_them_work() -> None:
    samples: list[PowerSample] = []
    meter = PowerMeter(TDP_W, on_sample=samples.append)
    meter.busy([("a100", 0, 0.0, 1.0)])
    meter.advance(1.0)
    assert samples == []
    meter.busy([("a100", 0, 1.0, 3.0), ("cpu", 0, 0.0, 3.0)])
    meter.advance(7.0)
    assert samples == [
        (2.0, 250.0 + 60.0 + 50.0, {("a100", 0): 250.0}),
        (4.0, 155.0 + 60.0 + 50.0, {("a100", 0): 155.0}),
        (6.0, 60.0 + 60.0 + 50.0, {}),
    ]
    assert meter.most_w == 360.0 and "360 W" in repr(meter)


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 3.0)), max_size=10))
def test_the_samples_add_up_to_the_work(steps: list[tuple[float, float]]) -> None:
    samples: list[PowerSample] = []
    meter, now, busy_s = PowerMeter({("a100", 0): 250.0}, on_sample=samples.append), 0.0, 0.0
    for idle_s, work_s in steps:
        now += idle_s
        meter.busy([("a100", 0, now, now + work_s)])
        now, busy_s = now + work_s, busy_s + work_s
    meter.advance(now + 2.0)
    joules = sum(2.0 * each.total_w for each in samples)
    assert joules == pytest.approx(60.0 * samples[-1].until_s + 190.0 * busy_s)


def test_a_device_without_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="0 GB"):
        epc(p_base_w=60.0, tdp_w=250.0, sm=0.5, mem_used_gb=1.0, mem_total_gb=0.0, lat_s=1.0)
