"""Runs a model in its own thread, over batches of requests.

Joining along the first dimension is joining contents, because tensors are row-major. No array library is involved.
"""

import asyncio
import functools
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from tidegate.runtime.errors import ModelError, RequestError
from tidegate.runtime.execute.model import Inputs, Model, Outputs, StreamingModel
from tidegate.runtime.execute.worker import Worker
from tidegate.runtime.protocols.tensors import BYTES, ITEM_SIZES, Tensor
from tidegate.runtime.protocols.v2 import ModelSpec

T = TypeVar("T")


class NotBatchable(ModelError):
    """The model's outputs do not have one row per input row, so its batches cannot be split."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One run: outputs per request, and the durations of its parts, in seconds."""

    outputs: list[Outputs]
    input_s: float
    infer_s: float
    output_s: float


class ModelEngine:
    """A model, its thread, and its specification."""

    def __init__(self, model: Model, worker: Worker) -> None:
        self._model = model
        self._worker = worker
        self._workers = [worker]
        self._idle = [worker]
        """Workers without a run, for models that several threads may run at a time."""
        self._spec: ModelSpec | None = None

    @property
    def spec(self) -> ModelSpec:
        """The specification, known once ``load`` has returned."""
        if self._spec is None:
            raise RuntimeError("the model is not loaded")
        return self._spec

    @property
    def runners(self) -> int:
        return self._model.runners

    async def load(self) -> ModelSpec:
        """Loads the model in its thread. Raises LoadError."""
        self._spec = await call(self._worker, self._model.load)
        if self._model.loop is not None:
            self._worker.submit(functools.partial(_run_loop, self._model.loop))
        return self._spec

    def grow(self, runners: int) -> None:
        """Makes further threads for a model that several may run at a time, until there are ``runners``."""
        for number in range(len(self._workers), runners):
            worker = Worker(f"model-{number + 1}")
            self._workers.append(worker)
            self._idle.append(worker)

    @property
    def can_interrupt(self) -> bool:
        """True if cancelling ``execute`` ends the run. A thread cannot be interrupted."""
        return self._model.loop is not None

    def stop(self) -> None:
        """Stops the model's event loop, if it has one, so that the thread can end."""
        loop = self._model.loop
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)
        for worker in self._workers[1:]:
            worker.stop()

    async def probe(self) -> str | None:
        """Runs the model once on made-up inputs. Returns the failure if the model can be served nevertheless, else
        None.

        Raises ModelError or RequestError if it cannot be served.
        """
        inputs = self._model.probe()
        if inputs is None:
            return None
        try:
            await self.execute([inputs])
        except (ModelError, RequestError) as error:
            if self._model.must_pass():
                raise
            return str(error)
        return None

    async def execute(self, requests: list[Inputs], arrived: float = -math.inf) -> Execution:
        """Runs all requests as one batch. ``arrived`` is the arrival of the last one. Raises RequestError,
        ModelError."""
        loop = self._model.loop
        if loop is None:
            worker = self._idle.pop() if self._idle else self._worker
            try:
                return await call(worker, self._execute, requests, arrived)
            finally:
                self._idle.append(worker)
        return await _in_loop(loop, self._execute_async(requests, arrived))

    async def stream(
        self, inputs: Inputs | Mapping[str, Any], parameters: Mapping[str, Any]
    ) -> AsyncGenerator[Outputs, None]:
        """Yields the answers to one request of a model that streams. Closing this closes the model's generator.

        ``inputs`` are tensors, or the model's own values by name. Raises RequestError, ModelError.
        """
        loop = self._model.loop
        if loop is None:
            items = await call(self._worker, self._open, inputs, parameters)
            assert isinstance(items, Generator)
            try:
                while (outputs := await call(self._worker, self._next, items)) is not None:
                    yield outputs
            finally:
                await call(self._worker, items.close)
            return
        turn = asyncio.Lock()  # A step that is being cancelled ends before the generator is closed.
        source: list[AsyncGenerator[Mapping[str, Any], None]] = []
        try:
            while (outputs := await _in_loop(loop, self._next_async(turn, source, inputs, parameters))) is not None:
                yield outputs
        finally:
            await _in_loop(loop, _close(turn, source))

    def _open(self, inputs: Inputs | Mapping[str, Any], parameters: Mapping[str, Any]) -> Any:
        values = inputs if isinstance(inputs, Mapping) else self._decode([inputs])
        return cast(StreamingModel, self._model).stream(values, parameters)

    def _next(self, items: Generator[Mapping[str, Any], None, None]) -> Outputs | None:
        for values in items:
            return self._encode(values)
        return None

    async def _next_async(
        self,
        turn: asyncio.Lock,
        source: list[AsyncGenerator[Mapping[str, Any], None]],
        inputs: Inputs | Mapping[str, Any],
        parameters: Mapping[str, Any],
    ) -> Outputs | None:
        async with turn:
            if not source:
                source.append(self._open(inputs, parameters))
            async for values in source[0]:
                return self._encode(values)
            return None

    def _execute(self, requests: list[Inputs], arrived: float) -> Execution:
        started = time.perf_counter()
        inputs = self._decode(requests)
        prepared = time.perf_counter()
        values = self._model.run(inputs, arrived)
        if not isinstance(values, Mapping):
            raise ModelError("the model answered with an awaitable and has no loop")
        return self._finish(requests, values, started, prepared)

    async def _execute_async(self, requests: list[Inputs], arrived: float) -> Execution:
        started = time.perf_counter()
        inputs = self._decode(requests)
        prepared = time.perf_counter()
        values = self._model.run(inputs, arrived)
        return self._finish(requests, values if isinstance(values, Mapping) else await values, started, prepared)

    def _finish(self, requests: list[Inputs], values: Mapping[str, Any], started: float, prepared: float) -> Execution:
        answered = time.perf_counter()
        outputs = self._encode(values)
        parts = divide(outputs, [inputs[0].shape[0] for inputs in requests]) if len(requests) > 1 else [outputs]
        return Execution(parts, prepared - started, answered - prepared, time.perf_counter() - answered)

    def _decode(self, requests: list[Inputs]) -> dict[str, Any]:
        tensors = requests[0] if len(requests) == 1 else join(requests)
        return {tensor.name: self._model.arrays.decode(tensor) for tensor in tensors}

    def _encode(self, values: Mapping[str, Any]) -> Outputs:
        declared = {output.name: output.datatype for output in self.spec.outputs or ()}
        return {name: self._model.arrays.encode(name, value, declared.get(name)) for name, value in values.items()}


def join(requests: list[Inputs]) -> Inputs:
    """Returns one batch: the rows of every tensor after each other, in the order of the requests."""
    joined = []
    for first in requests[0]:
        parts = [tensor for inputs in requests for tensor in inputs if tensor.name == first.name]
        shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
        if first.datatype == BYTES:
            items = [item for part in parts for item in part.data]
            joined.append(Tensor(first.name, BYTES, shape, items))  # type: ignore[arg-type]  # BYTES holds a list
        else:
            joined.append(Tensor(first.name, first.datatype, shape, b"".join(part.data for part in parts)))  # type: ignore[misc]  # not BYTES
    return joined


def divide(outputs: Outputs, rows: list[int]) -> list[Outputs]:
    """Splits a batch's outputs by request, the reverse of ``join``. Raises NotBatchable."""
    total = sum(rows)
    for tensor in outputs.values():
        if tensor.rows != total:
            raise NotBatchable(
                f"output '{tensor.name}' has the shape {list(tensor.shape)} for a batch of {total}: "
                "it has no row per input, so requests cannot share a batch"
            )
    parts: list[Outputs] = []
    start = 0
    for count in rows:
        parts.append({name: _slice(tensor, start, start + count) for name, tensor in outputs.items()})
        start += count
    return parts


def _slice(tensor: Tensor, start: int, stop: int) -> Tensor:
    shape = (stop - start, *tensor.shape[1:])
    width = math.prod(tensor.shape[1:])
    data = tensor.data
    if isinstance(data, list):
        return Tensor(tensor.name, BYTES, shape, data[start * width : stop * width])
    width *= ITEM_SIZES[tensor.datatype]
    return Tensor(tensor.name, tensor.datatype, shape, memoryview(data)[start * width : stop * width])


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Runs a model's loop in its thread until it is stopped."""
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _close(turn: asyncio.Lock, source: list[AsyncGenerator[Mapping[str, Any], None]]) -> None:
    async with turn:
        for items in source:
            await items.aclose()


async def _in_loop(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs ``coroutine`` in a model's loop. Cancelling this cancels it there."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))


async def call(worker: Worker, function: Callable[..., T], *args: Any) -> T:
    """Runs ``function`` in the worker's thread. Returns its result or raises its exception."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]  # a T wherever there is no error

    def job() -> None:
        try:
            value = function(*args)
        except BaseException as error:
            loop.call_soon_threadsafe(deliver, None, error)
        else:
            loop.call_soon_threadsafe(deliver, value, None)

    worker.submit(job)
    return await future
