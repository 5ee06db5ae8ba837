"""The life of a replica whose API server does not answer, refuses, or has other Pods of its name."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.live.backends import PHASES, TWO_CORES, revision
from tidegate.clock import LiveClock
from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.kubernetes.pods.template import EPOCH, PodSettings
from tidegate.deploy.kubernetes.process.api import ClusterError, KubernetesApi, Object, RefusedError
from tidegate.deploy.kubernetes.process.backend import KubernetesBackend
from tidegate.deploy.local.admin_link import ProxyState
from tidegate.records.replica_state import FailureCause, ReplicaState

A = "resnet-00001-aaaaa"
PODS = "/api/v1/namespaces/here/pods"
AWAY = ClusterError("the API server does not answer")


class Cluster(KubernetesApi):
    """Keeps Pods, and answers as it is ordered."""

    def __init__(self) -> None:
        super().__init__(None, "here", random.Random(1), sleep=lambda _: asyncio.sleep(0))
        self.pods: dict[str, Object] = {}
        self.answers: list[ClusterError] = []
        """What the next writes are answered with."""
        self.calls: list[str] = []
        self._versions = 0

    def __repr__(self) -> str:
        return "<Cluster>"

    async def call(self, method: str, path: str, body: Object | None = None, **_: Any) -> Object:
        await asyncio.sleep(0)
        name = path.rpartition("/")[2]
        self.calls.append(f"{method} {name}")
        if method != "GET" and self.answers:
            raise self.answers.pop(0)
        if method == "POST":
            assert body is not None
            name = body["metadata"]["name"]
            if name in self.pods:
                raise RefusedError(409, "AlreadyExists", "it exists")
            return self.put(body)
        if name not in self.pods:
            raise RefusedError(404, "NotFound", "not found")
        if method == "DELETE":
            wanted = (body or {}).get("preconditions", {})
            known = self.pods[name]["metadata"]
            if any(known[key] != text for key, text in wanted.items()):
                raise RefusedError(409, "Conflict", "another one")
            del self.pods[name]
            return {}
        return self.pods[name]

    def put(self, pod: Object, **meta: Any) -> Object:
        """Stores a Pod, or what it has become."""
        self._versions += 1
        known = {"uid": f"uid-{self._versions}", **pod["metadata"], **meta, "resourceVersion": str(self._versions)}
        self.pods[known["name"]] = {"spec": {"containers": []}, **pod, "metadata": known}
        return self.pods[known["name"]]


class Bench:
    def __init__(self) -> None:
        self.cluster = Cluster()
        self.notes: dict[str, str] = {}
        self.warnings: list[str] = []
        self.history: list[tuple[str, str | None]] = []
        self.seen: list[ReplicaStatus] = []
        self.backend = KubernetesBackend(
            api=self.cluster,
            settings=PodSettings(image="i", namespace="here", epoch=5),
            token="t",
            accelerators=[TWO_CORES],
            clock=LiveClock(),
            rng=random.Random(1),
            warn=self.warnings.append,
            note=self.note,
        )
        self.backend.watch(self.seen.append)
        self.lifecycle = self.backend._lifecycle

    def note(self, subject: str, text: str | None) -> None:
        self.history.append((subject, text))
        if text is None:
            self.notes.pop(subject, None)
        else:
            self.notes[subject] = text

    async def create(self) -> ReplicaStatus:
        return await self.backend.create(A, revision(), "cpu-1core", PHASES)

    @property
    def state(self) -> ReplicaState | None:
        return next((each.state for each in self.backend.replicas()), None)

    @property
    def free(self) -> int:
        return self.backend.room(revision())["cpu-1core"].free

    async def until(self, holds: Callable[[], object]) -> None:
        for _ in range(10_000):
            if holds():
                return
            await asyncio.sleep(0)
        raise AssertionError(f"it never held: {self.history}, {self.seen[-2:]}")


def play(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    async def run() -> None:
        bench = Bench()
        try:
            await scenario(bench)
        finally:
            await bench.backend.close(stop_replicas=False)

    asyncio.run(run())


def test_an_api_server_that_does_not_answer_is_no_failed_start() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cluster.answers = [AWAY, RefusedError(503, "ServiceUnavailable", "etcd has no leader"), AWAY]
        status = await bench.create()
        assert status.state is ReplicaState.STARTING
        assert "does not answer" in (status.reason or "")
        await bench.until(lambda: A in bench.cluster.pods)
        await bench.until(lambda: not bench.notes)
        assert bench.state is ReplicaState.STARTING
        assert bench.backend.failure("resnet-00001") is None, "nothing of the revision has failed"
        assert bench.backend.replicas()[0].reason is None

    play(scenario)


def test_a_create_that_collides_with_a_write_of_the_quota_is_no_failed_start() -> None:
    async def scenario(bench: Bench) -> None:
        why = 'Operation cannot be fulfilled on resourcequotas "small": the object has been modified'
        bench.cluster.answers = [RefusedError(409, "Conflict", why)]
        assert (await bench.create()).state is ReplicaState.STARTING
        await bench.until(lambda: A in bench.cluster.pods)
        await bench.until(lambda: not bench.notes)
        assert bench.backend.failure("resnet-00001") is None

    play(scenario)


def test_a_quota_that_is_full_is_said() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cluster.answers = [
            RefusedError(403, "Forbidden", "exceeded quota: small, requested: pods=1, used: pods=1")
        ]
        assert (await bench.create()).state is ReplicaState.FAILED
        failure = bench.backend.failure("resnet-00001")
        assert failure is not None
        assert "the API server refuses the Pod: exceeded quota: small" in failure.reason

    play(scenario)


def test_the_epoch_that_could_not_be_written_is_no_fault_once_it_is() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.create()
        bench.cluster.answers = [RefusedError(500, "InternalError", "etcd is slow")]
        await bench.lifecycle._stamp(bench.lifecycle._registry.find(A))
        assert (f"epoch of {A}", "etcd is slow") in bench.history
        assert bench.notes == {}

    play(scenario)


def test_an_unknown_pod_of_a_later_leader_is_left_to_it() -> None:
    async def scenario(bench: Bench) -> None:
        bench.backend._synced.set()
        for epoch, is_left in (("6", True), ("5", False)):
            pod = bench.cluster.put({"metadata": {"name": A, "annotations": {EPOCH: epoch}}})
            await bench.backend._handle("PRESENT", pod)
            assert (A in bench.cluster.pods) == is_left
            assert any("of no replica" in text for text in bench.warnings) != is_left

    play(scenario)


def test_a_create_whose_answer_was_lost_meets_its_own_pod() -> None:
    async def scenario(bench: Bench) -> None:
        arrived = bench.cluster.put

        async def lost(path: str, body: Object) -> Object:
            arrived(body)
            del bench.cluster.create  # the next one is answered
            raise AWAY

        bench.cluster.create = lost  # type: ignore[method-assign]  # of this test
        await bench.create()
        await bench.until(lambda: "POST pods" in bench.cluster.calls)
        await bench.until(lambda: bench.lifecycle._registry.find(A).uid == "uid-1")
        assert bench.state is ReplicaState.STARTING
        assert len(bench.cluster.pods) == 1

    play(scenario)


def test_a_pod_of_others_that_has_the_name_is_left_as_it_is() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cluster.put({"metadata": {"name": A, "labels": {"app": "theirs"}}})
        await bench.create()
        assert bench.state is ReplicaState.FAILED
        assert "not of this replica" in (bench.backend.replicas()[0].reason or "")
        await bench.backend.remove(A)
        await bench.until(lambda: bench.free == 2)
        assert bench.cluster.pods[A]["metadata"]["labels"] == {"app": "theirs"}
        assert not [each for each in bench.cluster.calls if each.startswith("DELETE")]

    play(scenario)


def test_a_starting_pod_that_others_delete_is_not_awaited() -> None:
    """On a node that is lost the deletion never ends: another replica starts elsewhere."""

    async def scenario(bench: Bench) -> None:
        await bench.create()
        pod = bench.cluster.put(bench.cluster.pods[A], deletionTimestamp="now")
        bench.lifecycle.seen(pod)
        assert bench.backend.replicas() == ()
        assert bench.seen[-1].state is ReplicaState.STOPPED
        assert bench.free == 1, "its place is free when the Pod is gone"
        bench.lifecycle.gone(pod)
        assert bench.free == 2

    play(scenario)


def test_a_ready_pod_that_others_delete_drains_and_its_end_is_no_failure() -> None:
    """The kubelet ends the model server once the drain has ended, and reports it before the Pod is gone."""

    async def scenario(bench: Bench) -> None:
        await bench.create()
        replica = bench.lifecycle._registry.present[A]
        bench.lifecycle._on_reported(replica, ProxyState(state=ReplicaState.READY, limit=4))
        deleted = bench.cluster.put(bench.cluster.pods[A], deletionTimestamp="now")
        bench.lifecycle.seen(deleted)
        (status,) = bench.backend.replicas()
        assert (status.state, status.is_ending) == (ReplicaState.DRAINING, True), "another one is made meanwhile"
        bench.lifecycle._on_reported(replica, ProxyState(state=ReplicaState.DRAINED, limit=4))
        over = {"name": "model-server", "state": {"terminated": {"exitCode": 0}}}
        bench.lifecycle.seen(bench.cluster.put(deleted | {"status": {"containerStatuses": [over]}}))
        assert bench.backend.replicas() == ()
        bench.lifecycle.gone(deleted)
        assert ReplicaState.FAILED not in [each.state for each in bench.seen]
        assert bench.seen[-1].state is ReplicaState.STOPPED
        assert bench.free == 2

    play(scenario)


def test_a_pod_that_breaks_while_others_delete_it_has_failed() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.create()
        replica = bench.lifecycle._registry.present[A]
        bench.lifecycle._on_reported(replica, ProxyState(state=ReplicaState.READY, limit=4))
        deleted = bench.cluster.put(bench.cluster.pods[A], deletionTimestamp="now")
        bench.lifecycle.seen(deleted)
        over = {"name": "model-server", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
        bench.lifecycle.seen(bench.cluster.put(deleted | {"status": {"containerStatuses": [over]}}))
        failed = next(each for each in bench.seen if each.state is ReplicaState.FAILED)
        assert failed.cause is FailureCause.MEMORY

    play(scenario)


def test_the_time_of_a_start_runs_from_its_node_on() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.create()
        replica = bench.lifecycle._registry.find(A)
        assert replica.start_timer is None
        bound = bench.cluster.pods[A] | {"spec": {"nodeName": "n", "containers": []}}
        bench.lifecycle.seen(bench.cluster.put(bound))
        assert replica.start_timer is not None, "it has no address yet"

    play(scenario)


def test_a_pod_that_cannot_be_deleted_is_said_and_deleted_later() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.create()
        bench.cluster.answers = [RefusedError(403, "Forbidden", "may not delete pods"), AWAY]
        await bench.backend.remove(A)
        await bench.until(lambda: bench.free == 2)
        assert (f"end of {A}", "its Pod cannot be deleted: may not delete pods") in bench.history
        assert bench.notes == {}
        assert not bench.cluster.pods

    play(scenario)


def test_a_pod_that_a_later_leader_has_taken_is_not_deleted() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.create()
        pod = bench.cluster.pods[A]
        pod["metadata"]["annotations"] = {EPOCH: "6"}
        bench.cluster.put(pod)
        await bench.backend.remove(A)
        await bench.until(lambda: bench.notes)
        assert "epoch 6" in bench.notes[f"end of {A}"]
        assert A in bench.cluster.pods

    play(scenario)


def test_a_pod_that_changes_before_its_deletion_is_looked_at_again() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.create()
        delete = bench.cluster.delete

        async def changed_first(path: str, **how: Any) -> None:
            bench.cluster.put(bench.cluster.pods[A])
            del bench.cluster.delete  # once
            await delete(path, **how)

        bench.cluster.delete = changed_first  # type: ignore[method-assign]  # of this test
        await bench.backend.remove(A)
        await bench.until(lambda: not bench.cluster.pods)
        await bench.until(lambda: bench.free == 2)

    play(scenario)


def test_a_pod_that_a_finalizer_keeps_gives_its_place_back_and_is_said_until_it_is_gone() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.create()
        bound = bench.cluster.pods[A] | {"spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Running"}}
        kept = bench.cluster.put(bound, deletionTimestamp="now", finalizers=["a/b"])
        await bench.backend._handle("PRESENT", kept)
        assert bench.free == 1, "its processes may still run"
        over = bench.cluster.put(kept | {"status": {"phase": "Failed"}})
        await bench.backend._handle("PRESENT", over)
        assert bench.free == 2
        assert bench.backend.replicas() == ()
        assert "until others take away a/b" in bench.notes["Pods that have ended"]
        calls = len(bench.cluster.calls)
        await bench.backend._handle("PRESENT", bench.cluster.put(over))
        await asyncio.sleep(0)
        assert not [each for each in bench.cluster.calls[calls:] if each.startswith("DELETE")]
        await bench.backend._handle("DELETED", over)
        assert bench.notes == {}

    play(scenario)


def test_why_a_container_waits_is_the_reason_until_it_waits_no_more() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.create()
        waiting = {"name": "model-server", "state": {"waiting": {"reason": "RegistryUnavailable", "message": "later"}}}
        spec = {"spec": {"nodeName": "n", "containers": []}}
        stuck = bench.cluster.put(bench.cluster.pods[A] | spec | {"status": {"containerStatuses": [waiting]}})
        bench.lifecycle.seen(stuck)
        bench.lifecycle.seen(bench.cluster.put(stuck))
        assert "RegistryUnavailable: later" in (bench.backend.replicas()[0].reason or "")
        bench.lifecycle.seen(bench.cluster.put(stuck | {"status": {}}))
        assert bench.backend.replicas()[0].reason is None

    play(scenario)
