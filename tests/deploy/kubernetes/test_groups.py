"""The Service and the disruption budget of each group: written as its size changes, deleted with its last replica."""

import asyncio
import random
from dataclasses import replace
from typing import Any

from tests.support.live.backends import revision
from tidegate.aio.loop.tasks import TaskOwner
from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.kubernetes.pods.template import PodSettings
from tidegate.deploy.kubernetes.process.api import ClusterError, KubernetesApi, Object, RefusedError
from tidegate.deploy.kubernetes.process.groups import Group, GroupObjects, groups_of
from tidegate.records.replica_state import ReplicaState

NAME = "resnet-00001-t4"
STATUS = ReplicaStatus(
    id="a",
    function="resnet",
    revision="resnet-00001",
    accelerator="t4",
    state=ReplicaState.READY,
    address="",
    admin="",
    created_at=0.0,
)


def test_the_size_of_a_group_counts_what_serves_or_will() -> None:
    states = (ReplicaState.READY, ReplicaState.STARTING, ReplicaState.DRAINING, ReplicaState.FAILED)
    found = groups_of((revision(), replace(STATUS, state=state)) for state in states)
    assert {name: group.size for name, group in found.items()} == {NAME: 2}
    leaving = groups_of([(revision(), replace(STATUS, state=ReplicaState.DRAINING))])
    assert leaving[NAME].size == 0, "the group is there until its last Pod is gone"


class Cluster(KubernetesApi):
    def __init__(self) -> None:
        super().__init__(None, "here", random.Random(1), sleep=lambda _: asyncio.sleep(0))
        self.objects: dict[str, Object] = {}
        self.answers: list[ClusterError] = []
        self.writes = 0

    async def get(self, path: str, **_: Any) -> Object:
        await asyncio.sleep(0)
        return {"items": [each for name, each in self.objects.items() if name.startswith(f"{path}/")]}

    async def apply(self, path: str, body: Object, manager: str) -> Object:
        await asyncio.sleep(0)
        self.writes += 1
        if self.answers:
            raise self.answers.pop(0)
        self.objects[path] = body
        return body

    async def delete(self, path: str, **_: Any) -> None:
        await asyncio.sleep(0)
        self.objects.pop(path, None)


def test_the_objects_follow_the_groups_through_refusals() -> None:
    async def run() -> None:
        cluster, notes = Cluster(), []
        settings = PodSettings(image="i", namespace="here")
        wanted = {NAME: Group(revision(), "t4", 3), "resnet-00001-l4": Group(revision(), "l4", 1)}
        older = GroupObjects(
            cluster, settings, lambda *_: None, lambda: {"resnet-00001-gone": Group(revision(), "gone", 1)}
        )
        await older._bring_about()
        objects = GroupObjects(cluster, settings, lambda _, text: notes.append(text), lambda: wanted)
        cluster.answers = [RefusedError(403, "Forbidden", "may not"), ClusterError("away")]
        owner = TaskOwner("test")
        owner.spawn(objects.run(), name="groups")

        def budgets() -> dict[str, int]:
            found = {path.rpartition("/")[2]: each for path, each in cluster.objects.items() if "budgets" in path}
            return {name: each["spec"]["minAvailable"] for name, each in found.items()}

        async def until(expected: dict[str, int]) -> None:
            for _ in range(1000):
                if budgets() == expected:
                    return
                await asyncio.sleep(0)
            raise AssertionError(f"{budgets()}, {notes}")

        await until({NAME: 2, "resnet-00001-l4": 0})
        assert "away" in notes
        assert len([path for path in cluster.objects if "services" in path]) == 2, "those of a group that is gone went"
        wanted = {NAME: Group(revision(), "t4", 1)}
        objects.changed(STATUS)
        await until({NAME: 0})
        before = cluster.writes
        objects.changed(STATUS)
        for _ in range(50):
            await asyncio.sleep(0)
        assert cluster.writes == before, "what is written is not written again"
        await owner.close()

    asyncio.run(run())
