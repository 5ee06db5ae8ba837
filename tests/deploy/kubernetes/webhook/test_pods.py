"""What a Pod of others becomes, and why it is refused. What API servers make of it:
tests/live/test_kubernetes_webhook.py."""

import copy
from typing import Any

import pytest

from tidegate.deploy.kubernetes.pods.template import Object, PodSettings
from tidegate.deploy.kubernetes.webhook.pods import Mutation, RefusedPodError, WebhookSettings, mutate
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.queue_proxy.settings import read_settings

T4 = Accelerator(name="t4", kind=AcceleratorKind.NVIDIA, count=4, memory_bytes=16 << 30)
BIG_T4 = Accelerator(name="t4-32gb", kind=AcceleratorKind.NVIDIA, count=2, memory_bytes=32 << 30)
CORE = Accelerator(name="cpu-1core", kind=AcceleratorKind.CPU, count=4, memory_bytes=4 << 30, cores=1)
SETTINGS = WebhookSettings(pods=PodSettings(image="tidegate:1"), accelerators=(CORE, T4, BIG_T4))
GPU = {"gpu-model": "t4", "gpu-mem-limit": "8", "dnn-model": "resnet50"}


def pod(*containers: Object, spec: Object | None = None, labels: Object | None = None, **annotations: str) -> Object:
    stated = {f"tidegate.dev/{key.replace('_', '-')}": text for key, text in annotations.items()}
    metadata = {"generateName": "web-6f-", "labels": labels or {"app": "web"}, "annotations": stated}
    return {"metadata": metadata, "spec": {"containers": list(containers or (server(),)), **(spec or {})}}


def server(**more: Any) -> Object:
    return {"name": "server", "image": "web:3", "ports": [{"name": "http", "containerPort": 8080}], **more}


def gpu_pod(**more: str) -> Object:
    found = pod()
    found["metadata"]["annotations"] = {f"tidegate.dev/{key}": text for key, text in (GPU | more).items()}
    return found


def mutated(before: Object) -> Mutation:
    """The mutation, which leaves its argument as it was and does nothing the second time."""
    kept = copy.deepcopy(before)
    found = mutate(before, "models", SETTINGS)
    assert before == kept
    assert mutate(found.pod, "models", SETTINGS) == Mutation(found.pod)
    return found


def parts(before: Object) -> tuple[Object, Object]:
    """The sidecar and the model server."""
    spec = mutated(before).pod["spec"]
    return spec["initContainers"][0], spec["containers"][0]


def env(container: Object) -> dict[str, str]:
    return {each["name"]: each.get("value", "pod") for each in container.get("env", [])}


def faults(before: Object) -> list[str]:
    with pytest.raises(RefusedPodError) as caught:
        mutate(before, "models", SETTINGS)
    return list(caught.value.faults)


def test_the_queue_proxy_belongs_to_no_deployment_and_takes_no_orders() -> None:
    sidecar, _ = parts(pod(concurrency="2", timeout="10s"))
    found = read_settings(env(sidecar))
    assert (found.token_file, found.limit, found.timeout_s, found.upstream) == (None, 2, 10.0, "127.0.0.1:8080")
    assert (found.function, found.group, found.replica) == ("web", "cpu", "pod")
    assert found.pre_stop and found.pre_stop_delay_s == 5.0
    assert "volumeMounts" not in sidecar
    assert sidecar["restartPolicy"] == "Always"


def test_it_runs_as_its_own_user_whatever_the_pod_says() -> None:
    sidecar, _ = parts(pod(spec={"securityContext": {"runAsUser": 0}}))
    assert sidecar["securityContext"]["runAsUser"] == 10_001
    assert sidecar["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_both_wait_for_the_drain_and_the_pod_has_time_for_it() -> None:
    sidecar, container = parts(pod(timeout="100s"))
    for each in (sidecar, container):
        assert each["lifecycle"]["preStop"]["httpGet"] == {"path": "/wait-for-drain", "port": 8022}
    assert mutated(pod(timeout="100s")).pod["spec"]["terminationGracePeriodSeconds"] == 120
    longer = pod(spec={"terminationGracePeriodSeconds": 900})
    assert mutated(longer).pod["spec"]["terminationGracePeriodSeconds"] == 900


def test_a_hook_that_sleeps_gives_its_time_to_the_drain() -> None:
    sidecar, container = parts(pod(server(lifecycle={"preStop": {"sleep": {"seconds": 20}}, "postStart": {"x": 1}})))
    assert env(sidecar)["TIDEGATE_PRE_STOP_DELAY_SECONDS"] == "20"
    assert container["lifecycle"]["postStart"] == {"x": 1}


def test_the_name_of_the_port_is_the_queue_proxys_and_probes_keep_the_number() -> None:
    probe = {"httpGet": {"path": "/healthy", "port": "http"}}
    sidecar, container = parts(pod(server(readinessProbe=probe, livenessProbe={"tcpSocket": {"port": "http"}})))
    assert sidecar["ports"][0] == {"name": "http", "containerPort": 8012, "protocol": "TCP"}
    assert container["ports"] == [{"containerPort": 8080, "protocol": "TCP"}]
    assert container["readinessProbe"]["httpGet"]["port"] == 8080
    assert container["livenessProbe"]["tcpSocket"]["port"] == 8080
    assert env(sidecar)["TIDEGATE_READINESS_PATH"] == "/healthy"


def test_hooks_of_a_start_keep_the_number_too() -> None:
    _, container = parts(pod(server(lifecycle={"postStart": {"httpGet": {"path": "/warm", "port": "http"}}})))
    assert container["lifecycle"]["postStart"]["httpGet"]["port"] == 8080


def test_every_name_of_the_port_moves_and_what_is_no_tcp_stays() -> None:
    ports = [
        {"name": "http", "containerPort": 8080},
        {"name": "scrape", "containerPort": 8080},
        {"name": "quic", "containerPort": 8080, "protocol": "UDP"},
    ]
    sidecar, container = parts(pod(server(ports=ports)))
    named = {each["name"]: each["containerPort"] for each in sidecar["ports"]}
    assert named == {"http": 8012, "scrape": 8012, "queue-metrics": 8022}
    assert container["ports"] == [ports[2], {"containerPort": 8080, "protocol": "TCP"}]


def test_the_queue_proxy_can_take_the_number_of_a_services_port() -> None:
    """As with KServe, whose Services name the number that the container declares."""
    kserve = server(name="kserve-container", args=["--http_port=8081"])
    sidecar, container = parts(pod(kserve, proxy_port="8080", server_port="8081"))
    assert sidecar["ports"][0]["containerPort"] == 8080
    assert container["ports"] == [{"containerPort": 8081, "protocol": "TCP"}]
    assert (env(sidecar)["QUEUE_SERVING_PORT"], env(sidecar)["TIDEGATE_UPSTREAM"]) == ("8080", "127.0.0.1:8081")


@pytest.mark.parametrize(("name", "protocol"), [("h2c", "grpc"), ("grpc-predict", "grpc"), ("http1", "http")])
def test_the_name_of_a_port_says_its_protocol(name: str, protocol: str) -> None:
    sidecar, _ = parts(pod(server(ports=[{"name": name, "containerPort": 8080}])))
    assert env(sidecar).get("TIDEGATE_PROTOCOL", "http") == protocol


def test_the_model_servers_container_is_the_one_that_listens_or_the_one_that_is_named() -> None:
    agent = {"name": "agent", "image": "a", "ports": [{"containerPort": 9000}]}
    log = {"name": "log", "image": "l"}
    assert "lifecycle" not in mutated(pod(log, server())).pod["spec"]["containers"][0]
    found = mutated(pod(agent, server(), server_container="server")).pod["spec"]["containers"]
    assert ["lifecycle" in each for each in found] == [False, True]
    (fault,) = faults(pod(agent, server()))
    assert fault == (
        "metadata.annotations.tidegate.dev/server-container: got nothing;"
        " allowed: the name of the model server's container, one of agent, server"
    )


def test_other_sidecars_start_after_it() -> None:
    spec = {"initContainers": [{"name": "download", "image": "d"}]}
    found = mutated(pod(spec=spec)).pod["spec"]["initContainers"]
    assert [each["name"] for each in found] == ["queue-proxy", "download"]


def test_a_guaranteed_pod_stays_one() -> None:
    limits = {"cpu": "1", "memory": "1Gi"}
    sidecar, _ = parts(pod(server(resources={"limits": limits, "requests": {"cpu": "1000m"}})))
    assert sidecar["resources"]["limits"] == sidecar["resources"]["requests"] == {"cpu": "50m", "memory": "96Mi"}
    odd = {"cpu": "1", "memory": "1E"}
    for other in (server(), server(resources={"limits": odd, "requests": odd})):
        sidecar, _ = parts(pod(other))
        assert sidecar["resources"]["limits"] == {"memory": "96Mi"}


def test_gpus_nodes_and_the_key_of_the_model_follow_the_annotations() -> None:
    before = gpu_pod(**{"gpu-mem-limit": "20", "gpu-count": "2", "volume-mounts": "m:/models:ro,data:/data"})
    before["spec"]["affinity"] = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}, {}]
            }
        }
    }
    found = mutated(before).pod["spec"]
    required = found["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    wanted = {"key": "tidegate.dev/accelerator", "operator": "In", "values": ["t4-32gb"]}
    terms = [each["matchExpressions"] for each in required["nodeSelectorTerms"]]
    assert [each[-1] for each in terms] == [wanted, wanted], "terms are alternatives"
    assert terms[0][0]["key"] == "zone"
    container = found["containers"][0]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2"}}
    assert env(container)["TIDEGATE_MODEL_PATH"] == "/models/resnet50/t4-32gb/fp32/b1"
    claims = [each["persistentVolumeClaim"]["claimName"] for each in found["volumes"]]
    assert claims == ["m", "data"]
    assert env(found["initContainers"][0])["TIDEGATE_GROUP"] == "t4-32gb"


def test_a_gpu_of_any_model_that_is_large_enough_will_do() -> None:
    before = gpu_pod(**{"gpu-model": "none", "gpu-count": "1"})
    found = mutated(before).pod["spec"]
    (term,) = found["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["t4", "t4-32gb"]
    assert env(found["initContainers"][0])["TIDEGATE_GROUP"] == "gpu"


def test_a_variable_of_the_pod_wins_and_can_name_ours() -> None:
    before = gpu_pod()
    stated = [
        {"name": "TIDEGATE_DNN_MODEL", "value": "mine"},
        {"name": "SIZE", "value": "$(TIDEGATE_INFER_BATCH_SIZE)"},
    ]
    before["spec"]["containers"][0]["env"] = stated
    names = [each["name"] for each in mutated(before).pod["spec"]["containers"][0]["env"]]
    assert names == ["TIDEGATE_DNN_QUANTIZATION", "TIDEGATE_INFER_BATCH_SIZE", "TIDEGATE_DNN_MODEL", "SIZE"]


def test_annotations_without_effect_are_warnings() -> None:
    found = mutated(pod(latency="100ms", min_scale="2", concurrency="1"))
    assert [each.partition(" ")[0] for each in found.warnings] == ["tidegate.dev/latency", "tidegate.dev/min-scale"]


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ({"app": "a", "app.kubernetes.io/name": "b"}, "b"),
        ({"serving.kserve.io/inferenceservice": "iris", "app": "isvc.iris-predictor"}, "iris"),
        ({"app": "Iris_v1.2"}, "iris-v1-2"),
        ({"pod-template-hash": "6f"}, "web"),
    ],
)
def test_metrics_have_the_name_of_what_the_pod_belongs_to(labels: Object, name: str) -> None:
    before = pod(labels=labels)
    before["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "web-6f", "controller": True}]
    sidecar, _ = parts(before)
    assert env(sidecar)["TIDEGATE_FUNCTION"] == name
    assert env(sidecar)["SERVING_REVISION"] == "web-6f"


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (pod(spec={"hostNetwork": True}), "spec.hostNetwork: got true"),
        (pod(server(), {"name": "queue-proxy", "image": "knative"}), "Knative's queue-proxy is there already"),
        (pod(server(ports=[])), "server-port: got nothing; allowed: the port at which the model server listens"),
        (pod(server(ports=[{"containerPort": 80}, {"containerPort": 81}])), "got nothing, with the ports 80, 81"),
        (pod(server_port="http"), "server-port: got 'http'; allowed: a port"),
        (pod(server_port="8012"), "another port than the queue_proxy's own"),
        (pod(proxy_port="8022"), "proxy-port: got '8022'"),
        (pod(server_container="other"), "server-container: got 'other'; allowed: server"),
        (
            pod(server(), {"name": "b", "ports": [{"containerPort": 8022}]}, server_container="server"),
            "spec.containers[1].ports: got 8022",
        ),
        (
            pod(server(ports=[{"containerPort": 8080}, {"containerPort": 8022}]), server_port="8080"),
            "spec.containers[0].ports: got 8022; allowed: other ports",
        ),
        (
            pod(
                spec={"initContainers": [{"name": "s", "restartPolicy": "Always", "ports": [{"containerPort": 8012}]}]}
            ),
            "spec.initContainers[0].ports: got 8012",
        ),
        (pod(server(ports=[{"containerPort": 8080, "hostPort": 80}])), "spec.containers[0].ports.hostPort: got 80"),
        (
            pod(
                server(),
                {"name": "b", "ports": [{"name": "http", "containerPort": 9}]},
                server_container="server",
            ),
            "spec.containers[1].ports: got 'http'; allowed: another name",
        ),
        (pod(server(lifecycle={"preStop": {"exec": {"command": ["x"]}}})), "preStop: got exec; allowed: no hook"),
        (
            pod(server(volumeMounts=[{"name": "x", "mountPath": "/models"}]), volume_mounts="m:/models"),
            "volumeMounts: got /models",
        ),
        (pod(timeout="soon"), "tidegate.dev/timeout: got 'soon'"),
        (pod(dnn_quantization="int7", dnn_model="a"), "tidegate.dev/dnn-quantization: got 'int7'"),
        (pod(gpu_core_percentage="101"), "tidegate.dev/gpu-core-percentage: got '101'"),
        (gpu_pod(**{"gpu-core-percentage": "50"}), "allowed: 100, unless mps-on is true"),
        (pod(gpu_count="2", gpu_mem_limit="1"), "tidegate.dev/dnn-model: got nothing"),
        (gpu_pod(**{"mps-on": "true"}), "a part of a GPU"),
        (gpu_pod(**{"gpu-model": "h100"}), "a GPU that is here: t4, t4-32gb"),
        (
            gpu_pod(**{"gpu-mem-limit": "40"}),
            "gpu-mem-limit: got 1 with 40 GB on t4; allowed: what is there: t4 (4 with 17.2 GB)",
        ),
    ],
)
def test_what_contradicts_the_queue_proxy_is_refused(before: Object, words: str) -> None:
    assert any(words in each for each in faults(before)), faults(before)


def test_a_gpu_that_the_pod_states_otherwise_is_refused() -> None:
    before = gpu_pod()
    before["spec"]["containers"][0] |= {
        "resources": {"limits": {"nvidia.com/gpu": 4}},
        "env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}],
    }
    assert [each.partition(";")[0] for each in faults(before)] == [
        "spec.containers[0].resources.limits.nvidia.com/gpu: got 4",
        "spec.containers[0].env: got CUDA_VISIBLE_DEVICES",
    ]


def test_every_fault_is_reported_at_once() -> None:
    before = pod(timeout="soon", mps_on="true", conc="1", proxy_port="0", spec={"hostNetwork": True})
    found = "\n".join(faults(before))
    for words in ("hostNetwork", "proxy-port", "tidegate.dev/timeout", "'conc'", "dnn-model", "a part of a GPU"):
        assert words in found
