"""KServe's InferenceServices: what becomes of each field, and that none is dropped silently."""

from dataclasses import replace

import pytest

from tidegate.errors import InvalidInputError
from tidegate.function import Function, ModelFormat, Protocol, ServerKind
from tidegate.manifest.builder import ParseContext
from tidegate.manifest.reader import Parsed, read
from tidegate.schema.files import Elsewhere

WHOLE = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: iris
  namespace: models
  annotations:
    serving.kserve.io/deploymentMode: Standard
    autoscaling.knative.dev/window: 40s
    tidegate.dev/latency: 50ms
spec:
  predictor:
    minReplicas: 0
    maxReplicas: 4
    scaleTarget: 10
    scaleMetric: rps
    containerConcurrency: 8
    timeout: 60
    canaryTrafficPercent: 10
    batcher: {maxBatchSize: 16, maxLatency: 50, timeout: 60}
    serviceAccountName: sa
    model:
      modelFormat: {name: sklearn, version: "1"}
      protocolVersion: v2
      runtime: kserve-sklearnserver
      storageUri: pvc://claim/iris/model.joblib
      env: [{name: LEVEL, value: "1"}]
      resources:
        requests: {cpu: 100m, memory: 256Mi}
        limits: {cpu: "1", memory: 512Mi}
"""
PLAIN = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  predictor:
    model:
      modelFormat: {name: onnx}
      storageUri: pvc://claim/model.onnx
"""


@pytest.fixture
def cluster(context: ParseContext) -> ParseContext:
    """Files are those of a cluster, and images run."""
    return replace(context, images=True, files=Elsewhere(), policies=("kpa", "hpa", "smif"))


def parsed(text: str, context: ParseContext) -> Parsed:
    return read(text, source="s", context=context)


def one(text: str, context: ParseContext) -> Function:
    (function,) = parsed(text, context).functions
    return function


def faults(text: str, context: ParseContext) -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        parsed(text, context)
    return [f"{each.where}: {each.value}; {each.allowed}" for each in caught.value.faults]


def test_the_common_fields_are_taken_over(cluster: ParseContext) -> None:
    found = one(WHOLE, cluster)
    server = found.server
    assert (server.kind, server.target, server.format) == (
        ServerKind.MODEL,
        "/mnt/models/iris/model.joblib",
        ModelFormat.SKLEARN,
    )
    assert found.volume_mounts == "claim:/mnt/models:ro"
    assert (found.scaling.policy, found.scaling.min_scale, found.scaling.max_scale) == ("kpa", 0, 4)
    assert dict(found.scaling.parameters) == {"metric": "rps", "target": "10", "window": "40s"}
    assert (found.concurrency, found.timeout_s, found.sla.latency_s) == (8, 60.0, 0.05)
    assert found.rollout.canary_steps == (10.0,)
    assert (found.batching.max_size, found.batching.delay_s) == (16, 0.05)
    assert (found.resources.memory_bytes, found.resources.threads) == (512 << 20, 1)
    assert found.env == {"LEVEL": "1"}
    assert found.protocol is Protocol.V2


def test_each_field_without_effect_is_named(cluster: ParseContext) -> None:
    named = [str(note).partition(": ")[2].partition(":")[0] for note in parsed(WHOLE, cluster).warnings]
    assert [each for each in named if each != "metadata.annotations.tidegate.dev/latency"] == [
        "metadata.namespace",
        "metadata.annotations.serving.kserve.io/deploymentMode",
        "spec.predictor.canaryTrafficPercent",
        "spec.predictor.batcher.timeout",
        "spec.predictor.serviceAccountName",
        "spec.predictor.model.modelFormat.version",
        "spec.predictor.model.runtime",
        "spec.predictor.model.resources.requests.cpu",
    ]


def test_without_a_minimum_one_replica_stays(cluster: ParseContext) -> None:
    scaling = one(PLAIN, cluster).scaling
    assert (scaling.min_scale, scaling.max_scale, scaling.policy) == (1, 0, "kpa")


@pytest.mark.parametrize("metric", ["cpu", "memory"])
def test_metrics_of_resources_are_those_of_the_hpa(cluster: ParseContext, metric: str) -> None:
    text = PLAIN.replace("    model:\n", f"    scaleMetric: {metric}\n    scaleTarget: 70\n    model:\n")
    found = one(text, cluster).scaling
    assert (found.policy, dict(found.parameters)) == ("hpa", {"metric": metric, "target": "70"})


def test_the_older_key_of_a_format(cluster: ParseContext) -> None:
    text = PLAIN.replace("    model:\n      modelFormat: {name: onnx}\n", "    onnx:\n")
    assert one(text, cluster).server.format is ModelFormat.ONNX


def test_a_runtime_of_triton_serves_a_repository(cluster: ParseContext) -> None:
    text = PLAIN.replace("pvc://claim/model.onnx", "pvc://claim/models\n      runtime: kserve-tritonserver")
    server = one(text, cluster).server
    assert (server.format, server.target) == (ModelFormat.TRITON, "/mnt/models/models")


def test_a_container_is_read_as_knatives(cluster: ParseContext) -> None:
    text = PLAIN.partition("    model:")[0] + "    containers: [{image: r/i:1, ports: [{containerPort: 9000}]}]\n"
    found = one(text, cluster)
    assert (found.server.kind, found.server.target, found.port) == (ServerKind.IMAGE, "r/i:1", 9000)


def test_on_one_machine_a_model_is_a_file_of_it(context: ParseContext) -> None:
    (fault,) = faults(PLAIN, context)
    assert fault.startswith(
        "spec.predictor.model.storageUri: 'pvc://claim/model.onnx'; pvc://CLAIM/PATH (on Kubernetes)"
    )
    (fault,) = faults(PLAIN.replace("pvc://claim", "file:///nowhere"), context)
    assert "/nowhere/model.onnx is missing" in fault


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("pvc://claim/model.onnx", "gs://bucket/model.onnx", "storageUri: 'gs://bucket/model.onnx'; pvc://CLAIM/PATH"),
        ("pvc://claim/model.onnx", "pvc://claim/models", "the model's file, with its suffix"),
        ("name: onnx", "name: lightgbm", "modelFormat.name: 'lightgbm'; onnx, sklearn"),
        ("    model:", "    scaleMetric: qps\n    model:", "scaleMetric: 'qps'; concurrency, rps, cpu, memory"),
        ("    model:", "    maxReplicas: many\n    model:", "maxReplicas: 'many'; a whole number"),
        (
            "    model:",
            "    canaryTrafficPercent: 0\n    model:",
            "canaryTrafficPercent: '0'; a whole number, 1 to 100",
        ),
        ("    model:", "    workers: 2\n    model:", "workers: the unknown key 'workers'"),
        ("    model:", "    sklearn: {}\n    model:", "predictor: model and sklearn; exactly one of"),
        ("    model:", "    storageUris: []\n    model:", "storageUris: a list; one storageUri of the model"),
        ("  predictor:", "  transformer: {}\n  predictor:", "transformer: a mapping; no such part"),
        ("  predictor:", "  canary: []\n  predictor:", "canary: a list; canaryTrafficPercent of the predictor"),
        ("      storageUri", "      protocolVersion: grpc-v2\n      storageUri", "protocolVersion: 'grpc-v2'; v1, v2"),
    ],
)
def test_what_cannot_be_taken_over_is_a_fault(cluster: ParseContext, before: str, after: str, fault: str) -> None:
    (found,) = faults(PLAIN.replace(before, after, 1), cluster)
    assert fault in found


@pytest.mark.parametrize("form", ["tensorflow", "lightgbm", "paddle", "pmml"])
def test_an_older_key_of_a_format_that_is_not_served_is_one_fault(cluster: ParseContext, form: str) -> None:
    text = PLAIN.replace("    model:\n      modelFormat: {name: onnx}", f"    {form}:")
    (fault,) = faults(text, cluster)
    assert fault.startswith(f"spec.predictor.{form}: a mapping; onnx, sklearn")
    assert "another format by containers" in fault


def test_what_places_a_pod_and_names_its_account_is_noted(cluster: ParseContext) -> None:
    keys = ("name", "serviceAccount", "nodeName", "dnsPolicy", "preemptionPolicy")
    text = PLAIN.replace("    model:", "".join(f"    {key}: x\n" for key in keys) + "    model:")
    found = {each.where for each in parsed(text, cluster).warnings}
    assert found == {f"spec.predictor.{key}" for key in keys}
