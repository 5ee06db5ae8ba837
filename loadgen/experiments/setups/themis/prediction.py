"""The load predictor against persistence, on a trace that it has not learnt (section 4.3)."""

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from tidegate.autoscaler.policies.themis import forecast
from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.tables import Positive, Word
from tidegate.loadgen.traces.files import open_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    trace: Word
    divisor: Positive
    """Part of the trace's load."""


@setup(Prediction)
def prediction(parameters: Prediction, seed: int) -> ExperimentOutcome:
    """Predicts each ten seconds from the minute before. Seconds without a request are gaps of the recording."""
    counts = open_trace(Path(parameters.trace)).counts()
    rps = [each / parameters.divisor for each in counts if each > 0]
    ours, persistence = [], []
    for at in range(forecast.MINUTE_S, len(rps) - forecast.SLICE_S, forecast.SLICE_S):
        target = forecast.next_maximum(rps, at)
        ours.append(100.0 * abs(forecast.predicted(rps, at) - target) / target)
        persistence.append(100.0 * abs(forecast.maxima(rps, at)[-1] - target) / target)
    mape, before = fmean(ours), fmean(persistence)
    return ExperimentOutcome(
        figures={
            "mape_percent": mape,
            "persistence_mape_percent": before,
            "gain_percent": 100.0 * (1.0 - mape / before) if before else math.nan,
            "predictions": float(len(ours)),
        }
    )
