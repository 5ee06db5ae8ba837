"""The process of a gateway worker: timers, upstream pools, route table and the admin endpoint around the chain.

Its other parts lie in ``process/``: the front door, slot channels, background calls, figures and the end.
"""

import asyncio
import random
import signal
import socket
import sys
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from tidegate.activator.commands import Activate, Crowd, Link, Send, Unlink
from tidegate.activator.room import WaitingRoom
from tidegate.activator.state.bind import Command
from tidegate.aio.admin.broadcast import Broadcast
from tidegate.aio.admin.endpoint import Request, Response, StreamResponse, serve_endpoint
from tidegate.aio.loop.certificate import Certificate
from tidegate.aio.loop.services import LoopServices
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
from tidegate.aio.upstream.pool import UpstreamPool
from tidegate.aio.waiting_board import WaitingBoard
from tidegate.clock import LiveClock, wall
from tidegate.gateway.access_log.records import AccessLog
from tidegate.gateway.answers.cors import Cors
from tidegate.gateway.beside.live import SideProcess
from tidegate.gateway.config import WorkerConfig
from tidegate.gateway.core import GatewayCore
from tidegate.gateway.counting.counters import Report
from tidegate.gateway.effects import ChainEffects, ExchangeTools, JobHost, Quotas, RoomHost, Time, Upstreams
from tidegate.gateway.jobs.live import JobThread, new_id
from tidegate.gateway.payloads.batches import PayloadBatches
from tidegate.gateway.process.alarm import Alarm
from tidegate.gateway.process.channels import SlotChannels
from tidegate.gateway.process.converter import Converter
from tidegate.gateway.process.figures import WorkerFigures
from tidegate.gateway.process.front_door import FrontDoor
from tidegate.gateway.process.quota_calls import QuotaCalls
from tidegate.gateway.process.replica_calls import ReplicaCalls
from tidegate.gateway.process.room_calls import RoomCalls
from tidegate.gateway.process.shutdown import Shutdown
from tidegate.gateway.tracing.trace import Tracer
from tidegate.open_metrics import Form, form_of, formed
from tidegate.records.codec import CodecError, decode, encode
from tidegate.records.route_table import RouteTable

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange, ProxyApp
    from tidegate.gateway.tracing.batches import SpanBatches

POOL_IDLE_S = 60.0
"""Idle time of pooled connections. Below the 75 s for which a queue_proxy keeps an idle connection."""


LAST_EXPORT_S = 2.5
"""Time for the last spans and payloads when the worker ends; a collector or sink that is away gets 2 s of it."""


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
        certificate: Certificate | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._config = config
        self._loop = loop
        self._rng = rng
        self._sweeper = LoopServices(loop)
        self._tasks = TaskOwner(f"gateway-{config.worker}")
        self._scheme = "http" if config.tls_cert is None else "https"
        self._activations = Broadcast()
        self._pools: dict[str, UpstreamPool] = {}
        self._channels = SlotChannels(loop, worker=config.worker, token=config.token, rng=rng, tasks=self._tasks)
        self._replica_calls = ReplicaCalls(self._tasks, config.token)
        self._owner = f"{config.worker}.{incarnation}"
        self._quota_calls = QuotaCalls(self._tasks, address=config.quotas, member=self._owner, members=config.workers)
        self._settling = False
        self._room_alarm = Alarm(loop, self._room_due)
        self._hedge_alarm = Alarm(loop, self._hedges_due)
        self._front_door = FrontDoor(certificate)
        self._rooms = self._room_calls()
        self._board = None if self._rooms is not None else _waiting_board(config.waiting)
        self._jobs = self._job_thread()
        self._log_writer, self._exporter, self._sinks = self._side_processes()
        self._spans = self._span_batches()
        self._payloads = PayloadBatches(self._sinks.take)
        self.core = GatewayCore(
            room=WaitingRoom(
                rng=rng,
                worker_index=None if config.among_machines else config.index,
                board=self._board if self._rooms is None else self._rooms.leases,
            ),
            report=Report(
                config.worker, incarnation, monotonic(), self._scheme if config.http_server_metrics else None
            ),
            token=config.token,
            rng=rng,
            effects=self._effects(),
            access_log=self._access_log(),
            tracer=self._tracer(),
        )
        self._shutdown = Shutdown(self.core, self._front_door, self._tasks)
        self._figures = WorkerFigures(
            config.worker,
            self.core,
            self._front_door,
            self._shutdown,
            jobs=self._jobs,
            payloads=self._payloads,
            spans=self._spans,
            rooms=None if self._rooms is None else self._rooms.leases,
        )
        if self.core.access_log is not None:
            self._log_writer.start(self.core.access_log, monotonic())
        if self._spans is not None:
            self._exporter.start(self._spans, monotonic())
        self._sweeper.add(self._sweep)

    def _room_calls(self) -> RoomCalls | None:
        config = self._config
        if not config.among_machines or config.quotas is None:
            return None
        return RoomCalls(
            self._tasks,
            address=config.quotas,
            member=self._owner,
            members=config.workers,
            over=lambda functions: self.core.cut_back(functions),
        )

    def _app(self) -> "ProxyApp":
        """Returns the application behind the listener."""
        cors = self._config.cors
        return self.core.chain if cors is None else Cors(cors, self.core.chain, add_to_answer)

    async def serve(self, sock: socket.socket) -> None:
        """Runs until a drain (SIGTERM, SIGINT, ``POST /drain`` or ``/retire``) has ended; a second signal ends it at
        once."""
        self._read_table()
        limits = read_limits(self._config.limits, "limits")
        if self._jobs is not None and self._jobs.has_jobs:
            self.core.jobs.open()
        # The admin socket first: a worker that cannot have it ends, and must not have accepted a client before.
        admin = await serve_endpoint(self._admin, self._config.admin_address)
        server = await self._front_door.open(self._app(), sock, limits, self._sweeper, self._tasks)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._shutdown.signalled)
        self._loop.add_signal_handler(signal.SIGHUP, self._front_door.reload)
        try:
            await self._shutdown.stopped.wait()
        finally:
            server.abort()
            self._room_alarm.cancel()
            self._hedge_alarm.cancel()
            self.core.jobs.stop("the gateway worker was stopped before the job was over")
            self._channels.close()
            if self._jobs is not None:
                await self._jobs.close()
            await self._tasks.close()
            await self._quota_calls.close()
            if self._rooms is not None:
                await self._rooms.close()
            await admin.close()
            if self._board is not None:
                self._board.close()
            self._sweeper.close()
            for each in (self._log_writer, self._exporter, self._sinks):
                each.close()

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
            quotas=Quotas(open_counters=self._quota_calls.open_counters, ask_pool=self._quota_calls.ask),
            convert_elsewhere=Converter(self._tasks).run,
            jobs=self._job_host(),
            put_payloads=self._payloads.put,
        )

    def _pool(self, address: str) -> UpstreamPool:
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools[address] = UpstreamPool(address, self._sweeper, idle_timeout_s=POOL_IDLE_S)
        return pool

    def _run_command(self, command: Command) -> None:
        match command:
            case Send():
                self._channels.send(command)
            case Link():
                self._channels.link(command, self.core)
            case Unlink():
                self._channels.unlink(command)
            case Activate() | Crowd():
                self._activations.publish(encode(command.activation) + b"\n")
            case _:
                raise TypeError(f"not a command for the shell: {command!r}")

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
        keep = self.core.health.copies.keep
        self._replica_calls.copy(address, path, revision, lambda body: keep(revision, path, body))

    def _probe(self, replica: str, address: str, path: str | None) -> None:
        self._replica_calls.probe(replica, address, path, self.core.probed)

    # --- jobs -------------------------------------------------------------------------------------------------------

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

    # --- access log, traces, payloads -------------------------------------------------------------------------------

    def _side_processes(self) -> tuple[SideProcess, SideProcess, SideProcess]:
        """Returns the links to the log writer, the exporter and the process with the sinks; none is started."""
        config, package = self._config, "tidegate.gateway"
        form, worker = config.log_format, config.worker
        offset = repr(LiveClock().now() - monotonic())
        log = (f"{package}.access_log.main", form, offset, worker)
        spans = (f"{package}.tracing.main", config.tracing_endpoint or "", form, offset, worker, self._scheme)
        payloads = (f"{package}.payloads.main", config.payloads_folder or ".", form, worker)
        return (
            SideProcess(self._loop, "access log", "writes it", *log),
            SideProcess(self._loop, "traces", "exports them", *spans, last_s=LAST_EXPORT_S),
            SideProcess(self._loop, "payloads", "delivers them", *payloads, last_s=LAST_EXPORT_S),
        )

    def _access_log(self) -> AccessLog | None:
        sampling = self._config.access_sampling
        if not sampling:
            return None
        return AccessLog(sampling, rng=self._rng, take=self._log_writer.take)

    def _span_batches(self) -> "SpanBatches | None":
        if self._config.tracing_endpoint is None:
            return None
        from tidegate.gateway.tracing.batches import SpanBatches  # not in a worker that traces nothing

        return SpanBatches(self._exporter.take)

    def _tracer(self) -> Tracer | None:
        if self._spans is None:
            return None
        return Tracer(
            ratio=self._config.tracing_ratio,
            rng=self._rng,
            offset=LiveClock().now() - monotonic(),
            put=self._spans.add,
        )

    def _sweep(self, now: float) -> None:
        self.core.sweep(now)
        self._front_door.log_shed(now)
        for each in (self._log_writer, self._exporter, self._sinks):
            each.sweep(now)

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
        named = {route.payload.sink for route in table.functions if route.payload is not None}
        if named and not self._sinks.is_started:
            self._sinks.start(self._payloads, monotonic())
        self._payloads.keep(named)

    # --- admin ------------------------------------------------------------------------------------------------------

    async def _admin(self, request: Request) -> Response | StreamResponse:
        match request.method, request.path:
            case "GET", "/healthz":
                return Response(body=b"ok", content_type="text/plain")
            case "GET", "/metrics":
                return self._exposition(request)
            case "GET", "/sample":
                return Response(body=encode(await self._figures.sample()))
            case "GET", "/activations":
                return StreamResponse(self._activations.listen())
            case "PUT", "/table":
                return self._put_table(request.body)
            case "POST", "/drain":
                self._shutdown.drain()
                return Response(body=b'{"draining":true}')
            case "POST", "/retire":
                self._shutdown.retire()
                return Response(body=b'{"retiring":true}')
            case "POST", "/listener":
                return self._give_listener(request.body.decode(errors="surrogateescape"))
            case "POST", "/reload":
                return Response(body=self._front_door.reload().encode(), content_type="text/plain")
        return Response(status=404, body=encode({"error": f"no {request.method} {request.path} here"}))

    def _put_table(self, body: bytes) -> Response:
        try:
            table = decode(body, RouteTable)
        except CodecError as error:
            return Response(status=400, body=encode({"error": str(error)}))
        self._apply(table)
        applied = self.core.table
        return Response(body=encode({"epoch": applied.epoch, "number": applied.number}))

    def _give_listener(self, path: str) -> Response:
        fault = self._front_door.give(path)
        if fault is not None:
            return Response(status=409, body=encode({"error": fault}))
        return Response(body=b'{"given":true}')

    def _exposition(self, request: Request) -> StreamResponse:
        """Answers a scrape: OpenMetrics if it is asked for, and with the query ``exemplars`` Prometheus text with
        exemplars, for the control process."""
        form = Form.MERGING if request.query == "exemplars" else form_of(request.headers.get("accept", ""))
        return StreamResponse(formed(self._figures.scrape(), form), content_type=form.value)

    def __repr__(self) -> str:
        return f"<GatewayWorker {self._config.worker}, {self._front_door.connections} connections, {self.core!r}>"
