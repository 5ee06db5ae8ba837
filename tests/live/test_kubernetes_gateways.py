"""Gateways apart from their control process, a Redis, a real control plane: one Pod serves all of them, also while the
control process is replaced."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.support.live.cluster import Node, namespace_of
from tests.support.live.control_plane import ControlPlane
from tests.support.live.deployment import Deployment
from tests.support.live.journaled import JournaledLoad, write_server
from tests.support.live.pods import SETTINGS
from tests.support.live.redis_server import RedisServer
from tests.support.live.remote_gateway import RemoteGateway, remote_gateways
from tidegate.deploy.kubernetes.pods.template import FUNCTION

pytestmark = [
    pytest.mark.live,
    pytest.mark.needs(tool="cluster"),
    pytest.mark.needs(tool="redis"),
    pytest.mark.timeout(300),
]
NEXT = "tidegate:next"
STORE = ("--store-name", "blue", "--gateway-workers", "0")


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


def test_an_upgrade_of_the_control_process_loses_no_request_of_a_gateway(
    live: Deployment, node: Node, tmp_path: Path
) -> None:
    """As ``helm upgrade`` does it with gateways of their own: the old process ends, then the new one starts."""
    (tmp_path / "redis").mkdir()
    redis = RedisServer(tmp_path / "redis")
    server = write_server(tmp_path)
    try:
        live.up("--store-url", redis.url, *STORE, as_program=True)
        with remote_gateways(live, redis.port, 1) as (gateway,), ThreadPoolExecutor(1) as aside:
            live.deploy(server, "--min-scale", "1", "--max-scale", "1")
            live.deploy(live.handler(name="asleep"), "--initial-scale", "0", name="asleep")
            live.until(partial(_knows, gateway, "asleep"), 20.0, "the gateway to know the functions")
            live.until(lambda: gateway.infer(timeout_s=60.0).status_code in (200, 400), 60.0, "the first answer")
            before = list(node.pods)
            with JournaledLoad(gateway.url or "", tmp_path).running() as load:
                grows(load, live)
                assert live.stop() == 0
                grows(load, live)
                cold = aside.submit(gateway.infer, "asleep", 60.0)
                grows(load, live)
                assert not cold.done(), "a function at zero waits for the next process"
                flags = [NEXT if each == SETTINGS.image else each for each in live.flags]
                live.flags = tuple(flags)
                live.up("--store-url", redis.url, *STORE, as_program=True)
                grows(load, live)
                assert cold.result(60.0).status_code == 200
                assert set(before) <= set(node.pods), "the replicas stay, with the image that they have"
                assert images(live, node, "echo") == {SETTINGS.image}
                assert images(live, node, "asleep") == {NEXT}, "new ones have the new image"
                grows(load, live)
            load.check()
    finally:
        redis.kill()


def grows(load: JournaledLoad, live: Deployment, more: int = 20) -> None:
    before = load.count()
    live.until(lambda: load.count() >= before + more, 60.0, f"{more} more answers; lost: {load.lost}")


def images(live: Deployment, node: Node, function: str) -> set[str]:
    """Images of the queue_proxies of a function's Pods."""
    path = f"/api/v1/namespaces/{namespace_of(live)}/pods"
    listed = node.do(lambda api: api.get(path, labelSelector=f"{FUNCTION}={function}"))["items"]
    return {each["spec"]["initContainers"][0]["image"] for each in listed}


def _knows(gateway: RemoteGateway, name: str = "echo") -> bool:
    answer = httpx.get(f"{gateway.url}/v2/models/{name}/ready", timeout=20.0, trust_env=False)
    return answer.status_code == 200
