"""Many Functions in a real API server: time until a restarted process has them, memory, calls.

    KUBEBUILDER_ASSETS=DIR python -m benchmarks.kubernetes.functions [--functions 2000] [--rest 30]

Functions have no replicas. ``first_s``: from the start of ``tidegate up`` until each Function has its status;
``restart_s``: the same after ``kill -9`` and a change of each thirtieth; ``rss_mb``: of the control process afterwards;
``rest_calls_per_s``: calls of its account, of which the API server keeps the audit log; ``rest_writes``: those that
write, without the renewals of its Lease. One JSON line.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.support.live.cluster import CONTROL, install_account, install_resources
from tests.support.live.control_plane import ControlPlane, control_plane, write_kubeconfig
from tests.support.live.deployment import Deployment, deployment, places
from tests.support.live.pods import SETTINGS, cluster_of, make_namespace
from tidegate.deploy.kubernetes.process.api import KubernetesApi, Object

AT_ONCE = 16
READS = ("get", "list", "watch")
LIMIT_S = 600.0


def function(number: int, handler: str) -> Object:
    return {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "Function",
        "metadata": {"name": f"f{number:05}", "annotations": {"tidegate.dev/initial-scale": "0"}},
        "spec": {"server": {"handler": handler}},
    }


async def make(api: KubernetesApi, path: str, count: int, handler: str) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with room:
            await api.create(path, function(number, handler))

    await asyncio.gather(*map(one, range(count)))


async def settled(api: KubernetesApi, path: str, count: int, began: float) -> float:
    """Returns the seconds from ``began`` until every object's newest generation is ready."""
    while True:
        listed = (await api.get(path))["items"]
        ready = [each for each in listed if is_ready(each)]
        if len(ready) == count:
            return time.monotonic() - began
        if time.monotonic() - began > LIMIT_S:
            raise SystemExit(f"{len(ready)} of {count} Functions are ready after {LIMIT_S:g} s")
        await asyncio.sleep(0.25)


def is_ready(each: Object) -> bool:
    status = each.get("status", {})
    generation = each["metadata"]["generation"]
    found = [one for one in status.get("conditions", []) if one["type"] == "Ready" and one["status"] == "True"]
    return bool(found) and status.get("observedGeneration") == generation


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(plane: ControlPlane, folder: Path, count: int, rest_s: float) -> dict[str, float]:
    async with cluster_of(plane) as api:
        await install_resources(api)
        space = await make_namespace(api)
        write_kubeconfig(folder / "kubeconfig", plane.url, plane.authority, token=await install_account(api, space))
        os.environ["KUBECONFIG"] = str(folder / "kubeconfig")
        flags = ("--kubernetes-image", "tidegate:test", "--kubernetes-namespace", space)
        with deployment(folder, *flags, "--kubernetes-python", SETTINGS.python, *places(folder, 2)) as live:
            path = f"/apis/tidegate.dev/v1alpha1/namespaces/{space}/functions"
            await make(api, path, count, live.handler())
            first_s, _ = await up(api, live, path, count)
            live.kill()
            for number in range(0, count, 30):
                await api.patch(f"{path}/f{number:05}", {"spec": {"timeout": "1m"}})
            restart_s, pid = await up(api, live, path, count)
            await asyncio.sleep(5.0)
            before, burnt = len(plane.calls(f"{space}:{CONTROL}")), processor_s(pid)
            await asyncio.sleep(rest_s)
            calls = plane.calls(f"{space}:{CONTROL}")[before:]
            return {
                "functions": count,
                "first_s": round(first_s, 1),
                "restart_s": round(restart_s, 1),
                "rss_mb": round(memory_mb(pid)),
                "rest_calls_per_s": round(len(calls) / rest_s, 2),
                "rest_writes": sum(each.verb not in READS and each.resource != "leases" for each in calls),
                "rest_cpu": round((processor_s(pid) - burnt) / rest_s, 3),
            }


async def up(api: KubernetesApi, live: Deployment, path: str, count: int) -> tuple[float, int]:
    began = time.monotonic()
    holder = await asyncio.to_thread(live.up, as_program=True)
    return await settled(api, path, count, began), holder.pid


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--functions", type=int, default=2000)
    parser.add_argument("--rest", type=float, default=30.0, metavar="SECONDS")
    arguments = parser.parse_args()
    with control_plane() as plane, tempfile.TemporaryDirectory(prefix="tgf") as folder:
        found = asyncio.run(measure(plane, Path(folder), arguments.functions, arguments.rest))
    sys.stdout.write(json.dumps({"benchmark": "kubernetes_functions", **found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
