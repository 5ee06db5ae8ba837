"""A running queue_proxy: sockets, probes, timers and the admin endpoint around the cores."""

import asyncio
import json
import signal
import socket
from contextlib import aclosing, suppress
from dataclasses import asdict, replace
from time import monotonic
from typing import TYPE_CHECKING

from tidegate import headers, metrics
from tidegate.aio.admin.broadcast import Broadcast
from tidegate.aio.admin.endpoint import EndpointServer, Request, Response, StreamResponse, serve_endpoint
from tidegate.aio.channel import SlotPort
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.loop.sockets import is_loopback
from tidegate.aio.loop.tasks import TaskOwner, report_to_stderr
from tidegate.aio.proxy.server import Limits, ProxyServer, serve_proxy
from tidegate.aio.upstream.pool import UpstreamPool
from tidegate.flow.slots import SlotLedger
from tidegate.queue_proxy.chain import Sidecar
from tidegate.queue_proxy.lifecycle import ReplicaLifecycle
from tidegate.queue_proxy.metrics import Identity, ReplicaCounters, ReplicaLevels
from tidegate.queue_proxy.probes import (
    DEATH_ATTEMPTS,
    DEATH_PAUSE_S,
    LivenessCount,
    LivenessProbe,
    StartProbe,
)
from tidegate.queue_proxy.process.model_server import ModelServerCalls
from tidegate.queue_proxy.process.orders import Orders, error_response
from tidegate.queue_proxy.settings import DEFAULT_LIMIT, ProxySettings
from tidegate.records.replica_state import ConcurrencyUnit, FailureCause, ReplicaState

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.queue_proxy.model_server_metrics import ModelServerMetrics

HELD_FIRST_S, HELD_EVERY_S = 0.005, 0.25
"""Interval at which the ends of calls without a client are looked for: at first, doubling up to the second."""
ADDED_HEAD_BYTES, ADDED_HEADERS = 4096, 32
"""Room for the fields that gateways (and meshes between) add to a head that was just within their limits."""
ENDED = (ReplicaState.DRAINED, ReplicaState.STOPPED, ReplicaState.FAILED)
NO_BOUND = 1 << 30
"""Queue bound of the ledger, never reached: the chain enforces its own, which follows the limit."""


def client_limits(settings: ProxySettings) -> Limits:
    """Returns the limits of the listening side, and its rules for forwarding fields: the gateways' limits plus the
    fields that they add."""
    return replace(
        settings.limits,
        head_bytes=settings.limits.head_bytes + ADDED_HEAD_BYTES,
        headers=settings.limits.headers + ADDED_HEADERS,
        front_door=False,
        response_timeout_s=settings.timeout_s,
        upgrades=frozenset({b"websocket", headers.SLOT_CHANNEL_PROTOCOL}),
        via=b"tidegate-queue-proxy",
    )


class QueueProxy:
    """The sidecar of one replica."""

    def __init__(self, settings: ProxySettings, *, token: bytes | None, incarnation: str, age_s: float) -> None:
        """``age_s`` is the time since the process was started. The replica's load time counts from there."""
        now = monotonic()
        loop = asyncio.get_running_loop()
        self._settings = settings
        self._started = now - age_s
        self._calls = ModelServerCalls(settings)
        self._services = LoopServices(loop)
        self._tasks = TaskOwner("queue_proxy", self._task_failed)
        self._events = Broadcast()
        self._stopped = asyncio.Event()
        self._is_checking = False
        self._new_held = asyncio.Event()
        self._held_task: asyncio.Task[None] | None = None
        self.model_metrics: ModelServerMetrics | None = None
        """The model server's own metrics. None before it is ready, or if none are declared."""
        self.lifecycle = ReplicaLifecycle(limit=settings.limit, phases=settings.phases, epoch=settings.epoch)
        unit = ConcurrencyUnit.INFERENCES if settings.unit_inferences else ConcurrencyUnit.REQUESTS
        limit = DEFAULT_LIMIT if settings.limit is None else settings.limit
        self.ledger = SlotLedger(incarnation=incarnation, limit=limit, unit=unit, fifo_bound=NO_BOUND)
        self._orders = Orders(
            self.lifecycle,
            self.ledger,
            pump=self._pump,
            publish=self._publish,
            token=None if is_loopback(settings.admin) else token,
            is_closed=token is None and not is_loopback(settings.admin),
        )
        self.counters = ReplicaCounters(
            Identity(
                function=settings.function,
                revision=settings.revision,
                group=settings.group,
                replica=settings.replica,
                incarnation=incarnation,
            ),
            now,
        )
        self.sidecar = Sidecar(
            settings,
            token=token,
            ledger=self.ledger,
            lifecycle=self.lifecycle,
            counters=self.counters,
            pool=UpstreamPool(
                settings.upstream, self._services, hold_s=settings.timeout_s if settings.holds_cancelled else 0.0
            ),
            clock=monotonic,
            pump=self._pump,
            open_channel=self._open_channel,
            check_model=self._check_model,
            watch_held=self._watch_held,
        )
        self._port = SlotPort(
            self.ledger,
            loop,
            admit=self.sidecar.slots.admitted,
            reject=self.sidecar.slots.rejected,
            state=self._on_ledger_state,
        )

    async def serve(self, sock: socket.socket) -> None:
        """Runs until SIGTERM or SIGINT and the drain that follows; a second signal ends it at once."""
        server = await serve_proxy(self.sidecar, sock, client_limits(self._settings), self._services)
        admin = await serve_endpoint(self._admin, self._settings.admin)
        self._handle_signals(server)
        self._tasks.spawn(self._await_model(), name="start")
        self._tasks.spawn(self._tick(), name="seconds")
        try:
            await self._stopped.wait()
            await server.drain(self._settings.timeout_s)
        finally:
            await self._close(server, admin)

    async def _close(self, server: ProxyServer, admin: EndpointServer) -> None:
        server.abort()
        self._port.close()
        await self._tasks.close()
        await admin.close()
        self._services.close()

    # --- the model server -------------------------------------------------------------------------------------------

    async def _await_model(self) -> None:
        """Probes until the model server is ready, warms it up, reads its declared concurrency, then opens for work."""
        settings = self._settings
        probe = StartProbe(self._started, settings.start_timeout_s)
        while (why := await self._calls.readiness_fault(probe.attempt_timeout(monotonic()))) is not None:
            pause = probe.failed(monotonic(), why)
            if pause is None:
                self._failed(probe.message())
                return
            await asyncio.sleep(pause)
        load_s = monotonic() - self._started
        warm_s = None
        if settings.warmup_file is not None:
            began = monotonic()
            fault = await self._calls.warm_up(settings.warmup_file, probe.attempt_timeout(began) + settings.timeout_s)
            if fault is not None:
                self._failed(fault)
                return
            warm_s = monotonic() - began
        limit = await self._calls.declared() if settings.limit is None else settings.limit
        if self.lifecycle.limit is not None and self.lifecycle.limit != settings.limit:
            limit = self.lifecycle.limit  # Ordered during the start.
        self.lifecycle.model_ready(limit=limit, load_s=load_s, warm_s=warm_s)
        now = monotonic()
        self.ledger.resize(limit * self._orders.boost, now)
        if self.ledger.state is ReplicaState.STARTING:
            self.ledger.ready(now, self.lifecycle.phases)
        self._pump()
        if settings.metrics_path is not None:
            self._follow_metrics(settings.metrics_path)
        if settings.liveness is not None:
            self._tasks.spawn(self._probe_liveness(settings.liveness), name="liveness")

    async def _probe_liveness(self, probe: LivenessProbe) -> None:
        """Probes the ready model server each period, until it is given up."""
        count, due = LivenessCount(probe), monotonic()
        while not self.lifecycle.is_failed:
            due = max(due + probe.period_s, monotonic())
            await asyncio.sleep(due - monotonic())
            if self._may_be_paused():
                continue
            fault = await self._calls.liveness_fault(probe)
            if self._may_be_paused():  # Meanwhile.
                continue
            why = count.probed(fault)
            if why is not None:
                self._failed(f"the model server is not alive: {why}", FailureCause.LIVENESS)

    def _may_be_paused(self) -> bool:
        """Returns whether the model server may be paused: a drained replica may sleep."""
        return self.ledger.state is ReplicaState.DRAINED

    def _follow_metrics(self, path: str) -> None:
        """Reads the model server's metrics from now on."""
        from tidegate.queue_proxy.process.metrics_reader import (
            MetricsReader,  # Saves most replicas a millisecond and memory.
        )

        reader = MetricsReader(self._settings, self._may_be_paused)
        self.model_metrics = reader.metrics
        self._tasks.spawn(reader.follow(path), name="application metrics")

    def _watch_held(self) -> None:
        """Follows the calls without a client until none is left."""
        self._new_held.set()
        if self._held_task is None or self._held_task.done():
            self._held_task = self._tasks.spawn(self._follow_held(), name="held calls")

    async def _follow_held(self) -> None:
        """Releases the slots of held calls that have ended, and gives the model server up if it ends nothing."""
        held, after_s, pause = self.sidecar.slots.held, self._settings.unresponsive_after_s, HELD_FIRST_S
        while held.count and not self.lifecycle.is_failed:
            if self._new_held.is_set():
                self._new_held.clear()
                pause = HELD_FIRST_S
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._new_held.wait()
            pause = min(2 * pause, HELD_EVERY_S)
            if self._settings.asks_running:
                asked = held.calls()
                running = await self._calls.running()
                held.reported(len(asked) if running is None else running, asked)
            ended = self.counters.requests - self.counters.unanswered
            now = monotonic()
            if held.is_unresponsive(ended, now, after_s):
                calls = "a call" if held.count == 1 else f"{held.count} calls"
                self._failed(
                    f"the model server is unresponsive: {calls} went on for {held.oldest_s(now):.0f} s "
                    f"after the client was gone, and nothing else ended (unresponsive-after {after_s:g} s)",
                    FailureCause.UNRESPONSIVE,
                )

    def _check_model(self, why: str) -> None:
        """Starts a check after a request met a model server that broke off or refused."""
        if self.lifecycle.is_model_ready and not self.lifecycle.is_failed and not self._is_checking:
            self._is_checking = True
            self.sidecar.pause()
            self._tasks.spawn(self._check_death(why), name="check")

    async def _check_death(self, why: str) -> None:
        """Decides whether the model server is dead. A busy one counts as alive, one that refuses or breaks off as dead.
        Meanwhile nothing is sent to it."""
        is_dead = False
        try:
            for attempt in range(DEATH_ATTEMPTS):
                if attempt:
                    await asyncio.sleep(DEATH_PAUSE_S)
                if await self._calls.is_alive():
                    break
            else:
                is_dead = True
        finally:
            self._is_checking = False
            if is_dead:
                self._failed(f"the model server is gone: {why}")
            else:
                self.sidecar.resume()

    def _failed(self, message: str, cause: FailureCause = FailureCause.GONE) -> None:
        if self.lifecycle.model_failed(message, cause):
            self._publish()
            self.sidecar.model_failed(message)
            self._port.close()
            self._end_if_stopping()

    def _task_failed(self, name: str, error: BaseException) -> None:
        """Fails the replica after an internal fault, so that it does not stay in an old state."""
        report_to_stderr(name, error)
        self._failed(f"internal fault of the queue_proxy in {name}: {error!r}")

    # --- slots ------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        self._port.pump()

    def _open_channel(self, exchange: "Exchange") -> None:
        exchange.upgrade(self._port.protocol)

    def _on_ledger_state(self, state: ReplicaState) -> None:
        self.lifecycle.entered(state)
        self._publish()
        self._end_if_stopping()

    def _end_if_stopping(self) -> None:
        ended = self.lifecycle.is_failed or self.lifecycle.state is ReplicaState.DRAINED
        if self.lifecycle.is_stopping and ended:
            self._stopped.set()

    def _publish(self) -> None:
        self._events.publish(self._event_line())

    def _event_line(self) -> bytes:
        return json.dumps(self.lifecycle.event()).encode() + b"\n"

    # --- time and signals -------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Closes each second of the average in flight."""
        due = monotonic()
        while True:
            due += 1.0
            await asyncio.sleep(max(0.0, due - monotonic()))
            self.counters.second(monotonic())

    def _handle_signals(self, server: ProxyServer) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, server)

    def _stop(self, server: ProxyServer) -> None:
        if self.lifecycle.is_stopping:
            server.abort()
            self._stopped.set()
            return
        self.lifecycle.is_stopping = True
        self.ledger.drain(monotonic())
        self._pump()
        self._end_if_stopping()

    # --- admin ------------------------------------------------------------------------------------------------------

    async def _admin(self, request: Request) -> Response | StreamResponse:
        match request.method, request.path:
            case "GET", "/healthz":
                return Response(body=b"ok", content_type="text/plain")
            case "GET", "/ready":
                is_ready = self.lifecycle.state is ReplicaState.READY
                return Response(200 if is_ready else 503, self.lifecycle.state.value.encode(), "text/plain")
            case "GET", "/wait-for-drain" if self._settings.pre_stop:
                return await self._leave()
            case "GET", "/metrics":
                exposition = metrics.Exposition()
                self.counters.expose(exposition, monotonic(), self._levels())
                if self.model_metrics is not None:
                    self.model_metrics.expose(exposition, self.counters, monotonic())
                return Response(body=exposition.render(), content_type=metrics.CONTENT_TYPE)
            case "GET", "/sample":
                return Response(body=json.dumps(asdict(self.counters.sample(monotonic(), self._levels()))).encode())
            case "GET", "/events":
                return StreamResponse(self._events.listen(self._event_line()))
            case "POST", _ if (answer := self._orders.answer(request)) is not None:
                return answer
        return error_response(404, f"no {request.method} {request.path} here")

    async def _leave(self) -> Response:
        """Drains for good, and answers when the drain has ended: ``preStop`` of both containers of a Pod. Both are
        called when the Pod is deleted, before any process gets SIGTERM. The drain begins after the configured delay,
        in which a Service that lists the Pod takes it out of its endpoints."""
        if self._settings.pre_stop_delay_s:
            await asyncio.sleep(self._settings.pre_stop_delay_s)
        self.lifecycle.is_deleted = True
        self.ledger.drain(monotonic())
        self._pump()
        async with aclosing(self._events.listen(self._event_line())) as changes:
            async for _ in changes:
                if self.lifecycle.state in ENDED:
                    break
        return Response(body=self.lifecycle.state.value.encode(), content_type="text/plain")

    def _levels(self) -> ReplicaLevels:
        return ReplicaLevels(
            state=self.lifecycle.state,
            limit=self.ledger.limit // self._orders.boost,
            boost=self._orders.boost,
            queued=self.ledger.queued,
            phases=self.lifecycle.phases,
            held=self.sidecar.slots.held.count,
            held_s=self.sidecar.slots.held.oldest_s(monotonic()),
            app=None if self.model_metrics is None else self.model_metrics.sample(monotonic()),
        )

    def __repr__(self) -> str:
        return f"<QueueProxy {self.lifecycle!r}, {self.sidecar!r}>"
