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

Object = dict[str, Any]

NAME, EPOCHS_NAME = "replicas.tidegate.dev", "epochs.tidegate.dev"
INJECTED_NAME: Final = "injected.tidegate.dev"
_PROXY: Final = f"object.spec.?initContainers.orValue([]).filter(each, each.name == '{QUEUE_PROXY}')"
_DRAINS: Final = (
    "each.?lifecycle.?preStop.?httpGet.?path.orValue('') == '/wait-for-drain'"
    f" && string(each.lifecycle.preStop.httpGet.port) == '{ADMIN_PORT}'"
)
_DEVICES: Final = (
    f"each.name.startsWith('{DEVICE_PREFIX}') || each.name in [{', '.join(map(literal, sorted(DEVICE_VARIABLES)))}]"
)
_RULES: Final = (
    (
        "size(variables.proxy) == 1 && variables.proxy[0].?restartPolicy.orValue('') == 'Always'",
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
    metadata = {"name": EPOCHS_NAME, "labels": {"app.kubernetes.io/part-of": "tidegate"}}
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail",
            "paramKind": {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"},
            "matchConstraints": _of_replicas(),
            "matchConditions": [{"name": "has-an-epoch", "expression": f"object.{_EPOCH}.hasValue()"}],
            "validations": [
                {
                    "expression": f"request.operation != 'CREATE' || {_LEADS} >= {_LEADER}",
                    "message": "made by a control process that no longer leads: its epoch is smaller than the Lease's",
                    "reason": "Invalid",
                },
                {
                    "expression": f"request.operation != 'UPDATE' || {_LEADS} >= int(oldObject.{_EPOCH}.orValue('0'))",
                    "message": "a control process of a greater epoch has this replica",
                    "reason": "Invalid",
                },
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": {
            "policyName": EPOCHS_NAME,
            "paramRef": {"name": LEASE, "parameterNotFoundAction": "Allow"},
            "validationActions": ["Deny"],
        },
    }
    return policy, binding


def injected_policy() -> tuple[Object, Object]:
    """Returns the ValidatingAdmissionPolicy over Pods of others that ask for a queue_proxy, and its binding. The
    webhook that adds it fails open; this policy judges the final state, whatever the webhook did, and fails closed."""
    metadata = {"name": INJECTED_NAME, "labels": {"app.kubernetes.io/part-of": "tidegate"}}
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "objectSelector": {
                    "matchExpressions": [
                        {"key": INJECT, "operator": "Exists"},
                        {"key": INJECT, "operator": "NotIn", "values": ["false"]},
                    ]
                },
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                ],
            },
            "variables": [{"name": "proxy", "expression": _PROXY}],
            "validations": [
                {
                    "expression": f"object.metadata.labels['{INJECT}'] == 'true'",
                    "message": f"the label {INJECT} is 'true' or 'false': with another value no {QUEUE_PROXY} is added",
                    "reason": "Invalid",
                },
                {
                    "expression": "size(variables.proxy) == 1"
                    " && variables.proxy[0].?restartPolicy.orValue('') == 'Always'",
                    "message": f"the label {INJECT} asks for the native sidecar {QUEUE_PROXY}, which Tidegate's webhook"
                    " adds: it is not installed, does not serve this namespace, or does not answer"
                    " (tidegate doctor --context)",
                    "reason": "Invalid",
                },
                {
                    "expression": f"variables.proxy.all(each, {_DRAINS})",
                    "message": f"the sidecar {QUEUE_PROXY} waits for its drain (preStop)",
                    "reason": "Invalid",
                },
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": {"policyName": INJECTED_NAME, "validationActions": ["Deny"]},
    }
    return policy, binding


def _of_replicas() -> Object:
    """Returns the constraints that match the Pods of replicas, when they are made or changed."""
    return {
        "objectSelector": {
            "matchLabels": {MANAGED_BY: "tidegate"},
            "matchExpressions": [{"key": f"{LABEL}deployment", "operator": "Exists"}],
        },
        "resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["pods"]}
        ],
    }


def replica_policy() -> tuple[Object, Object]:
    """Returns the ValidatingAdmissionPolicy over replicas, and its binding."""
    metadata = {"name": NAME, "labels": {"app.kubernetes.io/part-of": "tidegate"}}
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail",
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
            "validations": [
                {"expression": expression, "message": message, "reason": "Invalid"} for expression, message in _RULES
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": {"policyName": NAME, "validationActions": ["Deny"]},
    }
    return policy, binding
