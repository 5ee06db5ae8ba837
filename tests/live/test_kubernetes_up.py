"""``tidegate up`` over a real control plane: from zero and back with real requests, by the rights of its account."""

import asyncio
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live.cluster import CONTROL, Node, install_resources, namespace_of
from tests.support.live.control_plane import Call, ControlPlane
from tests.support.live.deployment import REQUEST, Deployment
from tidegate.clock import wall
from tidegate.deploy.kubernetes.pods.template import EPOCH
from tidegate.deploy.kubernetes.process.api import Object

pytestmark = [pytest.mark.live, pytest.mark.needs(tool="cluster"), pytest.mark.timeout(300)]
CYCLES, CROWD = 10, 500


def test_a_function_goes_from_zero_to_a_pod_and_back_and_loses_nothing(
    live: Deployment, node: Node, plane: ControlPlane
) -> None:
    live.up(as_program=True)
    live.deploy(live.handler(), "--scale-to-zero-after", "1s", "--max-scale", "1", "--initial-scale", "0")
    for _ in range(CYCLES):
        began = wall()
        reply = live.infer(timeout=60.0)
        assert (reply.status_code, reply.json()["outputs"][0]["data"]) == (200, [2, 4])
        took_s = wall() - began
        (made,) = (each.ended_at for each in orders_of_pods(live, plane) if each.ended_at > began)
        timing = reply.headers["server-timing"]
        print(f"cold start {took_s:.3f} s, its Pod there after {made - began:.3f} s; {timing}")  # noqa: T201
        assert all(live.infer().status_code == 200 for _ in range(20))
        assert len(node.pods) == 1
        live.until(lambda: not node.pods, 60.0, "no Pod")
    assert node.faults == []


def test_a_crowd_at_zero_wakes_one_replica(live: Deployment, node: Node, plane: ControlPlane, tmp_path: Path) -> None:
    """However many wait: a further one is ordered by the policy alone, once the first one starts."""
    go = tmp_path / "go"
    live.up(as_program=True)
    live.deploy(live.handler(load_until=go), "--max-scale", "2", "--initial-scale", "0")
    url = f"{live.gateway}/v2/models/echo/infer"

    async def crowd() -> list[int]:
        limits = httpx.Limits(max_connections=CROWD)
        async with httpx.AsyncClient(trust_env=False, timeout=120.0, limits=limits) as client:
            replies = await asyncio.gather(*(client.post(url, json=REQUEST) for _ in range(CROWD)))
            return [each.status_code for each in replies]

    with ThreadPoolExecutor(1) as aside:
        answers = aside.submit(asyncio.run, crowd())
        try:
            live.until(lambda: live.status("echo")["traffic"]["waiting"] == CROWD, 60.0, "all to wait")
        finally:
            go.touch()
        assert answers.result(120.0) == [200] * CROWD
    made = orders_of_pods(live, plane)
    decisions = live.ask("explain", "echo", "--last", "50")["decisions"]
    woken, *later = [each for each in decisions if each["desired"]]
    by_policy = [(round(each["at"] - woken["at"], 2), each["desired"]) for each in later]
    print(f"{CROWD} waited: {woken['desired']} replica by the signal, (s, replicas) by the policy: {by_policy}")  # noqa: T201
    assert [each["code"] for each in woken["reasons"] if each["code"] == "activation"]
    assert woken["desired"] == 1
    assert 1 <= len(made) <= max([1, *(count for _, count in by_policy)]), "no Pod but those that were decided"
    assert node.faults == []


def orders_of_pods(live: Deployment, plane: ControlPlane) -> list[Call]:
    """The creations of Pods by the control process, by the API server's audit log."""
    calls = plane.calls(f"{namespace_of(live)}:{CONTROL}")
    return [each for each in calls if (each.verb, each.resource) == ("create", "pods")]


def test_a_function_of_the_cluster_is_deployed_reported_changed_and_deleted(live: Deployment, node: Node) -> None:
    space = namespace_of(live)
    path = f"/apis/tidegate.dev/v1alpha1/namespaces/{space}/functions"
    node.do(install_resources)
    live.up(as_program=True)
    body: dict[str, Any] = {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "Function",
        "metadata": {"name": "echo", "annotations": {"tidegate.dev/min-scale": "1", "other.dev/note": "kept"}},
        "spec": {"server": {"handler": live.handler()}},
    }

    def ready() -> dict[str, Any]:
        seen = node.do(lambda api: api.get(f"{path}/echo"))
        found: dict[str, Any] = next(iter(seen.get("status", {}).get("conditions", [{}])))
        return {**found, **seen.get("status", {})}

    node.do(lambda api: api.create(path, body))
    live.until(lambda: ready().get("readyReplicas") == 1, 60.0, "the status to say one replica")
    assert (ready()["status"], ready()["reason"], ready()["revision"]) == ("True", "Ready", "echo-00001")
    assert live.infer().status_code == 200
    spec = {"accelerators": ["h100"]}
    node.do(lambda api: api.patch(f"{path}/echo", {"spec": spec}))
    live.until(lambda: ready()["status"] == "False", 30.0, "the change to be refused")
    assert ready()["reason"] == "Refused"
    assert "h100" in ready()["message"]
    assert live.infer().status_code == 200, "what was there goes on"
    node.do(lambda api: api.patch(f"{path}/echo", {"spec": {"accelerators": None, "timeout": "1m"}}))
    live.until(lambda: ready()["revision"] == "echo-00002", 60.0, "the next revision")
    node.do(lambda api: api.delete(f"{path}/echo"))
    live.until(lambda: live.infer().status_code == 404, 30.0, "the function to be deleted")
    live.until(lambda: not node.pods, 30.0, "no Pod")


def doctor(live: Deployment, space: str, code: int, config: Path | None = None) -> dict[str, str]:
    """The verdicts of ``tidegate doctor`` by what was looked at, after its exit with this code."""
    words = ("doctor", "--context", "tests", "--namespace", space, "--json")
    command = [sys.executable, "-m", "tidegate.control.cli", *words]
    env = {**os.environ, "KUBECONFIG": str(config or live.folder / "kubeconfig")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return {each["check"]: f"{each['verdict']}: {each['text']}" for each in json.loads(done.stdout)}


def test_doctor_says_what_a_cluster_lacks(live: Deployment, node: Node) -> None:
    space = namespace_of(live)
    node.do(install_resources)
    found = doctor(live, space, 0)
    assert found["API server"].startswith("ok: Kubernetes v1.")
    assert found["rights"] == f"ok: all that are needed in namespace {space}"
    assert found["Pods"].startswith("ok: a replica would be accepted")
    for subject in ("policies", "account tidegate", "Pod Security", "GPUs"):
        assert found[subject].startswith("note: not seen: "), "an administrator sees more"
    found = doctor(live, "default", 1)
    assert "this account may not get pods" in found["rights"]
    assert found["Pods"].startswith("bad: ")


def test_doctor_shows_an_administrator_what_the_account_and_the_namespace_lack(
    live: Deployment, node: Node, plane: ControlPlane
) -> None:
    space, admin = namespace_of(live), plane.kubeconfig
    node.do(install_resources)
    found = doctor(live, space, 0, admin)
    assert found["policies"].startswith("ok: all ")
    assert found["account tidegate"] == f"ok: has all rights that are needed in namespace {space}"
    assert found["Pod Security"] == f"ok: namespace {space} takes restricted Pods alone"
    assert found["GPUs"] == "ok: no node has nvidia.com/gpu: only CPU kinds can run here"
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    pool = {"name": "fake-1", "generation": 1, "resourceSliceCount": 1}
    claimed = {"driver": "gpu.nvidia.com", "pool": pool, "nodeName": "fake-1", "devices": [{"name": "gpu-0"}]}
    node.do(lambda api: api.create(slices, {"metadata": {"name": "claimed"}, "spec": claimed}))
    assert "not used: 1 devices of resource claims (gpu.nvidia.com)" in doctor(live, space, 0, admin)["GPUs"]
    node.do(lambda api: api.delete(f"{slices}/claimed"))
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{space}/roles/tidegate"
    rules = [each for each in node.do(lambda api: api.get(roles))["rules"] if each["resources"] != ["services"]]
    node.do(lambda api: api.patch(roles, {"rules": rules}))
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}
    node.do(lambda api: api.patch(f"/api/v1/namespaces/{space}", label))
    policy = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/replicas.tidegate.dev"
    node.do(lambda api: api.delete(policy))
    found = doctor(live, space, 1, admin)
    assert "it may not list services, create services" in found["account tidegate"]
    assert f"note: namespace {space} enforces the level baseline" in found["Pod Security"]
    assert found["policies"].startswith("note: no ValidatingAdmissionPolicy replicas.tidegate.dev: ")
    node.do(install_resources)
    found = doctor(live, "default", 0, admin)
    assert found["account tidegate"] == "note: not there in namespace default: the chart makes it"


def test_a_secret_that_is_deleted_by_hand_is_said_and_replicas_come_again_with_it(live: Deployment, node: Node) -> None:
    live.up(as_program=True)
    live.deploy(live.handler(), "--min-scale", "1", "--max-scale", "1", "--wait")
    first, space = node.pods, namespace_of(live)
    path = f"/api/v1/namespaces/{space}"
    node.do(lambda api: api.delete(f"{path}/secrets/tidegate-link"))
    live.until(
        lambda: "so that Kubernetes deletes them, and none is made" in str(live.status()), 60.0, "that it says so"
    )
    live.until(lambda: not node.do(lambda api: api.get(f"{path}/pods"))["items"], 60.0, "no Pod that dies at once")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tidegate-link"}}
    node.do(lambda api: api.create(f"{path}/secrets", secret))
    live.until(lambda: live.status("echo")["ready"] == 1, 60.0, "another replica")
    assert live.infer().status_code == 200
    assert node.pods != first
    assert "to which replicas belong" not in str(live.status())
    live.until(lambda: len(budgets(node, space)) == 1, 30.0, "the group's budget, which went with the Secret")
    (budget,) = budgets(node, space)
    uid = node.do(lambda api: api.get(f"{path}/secrets/tidegate-link"))["metadata"]["uid"]
    assert [each["uid"] for each in budget["metadata"]["ownerReferences"]] == [uid]


def budgets(node: Node, space: str) -> list[Object]:
    listed = node.do(lambda api: api.get(f"/apis/policy/v1/namespaces/{space}/poddisruptionbudgets"))["items"]
    return [each for each in listed if "deletionTimestamp" not in each["metadata"]]


def test_a_quota_that_is_full_is_said_and_used_when_there_is_room(live: Deployment, node: Node) -> None:
    space = namespace_of(live)
    quotas = f"/api/v1/namespaces/{space}/resourcequotas"
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"pods": "0"}},
    }
    node.do(lambda api: api.create(quotas, quota))
    live.until(lambda: "hard" in node.do(lambda api: api.get(f"{quotas}/small")).get("status", {}), 30.0, "the quota")
    live.up(as_program=True)
    live.deploy(live.handler(), "--min-scale", "1", "--max-scale", "1")
    live.until(lambda: "exceeded quota: small" in str(live.status("echo")), 30.0, "that it says so")
    node.do(lambda api: api.delete(f"{quotas}/small"))
    live.until(lambda: live.status("echo")["ready"] == 1, 60.0, "a replica")
    assert live.infer().status_code == 200


def test_a_lease_that_was_deleted_has_not_forgotten_the_epoch_of_the_pods(live: Deployment, node: Node) -> None:
    """The next one has to order what earlier ones made, whatever its own state directory counts."""
    space = namespace_of(live)
    live.up(as_program=True)
    live.deploy(live.handler(), "--min-scale", "1", "--max-scale", "1", "--wait")
    pods = f"/api/v1/namespaces/{space}/pods"
    (found,) = node.do(lambda api: api.get(pods))["items"]
    pod = f"{pods}/{found['metadata']['name']}"
    mark = {"metadata": {"annotations": {EPOCH: "41"}}}  # as the forty-first leader has it
    live.kill()
    node.do(lambda api: api.patch(pod, mark))
    node.do(lambda api: api.delete(f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases/tidegate"))
    live.up(as_program=True)
    live.until(lambda: node.do(lambda api: api.get(pod))["metadata"]["annotations"][EPOCH] == "42", 30.0, "its epoch")
    live.cli("down")
    live.until(lambda: not node.do(lambda api: api.get(pods))["items"], 30.0, "no Pod")


def test_the_next_control_process_adopts_the_pods_and_down_leaves_none(live: Deployment, node: Node) -> None:
    live.up(as_program=True)
    live.deploy(live.handler(), "--min-scale", "1", "--wait")
    assert live.infer().status_code == 200
    (pod,) = node.pods
    live.kill()
    live.up(as_program=True)
    assert live.infer().status_code == 200
    assert node.pods == [pod]
    assert live.stop() == 0
    assert node.pods == [pod], "SIGTERM is no `tidegate down`: the next control process has it"
    live.up(as_program=True)
    assert live.infer().status_code == 200
    assert node.pods == [pod]
    live.cli("down")
    live.until(lambda: not node.pods, 30.0, "no Pod")
