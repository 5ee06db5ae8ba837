"""Observed and wanted in, steps out: one table of situations, then what holds for all of them."""

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tidegate.deploy.backend import ReplicaStatus, RevisionFailure
from tidegate.deploy.placement.ledger import Room
from tidegate.deploy.plan import Plan, Unplaced, new_replica_id, plan
from tidegate.records.decision import Decision, GroupDecision, Reason
from tidegate.records.replica_state import ReplicaState

REVISION = "resnet-00001"
STARTING, READY, DRAINING = ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING
DRAINED, FAILED, ASLEEP = ReplicaState.DRAINED, ReplicaState.FAILED, ReplicaState.ASLEEP


def replica(name: str, state: ReplicaState, created_at: float = 0.0, accelerator: str = "t4") -> ReplicaStatus:
    return ReplicaStatus(
        id=f"{REVISION}-{name}",
        function="resnet",
        revision=REVISION,
        accelerator=accelerator,
        state=state,
        address="unix:/q",
        admin="unix:/a",
        created_at=created_at,
    )


def decide(groups: dict[str, int] | None) -> Decision:
    wanted = None if groups is None else tuple(GroupDecision(accelerator=a, replicas=n) for a, n in groups.items())
    return Decision(
        function="resnet",
        revision=REVISION,
        at=0.0,
        policy="kpa",
        ready=0,
        desired=None if groups is None else sum(groups.values()),
        groups=wanted,
        reasons=(Reason(code="stable"),),
    )


def make(
    groups: dict[str, int] | None,
    replicas: Sequence[ReplicaStatus],
    *,
    free: int = 10,
    in_flight: dict[str, int] | None = None,
    failure: RevisionFailure | None = None,
    now: float = 100.0,
) -> Plan:
    busy = {f"{REVISION}-{name}": count for name, count in (in_flight or {}).items()}
    room = {"t4": Room(free=free, total=10), "v100": Room(free=free, total=10)}
    return plan(decide(groups), replicas, room, now=now, rng=random.Random(7), in_flight=busy, failure=failure)


def names(steps: Sequence[object]) -> list[str]:
    return [str(step.replica).rpartition("-")[2] for step in steps]  # type: ignore[attr-defined]  # all steps have one


def backing_off(until: float) -> RevisionFailure:
    return RevisionFailure(reason="no weights", at=0.0, failures=3, not_before=until, was_ready=False)


def test_nothing_to_do_keeps_everything() -> None:
    made = make({"t4": 1}, [replica("a", READY)])
    assert made.is_empty
    assert names(made.keep) == ["a"]
    assert made.reasons == (Reason(code="stable"),)


def test_missing_ones_are_created_with_names_of_their_own() -> None:
    made = make({"t4": 3}, [replica("a", READY)])
    assert len(made.create) == 2
    assert {create.accelerator for create in made.create} == {"t4"}
    assert len({create.replica for create in made.create}) == 2
    assert all(create.replica.startswith(f"{REVISION}-") for create in made.create)


def test_a_draining_replica_is_taken_back_before_one_is_created() -> None:
    """The one that still works comes before the one that has confirmed its drain."""
    made = make({"t4": 3}, [replica("a", READY), replica("b", DRAINED), replica("c", DRAINING)])
    assert names(made.revive) == ["c", "b"]
    assert not made.create
    made = make({"t4": 2}, [replica("a", READY), replica("b", DRAINED), replica("c", DRAINING)])
    assert names(made.revive) == ["c"]
    assert "b" in names(made.keep)


def test_starting_replicas_count_as_there() -> None:
    assert make({"t4": 2}, [replica("a", STARTING), replica("b", READY)]).is_empty


def test_victims_starting_ones_first_the_youngest_of_them_then_the_least_busy() -> None:
    group = [
        replica("old", STARTING, 1.0),
        replica("young", STARTING, 2.0),
        replica("busy", READY, 3.0),
        replica("idle", READY, 4.0),
    ]
    order = ["young", "old", "idle", "busy"]
    for wanted in range(4):
        made = make({"t4": wanted}, group, in_flight={"busy": 5, "idle": 1})
        assert names(made.remove) == order[: 4 - wanted]


def test_among_equals_the_youngest_goes() -> None:
    assert names(make({"t4": 1}, [replica("a", READY, 1.0), replica("b", READY, 2.0)]).remove) == ["b"]


def test_zero_removes_the_last_one() -> None:
    made = make({"t4": 0}, [replica("a", READY)])
    assert names(made.remove) == ["a"]
    assert not made.keep


def test_a_group_that_is_not_mentioned_is_not_wanted() -> None:
    made = make({"t4": 1}, [replica("a", READY, accelerator="v100")])
    assert names(made.remove) == ["a"]
    assert [create.accelerator for create in made.create] == ["t4"]


def test_holding_changes_nothing_but_mends_what_broke() -> None:
    assert make(None, [replica("a", READY), replica("b", DRAINING)]).is_empty
    made = make(None, [replica("a", READY), replica("b", FAILED)])
    assert len(made.create) == 1
    assert names(made.remove) == ["b"]


def test_a_dry_run_is_as_a_hold() -> None:
    decision = replace(decide({"t4": 3}), is_dry_run=True)
    here = [replica("a", READY), replica("b", FAILED)]
    made = plan(decision, here, {"t4": Room(free=5, total=8)}, now=100.0, rng=random.Random(1))
    assert (len(made.create), names(made.remove)) == (1, ["b"]), "only what broke is replaced"


def test_a_broken_one_is_wanted_but_not_before_its_time() -> None:
    made = make({"t4": 1}, [replica("a", FAILED)], failure=backing_off(until=101.0))
    assert made.is_empty
    assert made.unplaced == (Unplaced(accelerator="t4", replicas=1, reason="back-off after 3 failure(s)", until=101.0),)
    assert names(made.keep) == ["a"]
    made = make({"t4": 1}, [replica("a", FAILED)], failure=backing_off(until=100.0))
    assert len(made.create) == 1
    assert names(made.remove) == ["a"]


def test_a_draining_one_is_taken_back_during_a_back_off() -> None:
    """It has a model that works."""
    made = make({"t4": 1}, [replica("a", DRAINING)], failure=backing_off(until=999.0))
    assert names(made.revive) == ["a"]
    assert not made.unplaced


def test_a_broken_one_that_none_wants_is_forgotten() -> None:
    assert names(make({"t4": 0}, [replica("a", FAILED)], failure=backing_off(until=999.0)).remove) == ["a"]


def test_without_room_the_rest_is_unplaced() -> None:
    made = make({"t4": 3}, [], free=1)
    assert len(made.create) == 1
    assert made.unplaced == (Unplaced(accelerator="t4", replicas=2, reason="no room on t4 (10 fit when empty)"),)
    made = make({"h100": 1}, [])
    assert made.unplaced[0].reason == "no room on h100 (not an accelerator it may use)"


def test_other_revisions_are_none_of_its_business() -> None:
    other = ReplicaStatus(
        id="x-00001-a",
        function="x",
        revision="x-00001",
        accelerator="t4",
        state=READY,
        address="",
        admin="",
        created_at=0.0,
    )
    made = make({"t4": 0}, [other])
    assert made.is_empty
    assert not made.keep


def test_a_name_that_is_taken_is_not_given_again() -> None:
    first = new_replica_id(REVISION, (), random.Random(3))
    second = new_replica_id(REVISION, {first}, random.Random(3))
    assert first != second
    assert len(first) == len(REVISION) + 6


states = st.sampled_from([STARTING, READY, DRAINING, DRAINED, FAILED])


@given(
    present=st.lists(st.tuples(states, st.sampled_from(["t4", "v100"]), st.floats(0, 99)), max_size=12),
    wanted=st.dictionaries(st.sampled_from(["t4", "v100"]), st.integers(0, 8), min_size=1),
    free=st.integers(0, 8),
    until=st.one_of(st.none(), st.floats(0, 200)),
)
def test_every_plan_reaches_its_target_or_says_what_is_missing(
    present: list[tuple[ReplicaState, str, float]], wanted: dict[str, int], free: int, until: float | None
) -> None:
    """Serving + revived + created + unplaced = wanted, per group; nothing is named twice; never beyond the room."""
    replicas = [replica(str(index), state, at, where) for index, (state, where, at) in enumerate(present)]
    made = make(wanted, replicas, free=free, failure=None if until is None else backing_off(until))
    touched = names(made.create) + names(made.revive) + names(made.remove) + names(made.keep)
    assert len(touched) == len(set(touched)) == len(replicas) + len(made.create)
    gone, back = set(names(made.remove)), set(names(made.revive))
    for where in ("t4", "v100"):
        group = [(str(index), state) for index, (state, place, _) in enumerate(present) if place == where]
        serving = [name for name, state in group if state in (STARTING, READY) and name not in gone]
        created = [create for create in made.create if create.accelerator == where]
        missing = sum(each.replicas for each in made.unplaced if each.accelerator == where)
        revived = [name for name, _ in group if name in back]
        assert len(serving) + len(revived) + len(created) + missing == wanted.get(where, 0)
        assert len(created) <= free


def test_of_draining_replicas_the_youngest_is_revived_first_and_equals_by_name() -> None:
    leaving = [replica("old", DRAINING, 1.0), replica("young", DRAINING, 3.0), replica("b", DRAINING, 2.0)]
    leaving.append(replica("a", DRAINING, 2.0))
    for wanted, revived in ((1, ["young"]), (2, ["young", "a"]), (3, ["young", "a", "b"])):
        made = make({"t4": wanted}, leaving)
        assert names(made.revive) == revived
        assert len(made.keep) == 4 - wanted
        assert not made.create
    assert [step.reason for step in make({"t4": 1}, leaving[:2]).keep] == ["draining, on its way out"]
    assert make({"t4": 1}, leaving[:1]).revive[0].reason == "wanted again while draining"


def test_what_others_end_is_replaced_and_not_revived() -> None:
    """The Pod of a node that is drained finishes its work; its replacement does not wait for that."""
    made = make({"t4": 2}, [replace(replica("gone", DRAINING, 3.0), is_ending=True), replica("old", DRAINING, 1.0)])
    assert names(made.revive) == ["old"]
    assert len(made.create) == 1
    assert [each.reason for each in made.keep] == ["others end it"]


def test_a_group_without_room_or_with_less_than_none_creates_nothing() -> None:
    for free in (0, -1, -3):
        made = make({"t4": 2}, [], free=free)
        assert not made.create
        assert [each.replicas for each in made.unplaced] == [2]
    assert not make({"t4": 2}, [], free=2).unplaced
    assert not make({"t4": 2}, [], free=3).unplaced


def test_every_step_has_its_reason() -> None:
    here = [replica("a", READY, 1.0), replica("b", READY, 2.0), replica("c", STARTING, 3.0), replica("d", FAILED)]
    made = make({"t4": 1}, here, in_flight={"a": 3, "b": 0})
    assert [(name, step.reason) for name, step in zip(names(made.remove), made.remove, strict=True)] == [
        ("c", "surplus, still starting"),
        ("b", "surplus, 0 in flight"),
        ("d", "failed, no longer wanted"),
    ]
    assert [step.reason for step in made.keep] == ["wanted"]
    made = make({"t4": 1}, [replica("d", FAILED)])
    assert ([step.reason for step in made.create], [step.reason for step in made.remove]) == (["wanted"], ["failed"])
    made = make({"t4": 1}, [replica("d", FAILED)], failure=backing_off(until=100.5))
    assert [step.reason for step in made.keep] == ["failed, waits for its back-off"]


def test_a_replica_of_which_no_requests_are_known_counts_as_idle() -> None:
    here = [replica("a", READY, 1.0), replica("b", READY, 2.0)]
    made = make({"t4": 1}, here, in_flight={"b": 1})
    assert [(names(made.remove), step.reason) for step in made.remove] == [(["a"], "surplus, 0 in flight")]
    made = make({"t4": 1}, here, in_flight={"b": 0})
    assert names(made.remove) == ["b"], "of two idle ones the newer goes"


def test_a_hold_keeps_the_number_and_the_share_of_each_group() -> None:
    here = [replace(replica(name, FAILED, accelerator="v100"), share=40) for name in "ab"]
    here += [replica("c", READY), replica("d", STARTING), replica("e", DRAINING)]
    made = make(None, here)
    assert [(create.accelerator, create.share) for create in made.create] == [("v100", 40), ("v100", 40)]
    assert (names(made.remove), names(made.keep)) == (["a", "b"], ["c", "d", "e"])


def test_the_share_of_the_decision_is_that_of_the_new_replicas() -> None:
    decision = replace(decide({}), groups=(GroupDecision(accelerator="t4", replicas=1, share=30),))
    made = plan(decision, [], {"t4": Room(free=5, total=8)}, now=0.0, rng=random.Random(1))
    assert [create.share for create in made.create] == [30]


def test_sleeping_replicas_are_woken_on_free_places_before_others_are_created() -> None:
    here = [replace(replica(name, ASLEEP), asleep_at=at) for name, at in (("a", 1.0), ("b", 2.0), ("c", 3.0))]
    woken = make({"t4": 2}, here)
    assert [each.replica for each in woken.revive] == [f"{REVISION}-c", f"{REVISION}-b"], (
        "the last to fall asleep first"
    )
    assert not woken.create and not woken.remove
    more = make({"t4": 5}, here)
    assert len(more.revive) == 3 and len(more.create) == 2
    full = make({"t4": 2}, here, free=0)
    assert not full.revive and not full.create and full.unplaced[0].replicas == 2, "a sleeping one holds no place"
    other = make({"t4": 1}, [replace(each, share=50) for each in here])
    assert not other.revive and len(other.create) == 1, "another share of a device is another replica"
    drained = make({"t4": 1}, [*here, replica("d", DRAINING)])
    assert [each.replica for each in drained.revive] == [f"{REVISION}-d"], "a draining one is there already"
    assert not make({"t4": 0}, here).remove, "their end is not the plan's"
