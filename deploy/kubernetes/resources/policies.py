"""The frame of a ValidatingAdmissionPolicy: it fails closed, and its binding denies what it refuses."""

from typing import Any, Final

Object = dict[str, Any]

_API: Final = "admissionregistration.k8s.io/v1"


def policy(name: str, spec: Object, bound: Object | None = None) -> tuple[Object, Object]:
    """Returns a policy and its binding. ``bound``: what the binding states beside its action."""
    metadata = {"name": name, "labels": {"app.kubernetes.io/part-of": "tidegate"}}
    binding = {"policyName": name, **(bound or {}), "validationActions": ["Deny"]}
    return (
        {
            "apiVersion": _API,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata,
            "spec": {"failurePolicy": "Fail", **spec},
        },
        {
            "apiVersion": _API,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": binding,
        },
    )
