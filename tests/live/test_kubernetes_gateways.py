"""Three gateways, a Redis and a control process over a real control plane: one Pod serves all of them."""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.support.live.cluster import Node, control_process
from tests.support.live.control_plane import ControlPlane, control_plane
from tests.support.live.deployment import Deployment
from tests.support.live.redis_server import RedisServer
from tests.support.live.remote_gateway import RemoteGateway, remote_gateways

pytestmark = [
    pytest.mark.live,
    pytest.mark.needs(tool="cluster"),
    pytest.mark.needs(tool="redis"),
    pytest.mark.timeout(300),
]
STORE = ("--store-name", "blue", "--gateway-workers", "0")


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane() as found:
        yield found


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> Iterator[Node]:
    with Node(plane).running() as found:
        yield found


@pytest.fixture
def live(plane: ControlPlane, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    with control_process(plane, node, tmp_path) as found:
        monkeypatch.setenv("KUBECONFIG", str(found.folder / "kubeconfig"))
        yield found


def statuses(gateways: list[RemoteGateway], count: int) -> list[int]:
    """Status codes of so many requests at each gateway, a few at a time."""
    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(lambda each: each.infer(timeout_s=60.0).status_code, gateways * count))


def test_three_gateways_wake_a_pod_and_serve_while_the_cluster_is_away(
    live: Deployment, node: Node, plane: ControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "redis").mkdir()
    redis = RedisServer(tmp_path / "redis")
    try:
        live.up("--store-url", redis.url, *STORE, as_program=True)
        with remote_gateways(live, redis.port, 3) as gateways:
            live.deploy(live.handler(), "--scale-to-zero-after", "5m", "--max-scale", "1", "--initial-scale", "0")
            for each in gateways:  # A function that it does not know is a 404.
                live.until(partial(_knows, each), 20.0, f"{each.name} to know the function")
            began = time.monotonic()
            assert gateways[1].infer(timeout_s=60.0).status_code == 200
            sys.stdout.write(f"\nfrom zero through a remote gateway: {time.monotonic() - began:.2f} s\n")
            assert statuses(gateways, 10) == [200] * 30
            assert len(node.pods) == 1
            plane.kill("kube-apiserver")
            redis.kill()
            try:
                assert statuses(gateways, 20) == [200] * 60
            finally:
                plane.start_api_server()
                redis.start()
            assert statuses(gateways, 5) == [200] * 15
            assert len(node.pods) == 1
    finally:
        redis.kill()


def _knows(gateway: RemoteGateway) -> bool:
    answer = httpx.get(f"{gateway.url}/v2/models/echo/ready", timeout=20.0, trust_env=False)
    return answer.status_code == 200
