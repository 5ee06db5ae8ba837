"""First predictions: from which source they come, and how sure they are."""

import math
import random
from dataclasses import replace

import pytest

from tests.autoscaler.oltunes.test_graph import model, node, value, weight
from tidegate.autoscaler.oltunes.prediction.analysis import DeviceRates, ModelFigures, analyse, first_time_s
from tidegate.autoscaler.oltunes.prediction.onnx_graph import read
from tidegate.autoscaler.oltunes.prediction.predictor import RECENT, RECENT_PASSES
from tidegate.autoscaler.oltunes.prediction.served import (
    CORRECTED_ERROR,
    GRAPH_ERROR,
    MAX_PENDING,
    FirstPredictions,
    ServedDevice,
    ServedWork,
)

STEPS = 8
RATES = DeviceRates(50e9, 10e9)
CPU = ServedDevice(name="cpu", memory_gb=8.0, rates=RATES)
FAST = ServedDevice(name="fast", memory_gb=8.0, rates=DeviceRates(100e9, 20e9))


def graph(size: int = 512) -> ModelFigures:
    data = model(node("MatMul", "a b", "c"), inputs=[value("a", 1, size, size)], weights=[weight("b", size, size)])
    return analyse(read(data))


def work(one_s: float, *, requests: float = 10.0, size: float = 1.0, at_once: float = 1.0) -> ServedWork:
    """Requests one after the other, or ``at_once`` of them."""
    busy_s = requests * one_s / at_once
    return ServedWork(
        requests=requests,
        inferences=requests * size,
        busy_s=busy_s,
        request_s=busy_s * at_once,
        execution_s=requests * one_s,
    )


def serve(core: FirstPredictions, name: str, one_s: float, seconds: int, device: ServedDevice = CPU) -> list[str]:
    """Returns what became of the samples."""
    verdicts = []
    for _ in range(seconds):
        core.served(name, device, 100.0, work(one_s))
        verdicts += learn(core, STEPS)
    return verdicts


def learn(core: FirstPredictions, steps: int = MAX_PENDING) -> list[str]:
    return [verdict.value for _, verdict in core.learn(steps)]


def test_without_a_graph_and_without_samples_nothing_is_predicted() -> None:
    core = FirstPredictions(random.Random(1))
    assert core.predict("m", CPU, 100.0) is None
    core.know("m", graph())
    assert core.predict("m", ServedDevice(name="x", memory_gb=1.0, rates=None), 100.0) is None


def test_a_graph_alone_gives_a_cold_time() -> None:
    core = FirstPredictions(random.Random(1))
    core.know("m", graph())
    found = core.predict("m", CPU, 100.0)
    assert found is not None
    assert found.one_s == first_time_s(graph(), RATES)
    assert (found.error, found.is_cold, found.basis) == (GRAPH_ERROR, True, "the operators of its graph alone")


def test_what_other_models_take_here_corrects_the_graph() -> None:
    core = FirstPredictions(random.Random(1))
    core.know("m", graph())
    core.know("other", graph(256))
    serve(core, "other", 3.0 * first_time_s(graph(256), RATES), 5)
    found = core.predict("m", CPU, 100.0)
    assert found is not None
    assert found.one_s == pytest.approx(3.0 * first_time_s(graph(), RATES))
    assert (found.error, found.is_cold) == (CORRECTED_ERROR, True)
    assert found.basis == "the operators of its graph, and what another model took here"
    elsewhere = core.predict("m", FAST, 100.0)
    assert elsewhere is not None
    assert elsewhere.basis == "the operators of its graph alone"


def test_enough_samples_of_the_model_are_the_prediction() -> None:
    core = FirstPredictions(random.Random(1))
    serve(core, "m", 0.02, 40)
    found = core.predict("m", CPU, 100.0)
    assert found is not None
    assert found.one_s == pytest.approx(0.02, rel=0.1)
    assert (found.is_cold, found.basis) == (False, "40 samples of it here")
    assert found.error < 0.1


def test_a_known_model_is_predicted_on_a_device_that_others_use() -> None:
    """``a`` and ``b`` ran on both devices, the second being twice as fast; ``m`` ran on the first one only."""
    core = FirstPredictions(random.Random(1))
    for _ in range(60):
        for name, one_s in (("a", 0.01), ("b", 0.04)):
            serve(core, name, one_s, 1)
            serve(core, name, one_s / 2, 1, FAST)
        serve(core, "m", 0.02, 1)
    found = core.predict("m", FAST, 100.0)
    assert found is not None
    assert found.one_s == pytest.approx(0.01, rel=0.35)
    assert (found.is_cold, found.basis) == (True, "its samples on other accelerators")


@pytest.mark.parametrize(
    "left_out",
    [
        work(0.02, at_once=4.0),
        work(0.02, requests=2.0),
        ServedWork(requests=5.0, inferences=5.0, busy_s=0.0, request_s=0.0, execution_s=1.0),
    ],
)
def test_seconds_that_do_not_show_the_time_of_one_request_are_left_out(left_out: ServedWork) -> None:
    core = FirstPredictions(random.Random(1))
    core.served("m", CPU, 100.0, left_out)
    assert learn(core) == []


def test_a_poisoned_second_is_counted_and_does_not_correct_graphs() -> None:
    core = FirstPredictions(random.Random(1))
    core.know("m", graph())
    core.know("other", graph(256))
    serve(core, "other", first_time_s(graph(256), RATES), 30)
    before = core.predict("m", CPU, 100.0)
    assert serve(core, "other", 1000.0 * first_time_s(graph(256), RATES), 1) == ["outlier"]
    assert core.predict("m", CPU, 100.0) == before


@pytest.mark.parametrize("field", ["requests", "inferences", "busy_s", "request_s", "execution_s"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_second_without_a_number_is_refused_and_changes_nothing(field: str, value: float) -> None:
    core = FirstPredictions(random.Random(1))
    serve(core, "m", 0.02, 40)
    before = core.predict("m", CPU, 100.0)
    core.served("m", CPU, 100.0, replace(work(0.02), **{field: value}))
    assert learn(core) == ["refused"]
    assert core.predict("m", CPU, 100.0) == before


def test_a_call_learns_the_stated_number_and_the_rest_waits() -> None:
    core = FirstPredictions(random.Random(1))
    for index in range(MAX_PENDING + 50):
        core.served(f"m{index}", CPU, 100.0, work(0.01))
    assert len(learn(core, STEPS)) == STEPS
    assert len(learn(core)) == MAX_PENDING - STEPS, "of too many groups the oldest samples go"


def test_samples_of_an_earlier_life_predict_as_those_of_this_one() -> None:
    core, heir = FirstPredictions(random.Random(1)), FirstPredictions(random.Random(1))
    kept = []
    for _ in range(40):
        core.served("m", CPU, 100.0, work(0.02))
        kept += [sample for sample, _ in core.learn(STEPS)]
    heir.remember(kept)
    found = heir.predict("m", CPU, 100.0)
    assert found is not None
    assert found.one_s == pytest.approx(0.02, rel=0.1)
    assert (found.is_cold, found.basis) == (False, "40 samples of it here")


def test_a_drift_is_learnt_within_the_latest_samples_and_one_retraining() -> None:
    core = FirstPredictions(random.Random(1))
    serve(core, "m", 0.02, 60)
    verdicts = serve(core, "m", 0.05, RECENT + RECENT * RECENT_PASSES // STEPS)
    found = core.predict("m", CPU, 100.0)
    assert found is not None
    assert found.one_s == pytest.approx(0.05, rel=0.2)
    assert "drift" in verdicts
