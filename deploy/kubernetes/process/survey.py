"""What a cluster has and lacks for Tidegate, asked as the account that asks: nothing is changed."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tidegate.deploy.kubernetes.pods.template import PodSettings, labels, pod_spec
from tidegate.deploy.kubernetes.process.api import ClusterError, KubernetesApi
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import Function, Revision, Server, ServerKind
from tidegate.manifest.spec import API_VERSION
from tidegate.schema.units import UnreadableError, whole

OLDEST: Final = (1, 34)
RIGHTS: Final[tuple[tuple[str, str, str, tuple[str, ...]], ...]] = (
    ("", "pods", "", ("get", "list", "watch", "create", "patch", "delete")),
    ("", "pods/resize", "", ("patch",)),
    ("", "secrets", "tidegate-link", ("get", "patch")),
    ("", "services", "", ("list", "create", "patch", "delete")),
    ("policy", "poddisruptionbudgets", "", ("list", "create", "patch", "delete")),
    ("coordination.k8s.io", "leases", "", ("create",)),
    ("coordination.k8s.io", "leases", "tidegate", ("get", "update")),
    ("tidegate.dev", "functions", "", ("list", "watch")),
    ("tidegate.dev", "pipelines", "", ("list", "watch")),
    ("tidegate.dev", "functions/status", "", ("patch",)),
    ("tidegate.dev", "pipelines/status", "", ("patch",)),
)
"""Group, resource, name and verbs of every call that a control process makes: the Role of the chart."""
_CORE: Final = Accelerator(name="cpu-1core", kind=AcceleratorKind.CPU, count=1, memory_bytes=1 << 30, cores=1)


class Answer(StrEnum):
    """What a question to the cluster found."""

    HAS = "has"
    LACKS_LITTLE = "lacks little"
    """Works, with less than all."""
    LACKS = "lacks"


@dataclass(frozen=True, slots=True)
class Surveyed:
    """One thing that was looked at."""

    subject: str
    answer: Answer
    text: str


async def survey(api: KubernetesApi, namespace: str) -> AsyncGenerator[Surveyed, None]:
    """Yields what was found. Each question is asked, whatever the one before it found."""
    questions: tuple[tuple[str, Callable[[], Awaitable[tuple[Answer, str]]]], ...] = (
        ("API server", lambda: _version(api)),
        ("resources", lambda: _resources(api)),
        ("rights", lambda: _rights(api, namespace)),
        ("Pods", lambda: _pods(api, namespace)),
    )
    for subject, ask in questions:
        try:
            answer, text = await ask()
        except ClusterError as error:
            answer, text = Answer.LACKS, str(error)
        yield Surveyed(subject, answer, text)


async def _version(api: KubernetesApi) -> tuple[Answer, str]:
    found = await api.get("/version")
    text = f"Kubernetes {found.get('gitVersion', '?')} at {api.host}"
    try:
        known = (whole(found["major"]), whole(found["minor"].rstrip("+")))
    except (KeyError, UnreadableError):
        return Answer.LACKS_LITTLE, f"{text}: its version cannot be read"
    if known < OLDEST:
        return Answer.LACKS, f"{text}; {OLDEST[0]}.{OLDEST[1]} or newer is needed"
    return Answer.HAS, text


async def _resources(api: KubernetesApi) -> tuple[Answer, str]:
    try:
        listed = await api.get(f"/apis/{API_VERSION}")
    except ClusterError:
        listed = {}
    there = {each["name"] for each in listed.get("resources", [])}
    missing = [name for name in ("functions", "pipelines") if name not in there]
    if missing:
        how = "kubectl apply --server-side -f deploy/kubernetes/chart/resources"
        return Answer.LACKS_LITTLE, f"no {' and '.join(missing)}: manifests come by `tidegate deploy` alone ({how})"
    return Answer.HAS, f"Function and Pipeline of {API_VERSION}"


async def _rights(api: KubernetesApi, namespace: str) -> tuple[Answer, str]:
    missing = [
        f"{verb} {resource}{f' {name}' if name else ''}"
        for group, resource, name, verbs in RIGHTS
        for verb in verbs
        if not await _may(api, namespace, group, resource, name, verb)
    ]
    if missing:
        return Answer.LACKS, f"in namespace {namespace} this account may not {', '.join(missing)}"
    return Answer.HAS, f"all that are needed in namespace {namespace}"


async def _may(api: KubernetesApi, namespace: str, group: str, resource: str, name: str, verb: str) -> bool:
    kind, _, part = resource.partition("/")
    asked: dict[str, Any] = {"namespace": namespace, "group": group, "resource": kind, "verb": verb}
    asked |= {key: text for key, text in (("subresource", part), ("name", name)) if text}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    answer = await api.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


async def _pods(api: KubernetesApi, namespace: str) -> tuple[Answer, str]:
    """Asks whether a replica's Pod would be accepted, by every rule of the cluster."""
    function = Function(name="doctor", server=Server(kind=ServerKind.IMAGE, target="tidegate"))
    revision, settings = Revision(function, 1), PodSettings(image="tidegate", namespace=namespace)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "tidegate-doctor", "labels": labels(revision, _CORE.name, settings)},
        "spec": pod_spec(revision, _CORE, settings, restarts=False),
    }
    await api.call("POST", f"/api/v1/namespaces/{namespace}/pods", pod, query={"dryRun": "All"})
    return Answer.HAS, f"a replica would be accepted in namespace {namespace}"
