"""How well, and after how many samples, latency and throughput are predicted (table 8, figure 10)."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from tidegate.autoscaler.oltunes.prediction.predictor import Predictor, Sample, SampleVerdict, retrain_all
from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.setups.oltunes.baselines import Floats, MatrixFactorisation, RandomForest
from tidegate.loadgen.experiments.setups.oltunes.dataset import MODELS, generate
from tidegate.loadgen.experiments.tables import Count, Share, Some


@dataclass(frozen=True, slots=True)
class Score:
    """Errors of both targets, as standardised logarithms of the samples learnt."""

    rmse: float
    """Over both targets together."""
    r2: tuple[float, float]
    """Of latency and throughput."""

    @property
    def least_r2(self) -> float:
        return min(self.r2)


@dataclass(frozen=True, slots=True)
class Split:
    """Samples to learn and to judge by, with the scale of the former."""

    learnt: Sequence[Sample]
    judged: Sequence[Sample]

    def targets(self, samples: Sequence[Sample]) -> Floats:
        """Returns the standardised targets, one row for each sample."""
        scale = _logarithms(self.learnt)
        found: Floats = (_logarithms(samples) - scale.mean(axis=0)) / scale.std(axis=0)
        return found

    def machine(self, predictor: Predictor) -> Score:
        estimates = np.log([predictor.estimate(each.configuration) for each in self.judged])
        scale = _logarithms(self.learnt)
        return self._score((estimates - scale.mean(axis=0)) / scale.std(axis=0))

    def baseline(self, model: RandomForest | MatrixFactorisation) -> Score:
        model.fit(self.learnt, self.targets(self.learnt))
        return self._score(model.predict(self.judged))

    def _score(self, predicted: Floats) -> Score:
        actual = self.targets(self.judged)
        squares = ((predicted - actual) ** 2).mean(axis=0)
        r2 = 1.0 - squares / actual.var(axis=0)
        return Score(math.sqrt(squares.mean()), (float(r2[0]), float(r2[1])))


def _logarithms(samples: Sequence[Sample]) -> Floats:
    found: Floats = np.log([(each.latency_s, each.throughput) for each in samples])
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Table8:
    rows: Count
    learnt: Share
    """Share of the rows that are learnt; the others judge."""


@setup(Table8)
def table8(parameters: Table8, seed: int) -> ExperimentOutcome:
    """Learns one part of the data set with each predictor and judges it by the rest."""
    rows = generate(random.Random(seed), parameters.rows)
    cut = round(parameters.learnt * len(rows))
    split = Split(rows[:cut], rows[cut:])
    trained, online = Predictor(random.Random(seed)), Predictor(random.Random(seed))
    trained.train(split.learnt)
    for each in split.learnt:
        online.observe(each)
    found = {
        "machine": split.machine(trained),
        "machine_one_pass": split.machine(online),
        "forest": split.baseline(RandomForest(np.random.default_rng(seed))),
        "factorisation": split.baseline(MatrixFactorisation(np.random.default_rng(seed))),
    }
    figures: dict[str, float] = {}
    for name, score in found.items():
        figures |= {f"{name}_rmse": score.rmse, f"{name}_r2": score.least_r2}
    best = found["machine"].rmse
    figures["rmse_over_forest"] = best / found["forest"].rmse
    figures["rmse_over_factorisation"] = best / found["factorisation"].rmse
    return ExperimentOutcome(figures=figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure10:
    prefixes: Some[Count]
    """Numbers of samples that are learnt, rising."""
    judged: Count
    r2: Share
    """The value to reach, for both targets."""
    compared_r2: Share
    """The value at which the predictors' numbers of samples are compared."""


@setup(Figure10)
def figure10(parameters: Figure10, seed: int) -> ExperimentOutcome:
    """Learns prefixes of one data set, each from the beginning."""
    most = max(parameters.prefixes)
    rows = generate(random.Random(seed), most + parameters.judged)
    curves: dict[str, list[tuple[float, float]]] = {"machine": [], "forest": [], "factorisation": []}
    for prefix in parameters.prefixes:
        split = Split(rows[:prefix], rows[most:])
        trained = Predictor(random.Random(seed))
        trained.train(split.learnt)
        scores = {
            "machine": split.machine(trained),
            "forest": split.baseline(RandomForest(np.random.default_rng(seed))),
            "factorisation": split.baseline(MatrixFactorisation(np.random.default_rng(seed))),
        }
        for name, score in scores.items():
            curves[name].append((float(prefix), score.least_r2))
    figures = {f"{name}_samples": _reached(curve, parameters.r2) for name, curve in curves.items()}
    compared = {name: _reached(curve, parameters.compared_r2) for name, curve in curves.items()}
    figures |= {f"{name}_compared_samples": value for name, value in compared.items()}
    figures["compared_samples_over_forest"] = compared["machine"] / compared["forest"]
    series = {f"R-square [worse target by samples learnt]: {name}": tuple(curve) for name, curve in curves.items()}
    return ExperimentOutcome(figures=figures, series=series)


def _reached(curve: Sequence[tuple[float, float]], r2: float) -> float:
    """Returns the samples from which the curve stays at ``r2`` or above, between two points of it in proportion; twice
    the last point if it never does."""
    below = [index for index, (_, value) in enumerate(curve) if value < r2]
    if not below:
        return curve[0][0]
    last = below[-1]
    if last + 1 == len(curve):
        return 2.0 * curve[-1][0]
    (x0, y0), (x1, y1) = curve[last], curve[last + 1]
    return x0 + (x1 - x0) * (r2 - y0) / (y1 - y0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewModel:
    before: Count
    """Samples of the other models that are known."""
    observed: Count
    """Samples of the new model, one after the other."""
    judged: Count
    models: Count
    """Models of the data set that take their turn as the new one."""


@setup(NewModel)
def newcomer(parameters: NewModel, seed: int) -> ExperimentOutcome:
    """Adds models of the data set to a predictor that knows the seven others, sample by sample."""
    shares, errors = [], []
    for index, model in enumerate(MODELS[: parameters.models]):
        rng = random.Random(1000 * seed + index)
        others = tuple(each for each in MODELS if each is not model)
        predictor = Predictor(random.Random(seed))
        known = generate(rng, parameters.before, others)
        predictor.train(known)
        own = generate(rng, parameters.observed + parameters.judged, (model,))
        for each in own[: parameters.observed]:
            if predictor.observe(each) in (SampleVerdict.DRIFT, SampleVerdict.OUTLIER):
                retrain_all(predictor.retrain())
        score = Split(own[: parameters.observed], own[parameters.observed :]).machine(predictor)
        shares.append(score.least_r2)
        errors.append(score.rmse)
    return ExperimentOutcome(figures={"least_r2": min(shares), "mean_r2": fmean(shares), "mean_rmse": fmean(errors)})
