"""The predictor: what one sample may do to it, and how soon it follows a change."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tidegate.autoscaler.oltunes.prediction.features import FIXED, MOST_NAMES, Configuration, FeatureSpace
from tidegate.autoscaler.oltunes.prediction.predictor import (
    LEAST_SAMPLES,
    RECENT,
    RECENT_PASSES,
    THETA,
    Predictor,
    Sample,
    SampleVerdict,
    retrain_all,
)

BATCHES = (1, 4, 8, 16)


def configuration(batch: int = 4, model: str = "resnet", device: str = "t4") -> Configuration:
    return Configuration(
        model=model,
        device=device,
        batch=batch,
        share_pct=50,
        memory_gb=8,
        device_memory_gb=16,
        input_size=224,
        parameters=25.6e6,
    )


def sample(batch: int, *, slower: float = 1.0, noise: float = 1.0, model: str = "resnet") -> Sample:
    latency_s = (0.005 + 0.002 * batch) * slower * noise
    return Sample(configuration=configuration(batch, model), latency_s=latency_s, throughput=batch / latency_s)


def stream(count: int, *, slower: float = 1.0, seed: int = 1, model: str = "resnet") -> list[Sample]:
    rng = random.Random(seed)
    return [
        sample(BATCHES[index % len(BATCHES)], slower=slower, noise=math.exp(rng.gauss(0.0, 0.02)), model=model)
        for index in range(count)
    ]


def served(samples: Sequence[Sample]) -> Predictor:
    predictor = Predictor(random.Random(1))
    for each in samples:
        observe(predictor, each)
    return predictor


def observe(predictor: Predictor, of: Sample) -> SampleVerdict:
    verdict = predictor.observe(of)
    if verdict in (SampleVerdict.DRIFT, SampleVerdict.OUTLIER):
        retrain_all(predictor.retrain())
    return verdict


def error(predictor: Predictor, *, slower: float = 1.0) -> float:
    """The largest relative error of the latency over the batches."""
    return max(
        abs(predictor.estimate(configuration(batch))[0] / sample(batch, slower=slower).latency_s - 1.0)
        for batch in BATCHES
    )


def test_the_vector_of_table_3_has_its_length_and_positions() -> None:
    space = FeatureSpace()
    space.admit(configuration())
    assert (FIXED, space.length) == (69, 71)
    x = dict(space.encode(configuration(batch=8)))
    assert [place for place, value in x.items() if value == 1.0] == [2, 13, 36, 57, 69, 70]
    assert x[8] == pytest.approx(math.log(225) / math.log(1281))
    assert x[67] == pytest.approx(3 / 8), "the batch size once more, as a number"


def test_an_unknown_category_leaves_its_places_at_zero() -> None:
    space = FeatureSpace()
    odd = replace(configuration(), batch=3, share_pct=100, memory_gb=7, device_memory_gb=40, input_size=0, parameters=0)
    found = space.encode(odd)
    assert [place for place, _ in found] == [67], "no name is known, and 3 is no listed batch"
    assert found[0][1] == pytest.approx(math.log2(3) / 8)


def test_a_new_name_moves_no_position_and_the_number_of_names_is_bounded() -> None:
    space = FeatureSpace()
    space.admit(configuration())
    before = space.encode(configuration())
    for index in range(MOST_NAMES + 50):
        space.admit(configuration(model=f"m{index}"))
    assert space.length == FIXED + MOST_NAMES + 1
    assert space.encode(configuration()) == before
    unknown = space.encode(configuration(model=f"m{MOST_NAMES + 20}"))
    assert [place for place, _ in unknown if place >= FIXED] == [70], "the device alone"


def test_an_empty_history_predicts_nothing() -> None:
    predictor = Predictor(random.Random(1))
    predictor.train([])
    retrain_all(predictor.retrain())
    assert predictor.is_cold(configuration())
    assert predictor.predict(configuration()) is None


def test_a_prediction_is_cold_until_model_and_device_have_twenty_samples() -> None:
    predictor = Predictor(random.Random(1))
    for count, each in enumerate(stream(LEAST_SAMPLES)):
        assert predictor.predict(each.configuration) is None, count
        assert predictor.observe(each) is SampleVerdict.FIRST
    found = predictor.predict(configuration())
    assert found is not None
    assert found.samples == LEAST_SAMPLES
    assert predictor.predict(configuration(model="other")) is None
    assert predictor.predict(configuration(device="v100")) is None


def test_samples_alone_bring_the_error_below_theta() -> None:
    predictor = served(stream(200))
    assert error(predictor) < THETA
    found = predictor.predict(configuration(8))
    assert found is not None
    assert found.latency_s == pytest.approx(0.021, rel=THETA)
    assert found.throughput == pytest.approx(8 / 0.021, rel=THETA)
    assert found.error < THETA


def test_another_model_on_a_known_device_begins_with_what_the_device_taught() -> None:
    predictor = served(stream(200))
    for each in stream(20, slower=2.0, model="vgg"):
        observe(predictor, each)
    found = predictor.predict(configuration(8, model="vgg"))
    assert found is not None
    assert found.latency_s == pytest.approx(2 * 0.021, rel=2 * THETA)


def test_a_drift_is_named_and_learnt_within_the_latest_samples() -> None:
    predictor = served(stream(200))
    drifted = stream(RECENT, slower=2.0, seed=2)
    assert observe(predictor, drifted[0]) is SampleVerdict.DRIFT
    for each in drifted[1:]:
        observe(predictor, each)
    assert error(predictor, slower=2.0) < THETA


def test_retraining_takes_its_passes_over_the_latest_samples_step_by_step() -> None:
    predictor = served(stream(200))
    assert sum(1 for _ in predictor.retrain()) == RECENT * RECENT_PASSES


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
@pytest.mark.parametrize("field", ["latency_s", "throughput"])
def test_a_sample_without_a_number_is_refused_and_changes_nothing(field: str, value: float) -> None:
    predictor = served(stream(50))
    before = predictor.estimate(configuration())
    broken = replace(sample(4), latency_s=value) if field == "latency_s" else replace(sample(4), throughput=value)
    assert predictor.observe(broken) is SampleVerdict.REFUSED
    assert predictor.estimate(configuration()) == before
    assert predictor.verdicts[SampleVerdict.REFUSED] == 1
    nowhere = replace(sample(4), configuration=replace(configuration(), memory_gb=math.nan))
    assert predictor.observe(nowhere) is SampleVerdict.REFUSED


@pytest.mark.parametrize("factor", [1000.0, 1e-3])
def test_a_poisoned_sample_is_named_has_a_bounded_effect_and_is_forgotten(factor: float) -> None:
    clean, poisoned = served(stream(300)), served(stream(300))
    assert observe(poisoned, sample(4, slower=factor)) is SampleVerdict.OUTLIER
    ratio = poisoned.estimate(configuration())[0] / clean.estimate(configuration())[0]
    assert 1 / 3 < ratio < 3, "a thousandfold sample moves the prediction by less than three"
    for each in stream(RECENT, seed=3):
        observe(poisoned, each)
    assert error(poisoned) < THETA


def test_a_history_with_faults_is_learnt_without_them() -> None:
    predictor = Predictor(random.Random(1))
    history = stream(100)
    predictor.train([*history[:50], replace(history[0], latency_s=math.nan), *history[50:]])
    assert predictor.verdicts[SampleVerdict.REFUSED] == 1
    assert error(predictor) < THETA


def test_the_same_samples_give_the_same_weights() -> None:
    assert served(stream(60)).estimate(configuration()) == served(stream(60)).estimate(configuration())
