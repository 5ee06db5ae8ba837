"""An emulated accelerator: real process, sockets and protocol, service time from a profile, no CPU time used.

A batch of b inferences takes ``base_s + per_item_s * b`` seconds, times a factor drawn evenly from ``1 - jitter .. 1 +
jitter``. Batches run one after the other, as on one device: while one runs the next gathers. Metadata and platform name
declare the emulation. Inputs and outputs are those that the function's Python class declares (``declared.py``), so that
clients and load generators send what they would send to the class.

The device has a timeline of its own. A batch begins when its last request has arrived and the batch before it was due,
whatever delay the process adds (a sleep that is too long, the way through two threads, other processes on the same
cores: 0.2 ms on an idle machine, several on a busy one). The throughput of a busy device is thus the profile's, and
eight devices share two cores without slowing down.
"""

import math
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.runtime.execute import declared
from tidegate.runtime.execute.handler import tensor_specs
from tidegate.runtime.execute.model import Inputs, zeros
from tidegate.runtime.protocols.arrays import Arrays
from tidegate.runtime.protocols.tensors import Tensor
from tidegate.runtime.protocols.v2 import ModelSpec, TensorSpec, concurrency_for

Tensors = tuple[TensorSpec, ...] | None
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


_ANY = "an emulated server runs none of the class's code, and goes on as if nothing were declared there"
_OUTPUT = TensorSpec("output", "FP32", (-1, 1))
"""The output of a class that declares none."""


class _RowCount:
    """Shows a model only the number of rows of an input."""

    def __init__(self, outputs: tuple[TensorSpec, ...] = (_OUTPUT,)) -> None:
        self._outputs = {spec.name: spec for spec in outputs}

    def decode(self, tensor: Tensor) -> Any:
        return tensor.rows or 1

    def encode(self, name: str, value: Any, datatype: str | None) -> Tensor:
        return zeros(self._outputs[name], rows=value)


class EmulatedModel:
    """Takes the inputs that the class declares, else any, and returns zeros in the shape of its outputs, after the time
    given by the profile."""

    def __init__(
        self,
        profile: Profile,
        *,
        max_batch: int,
        handler: tuple[str, str] | None = None,
        copy: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``handler``: file and class whose inputs and outputs are shown; ``copy``: is read instead of the file."""
        self._profile = profile
        self._handler = handler
        self._copy = copy
        self._arrays = _RowCount()
        self._outputs: tuple[TensorSpec, ...] = (_OUTPUT,)
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
        return self._arrays

    def load(self) -> ModelSpec:
        inputs = None
        if self._handler is not None:
            inputs, outputs = self._declared(*self._handler)
            self._outputs = outputs or (_OUTPUT,)
            self._arrays = _RowCount(self._outputs)
        self._sleep(self._profile.start_s)
        return ModelSpec(
            platform="tidegate_emulated",
            inputs=inputs,
            outputs=self._outputs,
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
        return dict.fromkeys((output.name for output in self._outputs), rows)

    def _declared(self, path: str, class_name: str) -> tuple[Tensors, Tensors]:
        """Returns the inputs and outputs of the class; None for what cannot be read without running its code, with a
        line for the log. Raises LoadError if they are declared wrongly."""
        source = Path(path if self._copy is None else self._copy)
        try:
            found = declared.read(source.read_bytes(), class_name, ("inputs", "outputs"))
        except (OSError, SyntaxError, LookupError, ValueError) as error:
            sys.stderr.write(f"{Path(path).name}: {error}; {_ANY}\n")
            return None, None
        for attribute, line in found.computed.items():
            sys.stderr.write(f"{Path(path).name}, line {line}: {class_name}.{attribute} is computed; {_ANY}\n")
        kind = type(class_name, (), dict(found.values))
        return tensor_specs(kind, "inputs"), tensor_specs(kind, "outputs")
