"""What a Pod's status says of a replica."""

from typing import Any

import pytest

from tidegate.deploy.kubernetes.pods.states import Resized, facts, resize_state
from tidegate.records.replica_state import FailureCause


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"uid": "u"}, "spec": {"nodeName": "n"}, "status": status}


def model(**state: Any) -> dict[str, Any]:
    return pod(containerStatuses=[{"name": "model-server", "state": state}])


def test_a_pod_without_a_node_says_why() -> None:
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    found = facts({"metadata": {"uid": "u"}, "spec": {}, "status": {"conditions": [waiting]}})
    assert (found.is_bound, found.waits) == (False, "no node takes the Pod: 0/3 nodes")


def test_a_running_pod_has_an_address_and_is_not_broken() -> None:
    found = facts(model(running={}) | {"metadata": {"uid": "u", "deletionTimestamp": "now"}})
    assert (found.is_started, found.is_deleted, found.broken) == (True, True, None)
    assert facts(pod(podIP="10.0.0.7")).ip == "10.0.0.7"


@pytest.mark.parametrize(
    ("state", "words", "cause"),
    [
        ({"exitCode": 137, "message": "a\nb"}, "was killed by SIGKILL (out of memory?)", FailureCause.KILLED),
        ({"exitCode": 139}, "was killed by SIGSEGV", FailureCause.KILLED),
        ({"exitCode": 1, "message": "no weights"}, "exited with status 1", FailureCause.EXITED),
        ({"exitCode": 0}, "exited with status 0", FailureCause.EXITED),
        ({"exitCode": 255}, "exited with status 255", FailureCause.EXITED),
        ({"exitCode": 137, "reason": "OOMKilled"}, "used more than its memory limit", FailureCause.MEMORY),
    ],
)
def test_the_end_of_the_model_server_breaks_the_replica(state: dict[str, Any], words: str, cause: FailureCause) -> None:
    broken = facts(model(terminated=state)).broken
    assert broken is not None
    assert words in broken[0]
    assert broken[1] is cause
    last = state.get("message")
    assert ("last output of the model server:" in broken[0]) is bool(last)


def test_the_end_of_the_sidecar_breaks_it_too() -> None:
    ended = {"name": "queue-proxy", "state": {"terminated": {"exitCode": 2}}}
    broken = facts(pod(initContainerStatuses=[ended])).broken
    assert broken is not None
    assert broken[0].startswith("its queue_proxy exited with status 2")


def test_an_image_that_cannot_be_pulled_breaks_it_but_a_container_that_is_made_does_not() -> None:
    broken = facts(model(waiting={"reason": "ImagePullBackOff", "message": "not found"})).broken
    assert broken == ("the container model-server cannot be made: ImagePullBackOff: not found", FailureCause.START)
    assert facts(model(waiting={"reason": "ContainerCreating"})).broken is None


def test_an_evicted_pod_says_why() -> None:
    broken = facts(pod(phase="Failed", reason="Evicted", message="the node was low on memory")).broken
    assert broken == ("its Pod has failed: Evicted: the node was low on memory", FailureCause.GONE)


def test_a_pod_that_is_evicted_says_so_in_place_of_the_signal_that_ended_its_server() -> None:
    ended = {"name": "model-server", "state": {"terminated": {"exitCode": 137}}}
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"}
    broken = facts(pod(containerStatuses=[ended], **evicted)).broken
    assert broken == ("its Pod has failed: Evicted: the node was low on memory", FailureCause.GONE)


def resized(cores: str, had: str, **condition: Any) -> dict[str, Any]:
    """A Pod whose specification says ``cores`` and whose container has ``had``."""
    found = pod(containerStatuses=[{"name": "model-server", "resources": {"limits": {"cpu": had}}}])
    found["metadata"]["generation"] = 4
    found["spec"]["containers"] = [{"name": "model-server", "resources": {"limits": {"cpu": cores}}}]
    found["status"]["conditions"] = [{"status": "True", **condition}] if condition else []
    return found


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (resized("1", "2"), None),
        (resized("2", "2000m"), Resized(None)),
        (resized("1", "1"), None),  # the specification is still the one from before
        (resized("2", "2", type="PodResizeInProgress"), None),
        (resized("2", "1", type="PodResizePending", reason="Deferred", message="busy"), Resized("Deferred: busy")),
        (
            resized("2", "1", type="PodResizePending", reason="Infeasible"),
            Resized("Infeasible: the node does not say why"),
        ),
        (resized("2", "1", type="PodResizePending", reason="Deferred", observedGeneration=3), None),
        (resized("2", "1", type="PodResizeInProgress", reason="Error", message="x"), Resized("the node failed: x")),
    ],
)
def test_a_resize_is_done_when_the_node_says_so(seen: dict[str, Any], state: Resized | None) -> None:
    assert resize_state(seen, {"limits": {"cpu": "2"}}) == state
