"""Real gateway workers, queue_proxies and model servers on loopback, for one test.

:class:`Edge` owns the processes and a directory for their sockets; it plays the control process: it makes the listening
sockets, writes the configuration, hands out route tables and listens to activations.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support.deadline import Patience, within
from tests.support.live.commands import GATEWAY, MODEL_SERVER, QUEUE_PROXY, Running, command_server
from tidegate.records.codec import encode
from tidegate.records.route_table import FunctionRoute, GroupRoute, ReplicaRoute, RevisionRoute, RouteTable

ROOT = Path(__file__).resolve().parents[3]
Process = subprocess.Popen[bytes] | Running
TOKEN = "edge-test-token"
PATIENCE_S = 20.0
HANGS_S = 120.0
ENDS = ("answered", "failed", "refused", "expired", "cancelled")
"""How a request ends, by the names of a gateway worker's sample."""
V2_BODY = b'{"inputs":[{"name":"x","shape":[%d,1],"datatype":"FP32","data":[1.0]}]}'


def run(main: Coroutine[Any, Any, None]) -> None:
    """Runs a conversation; one that hangs fails."""

    async def bounded() -> None:
        async with within(HANGS_S):
            await main

    asyncio.run(bounded())


@dataclass(slots=True)
class Replica:
    """A queue_proxy with its model server."""

    id: str
    address: str
    admin: str
    upstream: str
    proxy: Process
    model: Process | None

    @property
    def route(self) -> ReplicaRoute:
        return ReplicaRoute(id=self.id, address=self.address)


class Edge:
    """The processes of one test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = 0
        self.ports: list[int] = []
        self.workers: list[Process] = []
        self.replicas: list[Replica] = []
        self._listeners: list[socket.socket] = []
        self._number = 0
        self.limits: dict[str, Any] = {}
        """Of the gateway workers that are started from now on."""
        self.config: dict[str, Any] = {}
        """Whatever else their configuration says."""
        self.environment: dict[str, str] = {}
        """Added to that of every process that is started from now on."""
        self.receive_bytes = 0
        """SO_RCVBUF of the connections to processes that are started from now on; 0: the system's."""
        self.logs: list[Path] = []
        self.is_logged = False
        """Whether the processes that are started from now on write to ``logs``, one file each, instead of here."""
        (directory / "token").write_text(TOKEN + "\n")

    # --- gateway ----------------------------------------------------------------------------------------------------

    def start_gateway(self, workers: int = 1, *, table: RouteTable | None = None, apart: bool = False) -> None:
        """Starts workers on one port (``apart``: one each); a table given here is what they find on their disk."""
        table_file = self.directory / "routes.json"
        if table is not None:
            table_file.write_bytes(encode(table))
        for index in range(workers):
            listener = _listener(0 if apart else self.port, self.receive_bytes)
            self.port = listener.getsockname()[1]
            self.ports.append(self.port)
            self._listeners.append(listener)
            config = self.directory / f"g{index}.json"
            config.write_text(
                json.dumps(
                    {
                        "worker": f"g{index}",
                        "listen_fd": listener.fileno(),
                        "admin": str(self.directory / f"g{index}.sock"),
                        "table_file": str(table_file),
                        "token": TOKEN,
                        "domain": "localhost",
                        "workers": workers,
                        "limits": self.limits,
                        "log": None,
                    }
                    | self.config
                )
            )
            self.workers.append(self._spawn(GATEWAY, ["--config", str(config)], fds=(listener.fileno(),)))

    def start_again(self, index: int) -> None:
        """Another process in the place of a worker that ended, on the same listening socket."""
        config = self.directory / f"g{index}.json"
        descriptor = json.loads(config.read_text())["listen_fd"]
        self.workers[index].wait()
        self.workers[index] = self._spawn(GATEWAY, ["--config", str(config)], fds=(descriptor,))

    async def gateway_ready(self) -> None:
        await asyncio.gather(*(self.answered(self.gateway_admin(n), "/healthz") for n in range(len(self.workers))))

    def gateway_admin(self, index: int = 0) -> str:
        return f"unix:{self.directory}/g{index}.sock"

    async def put_table(self, table: RouteTable) -> list[dict[str, int]]:
        """What each worker works from afterwards."""
        answers = []
        for index in range(len(self.workers)):
            async with client(self.gateway_admin(index)) as http:
                answer = await http.put("/table", content=encode(table))
                assert answer.status_code == 200, answer.text
                answers.append(answer.json())
        return answers

    # --- replicas ---------------------------------------------------------------------------------------------------

    def start_replica(
        self,
        *,
        limit: str = "1",
        delay_s: float = 0.0,
        model: bool = True,
        declared: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> Replica:
        """A queue_proxy on an inherited socket and its model server, started at the same moment."""
        self._number += 1
        name = f"f-00001-r{self._number:04d}"
        listener = _listener(0, self.receive_bytes)
        upstream = f"unix:{self.directory}/{name}.m"
        admin = f"unix:{self.directory}/{name}.a"
        server = self.start_model(upstream, delay_s=delay_s, declared=declared) if model else None
        environment = {
            "CONTAINER_CONCURRENCY": "0",
            "TIDEGATE_CONCURRENCY": limit,
            "SERVING_REVISION": "f-00001",
            "TIDEGATE_FUNCTION": "f",
            "TIDEGATE_GROUP": "cpu",
            "TIDEGATE_REPLICA": name,
            "TIDEGATE_LISTEN_FD": str(listener.fileno()),
            "TIDEGATE_UPSTREAM": upstream,
            "TIDEGATE_ADMIN": admin,
            "TIDEGATE_TOKEN_FILE": str(self.directory / "token"),
            "TIDEGATE_READINESS_PATH": "/v2/health/ready",
            "TIDEGATE_START_TIMEOUT_SECONDS": "20",
            "TIDEGATE_EPOCH": "5",
            "TIDEGATE_PHASES": "decide=0.001,schedule=0.002",
        }
        environment.update(settings or {})
        proxy = self._spawn(QUEUE_PROXY, [], environment, fds=(listener.fileno(),))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        listener.close()  # else connections that a killed one has not accepted yet would outlive it
        replica = Replica(name, address, admin, upstream, proxy, server)
        self.replicas.append(replica)
        return replica

    def start_model(self, upstream: str, *, delay_s: float = 0.0, declared: int = 0) -> Process:
        return self._spawn(
            MODEL_SERVER,
            ["--listen", upstream, "--delay", str(delay_s), "--declared", str(declared), "--keep-working"],
        )

    async def replica_ready(self, replica: Replica) -> dict[str, Any]:
        return await self.reached(replica, "ready")

    async def reached(self, replica: Replica, state: str) -> dict[str, Any]:
        """Waits until ``/events`` tells this state."""
        async with aclosing(self.events(replica)) as events:
            async for event in events:
                if event["state"] == state:
                    return event
        raise AssertionError("the stream of events ended")

    async def events(self, replica: Replica) -> AsyncGenerator[dict[str, Any], None]:
        await self.answered(replica.admin, "/healthz")
        async with client(replica.admin) as http, http.stream("GET", "/events") as answer:
            async for line in answer.aiter_lines():
                yield json.loads(line)

    async def order(self, replica: Replica, what: str, **order: int) -> httpx.Response:
        async with client(replica.admin) as http:
            return await http.post(f"/{what}", json=order)

    async def stats(self, replica: Replica) -> dict[str, Any]:
        """What the model server counted."""
        async with client(replica.upstream) as http:
            found: dict[str, Any] = (await http.get("/stats")).json()
            return found

    async def working(self, replica: Replica, count: int = 1) -> None:
        """Waits until so many requests run in the model server."""
        while True:
            if (await self.stats(replica))["running"] >= count:
                return
            await asyncio.sleep(0.01)

    async def arrived(self, count: int) -> None:
        """Waits until the gateway workers together have seen so many requests."""
        while True:
            samples = [await self.sample(self.gateway_admin(index)) for index in range(len(self.workers))]
            if sum(demand["arrivals"] for sample in samples for demand in sample["demands"]) >= count:
                return
            await asyncio.sleep(0.01)

    # --- both -------------------------------------------------------------------------------------------------------

    async def sample(self, admin: str) -> dict[str, Any]:
        async with client(admin) as http:
            found: dict[str, Any] = (await http.get("/sample")).json()
            return found

    async def begun(self, worker: int = 0) -> int:
        """Requests that a gateway worker has begun and not ended."""
        demands = (await self.sample(self.gateway_admin(worker)))["demands"]
        return sum(int(demand["arrivals"]) - sum(int(demand[end]) for end in ENDS) for demand in demands)

    async def metric(self, name: str, worker: int = 0) -> int:
        """A gateway worker's value of a metric with no label but the worker."""
        async with client(self.gateway_admin(worker)) as http:
            for line in (await http.get("/metrics")).text.splitlines():
                if line.startswith(name + "{"):
                    return int(float(line.rpartition(" ")[2]))
        raise AssertionError(f"no {name}")

    async def answered(self, address: str, path: str) -> None:
        """Waits until somebody answers there."""
        patience = Patience(PATIENCE_S)
        while True:
            try:
                async with client(address) as http:
                    await http.get(path)
                    return
            except httpx.TransportError:
                if patience.is_over:
                    raise
                await asyncio.sleep(0.01)

    def client(self, worker: int = -1) -> httpx.AsyncClient:
        """To the front door (of one worker, where they are apart), as many connections as wanted."""
        return client(f"127.0.0.1:{self.ports[worker]}")

    def close(self) -> None:
        processes = [*self.workers]
        for replica in self.replicas:
            processes += [replica.proxy, *([replica.model] if replica.model is not None else [])]
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        for listener in self._listeners:
            listener.close()

    def _spawn(
        self,
        program: str,
        arguments: list[str],
        environment: Mapping[str, str] | None = None,
        *,
        fds: tuple[int, ...] = (),
    ) -> Process:
        """Starts a module: as a fork, or as it is where the modules that it finds are not ours alone."""
        variables = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **self.environment, **(environment or {})}
        output = None
        if self.is_logged:
            self.logs.append(self.directory / f"{len(self.logs):03d}-{program}.log")
            output = os.open(self.logs[-1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if variables["PYTHONPATH"] == str(ROOT):
                outputs = (1, 2) if output is None else (output, output)
                return command_server("data plane").start(
                    arguments, folder=self.directory, environment=variables, outputs=outputs, program=program, kept=fds
                )
            return subprocess.Popen(
                [sys.executable, "-P", "-m", program, *arguments],
                cwd=self.directory,
                env=variables,
                pass_fds=fds,
                stdout=output,
                stderr=output,
            )
        finally:
            if output is not None:
                os.close(output)


@asynccontextmanager
async def edge() -> AsyncIterator[Edge]:
    """An :class:`Edge` whose processes end with the block."""
    with tempfile.TemporaryDirectory(prefix="edge-") as directory:
        owned = Edge(Path(directory))
        try:
            yield owned
        finally:
            owned.close()


def client(address: str) -> httpx.AsyncClient:
    """A client for ``host:port`` or ``unix:/path``."""
    path = address.removeprefix("unix:")
    is_unix = path != address
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(
            verify=False,  # nothing here is TLS, and reading the machine's certificates takes 20 ms
            uds=path if is_unix else None,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        ),
        base_url="http://localhost" if is_unix else f"http://{address}",
        timeout=15.0,
        trust_env=False,
        verify=False,
    )


def children(pid: int) -> list[int]:
    """The processes that this one has started and that still run."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def table(number: int, *replicas: Replica, epoch: int = 5, workers: int = 1, **settings: Any) -> RouteTable:
    """One function ``f`` with one revision and one group of these replicas; ``settings`` go to its route."""
    revision = settings.pop("revision", {})
    group = GroupRoute(accelerator="cpu", weight=1.0, replicas=tuple(replica.route for replica in replicas))
    route: dict[str, Any] = {
        "name": "f",
        "models": ("m",),
        "protocol": "v2",
        "timeout_s": 20.0,
        "latency_s": 1.0,
        "queue_requests": 1000,
        "queue_bytes": 1 << 28,
        "max_wait_s": 20.0,
        "batch_header": "tidegate-batch-size",
        "bytes_per_item": None,
        "overhead_bytes": 0.0,
        "max_batch": 1024,
    }
    route.update(settings)
    revisions = (RevisionRoute(id="f-00001", percent=100.0, groups=(group,), **revision),)
    return RouteTable(
        epoch=epoch, number=number, workers=workers, functions=(FunctionRoute(revisions=revisions, **route),)
    )


def begin(work: Coroutine[Any, Any, httpx.Response]) -> "asyncio.Task[httpx.Response]":
    """Starts a request whose answer is awaited later."""
    return asyncio.get_running_loop().create_task(work)


async def infer(http: httpx.AsyncClient, batch: int = 1, **fields: str) -> httpx.Response:
    """One V2 inference of the model ``m``; underscores in names of fields become dashes."""
    return await http.post(
        "/v2/models/m/infer",
        content=V2_BODY % batch,
        headers={"content-type": "application/json"} | {name.replace("_", "-"): v for name, v in fields.items()},
    )


def _listener(port: int, receive_bytes: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_bytes:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)  # connections inherit it
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(4096)
    listener.setblocking(False)
    return listener
