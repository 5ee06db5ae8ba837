"""The manifest in a user's object, and the status that is written back."""

from dataclasses import replace
from typing import Any

import pytest

from tidegate.deploy.kubernetes.resources.states import (
    FAILS,
    SERVES,
    STARTS,
    ResourceState,
    digest_of,
    is_same,
    manifest_of,
    new_status,
    url_for_others,
)
from tidegate.manifest.reader import parse
from tidegate.schema.files import Disk

SPEC = {"server": {"command": ["serve", "{port}"]}, "concurrency": 4}
ASLEEP = ResourceState(is_ready=True, reason="Asleep", revision="resnet-00001", wanted=0, ready=0, url="http://r")


def resource(**more: Any) -> dict[str, Any]:
    meta = {
        "name": "resnet",
        "generation": 3,
        "uid": "u",
        "annotations": {"tidegate.dev/max-scale": "4", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
    }
    return {"apiVersion": "tidegate.dev/v1alpha1", "kind": "Function", "metadata": meta, "spec": SPEC, **more}


def test_the_manifest_has_our_annotations_and_reads_back() -> None:
    text = manifest_of(resource())
    assert "kubectl" not in text
    (function,) = parse(text, source="s", base="/", policies=["kpa"], files=Disk())
    assert (function.name, function.concurrency, function.scaling.max_scale) == ("resnet", 4, 4)


def test_the_manifest_is_the_same_whatever_the_cluster_adds() -> None:
    changed = resource(status={"replicas": 3})
    changed["metadata"] |= {"resourceVersion": "9", "managedFields": [{}]}
    assert manifest_of(changed) == manifest_of(resource())


def test_a_status_is_written_once() -> None:
    status = new_status(resource(), "d", ASLEEP, "2026-01-01T00:00:00Z")
    assert status is not None
    assert status["conditions"][0]["observedGeneration"] == 3
    assert (status["replicas"], status["readyReplicas"], status["url"]) == (0, 0, "http://r")
    assert new_status(resource(status=status), "d", ASLEEP, "2026-01-02T00:00:00Z") is None


def test_the_time_of_a_condition_changes_with_its_status_alone() -> None:
    status = new_status(resource(), "d", ASLEEP, "2026-01-01T00:00:00Z")
    busy = ResourceState(is_ready=True, reason="Ready", wanted=1, ready=1)
    later = new_status(resource(status=status), "d", busy, "2026-01-02T00:00:00Z")
    assert later is not None
    assert later["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    refused = ResourceState(is_ready=False, reason="Refused", message="no")
    last = new_status(resource(status=later), "d", refused, "2026-01-03T00:00:00Z")
    assert last is not None
    assert last["conditions"][0]["lastTransitionTime"] == "2026-01-03T00:00:00Z"


def test_a_pipeline_has_its_revision_and_url_and_no_replicas() -> None:
    state = replace(ASLEEP, revision="p-00001", wanted=1, ready=1, url="http://p/")
    status = new_status(resource(kind="Pipeline"), "d", state, "2026-01-01T00:00:00Z")
    assert status is not None
    assert status.keys() == {"observedGeneration", "observedManifest", "conditions", "revision", "url"}


def test_the_observed_manifest_changes_with_an_annotation_and_not_with_what_the_cluster_adds() -> None:
    changed = resource()
    changed["metadata"]["annotations"]["tidegate.dev/max-scale"] = "5"
    assert digest_of(manifest_of(changed)) != digest_of(manifest_of(resource()))
    assert not is_same(changed, resource())
    noted = resource()
    noted["metadata"] |= {"resourceVersion": "9"}
    assert digest_of(manifest_of(noted)) == digest_of(manifest_of(resource()))
    assert is_same(noted, resource())
    assert not is_same(resource(status={"replicas": 3}), resource())


@pytest.mark.parametrize(("reason", "word"), [(SERVES, "True"), (STARTS, "Unknown"), (FAILS, "False")])
def test_what_became_of_the_newest_revision_is_a_condition(reason: str, word: str) -> None:
    status = new_status(resource(), "d", replace(ASLEEP, latest=(reason, "why")), "2026-01-01T00:00:00Z")
    assert status is not None
    _, latest = status["conditions"]
    assert (latest["type"], latest["status"], latest["reason"], latest["message"]) == (
        "LatestReady",
        word,
        reason,
        "why",
    )


def merged(before: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """As the API server merges a status."""
    return {key: figure for key, figure in (before | patch).items() if figure is not None}


def test_a_figure_that_is_not_known_any_more_is_taken_away_once() -> None:
    status = new_status(resource(), "d", ASLEEP, "2026-01-01T00:00:00Z")
    assert status is not None
    unknown = ResourceState(is_ready=False, reason="Pending")
    later = new_status(resource(status=status), "d", unknown, "2026-01-02T00:00:00Z")
    assert later is not None
    kept = merged(status, later)
    assert kept.keys() == {"observedGeneration", "observedManifest", "conditions"}
    assert new_status(resource(status=kept), "d", unknown, "2026-01-03T00:00:00Z") is None


@pytest.mark.parametrize(
    ("front", "domain", "by_path", "url"),
    [
        (None, "localhost", True, "http://resnet.localhost:8080/"),
        ("tidegate.models.svc:80", "localhost", True, "http://tidegate.models.svc/functions/resnet/"),
        ("tidegate.models.svc:8000", "localhost", False, "http://tidegate.models.svc:8000/"),
        ("https://ml.example.com", "localhost", True, "https://ml.example.com/functions/resnet/"),
        ("https://ml.example.com:443", "fn.example.com", True, "https://resnet.fn.example.com/"),
        ("ml.example.com:81", "fn.example.com", False, "http://resnet.fn.example.com:81/"),
    ],
)
def test_the_url_of_a_function_is_one_that_others_reach(
    front: str | None, domain: str, by_path: bool, url: str
) -> None:
    own = f"http://resnet.{domain}:8080/"
    assert url_for_others(own, "resnet", front=front, domain=domain, by_path=by_path) == url
