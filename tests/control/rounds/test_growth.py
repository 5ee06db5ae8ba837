"""Cores for what runs: when a burst gets them, and when they go back."""

from dataclasses import replace

from tests.support.worlds.autoscaling import replica_sample
from tidegate.activator.state.revisions import BACKLOG
from tidegate.control.rounds.growth import CALM_S, REFUSED_S, Growth, ReplicaSize, Resize, unsized
from tidegate.deploy.backend import ReplicaStatus
from tidegate.function import Batching
from tidegate.records.decision import Decision, Reason
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ReplicaState

A, B = "m-00001-aaaaa", "m-00001-bbbbb"
ALONE = ReplicaStatus(
    id=A,
    function="m",
    revision="m-00001",
    accelerator="cpu",
    state=ReplicaState.READY,
    address="a",
    admin="b",
    created_at=0.0,
    limit=1,
    cores=(0,),
)
GROWN = replace(ALONE, cores=(0, 1), borrowed=1)
STARTING = replace(ALONE, id=B, state=ReplicaState.STARTING, cores=(1,))


def decision(desired: int, *codes: str, is_dry_run: bool = False) -> Decision:
    return Decision(
        function="m",
        revision="m-00001",
        at=0.0,
        policy="kpa",
        ready=1,
        desired=desired,
        groups=None,
        reasons=tuple(Reason(code=code) for code in codes),
        is_dry_run=is_dry_run,
    )


def orders(
    growth: Growth, wanted: Decision, *here: ReplicaStatus, waiting: int = 0, at: float = 0.0, in_flight: int = 1
) -> list[Resize]:
    samples: dict[str, ReplicaSample] = {each.id: replica_sample(each.id, in_flight=in_flight) for each in here}
    return growth.orders(wanted, here, waiting, samples, at)


MORE, LESS = Resize(A, 2, is_more=True), Resize(A, 1, is_more=False)


def test_a_replica_gets_as_many_cores_again_while_another_one_starts() -> None:
    assert orders(Growth(), decision(2), ALONE, STARTING, waiting=1) == [MORE]


def test_a_limit_on_replicas_is_none_on_cores() -> None:
    assert orders(Growth(), decision(1, "capped_by_max"), ALONE, waiting=1) == [MORE]
    assert orders(Growth(), decision(1, "load"), ALONE, waiting=1) == [], "one that waits is no burst"
    assert orders(Growth(), decision(1, "load"), ALONE, waiting=BACKLOG) == [MORE]


def test_nothing_grows_if_nothing_waits_or_only_a_dry_run_wants_more() -> None:
    assert orders(Growth(), decision(5), ALONE) == []
    assert orders(Growth(), decision(5, is_dry_run=True), ALONE, waiting=1) == []
    assert orders(Growth(), decision(1), STARTING, waiting=50) == [], "there is nothing that could grow"
    assert orders(Growth(), decision(2), replace(ALONE, cores=()), waiting=50) == [], "it is bound to no core"


def test_a_round_may_help_a_replica_that_has_only_its_own_cores_and_was_not_refused() -> None:
    growth = Growth()
    assert growth.may_grow([GROWN, ALONE], 0.0)
    assert not growth.may_grow([GROWN, STARTING, replace(ALONE, cores=())], 0.0)
    growth.refused(A, 0.0)
    assert not growth.may_grow([ALONE], REFUSED_S - 1.0) and growth.may_grow([ALONE], REFUSED_S)


def test_only_as_many_grow_as_replicas_lack() -> None:
    others = [replace(ALONE, id=f"m-00001-{name}", cores=(number,)) for number, name in enumerate("cde", 2)]
    assert len(orders(Growth(), decision(6), ALONE, *others, waiting=1)) == 2
    assert orders(Growth(), decision(5), GROWN, *others, waiting=1) == [], "one has the cores of the one that lacks"


def test_cores_stay_while_they_are_needed_and_go_back_when_it_has_been_calm() -> None:
    growth = Growth()
    assert orders(growth, decision(1), GROWN, waiting=3, at=0.0) == []
    assert orders(growth, decision(1), GROWN, at=8.0, in_flight=2) == [], "it uses what it has"
    assert orders(growth, decision(2), GROWN, at=8.0 + CALM_S - 0.1) == []
    assert orders(growth, decision(2), GROWN, at=8.0 + CALM_S) == [LESS], "whatever the policy holds on to"


def test_a_replica_whose_backend_refused_is_left_alone_for_a_while() -> None:
    growth = Growth()
    growth.refused(A, 0.0)
    assert orders(growth, decision(2), ALONE, waiting=9, at=REFUSED_S - 1.0) == []
    assert orders(growth, decision(2), ALONE, waiting=9, at=REFUSED_S) == [MORE]


def test_a_ready_replica_without_the_ordered_size_is_named_and_others_are_not() -> None:
    four = Batching(max_size=4)
    assert unsized(ReplicaSize(cores=2), (ALONE, GROWN, STARTING)) == [ALONE]
    assert unsized(ReplicaSize(batching=four), (replace(ALONE, batching=four), GROWN)) == [GROWN]
    assert unsized(ReplicaSize(cores=2, batching=four), (replace(GROWN, batching=four),)) == []
    assert unsized(ReplicaSize(), (ALONE, GROWN)) == []
