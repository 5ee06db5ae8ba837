"""Knative ``Service`` manifests (``serving.knative.dev/v1``), accepted as they are.

A container with a ``command`` is a command server here, one with only an image runs on Kubernetes. Whatever cannot
be honoured is a fault where the function would not work without it, else a note; nothing is dropped in silence.
"""

import math
import re
from collections.abc import Mapping
from typing import Final

from tidegate.function import Function, Protocol, Server, ServerKind
from tidegate.manifest import knative_annotations as rules
from tidegate.manifest.annotations import PREFIX
from tidegate.manifest.builder import NAME_KIND, UNSERVED, FunctionBuilder, SourceLocation
from tidegate.manifest.policy_parameters import HPA_PARAMETERS
from tidegate.manifest.spec import IMAGE, PROBE_PATH, VARIABLE
from tidegate.schema.files import Found
from tidegate.schema.rows import Kind, Row, Whole
from tidegate.schema.units import UnreadableError, go_int, quantity
from tidegate.schema.yaml_nodes import Node, Pair, Scalar, Section, nearest, shown, shown_key

KNATIVE_API_VERSION: Final = "serving.knative.dev/v1"
KNATIVE_KIND: Final = "Service"
PROGRESS_DEADLINE: Final = "serving.knative.dev/progress-deadline"
ROLLOUT_DURATIONS: Final = ("serving.knative.dev/rollout-duration", "serving.knative.dev/rolloutDuration")
DEFAULT_DEADLINE_S: Final = 600.0
"""Knative's time for a revision to become ready."""
DEFAULT_TIMEOUT_S: Final = 300.0

# Written by the cluster into what it shows; no effect when read back.
_EXPORTED: Final = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
    "selfLink",
    "ownerReferences",
    "finalizers",
)
# Known to Knative, without effect here.
_POD_NOTED: Final = (
    "serviceAccountName",
    "imagePullSecrets",
    "enableServiceLinks",
    "automountServiceAccountToken",
    "nodeSelector",
    "tolerations",
    "affinity",
    "runtimeClassName",
    "schedulerName",
    "priorityClassName",
    "topologySpreadConstraints",
    "dnsPolicy",
    "dnsConfig",
    "hostAliases",
    "securityContext",
    "responseStartTimeoutSeconds",
    "idleTimeoutSeconds",
)
_CONTAINER_NOTED: Final = (
    "imagePullPolicy",
    "livenessProbe",
    "startupProbe",
    "securityContext",
    "lifecycle",
    "terminationMessagePath",
    "terminationMessagePolicy",
)
_PROBE_NOTED: Final = (
    "initialDelaySeconds",
    "periodSeconds",
    "timeoutSeconds",
    "successThreshold",
    "failureThreshold",
)
# What a server would not work without.
_POD_REFUSED: Final = {"volumes": "no volumes: put files beside the manifest", "initContainers": "one container"}
_CONTAINER_REFUSED: Final = {
    "volumeMounts": "no volumes: put files beside the manifest",
    "envFrom": "variables with a value of their own, under env",
}

CONTAINER_CONCURRENCY: Final = Row(
    key="containerConcurrency", kind=Whole(0, 1000), lands="concurrency", sentence="Slots of one replica; 0: no limit."
)
TIMEOUT_SECONDS: Final = Whole(0, 600, "s")
HPA_KEYS: Final = frozenset(row.key for row in HPA_PARAMETERS)
"""Annotations that mean something to policy hpa as well."""


def read_service(root: Section, draft: FunctionBuilder) -> Function | None:
    """The function of a Service; None, with faults, where there is none."""
    metadata = root.section("metadata")
    name = None if metadata is None else _metadata(metadata, draft)
    spec = _must(root, "spec")
    template = None if spec is None else _must(spec, "template")
    server = None if template is None else _template(template, draft)
    if spec is not None:
        _traffic(spec, draft)
        spec.close()
    if metadata is None and root.node.get("metadata") is None:
        draft.faults.say("metadata", "nothing", "a mapping with at least a name", root.node.line)
    _noted(root, ("status",), draft)
    root.close()
    function = draft.finish(name or "nameless", server or Server(kind=ServerKind.COMMAND))
    return None if name is None or server is None else function


def _must(section: Section, key: str) -> Section | None:
    """The section under ``key``, which must be there."""
    if section.node.get(key) is None:
        section.take(key)
        section.faults.say(section.path(key), "nothing", "a mapping", section.node.line)
        return None
    return section.section(key)


def _noted(section: Section, keys: tuple[str, ...], draft: FunctionBuilder) -> None:
    for key in keys:
        node = section.take(key)
        if node is not None:
            draft.note(section.path(key), "has no effect here", node.line)


def _refused(section: Section, keys: Mapping[str, str], draft: FunctionBuilder) -> None:
    for key, allowed in keys.items():
        node = section.take(key)
        if node is not None:
            draft.faults.add(section.path(key), node, allowed)


# --- metadata and annotations ----------------------------------------------------------------------------------------


def _metadata(metadata: Section, draft: FunctionBuilder) -> str | None:
    name = metadata.text("name", NAME_KIND)
    if metadata.node.get("name") is None:
        draft.faults.say(metadata.path("name"), "nothing", NAME_KIND.allowed, metadata.node.line)
    annotations = metadata.section("annotations")
    for pair in () if annotations is None else annotations.node.pairs:
        where = f"{metadata.path('annotations')}.{shown_key(pair.key)}"
        if pair.key.startswith((rules.AUTOSCALING, PREFIX)):
            draft.faults.say(where, "an annotation of the Service", "under spec.template.metadata", pair.line)
        else:
            _rollout(pair, where, draft)
    _noted(metadata, ("namespace", "labels", *_EXPORTED), draft)
    metadata.close()
    return name


def _rollout(pair: Pair, where: str, draft: FunctionBuilder) -> None:
    """A rollout's duration, as Knative reads it; every other annotation has no effect here."""
    if pair.key not in ROLLOUT_DURATIONS:
        draft.note(where, "has no effect here", pair.line)
        return
    seconds = _seconds(pair, where, draft)
    if seconds is not None and isinstance(pair.value, Scalar):
        draft.put("rollout.duration_s", float(seconds), SourceLocation(where, pair.value.text, pair.line))


def _seconds(pair: Pair, where: str, draft: FunctionBuilder) -> int | None:
    if isinstance(pair.value, Scalar):
        try:
            return rules.seconds(pair.value.text)
        except UnreadableError:
            pass
    draft.faults.add(where, pair.value, "a duration of whole seconds, 0s or more (90s, 1m30s)")
    return None


def _template(template: Section, draft: FunctionBuilder) -> Server | None:
    metadata = template.section("metadata")
    if metadata is not None:
        annotations = metadata.section("annotations")
        if annotations is not None:
            _annotations(annotations, draft)
        _noted(metadata, ("name", "namespace", "labels", *_EXPORTED), draft)
        metadata.close()
    draft.values.setdefault("readiness.start_timeout_s", DEFAULT_DEADLINE_S)
    spec = _must(template, "spec")
    server = None if spec is None else _pod(spec, draft)
    template.close()
    if not draft.given("scaling.policy"):
        draft.put("scaling.policy", "kpa", SourceLocation(KNATIVE_KIND, "kpa"))
    return server


def _annotations(annotations: Section, draft: FunctionBuilder) -> None:
    spelt: dict[str, str] = {}
    scaling: dict[str, Scalar] = {}
    for pair in annotations.node.pairs:
        where = annotations.path(shown_key(pair.key))
        if pair.key.startswith(PREFIX):
            draft.annotation(pair, where, spelt)
        elif pair.key.startswith(rules.AUTOSCALING):
            if isinstance(pair.value, Scalar):
                scaling[pair.key.removeprefix(rules.AUTOSCALING)] = pair.value
            else:
                draft.faults.add(where, pair.value, "one value")
        elif pair.key == PROGRESS_DEADLINE:
            deadline = _seconds(pair, where, draft)
            draft.values["readiness.start_timeout_s"] = float(deadline or DEFAULT_DEADLINE_S)
        else:
            draft.note(where, "has no effect here", pair.line)
    _scaling(annotations, scaling, draft)


def _scaling(annotations: Section, scaling: Mapping[str, Scalar], draft: FunctionBuilder) -> None:
    """What ``autoscaling.knative.dev/`` says, checked as Knative checks it."""
    for key, node in scaling.items():
        where = annotations.path(rules.AUTOSCALING + shown_key(key))
        dashed = rules.SPELLINGS.get(key)
        if dashed is None:
            draft.note(where, f"is unknown and has no effect{nearest(key, rules.SPELLINGS)}", node.line)
        elif dashed != key and dashed in scaling:
            draft.note(where, f"has no effect: {dashed} is given as well", node.line)
    texts = rules.chosen({key: node.text for key, node in scaling.items()})
    wrong = rules.faults(texts)
    for key, text in texts.items():
        spelling = key if key in scaling else next(s for s in scaling if rules.SPELLINGS.get(s) == key)
        origin = SourceLocation(annotations.path(rules.AUTOSCALING + spelling), text, scaling[spelling].line)
        if key in wrong:
            draft.fault(origin, wrong[key])
        else:
            _land(key, origin, draft)


def _land(key: str, origin: SourceLocation, draft: FunctionBuilder) -> None:
    """Puts one valid annotation where it belongs in the function."""
    row = rules.ROW[key]
    if key == "class":
        policy = {rules.KPA_CLASS: "kpa", rules.HPA_CLASS: "hpa"}.get(origin.text, origin.text)
        draft.put(row.lands, policy, origin)
    elif key == "initial-scale":
        draft.put(row.lands, _initial(origin, draft), origin)
    elif key in ("min-scale", "max-scale"):
        draft.put(row.lands, go_int(origin.text), origin)
    elif key == "metric-aggregation-algorithm" and not row.accepts(origin.text):
        draft.note(origin.where, "is unknown; the average is linear", origin.line)
    elif draft.values.get("scaling.policy") == "hpa" and key not in HPA_KEYS:
        draft.note(origin.where, "has no effect with Knative's class hpa", origin.line)
    else:
        draft.parameters.setdefault(key, origin)


def _initial(origin: SourceLocation, draft: FunctionBuilder) -> int:
    """Knative starts with the larger of initial-scale and min-scale; here max-scale holds from the start.

    The rows put min-scale and max-scale before this one, so they stand in the draft by now.
    """
    value = max(go_int(origin.text), draft.whole("scaling.min_scale", 0))
    high = draft.whole("scaling.max_scale", 0)
    if high and value > high:
        draft.note(origin.where, f"is above max-scale, which holds from the start: {high}", origin.line)
        return high
    return value


# --- the revision's spec ---------------------------------------------------------------------------------------------


def _pod(spec: Section, draft: FunctionBuilder) -> Server | None:
    where = spec.path("containerConcurrency")
    draft.scalar(CONTAINER_CONCURRENCY, spec.take("containerConcurrency"), where)
    if not draft.given("concurrency"):
        draft.values["concurrency"] = 0
    timeout = spec.scalar("timeoutSeconds")
    if timeout is not None:
        seconds = spec.text_of(spec.path("timeoutSeconds"), timeout, TIMEOUT_SECONDS)
        origin = SourceLocation(spec.path("timeoutSeconds"), timeout.text, timeout.line)
        draft.put("timeout_s", float(seconds or 0) or DEFAULT_TIMEOUT_S, origin)
    _noted(spec, _POD_NOTED, draft)
    _refused(spec, _POD_REFUSED, draft)
    containers = spec.items("containers")
    spec.close()
    where = f"{spec.path('containers')}[0]"
    if containers is None or len(containers) != 1:
        found = "nothing" if containers is None else f"{len(containers)} containers"
        draft.faults.say(spec.path("containers"), found, "one container", spec.node.line)
        return None
    container = Section.of(containers[0], where, draft.faults)
    return None if container is None else _container(container, draft)


def _container(container: Section, draft: FunctionBuilder) -> Server | None:
    container.take("name")
    port = _port(container, draft)
    env = _env(container, draft)
    server = _server(container, env, draft)
    _listen(container, port, server, draft)
    _workdir(container, server, draft)
    _probe(container, port, draft)
    _resources(container, draft)
    _noted(container, _CONTAINER_NOTED, draft)
    _refused(container, _CONTAINER_REFUSED, draft)
    container.close()
    return server


def _server(container: Section, env: Mapping[str, str], draft: FunctionBuilder) -> Server | None:
    image, command, args = container.text("image", IMAGE), container.texts("command"), container.texts("args")
    variables = {**env, "PORT": "{port}"}
    argv = tuple(expand(node.text, variables) for node in (*(command or ()), *(args or ())))
    if any(draft.has_nul(container.path("command"), node) for node in (*(command or ()), *(args or ()))):
        return None
    if draft.terms.images and image is not None:
        return Server(kind=ServerKind.IMAGE, target=image, argv=argv)
    if command:
        node = container.take("image")
        if node is not None:
            draft.note(container.path("image"), "is not used: the command runs on this machine", node.line)
        return Server(kind=ServerKind.COMMAND, argv=argv)
    if container.node.get("image") is not None or draft.terms.images:
        node = container.take("image") or container.node
        told = "a command beside the image: images run on Kubernetes only" if not draft.terms.images else IMAGE.allowed
        draft.faults.add(container.path("image"), node, told)
    else:
        draft.faults.say(
            container.path("command"), "nothing", "a command (or, on Kubernetes, an image)", container.node.line
        )
    return None


_REFERENCE: Final = re.compile(r"\$(?:(\$)|\(([^()]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Kubernetes' references in commands and variables: ``$(NAME)`` of a known name; ``$$`` is one ``$``."""
    return _REFERENCE.sub(lambda found: "$" if found[1] else variables.get(found[2], found[0]), text)


def _env(container: Section, draft: FunctionBuilder) -> dict[str, str]:
    env: dict[str, str] = {}
    for index, node in enumerate(container.items("env") or ()):
        item = Section.of(node, f"{container.path('env')}[{index}]", draft.faults)
        if item is None:
            continue
        name, value = item.text("name", VARIABLE), item.scalar("value")
        _refused(item, {"valueFrom": "a value: there are no secrets or config maps here"}, draft)
        item.close()
        if item.node.get("name") is None:
            draft.faults.say(item.path("name"), "nothing", VARIABLE.allowed, item.node.line)
        elif name in env:
            draft.faults.say(item.path("name"), shown(name or ""), "each name once", item.node.line)
        elif name is not None and not (value is not None and draft.has_nul(item.path("value"), value)):
            env[name] = expand(value.text, env) if value is not None else ""
            if value is not None and "$(PORT)" in env[name]:
                draft.faults.add(item.path("value"), value, "no reference to PORT, which is known to the command only")
    draft.values["env"] = env
    return env


def _port(container: Section, draft: FunctionBuilder) -> int | None:
    """The container's port; its name says the protocol."""
    ports = container.items("ports") or ()
    draft.values["protocol"] = Protocol.HTTP
    if len(ports) > 1:
        draft.faults.say(container.path("ports"), f"{len(ports)} ports", "one port", ports[1].line)
    item = Section.of(ports[0], f"{container.path('ports')}[0]", draft.faults) if ports else None
    if item is None:
        return None
    name, port = item.scalar("name"), item.text("containerPort", Whole(1, 65535))
    if name is not None and name.text not in ("", "http1", "h2c", "user-port"):
        draft.faults.add(item.path("name"), name, "http1, h2c")
    if name is not None and name.text == "h2c":
        draft.values["protocol"] = Protocol.GRPC
    transport = item.scalar("protocol")
    if transport is not None and transport.text != "TCP":
        draft.faults.add(item.path("protocol"), transport, "TCP")
    item.close()
    return None if port is None else int(port)


def _listen(container: Section, port: int | None, server: Server | None, draft: FunctionBuilder) -> None:
    """A Knative server listens on ``$PORT``; here that is another port for each replica on one machine."""
    if server is None or port is None:
        return
    is_written = any(re.search(rf"(?<![0-9]){port}(?![0-9])", word) for word in server.argv)
    if server.kind is ServerKind.IMAGE or is_written:
        draft.values["port"] = port
    if server.kind is ServerKind.COMMAND:
        told = (
            f"its command says {port}: one replica per machine; write $(PORT) to run several"
            if is_written
            else "each replica gets a free port as PORT, as with Knative, but another one than this"
        )
        node = container.take("ports")
        draft.note(container.path("ports"), told, None if node is None else node.line)


def _workdir(container: Section, server: Server | None, draft: FunctionBuilder) -> None:
    node = container.scalar("workingDir")
    draft.values["workdir"] = draft.terms.base
    if node is None:
        return
    if server is not None and server.kind is ServerKind.IMAGE:
        draft.values["workdir"] = node.text
    else:
        del draft.values["workdir"]
        where = container.path("workingDir")
        draft.path("workdir", node.text, SourceLocation(where, node.text, node.line), Found.FOLDER)


def _probe(container: Section, port: int | None, draft: FunctionBuilder) -> None:
    """Readiness: a GET of a path, or that the port accepts, which also stands for what cannot be probed from here."""
    draft.values["readiness.path"] = None
    probe = container.section("readinessProbe")
    if probe is None:
        return
    get, tcp = probe.section("httpGet"), probe.section("tcpSocket")
    if get is not None:
        path = get.text("path", PROBE_PATH)
        draft.values["readiness.path"] = f"/{(path or '/').removeprefix('/')}"
        _probed_port(get, port)
        scheme = get.scalar("scheme")
        if scheme is not None and scheme.text not in ("", "HTTP"):
            draft.faults.add(get.path("scheme"), scheme, "HTTP")
        _noted(get, ("host", "httpHeaders"), draft)
        get.close()
    if tcp is not None:
        _probed_port(tcp, port)
        _noted(tcp, ("host",), draft)
        tcp.close()
    for key in ("exec", "grpc"):
        node = probe.take(key)
        if node is not None:
            draft.note(probe.path(key), "is not run here: ready when the port accepts", node.line)
    _noted(probe, _PROBE_NOTED, draft)
    probe.close()


def _probed_port(section: Section, port: int | None) -> None:
    node = section.scalar("port")
    if node is not None and node.text not in ("0", "", "http1", "h2c", "user-port", str(port or 8080)):
        section.faults.add(section.path("port"), node, f"the container's port ({port or 8080})")


class _Quantity:
    """A Kubernetes quantity above zero."""

    allowed = "a quantity above 0 (500m, 2, 1.5Gi)"
    unit = ""

    def read(self, text: str) -> int:
        value = quantity(text)
        if value <= 0:
            raise UnreadableError(text)
        return math.ceil(value)


_QUANTITY: Final[Kind] = _Quantity()
_GPUS: Final = "nvidia.com/gpu"


def _resources(container: Section, draft: FunctionBuilder) -> None:
    """Memory, whole processors and GPUs of the limits; a request counts where memory has no limit."""
    resources = container.section("resources")
    if resources is None:
        return
    limits, requests = resources.section("limits"), resources.section("requests")
    amounts: dict[str, int] = {}
    for section in (requests, limits):
        if section is None:
            continue
        for key in ("memory", "cpu", _GPUS):
            text = section.text(key, _QUANTITY)
            if text is not None and (section is limits or key == "memory"):
                amounts[key] = int(text)
            if text is not None and key == _GPUS and section is limits and int(text) > 1:
                draft.note(section.path(key), f"is kept, but has no effect: {UNSERVED['gpu.count']}", section.node.line)
        if section is requests:
            _noted(section, ("cpu", _GPUS), draft)
        _noted(section, ("ephemeral-storage",), draft)
        section.close()
    _noted(resources, ("claims",), draft)
    resources.close()
    if _GPUS in amounts and draft.terms.accelerators is not None:
        _place_on_gpus(limits or resources, draft.terms.accelerators, draft)
    lands = {"memory": "resources.memory_bytes", "cpu": "resources.threads", _GPUS: "gpu.count"}
    draft.values |= {lands[key]: amount for key, amount in amounts.items() if not draft.given(lands[key])}


def _place_on_gpus(limits: Section, accelerators: Mapping[str, str], draft: FunctionBuilder) -> None:
    """What asks for a GPU gets one where there is any: a CPU kind, cheaper, would else be taken first."""
    gpus = tuple(sorted(name for name, kind in accelerators.items() if kind != "cpu"))
    if gpus:
        draft.values["accelerators"] = gpus
    else:
        draft.note(
            limits.path(_GPUS), "has no effect: there is no GPU here, it runs on what there is", limits.node.line
        )


def _traffic(spec: Section, draft: FunctionBuilder) -> None:
    """All traffic to the latest revision, which is what a new revision gets here."""
    targets = spec.items("traffic")
    for index, node in enumerate(targets or ()):
        target = Section.of(node, f"{spec.path('traffic')}[{index}]", draft.faults)
        if target is None:
            continue
        latest, percent = target.scalar("latestRevision"), target.scalar("percent")
        _noted(target, ("tag", "url"), draft)
        _refused(target, {"revisionName": "latestRevision: true", "configurationName": "latestRevision: true"}, draft)
        target.close()
        _is_all(target, "latestRevision", latest, ("true",))
        _is_all(target, "percent", percent, ("100",) if len(targets or ()) == 1 else ("0", "100"))


def _is_all(target: Section, key: str, node: Node | None, allowed: tuple[str, ...]) -> None:
    if isinstance(node, Scalar) and node.text not in allowed:
        told = f"{allowed[-1]}: all traffic goes to the latest revision"
        target.faults.add(target.path(key), node, told)
