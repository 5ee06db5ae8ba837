"""Replicas as Pods of a cluster.

Each replica is one Pod with the replica's name, so that a create that is repeated meets its own Pod and makes no second
one. This file is the face of the Backend protocol; the transitions of a replica are in ``lifecycle.py``.

The ledger of units is rebuilt from the Pods at every start. Pods of this deployment that no replica accounts for are
deleted.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.clock import Clock
from tidegate.deploy.backend import (
    BackendError,
    Listener,
    ReplicaStatus,
    ResizeRefusedError,
    RevisionFailure,
    SleepRefusedError,
)
from tidegate.deploy.backoff import BackOff
from tidegate.deploy.environment import batching_refusal
from tidegate.deploy.kubernetes.pods.states import facts
from tidegate.deploy.kubernetes.pods.template import (
    LABEL,
    MANAGED_BY,
    Object,
    PodSettings,
    label,
    problems,
)
from tidegate.deploy.kubernetes.process.api import GONE, SYNCED, ChangedError, ClusterError, KubernetesApi
from tidegate.deploy.kubernetes.process.following import keep_following
from tidegate.deploy.kubernetes.process.groups import GroupObjects, groups_of
from tidegate.deploy.kubernetes.process.lifecycle import PodLifecycle, epoch_of, revision_of
from tidegate.deploy.kubernetes.process.lingering import Lingering
from tidegate.deploy.kubernetes.process.owner import Owner
from tidegate.deploy.kubernetes.process.replica import PodRegistry
from tidegate.deploy.kubernetes.process.retries import Note
from tidegate.deploy.local.processes import Warn, warn_on_stderr
from tidegate.deploy.placement.ledger import WHOLE, Accelerator, AcceleratorKind, Ledger, Room, candidates
from tidegate.deploy.placement.strategies import BEST_FIT, StrategyRow
from tidegate.function import Batching, Revision
from tidegate.records.replica_state import ColdStartPhases

REPORTED_WITHIN_S: Final = 2.0
"""Time for adopted queue_proxies to report their state before the first round."""
SYNCED_WITHIN_S: Final = 30.0
ENDED_WITHIN_S: Final = 5.0
"""Time for Pods to be gone, beyond the grace period."""


class KubernetesBackend:
    """Implements ``tidegate.deploy.backend.Backend``.

    Made inside the running loop; :meth:`start` comes first, :meth:`close` last.
    """

    def __init__(
        self,
        *,
        api: KubernetesApi,
        settings: PodSettings,
        token: str,
        accelerators: Iterable[Accelerator],
        clock: Clock,
        rng: random.Random,
        strategy: StrategyRow = BEST_FIT,
        warn: Warn = warn_on_stderr,
        note: Note = lambda _subject, _text: None,
    ) -> None:
        """``note`` takes what lasts: a watch that does not work, a Pod that cannot be created or deleted."""
        self._api = api
        self._note = note
        self._warn = warn
        self._clock = clock
        self._ledger = Ledger.of(accelerators, (), strategy)
        self._back_off = BackOff(rng)
        self._registry = PodRegistry()
        self._synced = asyncio.Event()
        self._revisions: Mapping[str, Revision] = {}
        self._tasks = TaskOwner("Kubernetes backend", lambda name, error: warn(f"{name}: {error!r}"))
        self._selector = f"{MANAGED_BY}=tidegate,{LABEL}deployment={label(settings.deployment)}"
        owner = Owner(api, settings, token, note, self._belong_to)
        self._lifecycle = PodLifecycle(
            api=api,
            registry=self._registry,
            ledger=self._ledger,
            back_off=self._back_off,
            settings=settings,
            owner=owner,
            token=token,
            clock=clock,
            tasks=self._tasks,
            warn=warn,
            note=note,
        )

        self._groups = GroupObjects(
            api,
            settings,
            note,
            lambda: groups_of((each.revision, each.status) for each in self._registry.present.values()),
        )
        self._registry.watch(self._groups.changed)
        self._lingering = Lingering(note)

    def _belong_to(self, settings: PodSettings) -> None:
        """Gives what is made from now on, and the objects of the groups, another owner."""
        self._lifecycle.settings = settings
        self._groups.belong_to(settings)

    # --- start and end ---

    async def start(self, revisions: Mapping[str, Revision]) -> None:
        """Adopts the Pods of an earlier control process, by their revisions, and deletes those of no known one. Waits
        up to two seconds for the states of the adopted replicas. Raises ClusterError if no API server answers."""
        self._revisions = dict(revisions)
        following = keep_following(self._api, self._lifecycle.pods, self._selector, self._handle, "Pods", self._note)
        self._tasks.spawn(following, name="pods")
        try:
            async with asyncio.timeout(SYNCED_WITHIN_S):
                await self._synced.wait()
        except TimeoutError:
            await self._tasks.close()
            await self._api.get(self._lifecycle.pods)  # Raises with the reason.
            raise ClusterError(f"the Pods were not listed within {SYNCED_WITHIN_S:g} s") from None
        self._tasks.spawn(self._groups.run(), name="groups")
        reports = [asyncio.wait_for(each.reported.wait(), REPORTED_WITHIN_S) for each in self._registry.all()]
        await asyncio.gather(*reports, return_exceptions=True)

    async def _handle(self, kind: str, pod: Object) -> None:
        if kind == SYNCED:
            self._synced.set()
            return
        if kind == GONE:
            self._lingering.gone(pod["metadata"]["name"])
            self._lifecycle.gone(pod)
            return
        self._lingering.seen(pod["metadata"]["name"], facts(pod))
        if self._registry.get(pod["metadata"]["name"]) is not None:
            self._lifecycle.seen(pod)
        else:
            await self._unknown(pod)

    async def _unknown(self, pod: Object) -> None:
        """Adopts a Pod that no replica accounts for, or deletes it."""
        meta = pod["metadata"]
        is_first = not self._synced.is_set()
        if is_first and self._lifecycle.adopt(pod, self._revisions.get(revision_of(pod))):
            return
        if "deletionTimestamp" not in meta and epoch_of(pod) <= self._lifecycle.settings.epoch:
            self._warn(f"the Pod {meta['name']} has the labels of this deployment and is of no replica: it is deleted")
            path = f"{self._lifecycle.pods}/{meta['name']}"
            # One that has changed since comes again, with what it has become.
            with suppress(ChangedError):
                await self._api.delete(path, uid=meta["uid"], version=meta["resourceVersion"])

    async def close(self, stop_replicas: bool, grace_s: float = 30.0) -> None:
        """See the protocol."""
        self._lifecycle.is_closing = True
        if stop_replicas:
            deadline = self._clock.now() + grace_s
            while self._registry.present or self._registry.ending:
                for replica in tuple(self._registry.present.values()):
                    self._lifecycle.remove(replica)
                if not await self._end_within(max(0.0, deadline - self._clock.now())):
                    break
        for replica in self._registry.all():
            if replica.start_timer is not None:
                replica.start_timer.cancel()
        await self._tasks.close()
        for replica in self._registry.all():
            if replica.link is not None:
                await replica.link.close()

    async def _end_within(self, grace_s: float) -> bool:
        """Waits for the end of every replica, and deletes those by force that outlive the grace period. Returns False
        if a Pod is left."""
        replicas = self._registry.all()
        waiting = [self._tasks.spawn(each.ended.wait(), name=f"end of {each.id}") for each in replicas]
        if not waiting:
            return True
        _, left = await asyncio.wait(waiting, timeout=grace_s)
        if not left:
            return True
        for each in replicas:
            if not each.ended.is_set():
                await self._lifecycle.end_by_force(each)
        _, left = await asyncio.wait(waiting, timeout=ENDED_WITHIN_S)
        return not left

    # --- Backend ---

    @property
    def runs_images(self) -> bool:
        """See the protocol."""
        return True

    async def apply(self, revision: Revision) -> None:
        """See the protocol."""
        wrong = problems(revision.function)
        if not candidates(self.devices(), revision.function):
            wrong.append(f"none of its accelerators is here and large enough; there are {self._ledger.names}")
        if wrong:
            raise BackendError(f"{revision.id} cannot run as a Pod: " + "; ".join(wrong))

    async def create(
        self,
        replica_id: str,
        revision: Revision,
        accelerator: str,
        phases: ColdStartPhases,
        *,
        share: int = WHOLE,
    ) -> ReplicaStatus:
        """See the protocol."""
        return await self._lifecycle.start(replica_id, revision, accelerator, phases, share)

    async def remove(self, replica_id: str) -> None:
        """See the protocol. Raises BackendError while another control process may lead."""
        replica = self._registry.find(replica_id)
        if not self._may_write:
            raise BackendError(f"{replica_id} is not removed: {self._api.fence.why}")
        self._lifecycle.remove(replica)

    @property
    def _may_write(self) -> bool:
        return self._api.fence.left_s() > 0.0

    async def revive(self, replica_id: str) -> bool:
        """See the protocol."""
        return self._may_write and await self._lifecycle.revive(replica_id)

    async def resize(self, replica_id: str, *, threads: int | None = None, share: int | None = None) -> ReplicaStatus:
        """See the protocol. The cores of a Pod change in place, within its unit; its device does not."""
        replica = self._registry.find(replica_id)
        status, kind = replica.status, self._ledger.kind(replica.status.accelerator)
        if share is not None and share != status.share:
            raise ResizeRefusedError(f"{replica_id}: a Pod keeps its share of a device")
        if threads is None or threads == status.threads:
            return status
        if kind.kind is not AcceleratorKind.CPU or not 1 <= threads <= kind.cores:
            raise ResizeRefusedError(
                f"{replica_id} on {kind.name} cannot have {threads} cores; a unit has {kind.cores}"
            )
        await self._lifecycle.resize(replica, threads)
        return replica.status

    async def sleep(self, replica_id: str) -> None:
        """See the protocol."""
        kind = self._ledger.kind(self._registry.find(replica_id).status.accelerator)
        raise SleepRefusedError(f"{replica_id}: {self.sleep_refusal(kind)}")

    def sleep_refusal(self, accelerator: Accelerator) -> str | None:
        """See the protocol. A pause would free nothing."""
        return f"a Pod holds its {'cores' if accelerator.kind is AcceleratorKind.CPU else 'device'} until it is deleted"

    async def configure(self, replica_id: str, batching: Batching) -> ReplicaStatus:
        """See the protocol. The model server of a Pod listens on its loopback address alone, so that its batches
        change with a new revision."""
        replica = self._registry.find(replica_id)
        why = batching_refusal(replica.revision.function, self._ledger.kind(replica.status.accelerator), batching)
        raise ResizeRefusedError(f"{replica_id}: {why or 'the model server of a Pod cannot be reached from here'}")

    def watch(self, listener: Listener) -> Callable[[], None]:
        """See the protocol."""
        return self._registry.watch(listener)

    def set_accelerators(self, accelerators: Iterable[Accelerator]) -> None:
        """Replaces the accelerators. Replicas stay where they are until the plan removes them."""
        self._ledger.set_accelerators(accelerators, ())

    def replicas(self) -> tuple[ReplicaStatus, ...]:
        """See the protocol."""
        return tuple(each.status for each in self._registry.present.values())

    def devices(self) -> tuple[Accelerator, ...]:
        """See the protocol."""
        return tuple(self._ledger.accelerators.values())

    def room(self, revision: Revision, share: int = WHOLE) -> Mapping[str, Room]:
        """See the protocol."""
        return self._ledger.rooms(revision.function, share)

    def failure(self, revision_id: str) -> RevisionFailure | None:
        """See the protocol."""
        return self._back_off.failure_beside(revision_id, self.replicas, self._clock.now())

    def __repr__(self) -> str:
        return f"<KubernetesBackend {len(self._registry.present)} replicas, {len(self._registry.ending)} ending>"
