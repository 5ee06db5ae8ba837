"""An AdmissionReview in, the answer out: a JSON patch, a refusal with every fault, or nothing to do.

The format is ``admission.k8s.io/v1`` (kubernetes.io, "Dynamic Admission Control", webhook request and response).
"""

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tidegate.deploy.kubernetes.pods.template import Object
from tidegate.deploy.kubernetes.webhook.pods import RefusedPodError, WebhookSettings, mutate

VERSION: Final = "admission.k8s.io/v1"
UNPROCESSABLE: Final = 422
MAX_WARNING: Final = 120
"""Characters of a warning that API servers keep (KEP-1693)."""


class UnreadableReviewError(ValueError):
    """The body is no AdmissionReview of a Pod."""


def answer(body: bytes, settings: WebhookSettings) -> bytes:
    """Returns the AdmissionReview with the response. Raises UnreadableReviewError."""
    try:
        review = json.loads(body)
        if review["apiVersion"] != VERSION:
            raise ValueError(f"its apiVersion is {review['apiVersion']!r}")
        request = review["request"]
        uid, pod, namespace = request["uid"], request["object"], request.get("namespace", "default")
        is_pod = request["resource"]["resource"] == "pods" and not request.get("subResource")
        if not (is_pod and isinstance(uid, str) and pod["spec"]["containers"]):
            raise ValueError("it is about no Pod")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableReviewError(f"the body is no AdmissionReview ({VERSION}) of a Pod: {error!r}") from error
    response: Object = {"uid": uid, "allowed": True}
    try:
        found = mutate(pod, namespace, settings)
    except RefusedPodError as error:
        status = {"code": UNPROCESSABLE, "reason": "Invalid", "message": str(error)}
        response |= {"allowed": False, "status": status}
    else:
        operations = list(difference(pod, found.pod))
        if operations:
            patch = base64.b64encode(json.dumps(operations).encode()).decode()
            response |= {"patchType": "JSONPatch", "patch": patch}
        if found.warnings:
            response["warnings"] = [each[:MAX_WARNING] for each in found.warnings]
    return json.dumps({"apiVersion": VERSION, "kind": "AdmissionReview", "response": response}).encode()


def difference(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> Iterator[Object]:
    """Yields the operations of a JSON patch (RFC 6902). A list that differs is replaced as a whole: API servers call
    webhooks one after the other, so that nothing changes it in between."""
    for key in before.keys() - after.keys():
        yield {"op": "remove", "path": f"{path}/{_token(key)}"}
    for key, value in after.items():
        place = f"{path}/{_token(key)}"
        if key not in before:
            yield {"op": "add", "path": place, "value": value}
        elif isinstance(value, dict) and isinstance(before[key], dict):
            yield from difference(before[key], value, place)
        elif value != before[key]:
            yield {"op": "replace", "path": place, "value": value}


def _token(key: str) -> str:
    """Returns a key as a token of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
