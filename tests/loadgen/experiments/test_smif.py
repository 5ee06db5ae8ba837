"""The setups of SMIF's experiments, each with one seed and held to the checks of its definition. Long ones run shorter
here: ``tidegate experiment`` runs them in full."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tidegate.errors import InvalidInputError
from tidegate.loadgen.experiments.definition import catalogue
from tidegate.loadgen.experiments.judge import judge
from tidegate.loadgen.experiments.registry import known

SHORTER: Mapping[str, Mapping[str, Any]] = {
    "sm2": {"batches": [16, 128], "duration_s": 90.0, "window_s": 40.0},
    "sm6": {"service_s": {"resnet50": 0.009, "bert_base": 0.04}, "duration_s": 8.0},
    "sm7": {"models": ["resnet152"], "duration_s": 120.0, "settled_s": 20.0},
    "sm8": {"sizes": [2, 8], "duration_s": 240.0},
}


@pytest.mark.parametrize("name", [f"sm{number}" for number in range(1, 9)])
def test_every_check_of_the_paper_holds(name: str) -> None:
    experiment = catalogue()[name]
    parameters = {**experiment.parameters, **SHORTER.get(name, {})}
    outcome = known()[experiment.setup](parameters, 1)
    kept = tuple(each for each in experiment.checks if each.figure in outcome.figures)
    assert len(kept) == len(experiment.checks) or name == "sm2"
    verdicts = judge(replace(experiment, checks=kept), {1: outcome}).verdicts
    assert [each.check.figure for each in verdicts if not each.holds] == []


def test_other_weights_miss_what_the_paper_measured() -> None:
    """The checks can fail: turned round, the weights waste the faster device."""
    experiment = catalogue()["sm3"]
    outcome = known()["smif.weights"]({**experiment.parameters, "fast_percent": 35.0, "duration_s": 10.0}, 1)
    verdicts = judge(experiment, {1: outcome}).verdicts
    assert {"weighted_ips", "gain"} <= {each.check.figure for each in verdicts if not each.holds}


def test_a_seed_gives_the_same_figures_again_and_another_one_others() -> None:
    setup, parameters = known()["smif.table1"], catalogue()["sm1"].parameters
    assert setup(parameters, 1) == setup(parameters, 1)
    assert setup(parameters, 1) != setup(parameters, 2)


def test_one_sampled_replica_tells_less_where_the_traffic_is_not_even() -> None:
    """What the estimate rests on: of a group whose first free replica takes what comes, one tells badly."""
    parameters = {**catalogue()["sm8"].parameters, "sizes": [8], "duration_s": 240.0, "use": 0.2}
    even, uneven = (
        known()["smif.sampling"]({**parameters, "spread": spread}, 1).figures["one_8_mean_error"]
        for spread in ("most-free", "first-available")
    )
    assert uneven > 2.0 * even


def test_parameters_are_reported_their_faults_together() -> None:
    with pytest.raises(InvalidInputError) as caught:
        known()["smif.sharing"]({"service_s": 0.0, "gains": [{"replicas": 1, "mps": 1.2}], "colour": 1}, 1)
    text = str(caught.value)
    for fault in ("parameters.colour", "parameters.service_s", "gains[0].replicas", "gains[0].turns", "jitter"):
        assert fault in text
