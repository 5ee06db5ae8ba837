"""The setups of OLTunes' experiments, each with one seed and held to the checks of its definition."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tidegate.loadgen.experiments.definition import catalogue
from tidegate.loadgen.experiments.judge import judge
from tidegate.loadgen.experiments.outcome import ExperimentError
from tidegate.loadgen.experiments.registry import known
from tidegate.loadgen.experiments.setups.oltunes.baselines import MatrixFactorisation, RandomForest
from tidegate.loadgen.experiments.setups.oltunes.dataset import DEVICES, MODELS, ROWS, batch_time_s, generate
from tidegate.loadgen.experiments.setups.oltunes.prediction import _reached

SHORTER: Mapping[str, Mapping[str, Any]] = {
    "ot1": {"duration_s": 1.0},
    "ot3": {"prefixes": [40, 100, 200, 300], "judged": 200},
    "ot4": {"before": 100, "judged": 50, "models": 1},
    "ot8": {"minutes": 4},
    "ot13": {"rows": 300},
}


@pytest.mark.parametrize("name", [f"ot{number}" for number in (1, 2, 3, 4, 8, 13)])
def test_every_check_of_the_paper_holds(name: str) -> None:
    experiment = catalogue()[name]
    outcome = known()[experiment.setup]({**experiment.parameters, **SHORTER.get(name, {})}, 1)
    verdicts = judge(experiment, {1: outcome}).verdicts
    assert [each.check.figure for each in verdicts if not each.holds] == []


def test_with_a_fifth_of_the_samples_the_printed_r_square_is_not_reached_in_one_pass() -> None:
    """The check can fail."""
    outcome = known()["oltunes.table8"]({"rows": 200, "learnt": 0.5}, 1)
    assert outcome.figures["machine_one_pass_r2"] < 0.8772


def test_equal_tasks_gain_nothing_by_shares_and_the_best_ones_are_halves() -> None:
    """The check can fail."""
    task = {"model": "resnet50", "batches": 16}
    outcome = known()["oltunes.shares"]({"tasks": [task, task], "batch": 16, "rows": 100}, 1)
    assert outcome.figures["best_share_pct"] == 50.0
    assert outcome.figures["best_gain"] == 0.0
    assert outcome.figures["gain"] <= 0.0


@pytest.mark.parametrize(
    ("tasks", "why"),
    [([("gpt2", 1)], "1 tasks; two share the device"), ([("gpt2", 1), ("gpt9", 1)], "model 'gpt9'; one of resnet18, ")],
)
def test_what_cannot_share_a_device_is_named(tasks: list[tuple[str, int]], why: str) -> None:
    given = [{"model": model, "batches": batches} for model, batches in tasks]
    with pytest.raises(ExperimentError, match=why):
        known()["oltunes.shares"]({"tasks": given, "batch": 16, "rows": 20}, 1)


def test_a_seed_gives_the_same_figures_again() -> None:
    setup, parameters = known()["oltunes.table8"], {"rows": 100, "learnt": 0.7}
    assert setup(parameters, 1) == setup(parameters, 1)
    assert setup(parameters, 1) != setup(parameters, 2)


def test_the_data_set_has_the_time_of_a_batch_worked_out_by_hand() -> None:
    """ResNet50 on an A100: 1.5 ms + 8.2 GFLOP / (19,500 GFLOPS * 0.45 * 1/5) + 0.5 * 0.3 GB / 1555 GB/s."""
    resnet50, a100 = MODELS[1], DEVICES[0]
    assert batch_time_s(resnet50, a100, 1, 100.0, 640.0, 4.0) == pytest.approx(1.5e-3 + 8.2 / 1755.0 + 0.15 / 1555.0)
    short = batch_time_s(resnet50, a100, 1, 100.0, 640.0, 0.775) / batch_time_s(resnet50, a100, 1, 100.0, 640.0, 4.0)
    assert short == pytest.approx(2.5), "half of the needed memory"
    rows = generate(random.Random(1))
    assert len(rows) == ROWS
    assert all(each.configuration.memory_gb <= each.configuration.device_memory_gb - 2 for each in rows)


@pytest.mark.parametrize("baseline", [RandomForest, MatrixFactorisation])
def test_the_baselines_learn_what_can_be_learnt(baseline: type[Any]) -> None:
    """A target that is the model alone: both predict it for other configurations."""
    rows = generate(random.Random(3), 200)
    targets = np.array([[float(len(each.configuration.model)), float(len(each.configuration.model))] for each in rows])
    model = baseline(np.random.default_rng(1))
    model.fit(rows[:150], targets[:150])
    off = np.abs(model.predict(rows[150:]) - targets[150:])
    assert off.mean() < 0.3


@pytest.mark.parametrize(
    ("curve", "samples"),
    [
        ([(10, 0.6), (20, 0.7)], 10.0),
        ([(10, 0.4), (20, 0.6)], 15.0),
        ([(10, 0.6), (20, 0.4), (30, 0.9)], 22.0),
        ([(10, 0.1), (20, 0.2)], 40.0),
    ],
)
def test_the_samples_from_which_a_curve_stays_above(curve: list[tuple[float, float]], samples: float) -> None:
    assert _reached(curve, 0.5) == pytest.approx(samples)
