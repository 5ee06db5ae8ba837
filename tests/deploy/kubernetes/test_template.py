"""Pods, the objects of a group, and the Role that is shipped, as data.

What a cluster makes of them: tests/live/test_kubernetes_pods.py.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.support.live.backends import TWO_CORES, revision
from tidegate.deploy.kubernetes.pods.template import (
    MAX_LABEL,
    PodSettings,
    cores_of,
    label,
    labels,
    owners,
    pod_spec,
    problems,
)
from tidegate.deploy.kubernetes.pods.workloads import deployment, disruption_budget, group_name, service
from tidegate.deploy.kubernetes.process.survey import RIGHTS
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import Function, GpuNeeds, ModelFormat, Resources, Revision, Server, ServerKind
from tidegate.queue_proxy.settings import read_settings

SETTINGS = PodSettings(image="tidegate:1", namespace="models")
T4 = Accelerator(name="t4", kind=AcceleratorKind.NVIDIA, count=4, memory_bytes=16 << 30)
IMAGE = Revision(Function(name="resnet", server=Server(kind=ServerKind.IMAGE, target="resnet:7")), 1)


INSTALL = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes" / "tidegate.yaml"


def test_the_role_has_the_rights_of_the_calls_and_no_more() -> None:
    """The calls themselves are made by this Role in tests/live/test_kubernetes_up.py."""
    (role,) = (each for each in yaml.safe_load_all(INSTALL.read_text()) if each["kind"] == "Role")
    found = {
        (group, resource, name, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }
    assert found == {(*what, verb) for *what, verbs in RIGHTS for verb in verbs}


def containers(spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sidecar and the model server."""
    (sidecar,), (server,) = spec["initContainers"], spec["containers"]
    return sidecar, server


def env_of(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container["env"]}


def test_the_queue_proxy_is_a_native_sidecar_that_is_probed_itself() -> None:
    sidecar, server = containers(pod_spec(IMAGE, TWO_CORES, SETTINGS, restarts=False))
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["command"] == ["python", "-P", "-m", "tidegate.queue_proxy.main"]
    assert sidecar["readinessProbe"]["httpGet"] == {"path": "/ready", "port": 8022}
    assert "readinessProbe" not in server, "the queue_proxy probes the model server"
    assert "startupProbe" not in sidecar, "the kubelet would start the model server only after it"
    assert (sidecar["image"], server["image"]) == ("tidegate:1", "resnet:7")


def test_both_containers_wait_for_the_end_of_the_drain_before_they_get_sigterm() -> None:
    spec = pod_spec(IMAGE, TWO_CORES, SETTINGS, restarts=False)
    for each in containers(spec):
        assert each["lifecycle"]["preStop"]["httpGet"] == {"path": "/wait-for-drain", "port": 8022}
    assert read_settings(env_of(containers(spec)[0])).pre_stop, "else the queue_proxy refuses the hook"
    assert spec["terminationGracePeriodSeconds"] == 315, "the function's timeout, and a margin"


def test_every_container_is_restricted() -> None:
    spec = pod_spec(IMAGE, TWO_CORES, SETTINGS, restarts=False)
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert spec["automountServiceAccountToken"] is False
    for each in containers(spec):
        assert each["securityContext"]["allowPrivilegeEscalation"] is False
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_processes_meet_on_loopback_and_nothing_of_one_machine_is_named() -> None:
    sidecar, server = containers(pod_spec(revision(), TWO_CORES, SETTINGS, restarts=False))
    env = env_of(sidecar)
    assert env["TIDEGATE_UPSTREAM"] == "127.0.0.1:8080"
    assert env["TIDEGATE_ADMIN"] == "0.0.0.0:8022"
    assert env["QUEUE_SERVING_PORT"] == "8012"
    assert env["TIDEGATE_TOKEN_FILE"] == "/var/run/secrets/tidegate/token"
    assert "TIDEGATE_LISTEN_FD" not in env
    assert {"name": "TIDEGATE_REPLICA", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}} in sidecar["env"]
    assert "127.0.0.1:8080" in server["command"]
    assert env_of(server)["PORT"] == "8080"
    assert not {"PATH", "CUDA_VISIBLE_DEVICES"} & env_of(server).keys()


def test_a_model_is_loaded_by_tidegates_own_image() -> None:
    model = Server(kind=ServerKind.MODEL, target="/models/m.onnx", format=ModelFormat.ONNX, copy="m-1")
    _, server = containers(pod_spec(Revision(Function(name="m", server=model), 1), TWO_CORES, SETTINGS, restarts=False))
    assert server["image"] == "tidegate:1"
    assert server["command"] == ["python", "-P", "-m", "tidegate.runtime.main"]
    assert env_of(server)["TIDEGATE_RUNTIME_MODEL"] == "/models/m.onnx"
    assert "TIDEGATE_RUNTIME_COPY" not in env_of(server), "copies lie in a state directory"


def test_a_unit_of_cores_is_requested_and_is_the_limit() -> None:
    function = Function(name="m", server=IMAGE.function.server, resources=Resources(memory_bytes=1 << 28))
    _, server = containers(pod_spec(Revision(function, 1), TWO_CORES, SETTINGS, restarts=False))
    assert server["resources"]["requests"] == {"cpu": "1000m", "memory": str(1 << 28)}
    assert server["resources"]["limits"] == server["resources"]["requests"]


def test_whole_gpus_are_requested_on_nodes_of_their_kind() -> None:
    function = Function(name="m", server=IMAGE.function.server, gpu=GpuNeeds(model="t4", count=2))
    spec = pod_spec(Revision(function, 1), T4, SETTINGS, restarts=False)
    assert spec["nodeSelector"] == {"tidegate.dev/accelerator": "t4"}
    assert containers(spec)[1]["resources"]["limits"] == {"nvidia.com/gpu": "2"}


def test_a_pod_leaves_a_lost_node_soon() -> None:
    spec = pod_spec(IMAGE, TWO_CORES, SETTINGS, restarts=False)
    assert {each["key"]: each["tolerationSeconds"] for each in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready": 10,
        "node.kubernetes.io/unreachable": 10,
    }


def test_a_pod_has_a_controller_so_that_nodes_can_be_drained() -> None:
    """``kubectl drain`` refuses others unless it is forced."""
    (owner,) = owners(replace(SETTINGS, owner="u"))
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Secret", "u", True)
    assert owners(SETTINGS) == []


def test_a_dollar_sign_stays_what_it_is() -> None:
    function = Function(name="m", server=IMAGE.function.server, env={"PRICE": "$(HOME) $5"})
    _, server = containers(pod_spec(Revision(function, 1), TWO_CORES, SETTINGS, restarts=False))
    assert env_of(server)["PRICE"] == "$$(HOME) $$5"


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (Function(name="m", server=IMAGE.function.server, secrets={"KEY": "/k"}), "`secrets`"),
        (Function(name="m", server=IMAGE.function.server, socket="/s"), "`socket`"),
        (Function(name="m", server=IMAGE.function.server, python="/p"), "`python`"),
        (Function(name="m", server=IMAGE.function.server, warmup="/w"), "`warmup`"),
        (Function(name="m", server=IMAGE.function.server, volume_mounts="a:/d,b:/d:ro"), "two volumes at /d"),
        (Function(name="m", server=IMAGE.function.server, port=8012), "port 8012 is the queue_proxy's own"),
        (Function(name="m", server=IMAGE.function.server, gpu=GpuNeeds(mps=True)), "a part of a GPU"),
    ],
)
def test_what_a_pod_cannot_have_is_named(function: Function, word: str) -> None:
    (problem,) = problems(function)
    assert word in problem
    assert problems(IMAGE.function) == []


@given(st.text(max_size=100))
def test_a_label_is_one_whatever_the_text_is(text: str) -> None:
    found = label(text)
    assert 0 < len(found) <= MAX_LABEL
    assert found[0].isalnum() and found[-1].isalnum()
    assert all(each.isascii() and (each.isalnum() or each in "._-") for each in found)


def test_labels_of_long_names_stay_apart() -> None:
    assert label("a" * 63) == "a" * 63
    assert label("a" * 64) != label("a" * 65)


def test_the_objects_of_a_group_select_its_pods() -> None:
    marks = labels(IMAGE, "cpu-1core", SETTINGS)
    made = deployment(IMAGE, TWO_CORES, SETTINGS)
    assert made["metadata"]["name"] == group_name(IMAGE, "cpu-1core") == "resnet-00001-cpu-1core"
    assert made["spec"]["selector"]["matchLabels"] == marks
    assert made["spec"]["template"]["metadata"]["labels"] == marks
    assert "replicas" not in made["spec"], "whatever scales it writes those"
    assert made["spec"]["template"]["spec"]["restartPolicy"] == "Always"
    listed = service(IMAGE, TWO_CORES.name, SETTINGS)["spec"]
    assert (listed["clusterIP"], listed["publishNotReadyAddresses"], listed["selector"]) == ("None", True, marks)
    budget = disruption_budget(IMAGE, TWO_CORES.name, SETTINGS)["spec"]
    assert budget == {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": marks},
    }


def test_the_model_server_gets_the_volumes_of_its_claims_and_the_queue_proxy_none() -> None:
    function = replace(IMAGE.function, volume_mounts="token:/models:ro,data:/data,token:/again")
    spec = pod_spec(Revision(function, 1), TWO_CORES, SETTINGS, restarts=False)
    sidecar, server = containers(spec)
    claims = {
        each["name"]: each["persistentVolumeClaim"]["claimName"] for each in spec["volumes"] if each["name"] != "token"
    }
    assert sorted(claims.values()) == ["data", "token"]
    assert [(claims[each["name"]], each["mountPath"], each["readOnly"]) for each in server["volumeMounts"]] == [
        ("token", "/models", True),
        ("data", "/data", False),
        ("token", "/again", False),
    ]
    assert [each["name"] for each in sidecar["volumeMounts"]] == ["token"]
    assert problems(function) == []


def test_the_kubelet_reports_the_last_lines_of_what_fails() -> None:
    for each in containers(pod_spec(IMAGE, TWO_CORES, SETTINGS, restarts=False)):
        assert each["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_no_word_of_a_command_is_replaced_by_the_kubelet() -> None:
    _, server = containers(
        pod_spec(revision(command=("sh", "-c", "echo $(HOME) $$")), TWO_CORES, SETTINGS, restarts=False)
    )
    assert server["command"] == ["sh", "-c", "echo $$(HOME) $$$$"]


def test_cores_are_those_of_the_model_server_wherever_it_stands() -> None:
    spec = pod_spec(IMAGE, TWO_CORES, SETTINGS, restarts=False)
    other = {"name": "injected", "resources": {"limits": {"cpu": "7"}}}
    assert cores_of({"spec": spec}, TWO_CORES) == 1
    assert cores_of({"spec": spec | {"containers": [other, *spec["containers"]]}}, TWO_CORES) == 1
