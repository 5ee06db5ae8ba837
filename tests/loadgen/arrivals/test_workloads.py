"""The papers' workloads: rates of what is generated, over every 15 seconds where the paper has them."""

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.golden.hetsev_levels import windowed_rates
from tidegate.loadgen.arrivals import shapes
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.arrivals.changes import Placement
from tidegate.loadgen.arrivals.shapes import Load
from tidegate.loadgen.arrivals.workloads import LANGUAGE, OLTUNES, THEMIS, THESIS, oltunes
from tidegate.loadgen.traces.files import open_trace

WINDOW_S = 15.0


def rates(times: Iterable[float], duration_s: float) -> list[float]:
    return windowed_rates(list(times), duration_s, window_s=WINDOW_S, step_s=WINDOW_S)


def means(load: Load) -> list[float]:
    """What the shape itself says of every 15 seconds."""
    parts = 150
    step_s = WINDOW_S / parts
    return [
        sum(load.rate(window * WINDOW_S + (part + 0.5) * step_s) for part in range(parts)) / parts
        for window in range(int(load.duration_s / WINDOW_S))
    ]


@pytest.mark.parametrize(
    "load",
    [
        shapes.production(20.0, 100.0),
        shapes.fluctuating(100.0),
        shapes.stretched(shapes.production(20.0, 100.0), 600.0),
        shapes.waves(300.0, 40.0, [(60.0, 240.0, 200.0)]),
    ],
    ids=["production", "fluctuating", "stretched", "waves"],
)
@pytest.mark.parametrize("placement", [Placement.POISSON, Placement.UNIFORM])
def test_each_15_seconds_have_the_rate_of_the_shape(load: Load, placement: Placement) -> None:
    """F40. Poisson counts stray by their square root: five of it is one window in a million."""
    found = rates(shapes.times(load, placement, random.Random(4)), load.duration_s)
    for window, (rate, mean) in enumerate(zip(found, means(load), strict=False)):
        spread = 5.0 * (mean / WINDOW_S) ** 0.5 if placement is Placement.POISSON else 1.5
        assert abs(rate - mean) <= spread, f"{rate}/s in window {window}, {mean}/s wanted"


def test_the_production_pattern_is_low_and_has_one_spike() -> None:
    load = shapes.production()
    assert [load.rate(at) for at in (0.0, 3499.0, 3500.0, 4099.0, 4100.0, 5999.0)] == [200, 200, 1000, 1000, 200, 200]
    assert load.duration_s == 6000.0


@pytest.mark.parametrize("placement", list(Placement))
def test_each_model_of_table_7_has_its_rate(placement: Placement) -> None:
    """F72."""
    seconds = 120.0
    counts = Counter(each.function for each in oltunes(seconds, placement, random.Random(2)))
    assert set(counts) == set(OLTUNES)
    for name, count in counts.items():
        wanted = OLTUNES[name].of(placement) * seconds
        assert abs(count - wanted) <= (4.0 * wanted**0.5 if placement is Placement.POISSON else 1.0), name


def test_the_language_models_replay_a_real_trace() -> None:
    """F72: the requests of the trace, in its order and with its tokens, among the others by time."""
    real = list(open_trace(Path("sample:azure-llm")).arrivals(random.Random(1)))
    made = list(oltunes(120.0, Placement.UNIFORM, random.Random(2), real))
    assert [each.at_s for each in made] == sorted(each.at_s for each in made)
    language = [each for each in made if each.function in LANGUAGE]
    assert [each._replace(function="") for each in language] == [each for each in real if each.at_s < 120.0]
    assert len({each.function for each in language}) == 2
    others = Counter(each.function for each in made if each.function not in LANGUAGE)
    assert others == {"resnet18": 70 * 120, "yolov5": 50 * 120, "resnet50": 40 * 120}


def test_the_thesis_phases_are_as_its_tables_say() -> None:
    """F51: the pacing itself is held by golden vectors."""
    assert [phase.requests for phase in THESIS["thesis-phases"]] == [16_200, 9_600, 16_200, 6_000]
    nominal = [phase.start_s + phase.requests / (phase.workers * phase.rate) for phase in THESIS["thesis-phases"]]
    assert nominal == [180.0, 660.0, 840.0, 1440.0]


@pytest.mark.parametrize("name", THEMIS)
def test_a_pipeline_gets_its_share_of_a_stream(name: str, tmp_path: Path) -> None:
    """F89: over many draws each second's mean lies within 3 sigma of what it should be."""
    stream = [60, 44, 0, 210, 3, 388]
    path = tmp_path / "stream.txt"
    path.write_text("".join(f"{count}\n" for count in stream))
    trace, (divisor, least), draws = open_trace(path), THEMIS[name], 400
    rng, seen = random.Random(7), Counter[int]()
    for _ in range(draws):
        seen.update(int(each.at_s) for each in trace.arrivals(rng, Placement.POISSON, 1.0 / divisor, least))
    for second, count in enumerate(stream):
        mean = max(1.0, count / divisor)
        assert abs(seen[second] / draws - mean) <= 3.0 * (mean / draws) ** 0.5, second


def test_a_share_has_a_floor_only_in_traces_of_counts(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text('{"at": 1}\n')
    assert list(open_trace(path).arrivals(random.Random(1), least=5.0)) == [Arrival(1.0)]
