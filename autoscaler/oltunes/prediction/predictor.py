"""Prediction of latency and throughput, learnt sample by sample (OLTunes, section 3.3).

Two factorisation machines share the features: one for the logarithm of the latency, one for that of the throughput,
each in standard deviations from a running mean. The evaluator compares each sample with what was predicted for it. An
error above ``theta`` retrains on the latest samples. They hold the time before a drift too: one odd sample does less,
and a drift takes more samples than with one step a sample, at most ``RECENT`` for twice or half the time.

One sample has a bounded effect: its gradient is clipped, it moves mean and deviation by at most ``CLIP`` deviations,
and it leaves the latest samples after ``RECENT`` others. A sample without a finite, positive value is refused.
"""

import math
import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate.autoscaler.oltunes.prediction.features import Configuration, FeatureSpace
from tidegate.autoscaler.oltunes.prediction.ftrl import Ftrl
from tidegate.autoscaler.oltunes.prediction.online import CLIP, OnlineMachine

THETA: Final = 0.2
"""The relative error above which the evaluator retrains (our choice; the paper gives no value)."""
RECENT: Final = 64
"""Samples of a retraining, and its passes over them."""
RECENT_PASSES: Final = 3
PASSES: Final = 5
"""Passes over a history."""
LEAST_SAMPLES: Final = 20
"""Samples of a model, and of a device, below which a prediction is cold."""
OUTLIER: Final = 10.0
"""A sample this many times above or below its prediction is an outlier (our choice)."""
_ERROR_SHARE: Final = 0.05
"""Share of the newest sample in a running error: about the latest 20 count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A measured configuration."""

    configuration: Configuration
    latency_s: float
    throughput: float
    """Inferences per second."""


class SampleVerdict(StrEnum):
    """What became of a sample."""

    LEARNT = "learnt"
    FIRST = "first"
    """Learnt, and not judged: its model or device has too few samples for a prediction."""
    DRIFT = "drift"
    """Learnt; its error is above theta, so a retraining is due."""
    OUTLIER = "outlier"
    """As with DRIFT, and so far off that it may be wrong: its effect is clipped."""
    REFUSED = "refused"
    """Not learnt: a value that is not finite and positive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a configuration is expected to bring, and how sure that is."""

    latency_s: float
    throughput: float
    samples: int
    """Samples of this model on this device so far; 0 if the value follows from other models and devices."""
    error: float
    """Mean relative error of the latest predictions for this model on this device, or of all if it has none."""


class Scale:
    """Running mean and standard deviation of a target's logarithm."""

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0
        self._squares = 0.0

    def add(self, value: float) -> None:
        """Counts a value; one beyond ``CLIP`` deviations counts as if it lay there."""
        if self._count > 1:
            low, high = self.value(-CLIP), self.value(CLIP)
            value = min(max(value, low), high)
        self._count += 1
        off = value - self._mean
        self._mean += off / self._count
        self._squares += off * (value - self._mean)

    def standard(self, value: float) -> float:
        """Returns ``value`` in deviations from the mean."""
        return (value - self._mean) / self._deviation()

    def value(self, standard: float) -> float:
        """Returns the value that lies so many deviations from the mean."""
        return self._mean + standard * self._deviation()

    def _deviation(self) -> float:
        """Returns the deviation; 1 while the values are all alike."""
        found = math.sqrt(self._squares / self._count) if self._count > 1 else 0.0
        return found if found > 1e-3 else 1.0


class _Target:
    """One of the two targets."""

    __slots__ = ("machine", "scale")

    def __init__(self, rng: random.Random, ftrl: Ftrl | None) -> None:
        self.machine = OnlineMachine(rng, ftrl)
        self.scale = Scale()

    def predict(self, x: Sequence[tuple[int, float]]) -> float:
        standard = min(max(self.machine.predict(x), -2.0 * CLIP), 2.0 * CLIP)
        return math.exp(self.scale.value(standard))

    def learn(self, x: Sequence[tuple[int, float]], value: float) -> None:
        self.machine.learn(x, self.scale.standard(math.log(value)))


class Predictor:
    """Learns from samples and predicts configurations; neither blocks nor keeps more than ``RECENT`` samples."""

    def __init__(self, rng: random.Random, ftrl: Ftrl | None = None, *, theta: float = THETA) -> None:
        self._space = FeatureSpace()
        self._latency = _Target(rng, ftrl)
        self._throughput = _Target(rng, ftrl)
        self._theta = theta
        self._recent: deque[Sample] = deque(maxlen=RECENT)
        self._models: Counter[str] = Counter()
        self._devices: Counter[str] = Counter()
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._errors: dict[tuple[str, str] | None, float] = {}
        """Running relative errors by (model, device); under None that of all together."""
        self.verdicts: Counter[SampleVerdict] = Counter()
        """Samples so far by verdict."""

    def is_cold(self, configuration: Configuration) -> bool:
        """Returns whether the model or the device has too few samples for a prediction."""
        return self._models[configuration.model] < LEAST_SAMPLES or self._devices[configuration.device] < LEAST_SAMPLES

    def predict(self, configuration: Configuration) -> Prediction | None:
        """Returns the prediction; None if it would be cold: take the analytic profile then."""
        if self.is_cold(configuration):
            return None
        latency_s, throughput = self.estimate(configuration)
        pair = (configuration.model, configuration.device)
        return Prediction(
            latency_s=latency_s,
            throughput=throughput,
            samples=self._pairs[pair],
            error=self._errors.get(pair, self._errors.get(None, math.inf)),
        )

    def estimate(self, configuration: Configuration) -> tuple[float, float]:
        """Returns (latency in seconds, throughput per second) as they follow from the weights, cold or not."""
        x = self._space.encode(configuration)
        return self._latency.predict(x), self._throughput.predict(x)

    def observe(self, sample: Sample) -> SampleVerdict:
        """Judges a sample and learns it. After ``DRIFT`` and ``OUTLIER`` a retraining is due."""
        verdict = self._judge(sample)
        self.verdicts[verdict] += 1
        if verdict is not SampleVerdict.REFUSED:
            self._admit(sample)
            self._learn(sample)
            self._count(sample)
        return verdict

    def train(self, samples: Sequence[Sample]) -> None:
        """Learns a history in ``PASSES`` passes; the first one judges its samples as :meth:`observe` does."""
        usable = []
        for each in samples:
            if _is_usable(each):
                usable.append(each)
                self._admit(each)
        for each in samples:
            verdict = self._judge(each)
            self.verdicts[verdict] += 1
            if verdict is not SampleVerdict.REFUSED:
                self._learn(each)
                self._count(each)
        for _ in range(PASSES - 1):
            for each in usable:
                self._learn(each)

    def retrain(self) -> Iterator[None]:
        """Learns the latest samples again; yields after each, so that the caller can spread the work."""
        samples = list(self._recent)
        for _ in range(RECENT_PASSES):
            for each in samples:
                self._learn(each)
                yield

    def _judge(self, sample: Sample) -> SampleVerdict:
        if not _is_usable(sample):
            return SampleVerdict.REFUSED
        if self.is_cold(sample.configuration):
            return SampleVerdict.FIRST
        latency_s, throughput = self.estimate(sample.configuration)
        pairs = ((latency_s, sample.latency_s), (throughput, sample.throughput))
        error = max(abs(predicted - measured) / measured for predicted, measured in pairs)
        self._count_error(sample.configuration, min(error, OUTLIER))
        if any(not 1.0 / OUTLIER <= predicted / measured <= OUTLIER for predicted, measured in pairs):
            return SampleVerdict.OUTLIER
        return SampleVerdict.DRIFT if error > self._theta else SampleVerdict.LEARNT

    def _count_error(self, configuration: Configuration, error: float) -> None:
        for key in ((configuration.model, configuration.device), None):
            before = self._errors.get(key, error)
            self._errors[key] = before + _ERROR_SHARE * (error - before)

    def _admit(self, sample: Sample) -> None:
        self._space.admit(sample.configuration)
        for target, value in ((self._latency, sample.latency_s), (self._throughput, sample.throughput)):
            target.machine.grow(self._space.length)
            target.scale.add(math.log(value))

    def _count(self, sample: Sample) -> None:
        of = sample.configuration
        self._recent.append(sample)
        self._models[of.model] += 1
        self._devices[of.device] += 1
        self._pairs[of.model, of.device] += 1

    def _learn(self, sample: Sample) -> None:
        x = self._space.encode(sample.configuration)
        self._latency.learn(x, sample.latency_s)
        self._throughput.learn(x, sample.throughput)

    def __repr__(self) -> str:
        return f"<Predictor {self._space}, {sum(self._pairs.values())} samples>"


def retrain_all(steps: Iterable[None]) -> None:
    """Carries a retraining out at once."""
    for _ in steps:
        pass


def _is_usable(sample: Sample) -> bool:
    of = sample.configuration
    positive = (sample.latency_s, sample.throughput)
    return all(math.isfinite(each) and each > 0.0 for each in positive) and math.isfinite(
        of.batch + of.share_pct + of.memory_gb + of.device_memory_gb + of.input_size + of.parameters
    )
