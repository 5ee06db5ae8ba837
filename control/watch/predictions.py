"""First predictions live: carries samples and graphs to ``tidegate.autoscaler.oltunes.prediction.served``.

All of it runs in the control process, a few milliseconds a second; graphs are read in a thread. No request waits.
"""

import asyncio
import random
from typing import Final

from tidegate.autoscaler.measure.rates import WARM_REQUESTS
from tidegate.autoscaler.oltunes.prediction.analysis import rates_of
from tidegate.autoscaler.oltunes.prediction.served import FirstPrediction, FirstPredictions, ServedDevice, ServedWork
from tidegate.control.watch.graphs import figures_of, has_graph, model_key
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import Function
from tidegate.records.replica_sample import ReplicaSample

SEED: Final = 1
"""Seed of the factors' start: the same samples give the same predictions."""


class Predictions:
    """The predictions of one control process."""

    def __init__(self) -> None:
        self._core = FirstPredictions(random.Random(SEED))
        self._unread: dict[str, Function] = {}
        """Functions whose graphs are not read yet, by model."""

    def track(self, function: Function) -> None:
        """Notes a function whose graph is to be read."""
        if has_graph(function):
            self._unread[model_key(function)] = function

    async def inspect(self, function: Function) -> None:
        """Reads the function's graph now."""
        figures = await asyncio.to_thread(figures_of, function)
        self._unread.pop(model_key(function), None)
        if figures is not None:
            self._core.know(model_key(function), figures)

    def measured(
        self, function: Function, accelerator: Accelerator, before: ReplicaSample, sample: ReplicaSample
    ) -> None:
        """Takes two samples of a replica, a second apart. A cold replica, one that lost clients, and one whose requests
        failed show no speed."""
        if before.requests < WARM_REQUESTS or sample.failures > before.failures:
            return
        if sample.unanswered > before.unanswered:
            return
        work = ServedWork(
            requests=sample.requests - before.requests,
            inferences=sample.inferences - before.inferences,
            busy_s=sample.busy_s - before.busy_s,
            request_s=sample.in_flight_request_s - before.in_flight_request_s,
            execution_s=sample.execution_s - before.execution_s,
        )
        self._core.served(model_key(function), _device(accelerator), _share_pct(function), work)

    async def review(self) -> None:
        """Learns a part of what was gathered, and reads a graph; called once a second."""
        self._core.learn()
        if self._unread:
            await self.inspect(next(iter(self._unread.values())))

    def of(self, function: Function, accelerator: Accelerator) -> FirstPrediction | None:
        """Returns the predicted time of one inference; None if there is nothing to go by."""
        return self._core.predict(model_key(function), _device(accelerator), _share_pct(function))

    @property
    def verdicts(self) -> dict[str, int]:
        """Samples so far by what became of them."""
        return self._core.verdicts

    def __repr__(self) -> str:
        return f"<Predictions {self._core}, {len(self._unread)} graphs to read>"


def _device(accelerator: Accelerator) -> ServedDevice:
    is_cpu = accelerator.kind is AcceleratorKind.CPU
    cores = accelerator.cores * accelerator.quota / 100.0 if is_cpu else None
    rates = None if accelerator.is_emulated else rates_of(accelerator.name, cores=cores)
    return ServedDevice(name=accelerator.name, memory_gb=accelerator.memory_bytes / 1e9, rates=rates)


def _share_pct(function: Function) -> float:
    return function.gpu.core_percentage if function.gpu.mps else 100.0
