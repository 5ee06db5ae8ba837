"""Starts of a replica with a small ONNX model, over the local backend: forked (warm) and spawned (cold), in turn. The
warm one then falls asleep and is woken.

Part of ``benchmarks.start_up``. A start is measured from the order to the backend until it reports *ready*: queue_proxy
and model server are up, the model is loaded and has answered a first run. The model is one matrix product.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.live.backends import PHASES, TWO_CORES, LocalBench, directory, status_of
from tidegate.function import Function, Protocol, Readiness, Resources, Revision, Server, ServerKind
from tidegate.records.replica_state import ReplicaState

WIDTH = 64
SETTLE_S = 0.3
PATIENCE_S = 60.0


def write_model(path: Path) -> None:
    """Writes ``y = x w``, 16 KB of weights."""
    from numpy import ones
    from onnx import helper, numpy_helper, save

    weights = numpy_helper.from_array(ones((WIDTH, WIDTH), "float32"), "w")
    ends = [helper.make_tensor_value_info(name, 1, ["n", WIDTH]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "small", ends[:1], ends[1:], [weights])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def revision(path: Path, *, is_forked: bool) -> Revision:
    function = Function(
        name="small",
        server=Server(kind=ServerKind.MODEL, target=str(path / "small.onnx")),
        protocol=Protocol.V2,
        readiness=Readiness(start_timeout_s=60.0),
        resources=Resources(threads=1),
        workdir=str(path),
        env={} if is_forked else {"PYTHONHASHSEED": "random"},  # What a fork would read too late is spawned.
    )
    return Revision(function, 1 if is_forked else 2)


async def _start(bench: LocalBench, made: Revision, replica_id: str) -> tuple[float, int]:
    """Returns (seconds from the order to ready, pid of the model server)."""
    began = time.perf_counter()
    await bench.backend.create(replica_id, made, TWO_CORES.name, PHASES)
    await bench.until(lambda: _state(bench, replica_id) is not ReplicaState.STARTING, PATIENCE_S)
    took = time.perf_counter() - began
    status = status_of(bench.backend, replica_id)
    assert status is not None and status.state is ReplicaState.READY, status
    return took, status.pids[1]


async def _wake(bench: LocalBench, replica_id: str) -> dict[str, float]:
    """Lets a replica fall asleep and wakes it."""
    await bench.backend.sleep(replica_id)
    await bench.until(lambda: _state(bench, replica_id) is ReplicaState.ASLEEP, PATIENCE_S)
    await asyncio.sleep(SETTLE_S)
    asleep = status_of(bench.backend, replica_id)
    began = time.perf_counter()
    assert asleep is not None and await bench.backend.revive(replica_id)
    return {"order_to_ready_ms": (time.perf_counter() - began) * 1e3, "held_mb": asleep.held_bytes / 2**20}


def _state(bench: LocalBench, replica_id: str) -> ReplicaState | None:
    status = status_of(bench.backend, replica_id)
    return None if status is None else status.state


async def measure(runs: int, memory_mb: Callable[[int], tuple[float, float]]) -> dict[str, list[dict[str, float]]]:
    """Returns the runs by what was started. ``memory_mb``: (resident, private) of a process.

    The memory of a replica is that of its model server, 0.3 s after the first start; that of a fork server is taken
    at the end.
    """
    found: dict[str, list[dict[str, float]]] = {"replica, warm": [], "replica, cold": [], "replica, woken": []}
    async with directory() as path:
        write_model(path / "small.onnx")
        bench = LocalBench(path, (TWO_CORES,), fork_servers=True)
        warm, cold = revision(path, is_forked=True), revision(path, is_forked=False)
        await bench.start(warm)
        servers = bench.local.fork_servers
        await bench.until(lambda: all(each.is_ready for each in servers.values()), PATIENCE_S)
        for run in range(runs):
            for name, made in (("warm", warm), ("cold", cold)):
                seconds, server = await _start(bench, made, f"small-{run}-{name}")
                await asyncio.sleep(SETTLE_S)
                resident, private = memory_mb(server)
                one = {"spawn_to_ready_ms": seconds * 1e3, "rss_mb": resident, "private_mb": private}
                found[f"replica, {name}"].append(one)
                if name == "warm":
                    found["replica, woken"].append(await _wake(bench, f"small-{run}-{name}"))
                await bench.backend.remove(f"small-{run}-{name}")
                await bench.until(lambda: not bench.table.children[len(servers) :], PATIENCE_S)
        for name, each in servers.items():
            resident, private = memory_mb(each.pid)
            found[f"fork server {name}"] = [{"rss_mb": resident, "private_mb": private}]
        assert not bench.complaints, bench.complaints
        await bench.close()
    return found
