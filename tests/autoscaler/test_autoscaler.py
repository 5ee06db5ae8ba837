"""The pure autoscaler: fleets, activations, windows of time."""

from dataclasses import dataclass
from datetime import UTC, datetime

from tests.support.worlds.autoscaling import T0, activation, codes, revision
from tidegate.autoscaler.autoscaler import Autoscaler, StandaloneContext
from tidegate.autoscaler.fleet import fleet_groups
from tidegate.autoscaler.measure.observation import AcceleratorRoom
from tidegate.clock import ManualClock
from tidegate.function import Scaling
from tidegate.records.decision import Decision
from tidegate.records.replica_state import ReplicaState

A = "resnet-00001-aaaaa"
ROOMS = {"resnet-00001": (AcceleratorRoom(accelerator="cpu", room=3),)}


@dataclass(frozen=True)
class Status:
    id: str
    state: ReplicaState
    revision: str = "resnet-00001"
    accelerator: str = "cpu"
    cores: tuple[int, ...] = ()
    threads: int | None = None


class MemoryLog:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.lines: list[Decision] = []

    def write(self, decision: Decision) -> None:
        self.lines.append(decision)

    def read(self, function: str, n: int) -> list[Decision]:
        return [each for each in self.lines if each.function == function][-n:]


def autoscaler() -> Autoscaler:
    made = Autoscaler(ManualClock(T0), StandaloneContext(), MemoryLog())
    made.apply(revision())
    made.fleet.put([], ROOMS)
    return made


def test_an_activation_is_answered_at_once_and_only_once() -> None:
    at = Autoscaler(ManualClock(T0), StandaloneContext(), MemoryLog())
    at.apply(revision(), fresh=False)
    assert at.activated(activation(), T0) is None, "no report has said what runs and where there is room"
    at.fleet.put([], ROOMS)
    first, second = at.activated(activation(), T0), at.activated(activation(), T0 + 0.2)
    assert first is not None
    assert second is not None
    assert (first.desired, second.desired) == (1, None)
    assert at.activated(activation("ghost-00001"), T0) is None


def test_groups_follow_the_order_of_rooms_and_keep_replicas_on_accelerators_that_went_away() -> None:
    statuses = [
        Status("a", ReplicaState.READY, accelerator="old"),
        Status("b", ReplicaState.READY),
        Status("c", ReplicaState.STARTING),
        Status("d", ReplicaState.DRAINING),
        Status("e", ReplicaState.FAILED),
    ]
    groups = fleet_groups({"cpu": statuses[1:], "old": statuses[:1]}, ROOMS["resnet-00001"])
    assert [(g.accelerator, g.ready, g.starting, g.draining, g.room) for g in groups] == [
        ("cpu", ("b",), 1, 1, 3),
        ("old", ("a",), 0, 0, -1),
    ]


def test_a_fleet_is_the_very_same_object_until_something_of_it_changes() -> None:
    """The measurements of its groups are then not looked up again (``RevisionMeasurements.rows``)."""
    at, other = autoscaler(), revision(name="other")
    at.apply(other)
    there = [Status(A, ReplicaState.READY)]
    rooms = {**ROOMS, other.id: ROOMS["resnet-00001"]}
    fleets = []
    for replicas in (there, list(there), [*there, Status("resnet-00001-bbbbb", ReplicaState.STARTING)]):
        at.fleet.put(replicas, rooms)
        fleets.append(at.fleet.groups("resnet-00001"))
    assert fleets[0] is fleets[1]
    assert [group.starting for group in fleets[2]] == [1]
    before = at.fleet.groups(other.id)
    at.fleet.put_one("resnet-00001", [Status(A, ReplicaState.DRAINING)], ROOMS["resnet-00001"])
    assert [group.draining for group in at.fleet.groups("resnet-00001")] == [1]
    assert at.fleet.groups(other.id) is before


def test_a_deployed_function_comes_back_after_a_restart_without_a_start() -> None:
    at = Autoscaler(ManualClock(T0), StandaloneContext(), MemoryLog())
    at.apply(revision(scaling=Scaling(initial_scale=3)), fresh=False)
    at.fleet.put([], ROOMS)
    (decision,) = at.decide(T0)
    assert decision.desired == 0
    assert repr(at).startswith("<Autoscaler <Decider 1 revisions>")


def test_the_wall_clock_counts_for_windows_of_time_only() -> None:
    wall = [datetime(2026, 11, 20, 7, 59, tzinfo=UTC).timestamp()]
    at = Autoscaler(ManualClock(T0), StandaloneContext(), MemoryLog(), wall=lambda: wall[0])
    at.apply(revision(scaling=Scaling(min_scale_windows="0 8 * * * | 1h | UTC | 2")), fresh=False)
    at.fleet.put([], ROOMS)
    assert at.decide(T0)[0].desired == 0
    wall[0] += 60.0
    (decision,) = at.decide(T0 + 1)
    assert (decision.desired, codes(decision)[-1]) == (2, "window_minimum")
    wall[0] -= 86_400.0 * 365
    assert at.decide(T0 + 2)[0].at == T0 + 2, "a wall clock that jumps moves no other time"


def test_windows_that_were_no_fault_when_they_were_deployed_state_nothing_and_the_others_count() -> None:
    at = Autoscaler(ManualClock(T0), StandaloneContext(), MemoryLog())
    for name, more in (("bert", ""), ("resnet", "; 0 0 * * * | 24h | UTC | 3")):
        windows = f"0 8 * * * | 0 8 * * * | UTC | 2{more}"
        at.apply(revision(name=name, scaling=Scaling(min_scale_windows=windows)), fresh=False)
    at.fleet.put([], {each.id: ROOMS["resnet-00001"] for each in at.decider.revisions})
    assert [each.desired for each in at.decide(T0)] == [0, 3]
    assert "it is the start" in str(at.faults()["min-scale-windows of resnet-00001, left out"])
    at.forget("resnet-00001")
    assert list(at.faults()) == ["min-scale-windows of bert-00001, left out"]
