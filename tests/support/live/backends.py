"""Backends under test behind one face: a fake one whose clock is moved, a local one with real processes."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from tests.support.deadline import Patience
from tests.support.live.guard import guard_records
from tidegate import deploy
from tidegate.clock import LiveClock, ManualClock
from tidegate.deploy.backend import Backend, ReplicaStatus
from tidegate.deploy.environment import Host
from tidegate.deploy.fake import FakeBackend
from tidegate.deploy.local.backend import LocalBackend
from tidegate.deploy.local.processes import ProcessTable
from tidegate.deploy.local.records import RecordStore
from tidegate.deploy.local.replica import ReplicaPlaces
from tidegate.deploy.local.sockets import choose_port
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import Function, Readiness, Resources, Revision, Server, ServerKind
from tidegate.records.replica_state import ColdStartPhases

SUPPORT = Path(__file__).resolve().parents[1] / "models"
MODEL = str(SUPPORT / "scripted_server.py")
PHASES = ColdStartPhases(decide_s=0.002, schedule_s=0.0)

TWO_CORES = Accelerator(
    name="cpu-1core", kind=AcceleratorKind.CPU, count=2, memory_bytes=1 << 30, cores=1, price_per_hour=0.04
)


def revision(
    name: str = "resnet",
    number: int = 1,
    *,
    arguments: Sequence[str] = (),
    start_timeout_s: float = 10.0,
    timeout_s: float = 20.0,
    memory_bytes: int | None = None,
    command: Sequence[str] | None = None,
    port: int | None = None,
    socket: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Revision:
    """A revision whose server is the model of these tests."""
    argv = (
        tuple(command) if command is not None else (sys.executable, MODEL, "--listen", "127.0.0.1:{port}", *arguments)
    )
    function = Function(
        name=name,
        server=Server(kind=ServerKind.COMMAND, argv=argv),
        readiness=Readiness(path="/ready", start_timeout_s=start_timeout_s),
        resources=Resources(memory_bytes=memory_bytes),
        timeout_s=timeout_s,
        workdir=str(SUPPORT),
        port=port,
        socket=socket,
        env=env or {},
    )
    return Revision(function, number)


class Bench(Protocol):
    """What a scenario needs besides the backend itself."""

    backend: Backend
    seen: list[ReplicaStatus]
    """Every status that ``watch`` reported, in order."""

    def replica_table(self) -> tuple[object, str]:
        """The object and its attribute that hold the backend's replicas by id."""
        ...

    def broken(self) -> Revision:
        """A revision whose server dies at its start."""
        ...

    async def until(self, condition: Callable[[], bool]) -> None:
        """Lets time pass until the condition holds; fails if it never does."""
        ...

    async def hold(self, replica_id: str) -> None:
        """Puts a request on the replica that ends at :meth:`release`."""
        ...

    async def release(self, replica_id: str) -> None: ...

    def crash(self, replica_id: str) -> None:
        """The model server dies by SIGKILL."""
        ...

    def now(self) -> float: ...


class FakeBench:
    def __init__(self, accelerators: Sequence[Accelerator]) -> None:
        self.clock = ManualClock(1000.0)
        self.fake = FakeBackend(accelerators, self.clock, random.Random(1), start_up_s=1.0, host_cores=(0, 1))
        self.backend: Backend = self.fake
        self.seen: list[ReplicaStatus] = []
        self.fake.watch(self.seen.append)

    def replica_table(self) -> tuple[object, str]:
        return self.fake, "_replicas"

    def broken(self) -> Revision:
        self.fake.break_starts("broken-00001", "the model server exited with status 1: no weights", 1000)
        return revision("broken")

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(1000):
            if condition():
                return
            due = self.fake.next_wakeup()
            self.clock.advance(0.05 if due is None else max(0.0, due - self.clock.now()))
            self.fake.on_wakeup(self.clock.now())
        raise AssertionError("never happened")

    async def hold(self, replica_id: str) -> None:
        self.fake.begin_work(replica_id)

    async def release(self, replica_id: str) -> None:
        self.fake.end_work(replica_id)

    def crash(self, replica_id: str) -> None:
        self.fake.crash(replica_id)

    def now(self) -> float:
        return self.clock.now()


class LocalBench:
    """A local backend over a directory of its own; :func:`local_bench` makes and clears it."""

    def __init__(
        self,
        directory: Path,
        accelerators: Sequence[Accelerator],
        *,
        epoch: int = 1,
        queue_proxy: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        fork_servers: bool = False,
        hidden: tuple[str, ...] = (),
    ) -> None:
        self.directory = directory
        for name in ("processes", "run", "logs"):
            (directory / name).mkdir(mode=0o700, exist_ok=True)
        (directory / "link-token").write_text("secret\n")
        self.clock = LiveClock()
        self.complaints: list[str] = []
        self.table = ProcessTable(RecordStore(directory / "processes"), epoch, self.complaints.append)
        root = Path(deploy.__file__).resolve().parent.parent
        self.local = LocalBackend(
            table=self.table,
            places=ReplicaPlaces(run=directory / "run", logs=directory / "logs"),
            host=Host(
                python=sys.executable,
                source_root=str(root),
                token_file=str(directory / "link-token"),
                epoch=epoch,
                inherited=dict(os.environ) if environment is None else environment,
                queue_proxy=queue_proxy,
                fork_servers=fork_servers,
                hidden=hidden,
            ),
            accelerators=accelerators,
            host_cores=sorted(os.sched_getaffinity(0)),
            clock=self.clock,
            rng=random.Random(1),
            warn=self.complaints.append,
        )
        self.backend: Backend = self.local
        self.seen: list[ReplicaStatus] = []
        self._changed = asyncio.Event()
        self._held: dict[str, asyncio.StreamWriter] = {}
        self.local.watch(self._note)

    def _note(self, status: ReplicaStatus) -> None:
        self.seen.append(status)
        self._changed.set()

    async def start(self, *revisions: Revision) -> None:
        await self.local.start({each.id: each for each in revisions}, await self.table.recover())

    def replica_table(self) -> tuple[object, str]:
        return self.local._registry, "present"

    def broken(self) -> Revision:
        return revision("broken", arguments=("--die-at-start", "no weights"))

    async def until(self, condition: Callable[[], bool], limit_s: float = 15.0) -> None:
        """Looked at again after every change, and every 20 ms for what no status tells."""
        patience = Patience(limit_s)
        while not condition():
            assert not patience.is_over, f"never happened in {patience}: {self.seen[-3:]}, {self.complaints}"
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), 0.02)

    async def request(self, replica_id: str, line: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = next(each.address for each in self.local.replicas() if each.id == replica_id)
        reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
        writer.write(f"{line} HTTP/1.1\r\nHost: m\r\n\r\n".encode())
        await writer.drain()
        return reader, writer

    async def ask(self, replica_id: str, line: str) -> bytes:
        """One request through the replica's queue_proxy; the status line and head of its answer."""
        reader, writer = await self.request(replica_id, line)
        try:
            return await reader.readuntil(b"\r\n\r\n")
        finally:
            writer.close()

    async def hold(self, replica_id: str) -> None:
        _, self._held[replica_id] = await self.request(replica_id, "GET /hold")
        await self.ask(replica_id, "GET /anything")  # the first one is surely there

    async def release(self, replica_id: str) -> None:
        await self.ask_server(replica_id, "POST /release")
        self._held.pop(replica_id).close()

    async def ask_server(self, replica_id: str, line: str) -> None:
        """One request past the queue_proxy."""
        port = int(self.upstream(replica_id).rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{line} HTTP/1.1\r\nHost: m\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    def free_port(self) -> int:
        return choose_port(None, ())

    def upstream(self, replica_id: str) -> str:
        records, _ = self.table.store.read_all()
        return next(each.replica.upstream for each in records if each.replica and each.replica.id == replica_id)

    def crash(self, replica_id: str) -> None:
        pids = next(each.pids for each in self.local.replicas() if each.id == replica_id)
        os.kill(pids[1], signal.SIGKILL)

    def now(self) -> float:
        return self.clock.now()

    async def abandon(self) -> None:
        """The control process is gone; its children are not."""
        await self.local.close(stop_replicas=False)
        self.table.close()

    async def close(self) -> None:
        for writer in self._held.values():
            writer.close()
        await self.local.close(stop_replicas=True, grace_s=2.0)
        self.table.close()


@asynccontextmanager
async def directory() -> AsyncGenerator[Path, None]:
    """A short-named folder (unix sockets have short addresses) in which no process is left at the end."""
    path = Path(tempfile.mkdtemp(prefix="tg"))
    guard_records(path / "processes")
    try:
        yield path
    finally:
        from tidegate.deploy.local.recovery import end_all

        await asyncio.to_thread(end_all, path / "processes", grace_s=1.0)
        shutil.rmtree(path)


@asynccontextmanager
async def local_bench(
    accelerators: Sequence[Accelerator] = (TWO_CORES,),
    queue_proxy: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
) -> AsyncGenerator[LocalBench, None]:
    async with directory() as path:
        bench = LocalBench(path, accelerators, queue_proxy=queue_proxy, environment=environment)
        await bench.start()
        try:
            yield bench
        finally:
            await bench.close()


def status_of(backend: Backend, replica_id: str) -> ReplicaStatus | None:
    return next((each for each in backend.replicas() if each.id == replica_id), None)


def with_price(accelerator: Accelerator, price: float) -> Accelerator:
    return replace(accelerator, price_per_hour=price)
