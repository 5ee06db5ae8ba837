"""What every kind of model offers to the engine that runs it."""

import math
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from tidegate.runtime.protocols.arrays import Arrays
from tidegate.runtime.protocols.tensors import BYTES, ITEM_SIZES, Tensor
from tidegate.runtime.protocols.v2 import ModelSpec, TensorSpec

Inputs = list[Tensor]
Outputs = dict[str, Tensor]


class Model(Protocol):
    """One kind of model. All methods are called in the model's thread."""

    @property
    def runners(self) -> int:
        """Runs at a time: 1, or more for a model with a loop. Known once loaded."""
        ...

    @property
    def loop(self) -> AbstractEventLoop | None:
        """The loop, in the model's thread, on which to await what ``run`` answers with; None: ``run`` answers at once.

        Known once loaded.
        """
        ...

    @property
    def arrays(self) -> Arrays:
        """How it wants to see tensors. Known once loaded."""
        ...

    def load(self) -> ModelSpec:
        """Makes the model able to run. Raises LoadError."""
        ...

    def probe(self) -> Inputs | None:
        """Inputs for a first run that proves that the model answers; None where none can be made up."""
        ...

    def must_pass(self) -> bool:
        """Whether a probe that fails means that the model cannot be served."""
        ...

    def run(self, inputs: dict[str, Any], arrived: float) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
        """Outputs by name. ``arrived``: when the last of the requests came, on the monotonic clock; for models that
        stand for a device. Raises RequestError where the inputs are at fault, ModelError otherwise."""
        ...


def zeros(spec: TensorSpec) -> Tensor:
    """A made-up input: free dimensions are 1, numbers 0, strings empty."""
    shape = tuple(1 if size < 0 else size for size in spec.shape)
    count = math.prod(shape)
    if spec.datatype == BYTES:
        return Tensor(spec.name, BYTES, shape, [b""] * count)
    return Tensor(spec.name, spec.datatype, shape, bytes(count * ITEM_SIZES[spec.datatype]))
