"""Many replicas in a real API server, up and down, with a replaced process in between: no Pod twice, none left.

    KUBEBUILDER_ASSETS=DIR python -m benchmarks.kubernetes.replicas [--replicas 400] [--groups 8]

The backend of the control process makes the Pods; their node sets their status and answers as their queue_proxies,
without processes. When half of the Pods are there, the backend is cut off amid its orders, and the next one adopts what
it finds and orders the rest. ``up_s``: from the first order until all are ready; ``down_s``: from the first removal
until none is there; ``made``: Pods in all, of which ``adopted`` by the second one; ``most``: Pods at once. One JSON
line. It ends with an error if a group has more or fewer Pods than were ordered, if two Pods had one name, or if a Pod,
Service, budget or taken place is left. As root.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.support.deadline import Patience
from tests.support.live.backends import PHASES, TWO_CORES, revision
from tests.support.live.bare_node import BareNode, bare_node
from tests.support.live.control_plane import ControlPlane, control_plane
from tests.support.live.pods import SETTINGS, TOKEN, cluster_of, make_namespace
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.clock import LiveClock
from tidegate.deploy.kubernetes.pods.template import GROUP, REVISION, PodSettings
from tidegate.deploy.kubernetes.process.api import KubernetesApi
from tidegate.deploy.kubernetes.process.backend import KubernetesBackend
from tidegate.deploy.placement.ledger import Accelerator
from tidegate.function import Revision
from tidegate.records.replica_state import ReplicaState

AT_ONCE = 16
LIMIT_S = 60.0


async def until(condition: Callable[[], bool], bench: KubernetesBackend, node: BareNode, what: str) -> None:
    patience = Patience(LIMIT_S)
    while not condition():
        if patience.is_over:
            states = Counter(str(status.state) for status in bench.replicas())
            raise SystemExit(f"not {what}: {node.count} Pods, {states}, {node.faults[:3]}")
        await asyncio.sleep(0.01)


async def names(api: KubernetesApi, space: str, kind: str) -> list[str]:
    """Names of the objects of a kind that belong to groups."""
    group = "apis/policy/v1" if kind == "poddisruptionbudgets" else "api/v1"
    listed = await api.get(f"/{group}/namespaces/{space}/{kind}")
    return [each["metadata"]["name"] for each in listed["items"] if "labels" in each["metadata"]]


async def by_group(api: KubernetesApi, space: str) -> Counter[str]:
    """Pods of each group in the API server."""
    listed = (await api.get(f"/api/v1/namespaces/{space}/pods"))["items"]
    return Counter(f"{each['metadata']['labels'][REVISION]} {each['metadata']['labels'][GROUP]}" for each in listed)


async def measure(plane: ControlPlane, replicas: int, groups: int) -> dict[str, float]:
    """Scales up and down once. Raises SystemExit with what is wrong."""
    each = replicas // groups
    kind = replace(TWO_CORES, count=each * groups)
    revisions = {f"m{number}-00001": revision(f"m{number}") for number in range(groups)}
    async with cluster_of(plane) as api, bare_node(api) as node:
        settings = replace(SETTINGS, namespace=await make_namespace(api), epoch=1)
        space = settings.namespace
        first = backend(api, settings, kind, node.faults)
        await first.start({})
        began = time.monotonic()
        tasks = TaskOwner("orders", lambda name, error: node.faults.append(f"{name}: {error!r}"))
        tasks.spawn(order(first, revisions, dict.fromkeys(revisions, each), "a"), name="orders")
        await until(lambda: node.count >= each * groups // 2, first, node, "half of the Pods there")
        await tasks.close()
        await first.close(stop_replicas=False)
        bench = backend(api, replace(settings, epoch=2), kind, node.faults)
        await bench.start(revisions)
        adopted = Counter(status.revision for status in bench.replicas())
        await order(bench, revisions, {name: each - adopted[name] for name in revisions}, "b")
        await until(lambda: ready(bench) == each * groups == node.count, bench, node, "all ready")
        up_s = time.monotonic() - began
        await budgets(api, space, groups)
        counts = await by_group(api, space)
        if sorted(counts.values()) != [each] * groups or node.most > each * groups + AT_ONCE:
            raise SystemExit(f"Pods by group: {counts}; at most {node.most} at once")
        if len(set(node.made.values())) != len(node.made):
            raise SystemExit(f"names that two Pods had: {Counter(node.made.values()).most_common(3)}")
        began = time.monotonic()
        for status in bench.replicas():
            await bench.remove(status.id)
        await until(lambda: not node.count and not bench.replicas(), bench, node, "all gone")
        down_s = time.monotonic() - began
        await until(lambda: not bench._registry.ending, bench, node, "all released")
        await nothing_left(api, space)
        free = bench.room(next(iter(revisions.values())))[kind.name].free
        if free != each * groups:
            raise SystemExit(f"{free} of {each * groups} places are free")
        await bench.close(stop_replicas=False)
        await api.delete(f"/api/v1/namespaces/{space}")
        found = {"replicas": each * groups, "groups": groups, "up_s": round(up_s, 1), "down_s": round(down_s, 1)}
        return {**found, "adopted": adopted.total(), "made": len(node.made), "most": node.most}


async def budgets(api: KubernetesApi, space: str, groups: int) -> None:
    """Waits until each group has its budget."""
    patience = Patience(LIMIT_S)
    while len(found := await names(api, space, "poddisruptionbudgets")) != groups:
        if patience.is_over:
            raise SystemExit(f"budgets: {found}")


async def nothing_left(api: KubernetesApi, space: str) -> None:
    """Waits until there is no Pod, Service and budget of a group."""
    patience = Patience(LIMIT_S)
    while left := [
        *await by_group(api, space),
        *await names(api, space, "services"),
        *await names(api, space, "poddisruptionbudgets"),
    ]:
        if patience.is_over:
            raise SystemExit(f"left behind: {left}")
        await asyncio.sleep(0.1)


def backend(api: KubernetesApi, settings: PodSettings, kind: Accelerator, faults: list[str]) -> KubernetesBackend:
    return KubernetesBackend(
        api=api,
        settings=settings,
        token=TOKEN,
        accelerators=[kind],
        clock=LiveClock(),
        rng=random.Random(1),
        warn=faults.append,
        note=lambda subject, text: faults.append(f"{subject}: {text}"),
    )


async def order(
    bench: KubernetesBackend, revisions: Mapping[str, Revision], counts: Mapping[str, int], mark: str
) -> None:
    """Orders so many replicas of each revision, some at once, the groups in turn."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, name: str) -> None:
        async with room:
            await bench.create(f"{name}-{mark}{number:04}", revisions[name], TWO_CORES.name, PHASES)

    wanted = sorted((number, name) for name, count in counts.items() for number in range(count))
    await asyncio.gather(*(one(*each) for each in wanted))


def ready(bench: KubernetesBackend) -> int:
    return sum(status.state is ReplicaState.READY for status in bench.replicas())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicas", type=int, default=400)
    parser.add_argument("--groups", type=int, default=8)
    arguments = parser.parse_args()
    with control_plane() as plane:
        found = asyncio.run(measure(plane, arguments.replicas, arguments.groups))
    sys.stdout.write(json.dumps({"benchmark": "kubernetes_replicas", **found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
