"""KServe's ``InferenceService`` manifests (``serving.kserve.io/v1beta1``), in their common fields.

A predictor with a ``model`` is served by the shipped runtime, from a file or a volume: nothing is downloaded. One with
a container is read as Knative's. Every key that is not taken over is named: a note if the function works without it,
else a fault.
"""

import posixpath
from typing import Final

from tidegate.function import Function, ModelFormat, Server, ServerKind
from tidegate.manifest.builder import NAME_KIND, FunctionBuilder, SourceLocation
from tidegate.manifest.foreign import knative_annotations as rules
from tidegate.manifest.foreign.knative import (
    CONTAINER_CONCURRENCY,
    land,
    must,
    noted,
    read_annotations,
    read_container,
    read_env,
    read_resources,
    refuse_flags,
    refused,
)
from tidegate.manifest.spec import MAX_BATCH
from tidegate.schema.files import Found
from tidegate.schema.rows import Whole
from tidegate.schema.yaml_nodes import Scalar, Section, shown

KSERVE_API_VERSION: Final = "serving.kserve.io/v1beta1"
KSERVE_KIND: Final = "InferenceService"
MOUNT: Final = "/mnt/models"
"""Where KServe mounts a model, and so do its volumes here."""
FORMATS: Final = {
    "onnx": ModelFormat.ONNX,
    "sklearn": ModelFormat.SKLEARN,
    "xgboost": ModelFormat.XGBOOST,
    "pytorch": ModelFormat.TORCHSCRIPT,
    "torchscript": ModelFormat.TORCHSCRIPT,
    "huggingface": ModelFormat.HUGGINGFACE,
    "triton": ModelFormat.TRITON,
}
"""KServe's names of formats that the shipped runtime serves."""
NOT_SERVED: Final = ("lightgbm", "paddle", "pmml", "tensorflow")
"""KServe's older keys of other formats."""
_SERVED: Final = f"{', '.join(FORMATS)}; another format by containers, with its own server"
PROTOCOLS: Final = ("v1", "v2")
METRICS: Final = {
    "concurrency": rules.KPA_CLASS,
    "rps": rules.KPA_CLASS,
    "cpu": rules.HPA_CLASS,
    "memory": rules.HPA_CLASS,
}
"""KServe's metrics, with the class of the autoscaler for each."""
URIS: Final = (
    "pvc://CLAIM/PATH (on Kubernetes), file:///PATH or a path: nothing is downloaded, so put the model into a volume"
)
TIMEOUT: Final = Whole(1, 86_400, "s")
_MILLISECONDS: Final = Whole(0, 60_000, "ms")
_SCALING: Final = {
    "minReplicas": "min-scale",
    "maxReplicas": "max-scale",
    "scaleMetric": "metric",
    "scaleTarget": "target",
}
"""Keys of a predictor, and Knative's annotations of the same meaning."""
_PARTS: Final = {
    **dict.fromkeys(("transformer", "explainer"), "no such part: a Pipeline of functions takes its place"),
    "canary": "canaryTrafficPercent of the predictor",
}
_PREDICTOR_NOTED: Final = (
    "name",
    "serviceAccount",
    "serviceAccountName",
    "imagePullSecrets",
    "nodeName",
    "nodeSelector",
    "tolerations",
    "affinity",
    "runtimeClassName",
    "schedulerName",
    "priority",
    "priorityClassName",
    "preemptionPolicy",
    "topologySpreadConstraints",
    "dnsPolicy",
    "dnsConfig",
    "hostAliases",
    "securityContext",
    "automountServiceAccountToken",
    "enableServiceLinks",
    "terminationGracePeriodSeconds",
    "deploymentStrategy",
    "labels",
    "annotations",
    "logger",
    "scaleMetricType",
    "autoScaling",
)
_PREDICTOR_REFUSED: Final = {
    "volumes": f"no such key: a model comes by storageUri, {URIS}",
    "storageUris": f"one storageUri of the model: {URIS}",
    "initContainers": "one container",
    "workerSpec": "no such key: a replica is one Pod",
}
_MODEL_NOTED: Final = (
    "args",
    "command",
    "image",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "name",
    "ports",
    "readinessProbe",
    "runtimeVersion",
    "securityContext",
    "startupProbe",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "workingDir",
)
_MODEL_REFUSED: Final = {
    "storage": f"storageUri: {URIS}",
    "volumeMounts": f"storageUri: {URIS}",
    "envFrom": "variables with a value of their own, under env",
}


def read_inference_service(root: Section, builder: FunctionBuilder) -> Function | None:
    """Returns the function of an InferenceService. Adds faults and returns None if it is invalid."""
    metadata = root.section("metadata")
    name = None if metadata is None else _metadata(metadata, builder)
    if metadata is None and root.node.get("metadata") is None:
        builder.faults.report("metadata", "nothing", "a mapping with at least a name", root.node.line)
    spec = must(root, "spec")
    predictor = None if spec is None else must(spec, "predictor")
    server = None if predictor is None else _predictor(predictor, builder)
    if spec is not None:
        refused(spec, _PARTS, builder)
        spec.close()
    noted(root, ("status",), builder)
    root.close()
    function = builder.finish(name or "nameless", server or Server(kind=ServerKind.COMMAND))
    return None if name is None or server is None else function


def _metadata(metadata: Section, builder: FunctionBuilder) -> str | None:
    name = metadata.text("name", NAME_KIND)
    if metadata.node.get("name") is None:
        builder.faults.report(metadata.path("name"), "nothing", NAME_KIND.allowed, metadata.node.line)
    annotations = metadata.section("annotations")
    if annotations is not None:
        read_annotations(annotations, builder)
    for pair in metadata.rest():
        builder.note(metadata.path(pair.key), "has no effect here", pair.line)
    return name


def _predictor(predictor: Section, builder: FunctionBuilder) -> Server | None:
    _scaling(predictor, builder)
    _canary(predictor, builder)
    where = predictor.path("containerConcurrency")
    builder.scalar(CONTAINER_CONCURRENCY, predictor.take("containerConcurrency"), where)
    timeout = predictor.scalar("timeout")
    if timeout is not None:
        seconds = predictor.text_of(predictor.path("timeout"), timeout, TIMEOUT)
        if seconds is not None:
            builder.put("timeout_s", float(seconds), SourceLocation(predictor.path("timeout"), seconds, timeout.line))
    noted(predictor, _PREDICTOR_NOTED, builder)
    refused(predictor, _PREDICTOR_REFUSED, builder)
    server = _server(predictor, builder)
    _batcher(predictor, server, builder)
    predictor.close()
    return server


def _server(predictor: Section, builder: FunctionBuilder) -> Server | None:
    """Reads the one way to serve of a predictor: ``model``, KServe's older key of a format, or a container."""
    if any(predictor.node.get(name) is not None for name in NOT_SERVED):
        refused(predictor, dict.fromkeys(NOT_SERVED, _SERVED), builder)
        return None
    older = [name for name in FORMATS if predictor.take(name) is not None]
    ways = [*(key for key in ("model", "containers") if predictor.take(key) is not None), *older]
    if len(ways) != 1:
        allowed = f"exactly one of model, containers (or, as of old, {', '.join(FORMATS)})"
        builder.faults.report(predictor.where, " and ".join(ways) or "nothing", allowed, predictor.node.line)
        return None
    if ways[0] != "containers":
        model = predictor.section(ways[0])
        return None if model is None else _model(model, ways[0] if older else None, builder)
    containers = predictor.items("containers")
    if containers is None or len(containers) != 1:
        found = "nothing" if containers is None else f"{len(containers)} containers"
        builder.faults.report(predictor.path("containers"), found, "one container", predictor.node.line)
        return None
    container = Section.of(containers[0], f"{predictor.path('containers')}[0]", builder.faults)
    return None if container is None else read_container(container, builder)


def _model(model: Section, named: str | None, builder: FunctionBuilder) -> Server | None:
    refuse_flags("KServe", builder)
    form = FORMATS[named] if named is not None else _format(model, builder)
    runtime = model.scalar("runtime")
    if runtime is not None and "triton" in runtime.text:
        form = ModelFormat.TRITON
    elif runtime is not None:
        builder.note(model.path("runtime"), "is not used: the shipped runtime serves the model", runtime.line)
    protocol = model.scalar("protocolVersion")
    if protocol is not None and protocol.text not in PROTOCOLS:
        allowed = f"{', '.join(PROTOCOLS)}: both are served, by their paths"
        builder.faults.add(model.path("protocolVersion"), protocol, allowed)
    read_env(model, builder)
    read_resources(model, builder)
    noted(model, _MODEL_NOTED, builder)
    refused(model, _MODEL_REFUSED, builder)
    place = _storage(model, form, builder)
    model.close()
    builder.values["workdir"] = builder.context.base
    return None if place is None or form is None else Server(kind=ServerKind.MODEL, target=place, format=form)


def _format(model: Section, builder: FunctionBuilder) -> ModelFormat | None:
    stated = must(model, "modelFormat")
    if stated is None:
        return None
    name = stated.scalar("name")
    noted(stated, ("version",), builder)
    stated.close()
    if name is not None and name.text in FORMATS:
        return FORMATS[name.text]
    written, line = ("nothing", stated.node.line) if name is None else (shown(name), name.line)
    builder.faults.report(stated.path("name"), written, _SERVED, line)
    return None


def _storage(model: Section, form: ModelFormat | None, builder: FunctionBuilder) -> str | None:
    """Returns the path of the model. A claim is mounted."""
    node = model.scalar("storageUri")
    if node is None:
        builder.faults.report(model.path("storageUri"), "nothing", URIS, model.node.line)
        return None
    origin = SourceLocation(model.path("storageUri"), node.text, node.line)
    scheme, is_uri, rest = node.text.partition("://")
    text = rest if is_uri else node.text
    if is_uri and scheme == "pvc":
        claim, _, path = rest.partition("/")
        if not claim or not path or not builder.context.images:
            builder.fault(origin, URIS)
            return None
        builder.put("volume_mounts", f"{claim}:{MOUNT}:ro", origin)
        text = posixpath.join(MOUNT, path)
    elif is_uri and scheme != "file":
        builder.fault(origin, URIS)
        return None
    is_folder = form in (ModelFormat.HUGGINGFACE, ModelFormat.TRITON)
    if not is_folder and not posixpath.splitext(text)[1]:
        builder.fault(origin, "the model's file, with its suffix (KServe looks for one in a folder)")
        return None
    return builder.place(text, origin, Found.FOLDER if is_folder else Found.FILE)


def _scaling(predictor: Section, builder: FunctionBuilder) -> None:
    """Reads bounds and metric as the annotations of Knative that KServe makes of them. Without a minimum one replica
    stays, as with KServe."""
    nodes: dict[str, tuple[str, Scalar]] = {}
    for key, annotation in _SCALING.items():
        node = predictor.scalar(key)
        if node is not None:
            nodes[annotation] = (predictor.path(key), node)
    texts = {key: node.text for key, (_, node) in nodes.items()}
    metric = texts.get("metric")
    if metric is not None and metric not in METRICS:
        where, node = nodes.pop("metric")
        builder.faults.add(where, node, ", ".join(METRICS))
        texts.pop("metric")
        metric = None
    kind = METRICS.get(metric or "concurrency", rules.KPA_CLASS)
    wrong = rules.faults(texts | {"class": kind})
    if not builder.given("scaling.policy"):
        land("class", SourceLocation(predictor.path("scaleMetric"), kind, predictor.node.line), builder)
    for key in (row.key for row in rules.ROWS if row.key in nodes):
        where, node = nodes[key]
        origin = SourceLocation(where, node.text, node.line)
        if key in wrong:
            builder.fault(origin, wrong[key])
        else:
            land(key, origin, builder)
    if not builder.given("scaling.min_scale"):
        builder.values["scaling.min_scale"] = min(1, builder.whole("scaling.max_scale", 1) or 1)


def _canary(predictor: Section, builder: FunctionBuilder) -> None:
    where = predictor.path("canaryTrafficPercent")
    node = predictor.scalar("canaryTrafficPercent")
    if node is None:
        return
    percent = predictor.text_of(where, node, Whole(1, 100, "%"))
    if percent is not None and percent != "100":
        builder.put("rollout.canary_steps", (float(percent),), SourceLocation(where, percent, node.line))
        message = (
            "is the first step of a canary: after canary-window it gets all traffic if it has kept the SLA,"
            " while KServe waits for the next change"
        )
        builder.note(where, message, node.line)


def _batcher(predictor: Section, server: Server | None, builder: FunctionBuilder) -> None:
    batcher = predictor.section("batcher")
    if batcher is None:
        return
    if server is not None and (server.kind is not ServerKind.MODEL or server.is_triton):
        builder.faults.report(
            batcher.where, "a batcher", "none without a model of the shipped runtime, which batches", batcher.node.line
        )
        return
    size, delay = batcher.text("maxBatchSize", Whole(1, MAX_BATCH)), batcher.text("maxLatency", _MILLISECONDS)
    if size is not None:
        builder.values["batching.max_size"] = int(size)
    if delay is not None:
        builder.values["batching.delay_s"] = int(delay) / 1000
    noted(batcher, ("timeout",), builder)
    batcher.close()
