"""Time of one prediction and of one update of the predictor, in process, without IO.

    python -m benchmarks.micro.predictor_bench [--samples 1400]

Learns a generated history sample by sample, then predicts each of its configurations. Prints one JSON line; times are
milliseconds of processor time of one core, medians and the highest hundredth. OLTunes prints 1.2 ms for a prediction
(table 8).

Then one model is served for 300 seconds with 2 % noise. `poisoned_pct`: how far one sample of a thousand times its time
moves a prediction. `forgotten_pct`: how far it is moved after 64 others. `drift_samples`: samples of 2.5 times the time
until all predictions are within the evaluator's 20 %.
"""

import argparse
import json
import math
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.micro.decider_bench import commit
from tidegate.autoscaler.oltunes.prediction.features import Configuration
from tidegate.autoscaler.oltunes.prediction.predictor import THETA, Predictor, Sample, SampleVerdict, retrain_all
from tidegate.loadgen.experiments.setups.oltunes.dataset import generate


def times_ms(call: Callable[[Any], object], items: Iterable[Any]) -> list[float]:
    found = []
    for each in items:
        began = time.process_time_ns()
        call(each)
        found.append((time.process_time_ns() - began) / 1e6)
    return found


def quantiles(name: str, values: list[float]) -> dict[str, float]:
    return {
        f"{name}_ms": round(statistics.median(values), 3),
        f"{name}_p99_ms": round(statistics.quantiles(values, n=100)[98], 3),
    }


def served_samples(count: int, slower: float = 1.0) -> list[Sample]:
    """A model at four batch sizes, ``slower`` times its usual time."""
    rng, found = random.Random(2), []
    for index in range(count):
        batch = (1, 4, 8, 16)[index % 4]
        latency_s = (0.005 + 0.002 * batch) * slower * math.exp(rng.gauss(0.0, 0.02))
        found.append(Sample(configuration=at(batch), latency_s=latency_s, throughput=batch / latency_s))
    return found


def at(batch: int) -> Configuration:
    return Configuration(
        model="m",
        device="t4",
        batch=batch,
        share_pct=100,
        memory_gb=8,
        device_memory_gb=16,
        input_size=224,
        parameters=25.6e6,
    )


def observe(predictor: Predictor, samples: Iterable[Sample]) -> None:
    """Learns samples, each with the retraining that it asks for."""
    for each in samples:
        if predictor.observe(each) in (SampleVerdict.DRIFT, SampleVerdict.OUTLIER):
            retrain_all(predictor.retrain())


def bounds() -> dict[str, float]:
    """Effects of a poisoned sample and of a drift."""
    clean, poisoned = Predictor(random.Random(1)), Predictor(random.Random(1))
    for predictor in (clean, poisoned):
        observe(predictor, served_samples(300))
    (odd,) = served_samples(1, slower=1000.0)
    observe(poisoned, [odd])

    def moved_pct() -> float:
        return max(100.0 * abs(poisoned.estimate(at(b))[0] / clean.estimate(at(b))[0] - 1.0) for b in (1, 4, 8, 16))

    found = {"poisoned_pct": round(moved_pct(), 1)}
    for predictor in (clean, poisoned):
        observe(predictor, served_samples(64))
    found["forgotten_pct"] = round(moved_pct(), 1)
    count = 0
    for each in served_samples(1000, slower=2.5):
        observe(clean, [each])
        count += 1
        if all(abs(clean.estimate(at(b))[0] / (2.5 * (0.005 + 0.002 * b)) - 1.0) <= THETA for b in (1, 4, 8, 16)):
            break
    return found | {"drift_samples": count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1400)
    arguments = parser.parse_args()
    samples = generate(random.Random(1), arguments.samples)
    predictor = Predictor(random.Random(1))
    updates = times_ms(predictor.observe, samples)
    predictions = times_ms(lambda each: predictor.estimate(each.configuration), samples)
    retrainings = times_ms(lambda _: retrain_all(predictor.retrain()), range(10))
    result = {
        "bench": "predictor",
        "samples": arguments.samples,
        **quantiles("predict", predictions),
        **quantiles("update", updates),
        "retrain_ms": round(statistics.median(retrainings), 1),
        **bounds(),
        "python": platform.python_version(),
        "commit": commit(),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
