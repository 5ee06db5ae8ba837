"""Time of one prediction and of one update of the predictor, in process, without IO.

    python -m benchmarks.micro.predictor_bench [--samples 1400]

Learns a generated history sample by sample, then predicts each of its configurations. Prints one JSON line; times are
milliseconds of processor time of one core, medians and the highest hundredth. OLTunes prints 1.2 ms for a prediction
(table 8).
"""

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.micro.decider_bench import commit
from tidegate.autoscaler.oltunes.prediction.predictor import Predictor, retrain_all
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
        "python": platform.python_version(),
        "commit": commit(),
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
