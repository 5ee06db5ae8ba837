"""Runs requests of a model that streams: as many at a time as the model has runners, in order of arrival."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from tidegate.runtime.errors import RequestError
from tidegate.runtime.execute.abandoned import AbandonedRuns
from tidegate.runtime.execute.model import Inputs, Outputs
from tidegate.runtime.metrics import RuntimeCounters
from tidegate.runtime.protocols.tensors import BYTES, Tensor


class StreamExecutor(Protocol):
    """The part of an engine that streams need."""

    @property
    def runners(self) -> int: ...

    def stream(
        self, inputs: Inputs | Mapping[str, Any], parameters: Mapping[str, Any]
    ) -> AsyncGenerator[Outputs, None]: ...


class Streams:
    """Streams of one model. Belongs to one event loop."""

    def __init__(self, engine: StreamExecutor, counters: RuntimeCounters) -> None:
        self._engine = engine
        self._counters = counters
        self._free = asyncio.Semaphore(engine.runners)
        self.waiting = 0
        """Requests whose stream has not begun."""
        self._abandoned = AbandonedRuns()

    @property
    def abandoned(self) -> int:
        """Streams without a client that the model goes on with."""
        return self._abandoned.count

    async def run(
        self, inputs: Inputs | Mapping[str, Any], parameters: Mapping[str, Any]
    ) -> AsyncGenerator[Outputs, None]:
        """Yields the answers to one request. Raises RequestError, ModelError.

        A stream whose client left counts as running until the model's generator is closed.
        """
        clock = asyncio.get_running_loop().time
        counters, arrived = self._counters, clock()
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        started = clock()
        counters.executions += 1
        items = self._engine.stream(inputs, parameters)
        try:
            async with contextlib.aclosing(items):
                try:
                    async for outputs in items:
                        yield outputs
                except (asyncio.CancelledError, GeneratorExit):
                    self._abandoned.began(items)
                    raise
            counters.inferences += 1
            counters.measured += 1
            counters.queue_s += started - arrived
            counters.infer_s += clock() - started
        finally:
            self._abandoned.ended(items)
            self._free.release()

    async def collect(self, inputs: Inputs) -> Outputs:
        """Returns all answers to one request as one. Raises RequestError if they cannot be joined, and as ``run``."""
        async with contextlib.aclosing(self.run(inputs, {})) as items:
            return joined([outputs async for outputs in items])


def joined(answers: list[Outputs]) -> Outputs:
    """Returns the answers of a stream as one: a lone one as it is, texts joined. Raises RequestError for others."""
    if len(answers) == 1:
        return answers[0]
    texts: dict[str, list[bytes]] = {}
    for outputs in answers:
        for name, tensor in outputs.items():
            if tensor.datatype != BYTES or tensor.count != 1 or not isinstance(tensor.data, list):
                raise RequestError(
                    f"this model streams: it gave {len(answers)} answers, and its output '{name}' is not one text "
                    "each: use generate_stream or ModelStreamInfer"
                )
            texts.setdefault(name, []).append(tensor.data[0])
    if not texts:
        raise RequestError("this model streams, and its stream was empty: use generate_stream or ModelStreamInfer")
    return {name: Tensor(name, BYTES, (1,), [b"".join(pieces)]) for name, pieces in texts.items()}
