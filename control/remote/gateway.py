"""A remote gateway, ``tidegate gateway``: gateway workers on a machine or in a Pod without a control process.

It supervises its workers as a control process does, with a state directory of its own, and gives them the newest route
table that it knows: pushed by the control process, read from Redis, or the last one, which lies on its disk. So it
starts and serves while both are away. What its workers report goes to the control process over its admin endpoint;
what waits for a function at zero goes to Redis as well.
"""

import asyncio
import hmac
import logging
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tidegate.aio.admin.broadcast import Broadcast
from tidegate.aio.admin.endpoint import EndpointServer, Request, Response, StreamResponse, serve_endpoint
from tidegate.aio.loop.run import loop_factory
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.clock import LiveClock
from tidegate.control.metrics.discovery import EVERY_HOST
from tidegate.control.remote.records import RemoteState, RemoteWorker, fingerprint
from tidegate.control.state.directory import StateDirectory, usable, write_atomically
from tidegate.control.state.notices import Faults
from tidegate.control.workers.launching import GatewaySettings
from tidegate.control.workers.links import LinkError
from tidegate.control.workers.quotas import AnsweringPool, PartFile, QuotaPool, open_pool, open_rooms
from tidegate.control.workers.supervisor import Supervisor
from tidegate.deploy.local.processes import ProcessTable
from tidegate.deploy.local.records import RecordStore
from tidegate.errors import TidegateError
from tidegate.headers import TOKEN
from tidegate.records.codec import CodecError, decode, encode
from tidegate.records.gateway_sample import Activation, GatewaySample
from tidegate.records.route_table import RouteTable
from tidegate.store.records import StoreFaultError
from tidegate.store.redis_gateways import OtherDeploymentError, RedisGateways

BEAT_S: Final = 1.0
"""Time between two registrations, and between two looks at the table in Redis."""
UNHEARD_S: Final = 3.0
"""Without a call of the control process for this long, the workers' samples are read here, so that one that hangs is
found all the same."""
GRACE_S: Final = 300.0
"""Longest drain, as a gateway worker's own."""
REDIS: Final = "redis"
CONTROL: Final = "control process"

_log = logging.getLogger("tidegate")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayPlace:
    """Where a remote gateway is and what it is called."""

    name: str
    listen: str
    """HOST:PORT of the admin endpoint."""
    host: str
    """Name or address under which the control process reaches this machine."""


class RemoteGateway:
    """One run of a remote gateway over a locked state directory."""

    def __init__(
        self,
        place: GatewayPlace,
        *,
        state: StateDirectory,
        settings: GatewaySettings,
        redis: RedisGateways,
        pools: tuple[AnsweringPool, AnsweringPool | None],
        faults: Faults,
        token: str,
        environ: Mapping[str, str],
    ) -> None:
        """``pools``: of the quotas, and of the bounds of waiting rooms; ``token``: of the deployment."""
        self._place = place
        self._state = state
        self._redis = redis
        self._token = token
        self._faults = faults
        self._clock = LiveClock()
        self._stop = asyncio.Event()
        self._tasks = TaskOwner("remote gateway", self._report)
        self._processes = ProcessTable(RecordStore(state.processes), state.next_epoch(), _log.warning)
        self._gateways = Supervisor(
            state=state,
            processes=self._processes,
            settings=replace(settings, prefix=f"{place.name}."),
            clock=self._clock,
            environment=environ,
            activated=self._activated,
            lost=lambda _worker: None,
            faults=self._faults,
        )
        self._quotas = QuotaPool(pools[0], state.quotas, self._faults, pools[1])
        self._activations = Broadcast()
        self._table: RouteTable | None = None
        self._arrived = asyncio.Event()
        self._heard_at = self._clock.now()
        self._endpoint: EndpointServer | None = None
        self._has_started = False
        self._is_apart = False
        """Redis has the records of another deployment."""
        self._is_registered = False

    @property
    def address(self) -> str:
        """HOST:PORT that clients use."""
        return self._gateways.address

    async def live(self) -> None:
        """Runs until SIGTERM or SIGINT, then drains: every accepted request is answered."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        living = await self._processes.recover()
        await self._quotas.open()
        try:
            self._endpoint = await serve_endpoint(self._admin, self._place.listen, admits=self._has_token)
        except OSError as error:
            await self._quotas.close()
            raise AdminListenError(f"--admin-listen {self._place.listen}: {error.strerror or error}") from error
        try:
            self._take(self._last_table())
            self._tasks.spawn(self._follow_redis(), name=REDIS)
            if (table := await self._first_table()) is not None:
                await self._gateways.start(living, table)
                self._has_started = True
                _log.info("gateway %s serves %s, from table %d.%d", self._place.name, self.address, *table.version)
                self._tasks.spawn(self._publish(), name="tables")
                self._tasks.spawn(self._mind(), name="workers")
                await self._stop.wait()
        finally:
            await self._end()

    async def _end(self) -> None:
        await self._leave()
        if self._has_started:
            await self._gateways.drain(GRACE_S)
        else:
            await self._gateways.release()
        await self._tasks.close()
        await self._quotas.close()
        await self._redis.close()
        if self._endpoint is not None:
            await self._endpoint.close()
        self._processes.close()

    def _signalled(self) -> None:
        if self._stop.is_set():
            os._exit(1)
        _log.info("gateway %s finishes its requests; a second signal ends it at once", self._place.name)
        self._stop.set()
        self._arrived.set()

    def _report(self, name: str, error: BaseException) -> None:
        self._faults.set(name, f"{type(error).__name__}: {error}")

    # --- the route table --------------------------------------------------------------------------------------------

    def _last_table(self) -> RouteTable | None:
        """Returns the last table of this state directory."""
        try:
            return decode(self._state.routes.read_bytes(), RouteTable)
        except FileNotFoundError:
            return None
        except (OSError, CodecError) as error:
            _log.warning("the last route table %s cannot be read: %s", self._state.routes, error)
            return None

    def _take(self, table: RouteTable | None) -> None:
        """Works from a table, if it is newer than the present one."""
        if table is not None and (self._table is None or table.version > self._table.version):
            self._table = table
            self._arrived.set()

    async def _first_table(self) -> RouteTable | None:
        """Waits for a table; None if the gateway is to end before there is one."""
        while self._table is None and not self._stop.is_set():
            _log.warning("gateway %s has no route table yet: it waits for its control process", self._place.name)
            self._arrived.clear()
            await self._arrived.wait()
        return None if self._stop.is_set() else self._table

    async def _publish(self) -> None:
        """Passes each newer table on to the workers."""
        published: RouteTable | None = None
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            table = self._table
            if table is not None and table is not published:
                published = table
                await self._gateways.publish(table)

    # --- Redis ------------------------------------------------------------------------------------------------------

    async def _follow_redis(self) -> None:
        """Registers this gateway and reads newer tables, at each change and once in ``BEAT_S``."""
        failed_at = ""
        """The table when Redis was lost: with each newer one the fault would be another, and a line in the log."""
        while True:
            try:
                await self._read_table()
                self._is_registered = True
                await self._redis.register(self._place.name, encode(self.state()))
                self._faults.clear(REDIS)
                failed_at = ""
                await self._redis.next_table(BEAT_S)
                await self._read_table()
            except OtherDeploymentError as error:
                await self._keep_apart(error)
            except StoreFaultError as error:
                failed_at = failed_at or self._version_text()
                self._faults.set(REDIS, f"serving goes on from table {failed_at}: {error}")
                await asyncio.sleep(min(self._redis.rest_s, BEAT_S) or BEAT_S)

    async def _keep_apart(self, error: OtherDeploymentError) -> None:
        """Takes nothing from another deployment's records, and gives it nothing."""
        self._is_apart = True
        self._faults.set(REDIS, f"{error}, so it is not used; deployments that share a Redis need a --store-name each")
        await self._leave()
        await asyncio.sleep(BEAT_S)

    async def _leave(self) -> None:
        """Takes back what this gateway has written: without that, its name may be of another deployment's gateway."""
        if self._is_registered:
            with suppress(StoreFaultError):
                await self._redis.leave(self._place.name)
                self._is_registered = False

    async def _read_table(self) -> None:
        version = (-1, -1) if self._table is None else self._table.version
        found = await self._redis.table(version)
        self._is_apart = False
        if found is None:
            return
        try:
            self._take(decode(found, RouteTable))
            self._faults.clear("route table")
        except CodecError as error:
            self._faults.set("route table", f"the one in Redis is of another version of Tidegate: {error}")

    def _version_text(self) -> str:
        return "none" if self._table is None else "{}.{}".format(*self._table.version)

    # --- the control process ----------------------------------------------------------------------------------------

    def _activated(self, activation: Activation) -> None:
        line = encode(activation)
        self._activations.publish(line + b"\n")
        self._tasks.spawn(self._ask(line), name="demand")

    async def _ask(self, line: bytes) -> None:
        if self._is_apart:
            return
        with suppress(StoreFaultError):  # said by the fault of Redis; a worker repeats it while requests wait
            await self._redis.ask(line)

    async def _mind(self) -> None:
        """Reads the workers' samples while the control process does not."""
        while True:
            await asyncio.sleep(BEAT_S)
            if self._clock.now() - self._heard_at < UNHEARD_S:
                self._faults.clear(CONTROL)
                continue
            self._faults.set(CONTROL, f"makes no calls: serving goes on from table {self._version_text()}")
            await asyncio.gather(*map(self._sample, self._gateways.sources()))

    async def _sample(self, worker: str) -> GatewaySample | None:
        source = self._gateways.sources().get(worker)
        if source is None:
            return None
        try:
            sample: GatewaySample = decode(await source(), GatewaySample)
        except (LinkError, CodecError):
            return None
        self._gateways.seen(replace(sample, worker=worker))
        return sample

    def state(self) -> RemoteState:
        """Returns what this gateway reports of itself."""
        views = self._gateways.views() if self._has_started else ()
        versions = self._gateways.versions() if self._has_started else ()
        epoch, number = min(versions, default=(0, 0))
        port = "" if self._endpoint is None else self._endpoint.address.rpartition(":")[2]
        return RemoteState(
            gateway=self._place.name,
            address=f"{_bracketed(self._place.host)}:{port}",
            front=reached(self.address, self._place.host),
            epoch=epoch,
            number=number,
            workers=tuple(
                RemoteWorker(
                    worker=each.worker,
                    pid=each.pid,
                    state=each.state,
                    restarts=each.restarts,
                    connections=each.connections,
                )
                for each in views
            ),
            faults=self._faults.texts(),
        )

    # --- admin ------------------------------------------------------------------------------------------------------

    async def _admin(self, request: Request) -> Response | StreamResponse:
        match request.method, request.path:
            case "GET", "/healthz":
                return Response(body=b"ok", content_type="text/plain")
            case "GET", "/ready":
                return self._ready()
        if not self._has_token(request):
            return Response(status=401, body=encode({"error": "the token of the deployment is missing or wrong"}))
        if request.method != "GET" or request.path != "/metrics":
            self._heard_at = self._clock.now()
        match request.method, request.path:
            case "GET", "/state":
                return Response(body=encode(self.state()))
            case "GET", "/sample":
                return await self._answer_sample(request.query)
            case "GET", "/activations":
                return StreamResponse(self._activations.listen())
            case "GET", "/metrics":
                return await self._answer_metrics(request.query)
            case "PUT", "/table":
                return self._answer_table(request.body)
        return Response(status=404, body=encode({"error": f"no {request.method} {request.path} here"}))

    def _has_token(self, request: Request) -> bool:
        given = request.headers.get(TOKEN.decode(), "")
        return hmac.compare_digest(given.encode("latin-1"), self._token.encode())

    def _ready(self) -> Response:
        is_ready = not self._stop.is_set() and any(each.state == "serving" for each in self.state().workers)
        return Response(status=200 if is_ready else 503, body=b"ready" if is_ready else b"not ready")

    async def _answer_sample(self, worker: str) -> Response:
        sample = await self._sample(worker)
        if sample is None:
            return Response(status=404, body=encode({"error": f"no worker {worker} answers"}))
        return Response(body=encode(sample))

    async def _answer_metrics(self, worker: str) -> Response:
        texts = await self._gateways.expositions()
        found = next((text for name, text in texts.items() if name.partition("/")[0] == worker), None)
        if found is None:
            return Response(status=404, body=encode({"error": f"no worker {worker} answers"}))
        return Response(body=found, content_type="text/plain")

    def _answer_table(self, body: bytes) -> Response:
        try:
            self._take(decode(body, RouteTable))
        except CodecError as error:
            return Response(status=400, body=encode({"error": str(error)}))
        epoch, number = (-1, -1) if self._table is None else self._table.version
        return Response(body=encode({"epoch": epoch, "number": number}))

    def __repr__(self) -> str:
        return f"<RemoteGateway {self._place.name} on {self.address}>"


def run(
    place: GatewayPlace,
    *,
    state: StateDirectory,
    settings: GatewaySettings,
    url: str,
    deployment: str,
    token_file: Path,
    environ: Mapping[str, str],
) -> None:
    """Runs a remote gateway to its end. ``url``: of Redis; ``deployment``: its name in there; ``token_file``: of the
    deployment. Raises StateError, InvalidInputError, and other TidegateErrors if the start fails."""
    state.prepare()
    lock = state.lock()
    try:
        _put_token(state, token_file)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_live(place, state, settings, url, deployment, environ))
        state.clear()
    finally:
        lock.release()


async def _live(
    place: GatewayPlace,
    state: StateDirectory,
    settings: GatewaySettings,
    url: str,
    deployment: str,
    environ: Mapping[str, str],
) -> None:
    clock, faults = LiveClock(), Faults()
    gateway = RemoteGateway(
        place,
        state=state,
        settings=settings,
        redis=RedisGateways(url, deployment, mark=fingerprint(state.link_token)),
        pools=(
            open_pool(url, clock, PartFile(state.root / "quotas-part", faults)),
            open_rooms(url, clock, deployment, PartFile(state.root / "rooms-part", faults)),
        ),
        faults=faults,
        token=state.link_token,
        environ=environ,
    )
    await gateway.live()


def reached(address: str, host: str) -> str:
    """Returns HOST:PORT at which others reach a listener on ``address``. ``host``: of this machine, in the place of
    0.0.0.0 and [::]."""
    listens, _, port = address.rpartition(":")
    return f"{_bracketed(host)}:{port}" if listens in EVERY_HOST else address


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class AdminListenError(TidegateError):
    """The admin endpoint cannot be opened."""


class TokenError(TidegateError):
    """The file with the deployment's token cannot be read."""


def _put_token(state: StateDirectory, token_file: Path) -> None:
    """Puts the deployment's token where workers get it from. Raises TokenError, StateError."""
    try:
        token = token_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TokenError(f"{token_file}: the token of the deployment cannot be read: {error}") from error
    if not token:
        raise TokenError(f"{token_file} is empty; it has to hold the token of the deployment (STATE/link-token)")
    with usable(state.link_token_file):
        write_atomically(state.link_token_file, f"{token}\n".encode())
