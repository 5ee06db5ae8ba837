"""Trains and judges the load predictor of the policy ``themis`` (``autoscaler/policies/themis/forecast.py``).

    python -m benchmarks.forecast TRACE              judges the shipped weights on the trace's days 11 to 14
    python -m benchmarks.forecast TRACE --train      trains on its days 1 to 10 first, and judges the result
    python -m benchmarks.forecast TRACE --write      does the same and writes ``forecast_weights.py``

TRACE has the requests of one second on each line (``.txt`` or ``.txt.gz``), such as the public Twitter trace. Zeros are
gaps in the recording and are left out. Prints one JSON line: the mean absolute percentage error of the network, of
persistence (the last ten seconds repeat) and of a linear fit on the six maxima, and the time of a prediction.
"""

import argparse
import gzip
import json
import statistics
import sys
import textwrap
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from tidegate.autoscaler.policies.themis import forecast, forecast_weights
from tidegate.autoscaler.policies.themis.forecast import MINUTE_S, SLICE_S, SLICES, SMALLEST_RPS, STEADY

Array = npt.NDArray[np.float64]
Network = tuple[Array, Array, Array, Array]
"""(hidden weights, hidden biases, output weights, output bias)."""

DAY_S = 86_400
UNITS = 24
STEPS = 6_000
BATCH = 2048
SEED = 1
SHRINK = (1.0, 1.0, 4.384, 21.0)
"""The trace is also learnt at these parts of its load, drawn anew as Poisson arrivals: functions have smaller loads."""
WEIGHTS = Path(forecast_weights.__file__)


def read(path: Path) -> Array:
    """Returns the trace's requests per second, without its gaps."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    counts = np.array([float(line) for line in text.split()])
    return counts[counts > 0]


def windows(rps: Array, step: int) -> tuple[Array, Array, Array, Array]:
    """Returns (features, scales, targets, six maxima) of every ``step``-th second, as ``forecast.features``
    has them."""
    views = np.lib.stride_tricks.sliding_window_view(rps, MINUTE_S + SLICE_S)[::step]
    slices = views[:, :MINUTE_S].reshape(-1, SLICES, SLICE_S)
    tops, means = slices.max(axis=2), slices.mean(axis=2)
    scale = means.mean(axis=1) + SMALLEST_RPS
    relative = np.log((np.concatenate([tops, means], axis=1) + SMALLEST_RPS) / scale[:, None])
    level = np.log(scale) / 4.0 - 1.0
    return np.column_stack([relative, level]), scale, views[:, MINUTE_S:].max(axis=1), tops


def train(rps: Array) -> Network:
    """Returns a network of one hidden layer: Adam on the mean absolute error in parts of the target."""
    rng = np.random.default_rng(SEED)
    parts = [windows(rps if part == 1.0 else rng.poisson(rps / part).astype(float), 2)[:3] for part in SHRINK]
    given, scale, target = (np.concatenate(each) for each in zip(*parts, strict=True))
    keep = target > 0
    given, scale, target = given[keep], scale[keep], target[keep]
    count = given.shape[1]
    network = [
        rng.normal(0, count**-0.5, (count, UNITS)),
        np.zeros(UNITS),
        rng.normal(0, UNITS**-0.5, UNITS),
        np.zeros(1),
    ]
    first, second = [np.zeros_like(each) for each in network], [np.zeros_like(each) for each in network]
    for step in range(1, STEPS + 1):
        some = rng.integers(0, len(given), BATCH)
        x, s, y = given[some], scale[some], target[some]
        hidden = np.tanh(x @ network[0] + network[1])
        answer = s * np.exp(hidden @ network[2] + network[3])
        gradient = np.clip((answer - SMALLEST_RPS - y) / (0.02 * y), -1, 1) * answer / y / BATCH
        back = gradient[:, None] * network[2] * (1 - hidden**2)
        changes = [x.T @ back, back.sum(axis=0), hidden.T @ gradient, np.array([gradient.sum()])]
        rate = 3e-3 * 0.5 * (1 + np.cos(np.pi * step / STEPS)) + 1e-6
        for at, change in enumerate(changes):
            first[at] = 0.9 * first[at] + 0.1 * change
            second[at] = 0.999 * second[at] + 0.001 * change**2
            network[at] = network[at] - rate * (first[at] / (1 - 0.9**step)) / (
                np.sqrt(second[at] / (1 - 0.999**step)) + 1e-9
            )
    return network[0], network[1], network[2], network[3]


def shipped() -> Network:
    """Returns the weights that the policy uses."""
    return (
        np.array(forecast_weights.HIDDEN).T,
        np.array(forecast_weights.HIDDEN_BIAS),
        np.array(forecast_weights.OUTPUT),
        np.array([forecast_weights.BIAS]),
    )


def judge(network: Network, learnt: Array, judged: Array) -> dict[str, float]:
    """Returns the errors in percent on the days that were not learnt, one prediction for each ten seconds."""
    given, scale, target, tops = windows(judged, SLICE_S)
    answer = scale * np.exp(np.tanh(given @ network[0] + network[1]) @ network[2] + network[3]) - SMALLEST_RPS
    answer = np.where(tops.max(axis=1) <= STEADY * tops.min(axis=1), tops.max(axis=1), answer)
    _, _, past, past_tops = windows(learnt, SLICE_S)
    line = np.linalg.lstsq(np.column_stack([past_tops, np.ones(len(past))]), past, rcond=None)[0]

    def error(predicted: Array) -> float:
        return round(float(100 * np.mean(np.abs(predicted - target) / target)), 3)

    return {
        "predictions": len(target),
        "mape_pct": error(answer),
        "persistence_mape_pct": error(tops[:, -1]),
        "linear_mape_pct": error(tops @ line[:-1] + line[-1]),
    }


def seconds_of_one(rps: Array) -> float:
    """Returns the median time of a prediction as the policy makes it."""
    values = rps[: 10 * MINUTE_S].tolist()
    took = []
    for at in range(MINUTE_S, len(values)):
        began = perf_counter()
        forecast.predicted(values, at)
        took.append(perf_counter() - began)
    return statistics.median(took)


def write(network: Network) -> None:
    """Writes the weights as the module that the policy reads."""
    hidden, biases, output, bias = (np.round(each, 5).tolist() for each in (network[0].T, *network[1:]))
    rows = "".join(f"    ({_words(row, 8)}),\n" for row in hidden)
    WEIGHTS.write_text(
        '"""The weights of the load predictor, written by ``python -m benchmarks.forecast TRACE --write``."""\n\n'
        "from typing import Final\n\n"
        "# fmt: off\n"
        f"HIDDEN: Final = (\n{rows})\n"
        f"HIDDEN_BIAS: Final = (\n    {_words(biases, 4)},\n)\n"
        f"OUTPUT: Final = (\n    {_words(output, 4)},\n)\n"
        f"BIAS: Final = {bias[0]!r}\n",
        encoding="utf-8",
    )


def _words(values: list[float], indent: int) -> str:
    """Returns the numbers with commas, in lines of at most 118 characters."""
    space = " " * indent
    return textwrap.fill(", ".join(map(repr, values)), 118, initial_indent=space, subsequent_indent=space).lstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains and judges the load predictor of the policy themis.")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--train", action="store_true", help="train on days 1 to 10 first")
    parser.add_argument("--write", action="store_true", help="train, and write the weights")
    options = parser.parse_args()
    rps = read(options.trace)
    if len(rps) < 11 * DAY_S:
        raise SystemExit(f"{options.trace}: {len(rps)} seconds; at least 11 days are needed: 10 to learn, 1 to judge")
    learnt, judged = rps[: 10 * DAY_S], rps[10 * DAY_S :]
    began = perf_counter()
    network = train(learnt) if options.train or options.write else shipped()
    took_s = perf_counter() - began
    if options.write:
        write(network)
    errors = judge(network, learnt, judged)
    errors["gain_over_persistence_pct"] = round(100 * (1 - errors["mape_pct"] / errors["persistence_mape_pct"]), 2)
    times = {"training_s": round(took_s, 1), "prediction_us": round(1e6 * seconds_of_one(rps), 1)}
    sys.stdout.write(json.dumps({"benchmark": "forecast", **errors, **times}) + "\n")


if __name__ == "__main__":
    main()
