"""The interface of a model to the engine that runs it."""

import math
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Awaitable, Generator, Mapping
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
        """The loop, in the model's thread, that awaits the result of ``run``. None if ``run`` returns the result
        itself.

        Known once loaded.
        """
        ...

    @property
    def arrays(self) -> Arrays:
        """The representation of tensors that it wants. Known once loaded."""
        ...

    def load(self) -> ModelSpec:
        """Prepares the model for runs. Raises LoadError."""
        ...

    def probe(self) -> Inputs | None:
        """Returns inputs for a first run that proves that the model answers. Returns None if none can be made up."""
        ...

    def must_pass(self) -> bool:
        """Returns True if the model cannot be served after a failed probe."""
        ...

    def run(self, inputs: dict[str, Any], arrived: float) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
        """Returns outputs by name.

        ``arrived`` is the arrival of the last request, on the monotonic clock, for models that emulate a device. Raises
        RequestError for invalid inputs, ModelError otherwise.
        """
        ...


class StreamingModel(Protocol):
    """The further method of a model whose specification has ``streams``."""

    def stream(
        self, inputs: Mapping[str, Any], parameters: Mapping[str, Any]
    ) -> Generator[Mapping[str, Any], None, None] | AsyncGenerator[Mapping[str, Any], None]:
        """Returns the answers to one request, each with its outputs by name; asynchronous for a model with a loop.

        The iteration raises RequestError for invalid inputs, ModelError otherwise.
        """
        ...


def zeros(spec: TensorSpec, *, rows: int = 1) -> Tensor:
    """Returns a made-up tensor: a free first dimension is ``rows``, other free ones are 1, numbers 0, strings empty."""
    first = (rows if spec.shape[0] < 0 else spec.shape[0],) if spec.shape else ()
    shape = (*first, *(1 if size < 0 else size for size in spec.shape[1:]))
    count = math.prod(shape)
    if spec.datatype == BYTES:
        return Tensor(spec.name, BYTES, shape, [b""] * count)
    return Tensor(spec.name, spec.datatype, shape, bytes(count * ITEM_SIZES[spec.datatype]))
