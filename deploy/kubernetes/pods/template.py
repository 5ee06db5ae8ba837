"""The Pod of one replica: the queue_proxy as a native sidecar, the model server as the container.

Both processes have the variables that they have on one machine (``tidegate.deploy.environment``). When the Pod is
deleted, ``preStop`` of both containers is called at once: the queue_proxy drains, and neither process gets SIGTERM
before the drain has ended. A sidecar's own SIGTERM would come after the model server's end, which is too late.

The containers fulfil the restricted Pod Security Standard.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from tidegate.deploy.environment import Endpoints, Host, proxy_launch, server_launch, threads_of
from tidegate.deploy.placement.ledger import WHOLE, Accelerator, AcceleratorKind, Assignment, demand_of
from tidegate.function import Function, Revision, ServerKind
from tidegate.records.replica_state import ColdStartPhases
from tidegate.schema.units import quantity

Object = dict[str, Any]

LABEL: Final = "tidegate.dev/"
FUNCTION, REVISION, GROUP = f"{LABEL}function", f"{LABEL}revision", f"{LABEL}group"
EPOCH: Final = f"{LABEL}epoch"
"""Annotation of a Pod with the epoch of the control process that made or adopted it."""
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
INJECT: Final = f"{LABEL}inject"
"""Label of Pods that others make and that ask for a queue_proxy, with the value ``true``."""
ACCELERATOR: Final = f"{LABEL}accelerator"
"""Label of the nodes with GPUs of a kind."""
SERVING_PORT, ADMIN_PORT, MODEL_PORT, METRICS_PORT = 8012, 8022, 8080, 9090
QUEUE_PROXY, MODEL_SERVER = "queue-proxy", "model-server"
TOKEN_FOLDER: Final = "/var/run/secrets/tidegate"
LAST_OUTPUT: Final = "FallbackToLogsOnError"
"""Makes the kubelet report the last lines of a container that failed."""
MARGIN_S: Final = 15
"""Time beyond the function's timeout that a Pod gets to end."""
LOST_S: Final = 10
"""Time that Pods have on a node that is not ready or cannot be reached. Kubernetes' own five minutes are long for a
replica that no request reaches."""
MAX_LABEL: Final = 63
_HOSTS: Final = frozenset(
    {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PATH", "TIDEGATE_LISTEN_FD", "SERVING_POD", "TIDEGATE_REPLICA"}
)
"""Variables that name something of one machine, or of one Pod."""
DEVICE_VARIABLES: Final = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})
DEVICE_PREFIX: Final = "CUDA_MPS_"
"""Variables that choose devices, which is for the kubelet: in a Pod they would override what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """What Pods need of their deployment."""

    image: str
    """Image with Tidegate: the queue_proxy, and the model server of models, handlers and commands."""
    token_secret: str = "tidegate-link"
    """Name of the Secret whose key ``token`` has the deployment's token."""
    owner: str | None = None
    """``uid`` of that Secret, with which the Pods are deleted. None: they belong to no object."""
    service_account: str | None = None
    """None: the namespace's default account."""
    namespace: str = "default"
    deployment: str = "tidegate"
    """Name of the deployment that the Pods belong to."""
    epoch: int = 0
    python: str = "python"
    json_logs: bool = False
    limits: Mapping[str, int | float] | None = None
    proxy_cpu: str = "50m"
    proxy_memory: str = "96Mi"


def labels(revision: Revision, accelerator: str, settings: PodSettings) -> dict[str, str]:
    """Returns the labels of everything that belongs to a group."""
    return {
        MANAGED_BY: "tidegate",
        f"{LABEL}deployment": label(settings.deployment),
        FUNCTION: label(revision.function.name),
        REVISION: label(revision.id),
        GROUP: label(accelerator),
    }


def label(text: str) -> str:
    """Returns a text as a label's value: as it is if it may be one, else cut, with a part of its hash."""
    if len(text) <= MAX_LABEL and re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", text):
        return text
    known = hashlib.sha256(text.encode()).hexdigest()[:10]
    kept = re.sub(r"[^A-Za-z0-9._-]", "-", text)[: MAX_LABEL - 11].strip("._-")
    return f"{kept}-{known}" if kept else known


def problems(function: Function) -> list[str]:
    """Returns why a function cannot run as a Pod, in sentences for the developer."""
    found = []
    if function.secrets:
        found.append("`secrets` are files of the machine of `tidegate deploy`, which a Pod does not have")
    if function.socket is not None:
        found.append("`socket` is a path of one machine: a Pod's model server listens on a port")
    if function.python is not None:
        found.append("`python` is an interpreter of one machine: a Pod's is that of its image")
    if function.warmup is not None:
        found.append("`warmup` is a file of one machine")
    metrics = None if function.metrics is None else function.metrics.port
    if taken := [port for port in (function.port, metrics) if port in (SERVING_PORT, ADMIN_PORT)]:
        found.append(f"port {taken[0]} is the queue_proxy's own in a Pod: the model server needs another one")
    chosen = [name for name in function.env if name in DEVICE_VARIABLES or name.startswith(DEVICE_PREFIX)]
    if chosen:
        found.append(f"`env` sets {', '.join(sorted(chosen))}: the kubelet gives a Pod its devices")
    paths = [path for _, path, _ in mounts_of(function)]
    if twice := sorted({path for path in paths if paths.count(path) > 1}):
        found.append(f"`volume-mounts` mounts two volumes at {', '.join(twice)}")
    if function.gpu.mps or function.gpu.time_slices > 1:
        found.append("a part of a GPU (`mps-on`, `gpu-time-slices`): a Pod gets whole ones")
    return found


def owners(settings: PodSettings) -> list[Object]:
    """Returns the owner of each Pod, the deployment's Secret: the Pods are deleted with it, as by an uninstallation. It
    counts as their controller, since ``kubectl drain`` refuses Pods without one."""
    if settings.owner is None:
        return []
    secret = {"apiVersion": "v1", "kind": "Secret", "name": settings.token_secret, "uid": settings.owner}
    return [secret | {"controller": True}]


def mounts_of(function: Function) -> list[tuple[str, str, bool]]:
    """Returns (claim, path, whether it is read only) of each mount that ``volume-mounts`` states."""
    stated = [text.split(":") for text in function.volume_mounts.split(",") if text]
    return [(claim, path, bool(read_only)) for claim, path, *read_only in stated]


def pod_spec(revision: Revision, accelerator: Accelerator, settings: PodSettings, *, restarts: bool) -> Object:
    """Returns ``spec`` of a replica's Pod. ``restarts``: whether the kubelet starts a broken container again."""
    function = revision.function
    spec: Object = {
        "restartPolicy": "Always" if restarts else "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": math.ceil(function.timeout_s) + MARGIN_S,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [proxy_container(revision, accelerator, settings)],
        "containers": [_server(revision, accelerator, settings)],
        "tolerations": [_lost("not-ready"), _lost("unreachable")],
        "volumes": [
            {"name": "token", "secret": {"secretName": settings.token_secret}},
            *({"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in _volumes(function)),
        ],
    }
    if settings.service_account is not None:
        spec["serviceAccountName"] = settings.service_account
    if accelerator.kind is AcceleratorKind.NVIDIA:
        spec["nodeSelector"] = {ACCELERATOR: label(accelerator.name)}
        spec["tolerations"] += [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    return spec


def _volumes(function: Function) -> list[tuple[str, str]]:
    """Returns (name of the volume, claim) of each claim once: the claim may be called as the token's volume is."""
    claims = dict.fromkeys(claim for claim, _, _ in mounts_of(function))
    return [(f"claim-{number}", claim) for number, claim in enumerate(claims)]


def _lost(condition: str) -> Object:
    """Returns how long a Pod stays on a node that Kubernetes has lost."""
    key = f"node.kubernetes.io/{condition}"
    return {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_S}


def proxy_container(revision: Revision, accelerator: Accelerator, settings: PodSettings) -> Object:
    """Returns the queue_proxy as a native sidecar."""
    function = revision.function
    launch = proxy_launch("", revision, accelerator, _endpoints(function), _host(settings), ColdStartPhases())
    name = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    variables = [{"name": each} | name for each in ("SERVING_POD", "TIDEGATE_REPLICA")]
    in_pod = {
        "QUEUE_SERVING_PORT": str(SERVING_PORT),
        "SERVING_NAMESPACE": settings.namespace,
        "TIDEGATE_PRE_STOP": "on",
    }
    variables += _variables(dict(launch.env) | in_pod)
    return {
        "name": QUEUE_PROXY,
        "image": settings.image,
        "command": _words(launch.argv),
        "restartPolicy": "Always",
        "terminationMessagePolicy": LAST_OUTPUT,
        "env": variables,
        "ports": [
            {"name": "http", "containerPort": SERVING_PORT},
            {"name": "metrics", "containerPort": ADMIN_PORT},
        ],
        "resources": {
            "requests": {"cpu": settings.proxy_cpu, "memory": settings.proxy_memory},
            "limits": {"memory": settings.proxy_memory},
        },
        "readinessProbe": _probe("/ready", failures=1),
        "lifecycle": before_stop(),
        "securityContext": _restricted() | {"readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True}],
    }


def _server(revision: Revision, accelerator: Accelerator, settings: PodSettings) -> Object:
    function = _without_copies(revision.function)
    held = Assignment(accelerator=accelerator.name, unit=0, memory_bytes=0, share=WHOLE)
    launch = server_launch(
        Revision(function, revision.number),
        accelerator,
        held,
        _endpoints(function),
        _host(settings),
        function.batching,
        threads_of(function, accelerator),
    )
    is_image = function.server.kind is ServerKind.IMAGE
    container: Object = {
        "name": MODEL_SERVER,
        "image": function.server.target if is_image else settings.image,
        "terminationMessagePolicy": LAST_OUTPUT,
        "env": _variables(launch.env),
        "ports": [{"name": "model", "containerPort": _port(function)}],
        "resources": resources(function, accelerator),
        "lifecycle": before_stop(),
        "securityContext": _restricted(),
    }
    if mounts := mounts_of(function):
        places = {claim: name for name, claim in _volumes(function)}
        container["volumeMounts"] = [
            {"name": places[claim], "mountPath": path, "readOnly": read_only} for claim, path, read_only in mounts
        ]
    if launch.argv:
        container["command"] = _words(launch.argv)
    if not is_image:
        container["workingDir"] = function.workdir
    return container


def _host(settings: PodSettings) -> Host:
    return Host(
        python=settings.python,
        source_root=None,
        token_file=f"{TOKEN_FOLDER}/token",
        epoch=settings.epoch,
        inherited={},
        json_logs=settings.json_logs,
        limits=settings.limits or {},
    )


def _endpoints(function: Function) -> Endpoints:
    port = None if function.metrics is None else function.metrics.port
    words = any("{metrics_port}" in word for word in function.server.argv)
    return Endpoints(
        listen_fd=-1,
        admin=f"0.0.0.0:{ADMIN_PORT}",
        upstream=f"127.0.0.1:{_port(function)}",
        metrics_port=port or (METRICS_PORT if words else None),
    )


def _port(function: Function) -> int:
    return function.port or MODEL_PORT


def _without_copies(function: Function) -> Function:
    """Returns the function with its files as they are named: copies lie in the state directory of one machine."""
    return replace(function, server=replace(function.server, copy=None, modules=None))


def _variables(values: Mapping[str, str]) -> list[Object]:
    """Returns variables by name."""
    kept = {name: text for name, text in values.items() if name not in _HOSTS}
    return [{"name": name, "value": _literal(text)} for name, text in sorted(kept.items())]


def _words(argv: Iterable[str]) -> list[str]:
    return [_literal(word) for word in argv]


def _literal(text: str) -> str:
    """Doubles dollar signs: Kubernetes would replace ``$(NAME)``."""
    return text.replace("$", "$$")


def resources(function: Function, accelerator: Accelerator, cores: int | None = None) -> Object:
    """Returns what a model server requests, which is its limit too. ``cores``: those of a unit of a CPU that it has;
    None: all."""
    requests: dict[str, str] = {}
    if accelerator.kind is AcceleratorKind.CPU and accelerator.cores:
        requests["cpu"] = f"{math.ceil(10 * (cores or accelerator.cores) * accelerator.quota)}m"
    if function.resources.memory_bytes:
        requests["memory"] = str(function.resources.memory_bytes)
    if accelerator.kind is AcceleratorKind.NVIDIA:
        requests["nvidia.com/gpu"] = str(demand_of(function, accelerator).count)
    return {"requests": requests, "limits": dict(requests)} if requests else {}


def cores_of(pod: Mapping[str, Any], accelerator: Accelerator) -> int | None:
    """Returns the cores of its unit that a Pod's model server has. None if it is on no CPU kind."""
    server: Object = next((each for each in pod["spec"]["containers"] if each["name"] == MODEL_SERVER), {})
    limits = server.get("resources", {}).get("limits", {})
    if accelerator.kind is not AcceleratorKind.CPU or "cpu" not in limits:
        return None
    return round(quantity(limits["cpu"]) * 100 / Fraction(accelerator.quota))


def _probe(path: str, *, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": ADMIN_PORT},
        "periodSeconds": 1,
        "timeoutSeconds": 1,
        "failureThreshold": failures,
    }


def before_stop() -> Object:
    """Returns the hooks of a container whose Pod ends with a drain."""
    return {"preStop": {"httpGet": {"path": "/wait-for-drain", "port": ADMIN_PORT}}}


def _restricted() -> Object:
    return {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}}
