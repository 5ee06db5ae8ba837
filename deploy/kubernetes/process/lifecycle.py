"""The life of a replica that is a Pod: made or adopted, followed, failed, drained, deleted.

The queue_proxy is the authority over readiness and slots, as on one machine: its event stream is followed as soon as
the Pod has an address. What the API server reports of the Pod adds what a queue_proxy cannot: no node takes it, its
image cannot be had, its process was killed, it is being deleted by others.

A removal orders the drain, waits for its end, and then deletes the Pod: the deletion is the record of the stop. The
unit is released when the Pod is gone.
"""

import asyncio
from dataclasses import replace
from typing import Any, Final

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.clock import Clock
from tidegate.deploy.backend import BackendError, ReplicaStatus, ResizeRefusedError
from tidegate.deploy.backoff import BackOff
from tidegate.deploy.environment import threads_of
from tidegate.deploy.kubernetes.pods.states import PodFacts, facts, resize_state
from tidegate.deploy.kubernetes.pods.template import (
    ADMIN_PORT,
    EPOCH,
    LABEL,
    MODEL_SERVER,
    SERVING_PORT,
    Object,
    PodSettings,
    cores_of,
    labels,
    owners,
    pod_spec,
    resources,
)
from tidegate.deploy.kubernetes.process.api import (
    CONFLICT,
    NOT_FOUND,
    ChangedError,
    ClusterError,
    KubernetesApi,
    RefusedError,
)
from tidegate.deploy.kubernetes.process.owner import Owner
from tidegate.deploy.kubernetes.process.replica import PodRegistry, PodReplica
from tidegate.deploy.kubernetes.process.retries import Note, Retries
from tidegate.deploy.local.admin_link import LinkError, ProxyLink, ProxyState
from tidegate.deploy.local.processes import Warn
from tidegate.deploy.placement.ledger import Assignment, Ledger, NoRoomError, demand_of
from tidegate.function import Revision
from tidegate.records.codec import CodecError, decode, encode
from tidegate.records.replica_state import ColdStartPhases, FailureCause, ReplicaState

ASSIGNMENT: Final = f"{LABEL}assignment"
"""Annotation of a Pod with the units that it holds, for a control process that adopts it."""
REVISION_ID: Final = f"{LABEL}revision-id"
START_SLACK_S: Final = 5.0
"""A start that exceeds its timeout is reported by the queue_proxy. Without a report it fails this much later."""
DRAINED_GRACE_S: Final = 10
"""Grace period of a Pod whose drain has ended."""
RESIZED_WITHIN_S: Final = 4.0
"""Time that a node has to change a Pod in place; it takes about one second."""
CREATING: Final = "Pods to create"
ALREADY_THERE: Final = "AlreadyExists"


class PodLifecycle:
    """Moves replicas of a registry through their states. Made inside the running loop."""

    def __init__(
        self,
        *,
        api: KubernetesApi,
        registry: PodRegistry,
        ledger: Ledger,
        back_off: BackOff,
        settings: PodSettings,
        owner: Owner,
        token: str,
        clock: Clock,
        tasks: TaskOwner,
        warn: Warn,
        note: Note = lambda _subject, _text: None,
    ) -> None:
        self._api = api
        self._note = note
        self._registry = registry
        self._ledger = ledger
        self._back_off = back_off
        self.settings = settings
        """Of the Pods that are made."""
        self._owner = owner
        self._token = token
        self._clock = clock
        self._tasks = tasks
        self._warn = warn
        self.is_closing = False
        """Nothing is started or revived any more."""

    @property
    def pods(self) -> str:
        """Path of the Pods."""
        return f"/api/v1/namespaces/{self.settings.namespace}/pods"

    # --- making and adopting ---

    async def start(
        self, replica_id: str, revision: Revision, accelerator: str, phases: ColdStartPhases, share: int
    ) -> ReplicaStatus:
        """Takes a unit and creates the Pod. See ``Backend.create``."""
        if self.is_closing:
            raise BackendError(f"{replica_id} is not started: the backend is closing")
        if self._owner.missing is not None:
            raise BackendError(f"{replica_id} is not started: {self._owner.missing}")
        if self._registry.get(replica_id) is not None:
            raise BackendError(f"{replica_id} exists")
        kind = self._ledger.kind(accelerator)
        held = self._ledger.assign(replica_id, accelerator, demand_of(revision.function, kind, share))
        phases = replace(phases, schedule_s=phases.schedule_s or 0.0)
        replica = self._new(replica_id, revision, held, phases, adopted=False)
        self._registry.enter(replica)
        body = self._pod(replica, held)
        if not await self._create(replica, body):
            self._tasks.spawn(self._create_later(replica, body), name=f"create {replica.id}")
        return replica.status

    async def _create(self, replica: PodReplica, body: Object) -> bool:
        """Creates the Pod. Returns False if the API server could not answer: that is no failure of the replica."""
        try:
            self._made(replica, await self._api.create(self.pods, body))
        except ClusterError as error:
            if not isinstance(error, RefusedError) or error.is_passing or is_collision(error):
                what = f"its Pod is not created yet: {error}"
                if replica.status.state is ReplicaState.STARTING:
                    self._registry.update(replica, reason=what)
                self._note(CREATING, f"{replica.id}: {error}")
                return False
            if error.reason == ALREADY_THERE:
                return await self._meet(replica, body)
            self._fail(replica, f"the API server refuses the Pod: {error}", FailureCause.START)
        return True

    async def _meet(self, replica: PodReplica, body: Object) -> bool:
        """Takes the Pod that has the replica's name, if an earlier call that seemed to fail created it."""
        try:
            pod = await self._api.get(f"{self.pods}/{replica.id}")
        except ClusterError:
            return False
        if is_same(pod, body) and "deletionTimestamp" not in pod["metadata"]:
            self._made(replica, pod)
        else:
            what = f"a Pod {replica.id} that is not of this replica has its name; it is left as it is"
            replica.is_foreign = True
            self._fail(replica, what, FailureCause.START)
        return True

    def _made(self, replica: PodReplica, pod: Object) -> None:
        replica.uid, replica.version = pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]
        if replica.status.state is ReplicaState.STARTING:
            self._registry.update(replica, reason=None)

    async def _create_later(self, replica: PodReplica, body: Object) -> None:
        """Creates the Pod as soon as the API server answers, if it is still wanted."""
        retries = Retries(self._api.rng)
        while True:
            await self._api.sleep(retries.next_s())
            if replica.stop_recorded or replica.leaving or replica.uid is not None:
                break
            if await self._create(replica, body):
                break
        self._note(CREATING, None)

    def _new(
        self, replica_id: str, revision: Revision, held: Assignment, phases: ColdStartPhases, *, adopted: bool
    ) -> PodReplica:
        kind = self._ledger.kind(held.accelerator)
        status = ReplicaStatus(
            id=replica_id,
            function=revision.function.name,
            revision=revision.id,
            accelerator=held.accelerator,
            state=ReplicaState.STARTING,
            address="",
            admin="",
            created_at=self._clock.now(),
            phases=phases,
            unit=held.unit,
            more_units=held.more,
            devices=held.devices,
            share=held.share,
            threads=threads_of(revision.function, kind),
            emulated=kind.is_emulated,
            adopted=adopted,
        )
        return PodReplica(status, revision)

    def _pod(self, replica: PodReplica, held: Assignment) -> Object:
        settings, kind = self.settings, self._ledger.kind(held.accelerator)
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": replica.id,
                "namespace": settings.namespace,
                "labels": labels(replica.revision, held.accelerator, settings),
                "annotations": {
                    ASSIGNMENT: encode(held).decode(),
                    REVISION_ID: replica.revision.id,
                    EPOCH: str(settings.epoch),
                },
                "ownerReferences": owners(settings),
            },
            "spec": pod_spec(replica.revision, kind, settings, restarts=False),
        }

    def adopt(self, pod: Object, revision: Revision | None) -> bool:
        """Takes over a Pod of an earlier control process. Returns False if its revision or its unit is gone."""
        meta = pod["metadata"]
        try:
            held = decode(meta["annotations"][ASSIGNMENT], Assignment)
            if revision is None or "deletionTimestamp" in meta:
                return False
            self._ledger.restore(meta["name"], held)
        except (KeyError, CodecError, NoRoomError) as error:
            self._warn(f"{meta['name']} is not adopted: {error}")
            return False
        replica = self._new(meta["name"], revision, held, ColdStartPhases(), adopted=True)
        replica.uid, replica.version = meta["uid"], meta["resourceVersion"]
        kind = self._ledger.kind(held.accelerator)
        cores = cores_of(pod, kind)
        if cores is not None and cores < kind.cores:
            replica.status = replace(replica.status, threads=cores)  # It was resized.
        self._registry.enter(replica)
        self._tasks.spawn(self._stamp(replica), name=f"stamp {replica.id}")
        self.seen(pod)
        return True

    async def _stamp(self, replica: PodReplica) -> None:
        """Writes this epoch on an adopted Pod. An earlier leader cannot delete it as it knew it from then on."""
        retries, epoch, subject = Retries(self._api.rng), str(self.settings.epoch), f"epoch of {replica.id}"
        while not replica.stop_recorded:
            try:
                pod = await self._api.patch(f"{self.pods}/{replica.id}", {"metadata": {"annotations": {EPOCH: epoch}}})
                if pod["metadata"]["uid"] == replica.uid:
                    replica.version = pod["metadata"]["resourceVersion"]
                break
            except RefusedError as error:
                if error.status == NOT_FOUND:
                    break
                self._note(subject, str(error))
            except ClusterError:
                pass  # The watch reports it.
            await self._api.sleep(retries.next_s())
        self._note(subject, None)

    # --- following ---

    def seen(self, pod: Object) -> None:
        """Takes a Pod as the API server reports it now."""
        replica = self._registry.get(pod["metadata"]["name"])
        if replica is None or replica.ended.is_set():
            return
        found = facts(pod)
        if replica.uid is None and not found.is_deleted and self._is_ours(pod, replica):
            replica.uid = found.uid  # The answer to its create was lost.
        if found.uid != replica.uid:
            return
        replica.version, replica.pod = pod["metadata"]["resourceVersion"], pod
        replica.changed.set()
        if not replica.stop_recorded:
            self._follow_pod(replica, found)
        if found.lingers:
            if not replica.stop_recorded:
                self._record_stop(replica)
            self._release(replica)

    def _follow_pod(self, replica: PodReplica, found: PodFacts) -> None:
        if found.broken is not None:
            self._fail(replica, *found.broken)
        elif found.is_deleted:
            self._deleted_by_others(replica)
        else:
            self._placed(replica, found)
            if found.ip is not None and replica.link is None:
                self._reach(replica, found.ip)

    def gone(self, pod: Object) -> None:
        """Takes the end of a Pod: its unit is free."""
        replica = self._registry.get(pod["metadata"]["name"])
        if replica is None or replica.uid != pod["metadata"]["uid"]:
            return
        if not replica.stop_recorded:
            if replica.leaving:
                self._record_stop(replica)
            else:
                self._fail(replica, "its Pod was deleted by force", FailureCause.GONE)
                self._tasks.spawn(self._owner.look(), name="look for the owner")
        self._release(replica)

    def _placed(self, replica: PodReplica, found: PodFacts) -> None:
        """Measures the phases up to the start of the model server, and reports why a Pod has no node."""
        status, now = replica.status, self._clock.now()
        if status.state is not ReplicaState.STARTING:
            return
        if found.waits is not None or replica.waits:
            replica.waits = found.waits is not None
            self._registry.update(replica, reason=found.waits)
        if found.is_bound and replica.start_timer is None:
            limit_s = replica.revision.function.readiness.start_timeout_s + START_SLACK_S
            replica.start_timer = asyncio.get_running_loop().call_later(limit_s, self._start_timed_out, replica)
        if found.is_bound and replica.bound_at is None and not status.adopted:
            replica.bound_at = now
            spent = (status.phases.schedule_s or 0.0) + now - status.created_at
            self._registry.update(replica, phases=replace(status.phases, schedule_s=spent), reason=None)
        if found.is_started and replica.bound_at is not None and replica.status.phases.pull_s is None:
            phases = replace(replica.status.phases, pull_s=now - replica.bound_at)
            self._registry.update(replica, phases=phases)

    def _reach(self, replica: PodReplica, ip: str) -> None:
        host = f"[{ip}]" if ":" in ip else ip
        replica.link = ProxyLink(f"{host}:{ADMIN_PORT}", self._token)
        self._registry.update(replica, address=f"{host}:{SERVING_PORT}", admin=replica.link.admin)
        replica.follow_task = self._tasks.spawn(self._follow(replica, replica.link), name=f"follow {replica.id}")

    async def _follow(self, replica: PodReplica, link: ProxyLink) -> None:
        try:
            async for reported in link.states():
                first = not replica.reported.is_set()
                replica.reported.set()
                self._on_reported(replica, reported)
                if first and replica.status.adopted:
                    await self._take_over(replica, link, reported)
        except LinkError as error:
            self._fail(replica, str(error), FailureCause.GONE)

    def _on_reported(self, replica: PodReplica, reported: ProxyState) -> None:
        if replica.stop_recorded:
            return
        phases = _merged(replica.status.phases, reported.phases)
        state, limit = reported.state, reported.limit
        if state is ReplicaState.FAILED:
            message = reported.message or "the model server failed"
            self._fail(replica, message, reported.cause or FailureCause.GONE)
        elif state is ReplicaState.READY and not replica.leaving:
            if replica.start_timer is not None:
                replica.start_timer.cancel()
            ready_at = replica.status.ready_at or self._clock.now()
            self._registry.update(replica, state=state, phases=phases, limit=limit, ready_at=ready_at, reason=None)
        elif state in (ReplicaState.DRAINED, ReplicaState.STOPPED):
            self._registry.update(replica, state=ReplicaState.DRAINED, phases=phases, limit=limit)
            replica.drained.set()
        elif state in (ReplicaState.STARTING, ReplicaState.DRAINING):
            self._registry.update(replica, state=state, phases=phases, limit=limit)

    async def _take_over(self, replica: PodReplica, link: ProxyLink, reported: ProxyState) -> None:
        """Sends the new epoch to an adopted queue_proxy. A drain that was under way goes on under this backend."""
        if reported.state in (ReplicaState.DRAINING, ReplicaState.DRAINED):
            self.remove(replica)
        elif reported.limit is not None and not replica.stop_recorded:
            try:
                await link.command("limit", {"limit": reported.limit, "epoch": self.settings.epoch})
            except LinkError as error:
                self._warn(f"{replica.id} did not take epoch {self.settings.epoch}: {error}")

    def _start_timed_out(self, replica: PodReplica) -> None:
        if replica.status.state is ReplicaState.STARTING and not replica.stop_recorded:
            limit_s = replica.revision.function.readiness.start_timeout_s
            what = f"not ready within its start timeout of {limit_s:g} s, and its queue_proxy reported nothing"
            self._fail(replica, what, FailureCause.START)

    # --- resizing ---

    async def resize(self, replica: PodReplica, cores: int) -> None:
        """Gives the model server other cores of its unit, and waits until the node has done it. What the node refuses
        or does not do in time is taken back. Raises ResizeRefusedError."""
        kind, before = self._ledger.kind(replica.status.accelerator), replica.status.threads
        function = replica.revision.function
        wanted = resources(function, kind, cores)
        try:
            await self._api.resize(f"{self.pods}/{replica.id}", MODEL_SERVER, wanted)
        except ClusterError as error:
            raise ResizeRefusedError(f"{replica.id} keeps its {before} cores: {error}") from error
        why = await self._refusal(replica, wanted)
        if why is None:
            self._registry.update(replica, threads=cores)
            return
        try:
            await self._api.resize(f"{self.pods}/{replica.id}", MODEL_SERVER, resources(function, kind, before))
        except ClusterError as error:
            self._warn(f"{replica.id}: its resize to {cores} cores cannot be taken back: {error}")
        raise ResizeRefusedError(f"{replica.id} keeps its {before} cores: {why}")

    async def _refusal(self, replica: PodReplica, wanted: Object) -> str | None:
        """Waits for the node's answer to a resize. Returns why it is not done; None if it is."""
        try:
            async with asyncio.timeout(RESIZED_WITHIN_S):
                while not replica.stop_recorded:
                    replica.changed.clear()
                    state = None if replica.pod is None else resize_state(replica.pod, wanted)
                    if state is not None:
                        return state.refused
                    await replica.changed.wait()
        except TimeoutError:
            return f"the node has not changed them within {RESIZED_WITHIN_S:g} s"
        return "it has ended"

    # --- failing ---

    def _fail(self, replica: PodReplica, reason: str, cause: FailureCause) -> None:
        """Marks the replica as failed at once, and deletes its Pod in the background. One that was never ready has
        failed its start; the end of one that has drained is no failure."""
        if replica.stop_recorded:
            return
        if replica.leaving and replica.drained.is_set():
            self._record_stop(replica)  # The kubelet ends the containers one after the other.
            return
        status = replica.status
        if not replica.leaving:
            was_killed = cause is FailureCause.KILLED
            self._back_off.failed(status.revision, reason, self._clock.now(), status.ready_at, was_killed=was_killed)
        replica.stop_recorded = True
        known = FailureCause.START if status.ready_at is None else cause
        self._registry.update(replica, state=ReplicaState.FAILED, reason=reason, cause=known)
        if replica.leaving:
            self._registry.withdraw(replica)
        self._tasks.spawn(self._end(replica, 1), name=f"end {replica.id}")

    def _deleted_by_others(self, replica: PodReplica) -> None:
        """Follows a Pod that someone else deletes (a node that is drained, ``kubectl delete``): it drains by itself,
        and cannot be kept. One that was starting is stopped: on a node that is lost its deletion may last for ever."""
        if not replica.leaving:
            self._tasks.spawn(self._owner.look(), name="look for the owner")
        if replica.status.state is ReplicaState.STARTING:
            self._record_stop(replica)
            self._tasks.spawn(self._end(replica, DRAINED_GRACE_S), name=f"end {replica.id}")
        elif not replica.leaving:
            replica.leaving = True
            if replica.status.state is ReplicaState.READY:
                why = "its Pod is being deleted"
                self._registry.update(replica, state=ReplicaState.DRAINING, reason=why, is_ending=True)

    # --- leaving ---

    def remove(self, replica: PodReplica) -> None:
        """Orders the removal of a replica. See ``Backend.remove``."""
        state = replica.status.state
        if replica.leaving:
            return
        replica.leaving = True
        if state is ReplicaState.FAILED:
            self._registry.withdraw(replica)
        elif state is ReplicaState.STARTING:
            self._record_stop(replica)
            self._tasks.spawn(self._end(replica, 1), name=f"end {replica.id}")
        else:
            if state is ReplicaState.READY:
                self._registry.update(replica, state=ReplicaState.DRAINING)
            replica.drain_task = self._tasks.spawn(self._drain(replica), name=f"drain {replica.id}")

    async def revive(self, replica_id: str) -> bool:
        """Takes a drain back. See ``Backend.revive``."""
        replica = self._registry.present.get(replica_id)
        if self.is_closing or replica is None or replica.drain_task is None or not replica.leaving:
            return False
        # Shielded from cancellation: half of it would leave a serving queue_proxy whose drain is still awaited.
        task = self._tasks.spawn(self._revive(replica), name=f"revive {replica_id}")
        revived: bool = await asyncio.shield(task)
        return revived

    async def _revive(self, replica: PodReplica) -> bool:
        async with replica.stop_lock:
            if self.is_closing or not replica.is_revivable or replica.link is None:
                return False
            try:
                await replica.link.command("revive", {"epoch": self.settings.epoch})
            except LinkError as error:
                self._warn(f"{replica.id} cannot be revived: {error}")
                # It may have obeyed nevertheless, and would serve while its drain is awaited.
                await self._order_drain(replica)
                return False
            if replica.id not in self._registry.present or replica.stop_recorded:
                return False  # It broke meanwhile.
            replica.leaving = False
            replica.drained.clear()
            if replica.drain_task is not None:
                replica.drain_task.cancel()
                replica.drain_task = None
            self._registry.update(replica, state=ReplicaState.READY)
        return True

    async def _drain(self, replica: PodReplica) -> None:
        async with replica.stop_lock:
            if replica.stop_recorded:
                return
            await self._order_drain(replica)
        limit_s = replica.revision.function.timeout_s
        try:
            await asyncio.wait_for(replica.drained.wait(), limit_s)
        except TimeoutError:
            self._warn(f"{replica.id} still had work after the function's timeout of {limit_s:g} s")
        async with replica.stop_lock:
            if not replica.is_revivable:
                return
            self._record_stop(replica)
        await self._end(replica, DRAINED_GRACE_S)

    async def _order_drain(self, replica: PodReplica) -> None:
        try:
            if replica.link is not None:
                await replica.link.command("drain", {"epoch": self.settings.epoch})
        except LinkError as error:
            self._warn(f"{replica.id} cannot be ordered to drain: {error}")
            replica.drained.set()  # Its preStop drains too.

    def _record_stop(self, replica: PodReplica) -> None:
        """Records the stop: the point of no return."""
        replica.stop_recorded = True
        self._registry.withdraw(replica)

    async def _end(self, replica: PodReplica, grace_s: int) -> None:
        """Deletes the Pod, until the API server has accepted it. :meth:`gone` releases the unit."""
        if replica.start_timer is not None:
            replica.start_timer.cancel()
        retries, subject = Retries(self._api.rng), f"end of {replica.id}"
        while not replica.ended.is_set():
            try:
                is_there = await self._delete(replica, grace_s)
            except ChangedError:
                await self._api.sleep(retries.next_s())  # Then with what it has become.
            except ClusterError as error:
                self._note(subject, f"its Pod cannot be deleted: {error}")
                await self._api.sleep(retries.next_s())
            else:
                self._note(subject, None)
                if not is_there:
                    self._release(replica)
                return
        self._note(subject, None)

    async def end_by_force(self, replica: PodReplica) -> None:
        """Deletes the Pod of a replica that has had its time. One that cannot be deleted is left behind, and said."""
        try:
            await self._delete(replica, 1)
        except ClusterError as error:
            self._warn(f"the Pod {replica.id} is left behind: {error}")

    async def _delete(self, replica: PodReplica, grace_s: int) -> bool:
        """Deletes the Pod of a replica, as this process knows it. Returns False if there is none. Raises ClusterError,
        and ChangedError if it has changed since: its new version is known then."""
        path = f"{self.pods}/{replica.id}"
        if not await self._is_there(replica):
            return False
        await self._api.delete(path, grace_s=grace_s, uid=replica.uid, version=replica.version)
        return await self._is_there(replica)

    async def _is_there(self, replica: PodReplica) -> bool:
        """Looks for the Pod of a replica. A Pod of its name that was not made for it is none."""
        try:
            pod = await self._api.get(f"{self.pods}/{replica.id}")
        except RefusedError as error:
            if error.status != NOT_FOUND:
                raise
            return False
        meta = pod["metadata"]
        if replica.uid is None and not replica.is_foreign and self._is_ours(pod, replica):
            replica.uid = meta["uid"]
        if replica.uid != meta["uid"]:
            return False
        epoch = epoch_of(pod)
        if epoch > self.settings.epoch:
            raise ClusterError(f"a control process of epoch {epoch} has its Pod; this one is of {self.settings.epoch}")
        replica.version = meta["resourceVersion"]
        return True

    def _is_ours(self, pod: Object, replica: PodReplica) -> bool:
        known = pod["metadata"].get("labels", {})
        wanted = labels(replica.revision, replica.status.accelerator, self.settings)
        return known.items() >= wanted.items() and revision_of(pod) == replica.revision.id

    def _release(self, replica: PodReplica) -> None:
        """Releases the unit of a replica whose Pod is gone."""
        if replica.ended.is_set():
            return
        self._ledger.release(replica.id)
        self._registry.ended(replica)
        if replica.follow_task is not None and replica.follow_task is not asyncio.current_task():
            replica.follow_task.cancel()
        if replica.link is not None:
            self._tasks.spawn(replica.link.close(), name=f"close {replica.id}")

    def __repr__(self) -> str:
        return f"<PodLifecycle of {self._registry!r}>"


def _merged(known: ColdStartPhases, reported: ColdStartPhases) -> ColdStartPhases:
    """Merges cold-start phases: up to the start of the model server as measured here, the later ones as reported."""
    return replace(reported, decide_s=known.decide_s, schedule_s=known.schedule_s, pull_s=known.pull_s)


def is_same(pod: Object, wanted: Object) -> bool:
    """Returns whether a Pod is the one that was to be made: its labels and its assignment are those."""
    found, stated = pod["metadata"], wanted["metadata"]
    known = found.get("annotations", {})
    same = all(known.get(key) == stated["annotations"][key] for key in (ASSIGNMENT, REVISION_ID))
    return same and found.get("labels", {}).items() >= stated["labels"].items()


def is_collision(error: RefusedError) -> bool:
    """Returns whether a create met another write at the same moment, such as one that the namespace's quota counts."""
    return error.status == CONFLICT and error.reason != ALREADY_THERE


def epoch_of(pod: Object) -> int:
    """Returns the epoch of the control process that made or adopted a Pod; 0 if none is written on it."""
    text = pod["metadata"].get("annotations", {}).get(EPOCH, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def revision_of(pod: dict[str, Any]) -> str:
    """Returns the id of the revision that a Pod runs."""
    return str(pod["metadata"].get("annotations", {}).get(REVISION_ID, ""))
