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
            "spec": {"failurePolicy": "Fail", **spec, "matchConstraints": _stated(spec["matchConstraints"])},
        },
        {
            "apiVersion": _API,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": binding,
        },
    )


def _stated(constraints: Object) -> Object:
    """Returns constraints with the defaults of the API server stated. To server-side apply they are one value, so that
    a manager that applies them without a default conflicts with another one that has applied the same."""
    rules = [{**each, "scope": "*"} for each in constraints["resourceRules"]]
    defaults: Object = {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}}
    return {**defaults, **constraints, "resourceRules": rules}
