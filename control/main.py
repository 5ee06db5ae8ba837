"""The control process, ``tidegate up``: its start, its signals and its orderly end.

Start: take the directory, raise the epoch, find what an earlier control process left, adopt it, start the gateway
workers, then the API. It is up when every gateway worker is linked. End (SIGINT, SIGTERM, or the API's shutdown):
gateway workers stop accepting and finish while the round still answers activations. Then the round ends, so that
nothing starts any more. Then replicas drain and stop, and then the API ends. A second signal ends everything at once.
Where replicas are Pods, SIGTERM leaves them to the next control process.
"""

import asyncio
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidegate.aio.log_stream import JsonStream
from tidegate.aio.loop.run import loop_factory, quiet_collector
from tidegate.aio.loop.sockets import listen
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.clock import LiveClock, wall
from tidegate.control.metrics.discovery import write_targets
from tidegate.control.state.directory import DirectoryLock, Holder, StateDirectory
from tidegate.control.state.json_formatter import JsonFormatter
from tidegate.control.state.notices import Faults
from tidegate.deploy.local.recovery import end_all
from tidegate.errors import TidegateError
from tidegate.schema.rows import Address
from tidegate.settings import LogFormat, Settings

if TYPE_CHECKING:
    from tidegate.control.api.deployment import Deployment
    from tidegate.control.build import StateSide, WorkSide
    from tidegate.control.cluster import LedCluster

GRACE_S: Final = 30.0
"""Time for work under way when everything ends."""
LINKED_S: Final = 5.0
"""The process counts as up after this time even if some gateway workers are not linked: the status shows them."""
STARTED_S: Final = 2.0
"""Time after which most objects that the process keeps for good exist."""
API_END_S: Final = 3.0
"""Time for answers of the API under way."""

_log = logging.getLogger("tidegate")

Ready = Callable[["Addresses"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The addresses on which the deployment answers."""

    gateway: str | None
    """Base URL; None without workers here."""
    api: str
    state: Path


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Reports an error that no task has raised. A socket of anyio that becomes readable twice within a turn of the loop
    sets its result twice: the first time counts, and nothing is lost."""
    is_late = isinstance(context.get("exception"), asyncio.InvalidStateError)
    if not (is_late and "set_result" in str(context.get("handle"))):
        loop.default_exception_handler(context)


class ListenError(TidegateError):
    """An address cannot be listened on."""


def run(
    settings: Settings,
    state: StateDirectory,
    environ: Mapping[str, str],
    ready: Ready,
    reread: Callable[[], Settings] | None = None,
    config: Path | None = None,
) -> None:
    """Runs the control process to its end.

    ``ready`` is called when everything answers. ``reread`` reads the settings again for a reload and a hot restart; it
    raises InvalidInputError with their faults. None: they stay. ``config`` is their file, which is watched.

    Raises StateError if the directory is locked by another process or unusable, other TidegateErrors if a start fails.
    """
    set_up_log(settings)
    state.prepare()
    lock = state.lock()
    try:
        control = ControlProcess(settings, state, lock, environ, reread or (lambda: settings), config)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            # A full collection over the samples of a thousand functions would stop the loop for a tenth of a second.
            runner.get_loop().call_later(STARTED_S, quiet_collector)
            runner.run(control.live(ready))
        state.clear()
    finally:
        lock.release()


class ControlProcess:
    """One run of the control process over a locked state directory."""

    def __init__(
        self,
        settings: Settings,
        state: StateDirectory,
        lock: DirectoryLock,
        environ: Mapping[str, str],
        reread: Callable[[], Settings],
        config: Path | None = None,
    ) -> None:
        self._settings = settings
        self._config = config
        self._reread = reread
        self._state = state
        self._lock = lock
        self._environ = environ
        self._clock = LiveClock()
        self._faults = Faults()
        self._epoch = state.next_epoch()
        self._since = datetime.fromtimestamp(self._clock.now()).astimezone().isoformat(sep=" ", timespec="seconds")
        self._stop = asyncio.Event()
        self._takes_down = settings.kubernetes.image is None
        """Replicas end with this process."""
        self._signals = 0
        lock.describe(Holder(pid=os.getpid(), since=self._since, epoch=self._epoch))

    async def live(self, ready: Ready) -> None:
        """Runs from start to end."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_on_loop_error)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)
        # Imported here: a directory that is locked is reported, and a signal is answered, before all components load.
        from tidegate.control import build
        from tidegate.control.cluster import lead, open_cluster

        rng = random.Random(os.urandom(16))
        async with open_cluster(self._settings, self._state, self._faults, rng) as cluster:
            if cluster is not None:
                epoch = await lead(cluster, self._settings, self._state, self._epoch, self._stop)
                if epoch == 0:
                    return
                self._epoch = epoch if epoch == self._epoch else self._state.next_epoch(epoch)
            await self._run(build, cluster, rng, ready)

    async def _run(self, build: Any, cluster: "LedCluster | None", rng: random.Random, ready: Ready) -> None:
        from tidegate.control.cluster import DeposedError

        start = build.Start(
            settings=self._settings,
            state=self._state,
            environ=self._environ,
            reread=self._reread,
            config=self._config,
            epoch=self._epoch,
            clock=self._clock,
            faults=self._faults,
            stop=self._take_down,
            rng=rng,
            cluster=cluster,
        )
        async with build.open_records(start) as store, _sockets(self._settings) as listening:
            state = await build.claim_state(start, store)
            start = await build.above_remote(start)
            self._epoch = start.epoch
            work = await build.build_work(start, state)
            deposed = asyncio.Event() if cluster is None else cluster.leadership.deposed
            await self._serve(state, work, listening, ready, deposed)
        if cluster is not None and cluster.leadership.deposed.is_set():
            raise DeposedError(f"{cluster.leadership.why}; this process has ended, and its replicas go on")

    async def _serve(
        self, state: "StateSide", work: "WorkSide", listening: "_Listening", ready: Ready, deposed: asyncio.Event
    ) -> None:
        owner = TaskOwner("control", self._report)
        deployment = work.deployment
        deployment.api = listening.api.url
        servers = [(work.server, listening.api.socket, "api")]
        if work.metrics_server is not None and listening.metrics is not None:
            servers.append((work.metrics_server, listening.metrics.socket, "metrics listener"))
            deployment.metrics_url = f"{listening.metrics.url}/metrics"
        serving: list[asyncio.Task[Any]] = []
        rounds: asyncio.Task[Any] | None = None
        following: asyncio.Task[Any] | None = None
        try:
            await work.quotas.open()
            await work.key_sets.load()
            await work.costs.open(self._clock.now())
            table = work.loop.round.begin()
            if work.remote is not None:
                work.remote.publish(table)
                owner.spawn(work.remote.run(), name="remote gateways")
            await work.gateways.start(work.living, table)
            rounds = owner.spawn(work.loop.round.run(), name="round")
            owner.spawn(work.reloading.watch(), name="settings")
            owner.spawn(work.key_sets.run(), name="keys")
            owner.spawn(work.costs.run(self._clock.now), name="costs")
            if work.loop.instruments.devices is not None:
                owner.spawn(work.loop.instruments.devices.run(), name="devices")
            owner.spawn(work.mps.run(lambda: work.needs_mps), name="mps")
            owner.spawn(state.owner.run(wall), name="owner")
            for server, sock, name in servers:
                serving.append(owner.spawn(server.serve(sockets=[sock]), name=name))
            following = None if work.resources is None else owner.spawn(work.resources.run(), name="resources")
            ends = (
                rounds,
                serving[0],
                owner.spawn(self._stop.wait(), name="stop"),
                owner.spawn(deposed.wait(), name="deposed"),
            )
            linked = owner.spawn(work.gateways.linked(LINKED_S), name="linked")
            await asyncio.wait((linked, *ends), return_when=asyncio.FIRST_COMPLETED)
            if not any(task.done() for task in ends):
                self._report_ready(deployment, ready, owner)
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if following is not None:
                following.cancel()  # Before anything drains: it would deploy on.
            if rounds is None:
                await self._let_go(work)
            else:
                await self._end(work, rounds, leads=not deposed.is_set())
            for server, _, _ in servers:
                server.should_exit = True
            if serving:
                await asyncio.wait(serving, timeout=API_END_S)
            await owner.close()
            await state.owner.release()

    def _report_ready(self, deployment: "Deployment", ready: Ready, owner: TaskOwner) -> None:
        api = deployment.api
        # Without workers here gateways come and go: the status names one that is there.
        gateway = None if self._settings.gateway.workers == 0 else deployment.gateway
        self._lock.describe(
            Holder(
                pid=os.getpid(),
                since=self._since,
                epoch=self._epoch,
                api=api,
                gateway=gateway,
                certificate=deployment.certificate,
            )
        )
        owner.spawn(write_targets(self._state.targets, api, self._state.root.name, self._faults), name="targets")
        ready(Addresses(gateway=gateway, api=api, state=self._state.root))

    def _report(self, name: str, error: BaseException) -> None:
        self._faults.set(name, f"{type(error).__name__}: {error}")

    # --- the end ---

    def _signalled(self, number: int) -> None:
        self._signals += 1
        if self._signals > 1:
            self._kill_all()
            return
        if number == signal.SIGINT:
            self._takes_down = True
        goes_on = "" if self._takes_down else "; Pods of replicas go on, and the next control process adopts them"
        _log.info("shutting down%s; a second signal ends everything at once", goes_on)
        self._stop.set()

    def _take_down(self) -> None:
        """Ends this process and its replicas."""
        self._takes_down = True
        self._stop.set()

    def _kill_all(self) -> None:
        """Kills every child process, then ends this process."""
        end_all(self._state.processes, grace_s=0.0)
        os._exit(1)

    async def _let_go(self, work: "WorkSide") -> None:
        """Ends a start that failed: adopted processes go on as they were found."""
        await work.gateways.release()
        if work.remote is not None:
            await work.remote.close()
        await work.backend.close(stop_replicas=False)
        await work.replicas.end()
        await work.loop.close()
        await work.costs.close(self._clock.now(), has_ended=False)
        await work.quotas.close()
        work.processes.close()

    async def _end(self, work: "WorkSide", rounds: "asyncio.Task[Any]", *, leads: bool) -> None:
        """Ends everything in order; the replicas only if this process takes them down. ``leads``: False if another
        process has them by now, so that nothing is ordered any more."""
        ends_replicas = leads and self._takes_down
        work.deployment.leaving = True
        work.processes.continue_stopped()
        if not leads:
            rounds.cancel()
        await work.gateways.drain(GRACE_S)
        if work.remote is not None:
            await work.remote.close()
        await work.quotas.close()
        # The rounds end before the replicas: they would replace them.
        rounds.cancel()
        await asyncio.wait((rounds,))
        await work.loop.close()
        await work.backend.close(stop_replicas=ends_replicas, grace_s=GRACE_S)
        if ends_replicas and work.resources is not None:
            await work.resources.end(API_END_S)
        await work.replicas.end()
        await work.mps.stop()
        await work.costs.close(self._clock.now(), has_ended=ends_replicas)
        work.loop.changes.end()
        work.processes.close()


@dataclass(frozen=True, slots=True)
class _Socket:
    """A listening socket. ``url`` has the host as the settings name it, not the address that it stands for."""

    socket: socket.socket
    url: str


@dataclass(frozen=True, slots=True)
class _Listening:
    """The sockets of the control process."""

    api: _Socket
    metrics: _Socket | None


@asynccontextmanager
async def _sockets(settings: Settings) -> AsyncGenerator[_Listening, None]:
    with ExitStack() as stack:

        def listening(address: Address, key: str, what: str) -> _Socket:
            sock = stack.enter_context(_listen(settings, address, key, what))
            return _Socket(sock, f"http://{Address(address.host, sock.getsockname()[1])}")

        metrics = settings.metrics.listen
        yield _Listening(
            listening(settings.control.listen, "control.listen", "the API"),
            None if metrics is None else listening(metrics, "metrics.listen", "metrics"),
        )


def _listen(settings: Settings, address: Address, key: str, what: str) -> socket.socket:
    try:
        return listen(str(address))
    except OSError as error:
        flag = f"--{key.replace('.', '-')}"
        raise ListenError(
            f"cannot listen on {address} for {what} ({key}, from {settings.origin(key)}): "
            f"{error.strerror}; choose another with `tidegate up {flag} HOST:PORT`"
        ) from error


def set_up_log(settings: Settings) -> None:
    """Sends log lines to standard error, in the format of the settings."""
    level = settings.log.level.value.upper()
    handler = logging.StreamHandler(sys.stderr)
    if settings.log.format is LogFormat.JSON:
        handler.setFormatter(JsonFormatter())
        sys.stderr = JsonStream(sys.stderr, "warning", {"logger": "control"})
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    for noisy in ("httpx", "httpcore", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
