"""What a cluster has and lacks for Tidegate, asked as the account that asks: nothing is changed."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate.deploy.kubernetes.pods.template import PodSettings, labels, pod_spec
from tidegate.deploy.kubernetes.process.api import NOT_FOUND, ClusterError, KubernetesApi, Object, RefusedError
from tidegate.deploy.kubernetes.process.gpus import gpu_report
from tidegate.deploy.kubernetes.resources.admission import epoch_policy, injected_policy, replica_policy
from tidegate.deploy.kubernetes.resources.definitions import policies
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
ACCOUNT: Final = "tidegate"
"""Account of the control process, as the chart names it."""
ENFORCE, RESTRICTED = "pod-security.kubernetes.io/enforce", "restricted"
_INSTALL: Final = (
    "the chart installs them; without Helm: kubectl apply --server-side -f deploy/kubernetes/chart/resources"
)
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
    questions: tuple[tuple[str, bool, Callable[[], Awaitable[tuple[Answer, str]]]], ...] = (
        ("API server", True, lambda: _version(api)),
        ("resources", True, lambda: _resources(api)),
        ("policies", False, lambda: _policies(api)),
        ("rights", True, lambda: _rights(api, namespace)),
        (f"account {ACCOUNT}", False, lambda: _account(api, namespace)),
        ("Pod Security", False, lambda: _pod_security(api, namespace)),
        ("Pods", True, lambda: _pods(api, namespace)),
        ("GPUs", False, lambda: _gpus(api)),
    )
    for question in questions:
        yield await asked(*question)


async def asked(subject: str, is_needed: bool, ask: Callable[[], Awaitable[tuple[Answer, str]]]) -> Surveyed:
    """Asks one question. ``is_needed``: whether the account that asks needs to see the answer."""
    try:
        answer, text = await ask()
    except ClusterError as error:
        # What a control process does not need itself, its account need not see.
        answer, text = (Answer.LACKS, str(error)) if is_needed else (Answer.LACKS_LITTLE, f"not seen: {error}")
    return Surveyed(subject, answer, text)


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
    listed = await found_object(api, f"/apis/{API_VERSION}") or {}
    there = {each["name"] for each in listed.get("resources", [])}
    missing = [name for name in ("functions", "pipelines") if name not in there]
    if missing:
        without = "neither kubectl nor a command with --context deploys"
        return Answer.LACKS, f"no {' and '.join(missing)} of {API_VERSION}: {without} ({_INSTALL})"
    return Answer.HAS, f"Function and Pipeline of {API_VERSION}"


async def _policies(api: KubernetesApi) -> tuple[Answer, str]:
    wanted = [*policies(), *replica_policy(), *epoch_policy(), *injected_policy()]
    missing: dict[str, list[str]] = {}
    for each in wanted:
        kind, name = each["kind"], each["metadata"]["name"]
        plural = "validatingadmissionpolicybindings" if kind.endswith("Binding") else "validatingadmissionpolicies"
        if await found_object(api, f"/apis/{each['apiVersion']}/{plural}/{name}") is None:
            missing.setdefault(name, []).append(kind)
    if missing and sum(map(len, missing.values())) == len(wanted):
        return (
            Answer.LACKS_LITTLE,
            f"none of the admission of manifests and replicas: the API server refuses less ({_INSTALL})",
        )
    if missing:
        named = [f"{kinds[0]} {name}{' with its binding' * (len(kinds) > 1)}" for name, kinds in missing.items()]
        return Answer.LACKS_LITTLE, f"no {', '.join(named)}: the API server refuses less ({_INSTALL})"
    return Answer.HAS, f"all {len(wanted)} of the admission of manifests and replicas"


async def _rights(api: KubernetesApi, namespace: str) -> tuple[Answer, str]:
    missing = await _lacking(api, namespace, None)
    if missing:
        return Answer.LACKS, f"in namespace {namespace} this account may not {', '.join(missing)}"
    return Answer.HAS, f"all that are needed in namespace {namespace}"


async def _account(api: KubernetesApi, namespace: str) -> tuple[Answer, str]:
    """Asks what the account of the chart may do, which only an administrator may ask."""
    missing = await _lacking(api, namespace, f"system:serviceaccount:{namespace}:{ACCOUNT}")
    if await found_object(api, f"/api/v1/namespaces/{namespace}/serviceaccounts/{ACCOUNT}") is None:
        return Answer.LACKS_LITTLE, f"not there in namespace {namespace}: the chart makes it"
    if missing:
        return Answer.LACKS, f"in namespace {namespace} it may not {', '.join(missing)}: its Role is the chart's"
    return Answer.HAS, f"has all rights that are needed in namespace {namespace}"


async def _pod_security(api: KubernetesApi, namespace: str) -> tuple[Answer, str]:
    found = await found_object(api, f"/api/v1/namespaces/{namespace}")
    if found is None:
        how = f"helm install --create-namespace, or kubectl create namespace {namespace}"
        return Answer.LACKS, f"there is no namespace {namespace} ({how})"
    level = found["metadata"].get("labels", {}).get(ENFORCE)
    if level == RESTRICTED:
        return Answer.HAS, f"namespace {namespace} takes {RESTRICTED} Pods alone"
    what = "no level" if level is None else f"the level {level}"
    how = f"kubectl label namespace {namespace} {ENFORCE}={RESTRICTED}"
    return Answer.LACKS_LITTLE, f"namespace {namespace} enforces {what}; replicas fulfil {RESTRICTED} ({how})"


async def found_object(api: KubernetesApi, path: str) -> Object | None:
    """Returns an object; None if there is none."""
    try:
        return await api.get(path)
    except RefusedError as error:
        if error.status == NOT_FOUND:
            return None
        raise


async def _lacking(api: KubernetesApi, namespace: str, user: str | None) -> list[str]:
    """Returns the needed calls that an account may not make. ``user`` None: this one."""
    return [
        f"{verb} {resource}{f' {name}' if name else ''}"
        for group, resource, name, verbs in RIGHTS
        for verb in verbs
        if not await _may(api, namespace, (group, resource, name, verb), user)
    ]


async def _may(api: KubernetesApi, namespace: str, right: tuple[str, str, str, str], user: str | None) -> bool:
    group, resource, name, verb = right
    kind, _, part = resource.partition("/")
    asked: Object = {"namespace": namespace, "group": group, "resource": kind, "verb": verb}
    asked |= {key: text for key, text in (("subresource", part), ("name", name)) if text}
    review = "SelfSubjectAccessReview" if user is None else "SubjectAccessReview"
    spec: Object = {"resourceAttributes": asked} if user is None else {"resourceAttributes": asked, "user": user}
    if user is not None:
        spec["groups"] = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": review, "spec": spec}
    answer = await api.create(f"/apis/authorization.k8s.io/v1/{review.lower()}s", body)
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


async def _gpus(api: KubernetesApi) -> tuple[Answer, str]:
    """Looks at the nodes, which an administrator may."""
    nodes, slices, unseen = await api.get("/api/v1/nodes"), None, ""
    try:
        slices = await found_object(api, "/apis/resource.k8s.io/v1/resourceslices")
    except RefusedError as error:  # The nodes are the more important.
        unseen = f"; devices of resource claims are not seen: {error}"
    are_whole, text = gpu_report(nodes.get("items") or (), (slices or {}).get("items") or ())
    return Answer.HAS if are_whole and not unseen else Answer.LACKS_LITTLE, text + unseen
