"""Which replicas are taken for neighbours on one device."""

from collections.abc import Mapping, Sequence

from tests.support.worlds.autoscaling import replica_sample
from tidegate.autoscaler.profiles.interference import InterferenceLearner, SharedWork
from tidegate.control.watch.neighbours import Neighbours
from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.placement.interference import Interference
from tidegate.function import Function, Revision, Server, ServerKind
from tidegate.records.replica_state import ReplicaState


class Listener(InterferenceLearner):
    """Notes the neighbours that it is given."""

    def __init__(self) -> None:
        super().__init__(Interference())
        self.neighbours: dict[str, list[str]] = {}

    def learn(self, works: Mapping[str, SharedWork], neighbours: Mapping[str, Sequence[str]]) -> None:
        assert works.keys() == neighbours.keys()
        self.neighbours = {name: list(others) for name, others in neighbours.items()}


def on(accelerator: str, unit: int, name: str, *devices: str) -> ReplicaStatus:
    return ReplicaStatus(
        id=name,
        function=name,
        revision=f"{name}-00001",
        accelerator=accelerator,
        state=ReplicaState.READY,
        address="",
        admin="",
        created_at=0.0,
        unit=unit,
        devices=devices,
        share=50,
    )


def neighbours(*replicas: ReplicaStatus) -> dict[str, list[str]]:
    listener = Listener()
    watch, revisions = Neighbours(listener), {}
    for each in replicas:
        server = Server(kind=ServerKind.HANDLER, target="/e.py:E")
        revisions[each.revision] = Revision(Function(name=each.function, server=server), 1)
        before, after = (
            replica_sample(each.id, revision=each.revision, uptime_s=uptime_s, requests=100, inferences=100)
            for uptime_s in (10.0, 11.0)
        )
        watch.measured(before, after)
    watch.review(replicas, revisions, 100.0)
    return listener.neighbours


def test_replicas_on_one_device_are_neighbours_after_its_kind_has_another_name() -> None:
    assert neighbours(on("g", 0, "a", "GPU-0"), on("h", 0, "b", "GPU-0")) == {"a": ["b"], "b": ["a"]}


def test_replicas_on_two_devices_are_none_whatever_their_numbers_are() -> None:
    assert neighbours(on("g", 1, "a", "GPU-0"), on("g", 1, "b", "GPU-1")) == {"a": [], "b": []}


def test_units_without_a_device_are_known_by_their_number() -> None:
    assert neighbours(on("g", 0, "a"), on("g", 0, "b"), on("g", 1, "c"), on("h", 0, "d")) == {
        "a": ["b"],
        "b": ["a"],
        "c": [],
        "d": [],
    }
