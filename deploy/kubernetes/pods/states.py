"""What the API server reports of a Pod, as the facts that a replica's life follows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.deploy.failures import failure_text
from tidegate.deploy.kubernetes.pods.template import MODEL_SERVER, QUEUE_PROXY
from tidegate.records.replica_state import FailureCause
from tidegate.schema.units import quantity

_CANNOT_START: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "SignatureValidationFailed",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
"""Reasons for which a container waits that seldom pass by themselves: another Pod is tried, with back-off."""
_NOTHING_WRONG: Final = frozenset({"ContainerCreating", "PodInitializing", ""})
"""Reasons for which each container waits for a moment."""
_NEVER_RAN: Final = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of an end that came before the program."""
_LOST: Final = "ContainerStatusUnknown"
"""Reason of an end that the node has not seen."""
_OVER: Final = frozenset({"Succeeded", "Failed"})
"""Phases of Pods whose containers have all ended."""
SIGNALLED, MAX_SIGNAL = 128, 64
"""Exit codes above the first are of processes that a signal ended, as shells and kubelets have it."""
_SIGNALS: Final = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


@dataclass(frozen=True, slots=True)
class PodFacts:
    """The facts of one Pod."""

    uid: str
    ip: str | None
    is_bound: bool
    is_started: bool
    """The model server's container runs."""
    is_deleted: bool
    """Its deletion is ordered."""
    waits: str | None
    """Why it has no node, or why a container of it does not start yet, for people. None if nothing is wrong."""
    broken: tuple[str, FailureCause] | None
    """How it broke. None if it has not."""
    finalizers: tuple[str, ...]
    """Names of what others have to do before its object goes."""
    lingers: bool
    """Its deletion is ordered, nothing of it runs, and finalizers alone keep its object."""


def facts(pod: Mapping[str, Any]) -> PodFacts:
    """Reads a Pod."""
    status = pod.get("status", {})
    containers = {each["name"]: each for each in status.get("containerStatuses", [])}
    model = containers.get(MODEL_SERVER, {}).get("state", {})
    is_bound = bool(pod.get("spec", {}).get("nodeName"))
    is_deleted, finalizers = "deletionTimestamp" in pod["metadata"], tuple(pod["metadata"].get("finalizers") or ())
    runs = is_bound and status.get("phase") not in _OVER
    return PodFacts(
        uid=pod["metadata"]["uid"],
        ip=status.get("podIP"),
        is_bound=is_bound,
        is_started="running" in model,
        is_deleted=is_deleted,
        waits=_waits(status),
        broken=_broken(status, model),
        finalizers=finalizers,
        lingers=is_deleted and bool(finalizers) and not runs,
    )


@dataclass(frozen=True, slots=True)
class Resized:
    """The node's answer to a resize in place."""

    refused: str | None
    """Why it is not done; None: it is done."""


def resize_state(pod: Mapping[str, Any], wanted: Mapping[str, Any]) -> Resized | None:
    """Returns what became of a resize of the model server to these resources. None while its node has not answered:
    it answers by the conditions of the Pod, and by the resources of the running container."""
    status, generation = pod.get("status", {}), pod["metadata"].get("generation")
    stated = _server(pod.get("spec", {}).get("containers", []))
    if not _is_same(stated.get("resources", {}), wanted):
        return None  # as it was before the resize
    is_going_on = False
    for each in status.get("conditions", []):
        is_current = each.get("observedGeneration", generation) == generation
        if each.get("status") != "True" or not is_current:
            continue
        if each["type"] == "PodResizePending":
            return Resized(f"{each.get('reason', 'Pending')}: {each.get('message', 'the node does not say why')}")
        if each["type"] == "PodResizeInProgress":
            if each.get("reason") == "Error":
                return Resized(f"the node failed: {each.get('message', '')}")
            is_going_on = True
    has = _server(status.get("containerStatuses", [])).get("resources", {})
    return Resized(None) if _is_same(has, wanted) and not is_going_on else None


def _server(containers: list[Any]) -> Mapping[str, Any]:
    return next((each for each in containers if each["name"] == MODEL_SERVER), {})


def _is_same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Compares the cores of two sets of resources."""
    cores = [each.get("limits", {}).get("cpu") for each in (found, wanted)]
    return None not in cores and quantity(cores[0]) == quantity(cores[1])


def _waits(status: Mapping[str, Any]) -> str | None:
    for each in status.get("conditions", []):
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return _words("no node takes the Pod", each.get("message") or each.get("reason", ""))
    for name, reason, message, _ in _waiting(status):
        if reason not in _NOTHING_WRONG:
            return _words(f"the container {name} waits", reason, message)
    return None


def _waiting(status: Mapping[str, Any]) -> Iterator[tuple[str, str, str, bool]]:
    """Yields the name, the reason and the message of each container that waits, and whether it has run before."""
    for each in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
        waiting = each.get("state", {}).get("waiting")
        if waiting is not None:
            has_run = "terminated" in each.get("lastState", {})
            yield each["name"], waiting.get("reason", ""), waiting.get("message", ""), has_run


def _words(*parts: str) -> str:
    return ": ".join(filter(None, parts))


def _broken(status: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[str, FailureCause] | None:
    has_failed = status.get("phase") == "Failed"
    if has_failed and status.get("reason"):  # Evicted: the ends of its processes are the kubelet's doing.
        return _failed(status)
    if (ended := model.get("terminated")) is not None:
        return _ended("the model server", ended)
    for each in status.get("initContainerStatuses", []):
        # The kubelet starts it again, and its slots are gone nevertheless.
        ends = (each.get(key, {}).get("terminated") for key in ("state", "lastState"))
        ended = next((end for end in ends if end is not None), None)
        if each["name"] == QUEUE_PROXY and ended is not None:
            return _ended("its queue_proxy", ended)
    for name, reason, message, has_run in _waiting(status):
        if reason in _CANNOT_START and not has_run:  # A sidecar of others that ran is no end of a replica.
            return _words(f"the container {name} cannot be started", reason, message), FailureCause.START
    return _failed(status) if has_failed else None


def _failed(status: Mapping[str, Any]) -> tuple[str, FailureCause]:
    words = _words(status.get("reason", ""), status.get("message", ""))
    return f"its Pod has failed: {words or 'the kubelet gives no reason'}", FailureCause.GONE


def _ended(what: str, ended: Mapping[str, Any]) -> tuple[str, FailureCause]:
    reason, message = ended.get("reason", ""), ended.get("message", "")
    if reason in _NEVER_RAN:
        return _words(f"{what} cannot be started", reason, message), FailureCause.START
    if reason == _LOST:
        return _words(f"the node lost {what}", message), FailureCause.GONE
    code, output = ended.get("exitCode", 0), message.splitlines()
    if reason == "OOMKilled":
        return failure_text(f"{what} used more than its memory limit and was ended", output), FailureCause.MEMORY
    number = ended.get("signal") or (code - SIGNALLED if SIGNALLED < code <= SIGNALLED + MAX_SIGNAL else 0)
    if number:
        name = _SIGNALS.get(number, f"signal {number}")
        doubt = " (out of memory?)" if name == "SIGKILL" else ""
        return failure_text(f"{what} was killed by {name}{doubt}", output), FailureCause.KILLED
    return failure_text(f"{what} exited with status {code}", output), FailureCause.EXITED
