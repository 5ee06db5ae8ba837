"""What the control round knows becomes the table that gateways work from."""

from dataclasses import dataclass, replace

import pytest

from tests.support.worlds.autoscaling import function, revision
from tidegate.function import ConcurrencyUnit, Function, Readiness, Revision, Routing, Sla, TaskClass
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import Binding, FailureKind, Hedging, OutlierRules, QueueOrder, RouteMatch, Spread
from tidegate.traffic.table import RevisionShare, ServedFunction, TableBuilder


@dataclass(frozen=True)
class Status:
    id: str
    state: ReplicaState = ReplicaState.READY
    accelerator: str = "t4"
    revision: str = "resnet-00001"
    address: str | None = "unix:/run/x"


def served(share: RevisionShare | None = None, of: Function | None = None) -> ServedFunction:
    chosen = share or RevisionShare(revision=revision())
    return ServedFunction(function=of or chosen.revision.function, revisions=(chosen,))


def builder() -> TableBuilder:
    return TableBuilder(epoch=3, workers=2)


def test_starting_and_draining_replicas_are_listed_failed_and_stopped_ones_are_not() -> None:
    states = list(ReplicaState)
    table = builder().build([served()], [Status(state.value, state) for state in states])
    (group,) = table.functions[0].revisions[0].groups
    assert [replica.id for replica in group.replicas] == ["asleep", "drained", "draining", "ready", "starting"]
    assert group.asleep == ("asleep",)


def test_the_number_rises_only_when_the_content_changes() -> None:
    build = builder()
    first = build.build([served()], [Status("b"), Status("a")])
    assert first.version == (3, 1)
    assert build.build([served()], [Status("a"), Status("b")]) is first, "order does not matter"
    second = build.build([served()], [Status("a")])
    assert second.version == (3, 2)
    assert build.build([served()], [Status("a")], default="resnet").number == 3
    assert repr(build) == "<TableBuilder epoch 3, number 3>"


def test_a_rate_that_moves_little_makes_no_new_table_but_drift_adds_up() -> None:
    build = builder()

    def published(mu: float) -> tuple[int, float | None]:
        share = RevisionShare(revision=revision(), weights={"t4": 1.0}, mu_ips={"t4": mu})
        table = build.build([served(share)], [Status("a")])
        return table.number, table.functions[0].revisions[0].groups[0].mu_ips

    assert [published(mu) for mu in (100.0, 105.0, 109.0, 111.0)] == [(1, 100.0), (1, 100.0), (1, 100.0), (2, 111.0)]


def test_a_groups_rate_is_that_of_its_ready_replicas() -> None:
    share = RevisionShare(revision=revision(), mu_ips={"t4": 40.0})
    replicas = [Status("a"), Status("b"), Status("c", ReplicaState.STARTING)]
    (group,) = builder().build([served(share)], replicas).functions[0].revisions[0].groups
    assert group.mu_ips == 80.0


def weights_of(share: RevisionShare, *replicas: Status) -> dict[str, float]:
    table = builder().build([served(share)], replicas)
    return {group.accelerator: group.weight for group in table.functions[0].revisions[0].groups}


def test_given_weights_are_taken_and_a_group_without_one_gets_none() -> None:
    share = RevisionShare(revision=revision(), weights={"t4": 0.36, "v100": 0.64})
    v100 = Status("b", accelerator="v100")
    assert weights_of(share, Status("a"), v100) == {"t4": 0.36, "v100": 0.64}
    assert weights_of(share, Status("a"), v100, Status("c", accelerator="cpu"))["cpu"] == 0.0


def test_while_nothing_is_ready_a_starting_replica_may_take_work_the_moment_it_is() -> None:
    share = RevisionShare(revision=revision())
    starting = Status("a", ReplicaState.STARTING)
    assert weights_of(share, starting) == {"t4": 1.0}
    assert weights_of(share, starting, Status("b", accelerator="v100")) == {"t4": 0.0, "v100": 1.0}
    gone = RevisionShare(revision=revision(), weights={"gone": 1.0})
    assert weights_of(gone, starting) == {"t4": 1.0}


def test_what_the_function_says_reaches_the_gateway() -> None:
    counted = replace(function(concurrency=0), concurrency_unit=ConcurrencyUnit.INFERENCES, models=(), idempotent=True)
    share = RevisionShare(
        revision=Revision(counted, 7), percent=25.0, failure="no room", failure_kind=FailureKind.NOT_SERVABLE
    )
    (route,) = builder().build([served(share)], []).functions
    assert (route.name, route.models, route.protocol, route.latency_s) == ("resnet", ("resnet",), "v2", 0.2)
    assert (route.queue_requests, route.timeout_s, route.idempotent) == (1000, 300.0, True)
    (only,) = route.revisions
    assert (only.id, only.percent, only.limited, only.unit_inferences) == ("resnet-00007", 25.0, False, True)
    assert (only.failure, only.failure_kind, only.groups) == ("no room", FailureKind.NOT_SERVABLE, ())


@pytest.mark.parametrize(("multiple", "expected"), [(3.0, 0.6), (None, None)])
def test_drop_after_reaches_the_gateway_as_a_time(multiple: float | None, expected: float | None) -> None:
    counted = replace(function(), sla=replace(function().sla, drop_after=multiple))
    (route,) = builder().build([served(RevisionShare(revision=Revision(counted, 7)))], []).functions
    assert route.drop_after_s == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("task_deadline_s", "latency_s", "expected"), [(None, None, None), (None, 0.2, 0.2), (0.5, 0.2, 0.5)]
)
def test_a_request_is_due_by_the_functions_deadline_else_by_its_latency(
    task_deadline_s: float | None, latency_s: float | None, expected: float | None
) -> None:
    oriented = replace(
        function(),
        task_class=TaskClass.THROUGHPUT_ORIENTED,
        task_deadline_s=task_deadline_s,
        sla=Sla(latency_s=latency_s),
    )
    (route,) = builder().build([served(RevisionShare(revision=Revision(oriented, 1)))], []).functions
    assert (route.task_deadline_s, route.is_throughput_oriented) == (expected, True)


def test_what_the_function_says_about_routing_reaches_the_gateway() -> None:
    routing = Routing(
        spread=Spread.HASH,
        hash_on="header:x-user",
        queue_order=QueueOrder.DEADLINE,
        binding=Binding.EARLY,
        priority=2,
        retry_percent=5.0,
        hedging=Hedging(percentile=99.0),
        outlier=OutlierRules(failures=2),
        matches=(RouteMatch(host="a.example"),),
    )
    stated = replace(function(), routing=routing, readiness=Readiness(path="/up"))
    (route,) = builder().build([served(RevisionShare(revision=Revision(stated, 1)))], []).functions
    assert (
        Routing(
            spread=route.spread,
            hash_on=route.hash_on,
            queue_order=route.queue_order,
            binding=route.binding,
            priority=route.priority,
            retry_percent=route.retry_percent,
            hedging=route.hedging,
            outlier=route.outlier,
            matches=route.matches,
        )
        == routing
    )
    assert route.probe_path == "/up"


def test_a_group_serves_the_sizes_that_are_given_for_it() -> None:
    share = RevisionShare(revision=revision(), sizes={"t4": (1, 8)})
    replicas = [Status("a"), Status("b", accelerator="v100")]
    groups = builder().build([served(share)], replicas).functions[0].revisions[0].groups
    assert [(group.accelerator, group.smallest, group.largest) for group in groups] == [("t4", 1, 8), ("v100", 1, None)]


def test_a_group_with_a_size_class_is_listed_while_it_sleeps() -> None:
    share = RevisionShare(revision=revision(), sizes={"t4": (1, 8), "v100": (9, None)})
    for replicas in ([], [Status("a")]):
        groups = builder().build([served(share)], replicas).functions[0].revisions[0].groups
        assert [group.accelerator for group in groups] == ["t4", "v100"]
        assert [group.weight for group in groups] == [len(replicas), 0.0]


def test_functions_are_in_name_order_and_replicas_without_address_are_left_out() -> None:
    other = function("bert")
    functions = [served(), served(RevisionShare(revision=Revision(other, 1)), other)]
    table = builder().build(functions, [Status("a", address=None)])
    assert [route.name for route in table.functions] == ["bert", "resnet"]
    assert table.functions[1].revisions[0].groups == ()


def test_while_nothing_is_ready_starting_replicas_share_by_their_number() -> None:
    starting = [
        Status(name, ReplicaState.STARTING, accelerator)
        for name, accelerator in {"a": "t4", "b": "v100", "c": "v100", "d": "v100"}.items()
    ]
    assert weights_of(RevisionShare(revision=revision()), *starting) == {"t4": 0.25, "v100": 0.75}
