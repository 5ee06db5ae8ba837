"""The setups of Themis' experiments: quick ones held to the checks of their definitions, the long ones much shorter."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tidegate.autoscaler.policies.themis.model import StageProfile
from tidegate.autoscaler.policies.themis.programs import Problem
from tidegate.loadgen.experiments.definition import catalogue
from tidegate.loadgen.experiments.judge import judge
from tidegate.loadgen.experiments.registry import known
from tidegate.loadgen.experiments.setups.themis import pipeline
from tidegate.loadgen.experiments.setups.themis.optimum import free, given, least_cost
from tidegate.loadgen.experiments.setups.themis.pipeline import PaperPipeline, World
from tidegate.loadgen.experiments.tables import read
from tidegate.schema.yaml_nodes import Faults

PROBLEM = Problem(
    stages=(
        StageProfile(gamma=100, epsilon=0, delta=10, eta=0),
        StageProfile(gamma=40, epsilon=10, delta=1, eta=5),
    ),
    slo_ms=150,
    lambda_rps=30,
    b_max=8,
    c_max=8,
)
SHORTER: Mapping[str, Mapping[str, Any]] = {"tm1": {}, "tm2": {}, "tm8": {}, "tm14": {"problems": 8}}


@pytest.mark.parametrize("name", SHORTER)
def test_every_check_of_the_paper_holds(name: str) -> None:
    experiment = catalogue()[name]
    outcome = known()[experiment.setup]({**experiment.parameters, **SHORTER[name]}, 1)
    verdicts = judge(experiment, {1: outcome}).verdicts
    assert [each.check.figure for each in verdicts if not each.holds] == []


@pytest.mark.parametrize("name", ["tm3", "tm5", "tm7", "tm9", "tm10"])
def test_long_ones_give_their_figures_and_repeat_them(name: str) -> None:
    """The first pipeline, for a few seconds of the surge; ``tidegate experiment`` holds them to their checks."""
    experiment = catalogue()[name]
    shorter = {"offset_s": experiment.parameters["offset_s"] + 60, "seconds": 12, "surge_s": 0.0, "counted_s": 12}
    parameters = {key: shorter.get(key, value) for key, value in experiment.parameters.items()}
    first = parameters["pipelines"][0]
    parameters["pipelines"] = [{**first, "divisor": 4.0 * first["divisor"]}]
    once = known()[experiment.setup](parameters, 1)
    pipeline.forget()
    assert known()[experiment.setup](parameters, 1) == once
    named = {each.figure for each in experiment.checks} | {each.figure for each in experiment.reported}
    others = {f"{each['name']}_" for each in experiment.parameters["pipelines"][1:]}
    assert {each for each in named if not each.startswith(tuple(others))} <= once.figures.keys()


def test_a_worse_predictor_and_a_cheaper_plan_are_seen() -> None:
    """The checks can fail."""
    experiment = catalogue()["tm8"]
    tiny = known()[experiment.setup]({**experiment.parameters, "divisor": 400.0}, 1)
    assert tiny.figures["mape_percent"] > 8.0, "a load of less than a request a second is chance alone"
    tight = replace(PROBLEM, slo_ms=90)
    assert (least_cost(PROBLEM, free(PROBLEM, 1)), least_cost(PROBLEM, free(PROBLEM, 8))) == (None, 6)
    assert (least_cost(tight, free(tight, 8)), least_cost(PROBLEM, given(PROBLEM, [2, 1]))) == (7, 6)
    assert least_cost(PROBLEM, given(PROBLEM, [1, 1])) == 7, "five cores and two"


def test_a_pipeline_of_the_paper_is_read_with_every_fault() -> None:
    faults = Faults("x")
    assert read(PaperPipeline, {"name": "", "slo_ms": 0.0, "stages": []}, "pipelines[0]", faults) is None
    assert len(faults) == 6
    assert read(World, {"offset_s": -1}, "", faults) is None
