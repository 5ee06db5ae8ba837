"""The process of a gateway worker: listener, slot channels, upstream pools, timers and the admin endpoint around the
chain."""

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from tidegate import metrics
from tidegate.activator.commands import Activate, Link, Send, Unlink
from tidegate.activator.room import RoomCounts, WaitingRoom
from tidegate.activator.state.bind import Command
from tidegate.aio.admin.broadcast import Broadcast
from tidegate.aio.admin.client import FetchError, connect_once, fetch
from tidegate.aio.admin.endpoint import Request, Response, StreamResponse, serve_endpoint
from tidegate.aio.channel import ChannelClient
from tidegate.aio.loop.handover import give_listener
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.loop.slices import in_slices
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.aio.proxy.detached import (
    add_to_answer,
    defer_client,
    next_exchange,
    second_copy,
    shadow_copy,
    swap_clients,
    tap_response,
)
from tidegate.aio.proxy.early_stream import begin_stream
from tidegate.aio.proxy.http1_exchange import as_http
from tidegate.aio.proxy.limits import read_limits
from tidegate.aio.proxy.server import ProxyServer, serve_proxy
from tidegate.aio.upstream.pool import UpstreamPool
from tidegate.aio.waiting_board import WaitingBoard
from tidegate.clock import LiveClock, wall
from tidegate.gateway.access.quota_pool import Decided, SocketPool
from tidegate.gateway.access_log import AccessLog
from tidegate.gateway.answers.cors import Cors
from tidegate.gateway.config import WorkerConfig
from tidegate.gateway.core import GatewayCore
from tidegate.gateway.counting.counters import Report
from tidegate.gateway.effects import ChainEffects, ExchangeTools, JobHost, Quotas, RoomHost, Time, Upstreams
from tidegate.gateway.jobs.live import JobThread, new_id
from tidegate.gateway.resilience.resilience import PROBE_TIMEOUT_S
from tidegate.gateway.tracing.trace import Tracer
from tidegate.open_metrics import Form, form_of, formed
from tidegate.records.codec import CodecError, decode, encode
from tidegate.records.route_table import RouteTable
from tidegate.store.counters import Asking, EmbeddedPool, SharedCounters, SharedPool, Wanted

if TYPE_CHECKING:
    from tidegate.aio.loop.certificate import Certificate
    from tidegate.aio.proxy.exchange import Exchange, ProxyApp
    from tidegate.gateway.tracing.live import Exporter

POOL_IDLE_S = 60.0
"""Idle time of pooled connections. Below the 75 s for which a queue_proxy keeps an idle connection."""
COPY_TIMEOUT_S = 5.0
GRACE_S = 300.0
"""Longest drain: the longest default timeout. The control process may end it sooner."""
SETTLE_S = 1.0
"""Time between the last accept of a worker that retires and the first check whether it is empty: connections may be in
their handshake or before their first request. Our choice."""
LAST_SAMPLE_S = 3.0
"""Time for the control process to fetch the last counters of a retired worker; it pulls them once a second."""
SHED_LOG_S = 60.0
"""Shortest time between two log lines about connections that were closed at once."""
LOOK_S = 2.0
"""Interval at which the certificate's files are checked."""


class Alarm:
    """One timer; while it is set, its time only ever comes nearer."""

    __slots__ = ("_handle", "_loop", "_ring", "_when")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._when = 0.0

    def at(self, when: float) -> None:
        """Rings at ``when`` (seconds of ``time.monotonic``), unless it rings before."""
        if self._handle is not None:
            if when >= self._when:
                return
            self._handle.cancel()
        self._when = when
        self._handle = self._loop.call_later(max(0.0, when - monotonic()), self._rung)

    def cancel(self) -> None:
        """Cancels the timer until it is set again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _rung(self) -> None:
        self._handle = None
        self._ring()

    def __repr__(self) -> str:
        return f"<Alarm at {self._when:.3f}>" if self._handle is not None else "<Alarm not set>"


def _waiting_board(path: str | None) -> WaitingBoard | None:
    """Returns the figures that this machine's workers share; None if there are none or they cannot be had."""
    if path is None or not sys.platform.startswith("linux"):
        return None
    try:
        return WaitingBoard(Path(path))
    except OSError as error:
        sys.stderr.write(f"{path} cannot be used, so this worker keeps to its part of each waiting room: {error}\n")
        return None


class GatewayWorker:
    """One gateway worker process."""

    def __init__(
        self,
        config: WorkerConfig,
        *,
        incarnation: str,
        rng: random.Random,
        certificate: "Certificate | None" = None,
        collector_headers: str = "",
    ) -> None:
        """``collector_headers``: fields for the collector of traces, as ``OTEL_EXPORTER_OTLP_HEADERS`` has them."""
        loop = asyncio.get_running_loop()
        self._config = config
        self._loop = loop
        self._rng = rng
        self._started = monotonic()
        self._sweeper = LoopServices(loop)
        self._tasks = TaskOwner(f"gateway-{config.worker}")
        self._activations = Broadcast()
        self._pools: dict[str, UpstreamPool] = {}
        self._channels: dict[str, ChannelClient] = {}
        self._settling = False
        self._room_alarm = Alarm(loop, self._room_due)
        self._hedge_alarm = Alarm(loop, self._hedges_due)
        self._certificate = certificate
        self._sock: socket.socket | None = None
        self._server: ProxyServer | None = None
        self._draining: asyncio.Task[None] | None = None
        self._stopped = asyncio.Event()
        self._is_signalled = False
        self._retired = False
        self._incarnation = incarnation
        self._counters: SharedCounters | None = None
        self._sampled = asyncio.Event()
        self._shed_logged = 0
        self._shed_logged_at = -SHED_LOG_S
        self._board = _waiting_board(config.waiting)
        self._jobs = self._job_thread()
        self._exporter = self._span_exporter(collector_headers)
        self.core = GatewayCore(
            room=WaitingRoom(rng=rng, worker_index=config.index, board=self._board),
            report=Report(config.worker, incarnation, self._started),
            token=config.token,
            rng=rng,
            effects=self._effects(),
            access_log=self._access_log(),
            tracer=self._tracer(),
        )
        self._sweeper.add(self._sweep)

    def _app(self) -> "ProxyApp":
        """Returns the application behind the listener."""
        cors = self._config.cors
        return self.core.chain if cors is None else Cors(cors, self.core.chain, add_to_answer)

    async def serve(self, sock: socket.socket) -> None:
        """Runs until a drain (SIGTERM, SIGINT, ``POST /drain`` or ``/retire``) has ended; a second signal ends it at
        once."""
        self._read_table()
        limits = read_limits(self._config.limits, "limits")
        self._sock = sock
        if self._jobs is not None and self._jobs.has_jobs:
            self.core.jobs.open()
        tls = None if self._certificate is None else self._certificate.context
        # The admin socket first: a worker that cannot have it ends, and must not have accepted a client before.
        admin = await serve_endpoint(self._admin, self._config.admin_address)
        self._server = server = await serve_proxy(self._app(), sock, limits, self._sweeper, tls=tls)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled)
        self._loop.add_signal_handler(signal.SIGHUP, self._reload)
        if self._certificate is not None:
            self._tasks.spawn(self._look_at(self._certificate), name="certificate")
        try:
            await self._stopped.wait()
        finally:
            server.abort()
            self._room_alarm.cancel()
            self._hedge_alarm.cancel()
            self.core.jobs.stop("the gateway worker was stopped before the job was over")
            for channel in self._channels.values():
                channel.close()
            if self._jobs is not None:
                await self._jobs.close()
            await self._tasks.close()
            if self._counters is not None:
                await self._counters.close()
            await admin.close()
            if self._board is not None:
                self._board.close()
            self._sweeper.close()
            if self.core.access_log is not None:
                self._write(self.core.access_log)
            if self._exporter is not None:
                self._exporter.close()

    # --- effects of the chain ---------------------------------------------------------------------------------------

    def _effects(self) -> ChainEffects:
        return ChainEffects(
            time=Time(clock=monotonic, wall=wall, alarm=self._hedge_alarm.at),
            room=RoomHost(run=self._run_command, reschedule=self._reschedule),
            upstreams=Upstreams(pool_of=self._pool, fetch_metadata=self._fetch_metadata, probe=self._probe),
            exchanges=ExchangeTools(
                second_copy=second_copy,
                swap_clients=swap_clients,
                shadow_copy=shadow_copy,
                tap_response=tap_response,
                next_exchange=next_exchange,
                begin_stream=begin_stream,
            ),
            quotas=Quotas(open_counters=self._open_quota_counters, ask_pool=self._ask_pool),
            jobs=self._job_host(),
        )

    def _pool(self, address: str) -> UpstreamPool:
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools[address] = UpstreamPool(address, self._sweeper, idle_timeout_s=POOL_IDLE_S)
        return pool

    def _run_command(self, command: Command) -> None:
        match command:
            case Send():
                channel = self._channels.get(command.replica)
                if channel is not None:
                    channel.send(command.message)
            case Link():
                self._unlink(command.replica)
                self._channels[command.replica] = ChannelClient(
                    self._loop,
                    replica=command.replica,
                    address=command.address,
                    worker=self._config.worker,
                    token=self._config.token,
                    handler=self.core,
                    rng=self._rng,
                    tasks=self._tasks,
                )
            case Unlink():
                self._unlink(command.replica)
            case Activate():
                self._activations.publish(encode(command.activation) + b"\n")
            case _:
                raise TypeError(f"not a command for the shell: {command!r}")

    def _unlink(self, replica: str) -> None:
        channel = self._channels.pop(replica, None)
        if channel is not None:
            channel.close()

    def _reschedule(self) -> None:
        """Schedules the room's settling at the end of this loop turn, and its next wake-up."""
        room = self.core.room
        if room.unsettled and not self._settling:
            self._settling = True
            self._loop.call_soon(self._settle)
        wakeup = room.next_wakeup()
        if wakeup is None:
            self._room_alarm.cancel()
        else:
            self._room_alarm.at(wakeup)

    def _settle(self) -> None:
        self._settling = False
        self.core.settle()

    def _room_due(self) -> None:
        self.core.on_room_due()

    def _hedges_due(self) -> None:
        self.core.on_hedges_due()

    def _fetch_metadata(self, revision: str, address: str, path: str) -> None:
        self._tasks.spawn(self._copy(revision, address, path), name=f"copy-{revision}")

    async def _copy(self, revision: str, address: str, path: str) -> None:
        """Fetches a copy of model metadata, for answers while the function is scaled to zero."""
        body = None
        try:
            reply = await fetch(address, "GET", path, timeout_s=COPY_TIMEOUT_S)
            body = reply.body if reply.status == 200 else None
        except FetchError:
            pass  # Asked again at the next request for it.
        finally:
            self.core.health.copies.keep(revision, path, body)

    # --- jobs -------------------------------------------------------------------------------------------------------

    @property
    def _owner(self) -> str:
        return f"{self._config.worker}.{self._incarnation}"

    def _job_thread(self) -> JobThread | None:
        config = self._config
        if config.jobs is None or config.jobs_folder is None:
            return None
        return JobThread(self._loop, Path(config.jobs_folder), self._owner, config.jobs)

    def _job_host(self) -> JobHost | None:
        if self._jobs is None or self._config.jobs is None:
            return None
        limits = read_limits(self._config.limits, "limits")

        def sweep(ex: "Exchange", now: float) -> None:
            as_http(ex).sweep(now, limits, is_paused=False)

        return JobHost(
            run=self._jobs, new_id=new_id, owner=self._owner, bounds=self._config.jobs, defer=defer_client, sweep=sweep
        )

    async def _end_jobs(self, until: float) -> None:
        """Waits until the jobs of this worker are over, at most until then (seconds of ``time.monotonic``)."""
        is_over = asyncio.Event()
        self.core.jobs.on_empty = is_over.set
        if self.core.jobs.live:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until - monotonic()):
                    await is_over.wait()

    # --- quotas -----------------------------------------------------------------------------------------------------

    def _open_quota_counters(self) -> SharedCounters:
        """Opens the counters that share quotas through the pool of this machine."""
        clock, config = LiveClock(), self._config
        pool: SharedPool = EmbeddedPool(clock) if config.quotas is None else SocketPool(config.quotas)
        member = f"{config.worker}.{self._incarnation}"
        self._counters = counters = SharedCounters(pool, clock, member=member, members=config.workers)
        self._tasks.spawn(counters.run(), name="quotas")
        return counters

    def _ask_pool(self, wanted: Wanted, asking: Asking, decided: Decided) -> None:
        self._tasks.spawn(self._answer(wanted, asking, decided), name="quota")

    async def _answer(self, wanted: Wanted, asking: Asking, decided: Decided) -> None:
        if self._counters is not None:
            decided(await self._counters.go_on(wanted, asking))

    def _probe(self, replica: str, address: str, path: str | None) -> None:
        self._tasks.spawn(self._ask(replica, address, path), name=f"probe-{replica}")

    async def _ask(self, replica: str, address: str, path: str | None) -> None:
        """Probes a replica: its probe path must answer below 400; without a path a connection is enough."""
        ok = False
        token = ("tidegate-token", self._config.token)
        try:
            if path is None:
                await connect_once(address, timeout_s=PROBE_TIMEOUT_S)
                ok = True
            else:
                ok = (await fetch(address, "GET", path, headers=[token], timeout_s=PROBE_TIMEOUT_S)).status < 400
        except FetchError:
            pass  # That is the answer.
        finally:
            self.core.probed(replica, ok)

    # --- access log -------------------------------------------------------------------------------------------------

    def _access_log(self) -> AccessLog | None:
        config = self._config
        if not config.access_sampling:
            return None
        offset = LiveClock().now() - monotonic()
        return AccessLog(config.access_sampling, as_json=config.log_format == "json", rng=self._rng, offset=offset)

    def _span_exporter(self, headers: str) -> "Exporter | None":
        endpoint = self._config.tracing_endpoint
        if endpoint is None:
            return None
        from tidegate.gateway.tracing.live import Exporter, read_headers  # not in a worker that traces nothing

        return Exporter(endpoint, read_headers(headers))

    def _tracer(self) -> Tracer | None:
        if self._exporter is None:
            return None
        return Tracer(
            ratio=self._config.tracing_ratio,
            rng=self._rng,
            offset=LiveClock().now() - monotonic(),
            worker=self._config.worker,
            scheme="http" if self._config.tls_cert is None else "https",
            put=self._exporter.put,
        )

    def _sweep(self, now: float) -> None:
        self.core.sweep(now)
        self._log_shed(now)
        if self.core.access_log is not None:
            self._write(self.core.access_log)

    def _log_shed(self, now: float) -> None:
        """Writes a line about connections that were closed at once, at most once a minute."""
        places = None if self._server is None else self._server.places
        if places is None or now - self._shed_logged_at < SHED_LOG_S:
            return
        shed = places.shed_by_limit + places.shed_by_client
        if shed > self._shed_logged:
            sys.stderr.write(
                f"{shed - self._shed_logged} client connections closed at once: {places.used} are open of "
                f"{places.limit} (limits.connections), one address may have {places.per_client} "
                f"(limits.connections-per-client)\n"
            )
            sys.stderr.flush()
            self._shed_logged, self._shed_logged_at = shed, now

    def _write(self, log: AccessLog) -> None:
        """Writes all lines at once; those that cannot be written (the disk is full) are tried again."""
        data = log.take()
        if not data:
            return
        written = 0
        with contextlib.suppress(OSError):
            written = os.write(sys.stdout.fileno(), data)
        log.unwritten(data[written:])

    # --- route table ------------------------------------------------------------------------------------------------

    def _read_table(self) -> None:
        """Starts from the last route table, if there is one: serving does not need the control process."""
        path = Path(self._config.table_file)
        try:
            table = decode(path.read_bytes(), RouteTable)
        except FileNotFoundError:
            table = RouteTable(epoch=0, number=0, workers=self._config.workers, domain=self._config.domain)
        except (OSError, CodecError) as error:
            sys.stderr.write(f"route table {path} cannot be read, starting without: {error}\n")
            table = RouteTable(epoch=0, number=0, workers=self._config.workers, domain=self._config.domain)
        self._apply(table)

    def _apply(self, table: RouteTable) -> None:
        if not self.core.apply(table):
            return
        living = {
            replica.address
            for route in table.functions
            for revision in route.revisions
            for group in revision.groups
            for replica in group.replicas
        }
        for address in self._pools.keys() - living:
            self._pools.pop(address).close()

    # --- the end ----------------------------------------------------------------------------------------------------

    def _signalled(self) -> None:
        """Handles a signal: the first one drains, also a worker that retires or drains already; the second one ends it
        at once."""
        if self._is_signalled:
            self._stopped.set()
        self._is_signalled = True
        self._drain()

    def _drain(self) -> None:
        """Stops accepting; every accepted request is answered, then the process ends."""
        self.core.leave(is_draining=True)
        if self._draining is None and self._server is not None:
            self._draining = self._tasks.spawn(self._finish(self._server), name="drain")

    async def _finish(self, server: ProxyServer) -> None:
        try:
            until = monotonic() + GRACE_S
            await server.drain(GRACE_S)
            await self._end_jobs(until)
        finally:
            self._stopped.set()

    def _retire(self) -> None:
        """Leaves the socket to a successor that accepts on it now.

        This worker finishes its requests, streams and tunnels too, for as long as a stream may last, and gives a last
        sample. The deployment does not end: health stays good.
        """
        if self._draining is None and self._server is not None:
            self._draining = self._tasks.spawn(self._hand_over(self._server), name="retire")

    async def _hand_over(self, server: ProxyServer) -> None:
        try:
            server.stop_accepting()
            server.draining = True
            self.core.leave(is_draining=False)
            await asyncio.sleep(SETTLE_S)
            until = monotonic() + server.limits.stream_total_s
            await server.drain(server.limits.stream_total_s)
            await self._end_jobs(until)
            self._retired = True
            self._sampled.clear()
            async with asyncio.timeout(LAST_SAMPLE_S):
                await self._sampled.wait()
        except TimeoutError:
            pass  # No sample was fetched: there is no control process just now.
        finally:
            self._stopped.set()

    # --- certificate ------------------------------------------------------------------------------------------------

    async def _look_at(self, certificate: "Certificate") -> None:
        """Reloads a changed certificate within seconds, for new handshakes; polling is the only method that works
        everywhere."""
        while True:
            await asyncio.sleep(LOOK_S)
            certificate.look()

    def _reload(self) -> str:
        """Reloads the certificate. Returns why the pair in the files is not used, else ""."""
        if self._certificate is not None:
            self._certificate.reload()
        return self._certificate_fault or ""

    @property
    def _certificate_fault(self) -> str | None:
        return None if self._certificate is None else self._certificate.fault

    def _give_listener(self, path: str) -> Response:
        """Sends the listening socket to the control process that adopted this worker."""
        try:
            if self._sock is None:
                raise OSError("there is none yet")
            give_listener(self._sock, path)
        except (OSError, ValueError) as error:
            return Response(status=409, body=encode({"error": f"the listening socket cannot be given: {error}"}))
        return Response(body=b'{"given":true}')

    # --- admin ------------------------------------------------------------------------------------------------------

    async def _admin(self, request: Request) -> Response | StreamResponse:
        match request.method, request.path:
            case "GET", "/healthz":
                return Response(body=b"ok", content_type="text/plain")
            case "GET", "/metrics":
                return self._exposition(request)
            case "GET", "/sample":
                return Response(body=await self._sample())
            case "GET", "/activations":
                return StreamResponse(self._activations.listen())
            case "PUT", "/table":
                return self._put_table(request.body)
            case "POST", "/drain":
                self._drain()
                return Response(body=b'{"draining":true}')
            case "POST", "/retire":
                self._retire()
                return Response(body=b'{"retiring":true}')
            case "POST", "/listener":
                return self._give_listener(request.body.decode(errors="surrogateescape"))
            case "POST", "/reload":
                return Response(body=self._reload().encode(), content_type="text/plain")
        return Response(status=404, body=encode({"error": f"no {request.method} {request.path} here"}))

    def _put_table(self, body: bytes) -> Response:
        try:
            table = decode(body, RouteTable)
        except CodecError as error:
            return Response(status=400, body=encode({"error": str(error)}))
        self._apply(table)
        applied = self.core.table
        return Response(body=encode({"epoch": applied.epoch, "number": applied.number}))

    def _waiting(self, revision: str) -> RoomCounts | None:
        return self.core.room.counts(revision, monotonic())

    async def _sample(self) -> bytes:
        demands = await in_slices(self.core.report.demands(self._waiting))
        self._sampled.set()
        sample = self.core.report.sample(
            monotonic(), table=self.core.table.version, connections=self._connections, demands=demands
        )
        access_control = self.core.access_control
        return encode(
            replace(
                sample,
                certificate_fault=self._certificate_fault,
                jobs_fault=None if self._jobs is None else self._jobs.fault,
                is_last=self._retired,
                tenants=access_control.seen(),
                uses=access_control.uses(),
                quotas_lost=access_control.is_lost,
                unknown_keys=access_control.unknown_keys,
            )
        )

    def _exposition(self, request: Request) -> StreamResponse:
        """Answers a scrape: OpenMetrics if it is asked for, and with the query ``exemplars`` Prometheus text with
        exemplars, for the control process."""
        form = Form.MERGING if request.query == "exemplars" else form_of(request.headers.get("accept", ""))
        return StreamResponse(formed(self._scrape(), form), content_type=form.value)

    async def _scrape(self) -> AsyncIterator[bytes]:
        exposition = metrics.Exposition()
        steps = self.core.report.expose(
            exposition,
            monotonic(),
            table=self.core.table.version,
            connections=self._connections,
            waiting=self._waiting,
            outliers=self.core.resilience.outliers,
            log_lines_dropped=0 if self.core.access_log is None else self.core.access_log.dropped,
            body_bytes=0 if self._server is None else self._server.budget.used,
        )
        await in_slices(steps)
        self.core.access_control.expose(exposition, self._config.worker)
        self.core.jobs.expose(exposition, self._config.worker)
        if self._exporter is not None:
            worker = self._config.worker
            exposition.add(metrics.GATEWAY_TRACE_SPANS, (worker, "exported"), self._exporter.exported)
            exposition.add(metrics.GATEWAY_TRACE_SPANS, (worker, "dropped"), self._exporter.dropped)
        self.core.pipelines.expose(exposition, self._config.worker)
        gate, own = self.core.chain.body_gate, (self._config.worker,)
        exposition.add(metrics.GATEWAY_AWAITED_BODIES, own, gate.waiting)
        exposition.add(metrics.GATEWAY_CROWDED_BODIES, own, gate.crowded)
        exposition.add(metrics.GATEWAY_SLOW_BODIES, own, 0 if self._server is None else self._server.budget.slow)
        if self._server is not None and self._server.places is not None:
            places = self._server.places
            for limit, shed in (("connections", places.shed_by_limit), ("client", places.shed_by_client)):
                exposition.add(metrics.GATEWAY_SHED_CONNECTIONS, (self._config.worker, limit), shed)
        # Piece by piece: to join those of a thousand functions would hold the loop for 5 ms.
        for part in exposition.parts():
            yield part
            await asyncio.sleep(0)

    @property
    def _connections(self) -> int:
        return 0 if self._server is None else self._server.connections

    def __repr__(self) -> str:
        return f"<GatewayWorker {self._config.worker}, {self._connections} connections, {self.core!r}>"
