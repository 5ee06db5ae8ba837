"""The policies over the Pods of replicas: what they are in their final state, after every webhook and whatever made
them, and who may make them."""

from typing import Any, Final

from tidegate.deploy.kubernetes.pods.template import (
    ADMIN_PORT,
    DEVICE_PREFIX,
    DEVICE_VARIABLES,
    EPOCH,
    INJECT,
    LABEL,
    MANAGED_BY,
    QUEUE_PROXY,
)
from tidegate.deploy.kubernetes.resources.conditions import literal
from tidegate.deploy.kubernetes.resources.leases import NAME as LEASE
from tidegate.deploy.kubernetes.resources.policies import policy

Object = dict[str, Any]

NAME, EPOCHS_NAME = "replicas.tidegate.dev", "epochs.tidegate.dev"
INJECTED_NAME: Final = "injected.tidegate.dev"
_PROXY: Final = f"object.spec.?initContainers.orValue([]).filter(each, each.name == '{QUEUE_PROXY}')"
_IS_SIDECAR: Final = "size(variables.proxy) == 1 && variables.proxy[0].?restartPolicy.orValue('') == 'Always'"
_DRAINS: Final = (
    "each.?lifecycle.?preStop.?httpGet.?path.orValue('') == '/wait-for-drain'"
    f" && string(each.lifecycle.preStop.httpGet.port) == '{ADMIN_PORT}'"
)
_DEVICES: Final = (
    f"each.name.startsWith('{DEVICE_PREFIX}') || each.name in [{', '.join(map(literal, sorted(DEVICE_VARIABLES)))}]"
)
_RULES: Final = (
    (
        _IS_SIDECAR,
        f"a replica has the native sidecar {QUEUE_PROXY}: without it its requests are neither bounded nor drained",
    ),
    (
        f"(variables.proxy + variables.servers).all(each, {_DRAINS})",
        "each container of a replica waits for its drain (preStop)",
    ),
    (
        "!variables.servers.exists(each, each.?volumeMounts.orValue([]).exists(mount, mount.name in variables.secret)"
        " || each.?env.orValue([]).exists(entry, has(entry.valueFrom) && has(entry.valueFrom.secretKeyRef))"
        " || each.?envFrom.orValue([]).exists(source, has(source.secretRef)))",
        f"no container of a replica but {QUEUE_PROXY} reads a Secret",
    ),
    (
        f"!variables.servers.exists(server, server.?env.orValue([]).exists(each, {_DEVICES}))",
        "a replica's devices are those that the kubelet gives it: allowed are no variables"
        f" {', '.join(sorted(DEVICE_VARIABLES))}, {DEVICE_PREFIX}*",
    ),
    (
        "!object.spec.?automountServiceAccountToken.orValue(true)",
        "a replica has no credentials of the cluster: automountServiceAccountToken is false",
    ),
)


_EPOCH: Final = f"metadata.?annotations[?{literal(EPOCH)}]"
_LEADER: Final = "params.spec.?leaseTransitions.orValue(0)"
_LEADS: Final = f"int(object.{_EPOCH}.orValue('0'))"


def epoch_policy() -> tuple[Object, Object]:
    """Returns the ValidatingAdmissionPolicy that refuses Pods of a control process that leads no longer, and its
    binding. The Lease of the namespace is its parameter."""
    spec = {
        "paramKind": {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"},
        "matchConstraints": _of_replicas(),
        "matchConditions": [{"name": "has-an-epoch", "expression": f"object.{_EPOCH}.hasValue()"}],
        "validations": _validations(
            (
                f"request.operation != 'CREATE' || {_LEADS} >= {_LEADER}",
                "made by a control process that no longer leads: its epoch is smaller than the Lease's",
            ),
            (
                f"request.operation != 'UPDATE' || {_LEADS} >= int(oldObject.{_EPOCH}.orValue('0'))",
                "a control process of a greater epoch has this replica",
            ),
        ),
    }
    return policy(EPOCHS_NAME, spec, {"paramRef": {"name": LEASE, "parameterNotFoundAction": "Allow"}})


def injected_policy() -> tuple[Object, Object]:
    """Returns the ValidatingAdmissionPolicy over Pods of others that ask for a queue_proxy, and its binding. The
    webhook that adds it fails open; this policy judges the final state, whatever the webhook did, and fails closed."""
    asks = [
        {"key": INJECT, "operator": "Exists"},
        {"key": INJECT, "operator": "NotIn", "values": ["false"]},
    ]
    spec = {
        "matchConstraints": {
            "objectSelector": {"matchExpressions": asks},
            "resourceRules": _pods("CREATE"),
        },
        "variables": [{"name": "proxy", "expression": _PROXY}],
        "validations": _validations(
            (
                f"object.metadata.labels['{INJECT}'] == 'true'",
                f"the label {INJECT} is 'true' or 'false': with another value no {QUEUE_PROXY} is added",
            ),
            (
                _IS_SIDECAR,
                f"the label {INJECT} asks for the native sidecar {QUEUE_PROXY}, which Tidegate's webhook adds: it is"
                " not installed, does not serve this namespace, or does not answer (tidegate doctor --context)",
            ),
            (
                f"variables.proxy.all(each, {_DRAINS})",
                f"the sidecar {QUEUE_PROXY} waits for its drain (preStop)",
            ),
        ),
    }
    return policy(INJECTED_NAME, spec)


def replica_policy() -> tuple[Object, Object]:
    """Returns the ValidatingAdmissionPolicy over replicas, and its binding."""
    spec = {
        "matchConstraints": _of_replicas(),
        "variables": [
            {"name": "proxy", "expression": _PROXY},
            {
                "name": "servers",
                "expression": "object.spec.containers + object.spec.?initContainers.orValue([])"
                f".filter(each, each.name != '{QUEUE_PROXY}')",
            },
            {
                "name": "secret",
                "expression": "object.spec.?volumes.orValue([]).filter(each, has(each.secret)"
                " || (has(each.projected) && each.projected.?sources.orValue([])"
                ".exists(source, has(source.secret)))).map(each, each.name)",
            },
        ],
        "validations": _validations(*_RULES),
    }
    return policy(NAME, spec)


def _validations(*rules: tuple[str, str]) -> list[Object]:
    """Returns rules, each an expression that holds and a message, as a policy has them."""
    return [{"expression": expression, "message": message, "reason": "Invalid"} for expression, message in rules]


def _of_replicas() -> Object:
    """Returns the constraints that match the Pods of replicas, when they are made or changed."""
    return {
        "objectSelector": {
            "matchLabels": {MANAGED_BY: "tidegate"},
            "matchExpressions": [{"key": f"{LABEL}deployment", "operator": "Exists"}],
        },
        "resourceRules": _pods("CREATE", "UPDATE"),
    }


def _pods(*operations: str) -> list[Object]:
    return [{"apiGroups": [""], "apiVersions": ["v1"], "operations": [*operations], "resources": ["pods"]}]
