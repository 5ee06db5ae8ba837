"""An emulated accelerator: real process, sockets and protocol, service time from a profile, no CPU burnt.

A batch of b inferences takes ``base_s + per_item_s * b`` seconds, times a factor drawn evenly from
``1 - jitter .. 1 + jitter``. It says that it is emulated in its metadata and in its platform name.
"""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.runtime.arrays import Arrays
from tidegate.runtime.model import Inputs
from tidegate.runtime.protocol import ModelSpec, TensorSpec, busy_with
from tidegate.runtime.tensors import Tensor

_MAX_ROWS = 65536


@dataclass(frozen=True, slots=True)
class Profile:
    """Service time of an accelerator, in seconds; ``start_s`` is how long it takes to load."""

    base_s: float
    per_item_s: float = 0.0
    jitter: float = 0.0
    start_s: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.base_s, self.per_item_s, self.start_s) < 0 or not 0 <= self.jitter <= 1:
            raise ValueError(f"times must not be negative and jitter lies in 0..1, got {self}")

    def batch_s(self, items: int, draw: random.Random) -> float:
        """Service time of a batch of ``items`` inferences."""
        return (self.base_s + self.per_item_s * items) * (1 + draw.uniform(-self.jitter, self.jitter))


class _Rows:
    """Shows a model only how many rows an input has."""

    def decode(self, tensor: Tensor) -> Any:
        return tensor.rows or 1

    def encode(self, name: str, value: Any, datatype: str | None) -> Tensor:
        return Tensor(name, "FP32", (value, 1), bytes(4 * value))


class EmulatedModel:
    """Takes any inputs, answers one zero per row, after the time that the profile says."""

    def __init__(self, profile: Profile, *, max_batch: int, sleep: Callable[[float], None] = time.sleep) -> None:
        self._profile = profile
        self._max_batch = max_batch
        self._sleep = sleep
        self._draw = random.Random(profile.seed)

    @property
    def runners(self) -> int:
        return 1

    @property
    def loop(self) -> None:
        return None

    @property
    def arrays(self) -> Arrays:
        return _Rows()

    def load(self) -> ModelSpec:
        self._sleep(self._profile.start_s)
        return ModelSpec(
            platform="tidegate_emulated",
            inputs=None,
            outputs=(TensorSpec("output", "FP32", (-1, 1)),),
            max_batch=self._max_batch,
            max_rows=_MAX_ROWS,
            concurrency=busy_with(self._max_batch),
            notes={"emulated": True},
        )

    def probe(self) -> Inputs | None:
        return None

    def must_pass(self) -> bool:
        return False

    def run(self, inputs: dict[str, Any]) -> Mapping[str, Any]:
        rows = max(inputs.values())
        self._sleep(self._profile.batch_s(rows, self._draw))
        return {"output": rows}
