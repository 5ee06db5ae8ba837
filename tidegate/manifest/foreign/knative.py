"""Knative ``Service`` manifests (``serving.knative.dev/v1``), accepted as they are.

A container with a ``command`` becomes a command server here; one with only an image runs on Kubernetes. A key that
cannot be honoured is a fault if the function would not work without it, else a note; nothing is dropped silently.
"""

import math
import re
from collections.abc import Mapping
from typing import Final

from tidegate.function import Function, Protocol, Server, ServerKind
from tidegate.manifest.annotations import PREFIX
from tidegate.manifest.builder import NAME_KIND, SPEC_FLAG, FunctionBuilder, SourceLocation
from tidegate.manifest.foreign import knative_annotations as rules
from tidegate.manifest.policy_parameters import HPA_PARAMETERS
from tidegate.manifest.spec import IMAGE, PROBE_PATH, VARIABLE
from tidegate.schema.files import Found
from tidegate.schema.rows import Kind, Row, Whole
from tidegate.schema.units import UnreadableError, go_int, quantity
from tidegate.schema.yaml_nodes import Node, Pair, Scalar, Section, nearest, shown, shown_key

KNATIVE_API_VERSION: Final = "serving.knative.dev/v1"
KNATIVE_KIND: Final = "Service"
KNATIVE: Final = "Knative"
PROGRESS_DEADLINE: Final = "serving.knative.dev/progress-deadline"
ROLLOUT_DURATIONS: Final = ("serving.knative.dev/rollout-duration", "serving.knative.dev/rolloutDuration")
DEFAULT_DEADLINE_S: Final = 600.0
"""Knative's time for a revision to become ready."""
DEFAULT_TIMEOUT_S: Final = 300.0

# Keys that the cluster adds to exported manifests; no effect when read back.
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
# Keys known to Knative that have no effect here.
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
# Keys without which a server would not work.
_NO_VOLUMES: Final = (
    "no volumes: put files beside the manifest; on Kubernetes, tidegate.dev/volume-mounts mounts claims"
)
_POD_REFUSED: Final = {"volumes": _NO_VOLUMES, "initContainers": "one container"}
_CONTAINER_REFUSED: Final = {
    "volumeMounts": _NO_VOLUMES,
    "envFrom": "variables with a value of their own, under env",
}

CONTAINER_CONCURRENCY: Final = Row(
    key="containerConcurrency",
    kind=Whole(0, 1000),
    field="concurrency",
    description="Slots of one replica; 0: no limit.",
)
TIMEOUT_SECONDS: Final = Whole(0, 600, "s")
HPA_KEYS: Final = frozenset(row.key for row in HPA_PARAMETERS)
"""Annotations that also have a meaning for policy hpa."""


def read_service(root: Section, builder: FunctionBuilder) -> Function | None:
    """Returns the function of a Service. Adds faults and returns None if it is invalid."""
    metadata = root.section("metadata")
    name = None if metadata is None else _metadata(metadata, builder)
    spec = must(root, "spec")
    template = None if spec is None else must(spec, "template")
    server = None if template is None else _template(template, builder)
    if spec is not None:
        _traffic(spec, builder)
        spec.close()
    if metadata is None and root.node.get("metadata") is None:
        builder.faults.report("metadata", "nothing", "a mapping with at least a name", root.node.line)
    noted(root, ("status",), builder)
    root.close()
    function = builder.finish(name or "nameless", server or Server(kind=ServerKind.COMMAND))
    return None if name is None or server is None else function


def must(section: Section, key: str) -> Section | None:
    """Returns the section under ``key``, which is required."""
    if section.node.get(key) is None:
        section.take(key)
        section.faults.report(section.path(key), "nothing", "a mapping", section.node.line)
        return None
    return section.section(key)


def noted(section: Section, keys: tuple[str, ...], builder: FunctionBuilder) -> None:
    """Adds a note for each of ``keys`` that is given: it has no effect here."""
    for key in keys:
        node = section.take(key)
        if node is not None:
            builder.note(section.path(key), "has no effect here", node.line)


def refused(section: Section, keys: Mapping[str, str], builder: FunctionBuilder) -> None:
    """Adds a fault for each of ``keys`` that is given, with what is allowed in its place."""
    for key, allowed in keys.items():
        node = section.take(key)
        if node is not None:
            builder.faults.add(section.path(key), node, allowed)


# --- metadata and annotations ----------------------------------------------------------------------------------------


def _metadata(metadata: Section, builder: FunctionBuilder) -> str | None:
    name = metadata.text("name", NAME_KIND)
    if metadata.node.get("name") is None:
        builder.faults.report(metadata.path("name"), "nothing", NAME_KIND.allowed, metadata.node.line)
    annotations = metadata.section("annotations")
    for pair in () if annotations is None else annotations.node.pairs:
        where = f"{metadata.path('annotations')}.{shown_key(pair.key)}"
        if pair.key.startswith((rules.AUTOSCALING, PREFIX)):
            builder.faults.report(where, "an annotation of the Service", "under spec.template.metadata", pair.line)
        else:
            _rollout(pair, where, builder)
    noted(metadata, ("namespace", "labels", *_EXPORTED), builder)
    metadata.close()
    return name


def _rollout(pair: Pair, where: str, builder: FunctionBuilder) -> None:
    """Reads the duration of a rollout as Knative does; every other annotation has no effect here."""
    if pair.key not in ROLLOUT_DURATIONS:
        builder.note(where, "has no effect here", pair.line)
        return
    seconds = _seconds(pair, where, builder)
    if seconds is not None and isinstance(pair.value, Scalar):
        builder.put("rollout.duration_s", float(seconds), SourceLocation(where, pair.value.text, pair.line))


def _seconds(pair: Pair, where: str, builder: FunctionBuilder) -> int | None:
    if isinstance(pair.value, Scalar):
        try:
            return rules.seconds(pair.value.text)
        except UnreadableError:
            pass
    builder.faults.add(where, pair.value, "a duration of whole seconds, 0s or more (90s, 1m30s)")
    return None


def _template(template: Section, builder: FunctionBuilder) -> Server | None:
    metadata = template.section("metadata")
    if metadata is not None:
        annotations = metadata.section("annotations")
        if annotations is not None:
            read_annotations(annotations, builder)
        noted(metadata, ("name", "namespace", "labels", *_EXPORTED), builder)
        metadata.close()
    builder.values.setdefault("readiness.start_timeout_s", DEFAULT_DEADLINE_S)
    spec = must(template, "spec")
    server = None if spec is None else _pod(spec, builder)
    template.close()
    if not builder.given("scaling.policy"):
        builder.put("scaling.policy", "kpa", SourceLocation(KNATIVE_KIND, "kpa"))
    return server


def read_annotations(annotations: Section, builder: FunctionBuilder) -> None:
    """Reads annotations under ``tidegate.dev/`` and ``autoscaling.knative.dev/``; others are notes."""
    spelt: dict[str, str] = {}
    scaling: dict[str, Scalar] = {}
    for pair in annotations.node.pairs:
        where = annotations.path(shown_key(pair.key))
        if pair.key.startswith(PREFIX):
            builder.annotation(pair, where, spelt)
        elif pair.key.startswith(rules.AUTOSCALING):
            if isinstance(pair.value, Scalar):
                scaling[pair.key.removeprefix(rules.AUTOSCALING)] = pair.value
            else:
                builder.faults.add(where, pair.value, "one value")
        elif pair.key == PROGRESS_DEADLINE:
            deadline = _seconds(pair, where, builder)
            builder.values["readiness.start_timeout_s"] = float(deadline or DEFAULT_DEADLINE_S)
        else:
            builder.note(where, "has no effect here", pair.line)
    _scaling(annotations, scaling, builder)


def _scaling(annotations: Section, scaling: Mapping[str, Scalar], builder: FunctionBuilder) -> None:
    """Reads the annotations under ``autoscaling.knative.dev/``, checked as Knative checks them."""
    for key, node in scaling.items():
        where = annotations.path(rules.AUTOSCALING + shown_key(key))
        dashed = rules.SPELLINGS.get(key)
        if dashed is None:
            builder.note(where, f"is unknown and has no effect{nearest(key, rules.SPELLINGS)}", node.line)
        elif dashed != key and dashed in scaling:
            builder.note(where, f"has no effect: {dashed} is given as well", node.line)
    texts = rules.chosen({key: node.text for key, node in scaling.items()})
    wrong = rules.faults(texts)
    for key, text in texts.items():
        spelling = key if key in scaling else next(s for s in scaling if rules.SPELLINGS.get(s) == key)
        origin = SourceLocation(annotations.path(rules.AUTOSCALING + spelling), text, scaling[spelling].line)
        if key in wrong:
            builder.fault(origin, wrong[key])
        else:
            land(key, origin, builder)


def land(key: str, origin: SourceLocation, builder: FunctionBuilder) -> None:
    """Puts one valid annotation into its field of the function."""
    row = rules.ROW[key]
    if key == "class":
        policy = {rules.KPA_CLASS: "kpa", rules.HPA_CLASS: "hpa"}.get(origin.text, origin.text)
        builder.put(row.field, policy, origin)
    elif key == "initial-scale":
        builder.put(row.field, _initial(origin, builder), origin)
    elif key in ("min-scale", "max-scale"):
        builder.put(row.field, go_int(origin.text), origin)
    elif key == "metric-aggregation-algorithm" and not row.accepts(origin.text):
        builder.note(origin.where, "is unknown; the average is linear", origin.line)
    elif builder.values.get("scaling.policy") == "hpa" and key not in HPA_KEYS:
        builder.note(origin.where, "has no effect with Knative's class hpa", origin.line)
    else:
        builder.parameters.setdefault(key, origin)


def _initial(origin: SourceLocation, builder: FunctionBuilder) -> int:
    """Returns the initial scale. Knative starts with the larger of initial-scale and min-scale; here max-scale holds
    from the start.

    The rows of min-scale and max-scale come before this one, so the builder has their values by now.
    """
    value = max(go_int(origin.text), builder.whole("scaling.min_scale", 0))
    high = builder.whole("scaling.max_scale", 0)
    if high and value > high:
        builder.note(origin.where, f"is above max-scale, which holds from the start: {high}", origin.line)
        return high
    return value


# --- the revision's spec ---------------------------------------------------------------------------------------------


def _pod(spec: Section, builder: FunctionBuilder) -> Server | None:
    where = spec.path("containerConcurrency")
    builder.scalar(CONTAINER_CONCURRENCY, spec.take("containerConcurrency"), where)
    if not builder.given("concurrency"):
        builder.values["concurrency"] = 0
    timeout = spec.scalar("timeoutSeconds")
    if timeout is not None:
        seconds = spec.text_of(spec.path("timeoutSeconds"), timeout, TIMEOUT_SECONDS)
        origin = SourceLocation(spec.path("timeoutSeconds"), timeout.text, timeout.line)
        builder.put("timeout_s", float(seconds or 0) or DEFAULT_TIMEOUT_S, origin)
    noted(spec, _POD_NOTED, builder)
    refused(spec, _POD_REFUSED, builder)
    containers = spec.items("containers")
    spec.close()
    where = f"{spec.path('containers')}[0]"
    if containers is None or len(containers) != 1:
        found = "nothing" if containers is None else f"{len(containers)} containers"
        builder.faults.report(spec.path("containers"), found, "one container", spec.node.line)
        return None
    container = Section.of(containers[0], where, builder.faults)
    return None if container is None else read_container(container, builder)


def read_container(container: Section, builder: FunctionBuilder) -> Server | None:
    """Reads the one container of a Pod. Returns None where it cannot run."""
    refuse_flags(KNATIVE, builder)
    container.take("name")
    port = _port(container, builder)
    env = read_env(container, builder)
    server = _server(container, env, builder)
    _listen(container, port, server, builder)
    _workdir(container, server, builder)
    _probe(container, port, builder)
    _liveness(container, port, builder)
    read_resources(container, builder)
    noted(container, _CONTAINER_NOTED, builder)
    refused(container, _CONTAINER_REFUSED, builder)
    container.close()
    return server


def refuse_flags(whose: str, builder: FunctionBuilder) -> None:
    """Adds a fault for each flag of a key of ``spec``, which a manifest of others does not have."""
    for key in builder.context.flags:
        if key.startswith(SPEC_FLAG):
            name = key.removeprefix(SPEC_FLAG).partition(".")[0]
            flag = "--arg" if name == "args" else f"--{name}"
            builder.fault(SourceLocation(flag, key), f"no such flag with a {whose} manifest: write it there")


def _server(container: Section, env: Mapping[str, str], builder: FunctionBuilder) -> Server | None:
    image, command, args = container.text("image", IMAGE), container.texts("command"), container.texts("args")
    variables = {**env, "PORT": "{port}"}
    argv = tuple(expand(node.text, variables) for node in (*(command or ()), *(args or ())))
    if any(builder.has_nul(container.path("command"), node) for node in (*(command or ()), *(args or ()))):
        return None
    if builder.context.images and image is not None:
        if args and not command:
            alone = "none without a command: the first one would take the place of the image's own program"
            builder.faults.report(container.path("args"), "args without a command", alone, args[0].line)
            return None
        return Server(kind=ServerKind.IMAGE, target=image, argv=argv)
    if builder.context.images and container.node.get("image") is not None:
        return None  # It is no image, which is reported.
    if command:
        node = container.take("image")
        if node is not None:
            builder.note(container.path("image"), "is not used: the command runs on this machine", node.line)
        return Server(kind=ServerKind.COMMAND, argv=argv)
    if container.node.get("image") is not None or builder.context.images:
        node = container.take("image") or container.node
        on_machine = "a command beside the image: images run on Kubernetes only"
        builder.faults.add(container.path("image"), node, IMAGE.allowed if builder.context.images else on_machine)
    else:
        builder.faults.report(
            container.path("command"), "nothing", "a command (or, on Kubernetes, an image)", container.node.line
        )
    return None


_REFERENCE: Final = re.compile(r"\$(?:(\$)|\(([^()]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expands Kubernetes' references in commands and variables: ``$(NAME)`` of a known name; ``$$`` is one ``$``."""
    return _REFERENCE.sub(lambda found: "$" if found[1] else variables.get(found[2], found[0]), text)


def read_env(container: Section, builder: FunctionBuilder) -> dict[str, str]:
    """Returns the variables of a container, with references resolved."""
    env: dict[str, str] = {}
    for index, node in enumerate(container.items("env") or ()):
        item = Section.of(node, f"{container.path('env')}[{index}]", builder.faults)
        if item is None:
            continue
        name, value = item.text("name", VARIABLE), item.scalar("value")
        refused(item, {"valueFrom": "a value: there are no secrets or config maps here"}, builder)
        item.close()
        if item.node.get("name") is None:
            builder.faults.report(item.path("name"), "nothing", VARIABLE.allowed, item.node.line)
        elif name in env:
            builder.faults.report(item.path("name"), shown(name or ""), "each name once", item.node.line)
        elif name is not None and not (value is not None and builder.has_nul(item.path("value"), value)):
            env[name] = expand(value.text, env) if value is not None else ""
            if value is not None and "$(PORT)" in env[name]:
                builder.faults.add(item.path("value"), value, "no reference to PORT, which only the command knows")
    builder.values["env"] = env
    return env


def _port(container: Section, builder: FunctionBuilder) -> int | None:
    """Returns the container's port; the port's name states the protocol."""
    ports = container.items("ports") or ()
    builder.values["protocol"] = Protocol.HTTP
    if len(ports) > 1:
        builder.faults.report(container.path("ports"), f"{len(ports)} ports", "one port", ports[1].line)
    item = Section.of(ports[0], f"{container.path('ports')}[0]", builder.faults) if ports else None
    if item is None:
        return None
    name, port = item.scalar("name"), item.text("containerPort", Whole(1, 65535))
    if name is not None and name.text not in ("", "http1", "h2c", "user-port"):
        builder.faults.add(item.path("name"), name, "http1, h2c")
    if name is not None and name.text == "h2c":
        builder.values["protocol"] = Protocol.GRPC
    transport = item.scalar("protocol")
    if transport is not None and transport.text != "TCP":
        builder.faults.add(item.path("protocol"), transport, "TCP")
    item.close()
    return None if port is None else int(port)


def _listen(container: Section, port: int | None, server: Server | None, builder: FunctionBuilder) -> None:
    """Sets the port of an image, or a note. A Knative server listens on ``$PORT``; here each replica on one machine has
    another port."""
    if server is None or port is None:
        return
    is_written = any(re.search(rf"(?<![0-9]){port}(?![0-9])", word) for word in server.argv)
    if server.kind is ServerKind.IMAGE or is_written:
        builder.values["port"] = port
    if server.kind is ServerKind.COMMAND:
        message = (
            f"the command contains {port}: one replica per machine; write $(PORT) to run several"
            if is_written
            else "each replica gets a free port as PORT, as in Knative, but not this one"
        )
        node = container.take("ports")
        builder.note(container.path("ports"), message, None if node is None else node.line)


def _workdir(container: Section, server: Server | None, builder: FunctionBuilder) -> None:
    node = container.scalar("workingDir")
    builder.values["workdir"] = builder.context.base
    if node is None:
        return
    if server is not None and server.kind is ServerKind.IMAGE:
        builder.values["workdir"] = node.text
    else:
        del builder.values["workdir"]
        where = container.path("workingDir")
        builder.path("workdir", node.text, SourceLocation(where, node.text, node.line), Found.FOLDER)


def _probe(container: Section, port: int | None, builder: FunctionBuilder) -> None:
    """Reads the readiness probe: a GET of a path, or an accepted connection, which also replaces probes that cannot run
    here."""
    builder.values["readiness.path"] = None
    probe = container.section("readinessProbe")
    if probe is None:
        return
    get, tcp = probe.section("httpGet"), probe.section("tcpSocket")
    if get is not None:
        path = get.text("path", PROBE_PATH)
        builder.values["readiness.path"] = f"/{(path or '/').removeprefix('/')}"
        _probed_port(get, port)
        scheme = get.scalar("scheme")
        if scheme is not None and scheme.text not in ("", "HTTP"):
            builder.faults.add(get.path("scheme"), scheme, "HTTP")
        noted(get, ("host", "httpHeaders"), builder)
        get.close()
    if tcp is not None:
        _probed_port(tcp, port)
        noted(tcp, ("host",), builder)
        tcp.close()
    for key in ("exec", "grpc"):
        node = probe.take(key)
        if node is not None:
            builder.note(
                probe.path(key), "is not run here: the server is ready when its port accepts connections", node.line
            )
    noted(probe, _PROBE_NOTED, builder)
    probe.close()


_LIVENESS: Final = (
    ("periodSeconds", "liveness.period_s", 10),
    ("timeoutSeconds", "liveness.timeout_s", 1),
    ("failureThreshold", "liveness.failures", 3),
)
"""Kubernetes' keys of a probe, our fields, and Kubernetes' defaults."""


def _liveness(container: Section, port: int | None, builder: FunctionBuilder) -> None:
    """Reads the liveness probe: a GET of a path, or a connection."""
    probe = container.section("livenessProbe")
    if probe is None:
        return
    get, tcp = probe.section("httpGet"), probe.section("tcpSocket")
    if get is not None:
        builder.values["liveness.path"] = f"/{(get.text('path', PROBE_PATH) or '/').removeprefix('/')}"
        _probed_port(get, port)
        noted(get, ("host", "httpHeaders", "scheme"), builder)
        get.close()
    elif tcp is not None:
        builder.values["liveness.path"] = "tcp"
        _probed_port(tcp, port)
        noted(tcp, ("host",), builder)
        tcp.close()
    for key in ("exec", "grpc"):
        node = probe.take(key)
        if node is not None:
            builder.note(probe.path(key), "is not run here: the server has no liveness probe", node.line)
    for key, field, default in _LIVENESS:
        given = probe.text(key, Whole(1, 86_400))
        number = int(given or default)
        builder.values[field] = number if field == "liveness.failures" else float(number)
    noted(probe, ("initialDelaySeconds", "successThreshold", "terminationGracePeriodSeconds"), builder)
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


def read_resources(container: Section, builder: FunctionBuilder) -> None:
    """Reads memory, whole processors and GPUs of the limits; a request counts if memory has no limit."""
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
        if section is requests:
            noted(section, ("cpu", _GPUS), builder)
        noted(section, ("ephemeral-storage",), builder)
        section.close()
    noted(resources, ("claims",), builder)
    resources.close()
    if _GPUS in amounts and builder.context.accelerators is not None:
        _place_on_gpus(limits or resources, builder.context.accelerators, builder)
    field = {"memory": "resources.memory_bytes", "cpu": "resources.threads", _GPUS: "gpu.count"}
    builder.values |= {field[key]: amount for key, amount in amounts.items() if not builder.given(field[key])}


def _place_on_gpus(limits: Section, accelerators: Mapping[str, str], builder: FunctionBuilder) -> None:
    """Places a function that requests a GPU on GPUs only, if there are any: a cheaper CPU kind would be taken first
    otherwise."""
    gpus = tuple(sorted(name for name, kind in accelerators.items() if kind != "cpu"))
    if gpus:
        builder.values["accelerators"] = gpus
    else:
        builder.note(
            limits.path(_GPUS),
            "has no effect: there is no GPU here; the function runs on the other accelerators",
            limits.node.line,
        )


def _traffic(spec: Section, builder: FunctionBuilder) -> None:
    """Checks that all traffic goes to the latest revision, as it does here for a new revision."""
    targets = spec.items("traffic")
    for index, node in enumerate(targets or ()):
        target = Section.of(node, f"{spec.path('traffic')}[{index}]", builder.faults)
        if target is None:
            continue
        latest, percent = target.scalar("latestRevision"), target.scalar("percent")
        noted(target, ("tag", "url"), builder)
        refused(target, {"revisionName": "latestRevision: true", "configurationName": "latestRevision: true"}, builder)
        target.close()
        _is_all(target, "latestRevision", latest, ("true",))
        _is_all(target, "percent", percent, ("100",) if len(targets or ()) == 1 else ("0", "100"))


def _is_all(target: Section, key: str, node: Node | None, allowed: tuple[str, ...]) -> None:
    if isinstance(node, Scalar) and node.text not in allowed:
        target.faults.add(target.path(key), node, f"{allowed[-1]}: all traffic goes to the latest revision")
