"""Deploys what a cluster's Functions and Pipelines state, and writes their status.

Level-triggered: each object is compared as a whole with what is deployed, when it changes, when this process starts,
and again while it is refused. A function belongs to an object if its origin is that object's path; functions that were
deployed by command stay as they are, and an object of the same name is refused.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from tidegate.control.api.deployment import Deployment
from tidegate.control.sdk import StartFailedError, serves
from tidegate.control.state.notices import Faults
from tidegate.control.views.functions import FunctionState, FunctionView
from tidegate.control.views.requests import DeployRequest
from tidegate.deploy.kubernetes.process.api import (
    CONFLICT,
    GONE,
    NOT_FOUND,
    SYNCED,
    ClusterError,
    KubernetesApi,
    Object,
    RefusedError,
)
from tidegate.deploy.kubernetes.process.following import keep_following
from tidegate.deploy.kubernetes.resources.states import (
    FAILS,
    REFUSED,
    SERVES,
    STARTS,
    STOPPED,
    ResourceState,
    digest_of,
    is_same,
    manifest_of,
    new_status,
)
from tidegate.errors import InvalidInputError, TidegateError
from tidegate.manifest.spec import API_VERSION

KINDS: Final = ("functions", "pipelines")
LOOK_EVERY_S: Final = 1.0
"""Interval at which statuses are compared and refused objects are due again."""
AT_ONCE: Final = 100
"""Objects after which gateways and autoscaler take up what was deployed."""
WRITES_AT_ONCE: Final = 20
LOOKS_EACH: Final = 200
"""Statuses that one look compares of those that have not just changed: of thousands it takes a few looks."""
MOST_LOOKS: Final = 5
RETRY_S: Final = 10.0
"""Time after which a refused object is tried again: what it waited for may be there."""
STATUSES, BUG, SETTLING = "statuses of the cluster's objects", "objects of the cluster", "deploys of the cluster"
LEAVING: Final = "objects of the cluster that are being deleted"
"""Subjects of faults."""
_LATER: Final = ""
"""A status is written when the watch has brought what its object is now."""

_log = logging.getLogger("tidegate")


class _Key(NamedTuple):
    kind: str
    name: str


class _Brought(NamedTuple):
    """The newest state of an object that was brought about, or refused: what its status is of."""

    resource: Object
    digest: str


class _Refusal(NamedTuple):
    """Why an object is not deployed, and when it is tried again."""

    why: str
    again_at: float
    is_own: bool = False
    """It fails for an error of ours."""


class FollowedResources:
    """The objects of one namespace."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        deployment: Deployment,
        *,
        faults: Faults,
        clock: Callable[[], float],
        stamp: Callable[[], str],
        url: Callable[[FunctionView], str | None],
    ) -> None:
        """``stamp`` returns the wall clock as an RFC 3339 time, ``url`` where others reach a function."""
        self._api = api
        self._path = f"/apis/{API_VERSION}/namespaces/{namespace}"
        self._namespace = namespace
        self._deployment = deployment
        self._faults = faults
        self._clock = clock
        self._stamp = stamp
        self._url = url
        self._wanted: dict[_Key, Object] = {}
        self._refused: dict[_Key, _Refusal] = {}
        self._brought: dict[_Key, _Brought] = {}
        self._leaving: dict[_Key, str] = {}
        """Why objects whose deletion is ordered are still there."""
        self._due: set[_Key] = set()
        self._moving: set[_Key] = set()
        """Objects whose statuses the next look compares whatever its turn: they differed, or may."""
        self._turn = 0
        self._changed = asyncio.Event()
        self._is_settled = True
        self._reported = -1
        """Number of the deployment's changes when the statuses were compared."""

    async def run(self) -> None:
        """Follows the objects until it is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for kind in KINDS:
                path, handle = f"{self._path}/{kind}", partial(self._handle, kind)
                following = keep_following(self._api, path, "", handle, kind, self._faults.note)
                tasks.create_task(following, name=f"follow {kind}")
            tasks.create_task(self._work(), name="deploy resources")

    async def _handle(self, kind: str, event: str, each: Object) -> None:
        if event == SYNCED:
            self._due |= self._orphans(kind)
            self._changed.set()
            return
        key = _Key(kind, each["metadata"]["name"])
        self._note_leaving(key, {} if event == GONE else each["metadata"])
        if event == GONE:
            self._wanted.pop(key, None)
            self._brought.pop(key, None)
        else:
            self._wanted[key] = each
            brought = self._brought.get(key)
            if brought is not None and is_same(each, brought.resource):
                return  # mostly our own write of its status
        self._due.add(key)
        self._changed.set()

    def _note_leaving(self, key: _Key, meta: Object) -> None:
        """Takes what is known of an object's deletion. As Kubernetes' own controllers have it, what the object states
        goes on until the object is gone."""
        before, finalizers = self._leaving.get(key), ", ".join(meta.get("finalizers") or ())
        if "deletionTimestamp" in meta and finalizers:
            self._leaving[key] = f"its deletion is ordered, and it goes on until others take away {finalizers}"
        else:
            self._leaving.pop(key, None)
        if self._leaving.get(key) != before:
            self._moving.add(key)
            self._reported = -1
            said = [f"{each.kind}/{each.name}: {why}" for each, why in self._leaving.items()]
            more = f" and {len(said) - 1} more" if len(said) > 1 else ""
            self._faults.note(LEAVING, f"{said[0]}{more}" if said else None)

    async def end(self, limit_s: float) -> None:
        """Writes on each object that nothing of it runs any more, within ``limit_s`` seconds. Called when all has
        ended."""
        state = ResourceState(is_ready=False, reason=STOPPED, message="tidegate has been ended", ready=0)
        limit = asyncio.Semaphore(WRITES_AT_ONCE)

        async def write(key: _Key) -> None:
            async with limit:
                await self._write(key, state)

        try:
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*map(write, tuple(self._brought)))
        except TimeoutError:
            _log.warning("the statuses of some Functions still say what they said while tidegate ran")

    def _origin(self, key: _Key) -> str:
        return f"{self._path}/{key.kind}/{key.name}"

    def _orphans(self, kind: str) -> set[_Key]:
        """Returns the functions whose objects are gone."""
        keys = {_Key(kind, each.name) for each in self._deployment.registry.all()}
        return {key for key in keys if key not in self._wanted and self._is_ours(key)}

    def _is_ours(self, key: _Key) -> bool:
        return self._deployment.registry.origin(key.name) == self._origin(key)

    async def _work(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            now = self._clock()
            self._due |= {key for key, each in self._refused.items() if each.again_at <= now}
            # Functions before pipelines, which are made of them; deletions the other way round.
            due = sorted(self._due, key=lambda key: (key.kind, key.name))
            self._due.clear()
            for start in range(0, len(due), AT_ONCE):
                await self._bring_about_all(due[start : start + AT_ONCE])
            if not self._is_settled:
                await self._settle()
            failing = sum(1 for each in self._refused.values() if each.is_own)
            self._faults.note(BUG, f"{failing} objects are not deployed for an error of tidegate" if failing else None)
            seen = self._deployment.changed
            if due or seen != self._reported:
                self._reported = seen if await self._report_all() else -1

    async def _bring_about_all(self, keys: Sequence[_Key]) -> None:
        changed = [await self._bring_about(key) for key in keys]
        if any(changed):
            await self._settle()
            await asyncio.gather(*map(self._report, keys))

    async def _settle(self) -> None:
        try:
            await self._deployment.settle()
        except Exception as error:
            self._is_settled = False
            self._faults.set(SETTLING, f"gateways do not know what was deployed: {type(error).__name__}: {error}")
            _log.exception("what was deployed is not taken up")
        else:
            self._is_settled = True
            self._faults.clear(SETTLING)

    async def _report_all(self) -> bool:
        """Writes the statuses that differ, of those whose turn it is. Returns False if one could not be written."""
        failed, keys = [], self._next_keys()
        for start in range(0, len(keys), WRITES_AT_ONCE):
            some = keys[start : start + WRITES_AT_ONCE]
            found = await asyncio.gather(*map(self._report, some))
            failed += [(key, why) for key, why in zip(some, found, strict=True) if why is not None]
            await asyncio.sleep(0)  # Of thousands of functions it takes a while.
        said = [f"{key.kind}/{key.name}: {why}" for key, why in failed if why != _LATER]
        many = f" and {len(said) - 1} more" if len(said) > 1 else ""
        self._faults.note(STATUSES, f"{said[0]}{many}" if said else None)
        return not failed

    def _next_keys(self) -> tuple[_Key, ...]:
        looks = min(MOST_LOOKS, 1 + len(self._wanted) // LOOKS_EACH)
        moving, self._moving, self._turn = self._moving, set(), (self._turn + 1) % looks
        turn = self._turn
        return tuple(key for n, key in enumerate(self._wanted) if n % looks == turn or key in moving)

    async def _bring_about(self, key: _Key) -> bool:
        """Makes the deployment what the object states, or what its absence does. Returns whether it was deployed."""
        wanted, manifest = self._wanted.get(key), None
        self._refused.pop(key, None)
        self._moving.add(key)
        try:
            manifest = None if wanted is None else manifest_of(wanted)
            if manifest is not None:
                return await self._deploy(key, manifest)
            if self._is_ours(key):
                await self._deployment.delete(key.name)
        except TidegateError as error:
            self._refused[key] = _Refusal(_why(error), self._clock() + RETRY_S)
            _log.warning("%s %s is refused: %s", key.kind, key.name, error)
        except Exception as error:
            why = f"an error of tidegate: {type(error).__name__}: {error}"
            self._refused[key] = _Refusal(why, self._clock() + RETRY_S, is_own=True)
            _log.exception("%s %s", key.kind, key.name)
        finally:
            if wanted is not None and key in self._wanted:
                self._brought[key] = _Brought(wanted, digest_of(manifest or ""))
        return False

    async def _deploy(self, key: _Key, manifest: str) -> bool:
        deployed = self._deployment.registry.get(key.name)
        if deployed is not None and self._is_ours(key) and deployed.latest.manifest == manifest:
            return False
        origin = self._origin(key)
        request = DeployRequest(manifest=manifest, base="/", source=origin, origin=origin)
        await self._deployment.deploy(request, settles=False)
        return True

    async def _report(self, key: _Key) -> str | None:
        """Writes the status of an object where it differs. Returns why it could not; None if it is as it should be."""
        try:
            state = self._state(key)
        except Exception as error:
            self._moving.add(key)
            _log.exception("status of %s %s", key.kind, key.name)
            return f"an error of tidegate: {type(error).__name__}: {error}"
        return await self._write(key, state)

    async def _write(self, key: _Key, state: ResourceState) -> str | None:
        brought, wanted = self._brought.get(key), self._wanted.get(key)
        status = None if brought is None else new_status(*brought, state, self._stamp())
        if brought is None or wanted is None or status is None:
            return None
        self._moving.add(key)
        # Of the object as it is known: who leads no longer, or has missed a change, is refused.
        known = {"resourceVersion": wanted["metadata"]["resourceVersion"]}
        try:
            written = await self._api.patch(f"{self._origin(key)}/status", {"metadata": known, "status": status})
        except RefusedError as error:
            if error.status == NOT_FOUND:
                return None
            return _LATER if error.status == CONFLICT else str(error)
        except ClusterError as error:
            return str(error)
        if self._wanted.get(key) is wanted:
            self._wanted[key] = written
        if self._brought.get(key) is brought:
            self._brought[key] = _Brought({**brought.resource, "status": written.get("status", {})}, brought.digest)
        return None

    def _state(self, key: _Key) -> ResourceState:
        state = self._state_of(key)
        if (leaving := self._leaving.get(key)) is None:
            return state
        return replace(state, message="; ".join(filter(None, (leaving, state.message))))

    def _state_of(self, key: _Key) -> ResourceState:
        refused = self._refused.get(key)
        deployed = self._deployment.registry.get(key.name)
        view = None if deployed is None or not self._is_ours(key) else self._deployment.function(key.name, log=False)
        if refused is not None or view is None:
            message = "it is not deployed yet" if refused is None else refused.why
            state = ResourceState(is_ready=False, reason=REFUSED if refused else "Pending", message=message)
            return state if view is None else self._with_figures(state, view)
        is_ready = view.message is None and view.state is not FunctionState.UNPLACED
        reason = view.state.value.title().replace("-", "")
        return self._with_figures(ResourceState(is_ready=is_ready, reason=reason, message=view.message or ""), view)

    def _with_figures(self, state: ResourceState, view: FunctionView) -> ResourceState:
        return ResourceState(
            is_ready=state.is_ready,
            reason=state.reason,
            message=state.message,
            latest=_latest(view) if state.reason != REFUSED else (FAILS, state.message),
            revision=view.revision,
            wanted=view.desired,
            ready=view.ready,
            url=self._url(view),
        )

    def __repr__(self) -> str:
        return f"<FollowedResources {len(self._wanted)} in {self._namespace}, {len(self._refused)} refused>"


def _why(error: TidegateError) -> str:
    """Returns why a manifest is refused: places of its object, and not lines of the text that was made of that."""
    if not isinstance(error, InvalidInputError):
        return str(error)
    return "; ".join(str(replace(each, line=None)) for each in error.faults)


def _latest(view: FunctionView) -> tuple[str, str]:
    """Returns what became of the newest revision, and why."""
    newest = view.revision if view.is_pipeline else max(view.revisions, key=lambda each: each.number).id
    try:
        return (SERVES, "") if serves(view, newest) else (STARTS, f"{newest} waits for its first replica")
    except StartFailedError as error:
        return FAILS, str(error)
