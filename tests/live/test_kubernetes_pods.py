"""Replicas as Pods of a real control plane, on a fake node whose Pods are real processes."""

import asyncio
import contextlib
import json
import random
import shlex
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.deadline import Patience
from tests.support.live.backends import MODEL, PHASES, TWO_CORES, revision, status_of
from tests.support.live.control_plane import ControlPlane, write_kubeconfig
from tests.support.live.fake_kubelet import processes_in
from tests.support.live.pods import PodBench, pod_bench
from tidegate.aio.admin.client import fetch
from tidegate.deploy.backend import ResizeRefusedError
from tidegate.deploy.kubernetes.pods.workloads import deployment, disruption_budget, group_name, service
from tidegate.deploy.kubernetes.process.api import KubernetesApi, RefusedError
from tidegate.deploy.kubernetes.resources.admission import epoch_policy
from tidegate.deploy.kubernetes.resources.leases import Candidate, taken
from tidegate.deploy.placement.ledger import Room
from tidegate.function import Function, Revision, Server, ServerKind
from tidegate.records.replica_state import FailureCause, ReplicaState

pytestmark = [pytest.mark.live, pytest.mark.needs(tool="cluster"), pytest.mark.timeout(300)]
A, B = "resnet-00001-aaaaa", "resnet-00001-bbbbb"
Scenario = Callable[[PodBench], Awaitable[None]]


def play(plane: ControlPlane, scenario: Scenario) -> None:
    async def run() -> None:
        async with pod_bench(plane) as bench:
            await scenario(bench)

    asyncio.run(run())


async def ready(bench: PodBench, *ids: str) -> None:
    for each in ids:
        await bench.backend.create(each, revision(), "cpu-1core", PHASES)
    await bench.until(lambda: all(is_state(bench, each, ReplicaState.READY) for each in ids))


def is_state(bench: PodBench, replica_id: str, state: ReplicaState) -> bool:
    found = status_of(bench.backend, replica_id)
    return found is not None and found.state is state


def pods(bench: PodBench) -> str:
    return bench.kubernetes._lifecycle.pods


def test_a_pod_that_others_delete_ends_its_requests_first(plane: ControlPlane) -> None:
    """As a drained node does: the drain begins before any process gets SIGTERM."""

    async def scenario(bench: PodBench) -> None:
        await ready(bench, A)
        reader, writer = await bench.request(A, "GET /hold")
        await bench.hold(A)
        await bench.cluster.delete(f"{pods(bench)}/{A}", grace_s=60)
        await bench.until(lambda: is_state(bench, A, ReplicaState.DRAINING))
        assert not await bench.backend.revive(A), "a Pod that is being deleted cannot be kept"
        await bench.release(A)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.close()
        await bench.until(lambda: not bench.backend.replicas())
        await bench.until(lambda: bench.backend.room(revision())["cpu-1core"].free == 2)
        assert bench.backend.failure("resnet-00001") is None, "nothing broke"

    play(plane, scenario)


def test_the_next_backend_adopts_the_pods_and_deletes_what_nothing_accounts_for(plane: ControlPlane) -> None:
    async def scenario(bench: PodBench) -> None:
        await ready(bench, A, B)
        await bench.kubernetes.close(stop_replicas=False)
        known = {"resnet-00001": revision()}
        later = PodBench(bench.cluster, bench.node, bench.settings, (TWO_CORES,))
        await later.kubernetes.start(known)
        assert {each.id: (each.state, each.adopted) for each in later.backend.replicas()} == {
            A: (ReplicaState.READY, True),
            B: (ReplicaState.READY, True),
        }
        assert later.backend.room(revision()) == {"cpu-1core": Room(free=0, total=2)}
        await later.kubernetes.close(stop_replicas=False)
        last = PodBench(bench.cluster, bench.node, bench.settings, (TWO_CORES,))
        await last.kubernetes.start({})
        assert last.backend.replicas() == ()
        await last.until(lambda: not bench.node.pods)
        await last.close()

    play(plane, scenario)


def test_an_image_that_cannot_be_had_is_the_reason_of_the_failure(plane: ControlPlane) -> None:
    async def scenario(bench: PodBench) -> None:
        function = Function(name="resnet", server=Server(kind=ServerKind.IMAGE, target="registry.example/none:1"))
        await bench.backend.create(A, Revision(function, 1), "cpu-1core", PHASES)
        await bench.until(lambda: is_state(bench, A, ReplicaState.FAILED))
        status = status_of(bench.backend, A)
        assert status is not None
        assert status.cause is FailureCause.START
        assert "ErrImagePull: there is no image registry.example/none:1 here" in (status.reason or "")

    play(plane, scenario)


def test_a_pod_that_no_node_takes_says_so_and_leaves_at_once(plane: ControlPlane) -> None:
    async def scenario(bench: PodBench) -> None:
        huge = revision(memory_bytes=1 << 30)
        await bench.cluster.patch(f"/api/v1/nodes/{bench.node.name}", {"spec": {"unschedulable": True}})
        await bench.backend.create(A, huge, "cpu-1core", PHASES)
        await bench.until(lambda: "no node takes the Pod" in str(getattr(status_of(bench.backend, A), "reason", "")))
        assert is_state(bench, A, ReplicaState.STARTING)
        await bench.backend.remove(A)
        assert bench.backend.replicas() == ()
        await bench.until(lambda: bench.backend.room(huge)["cpu-1core"].free == 2)

    play(plane, scenario)


def test_cores_change_in_place(plane: ControlPlane) -> None:
    async def run() -> None:
        kind = replace(TWO_CORES, name="cpu-2core", cores=2)
        async with pod_bench(plane, [kind]) as bench:
            await bench.backend.create(A, revision(), "cpu-2core", PHASES)
            await bench.until(lambda: is_state(bench, A, ReplicaState.READY))
            for cores in (1, 2):
                assert (await bench.backend.resize(A, threads=cores)).threads == cores
                pod = await bench.cluster.get(f"{pods(bench)}/{A}")
                (server,) = pod["spec"]["containers"]
                assert server["resources"]["limits"]["cpu"] == str(cores)
            with pytest.raises(ResizeRefusedError, match="a unit has 2"):
                await bench.backend.resize(A, threads=3)
            assert is_state(bench, A, ReplicaState.READY)
            await bench.backend.resize(A, threads=1)
            await bench.kubernetes.close(stop_replicas=False)
            later = PodBench(bench.cluster, bench.node, bench.settings, [kind])
            await later.kubernetes.start({"resnet-00001": revision()})
            assert [each.threads for each in later.backend.replicas()] == [1], "as the one before ordered"
            await later.close()

    asyncio.run(run())


def test_a_resize_that_the_node_refuses_is_taken_back(plane: ControlPlane) -> None:
    async def run() -> None:
        kind = replace(TWO_CORES, name="cpu-2core", cores=2)
        async with pod_bench(plane, [kind]) as bench:
            await bench.backend.create(A, revision(), "cpu-2core", PHASES)
            await bench.until(lambda: is_state(bench, A, ReplicaState.READY))
            for reason in ("Deferred", "Infeasible"):
                bench.node.refuses_resize = (reason, "the node has no room")
                with pytest.raises(ResizeRefusedError, match=f"keeps its 2 cores: {reason}: the node has no room"):
                    await bench.backend.resize(A, threads=1)
                assert [each.threads for each in bench.backend.replicas()] == [2]
                (server,) = (await bench.cluster.get(f"{pods(bench)}/{A}"))["spec"]["containers"]
                assert server["resources"]["limits"]["cpu"] == "2", "what was asked is taken back"
            bench.node.refuses_resize = None
            assert (await bench.backend.resize(A, threads=1)).threads == 1

    asyncio.run(run())


def test_credentials_of_a_program_are_renewed_when_they_are_refused(plane: ControlPlane, tmp_path: Path) -> None:
    async def run() -> None:
        program, token = tmp_path / "login", tmp_path / "token"
        answer = (
            '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "%s"}}'
        )
        program.write_text(f"#!/bin/sh\nprintf '{answer}' \"$(cat {token})\"\necho x >> {tmp_path}/runs\n")
        program.chmod(0o755)
        config = tmp_path / "kubeconfig"
        write_kubeconfig(config, plane.url, plane.authority, token="")
        stated = json.loads(config.read_text())
        stated["users"][0]["user"] = {
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": str(program),
                "interactiveMode": "Never",
            }
        }
        config.write_text(json.dumps(stated))
        token.write_text("admin")
        cluster = await KubernetesApi.connect(random.Random(1), config=str(config))
        try:
            await cluster.get("/api/v1/namespaces")
            cluster._client.configuration.api_key = {"BearerToken": "Bearer gone"}  # as if it had expired
            found = await asyncio.gather(*(cluster.get("/api/v1/namespaces") for _ in range(5)))
            assert all(each["items"] for each in found)
            assert len((tmp_path / "runs").read_text().splitlines()) == 2, "once for all calls"
            token.write_text("nonsense")
            cluster._client.configuration.api_key = {"BearerToken": "Bearer gone"}
            with pytest.raises(RefusedError, match="Unauthorized"):
                await cluster.get("/api/v1/namespaces")
        finally:
            await cluster.close()

    asyncio.run(run())


def test_an_order_from_another_machine_needs_the_token(plane: ControlPlane) -> None:
    async def scenario(bench: PodBench) -> None:
        await ready(bench, A)
        status = status_of(bench.backend, A)
        assert status is not None
        reply = await fetch(status.admin, "POST", "/drain", b'{"epoch": 9}')
        assert reply.status == 403
        assert is_state(bench, A, ReplicaState.READY)

    play(plane, scenario)


def test_replicas_serve_while_the_api_server_is_away_and_are_removed_after_it(plane: ControlPlane) -> None:
    async def scenario(bench: PodBench) -> None:
        await ready(bench, A)
        plane.kill("kube-apiserver")
        for _ in range(20):
            reader, writer = await bench.request(A, "GET /anything")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            writer.close()
        await bench.backend.remove(A)
        await bench.until(lambda: not bench.backend.replicas())
        await asyncio.to_thread(plane.start_api_server)
        await bench.until(lambda: bench.backend.room(revision())["cpu-1core"].free == 2)
        await bench.until(lambda: not bench.node.pods)
        await ready(bench, B)

    play(plane, scenario)


def test_a_group_runs_as_a_deployment_whose_addresses_are_listed_early(plane: ControlPlane, tmp_path: Path) -> None:
    go = tmp_path / "go"
    serve = shlex.join((sys.executable, MODEL, "--listen", "127.0.0.1:{port}"))
    held = ("/bin/sh", "-c", f"until [ -e {go} ]; do sleep 0.05; done; exec {serve}")

    async def scenario(bench: PodBench) -> None:
        settings, function = bench.settings, revision(command=held, start_timeout_s=300.0)
        space, name = settings.namespace, group_name(function, "cpu-1core")
        wanted = deployment(function, TWO_CORES, settings)
        wanted["spec"]["replicas"] = 2
        wanted["spec"]["selector"]["matchLabels"] = {"app": name}  # not those that the backend of this bench deletes
        wanted["spec"]["template"]["metadata"]["labels"] = {"app": name}
        await bench.cluster.create(f"/apis/apps/v1/namespaces/{space}/deployments", wanted)
        listed = service(function, TWO_CORES.name, settings)
        listed["spec"]["selector"] = {"app": name}
        # Nor is the Service: the backend may look for what it has in the cluster only after this.
        del listed["metadata"]["labels"]
        await bench.cluster.create(f"/api/v1/namespaces/{space}/services", listed)
        budget = disruption_budget(function, TWO_CORES.name, settings)
        del budget["metadata"]["labels"]
        await bench.cluster.create(f"/apis/policy/v1/namespaces/{space}/poddisruptionbudgets", budget)

        async def listed_as(is_serving: bool) -> list[str]:
            """Waits until two addresses are listed as serving, or as not serving."""
            patience, found = Patience(60.0), dict[str, bool]()
            while list(found.values()) != [is_serving] * 2:
                assert not patience.is_over, f"waited {patience} for two addresses, serving {is_serving}: {found}"
                await asyncio.sleep(0.05)
                slices = await bench.cluster.get(f"/apis/discovery.k8s.io/v1/namespaces/{space}/endpointslices")
                ends = [end for each in slices["items"] for end in each["endpoints"] or ()]
                found = {end["addresses"][0]: end["conditions"]["serving"] for end in ends}
            return list(found)

        early = await listed_as(is_serving=False)
        go.touch()
        assert sorted(await listed_as(is_serving=True)) == sorted(early), "listed before they were ready"
        for address in early:
            assert (await fetch(f"{address}:8012", "GET", "/anything")).status == 200
        await bench.cluster.delete(f"/apis/apps/v1/namespaces/{space}/deployments/{name}")
        await bench.until(lambda: not bench.node.pods)

    play(plane, scenario)


def test_the_api_server_refuses_the_pods_of_a_leader_that_was_deposed(plane: ControlPlane) -> None:
    async def scenario(bench: PodBench) -> None:
        for each in epoch_policy():
            plural = "validatingadmissionpolic" + ("ies" if each["kind"].endswith("Policy") else "ybindings")
            path = f"/apis/{each['apiVersion']}/{plural}/{each['metadata']['name']}"
            await bench.cluster.apply(path, each, "tests")
        space = bench.settings.namespace
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases"
        later = Candidate(identity="later", deployment=bench.settings.deployment)
        await ready(bench, A)  # without a Lease nothing is refused
        await bench.cluster.create(leases, taken(None, later, bench.settings.epoch + 1, "2026-01-01T00:00:00.000000Z"))
        patience = Patience(30.0)
        while True:  # A policy holds a moment after it was made.
            await bench.backend.create(B, revision(), "cpu-1core", PHASES)
            reason = str(getattr(status_of(bench.backend, B), "reason", ""))
            await bench.backend.remove(B)
            if "made by a control process that no longer leads" in reason:
                break
            assert not patience.is_over, reason
            await bench.until(lambda: bench.backend.room(revision())["cpu-1core"].free == 1)
        assert is_state(bench, A, ReplicaState.READY), "what runs goes on"

    play(plane, scenario)


def test_a_drained_node_takes_one_replica_of_a_group_at_a_time(plane: ControlPlane) -> None:
    """The disruption budget follows the size of the group; its Service lists the addresses. While no control process
    replaces the first one, the second one stays."""

    async def scenario(bench: PodBench) -> None:
        space, name = bench.settings.namespace, group_name(revision(), "cpu-1core")
        budget = f"/apis/policy/v1/namespaces/{space}/poddisruptionbudgets/{name}"

        async def allowed(count: int) -> None:
            patience = Patience(30.0)
            while True:
                with contextlib.suppress(RefusedError):
                    status = (await bench.cluster.get(budget)).get("status", {})
                    if (status.get("disruptionsAllowed"), status.get("currentHealthy")) == (1, count):
                        return
                assert not patience.is_over, bench.complaints
                await asyncio.sleep(0.1)

        async def evict(replica: str) -> None:
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": replica, "namespace": space}}
            await bench.cluster.create(f"{pods(bench)}/{replica}/eviction", body)

        await ready(bench, A, B)
        await allowed(2)
        await bench.kubernetes.close(stop_replicas=False)
        await evict(A)
        with pytest.raises(RefusedError, match="disruption budget"):
            await evict(B)
        service = await bench.cluster.get(f"/api/v1/namespaces/{space}/services/{name}")
        assert service["spec"]["clusterIP"] == "None"
        later = PodBench(bench.cluster, bench.node, bench.settings, (TWO_CORES,))
        await later.kubernetes.start({"resnet-00001": revision()})
        await later.until(lambda: not is_state(later, A, ReplicaState.READY))
        await later.backend.remove(B)
        await later.until(lambda: not bench.node.pods)
        patience = Patience(30.0)
        while (await bench.cluster.get(f"/apis/policy/v1/namespaces/{space}/poddisruptionbudgets"))["items"]:
            assert not patience.is_over, "its objects are still there"
            await asyncio.sleep(0.1)
        await later.close()

    play(plane, scenario)


def test_a_pod_that_has_ended_leaves_no_process(plane: ControlPlane) -> None:
    """Whatever its containers have started, in sessions of their own too: the node of these tests ends it, as a
    kubelet does."""

    async def scenario(bench: PodBench) -> None:
        await bench.backend.create(A, revision(arguments=("--daemon",)), "cpu-1core", PHASES)
        await bench.until(lambda: is_state(bench, A, ReplicaState.READY))
        pids = processes_in(bench.node.pods[A].namespace)
        assert len(pids) == 3, "the queue_proxy, the model server, and what that has started"
        await bench.backend.remove(A)
        await bench.until(lambda: not bench.node.pods)
        assert not any(map(runs, pids))

    play(plane, scenario)


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie, which waits for its parent alone."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_pod_waits_for_the_claim_that_it_mounts(plane: ControlPlane) -> None:
    async def scenario(bench: PodBench) -> None:
        plain = revision()
        mounting = Revision(replace(plain.function, volume_mounts="models:/models:ro"), 1)
        await bench.backend.create(A, mounting, "cpu-1core", PHASES)
        missing = 'persistentvolumeclaim "models" not found'
        await bench.until(lambda: missing in str(getattr(status_of(bench.backend, A), "reason", "")))
        space = bench.settings.namespace
        held = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
        volume = {
            "metadata": {"name": space},
            "spec": held
            | {
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": "/nothing"},
                "claimRef": {"namespace": space, "name": "models"},
            },
        }
        claim = {
            "metadata": {"name": "models"},
            "spec": held | {"volumeName": space, "resources": {"requests": {"storage": "1Gi"}}},
        }
        await bench.cluster.create("/api/v1/persistentvolumes", volume)
        await bench.cluster.create(f"/api/v1/namespaces/{space}/persistentvolumeclaims", claim)
        await bench.until(lambda: is_state(bench, A, ReplicaState.READY))
        pod = await bench.cluster.get(f"{pods(bench)}/{A}")
        (server,) = pod["spec"]["containers"]
        assert [each for each in server["volumeMounts"] if each["mountPath"] == "/models"]
        await bench.cluster.delete(f"/api/v1/persistentvolumes/{space}")

    play(plane, scenario)
