"""A running queue_proxy: sockets, probes, timers and the admin endpoint around the cores."""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from tidegate import headers, metrics
from tidegate.aio.admin.broadcast import Broadcast
from tidegate.aio.admin.client import FetchError, fetch
from tidegate.aio.admin.endpoint import EndpointServer, Request, Response, StreamResponse, serve_endpoint
from tidegate.aio.channel import SlotPort
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.loop.sockets import host_port, is_unix
from tidegate.aio.loop.tasks import TaskOwner, report_to_stderr
from tidegate.aio.proxy.server import Limits, ProxyServer, serve_proxy
from tidegate.aio.upstream.pool import UpstreamPool
from tidegate.flow.slots import SlotLedger
from tidegate.queue_proxy.chain import Sidecar
from tidegate.queue_proxy.lifecycle import NotNowError, ReplicaLifecycle, StaleEpochError
from tidegate.queue_proxy.metrics import Identity, ReplicaCounters, ReplicaLevels
from tidegate.queue_proxy.probes import (
    DEATH_ATTEMPTS,
    DEATH_PAUSE_S,
    LivenessCount,
    LivenessProbe,
    StartProbe,
    liveness_answer,
    readiness_answer,
)
from tidegate.queue_proxy.settings import DEFAULT_LIMIT, ProxySettings
from tidegate.records.replica_state import ConcurrencyUnit, FailureCause, ReplicaState

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.queue_proxy.model_server_metrics import ModelServerMetrics

CONNECT_TIMEOUT_S = 1.0
ALIVE_S, HOLD_S = 0.25, 0.02
"""Limits for a model server in doubt. It is busy, not dead, if it has not answered within ALIVE_S; a connection that
stays open for HOLD_S counts as accepted."""
DECLARED_PATH = "/tidegate/declared"
"""Path at which the shipped model server declares how many requests it takes at once."""
DECLARED_TIMEOUT_S = 1.0
RUNNING_PATH = "/tidegate/running"
"""Path at which the shipped model server reports the calls without a client that it goes on with."""
RUNNING_TIMEOUT_S = 1.0
HELD_FIRST_S, HELD_EVERY_S = 0.005, 0.25
"""Interval at which the ends of such calls are looked for: at first, doubling up to the second."""
ADDED_HEAD_BYTES, ADDED_HEADERS = 4096, 32
"""Room for the fields that gateways (and meshes between) add to a head that was just within their limits."""
NO_BOUND = 1 << 30
"""Queue bound of the ledger, never reached: the chain enforces its own, which follows the limit."""
SCRAPE_EVERY_S, SCRAPE_TIMEOUT_S = 1.0, 0.8
"""Interval at which the model server's own metrics are read, and the time limit of one scrape."""
MESSAGE_BYTES = 500
"""Bytes of a model server's answer that are quoted in a message."""


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
        self._boost = 1
        """Times its limit that it may work with: its model server has borrowed cores."""
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
            self.ledger, loop, admit=self.sidecar.admitted, reject=self.sidecar.rejected, state=self._on_ledger_state
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
        while (why := await self._probe(probe.attempt_timeout(monotonic()))) is not None:
            pause = probe.failed(monotonic(), why)
            if pause is None:
                self._failed(probe.message())
                return
            await asyncio.sleep(pause)
        load_s = monotonic() - self._started
        warm_s = None
        if settings.warmup_file is not None:
            began = monotonic()
            fault = await self._warm_up(settings.warmup_file, probe.attempt_timeout(began) + settings.timeout_s)
            if fault is not None:
                self._failed(fault)
                return
            warm_s = monotonic() - began
        limit = await self._declared() if settings.limit is None else settings.limit
        if self.lifecycle.limit is not None and self.lifecycle.limit != settings.limit:
            limit = self.lifecycle.limit  # Ordered during the start.
        self.lifecycle.model_ready(limit=limit, load_s=load_s, warm_s=warm_s)
        now = monotonic()
        self.ledger.resize(limit * self._boost, now)
        if self.ledger.state is ReplicaState.STARTING:
            self.ledger.ready(now, self.lifecycle.phases)
        self._pump()
        if settings.metrics_path is not None:
            self._tasks.spawn(self._follow_metrics(settings.metrics_path), name="application metrics")
        if settings.liveness is not None:
            self._tasks.spawn(self._probe_liveness(settings.liveness), name="liveness")

    async def _probe_liveness(self, probe: LivenessProbe) -> None:
        """Probes the ready model server each period, until it is given up."""
        count, due = LivenessCount(probe), monotonic()
        while not self.lifecycle.is_failed:
            due = max(due + probe.period_s, monotonic())
            await asyncio.sleep(due - monotonic())
            why = count.probed(await self._is_live(probe))
            if why is not None:
                self._failed(f"the model server is not alive: {why}", FailureCause.LIVENESS)

    async def _is_live(self, probe: LivenessProbe) -> str | None:
        """Makes one liveness attempt. Returns None if it passed, else the reason."""
        if probe.path is None:
            return await self._connect(probe.timeout_s)
        try:
            reply = await fetch(
                self._settings.upstream, "GET", probe.path, timeout_s=probe.timeout_s, body_bytes=1 << 20
            )
        except FetchError as error:
            return str(error)
        return liveness_answer(reply.status)

    def _watch_held(self) -> None:
        """Follows the calls without a client until none is left."""
        self._new_held.set()
        if self._held_task is None or self._held_task.done():
            self._held_task = self._tasks.spawn(self._follow_held(), name="held calls")

    async def _follow_held(self) -> None:
        """Releases the slots of held calls that have ended, and gives the model server up if it ends nothing."""
        held, after_s, pause = self.sidecar.held, self._settings.unresponsive_after_s, HELD_FIRST_S
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
                running = await self._running()
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

    async def _running(self) -> int | None:
        """Returns the calls without a client that the model server goes on with; None if it does not answer."""
        try:
            reply = await fetch(self._settings.upstream, "GET", RUNNING_PATH, timeout_s=RUNNING_TIMEOUT_S)
            running = json.loads(reply.body)["abandoned"] if reply.status == 200 else 0
        except FetchError:
            return None
        except (ValueError, KeyError, TypeError):
            return 0  # Another program listens there: nothing is known of its calls.
        return running if type(running) is int else 0

    async def _probe(self, timeout_s: float) -> str | None:
        """Makes one readiness attempt. Returns None if it passed, else the reason."""
        path = self._settings.readiness_path
        if path is None:
            return await self._connect(min(timeout_s, CONNECT_TIMEOUT_S))
        try:
            reply = await fetch(self._settings.upstream, "GET", path, timeout_s=timeout_s, body_bytes=1 << 20)
        except FetchError as error:
            return str(error)
        return readiness_answer(reply.status)

    async def _connect(self, timeout_s: float, *, hold_s: float = 0.0) -> str | None:
        """Opens a connection. Returns None if it was accepted and not closed by the server within ``hold_s``, else the
        reason."""
        loop = asyncio.get_running_loop()
        closed = asyncio.Event()
        upstream = self._settings.upstream
        try:
            async with asyncio.timeout(timeout_s):
                if is_unix(upstream):
                    path = upstream.removeprefix("unix:")
                    transport, _ = await loop.create_unix_connection(lambda: _Probe(closed), path)
                else:
                    transport, _ = await loop.create_connection(lambda: _Probe(closed), *host_port(upstream))
        except TimeoutError:
            return f"no connection within {timeout_s:g} s"
        except OSError as error:
            return error.strerror or str(error)
        try:
            if hold_s:
                async with asyncio.timeout(hold_s):
                    await closed.wait()
                return "the connection was closed at once"
        except TimeoutError:
            pass  # It keeps the connection.
        finally:
            transport.close()
        return None

    async def _warm_up(self, file: str, timeout_s: float) -> str | None:
        """Sends the warm-up request. Returns None if the answer is 2xx, else the reason."""
        settings = self._settings
        try:
            body = _content(file)
        except OSError as error:
            return f"warm-up file {file}: {error.strerror}"
        fields = [("content-type", "application/json")]
        try:
            reply = await fetch(settings.upstream, "POST", settings.warmup_path, body, fields, timeout_s=timeout_s)
        except FetchError as error:
            return f"warm-up request: {error}"
        if not 200 <= reply.status < 300:
            quoted = reply.body[:MESSAGE_BYTES].decode("utf-8", "replace")
            return f"warm-up request answered {reply.status}: {quoted}"
        return None

    async def _declared(self) -> int:
        """Returns the slots that the model server declares, else the default."""
        try:
            reply = await fetch(self._settings.upstream, "GET", DECLARED_PATH, timeout_s=DECLARED_TIMEOUT_S)
            declared = json.loads(reply.body)["concurrency"] if reply.status == 200 else None
        except (FetchError, ValueError, KeyError, TypeError):
            declared = None  # Most servers declare nothing: the default is documented.
        return declared if type(declared) is int and declared >= 0 else DEFAULT_LIMIT

    # --- the model server's own metrics -----------------------------------------------------------------------------

    async def _follow_metrics(self, path: str) -> None:
        """Reads the model server's metrics every second. No fault in them affects the traffic."""
        from tidegate.queue_proxy.model_server_metrics import (
            ModelServerMetrics,  # Saves most replicas a millisecond and memory.
        )

        self.model_metrics = app = ModelServerMetrics(self._settings.models)
        due = monotonic()
        while True:
            try:
                await self._scrape(app, path)
            except FetchError as error:
                app.failed(str(error))
            except Exception as error:  # An internal fault here must not end the replica.
                app.failed(f"internal fault: {error!r}")
            if (news := app.news()) is not None:
                sys.stderr.write(f"{news}\n")
            due = max(due + SCRAPE_EVERY_S, monotonic())
            await asyncio.sleep(due - monotonic())

    async def _scrape(self, app: "ModelServerMetrics", path: str) -> None:
        from tidegate.queue_proxy.known_metrics import WANTED
        from tidegate.queue_proxy.prometheus_text import MAX_BYTES, ExpositionError, scan

        fields = [("accept", "text/plain;version=0.0.4")]
        reply = await fetch(
            self._settings.metrics_address,
            "GET",
            path,
            headers=fields,
            timeout_s=SCRAPE_TIMEOUT_S,
            body_bytes=MAX_BYTES,
        )
        if reply.status != 200:
            app.failed(f"{self._settings.metrics_address}{path} answered {reply.status}")
            return
        reading = scan(reply.body, WANTED)
        try:
            while True:
                next(reading)
                await asyncio.sleep(0)
        except StopIteration as done:
            app.take(done.value, monotonic())
        except ExpositionError as error:
            app.failed(str(error))
        if app.needs_config:
            app.max_batch = await self._max_batch(app.model)

    async def _max_batch(self, model: str | None) -> int | None:
        """Returns the largest batch in Triton's model configuration. Returns None if it is missing or the model does
        not batch."""
        try:
            reply = await fetch(
                self._settings.upstream,
                "GET",
                f"/v2/models/{model}/config",
                timeout_s=SCRAPE_TIMEOUT_S,
                body_bytes=1 << 20,
            )
            largest = json.loads(reply.body)["max_batch_size"] if reply.status == 200 else 0
        except (FetchError, ValueError, KeyError, TypeError):
            largest = 0
        return largest if type(largest) is int and largest > 0 else None

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
                if await self._is_alive():
                    break
            else:
                is_dead = True
        finally:
            self._is_checking = False
            if is_dead:
                self._failed(f"the model server is gone: {why}")
            else:
                self.sidecar.resume()

    async def _is_alive(self) -> bool:
        """Returns True if the server answers a readiness call, or accepts a connection and does not close it at
        once."""
        path = self._settings.readiness_path
        try:
            async with asyncio.timeout(ALIVE_S):
                if path is not None:
                    await fetch(self._settings.upstream, "GET", path, timeout_s=ALIVE_S * 2, body_bytes=1 << 20)
                    return True
                return await self._connect(ALIVE_S, hold_s=HOLD_S) is None
        except TimeoutError:
            return True
        except FetchError:
            return False

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
            case "POST", "/drain":
                return self._order(request, self._drain)
            case "POST", "/revive":
                return self._order(request, self._revive)
            case "POST", "/limit":
                return self._order(request, self._limit)
            case "POST", "/boost":
                return self._order(request, self._set_boost)
        return _error(404, f"no {request.method} {request.path} here")

    def _order(self, request: Request, carry_out: Callable[[int, dict[str, object]], None]) -> Response:
        """Carries out an order of the control process, which brings its epoch."""
        try:
            order = json.loads(request.body)
            epoch = order["epoch"]
        except (ValueError, KeyError, TypeError):
            return _error(400, 'the body must be JSON with an "epoch"')
        if type(epoch) is not int or epoch < 0:
            return _error(400, "epoch must be a whole number of at least 0")
        try:
            carry_out(epoch, order)
        except (StaleEpochError, NotNowError) as error:
            return _error(409, str(error))
        except ValueError as error:
            return _error(400, str(error))
        return Response(body=json.dumps(self.lifecycle.event()).encode())

    def _drain(self, epoch: int, _: dict[str, object]) -> None:
        self.lifecycle.drain_ordered(epoch)
        self.ledger.drain(monotonic())
        self._pump()

    def _revive(self, epoch: int, _: dict[str, object]) -> None:
        self.lifecycle.revive_ordered(epoch)
        self.ledger.revive(monotonic())
        self._pump()

    def _limit(self, epoch: int, order: dict[str, object]) -> None:
        limit = order.get("limit")
        if type(limit) is not int or limit < 0:
            raise ValueError("limit must be a whole number of at least 0")
        self.lifecycle.limit_ordered(epoch, limit)
        self.ledger.resize(limit * self._boost, monotonic())
        self._pump()
        self._publish()

    def _set_boost(self, epoch: int, order: dict[str, object]) -> None:
        boost = order.get("boost")
        if type(boost) is not int or boost < 1:
            raise ValueError("boost must be a whole number of at least 1")
        self.lifecycle.boost_ordered(epoch)
        self._boost = boost
        if self.lifecycle.limit is not None:
            self.ledger.resize(self.lifecycle.limit * boost, monotonic())
            self._pump()

    def _levels(self) -> ReplicaLevels:
        return ReplicaLevels(
            state=self.lifecycle.state,
            limit=self.ledger.limit // self._boost,
            boost=self._boost,
            queued=self.ledger.queued,
            phases=self.lifecycle.phases,
            held=self.sidecar.held.count,
            held_s=self.sidecar.held.oldest_s(monotonic()),
            app=None if self.model_metrics is None else self.model_metrics.sample(monotonic()),
        )

    def __repr__(self) -> str:
        return f"<QueueProxy {self.lifecycle!r}, {self.sidecar!r}>"


class _Probe(asyncio.Protocol):
    """A connection that only notes when the other side closes it."""

    def __init__(self, closed: asyncio.Event) -> None:
        self._closed = closed

    def eof_received(self) -> bool:
        self._closed.set()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()


def _error(status: int, message: str) -> Response:
    return Response(status=status, body=json.dumps({"error": message}).encode())


def _content(file: str) -> bytes:
    return Path(file).read_bytes()
