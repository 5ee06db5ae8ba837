"""The small languages of load's options: what they mean, and that every fault of them is reported."""

import random

import pytest

from tidegate.loadgen.arrivals.changes import Placement
from tidegate.loadgen.arrivals.pace import LoadPhase
from tidegate.loadgen.arrivals.shapes import times
from tidegate.loadgen.plans import shape_words
from tidegate.schema.yaml_nodes import Faults


def places(faults: Faults) -> list[str]:
    return [fault.where for fault in faults.error().faults]


@pytest.mark.parametrize(
    ("text", "duration_s", "rates"),
    [
        ("constant:rate=5", 10.0, {0.0: 5.0, 9.9: 5.0}),
        ("ramp:low=0,peak=8", 8.0, {0.0: 0.0, 2.0: 4.0, 5.0: 8.0}),
        ("spike:base=1,peak=9,at=4s,span=500ms", 10.0, {3.9: 1.0, 4.2: 9.0, 4.6: 1.0}),
        ("diurnal:low=1,high=3,period=20s", 40.0, {0.0: 1.0, 10.0: 3.0, 20.0: 1.0}),
        ("steps:10s@2,500ms@4", 10.5, {0.0: 2.0, 10.2: 4.0}),
        ("production:low=2,high=9", 60.0, {0.0: 2.0, 34.0: 2.0, 36.0: 9.0, 42.0: 2.0}),
        ("fluctuating:capacity=10", 25.0, {0.0: 2.0, 5.0: 6.0, 11.0: 2.0, 17.0: 10.0}),
        ("oltunes:resnet18", 10.0, {0.0: 60.0}),
    ],
)
def test_a_shape_is_what_it_says(text: str, duration_s: float, rates: dict[float, float]) -> None:
    faults = Faults("test")
    load = shape_words.shape(text, duration_s, faults)
    assert load is not None
    assert not len(faults)
    assert load.duration_s == duration_s
    for at_s, rate in rates.items():
        assert load.rate(at_s) == pytest.approx(rate)
    assert load.highest >= max(rates.values())


@pytest.mark.parametrize(
    "text",
    [
        "spkie:base=1",
        "constant",
        "constant:rate=x",
        "constant:rate=1,rate=2",
        "constant:rate=2000000",
        "ramp:low=1",
        "spike:base=1,peak=2,at=9s,span=5s",
        "diurnal:low=1,high=2,period=0s",
        "steps:10@2",
        "steps:0s@2",
        "steps:",
        "production:low=1",
        "fluctuating:capacity=x",
        "oltunes:resnet19",
        "",
    ],
)
def test_a_shape_that_cannot_be_is_a_fault(text: str) -> None:
    faults = Faults("test")
    assert shape_words.shape(text, 10.0, faults) is None
    assert places(faults) == ["--shape"]


@pytest.mark.parametrize("text", ["constant:rate=1", "oltunes:gpt2"])
def test_a_shape_needs_its_duration(text: str) -> None:
    faults = Faults("test")
    assert shape_words.shape(text, None, faults) is None
    assert places(faults) == ["--for"]


def test_patterns_of_a_paper_have_a_length_of_their_own() -> None:
    faults = Faults("test")
    lengths = {"production:low=2,high=9": 6000.0, "fluctuating:capacity=1": 2500.0}
    for text, seconds in lengths.items():
        load = shape_words.shape(text, None, faults)
        assert load is not None
        assert load.duration_s == seconds
    assert not len(faults)


def test_rates_of_a_table_go_with_how_requests_arrive() -> None:
    found = [shape_words.shape("oltunes:gpt2", 1.0, Faults("test"), placement) for placement in Placement]
    assert [None if load is None else load.rate(0.0) for load in found] == [2.0, 3.0, 3.0]


def test_states_of_a_modulated_process_are_two_or_more() -> None:
    faults = Faults("test")
    assert shape_words.modulated("mmpp:60s@5,10s@100", faults) == [(60.0, 5.0), (10.0, 100.0)]
    assert not len(faults)
    assert shape_words.modulated("mmpp:60s@5", faults) is None
    assert shape_words.modulated("mmpp:60@5,1s@x", faults) is None
    assert places(faults) == ["--shape"] * 2


@pytest.mark.parametrize("placement", list(Placement))
def test_arrivals_of_a_shape_rise_inside_it_and_are_as_many_as_it_says(placement: Placement) -> None:
    load = shape_words.shape("steps:5s@100,2500ms@400", None, Faults("test"))
    assert load is not None
    found = list(times(load, placement, random.Random(3)))
    assert found == sorted(found)
    assert found[0] >= 0.0
    assert found[-1] < 7.5
    assert len(found) == pytest.approx(1500, abs=150 if placement is Placement.POISSON else 1)


def test_batches_are_drawn_by_their_weights() -> None:
    draw = shape_words.batches("1:0.5,8:0.3,32:0.2", Faults("test")).drawer(random.Random(1))
    drawn = [draw() for _ in range(2000)]
    assert set(drawn) == {1, 8, 32}
    assert drawn.count(8) / 2000 == pytest.approx(0.3, abs=0.04)
    assert {shape_words.batches("4", Faults("test")).drawer(random.Random(1))() for _ in range(9)} == {4}


def test_every_fault_of_batches_and_phases_is_reported() -> None:
    faults = Faults("test")
    shape_words.batches("0:1,2:x,3,3:1,4:1", faults)
    shape_words.batches("1:0", faults)
    assert places(faults) == ["--batches"] * 4
    faults = Faults("test")
    found = shape_words.phases(["0s:100:4:10", "1:1:1:1", "1s:0:1:1", "1s:1:1:0", "1s:1", "2s:9:10000:1"], faults)
    assert places(faults) == ["--phase"] * 5
    assert found == [LoadPhase(0.0, 100, 4, 10.0)]


def test_phases_of_the_thesis_have_names() -> None:
    faults = Faults("test")
    assert len(shape_words.phases(["thesis-phases"], faults)) == 4
    assert shape_words.phases(["thesis-constant"], faults) == [LoadPhase(0.0, 15_000, 6, 15.0)]
    assert shape_words.phases(["thesis"], faults) == []
    assert "thesis-constant or thesis-phases" in str(faults.error())
