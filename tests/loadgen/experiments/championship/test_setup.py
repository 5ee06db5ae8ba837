"""The row of a championship as an experiment of one's own."""

import pytest

from tests.loadgen.experiments.small import Heard
from tidegate.errors import InvalidInputError
from tidegate.loadgen.experiments.definition import parse
from tidegate.loadgen.experiments.outcome import ExperimentError
from tidegate.loadgen.experiments.run import run

TEXT = """
name = "cost"
title = "What tide costs on a constant load"
source = "own"
claim = "Half as much again as the least possible, at most."
setup = "championship.row"

[parameters]
trace = "constant"
policy = "tide"
start_up_s = 5.0
learn_s = 150.0
judged_s = 60.0

[[checks]]
figure = "cost_over_b0"
at_least = 1.0
at_most = 1.5
"""


def test_an_experiment_is_judged_on_its_cost_over_the_bound() -> None:
    (result,) = run([parse(TEXT, "own.toml")], Heard(), seeds=1).results
    assert result.holds
    assert set(result.figures) > {"late_share", "cost_over_b0", "cost_over_bq"}


def test_a_trace_or_a_fleet_that_is_not_there_is_a_fault() -> None:
    with pytest.raises(
        InvalidInputError, match="trace is one of constant, diurnal, batches, spike, bursts, mmpp, on-off"
    ):
        parse(TEXT.replace('"constant"', '"twitter"'), "own.toml")
    with pytest.raises(InvalidInputError, match="groups is one of 1, 3"):
        parse(TEXT.replace("start_up_s = 5.0", "groups = 2"), "own.toml")


def test_a_policy_that_is_not_there_ends_the_experiment() -> None:
    with pytest.raises(
        ExperimentError,
        match=r"one of hetsev-greedy, .*, kpa, oltunes, orion, reserve-and-pack, smif, themis, tide, vertical-only",
    ):
        run([parse(TEXT.replace('"tide"', '"tied"'), "own.toml")], Heard(), seeds=1)
