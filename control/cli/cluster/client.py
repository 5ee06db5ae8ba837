"""The Functions and Pipelines of a cluster's namespace, as a person's own account may see and change them."""

import asyncio
import itertools
import random
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from tidegate.control.sdk import StartFailedError
from tidegate.deploy.kubernetes.pods.template import FUNCTION, MODEL_SERVER, QUEUE_PROXY, label
from tidegate.deploy.kubernetes.process.api import NOT_FOUND, ClusterError, KubernetesApi, Object, RefusedError
from tidegate.deploy.kubernetes.resources.objects import PLURALS
from tidegate.deploy.kubernetes.resources.states import FAILS, LATEST, READY, REFUSED, SERVES, digest_of, manifest_of
from tidegate.errors import Fault, InvalidInputError, TidegateError
from tidegate.manifest.spec import API_VERSION

MANAGER: Final = "tidegate-deploy"
"""Field manager of what is applied."""
LOOK_EVERY_S: Final = 0.2
LATE_LOOKS: Final = 50
"""Looks after which an object that no control process has taken up is said: ten seconds."""
CONTAINERS: Final = {"server": (MODEL_SERVER,), "proxy": (QUEUE_PROXY,), "all": (MODEL_SERVER, QUEUE_PROXY)}
_VALUE: Final = re.compile(r'Invalid value: ("(?:[^"\\]|\\.)*"|[^:]*): (?:allowed: )?(.*)', re.DOTALL)
T = TypeVar("T")


class OtherManagerError(TidegateError):
    """Another tool has applied fields of an object with other values."""


class Cluster:
    """One namespace."""

    def __init__(self, api: KubernetesApi, namespace: str) -> None:
        self._api = api
        self.namespace = namespace

    def _path(self, kind: str, name: str = "") -> str:
        end = f"/{name}" if name else ""
        return f"/apis/{API_VERSION}/namespaces/{self.namespace}/{PLURALS[kind]}{end}"

    async def apply(self, objects: Sequence[Object], *, source: str, force: bool) -> list[Object]:
        """Applies all objects, or none if one is refused. Raises InvalidInputError with every fault, and
        OtherManagerError."""
        await self.preview(objects, source=source, force=force)
        return [await self._apply(each, force=force, dry_run=False) for each in objects]

    async def preview(self, objects: Sequence[Object], *, source: str, force: bool = True) -> list[Object]:
        """Returns what :meth:`apply` would make of the objects. Raises as it does."""
        found: list[Object] = []
        faults: list[Fault] = []
        for each in objects:
            try:
                found.append(await self._apply(each, force=force, dry_run=True))
            except RefusedError as error:
                faults += self._faults(error, each)
        if faults:
            raise InvalidInputError(source, faults)
        return found

    async def _apply(self, each: Object, *, force: bool, dry_run: bool) -> Object:
        query = {"fieldManager": MANAGER, "fieldValidation": "Strict", "force": "true" if force else "false"}
        query |= {"dryRun": "All"} if dry_run else {}
        path = self._path(each["kind"], each["metadata"]["name"])
        return await self._api.call("PATCH", path, each, query=query, kind="application/apply-patch+yaml")

    def _faults(self, error: RefusedError, each: Object) -> list[Fault]:
        """Returns what the API server refuses of an object: each cause with its place."""
        name = each["metadata"]["name"]
        if error.status == NOT_FOUND:
            raise self._lacking(each["kind"], error) from error
        if error.status == 409:
            raise OtherManagerError(f"{name}: {error}; --replace takes the fields over")
        if error.status not in (400, 422):
            raise error
        found = []
        for cause in error.causes or ({"message": str(error)},):
            message = str(cause.get("message", ""))
            value = _VALUE.fullmatch(message)
            where = cause.get("field") or each["kind"]
            got, allowed = (value[1], value[2]) if value is not None else ("what is stated", message)
            found.append(Fault(f"{name}: {where}", got, allowed))
        return found

    async def wait(
        self,
        applied: Object,
        seen: Callable[[Object], None] = lambda found: None,
        late: Callable[[], None] = lambda: None,
    ) -> Object:
        """Returns the object once its newest revision serves or sleeps. ``late`` is called once if no control process
        has taken it up by then. Raises StartFailedError."""
        kind, name, wanted = applied["kind"], applied["metadata"]["name"], digest_of(manifest_of(applied))
        for look in itertools.count(1):
            found = await self._api.get(self._path(kind, name))
            seen(found)
            is_taken_up = found.get("status", {}).get("observedManifest") == wanted
            if look == LATE_LOOKS and not is_taken_up:
                late()
            if is_taken_up:
                ready, latest = condition(found, READY), condition(found, LATEST)
                if ready.get("reason") == REFUSED:
                    raise StartFailedError(f"{name} is refused: {ready['message']}")
                if latest.get("reason") == FAILS:
                    raise StartFailedError(latest["message"])
                if latest.get("reason") == SERVES:
                    return found
            await asyncio.sleep(LOOK_EVERY_S)
        raise AssertionError

    async def all(self) -> list[Object]:
        """Returns all objects, Functions first."""
        found: list[Object] = []
        for kind in PLURALS:
            try:
                listed = await self._api.get(self._path(kind))
            except RefusedError as error:
                raise (self._lacking(kind, error) if error.status == NOT_FOUND else error) from error
            found += [each | {"kind": kind} for each in listed["items"]]
        return found

    def _lacking(self, kind: str, error: RefusedError) -> ClusterError:
        how = "the chart installs the resources; `tidegate doctor --context` has the command for it"
        if str(error).startswith("namespaces "):
            how = f"make it first (kubectl create namespace {self.namespace})"
        return ClusterError(f"{PLURALS[kind]} in namespace {self.namespace}: {error}; {how}")

    async def get(self, name: str) -> Object:
        """Returns an object of a name. Raises InvalidInputError if there is none."""
        found = {each["metadata"]["name"]: each for each in await self.all()}
        if name not in found:
            allowed = f"{', '.join(sorted(found)) or 'there is none'} (namespace {self.namespace})"
            raise InvalidInputError("arguments", [Fault("NAME", name, allowed)])
        return found[name]

    async def pods(self, each: Object) -> list[Object]:
        """Returns the Pods of an object's replicas: of a pipeline those of its stages."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        listed = await self._api.get(path, labelSelector=selector_of(each))
        return list(listed["items"])

    async def delete(self, each: Object) -> None:
        await self._api.delete(self._path(each["kind"], each["metadata"]["name"]))

    async def log(self, pod: str, container: str, tail: int) -> list[str]:
        """Returns the last lines of a container. Raises ClusterError."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        text = await self._api.text(path, container=container, tailLines=str(tail))
        return text.splitlines()


def stages_of(each: Object) -> list[str]:
    """Returns the functions that are stages of an object; none if it is no pipeline."""
    return [stage["function"] for stage in each["spec"].get("stages", [])]


def selector_of(each: Object) -> str:
    """Returns the label selector of the Pods of an object's replicas: of a pipeline those of its stages."""
    names = stages_of(each) or [each["metadata"]["name"]]
    return f"{FUNCTION} in ({','.join(map(label, names))})"


def condition(each: Object, kind: str) -> Object:
    """Returns a condition of an object; empty if it has none."""
    conditions = each.get("status", {}).get("conditions", [])
    return next((one for one in conditions if one["type"] == kind), {})


@asynccontextmanager
async def cluster(context: str, namespace: str | None) -> AsyncGenerator[Cluster, None]:
    """Connects to a context of kubeconfig, and its namespace unless one is given. Raises ClusterError."""
    api = await KubernetesApi.connect(random.Random(), context=context)
    try:
        yield Cluster(api, namespace or api.namespace)
    finally:
        await api.close()


def with_cluster(context: str, namespace: str | None, do: "Callable[[Cluster], Coroutine[Any, Any, T]]") -> T:
    """Runs ``do`` with the namespace, and returns what it does."""

    async def run() -> T:
        async with cluster(context, namespace) as found:
            return await do(found)

    return asyncio.run(run())
