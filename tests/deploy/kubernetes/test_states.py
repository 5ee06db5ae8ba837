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


def test_a_sidecar_that_the_kubelet_starts_again_has_lost_its_slots() -> None:
    """Its last end is the reason, whatever it does now."""
    states: list[dict[str, Any]] = [{"waiting": {"reason": "CrashLoopBackOff"}}, {"running": {}}]
    for state in states:
        last = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
        sidecar = {"name": "queue-proxy", "state": state, "lastState": last, "restartCount": 1}
        broken = facts(pod(initContainerStatuses=[sidecar])).broken
        assert broken is not None
        assert broken[0].startswith("its queue_proxy used more than its memory limit")
        assert broken[1] is FailureCause.MEMORY


@pytest.mark.parametrize(
    "reason",
    [
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    ],
)
def test_a_container_that_cannot_be_started_breaks_it(reason: str) -> None:
    broken = facts(model(waiting={"reason": reason, "message": "so it is"})).broken
    assert broken == (f"the container model-server cannot be started: {reason}: so it is", FailureCause.START)


def test_a_sidecar_of_others_that_cannot_be_started_again_breaks_no_replica() -> None:
    """As while the registry of images is away."""
    server = {"name": "model-server", "state": {"running": {}}}
    mesh: dict[str, Any] = {"name": "mesh", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    assert facts(pod(initContainerStatuses=[mesh], containerStatuses=[server])).broken is not None
    mesh["lastState"] = {"terminated": {"exitCode": 1}}
    assert facts(pod(initContainerStatuses=[mesh], containerStatuses=[server])).broken is None


def test_a_container_that_is_made_is_not_broken_and_one_that_waits_for_more_says_so() -> None:
    for reason in ("ContainerCreating", "PodInitializing"):
        found = facts(model(waiting={"reason": reason}))
        assert (found.broken, found.waits) == (None, None)
    found = facts(model(waiting={"reason": "RegistryUnavailable", "message": "try later"}))
    assert found.broken is None
    assert found.waits == "the container model-server waits: RegistryUnavailable: try later"


def test_a_program_that_is_not_in_the_image_never_ran() -> None:
    why = 'exec: "serve": executable file not found in $PATH'
    broken = facts(model(terminated={"exitCode": 128, "reason": "StartError", "message": why})).broken
    assert broken == (f"the model server cannot be started: StartError: {why}", FailureCause.START)


def test_a_container_that_its_node_has_lost_was_not_killed() -> None:
    ended = {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "it could not be located"}
    broken = facts(model(terminated=ended)).broken
    assert broken == ("the node lost the model server: it could not be located", FailureCause.GONE)


def test_an_evicted_pod_says_why() -> None:
    broken = facts(pod(phase="Failed", reason="Evicted", message="the node was low on memory")).broken
    assert broken == ("its Pod has failed: Evicted: the node was low on memory", FailureCause.GONE)


def test_a_pod_that_is_evicted_says_so_in_place_of_the_signal_that_ended_its_server() -> None:
    ended = {"name": "model-server", "state": {"terminated": {"exitCode": 137}}}
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "the node was low on memory"}
    broken = facts(pod(containerStatuses=[ended], **evicted)).broken
    assert broken == ("its Pod has failed: Evicted: the node was low on memory", FailureCause.GONE)


def kept(phase: str, *finalizers: str, node: str | None = "n") -> dict[str, Any]:
    """A Pod whose deletion is ordered."""
    meta = {"uid": "u", "deletionTimestamp": "now", "finalizers": list(finalizers)}
    return {"metadata": meta, "spec": {} if node is None else {"nodeName": node}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("seen", "lingers"),
    [
        (kept("Failed", "a/b"), True),
        (kept("Succeeded", "a/b"), True),
        (kept("Pending", "a/b", node=None), True),
        (kept("Running", "a/b"), False),  # its processes have their grace period, or its node is lost
        (kept("Failed"), False),  # it is gone in a moment
    ],
)
def test_a_pod_lingers_when_nothing_but_finalizers_keep_it(seen: dict[str, Any], lingers: bool) -> None:
    assert facts(seen).lingers is lingers


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
