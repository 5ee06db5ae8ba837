"""What others delete or keep: a namespace that is terminated, objects with finalizers of others, a drained node."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.support.live.cluster import Node, install_resources, namespace_of
from tests.support.live.control_plane import ControlPlane, write_kubeconfig
from tests.support.live.deployment import Deployment
from tests.support.live.pods import make_namespace
from tidegate.deploy.kubernetes.process.api import KubernetesApi, Object

pytestmark = [pytest.mark.live, pytest.mark.needs(tool="cluster"), pytest.mark.timeout(300)]
HOLD = "tests.example/hold"
QUIET_S = 8.0
MOST_CALLS = 60
"""In that time: the Lease is asked for each 3 s, each revision is tried with back-off."""


async def administrator(api: KubernetesApi, space: str) -> str:
    """Gives the account ``default`` of a namespace all rights; returns a token."""
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": space},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": space}],
    }
    await api.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    made = await api.create(f"/api/v1/namespaces/{space}/serviceaccounts/default/token", wanted)
    return str(made["status"]["token"])


@contextmanager
def held(node: Node, space: str) -> Iterator[None]:
    """Keeps the namespace from being gone, whatever is ordered."""
    path = f"/api/v1/namespaces/{space}/configmaps"
    meta = {"name": "held", "finalizers": [HOLD]}
    node.do(lambda api: api.create(path, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}))
    try:
        yield
    finally:
        node.do(lambda api: api.patch(f"{path}/held", {"metadata": {"finalizers": None}}))


def test_a_namespace_that_is_terminated_is_the_reason_and_is_not_asked_all_the_time(
    live: Deployment, plane: ControlPlane, node: Node
) -> None:
    """By an account from outside, whose rights do not end with the namespace."""
    space, elsewhere = namespace_of(live), node.do(make_namespace)
    write_kubeconfig(
        live.folder / "kubeconfig", plane.url, plane.authority, token=node.do(partial(administrator, space=elsewhere))
    )
    live.up(as_program=True)
    live.deploy(live.handler(), "--min-scale", "1", "--max-scale", "1", "--wait")
    with held(node, space):
        node.do(lambda api: api.delete(f"/api/v1/namespaces/{space}"))
        live.until(lambda: "is being terminated" in str(live.status()), 60.0, "the status to say why")
        live.until(lambda: "is being terminated" in live.cli("explain", "echo").stdout, 60.0, "explain to say why")
        live.until(lambda: not pods(node, space), 60.0, "no Pod")
        before, began = len(plane.calls(f"{elsewhere}:default")), time.monotonic()
        assert before > 0
        live.until(lambda: time.monotonic() - began > QUIET_S, 60.0, "the time of a look")
        calls = plane.calls(f"{elsewhere}:default")[before:]
        assert len(calls) <= MOST_CALLS * (time.monotonic() - began) / QUIET_S, calls
        assert live.is_up
        assert live.status("echo")["ready"] == 0


def pods(node: Node, space: str) -> list[Object]:
    return list(node.do(lambda api: api.get(f"/api/v1/namespaces/{space}/pods"))["items"])


def test_a_pod_that_a_finalizer_keeps_holds_no_place_and_is_said(live: Deployment, node: Node) -> None:
    space = namespace_of(live)
    live.up(as_program=True)
    live.deploy(live.handler(), "--min-scale", "2", "--max-scale", "2", "--wait")
    path = f"/api/v1/namespaces/{space}/pods"
    (kept, _) = sorted(each["metadata"]["name"] for each in pods(node, space))
    node.do(lambda api: api.patch(f"{path}/{kept}", {"metadata": {"finalizers": [HOLD]}}))
    try:
        node.do(lambda api: api.delete(f"{path}/{kept}"))
        live.until(lambda: HOLD in str(live.status()["faults"]), 60.0, "the status to name the finalizer")
        # There are two places: a third Pod is there because the kept one holds none.
        live.until(lambda: live.status("echo")["ready"] == 2, 60.0, "another replica in its place")
        assert len(pods(node, space)) == 3
        assert live.infer().status_code == 200
        live.kill()
        live.up(as_program=True)
        live.until(lambda: live.status("echo")["ready"] == 2, 60.0, "both replicas to be known")
        live.until(lambda: HOLD in str(live.status()["faults"]), 60.0, "the next process to say it too")
        assert len(pods(node, space)) == 3, "nothing was made twice"
    finally:
        node.do(lambda api: api.patch(f"{path}/{kept}", {"metadata": {"finalizers": None}}))
    live.until(lambda: HOLD not in str(live.status()["faults"]), 60.0, "the fault to end with the object")
    assert len(pods(node, space)) == 2


def test_a_function_that_a_finalizer_keeps_serves_until_it_is_gone_and_says_so(live: Deployment, node: Node) -> None:
    space = namespace_of(live)
    node.do(install_resources)
    path = f"/apis/tidegate.dev/v1alpha1/namespaces/{space}/functions"
    live.up(as_program=True)
    body = {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "Function",
        "metadata": {"name": "echo", "finalizers": [HOLD], "annotations": {"tidegate.dev/min-scale": "1"}},
        "spec": {"server": {"handler": live.handler()}},
    }
    node.do(lambda api: api.create(path, body))

    def condition() -> str:
        status = node.do(lambda api: api.get(f"{path}/echo")).get("status", {})
        return str(next((each for each in status.get("conditions", ()) if each["type"] == "Ready"), ""))

    live.until(lambda: "True" in condition(), 60.0, "it to be ready")
    node.do(lambda api: api.delete(f"{path}/echo"))
    live.until(lambda: HOLD in condition(), 30.0, "its condition to name the finalizer")
    assert HOLD in str(live.status()["faults"])
    assert live.infer().status_code == 200
    node.do(lambda api: api.patch(f"{path}/echo", {"metadata": {"finalizers": None}}))
    live.until(lambda: not pods(node, space), 60.0, "no Pod")
    assert not [each for each in live.status()["functions"] if each["name"] == "echo"]
    assert HOLD not in str(live.status()["faults"])
