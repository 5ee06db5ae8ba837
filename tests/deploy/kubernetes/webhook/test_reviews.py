"""Reviews and their answers, as API servers send and read them."""

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.deploy.kubernetes.pods.template import PodSettings
from tidegate.deploy.kubernetes.webhook.pods import WebhookSettings, mutate
from tidegate.deploy.kubernetes.webhook.reviews import UnreadableReviewError, answer, difference

SETTINGS = WebhookSettings(pods=PodSettings(image="tidegate:1"))
POD: dict[str, Any] = {
    "metadata": {"generateName": "a-", "annotations": {"tidegate.dev/concurrency": "2", "a/b~c": "x"}},
    "spec": {"containers": [{"name": "m", "image": "i", "ports": [{"containerPort": 8080}]}]},
}


def review(pod: Any) -> bytes:
    request = {"uid": "u-1", "namespace": "models", "resource": {"resource": "pods"}, "object": pod}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def response(pod: Any) -> dict[str, Any]:
    found = json.loads(answer(review(pod), SETTINGS))
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert found["response"]["uid"] == "u-1"
    return dict(found["response"])


def patched(before: Any, operations: list[dict[str, Any]]) -> Any:
    """A JSON patch carried out (RFC 6902), as far as it is used."""
    after = copy.deepcopy(before)
    for each in operations:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in each["path"].split("/")[1:]]
        place = after
        for part in path:
            place = place[part]
        if each["op"] == "remove":
            del place[last]
        else:
            assert (last in place) == (each["op"] == "replace")
            place[last] = each["value"]
    return after


def test_the_patch_makes_the_pod_what_the_mutation_says() -> None:
    found = response(POD)
    assert (found["allowed"], found["patchType"]) == (True, "JSONPatch")
    assert patched(POD, json.loads(base64.b64decode(found["patch"]))) == mutate(POD, "models", SETTINGS).pod


def test_a_pod_that_has_its_queue_proxy_gets_no_patch() -> None:
    assert response(mutate(POD, "models", SETTINGS).pod) == {"uid": "u-1", "allowed": True}


def test_a_refusal_has_every_fault_in_its_message() -> None:
    pod = POD | {"metadata": {"annotations": {"tidegate.dev/timeout": "soon", "tidegate.dev/max-batch": "0"}}}
    found = response(pod)
    assert (found["allowed"], found["status"]["code"]) == (False, 422)
    assert "timeout: got 'soon'" in found["status"]["message"]
    assert "max-batch: got '0'" in found["status"]["message"]
    assert "patch" not in found


def test_warnings_are_as_short_as_api_servers_keep_them() -> None:
    pod = POD | {"metadata": {"annotations": {"tidegate.dev/policy.container-concurrency-target-percentage": "70"}}}
    (warning,) = response(pod)["warnings"]
    assert len(warning) == 120


def about(resource: str, containers: list[Any], uid: Any = "u") -> bytes:
    request = {"uid": uid, "resource": {"resource": resource}, "object": {"spec": {"containers": containers}}}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "request": request}).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 200_000,
        b'{"apiVersion": "admission.k8s.io/v1", "request": null}',
        about("pods", [1], uid=1),
        about("pods", []),
        about("services", [{}]),
    ],
)
def test_what_is_no_review_of_a_pod_is_unreadable(body: bytes) -> None:
    with pytest.raises(UnreadableReviewError):
        answer(body, SETTINGS)


def test_a_review_of_another_version_is_unreadable() -> None:
    with pytest.raises(UnreadableReviewError, match="v1beta1"):
        answer(review(POD).replace(b"/v1", b"/v1beta1"), SETTINGS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab~/", max_size=3), inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text("ab~/", max_size=3), JSON, max_size=4)


@given(before=OBJECTS, after=OBJECTS)
def test_a_difference_that_is_carried_out_gives_the_other_object(before: Any, after: Any) -> None:
    assert patched(before, list(difference(before, after))) == after
