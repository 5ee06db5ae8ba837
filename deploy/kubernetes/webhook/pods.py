"""What a Pod becomes that others make (a Deployment, KServe) and that asks for a queue_proxy by a label.

The queue_proxy is the native sidecar of a replica (:mod:`tidegate.deploy.kubernetes.pods.template`), without a
deployment: it has no token, takes no orders, and its requests come from the Pod's own Service. SMIF's webhook rewrites
a job from the annotations of its Table 2; here the same annotations become the environment of the queue_proxy, and the
volumes, GPUs, nodes and environment of the model server.

Nothing that the Pod states is overwritten: what contradicts an annotation is a fault.
"""

import copy
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tidegate.deploy.kubernetes.pods.template import (
    ACCELERATOR,
    ADMIN_PORT,
    DEVICE_PREFIX,
    DEVICE_VARIABLES,
    LABEL,
    MARGIN_S,
    QUEUE_PROXY,
    SERVING_PORT,
    Object,
    PodSettings,
    before_stop,
    label,
    mounts_of,
    problems,
    proxy_container,
)
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind, candidates
from tidegate.errors import Fault, InvalidInputError, TidegateError
from tidegate.function import Function, GpuNeeds, Revision
from tidegate.manifest.annotations import ANNOTATION, PARAMETERS, PREFIX
from tidegate.manifest.builder import ParseContext
from tidegate.manifest.reader import read
from tidegate.manifest.spec import API_VERSION, KIND
from tidegate.schema.files import Elsewhere
from tidegate.schema.units import UnreadableError, plain, quantity, whole

SERVER_CONTAINER, SERVER_PORT = f"{LABEL}server-container", f"{LABEL}server-port"
PROXY_PORT: Final = f"{LABEL}proxy-port"
METRICS: Final = "queue-metrics"
"""Name of the port with the metrics of a queue_proxy."""
DELAY_S: Final = 5.0
"""Time from the deletion of a Pod to its drain, in which Services take it out of their endpoints."""
USER: Final = 10_001
"""User of the image, stated since that of the Pod may be another one."""
GPU: Final = "nvidia.com/gpu"
_ANYWHERE: Final = ("0.0.0.0/0", "::/0")
"""Peers whose forwarding fields are passed on: as without the queue_proxy, the model server judges them."""
_OWN: Final = (SERVER_CONTAINER, SERVER_PORT, PROXY_PORT)
_ANNOTATIONS: Final = "metadata.annotations."
_REQUIRED: Final = {f"{PREFIX}dnn-model": "unknown", f"{PREFIX}gpu-mem-limit": "0.001"}
"""Values in the place of what a GPU requires, where it is missing and the rest is to be judged."""
_NAMES: Final = ("serving.kserve.io/inferenceservice", "app.kubernetes.io/name", "app")
"""Labels that name what a Pod belongs to, the first one that it has."""
# fmt: off
EFFECTIVE: Final = frozenset({
    "concurrency", "concurrency-unit", "timeout", "batch-header", "bytes-per-item", "batch-overhead-bytes", "max-batch",
    "unresponsive-after", "user-metrics", "volume-mounts", "gpu-model", "gpu-mem-limit", "gpu-count", "mps-on",
    "gpu-core-percentage", "gpu-time-slices", "dnn-model", "dnn-quantization", "infer-batch-size",
})
# fmt: on
"""Annotations of a function that mean something for a Pod that Tidegate neither scales nor routes to."""


class RefusedPodError(TidegateError):
    """A Pod cannot become what its annotations ask for. Carries every fault, one a line."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """What the mutation needs beside the Pod."""

    pods: PodSettings
    """Image of the queue_proxy, its resources and its interpreter; its namespace is that of each Pod."""
    accelerators: tuple[Accelerator, ...] = ()
    delay_s: float = DELAY_S


@dataclass(frozen=True, slots=True)
class Mutation:
    """A Pod with its queue_proxy."""

    pod: Object
    warnings: tuple[str, ...] = ()
    """Annotations that have no effect, in sentences."""


def has_proxy(pod: Mapping[str, Any]) -> bool:
    """Returns whether the Pod has a queue_proxy as a sidecar already."""
    return any(each.get("name") == QUEUE_PROXY for each in pod["spec"].get("initContainers", []))


def mutate(pod: Mapping[str, Any], namespace: str, settings: WebhookSettings) -> Mutation:
    """Returns the Pod with a queue_proxy; the same Pod if it has one. Raises RefusedPodError with every fault."""
    if has_proxy(pod):
        return Mutation(dict(pod))
    return _Injection(pod, namespace, settings).done()


class _Injection:
    """One mutation: reads the Pod first, collects the faults, then changes a copy."""

    def __init__(self, pod: Mapping[str, Any], namespace: str, settings: WebhookSettings) -> None:
        self._pod: Object = copy.deepcopy(dict(pod))
        self._spec: Object = self._pod["spec"]
        self._settings = settings
        self._namespace = namespace
        self._faults: list[str] = []
        self._warnings: list[str] = []
        metadata = self._pod.setdefault("metadata", {})
        stated = metadata.get("annotations") or {}
        self._annotations: dict[str, str] = {key: text for key, text in stated.items() if key.startswith(PREFIX)}

    def done(self) -> Mutation:
        self._check_pod()
        server = self._server()
        self._proxy_port = self._port_of(PROXY_PORT, SERVING_PORT)
        port = None if server is None else self._server_port(server)
        function = self._function(server, port)
        kinds = () if function is None else self._kinds(function)
        if server is not None and function is not None:
            self._check_server(server, function)
        if self._faults or server is None or function is None or port is None:
            raise RefusedPodError(self._faults)
        self._change_server(server, port, function, kinds)
        self._change_pod(server, port, function, kinds)
        return Mutation(self._pod, tuple(self._warnings))

    def _fault(self, where: str, got: object, allowed: str) -> None:
        self._faults.append(str(Fault(where, str(got), allowed)))

    # --- reading --------------------------------------------------------------------------------------------------

    def _check_pod(self) -> None:
        if self._spec.get("hostNetwork"):
            self._fault("spec.hostNetwork", "true", "false: ports of the queue_proxy are those of one Pod")
        for number, each in enumerate(self._spec["containers"]):
            if each["name"] == QUEUE_PROXY:
                allowed = "another name: Knative's queue-proxy is there already (KServe: the standard deployment mode)"
                self._fault(f"spec.containers[{number}].name", repr(QUEUE_PROXY), allowed)

    def _server(self) -> Object | None:
        """Returns the container of the model server: the one that is named, or the only one that listens."""
        containers: list[Object] = self._spec["containers"]
        names = [each["name"] for each in containers]
        named = self._annotations.get(SERVER_CONTAINER)
        if named is not None:
            if named not in names:
                self._fault(f"{_ANNOTATIONS}{SERVER_CONTAINER}", repr(named), ", ".join(names))
                return None
            return containers[names.index(named)]
        listening = [each for each in containers if _ports(each)] if len(containers) > 1 else containers
        if len(listening) == 1:
            return listening[0]
        allowed = f"the name of the model server's container, one of {', '.join(names)}"
        self._fault(f"{_ANNOTATIONS}{SERVER_CONTAINER}", "nothing", allowed)
        return None

    def _port_of(self, key: str, default: int) -> int:
        text = self._annotations.get(key)
        if text is None:
            return default
        try:
            found = whole(text)
        except UnreadableError:
            found = 0
        if not 0 < found < 65_536 or found == ADMIN_PORT:
            self._fault(f"{_ANNOTATIONS}{key}", repr(text), f"a port, 1 to 65535, without {ADMIN_PORT}")
            return default
        return found

    def _server_port(self, server: Object) -> int | None:
        """Returns the port at which the model server listens."""
        declared = list(dict.fromkeys(each["containerPort"] for each in _ports(server)))
        if SERVER_PORT not in self._annotations and len(declared) != 1:
            got = f"nothing, with the ports {', '.join(map(str, declared))}" if declared else "nothing"
            self._fault(f"{_ANNOTATIONS}{SERVER_PORT}", got, "the port at which the model server listens")
            return None
        port = self._port_of(SERVER_PORT, declared[0] if len(declared) == 1 else SERVING_PORT - 1)
        if port in (self._proxy_port, ADMIN_PORT):
            allowed = f"another port than the queue_proxy's own, {self._proxy_port} and {ADMIN_PORT}"
            self._fault(f"{_ANNOTATIONS}{SERVER_PORT}", port, allowed)
        self._check_ports(server, port)
        return port

    def _check_ports(self, server: Object, port: int) -> None:
        """Reports the ports that are those of the queue_proxy, and what its port cannot take over."""
        ours, names = (port, self._proxy_port), self._names(server, port)
        sidecars = enumerate(self._spec.get("initContainers") or ())
        places = [(f"spec.containers[{number}]", each) for number, each in enumerate(self._spec["containers"])]
        places += [(f"spec.initContainers[{number}]", each) for number, each in sidecars if "restartPolicy" in each]
        for where, container in places:
            is_server = container is server
            for each in _ports(container):
                number, name = each["containerPort"], each.get("name")
                if number == ADMIN_PORT or (number == self._proxy_port and not is_server):
                    self._fault(f"{where}.ports", number, f"other ports: {PROXY_PORT} moves the queue_proxy's")
                elif is_server and number in ours and each.get("hostPort"):
                    self._fault(f"{where}.ports.hostPort", each["hostPort"], "none: it would go past the queue_proxy")
                elif not is_server and name in names:
                    allowed = f"another name: a Service by the name {name} would go past the queue_proxy"
                    self._fault(f"{where}.ports", repr(name), allowed)

    def _names(self, server: Object, port: int) -> list[str]:
        """Returns the names of the model server's port, which become the queue_proxy's."""
        ours = (port, self._proxy_port)
        return [each["name"] for each in _ports(server) if each["containerPort"] in ours and each.get("name")]

    def _function(self, server: Object | None, port: int | None) -> Function | None:
        """Reads the annotations as those of a function, by the table that deploys use."""
        given = {key: text for key, text in self._annotations.items() if key not in _OWN}
        spec: Object = {"server": {"image": "pod"}, "protocol": "http"}
        if server is not None and port is not None:
            named = {each.get("name", "") for each in _ports(server) if each["containerPort"] == port}
            spec |= {"port": port, "protocol": "grpc" if any(_is_grpc(name) for name in named) else "http"}
            if (path := _readiness(server, port, named)) is not None:
                spec["readiness"] = {"path": path}
        function: Function | None
        try:
            function = self._read(given, spec)
        except InvalidInputError as error:
            self._faults += [str(replace(each, line=None)) for each in error.faults]
            function = self._read_rest(given, spec, error)
        for key in given:
            row = ANNOTATION.get(key.removeprefix(PREFIX))
            if row is None or row.key not in EFFECTIVE:
                self._warnings.append(f"{key} has no effect: Tidegate neither scales this Pod nor routes to it")
        if function is not None:
            self._faults += problems(function)
        return function

    def _read(self, annotations: Mapping[str, str], spec: Object) -> Function:
        """Reads a manifest of these annotations. Raises InvalidInputError."""
        manifest = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": self._name(), "annotations": annotations},
            "spec": spec,
        }
        known = {each.name: each.kind.value for each in self._settings.accelerators}
        context = ParseContext(base="/", policies=PARAMETERS, accelerators=known, images=True, files=Elsewhere())
        (function,) = read(json.dumps(manifest), source="Pod", context=context).functions
        return function

    def _read_rest(self, annotations: Mapping[str, str], spec: Object, error: InvalidInputError) -> Function | None:
        """Reads the annotations that have no fault, so that what else is wrong with them is reported too."""
        wrong = {each.where.removeprefix(_ANNOTATIONS) for each in error.faults}
        kept = {key: text for key, text in annotations.items() if key not in wrong}
        kept |= {key: text for key, text in _REQUIRED.items() if key in wrong}
        try:
            return self._read(kept, spec)
        except InvalidInputError:  # Faults that follow from the ones before.
            return None

    def _name(self) -> str:
        """Returns the name of what the Pod belongs to, for its metrics: a DNS label."""
        metadata = self._pod["metadata"]
        marks = metadata.get("labels") or {}
        owner = next((each["name"] for each in metadata.get("ownerReferences") or () if each.get("controller")), "")
        owner = owner.removesuffix(f"-{marks.get('pod-template-hash', '')}")
        found = [*(marks.get(each) for each in _NAMES), owner, metadata.get("generateName"), metadata.get("name")]
        for text in filter(None, found):
            if name := re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:63].strip("-"):
                return name
        return "pod"

    def _kinds(self, function: Function) -> tuple[str, ...]:
        """Returns the names of the GPUs that the Pod may run on; empty if it asks for none."""
        if function.gpu == GpuNeeds():
            return ()
        fitting = candidates(self._settings.accelerators, function)
        found = sorted(each.name for each in fitting if each.kind is AcceleratorKind.NVIDIA)
        if not found and not self._faults:
            known = [each for each in self._settings.accelerators if each.kind is AcceleratorKind.NVIDIA]
            there = ", ".join(f"{each.name} ({each.count} with {each.memory_bytes / 1e9:.1f} GB)" for each in known)
            gpu = function.gpu
            got = f"{gpu.count} with {plain(gpu.memory_gb or 0)} GB on {gpu.model or 'any GPU'}"
            self._fault(f"{_ANNOTATIONS}{PREFIX}gpu-mem-limit", got, f"what is there: {there or 'none'}")
        return tuple(found)

    def _check_server(self, server: Object, function: Function) -> None:
        where = f"spec.containers[{self._spec['containers'].index(server)}]"
        hook = (server.get("lifecycle") or {}).get("preStop") or {}
        if hook and set(hook) != {"sleep"}:
            allowed = "no hook, or sleep: the drain of the queue_proxy takes its place"
            self._fault(f"{where}.lifecycle.preStop", ", ".join(sorted(hook)), allowed)
        mounted = {each["mountPath"] for each in server.get("volumeMounts") or ()}
        for _, path, _ in mounts_of(function):
            if path in mounted:
                self._fault(f"{where}.volumeMounts", path, f"other paths than those of {PREFIX}volume-mounts")
        if function.gpu != GpuNeeds():
            stated = (server.get("resources") or {}).get("limits", {}).get(GPU)
            if stated is not None and str(stated) != str(function.gpu.count):
                self._fault(f"{where}.resources.limits.{GPU}", stated, f"{function.gpu.count} ({PREFIX}gpu-count)")
            for each in server.get("env") or ():
                if each["name"] in DEVICE_VARIABLES or each["name"].startswith(DEVICE_PREFIX):
                    self._fault(
                        f"{where}.env", each["name"], "no variable that chooses devices: the kubelet gives them"
                    )

    # --- changing -------------------------------------------------------------------------------------------------

    def _change_server(self, server: Object, port: int, function: Function, kinds: tuple[str, ...]) -> None:
        slept = ((server.get("lifecycle") or {}).get("preStop") or {}).get("sleep") or {}
        self._delay_s = max(self._settings.delay_s, float(slept.get("seconds", 0)))
        server["lifecycle"] = {**(server.get("lifecycle") or {}), **before_stop()}
        self._take_names(server, port)
        if function.volume_mounts:
            volumes = self._volumes(function)
            mounts = [
                {"name": volumes[claim], "mountPath": path, "readOnly": read_only}
                for claim, path, read_only in mounts_of(function)
            ]
            server["volumeMounts"] = [*(server.get("volumeMounts") or ()), *mounts]
        if kinds:
            resources: Object = dict(server.get("resources") or {})
            for each in ("limits", "requests"):
                resources[each] = {**(resources.get(each) or {}), GPU: str(function.gpu.count)}
            server["resources"] = resources
        stated = server.get("env") or []
        names = {each["name"] for each in stated}
        ours = [{"name": name, "value": text} for name, text in _model_variables(function, kinds).items()]
        if ours:  # First, so that the Pod's own variables and arguments can name them.
            server["env"] = [*(each for each in ours if each["name"] not in names), *stated]

    def _take_names(self, server: Object, port: int) -> None:
        """Moves the names of the model server's port to the queue_proxy, so that Services which select it by name send
        their requests there. The container's own probes and hooks keep the number."""
        moved = self._names(server, port)
        self._port_names = moved or ["http"]
        taken = [each for each in _ports(server) if each["containerPort"] in (port, self._proxy_port)]
        others = [each for each in server.get("ports") or () if each not in taken]
        server["ports"] = [*others, {"containerPort": port, "protocol": "TCP"}]
        asking = [server.get(kind) for kind in ("startupProbe", "readinessProbe", "livenessProbe")]
        for each in (*asking, server["lifecycle"].get("postStart")):
            for way in ("httpGet", "tcpSocket"):
                target = (each or {}).get(way)
                if target is not None and target.get("port") in moved:
                    target["port"] = port

    def _volumes(self, function: Function) -> dict[str, str]:
        """Adds the volumes of claims; returns their names by claim."""
        claims = dict.fromkeys(claim for claim, _, _ in mounts_of(function))
        names = {claim: f"tidegate-claim-{number}" for number, claim in enumerate(claims)}
        made = [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for claim, name in names.items()]
        self._spec["volumes"] = [*(self._spec.get("volumes") or ()), *made]
        return names

    def _change_pod(self, server: Object, port: int, function: Function, kinds: tuple[str, ...]) -> None:
        spec = self._spec
        is_guaranteed = all(_is_guaranteed(each) for each in (*spec["containers"], *(spec.get("initContainers") or ())))
        sidecar = self._sidecar(function, kinds, is_guaranteed=is_guaranteed)
        spec["initContainers"] = [sidecar, *(spec.get("initContainers") or ())]
        least = math.ceil(function.timeout_s + self._delay_s) + MARGIN_S
        spec["terminationGracePeriodSeconds"] = max(least, spec.get("terminationGracePeriodSeconds") or 0)
        if kinds:
            spec["affinity"] = _on_nodes(spec.get("affinity") or {}, [label(name) for name in kinds])
            wanted = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
            stated = spec.get("tolerations") or []
            spec["tolerations"] = stated if wanted in stated else [*stated, wanted]

    def _sidecar(self, function: Function, kinds: tuple[str, ...], *, is_guaranteed: bool) -> Object:
        group = (kinds[0] if len(kinds) == 1 else "gpu") if kinds else "cpu"
        accelerator = Accelerator(name=group, kind=AcceleratorKind.CPU, count=1, memory_bytes=0)
        settings = replace(self._settings.pods, namespace=self._namespace)
        made = proxy_container(Revision(function, 1), accelerator, settings)
        del made["volumeMounts"]
        metadata = self._pod["metadata"]
        owner = next((each["name"] for each in metadata.get("ownerReferences") or () if each.get("controller")), None)
        changed = {
            "QUEUE_SERVING_PORT": str(self._proxy_port),
            "SERVING_REVISION": owner or function.name,
            "TIDEGATE_PRE_STOP_DELAY_SECONDS": plain(self._delay_s),
            "TIDEGATE_LIMITS": json.dumps({**(settings.limits or {}), "trusted_proxies": _ANYWHERE}),
        }
        left_out = {*changed, "TIDEGATE_TOKEN_FILE", "TIDEGATE_EPOCH"}
        made["env"] = [each for each in made["env"] if each["name"] not in left_out]
        made["env"] += [{"name": name, "value": text} for name, text in changed.items()]
        made["ports"] = [
            *({"name": each, "containerPort": self._proxy_port, "protocol": "TCP"} for each in self._port_names),
            {"name": METRICS, "containerPort": ADMIN_PORT, "protocol": "TCP"},
        ]
        made["securityContext"] |= {"runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}}
        if is_guaranteed:  # One container without equal limits would make the Pod Burstable.
            made["resources"]["limits"] = dict(made["resources"]["requests"])
        return made


def _ports(container: Mapping[str, Any]) -> list[Object]:
    """Returns the TCP ports that a container declares."""
    return [each for each in container.get("ports") or () if each.get("protocol", "TCP") == "TCP"]


def _is_grpc(name: str) -> bool:
    """Returns whether a port of this name speaks gRPC, by the convention of Knative, KServe and Istio."""
    return name in ("grpc", "h2c") or name.startswith("grpc-")


def _readiness(server: Mapping[str, Any], port: int, names: set[str]) -> str | None:
    """Returns the path of the container's own readiness probe, if it asks the model server."""
    asked = (server.get("readinessProbe") or {}).get("httpGet") or {}
    is_plain = asked.get("scheme", "HTTP") == "HTTP"
    return str(asked.get("path") or "/") if is_plain and asked.get("port") in {port, *names} else None


def _model_variables(function: Function, kinds: tuple[str, ...]) -> dict[str, str]:
    """Returns SMIF's key into a model repository as variables: ``args`` may name them as ``$(NAME)``."""
    dnn = function.dnn
    if dnn.name is None:
        return {}
    found = {
        "TIDEGATE_DNN_MODEL": dnn.name,
        "TIDEGATE_DNN_QUANTIZATION": dnn.quantization.value,
        "TIDEGATE_INFER_BATCH_SIZE": str(dnn.batch_size),
    }
    if mounts := mounts_of(function):
        folder = f"{mounts[0][1].rstrip('/')}/{dnn.name}"
        kind = kinds[0] if len(kinds) == 1 else "any"
        found["TIDEGATE_MODEL_PATH"] = f"{folder}/{kind}/{dnn.quantization.value}/b{dnn.batch_size}"
    return found


def _on_nodes(affinity: Mapping[str, Any], kinds: list[str]) -> Object:
    """Returns an affinity that allows nodes of these kinds of GPU alone, beside what it states. Its terms are
    alternatives, so that each of them gets the condition."""
    wanted = {"key": ACCELERATOR, "operator": "In", "values": kinds}
    nodes: Object = dict(affinity.get("nodeAffinity") or {})
    required = nodes.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or [{}]
    with_kinds = [{**each, "matchExpressions": [*(each.get("matchExpressions") or ()), wanted]} for each in terms]
    nodes["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": with_kinds}
    return {**affinity, "nodeAffinity": nodes}


def _is_guaranteed(container: Mapping[str, Any]) -> bool:
    """Returns whether a container has limits of cores and memory that equal what it requests."""
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    try:
        return all(
            each in limits and quantity(str(requests.get(each, limits[each]))) == quantity(str(limits[each]))
            for each in ("cpu", "memory")
        )
    except UnreadableError:  # Forms that API servers take and manifests do not: 1E, 1e-3.
        return False
