"""The manifest in a user's object, and the status that is written back."""

from typing import Any

from tidegate.deploy.kubernetes.resources.states import ResourceState, manifest_of, new_status
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
    status = new_status(resource(), ASLEEP, "2026-01-01T00:00:00Z")
    assert status is not None
    assert status["conditions"][0]["observedGeneration"] == 3
    assert (status["replicas"], status["readyReplicas"], status["url"]) == (0, 0, "http://r")
    assert new_status(resource(status=status), ASLEEP, "2026-01-02T00:00:00Z") is None


def test_the_time_of_a_condition_changes_with_its_status_alone() -> None:
    status = new_status(resource(), ASLEEP, "2026-01-01T00:00:00Z")
    busy = ResourceState(is_ready=True, reason="Ready", wanted=1, ready=1)
    later = new_status(resource(status=status), busy, "2026-01-02T00:00:00Z")
    assert later is not None
    assert later["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    refused = ResourceState(is_ready=False, reason="Refused", message="no")
    last = new_status(resource(status=later), refused, "2026-01-03T00:00:00Z")
    assert last is not None
    assert last["conditions"][0]["lastTransitionTime"] == "2026-01-03T00:00:00Z"


def test_a_pipeline_has_conditions_alone() -> None:
    status = new_status(resource(kind="Pipeline"), ASLEEP, "2026-01-01T00:00:00Z")
    assert status is not None
    assert status.keys() == {"observedGeneration", "conditions"}
