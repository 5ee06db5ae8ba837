"""A burst is met by idle cores before new replicas, with real processes."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.support.deadline import Patience
from tests.support.live.backends import PHASES, TWO_CORES, LocalBench, directory, status_of
from tests.support.live.deployment import Deployment, deployment
from tests.tidegate.runtime.conftest import write_product
from tidegate.deploy.backend import ResizeRefusedError
from tidegate.function import Function, Protocol, Readiness, Resources, Revision, Server, ServerKind
from tidegate.records.replica_state import ReplicaState

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no process to cores"),
]

BODY = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]})
ONE_PLACE = "accelerators: [{name: cpu, kind: cpu, cores: 1, count: 1, memory: 4Gi}]"
CLIENTS = 16


def server(world: Deployment) -> tuple[str, int]:
    """(id, pid) of the only model server."""
    ((name, pid),) = [(name, pid) for name, pid in world.living().items() if name.endswith(".server")]
    return name, pid


def cores(pid: int) -> int:
    return len(os.sched_getaffinity(pid))


def calls(url: str, until: Callable[[], bool], statuses: list[int]) -> None:
    with httpx.Client(trust_env=False, verify=False, timeout=60.0) as client:
        while not until():
            statuses.append(client.post(url, content=BODY).status_code)


def eventually(is_so: Callable[[], bool], within_s: float, what: str) -> float:
    """The seconds until it was so."""
    began, patience = time.monotonic(), Patience(within_s)
    while not is_so():
        assert not patience.is_over, f"{what}: not within {patience}"
        time.sleep(0.02)
    return time.monotonic() - began


@pytest.mark.early
def test_a_burst_gets_cores_within_a_second_without_a_new_replica_and_gives_them_back(tmp_path: Path) -> None:
    if cores(0) < 2:
        pytest.skip("there is one core")
    write_product(tmp_path / "product.onnx")
    (tmp_path / "accelerators.yaml").write_text(ONE_PLACE)
    with deployment(tmp_path) as world:
        world.up("--accelerators-file", str(tmp_path / "accelerators.yaml"))
        world.cli("deploy", str(tmp_path / "product.onnx"), "--name", "product")
        before = server(world)
        assert cores(before[1]) == 1
        url, statuses, ended = f"{world.gateway}/v2/models/product/infer", list[int](), threading.Event()
        clients = [threading.Thread(target=calls, args=(url, ended.is_set, statuses)) for _ in range(CLIENTS)]
        for each in clients:
            each.start()
        try:
            eventually(lambda: cores(before[1]) == 2, 2.0, "more cores")  # A crowd hastens the round.
            assert server(world) == before, "without a new replica"
        finally:
            ended.set()
            for each in clients:
                each.join()
        assert set(statuses) == {200}
        eventually(lambda: cores(before[1]) == 1, 20.0, "cores back")  # When it has been calm for ten seconds.
        assert server(world) == before
        assert "idle cores of the machine" in world.cli("explain", "product", "--last", "40").stdout


def test_borrowed_cores_go_back_when_a_replica_is_ready_on_them(tmp_path: Path) -> None:
    if cores(0) < 2:
        pytest.skip("there is one core")
    write_product(tmp_path / "product.onnx")
    function = Function(
        name="product",
        server=Server(kind=ServerKind.MODEL, target=str(tmp_path / "product.onnx")),
        protocol=Protocol.V2,
        readiness=Readiness(start_timeout_s=60.0),
        resources=Resources(threads=1),
        workdir=str(tmp_path),
    )
    made, a, b = Revision(function, 1), "product-00001-a", "product-00001-b"

    async def scenario(bench: LocalBench) -> None:
        def has(replica: str, count: int) -> bool:
            status = status_of(bench.backend, replica)
            return status is not None and status.state is ReplicaState.READY and len(status.cores) == count

        await bench.backend.create(a, made, TWO_CORES.name, PHASES)
        await bench.until(lambda: has(a, 1), 60.0)
        status = await bench.backend.resize(a, threads=2)
        assert (len(status.cores), status.borrowed, cores(status.pids[1])) == (2, 1, 2)
        assert (await sample(status.admin))["boost"] == 2
        with pytest.raises(ResizeRefusedError, match="cores of this machine are held by no replica"):
            await bench.backend.resize(a, threads=len(os.sched_getaffinity(0)) + 2)
        await bench.backend.create(b, made, TWO_CORES.name, PHASES)
        await bench.until(lambda: has(b, 1) and has(a, 1), 60.0)
        assert cores(status.pids[1]) == 1 and (await sample(status.admin))["boost"] == 1
        assert not bench.complaints

    async def run() -> None:
        async with directory() as path:
            bench = LocalBench(path, (TWO_CORES,))
            await bench.start()
            try:
                await scenario(bench)
            finally:
                await bench.close()

    asyncio.run(run())


async def sample(admin: str) -> dict[str, int]:
    transport = httpx.AsyncHTTPTransport(uds=admin.removeprefix("unix:"))
    async with httpx.AsyncClient(transport=transport, base_url="http://replica") as client:
        found: dict[str, int] = (await client.get("/sample")).json()
        return found
