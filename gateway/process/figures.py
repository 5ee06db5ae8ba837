"""WorkerFigures: what one gateway worker reports about itself: its sample for the control process, and its metrics."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from tidegate import metrics
from tidegate.activator.room import RoomCounts
from tidegate.aio.loop.slices import in_slices
from tidegate.flow.rooms.leases import RoomLeases
from tidegate.gateway.core import GatewayCore
from tidegate.gateway.jobs.live import JobThread
from tidegate.gateway.payloads.batches import PayloadBatches
from tidegate.gateway.process.front_door import FrontDoor
from tidegate.gateway.process.shutdown import Shutdown
from tidegate.records.gateway_sample import GatewaySample

if TYPE_CHECKING:
    from tidegate.gateway.tracing.batches import SpanBatches


class WorkerFigures:
    """Reads the counters of one worker."""

    __slots__ = ("_core", "_front_door", "_jobs", "_payloads", "_rooms", "_shutdown", "_spans", "_worker")

    def __init__(
        self,
        worker: str,
        core: GatewayCore,
        front_door: FrontDoor,
        shutdown: Shutdown,
        *,
        jobs: JobThread | None,
        spans: "SpanBatches | None",
        payloads: PayloadBatches,
        rooms: RoomLeases | None = None,
    ) -> None:
        self._worker = worker
        self._core = core
        self._front_door = front_door
        self._shutdown = shutdown
        self._jobs = jobs
        self._spans = spans
        self._payloads = payloads
        self._rooms = rooms

    async def sample(self) -> GatewaySample:
        """Returns the sample of now, for the control process."""
        core = self._core
        demands = await in_slices(core.report.demands(self._waiting))
        is_last = self._shutdown.sampled()
        sample = core.report.sample(
            monotonic(), table=core.table.version, connections=self._front_door.connections, demands=demands
        )
        access_control = core.access_control
        return replace(
            sample,
            certificate_fault=self._front_door.certificate_fault,
            jobs_fault=None if self._jobs is None else self._jobs.fault,
            access_log_fault=None if core.access_log is None else core.access_log.fault_line,
            payloads_fault=self._payloads.fault_line,
            is_last=is_last,
            tenants=access_control.seen(),
            uses=access_control.uses(),
            quotas_lost=access_control.is_lost,
            rooms_lost=self._rooms is not None and self._rooms.is_lost,
            unknown_keys=access_control.unknown_keys,
        )

    async def scrape(self) -> AsyncIterator[bytes]:
        """Yields the metrics, as Prometheus text with exemplars."""
        core, worker, front_door = self._core, self._worker, self._front_door
        exposition = metrics.Exposition()
        steps = core.report.expose(
            exposition,
            monotonic(),
            table=core.table.version,
            connections=front_door.connections,
            waiting=self._waiting,
            outliers=core.resilience.outliers,
            log_lines_dropped=0 if core.access_log is None else core.access_log.dropped,
            body_bytes=front_door.body_bytes,
        )
        await in_slices(steps)
        core.access_control.expose(exposition, worker)
        if self._rooms is not None:
            exposition.add(metrics.GATEWAY_ROOMS_LOCAL, (worker,), int(self._rooms.is_lost))
        core.jobs.expose(exposition, worker)
        if self._spans is not None:
            exposition.add(metrics.GATEWAY_TRACE_SPANS, (worker, "exported"), self._spans.delivered)
            exposition.add(metrics.GATEWAY_TRACE_SPANS, (worker, "dropped"), self._spans.dropped)
        dropped = core.payloads.dropped + self._payloads.dropped
        exposition.add(metrics.GATEWAY_PAYLOAD_EVENTS, (worker, "delivered"), self._payloads.delivered)
        exposition.add(metrics.GATEWAY_PAYLOAD_EVENTS, (worker, "dropped"), dropped)
        core.pipelines.expose(exposition, worker)
        gate, own = core.chain.body_gate, (worker,)
        exposition.add(metrics.GATEWAY_AWAITED_BODIES, own, gate.waiting)
        exposition.add(metrics.GATEWAY_CROWDED_BODIES, own, gate.crowded)
        exposition.add(metrics.GATEWAY_SLOW_BODIES, own, front_door.slow_bodies)
        places = front_door.places
        if places is not None:
            for limit, shed in (("connections", places.shed_by_limit), ("client", places.shed_by_client)):
                exposition.add(metrics.GATEWAY_SHED_CONNECTIONS, (worker, limit), shed)
        # Piece by piece: to join those of a thousand functions would hold the loop for 5 ms.
        for part in exposition.parts():
            yield part
            await asyncio.sleep(0)

    def _waiting(self, revision: str) -> RoomCounts | None:
        return self._core.room.counts(revision, monotonic())

    def __repr__(self) -> str:
        return f"<WorkerFigures {self._worker}>"
