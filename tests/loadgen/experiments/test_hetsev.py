"""The setups of HetSev's experiments, each with one seed and held to the checks of its definition; shorter here."""

from collections.abc import Mapping
from typing import Any

import pytest

from tidegate.loadgen.experiments.definition import catalogue
from tidegate.loadgen.experiments.judge import judge
from tidegate.loadgen.experiments.outcome import ExperimentError
from tidegate.loadgen.experiments.registry import known
from tidegate.loadgen.experiments.setups.hetsev import greedy

SHORTER: Mapping[str, Mapping[str, Any]] = {
    "hs1": {"duration_s": 10.0},
    "hs2": {"requests": 5, "rounds": 1},
    "hs3": {"requests": 5, "rounds": 10, "batches": [2, 16]},
    "hs7": {"instances": 40},
    "hs8": {"each_s": 40.0},
}
WAVES = [{"begins_s": 0.0, "ends_s": 50.0, "peak": 0.6}, {"begins_s": 60.0, "ends_s": 110.0, "peak": 1.0}]


@pytest.mark.parametrize("name", SHORTER)
def test_every_check_of_the_paper_holds(name: str) -> None:
    experiment = catalogue()[name]
    outcome = known()[experiment.setup]({**experiment.parameters, **SHORTER[name]}, 1)
    verdicts = judge(experiment, {1: outcome}).verdicts
    assert [each.check.figure for each in verdicts if not each.holds] == []


@pytest.mark.parametrize(
    ("name", "shorter"),
    [
        ("hs5", {"duration_s": 120.0, "instances": 1, "waves": WAVES}),
        ("hs4", {"lead_s": 40.0, "spike_s": 60.0, "measured_s": 30.0}),
        ("hs6", {"duration_s": 120.0, "spike_at_s": 60.0, "spike_s": 30.0, "rise_s": 30.0}),
    ],
)
def test_long_ones_give_their_figures_and_repeat_them(name: str, shorter: Mapping[str, Any]) -> None:
    """With a tenth of the load; ``tidegate experiment`` holds them to their checks."""
    experiment = catalogue()[name]
    models = [{**each, "peak_rps": each["peak_rps"] / 10.0} for each in experiment.parameters["models"]]
    parameters = {**experiment.parameters, **shorter, "models": models}
    first, again = (known()[experiment.setup](parameters, 1) for _ in range(2))
    assert first == again
    named = [each.figure for each in experiment.checks] + [each.figure for each in experiment.reported]
    assert set(named) <= first.figures.keys()


def test_a_step_beyond_the_capacity_is_late() -> None:
    """The check can fail."""
    experiment = catalogue()["hs8"]
    parameters = {**experiment.parameters, "replicas": 1, "each_s": 30.0, "after": 1.0, "before": 0.95}
    outcome = known()[experiment.setup](parameters, 1)
    assert outcome.figures["late_requests"] > 0


def test_the_gap_needs_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greedy, "is_available", lambda: False)
    experiment = catalogue()["hs7"]
    with pytest.raises(ExperimentError, match=r"pip install 'tidegate\[ilp\]'"):
        known()[experiment.setup](experiment.parameters, 1)
