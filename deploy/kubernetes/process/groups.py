"""The objects beside the Pods of each group: a headless Service, and a budget of disruptions that follows its size.

Level-triggered: what the replicas want is compared with what was written, at each change, again while a write fails,
and every ten minutes with what is there. Objects of groups that have no replica are deleted, those of an earlier
control process too.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.kubernetes.pods.template import FUNCTION, LABEL, MANAGED_BY, PodSettings, label
from tidegate.deploy.kubernetes.pods.workloads import disruption_budget, group_name, service
from tidegate.deploy.kubernetes.process.api import ClusterError, KubernetesApi, RefusedError
from tidegate.deploy.kubernetes.process.retries import Note, Retries
from tidegate.function import Revision

SUBJECT: Final = "Services and disruption budgets"
AGAIN_S: Final = 0.5
"""Between two looks: a group that grows by many replicas is written a few times."""
LOOK_EVERY_S: Final = 600.0
"""Objects that others have deleted are missed for so long at most."""
MANAGER: Final = "tidegate"


@dataclass(frozen=True, slots=True)
class Group:
    """One revision on one kind of accelerator."""

    revision: Revision
    accelerator: str
    size: int
    """Replicas that serve or will; 0 if all leave or have failed."""


def groups_of(replicas: Iterable[tuple[Revision, ReplicaStatus]]) -> dict[str, Group]:
    """Returns the groups of replicas by the name of their objects."""
    found: dict[str, Group] = {}
    for revision, status in replicas:
        name = group_name(revision, status.accelerator)
        size = found[name].size if name in found else 0
        found[name] = Group(revision, status.accelerator, size + status.is_wanted)
    return found


class GroupObjects:
    """Keeps the objects of all groups."""

    def __init__(
        self, api: KubernetesApi, settings: PodSettings, note: Note, wanted: Callable[[], dict[str, Group]]
    ) -> None:
        """``wanted`` returns the groups as they are now."""
        self._api = api
        self._settings = settings
        self._note = note
        self._wanted = wanted
        space = settings.namespace
        self._services = f"/api/v1/namespaces/{space}/services"
        self._budgets = f"/apis/policy/v1/namespaces/{space}/poddisruptionbudgets"
        self._written: dict[str, int] = {}
        """Size of a group by the name of its objects; -1 if they have to be written whatever it is."""
        self._is_listed = False
        self._changed = asyncio.Event()

    def belong_to(self, settings: PodSettings) -> None:
        """Gives all objects the owner of these settings."""
        self._settings = settings
        self._written.clear()
        self._is_listed = False
        self._changed.set()

    def changed(self, _: ReplicaStatus) -> None:
        """Takes a change of any replica."""
        self._changed.set()

    async def run(self) -> None:
        """Keeps the objects until it is cancelled."""
        retries = Retries(self._api.rng)
        while True:
            try:
                if not self._is_listed:
                    self._is_listed = True
                    await self._list()
                failed = await self._bring_about()
            except ClusterError as error:
                failed, self._is_listed = str(error), False
            self._note(SUBJECT, failed)
            if failed is not None:
                await self._api.sleep(retries.next_s())
                continue
            retries.reset()
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                self._is_listed = False
            self._changed.clear()
            await self._api.sleep(AGAIN_S)

    async def _list(self) -> None:
        selector = f"{MANAGED_BY}=tidegate,{LABEL}deployment={label(self._settings.deployment)}"
        found: list[set[str]] = []
        for path in (self._services, self._budgets):
            listed = (await self._api.get(path, labelSelector=selector)).get("items") or ()
            metas = [each["metadata"] for each in listed]
            found.append({meta["name"] for meta in metas if FUNCTION in meta.get("labels", {})})
        services, budgets = found
        sizes = {name: self._written.get(name, -1) for name in services & budgets}
        self._written = dict.fromkeys(services | budgets, -1) | sizes

    async def _bring_about(self) -> str | None:
        """Returns what the API server refuses of one group; the others are written nevertheless. Raises ClusterError
        if it does not answer."""
        wanted, failed = self._wanted(), None
        for name, group in wanted.items():
            if self._written.get(name) == group.size:
                continue
            try:
                await self._write(name, group)
            except RefusedError as error:
                failed = f"{name}: {error}"
        for name in self._written.keys() - wanted.keys():
            for path in (self._services, self._budgets):
                await self._api.delete(f"{path}/{name}")
            del self._written[name]
        return failed

    async def _write(self, name: str, group: Group) -> None:
        which = group.revision, group.accelerator, self._settings
        if self._written.get(name, -1) < 0:
            await self._api.apply(f"{self._services}/{name}", service(*which), MANAGER)
        await self._api.apply(f"{self._budgets}/{name}", disruption_budget(*which, group.size), MANAGER)
        self._written[name] = group.size

    def __repr__(self) -> str:
        return f"<GroupObjects of {len(self._written)} groups>"
