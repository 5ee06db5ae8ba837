"""OT-P: configurations and their measured effect, generated, since the paper's measurements are not published.

A batch takes a fixed time, a time of computation that falls with the share of the device and rises less than in
proportion at small batches, and a time of memory traffic. Too little memory multiplies all of it. Each sample has 5 %
of noise.
"""

import math
import random
from dataclasses import dataclass
from typing import Final

from tidegate.autoscaler.oltunes.prediction.features import BATCHES, SHARES_PCT, Configuration
from tidegate.autoscaler.oltunes.prediction.predictor import Sample

ROWS: Final = 1400
NOISE: Final = 0.05


@dataclass(frozen=True, slots=True)
class DatasetModel:
    name: str
    gflop: float
    """Of one item, as are the next ones."""
    base_gb: float
    item_gb: float
    traffic_gb: float
    parameters: float


@dataclass(frozen=True, slots=True)
class DatasetDevice:
    name: str
    tflops: float
    gb_per_s: float
    memory_gb: int


MODELS: Final = (
    DatasetModel("resnet18", 3.6, 1.0, 0.02, 0.1, 11.7e6),
    DatasetModel("resnet50", 8.2, 1.5, 0.05, 0.3, 25.6e6),
    DatasetModel("resnet152", 23.0, 2.0, 0.09, 0.6, 60.2e6),
    DatasetModel("yolov5n", 4.5, 1.0, 0.04, 0.2, 1.9e6),
    DatasetModel("yolov5x", 205.0, 2.5, 0.2, 2.0, 86.7e6),
    DatasetModel("bert-base", 22.0, 1.8, 0.04, 0.6, 110e6),
    DatasetModel("bert-medium", 10.0, 1.2, 0.02, 0.3, 41.4e6),
    DatasetModel("gpt2", 3000.0, 7.0, 0.2, 7.0, 1558e6),
)
DEVICES: Final = (
    DatasetDevice("a100", 19.5, 1555.0, 40),
    DatasetDevice("a30", 10.3, 933.0, 24),
    DatasetDevice("rtx4090", 82.6, 1008.0, 24),
)


def generate(rng: random.Random, rows: int = ROWS, models: tuple[DatasetModel, ...] = MODELS) -> list[Sample]:
    """Returns ``rows`` samples of configurations drawn evenly."""
    return [_draw(rng, models) for _ in range(rows)]


def _draw(rng: random.Random, models: tuple[DatasetModel, ...]) -> Sample:
    model, device = rng.choice(models), rng.choice(DEVICES)
    batch, share_pct = rng.choice(BATCHES), rng.choice(SHARES_PCT)
    size = rng.randint(64, 1280)
    need_gb = model.base_gb + model.item_gb * batch
    memory_gb = min(device.memory_gb - 2, 2 * math.ceil(need_gb / 2) + rng.choice((0, 2, 4)))
    latency_s = batch_time_s(model, device, batch, share_pct, size, memory_gb) * math.exp(rng.gauss(0.0, NOISE))
    return Sample(
        configuration=Configuration(
            model=model.name,
            device=device.name,
            batch=batch,
            share_pct=share_pct,
            memory_gb=memory_gb,
            device_memory_gb=device.memory_gb,
            input_size=size,
            parameters=model.parameters,
        ),
        latency_s=latency_s,
        throughput=batch / latency_s,
    )


def batch_time_s(
    model: DatasetModel, device: DatasetDevice, batch: int, share_pct: float, size: float, memory_gb: float
) -> float:
    """Returns the time of a batch without noise."""
    scale = size / 640.0
    rate = 1000.0 * device.tflops * 0.45 * batch / (batch + 4.0) * math.pow(share_pct / 100.0, 0.8)
    compute_s = batch * model.gflop * scale / rate
    traffic_s = 0.5 * batch * model.traffic_gb * scale / device.gb_per_s
    need_gb = model.base_gb + model.item_gb * batch
    missing = max(0.0, need_gb - memory_gb) / need_gb
    return (1.5e-3 + compute_s + traffic_s) * (1.0 + 3.0 * missing)
