"""Replicas that come from fork servers: the same processes as spawned ones, sooner."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.live.backends import PHASES, LocalBench, directory, status_of
from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.local.proc import session_members, with_variable
from tidegate.deploy.local.records import MARK
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import Function, Protocol, Readiness, Resources, Revision, Server, ServerKind
from tidegate.records.replica_state import ReplicaState

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="fork servers are for Linux"),
]

CPU = Accelerator(name="cpu", kind=AcceleratorKind.CPU, count=4, memory_bytes=1 << 30, cores=1, price_per_hour=0.04)
HANDLER = """
import json, os, sys
print("made with", sys.argv[0].rsplit("/", 1)[-1], flush=True)
class Model:
    arrays = "plain"
    def load(self):
        assert "DIE" not in os.environ, "no weights"
    def predict(self, inputs):
        facts = {"parent": os.getppid(), "session": os.getsid(0), "folder": os.getcwd(), "word": os.environ["WORD"],
                 "cores": sorted(os.sched_getaffinity(0)), "descriptors": len(os.listdir("/proc/self/fd")),
                 "room": "TIDEGATE_FORK_ROOM" in os.environ, "threads": os.environ["OMP_NUM_THREADS"],
                 "imported": "numpy" in sys.modules}
        if inputs["x"][0] == 9:
            os._exit(9)
        return {"facts": [json.dumps(facts)]}
"""


def play(scenario: Callable[[LocalBench], Awaitable[None]], **options: object) -> None:
    async def run() -> None:
        async with directory() as path:
            (path / "model.py").write_text(HANDLER)
            bench = LocalBench(path, (CPU,), fork_servers=True, **options)  # type: ignore[arg-type]
            await bench.start()
            try:
                await scenario(bench)
            finally:
                await bench.close()

    asyncio.run(run())


def revision(bench: LocalBench, **env: str) -> Revision:
    function = Function(
        name="facts",
        server=Server(kind=ServerKind.HANDLER, target=f"{bench.directory / 'model.py'}:Model"),
        protocol=Protocol.V2,
        readiness=Readiness(start_timeout_s=30.0),
        resources=Resources(threads=1),
        workdir=str(bench.directory),
        env={"WORD": "said", **env},
    )
    return Revision(function, 1)


async def prepared(bench: LocalBench, **env: str) -> Revision:
    """A revision whose fork servers are ready."""
    made = revision(bench, **env)
    await bench.backend.apply(made)
    await bench.until(lambda: are_ready(bench))
    return made


def are_ready(bench: LocalBench) -> bool:
    servers = bench.local.fork_servers.values()
    return len(servers) == 2 and all(each.is_ready for each in servers)


def server_pid(bench: LocalBench, name: str) -> int:
    return bench.local.fork_servers[name].pid


async def ready(bench: LocalBench, made: Revision, replica_id: str) -> ReplicaStatus:
    await bench.backend.create(replica_id, made, "cpu", PHASES)
    await bench.until(lambda: status_of(bench.backend, replica_id).state is not ReplicaState.STARTING)  # type: ignore[union-attr]
    status = status_of(bench.backend, replica_id)
    assert status is not None and status.state is ReplicaState.READY, status
    return status


async def call(bench: LocalBench, replica_id: str, x: int = 0) -> dict[str, object]:
    address = next(each.address for each in bench.local.replicas() if each.id == replica_id)
    reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    body = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": [x]}]}).encode()
    writer.write(
        b"POST /v2/models/facts/infer HTTP/1.1\r\nHost: m\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        % len(body)
    )
    writer.write(body)
    answer = await reader.read()
    writer.close()
    if x == 9:
        return {}
    found: dict[str, object] = json.loads(json.loads(answer.partition(b"\r\n\r\n")[2])["outputs"][0]["data"][0])
    return found


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def command(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def marked(record: str) -> list[int]:
    """The processes that a successor of the control process would find as those of this record."""
    return [pid for pid, _ in with_variable(MARK, lambda path: path.endswith(f"/{record}"))]


def log_of(bench: LocalBench, replica_id: str) -> str:
    return (bench.directory / "logs" / "facts" / f"{replica_id}.server.log").read_text()


def is_marked(mark: str, pid: int) -> bool:
    """Whether that process alone has the mark."""
    return marked(mark) == [pid]


def test_a_forked_replica_is_a_process_like_a_spawned_one() -> None:
    async def scenario(bench: LocalBench) -> None:
        spawned = revision(bench, PYTHONHASHSEED="0")  # A variable that a fork would read too late.
        made = await prepared(bench)
        forked = await ready(bench, made, "facts-00001-f")
        await ready(bench, spawned, "facts-00001-s")
        one, two = await call(bench, "facts-00001-f"), await call(bench, "facts-00001-s")
        assert one.pop("imported") and not two.pop("imported"), "numpy was imported before the fork"
        assert one.pop("session") == forked.pids[1] != two.pop("session")
        assert one.pop("cores") != two.pop("cores"), "each has a core of its own"
        assert one == two, "parent, folder, environment and number of descriptors"
        assert one["parent"] == os.getpid()
        assert "made with main.py" in log_of(bench, "facts-00001-f")
        for pid, kind, module in zip(forked.pids, ("proxy", "server"), ("queue_proxy", "runtime"), strict=True):
            # Another process may be between its fork and its own name.
            await bench.until(partial(is_marked, f"facts-00001-f.{kind}.json", pid))
            assert command(pid)[1:] == ["-P", "-m", f"tidegate.{module}.main"]
        await bench.backend.remove("facts-00001-f")
        await bench.until(lambda: not any(map(exists, forked.pids)))
        assert not bench.complaints

    play(scenario)


def test_the_status_of_a_forked_server_that_ends_is_known() -> None:
    async def scenario(bench: LocalBench) -> None:
        made = await prepared(bench)
        await ready(bench, made, "facts-00001-a")
        await call(bench, "facts-00001-a", 9)
        await bench.until(lambda: status_of(bench.backend, "facts-00001-a").state is ReplicaState.FAILED)  # type: ignore[union-attr]
        assert "exited with status 9" in str(status_of(bench.backend, "facts-00001-a"))
        await bench.backend.create("facts-00002-b", revision(bench, DIE="1"), "cpu", PHASES)
        await bench.until(lambda: status_of(bench.backend, "facts-00002-b").state is ReplicaState.FAILED)  # type: ignore[union-attr]
        reason = str(status_of(bench.backend, "facts-00002-b"))
        assert "exited with status 3" in reason and "no weights" in reason
        assert server_pid(bench, "arrays") and are_ready(bench), "a server that ends does not end the fork server"

    play(scenario)


def test_replicas_survive_the_fork_server_and_the_next_start_is_a_spawn_and_says_so_once() -> None:
    async def scenario(bench: LocalBench) -> None:
        made = await prepared(bench)
        first = await ready(bench, made, "facts-00001-a")
        ended = server_pid(bench, "arrays")
        os.kill(ended, signal.SIGKILL)
        await bench.until(lambda: not exists(ended))
        await ready(bench, made, "facts-00001-b")
        assert (await call(bench, "facts-00001-b"))["imported"] is False, "it was spawned"
        assert await call(bench, "facts-00001-a") and first.pids == status_of(bench.backend, "facts-00001-a").pids  # type: ignore[union-attr]
        await bench.until(lambda: are_ready(bench))
        await ready(bench, made, "facts-00001-c")
        assert (await call(bench, "facts-00001-c"))["imported"] is True, "the server runs again"
        assert bench.complaints == [
            "the fork server arrays was killed by SIGKILL: replicas are spawned until it runs again"
        ]

    play(scenario)


def test_forked_replicas_outlive_the_control_process_and_fork_servers_do_not() -> None:
    async def scenario(bench: LocalBench) -> None:
        made = await prepared(bench)
        status = await ready(bench, made, "facts-00001-a")
        servers = [each.pid for each in bench.local.fork_servers.values()]
        await bench.abandon()
        assert not any(map(exists, servers))
        successor = LocalBench(bench.directory, (CPU,), epoch=2, fork_servers=True)
        try:
            await successor.start(made)
            adopted = status_of(successor.backend, "facts-00001-a")
            assert adopted is not None and adopted.adopted and adopted.pids == status.pids
            assert (await call(successor, "facts-00001-a"))["word"] == "said"
            assert session_members(status.pids[1]) == [status.pids[1]]
        finally:
            await successor.close()

    play(scenario)


def test_a_forked_server_is_confined_as_a_spawned_one(tmp_path: Path) -> None:
    secret = tmp_path / "state" / "token"
    secret.parent.mkdir()
    secret.write_text("secret")

    async def scenario(bench: LocalBench) -> None:
        text = HANDLER.replace('"parent": os.getppid()', f'"seen": os.path.exists("{secret}")')
        (bench.directory / "model.py").write_text(text)
        made = await prepared(bench)
        await ready(bench, made, "facts-00001-f")
        await ready(bench, revision(bench, PYTHONHASHSEED="0"), "facts-00001-s")
        forked, spawned = await call(bench, "facts-00001-f"), await call(bench, "facts-00001-s")
        assert forked["seen"] == spawned["seen"]
        assert forked["imported"] and not spawned["imported"]

    play(scenario, hidden=(str(secret.parent),))
