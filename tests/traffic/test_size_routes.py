"""Sizes of requests in the table of a revision with two groups."""

from collections.abc import Mapping
from dataclasses import replace

from tests.control.rounds.test_weights import BOTH, OLD, replica
from tidegate.control.rounds.tracked import TrackedRevision
from tidegate.control.rounds.weights import GroupWeights
from tidegate.deploy.backend import ReplicaStatus
from tidegate.function import SizeRouting
from tidegate.histogram import Histogram
from tidegate.records.decision import Reason
from tidegate.records.replica_state import ReplicaState
from tidegate.records.roles import Role
from tidegate.traffic.size_routes import SizeRoutes, size_classes
from tidegate.traffic.table import RevisionShare

T4, V100 = replica("echo-00001", "a", "t4"), replica("echo-00001", "b", "v100")


class Facts:
    """Arrivals, and rates: t4 is slow with large requests."""

    def __init__(self, **sizes: int) -> None:
        self.counts = {int(size.removeprefix("of_")): count for size, count in sizes.items()}
        self.reported: list[Reason] = []
        self.known = True

    def sizes(self, revision: str, since: float) -> Mapping[int, int]:
        histogram = Histogram()
        for size, count in self.counts.items():
            for _ in range(count):
                histogram.record_whole(size)
        return dict(histogram.sparse())

    def mu_of_size(self, revision_id: str, accelerator: str, batch: float) -> float | None:
        per_item = {"t4": 0.010, "v100": 0.003}[accelerator]
        return batch / (0.009 + per_item * batch) if self.known else None

    def add_reason(self, revision_id: str, reason: Reason) -> None:
        self.reported.append(reason)


def share(
    shares: GroupWeights, now: float, *here: ReplicaStatus, routing: SizeRouting = SizeRouting.AUTO
) -> RevisionShare:
    function = replace(OLD.function, routing=replace(OLD.function.routing, size_routing=routing))
    record = replace(OLD, function=function)
    tracked = [TrackedRevision(record=record, role=Role.SERVING, percent=100.0)]
    (served,) = shares.served([replace(BOTH, current=record)], tracked, here, lambda _: None, now)
    return served.revisions[0]


def shares_over(facts: Facts) -> GroupWeights:
    return GroupWeights(lambda _, accelerator: {"t4": 70.0, "v100": 250.0}[accelerator], SizeRoutes(facts, facts))


def test_large_requests_go_to_the_stronger_group_and_the_reason_is_reported() -> None:
    facts = Facts(of_1=600, of_64=60)
    shares = shares_over(facts)
    assert dict(share(shares, 0.0, T4, V100).sizes) == {"t4": (1, 63), "v100": (64, None)}
    assert [reason.code for reason in facts.reported] == ["sizes_cut"]
    assert facts.reported[0].detail.startswith("t4 1 to 63, v100 64 and more: cut by size")
    assert share(shares, 1.0, T4, V100).sizes
    assert len(facts.reported) == 1, "once"


def test_the_last_replica_of_a_group_takes_its_sizes_with_it_in_the_same_table() -> None:
    facts = Facts(of_1=600, of_64=60)
    shares = shares_over(facts)
    assert share(shares, 0.0, T4, V100).sizes
    for state in (ReplicaState.STARTING, ReplicaState.FAILED, ReplicaState.DRAINING):
        gone = replica("echo-00001", "b", "v100", state)
        assert share(shares, 1.0, T4, gone).sizes == {}, state
        assert share(shares, 1.5, T4, V100).sizes, "back with it"


def test_one_size_unknown_rates_and_the_annotation_leave_it_to_the_weights() -> None:
    assert share(shares_over(Facts(of_8=600)), 0.0, T4, V100).sizes == {}
    assert share(shares_over(Facts()), 0.0, T4, V100).sizes == {}
    facts = Facts(of_1=600, of_64=60)
    assert share(shares_over(facts), 0.0, T4, V100, routing=SizeRouting.OFF).sizes == {}
    facts.known = False
    unknown = GroupWeights(sizes=SizeRoutes(facts, facts))
    assert share(unknown, 0.0, T4, V100).sizes == {}
    assert facts.reported == []


def test_arrivals_become_classes_that_begin_at_their_smallest_size() -> None:
    facts = Facts(of_1=30, of_15=60, of_100=90)
    classes = size_classes(facts.sizes("r", 0.0))
    assert [(each.batch, each.rate_rps) for each in classes] == [(1, 1.0), (15, 2.0), (96, 3.0)]
    assert [each.work for each in classes] == [1.0, 15.0, 99.5]
    many = Facts(**{f"of_{size}": 3 for size in range(1, 1000)})
    assert len(size_classes(many.sizes("r", 0.0))) <= 32
