"""How early a watch of Pods, and one of EndpointSlices, show a Pod's address: ``python -m benchmarks.endpoints``.

Needs the binaries of a control plane in ``KUBEBUILDER_ASSETS`` and the Kubernetes client. Pods are bound to a node that
is not there; the address is written into their status, as a kubelet does it, and a headless Service with
``publishNotReadyAddresses`` selects them. Both watches begin before. Times are from the moment before the write.
"""

import argparse
import asyncio
import statistics
import sys
from time import monotonic
from typing import Any

from tests.support.live.control_plane import control_plane
from tests.support.live.pods import cluster_of, make_namespace
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.deploy.kubernetes.process.api import KubernetesApi

LABELS = {"app": "measured"}


def _pod(name: str) -> dict[str, Any]:
    secure = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
    container = {
        "name": "main",
        "image": "none",
        "securityContext": {**secure, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": LABELS},
        "spec": {"nodeName": "nowhere", "containers": [container], "terminationGracePeriodSeconds": 0},
    }


_SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "measured", "labels": LABELS},
    "spec": {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": LABELS,
        "ports": [{"name": "http", "port": 8012}],
    },
}


async def _measure(api: KubernetesApi, count: int, at_once: int) -> tuple[list[float], list[float]]:
    space = await make_namespace(api)
    await api.create(f"/api/v1/namespaces/{space}/services", _SERVICE)
    pods: dict[str, float] = {}
    slices: dict[str, float] = {}
    news = asyncio.Event()

    async def watch_pods() -> None:
        async for kind, pod in api.follow(f"/api/v1/namespaces/{space}/pods", "app=measured"):
            if kind == "PRESENT" and (address := pod.get("status", {}).get("podIP")):
                pods.setdefault(address, monotonic())
                news.set()

    async def watch_slices() -> None:
        path = f"/apis/discovery.k8s.io/v1/namespaces/{space}/endpointslices"
        async for kind, found in api.follow(path, "app=measured"):
            for endpoint in (found.get("endpoints") or ()) if kind == "PRESENT" else ():
                slices.setdefault(endpoint["addresses"][0], monotonic())
                news.set()

    owner = TaskOwner("watches")
    owner.spawn(watch_pods(), name="pods")
    owner.spawn(watch_slices(), name="slices")
    began: dict[str, float] = {}
    for start in range(0, count, at_once):
        numbers = range(start, min(count, start + at_once))
        for number in numbers:
            await api.create(f"/api/v1/namespaces/{space}/pods", _pod(f"p{number}"))

        async def give(number: int) -> None:
            address = f"10.9.{number // 250}.{number % 250 + 1}"
            began[address] = monotonic()
            status = {"status": {"phase": "Pending", "podIP": address, "podIPs": [{"ip": address}]}}
            await api.patch(f"/api/v1/namespaces/{space}/pods/p{number}/status", status)

        await asyncio.gather(*map(give, numbers))
        while not (began.keys() <= pods.keys() and began.keys() <= slices.keys()):
            news.clear()
            await news.wait()
    await owner.close()
    await api.delete(f"/api/v1/namespaces/{space}")
    return tuple([1e3 * (seen[each] - at) for each, at in began.items()] for seen in (pods, slices))  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=40)
    parser.add_argument("--at-once", type=int, default=1)
    given = parser.parse_args()

    async def run() -> None:
        with control_plane() as plane:
            async with cluster_of(plane) as api:
                for name, times in zip(
                    ("Pods", "EndpointSlices"), await _measure(api, given.pods, given.at_once), strict=True
                ):
                    parts = statistics.quantiles(times, n=20)
                    sys.stdout.write(f"watch of {name}: p50 {parts[9]:.0f} ms, p95 {parts[18]:.0f} ms\n")

    asyncio.run(run())


if __name__ == "__main__":
    main()
