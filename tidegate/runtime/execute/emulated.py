"""An emulated accelerator: real process, sockets and protocol, service time from a profile, no CPU time used.

A batch of b inferences takes ``base_s + per_item_s * b`` seconds, times a factor drawn evenly from ``1 - jitter .. 1 +
jitter``. Batches run one after the other, as on one device: while one runs the next gathers. Metadata and platform name
declare the emulation.

The device has a timeline of its own. A batch begins when its last request has arrived and the batch before it was due,
whatever delay the process adds (a sleep that is too long, the way through two threads, other processes on the same
cores: 0.2 ms on an idle machine, several on a busy one). The throughput of a busy device is thus the profile's, and
eight devices share two cores without slowing down.
"""

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.runtime.execute.model import Inputs
from tidegate.runtime.protocols.arrays import Arrays
from tidegate.runtime.protocols.tensors import Tensor
from tidegate.runtime.protocols.v2 import ModelSpec, TensorSpec, concurrency_for

_MAX_ROWS = 65536
LATE_S = 0.25
"""A process that was stopped for longer (a suspended machine) does not catch up."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Service time of an accelerator, in seconds. ``start_s`` is its loading time."""

    base_s: float
    per_item_s: float = 0.0
    jitter: float = 0.0
    start_s: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.base_s, self.per_item_s, self.start_s) < 0 or not 0 <= self.jitter <= 1:
            raise ValueError(f"times must not be negative and jitter lies in 0..1, got {self}")

    def batch_s(self, items: int, draw: random.Random) -> float:
        """Returns the service time of a batch of ``items`` inferences."""
        return (self.base_s + self.per_item_s * items) * (1 + draw.uniform(-self.jitter, self.jitter))


class _RowCount:
    """Shows a model only the number of rows of an input."""

    def decode(self, tensor: Tensor) -> Any:
        return tensor.rows or 1

    def encode(self, name: str, value: Any, datatype: str | None) -> Tensor:
        return Tensor(name, "FP32", (value, 1), bytes(4 * value))


class EmulatedModel:
    """Takes any inputs and returns one zero per row, after the time given by the profile."""

    def __init__(
        self,
        profile: Profile,
        *,
        max_batch: int,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._profile = profile
        self._max_batch = max_batch
        self._sleep = sleep
        self._clock = clock
        self._due = -math.inf
        """Time at which the last batch ended or will end, on the device's timeline."""
        self._draw = random.Random(profile.seed)

    @property
    def runners(self) -> int:
        return 1

    @property
    def loop(self) -> None:
        return None

    @property
    def arrays(self) -> Arrays:
        return _RowCount()

    def load(self) -> ModelSpec:
        self._sleep(self._profile.start_s)
        return ModelSpec(
            platform="tidegate_emulated",
            inputs=None,
            outputs=(TensorSpec("output", "FP32", (-1, 1)),),
            max_batch=self._max_batch,
            max_rows=_MAX_ROWS,
            concurrency=concurrency_for(self._max_batch),
            notes={"emulated": True},
        )

    def probe(self) -> Inputs | None:
        return None

    def must_pass(self) -> bool:
        return False

    def run(self, inputs: dict[str, Any], arrived: float = -math.inf) -> Mapping[str, Any]:
        rows = max(inputs.values())
        now = self._clock()
        start = max(self._due, arrived)
        self._due = (start if now - start <= LATE_S else now) + self._profile.batch_s(rows, self._draw)
        self._sleep(max(0.0, self._due - now))
        return {"output": rows}
