"""Two tasks on the halves of one device, or on shares that follow from their predicted times (figure 4)."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidegate.autoscaler.oltunes.prediction.features import SHARES_PCT, Configuration
from tidegate.autoscaler.oltunes.prediction.predictor import Predictor
from tidegate.loadgen.experiments.outcome import ExperimentError, ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.setups.oltunes.dataset import DEVICES, MODELS, DatasetModel, batch_time_s, generate
from tidegate.loadgen.experiments.tables import Count, Some, Word

DEVICE: Final = DEVICES[0]
MEMORY_GB: Final = 16.0
"""Memory of each task: enough for its batches."""
SIZE: Final = 640.0
"""Input size of each task: the one that OT-P's figures are for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTask:
    model: Word
    """The name of one of OT-P's models."""
    batches: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDevice:
    tasks: Some[SharedTask]
    """Two."""
    batch: Count
    rows: Count
    """Samples that the predictor has learnt."""


@setup(SharedDevice)
def shares(parameters: SharedDevice, seed: int) -> ExperimentOutcome:
    """Divides an A100 between two tasks and reports how much sooner than on its halves both are done."""
    if len(parameters.tasks) != 2:
        raise ExperimentError(f"{len(parameters.tasks)} tasks; two share the device")
    known = Predictor(random.Random(seed))
    known.train(generate(random.Random(seed), parameters.rows))
    measured = partial(_measured_s, batch=parameters.batch)
    predicted = partial(_predicted_s, known, batch=parameters.batch)

    def both_s(time_s: Callable[[DatasetModel, float], float], share_pct: float) -> float:
        """Returns when the second of the two is done, the first on this share."""
        first, second = parameters.tasks
        return max(
            first.batches * time_s(_model(first.model), share_pct),
            second.batches * time_s(_model(second.model), 100.0 - share_pct),
        )

    chosen = min(SHARES_PCT, key=partial(both_s, predicted))
    best = min(SHARES_PCT, key=partial(both_s, measured))
    halves_s = both_s(measured, 50.0)
    return ExperimentOutcome(
        figures={
            "chosen_share_pct": float(chosen),
            "best_share_pct": float(best),
            "gain": halves_s / both_s(measured, chosen) - 1.0,
            "best_gain": halves_s / both_s(measured, best) - 1.0,
        }
    )


def _model(name: str) -> DatasetModel:
    found = next((each for each in MODELS if each.name == name), None)
    if found is None:
        raise ExperimentError(f"model {name!r}; one of {', '.join(each.name for each in MODELS)}")
    return found


def _measured_s(model: DatasetModel, share_pct: float, *, batch: int) -> float:
    return batch_time_s(model, DEVICE, batch, share_pct, SIZE, MEMORY_GB)


def _predicted_s(known: Predictor, model: DatasetModel, share_pct: float, *, batch: int) -> float:
    configuration = Configuration(
        model=model.name,
        device=DEVICE.name,
        batch=batch,
        share_pct=share_pct,
        memory_gb=MEMORY_GB,
        device_memory_gb=DEVICE.memory_gb,
        input_size=SIZE,
        parameters=model.parameters,
    )
    return known.estimate(configuration)[0]
