"""The account of the chart has the rights of its calls and no others, by the API server's own audit; and what the
policy over replicas refuses."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.deadline import Patience
from tests.support.live.backends import TWO_CORES
from tests.support.live.cluster import CONTROL, Node, install_resources, namespace_of
from tests.support.live.control_plane import Call, ControlPlane
from tests.support.live.deployment import Deployment
from tidegate.deploy.kubernetes.pods.template import Object, PodSettings, labels, pod_spec
from tidegate.deploy.kubernetes.process.api import RefusedError
from tidegate.deploy.kubernetes.process.survey import RIGHTS
from tidegate.function import Function, Revision, Server, ServerKind

pytestmark = [pytest.mark.live, pytest.mark.needs(tool="cluster"), pytest.mark.timeout(300)]
IMAGE = Revision(Function(name="resnet", server=Server(kind=ServerKind.IMAGE, target="resnet:7")), 1)
RARE = {
    ("", "pods", "", "get"),
    ("", "pods/resize", "", "patch"),
}
"""Rights of calls that no plain life of a function needs: tests/live/test_kubernetes_pods.py makes them."""


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> Iterator[Node]:
    with Node(plane).running() as found:
        found.do(install_resources)
        yield found


def test_the_account_makes_the_calls_of_its_rights_and_no_other(
    live: Deployment, node: Node, plane: ControlPlane
) -> None:
    space = namespace_of(live)
    path = f"/apis/tidegate.dev/v1alpha1/namespaces/{space}"
    function = {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "Function",
        "metadata": {"name": "echo", "annotations": {"tidegate.dev/min-scale": "1"}},
        "spec": {"server": {"handler": live.handler()}},
    }
    pipeline = {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": "line"},
        "spec": {"stages": [{"function": "echo"}]},
    }
    node.do(lambda api: api.create(f"{path}/functions", function))
    node.do(lambda api: api.create(f"{path}/pipelines", pipeline))
    live.up(as_program=True)
    live.until(lambda: live.infer().status_code == 200, 60.0, "the function to serve")
    live.until(
        lambda: "status" in node.do(lambda api: api.get(f"{path}/pipelines/line")), 30.0, "the pipeline's status"
    )
    live.kill()
    live.up(as_program=True)
    node.do(lambda api: api.delete(f"{path}/pipelines/line"))
    node.do(lambda api: api.delete(f"{path}/functions/echo"))
    live.until(lambda: not node.pods, 60.0, "no Pod")
    services = f"/api/v1/namespaces/{space}/services"
    live.until(lambda: not node.do(lambda api: api.get(services))["items"], 60.0, "no Service of a group")
    assert live.stop() == 0
    calls = plane.calls(f"{space}:{CONTROL}")
    assert [each for each in calls if each.code in (401, 403)] == []
    named = {(group, resource) for group, resource, name, _ in RIGHTS if name}

    def name_of(each: Call) -> str:
        return each.name if (each.group, each.resource) in named and each.verb != "create" else ""

    made = {("", "services", "", "create"), ("policy", "poddisruptionbudgets", "", "create")}  # implied by an apply
    made |= {(each.group, each.resource, name_of(each), each.verb) for each in calls}
    stated = {(*what, verb) for *what, verbs in RIGHTS for verb in verbs}
    assert made - stated == set()
    assert stated - made <= RARE, "a right that no call needs"


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"initContainers": []}, "the native sidecar queue-proxy"),
        ({"automountServiceAccountToken": True}, "no credentials of the cluster"),
        ({"server": {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}}, "devices are those"),
        ({"server": {"lifecycle": None}}, "waits for its drain"),
        ({"server": {"volumeMounts": [{"name": "token", "mountPath": "/t"}]}}, "reads a Secret"),
        ({"server": {"envFrom": [{"secretRef": {"name": "tidegate-link"}}]}}, "reads a Secret"),
    ],
)
def test_a_replica_that_is_not_what_it_must_be_is_refused(
    live: Deployment, node: Node, broken: dict[str, Any], why: str
) -> None:
    space = namespace_of(live)
    settings = PodSettings(image="tidegate:test", namespace=space)
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "replica", "labels": labels(IMAGE, TWO_CORES.name, settings)},
        "spec": pod_spec(IMAGE, TWO_CORES, settings, restarts=False),
    }

    def send(body: Object) -> None:
        query = {"dryRun": "All"}
        node.do(lambda api: api.call("POST", f"/api/v1/namespaces/{space}/pods", body, query=query))

    send(pod)
    pod["spec"] |= {key: part for key, part in broken.items() if key != "server"}
    pod["spec"]["containers"][0] |= broken.get("server", {})
    patience = Patience(20.0)
    while True:  # A policy holds a moment after it was made.
        try:
            send(pod)
        except RefusedError as error:
            assert why in str(error)
            return
        assert not patience.is_over, "the Pod is accepted"
