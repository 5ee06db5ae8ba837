"""Drives the batcher: futures for requests, one task per running batch, one timer for holds."""

import asyncio
import sys
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.runtime.errors import ModelError, RequestError
from tidegate.runtime.execute.abandoned import AbandonedRuns
from tidegate.runtime.execute.batcher import Batch, Batcher, BatchItem
from tidegate.runtime.execute.engine import Execution, NotBatchable
from tidegate.runtime.execute.model import Inputs, Outputs
from tidegate.runtime.metrics import RuntimeCounters


class BatchExecutor(Protocol):
    """The part of an engine that the scheduler needs."""

    @property
    def runners(self) -> int: ...

    @property
    def can_interrupt(self) -> bool: ...

    async def execute(self, requests: list[Inputs], arrived: float) -> Execution: ...


@dataclass(slots=True, eq=False)
class _Job:
    inputs: Inputs
    future: asyncio.Future[Outputs]


class Scheduler:
    """Runs requests on an engine, in batches if they fit. Belongs to one event loop."""

    def __init__(
        self, engine: BatchExecutor, owner: TaskOwner, counters: RuntimeCounters, *, max_batch: int, delay_s: float
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._max_batch = max_batch
        self._most = max_batch
        """Largest batch that the model takes."""
        self._batcher: Batcher[_Job] = Batcher(max_batch, delay_s if max_batch > 1 else 0.0, engine.runners)
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: dict[Batch[_Job], asyncio.Task[None]] = {}
        self._abandoned = AbandonedRuns()

    @property
    def waiting(self) -> int:
        """Requests that are in no run yet."""
        return self._batcher.waiting

    @property
    def abandoned(self) -> int:
        """Requests without a client that the model goes on with."""
        return self._abandoned.count

    @property
    def batching(self) -> tuple[int, float]:
        """(largest batch that is formed, seconds for which a free model waits for more requests)."""
        return self._max_batch, self._batcher.delay_s

    def set_batching(self, max_batch: int, delay_s: float) -> None:
        """Changes both while the model serves; requests that run are not touched. Raises RequestError for a batch that
        the model does not take."""
        if not 1 <= max_batch <= self._most:
            why = "1: this model takes no batches" if self._most == 1 else f"1 to {self._most}, its batching.max"
            raise RequestError(f"max_batch: got {max_batch}; allowed: {why}")
        self._max_batch = max_batch
        self._begin(self._batcher.set_limits(max_batch, delay_s if max_batch > 1 else 0.0, self._loop.time()))

    def set_runners(self, runners: int) -> None:
        """Sets the runs at a time. Those beyond a smaller number go on to their end."""
        self._batcher.runners = runners
        self._begin(self._batcher.on_wakeup(self._loop.time()))

    async def infer(self, inputs: Inputs) -> Outputs:
        """Returns the outputs for one request. Raises RequestError, ModelError.

        Cancelling removes a waiting request from its queue. A running one goes on to its end, unless the engine can be
        interrupted and no other request needs the batch.
        """
        job = _Job(inputs, self._loop.create_future())
        item = BatchItem(job, inputs[0].rows or 1, self._signature(inputs))
        self._begin(self._batcher.add(item, self._loop.time()))
        try:
            return await job.future
        except asyncio.CancelledError:
            if not self._batcher.cancel(item):
                if any(item in batch.items for batch in self._tasks):
                    self._abandoned.began(item)
                self._interrupt()
            raise

    def _signature(self, inputs: Inputs) -> Hashable | None:
        """Returns the signature of a request; equal ones may share a batch. Returns None if it runs alone."""
        if self._max_batch <= 1:
            return None
        rows = inputs[0].rows
        if not rows or rows >= self._max_batch or any(tensor.rows != rows for tensor in inputs):
            return None
        return tuple(sorted((tensor.name, tensor.datatype, tensor.shape[1:]) for tensor in inputs))

    def _begin(self, batches: list[Batch[_Job]]) -> None:
        for batch in batches:
            self._tasks[batch] = self._owner.spawn(self._run(batch), name="batch")
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wakeup = self._batcher.next_wakeup()
        if wakeup is not None:
            self._timer = self._loop.call_at(wakeup, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._begin(self._batcher.on_wakeup(self._loop.time()))

    async def _run(self, batch: Batch[_Job]) -> None:
        again, items = False, batch.items
        try:
            again = await self._answer(batch)
        finally:
            del self._tasks[batch]
            for item in items if self._abandoned.count else ():
                self._abandoned.ended(item)
            step = self._batcher.failed if again else self._batcher.finished
            self._begin(step(batch, self._loop.time()))

    async def _answer(self, batch: Batch[_Job]) -> bool:
        """Runs a batch and completes its futures. Returns True if its requests have to run again one by one."""
        started = self._loop.time()
        jobs = [item.value for item in batch.items]
        self._counters.executions += 1
        try:
            execution = await self._engine.execute([job.inputs for job in jobs], batch.items[-1].arrived)
        except asyncio.CancelledError:
            # Interrupted because no request waits, or by the handler itself while requests wait.
            for job in jobs:
                _fail(job.future, ModelError("the run was cancelled"))
            raise
        except Exception as error:
            if isinstance(error, NotBatchable):
                self._max_batch = self._most = 1
                sys.stderr.write(f"no more batches: {error}\n")
            if len(jobs) > 1:
                batch.items = [item for item in batch.items if not item.value.future.done()]
                return True
            _fail(jobs[0].future, error)
            if not isinstance(error, RequestError | ModelError):
                raise
            return False
        counters = self._counters
        counters.inferences += batch.rows
        counters.measured += len(jobs)
        counters.queue_s += sum(started - item.arrived for item in batch.items)
        counters.input_s += execution.input_s * len(jobs)
        counters.infer_s += execution.infer_s * len(jobs)
        counters.output_s += execution.output_s * len(jobs)
        for job, outputs in zip(jobs, execution.outputs, strict=True):
            if not job.future.done():
                job.future.set_result(outputs)
        return False

    def _interrupt(self) -> None:
        """Ends runs that no request waits for, if the engine can."""
        if not self._engine.can_interrupt:
            return
        for batch, task in self._tasks.items():
            if all(item.value.future.done() for item in batch.items):
                task.cancel()

    def __repr__(self) -> str:
        return f"<Scheduler {self._batcher!r}>"


def _fail(future: asyncio.Future[Outputs], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
