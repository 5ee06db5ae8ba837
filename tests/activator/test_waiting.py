"""Which requests may wait, in whose place and for which revision: what comes in -> what the room does."""

from dataclasses import replace

import pytest

from tests.support.worlds.routes import function, table
from tests.support.worlds.waiting_room import F, Lobby, lobby
from tidegate.activator.commands import Refuse
from tidegate.flow.messages import (
    Grant,
)
from tidegate.records.route_table import FailureKind, FunctionRoute, RevisionRoute


def test_without_the_others_figures_the_bound_is_split_over_the_workers_and_rounded_up() -> None:
    routes = table(workers=4, functions=[function([("r0", "cpu")], queue_requests=5)])
    one = Lobby(routes)
    assert [one.arrive(name) for name in "abc"] == ["waits", "waits", "refuse c: queue_full"]


def test_the_bound_in_bytes() -> None:
    one = Lobby(table(functions=[function([("r0", "cpu")], queue_bytes=1000)]))
    assert one.arrive("a", size=900) == "waits"
    assert one.arrive("b", size=200) == "refuse b: queue_full"
    assert one.room.withdraw("a", 1.0)
    assert one.arrive("c", size=200) == "waits"


def test_retry_after_is_what_waits_over_mu_at_least_a_second_and_jittered() -> None:
    routes = table(
        workers=2,
        functions=[function([("r0", "cpu")], queue_requests=20, mu_ips={"cpu": 10.0})],
    )
    one = Lobby(routes)
    for number in range(10):
        one.arrive(f"q{number}", inferences=5)
    seconds = []
    for number in range(300):
        refusal = one.room.arrive(f"late{number}", F, 1, 1e9, 1.0)
        assert isinstance(refusal, Refuse)
        assert refusal.retry_after_s is not None
        seconds.append(refusal.retry_after_s)
    # 10 * 5 inferences here, as many on the other worker, at 10 per second: 10 s to 15 s.
    assert min(seconds) == 10
    assert max(seconds) in (14, 15)
    assert len(set(seconds)) >= 5


def test_retry_after_without_a_known_rate_is_a_second_or_two() -> None:
    one = Lobby(table(functions=[function([("r0", "cpu")], queue_requests=0)]))
    refusals = [one.room.arrive(f"q{number}", F, 1, 1e9, 1.0) for number in range(50)]
    assert {refusal.retry_after_s for refusal in refusals if isinstance(refusal, Refuse)} == {1, 2}


@pytest.mark.parametrize("kind", FailureKind)
def test_a_revision_that_cannot_be_served_fails_waiting_and_new_requests_at_once(kind: FailureKind) -> None:
    one = Lobby(table())
    one.arrive("a", 1.0)
    one.did(1.0)
    broken = function([], failure="no t4 is free", failure_kind=kind)
    one.room.apply(table(number=2, functions=[broken]), 2.0)
    assert one.did(2.0) == [f"refuse a: {kind.value}"]
    assert one.arrive("b", 3.0) == f"refuse b: {kind.value}"
    refused = one.room.arrive("c", F, 1, 1e9, 3.0)
    assert isinstance(refused, Refuse)
    assert refused.message == "no t4 is free"
    assert (refused.retry_after_s is not None) is (kind is FailureKind.NOT_SERVABLE), "a retry helps"
    assert refused.kind.retry_helps is (kind is FailureKind.NOT_SERVABLE)


def replaced(
    old: list[tuple[str, str]],
    new: list[tuple[str, str]],
    *,
    percents: tuple[float, float] = (0.0, 100.0),
    tags: tuple[str, ...] = (),
) -> FunctionRoute:
    """A function with a second revision that takes over from its first, which has ``tags``."""
    routes = [function(old, revision=F), function(new, revision="f-00002")]
    revisions = [replace(route.revisions[0], percent=percent) for route, percent in zip(routes, percents, strict=True)]
    return replace(routes[0], revisions=(replace(revisions[0], tags=tags), revisions[1]))


def test_what_waits_for_a_revision_that_was_replaced_before_it_was_ready_goes_to_its_successor() -> None:
    one = Lobby(table([("r0", "cpu")]))
    one.arrive("a", 1.0)
    one.arrive("b", 1.1)
    one.did(1.1)
    one.room.apply(table(number=2, functions=[replaced([("r0", "cpu")], [("r1", "cpu")])]), 2.0)
    assert "link r1" in one.did(2.0)
    assert [line[:7] for line in one.ready("r1", 1, 2, now=2.1)] == ["a -> r1", "b -> r1"]
    counts = one.room.counts(F, 2.2)
    assert counts is not None
    assert (counts.waiting, counts.cancelled, counts.refused) == (0, 0, 0)


def test_what_waits_for_a_retired_revision_moves_on_though_its_replica_says_that_it_serves() -> None:
    one = lobby("r0")
    one.ready("r0", 7)
    assert one.arrive("running", 0.5) == "running -> r0 on 7"
    one.arrive("a", 1.0)
    one.arrive("by tag", 1.0, pinned=True)
    one.arrive("b", 1.1)
    one.did(1.1)
    one.room.apply(table(number=2, functions=[replaced([("r0", "cpu")], [("r1", "cpu")])]), 2.0)
    assert "link r1" in one.did(2.0)
    assert one.arrive("c", 2.0, revision="f-00002") == "waits"
    one.did(2.0)
    moved = one.ready("r1", 1, 2, 3, now=2.1)
    assert [line[:7] for line in moved] == ["a -> r1", "b -> r1", "c -> r1"], "in the order of their arrival"
    assert one.answer("running", 2.2)[0].startswith("by tag -> r0 on 7"), "what runs goes on, a tag leads there"


def test_what_moved_on_leaves_nothing_behind() -> None:
    one = Lobby(table([("r0", "cpu")]))
    one.arrive("a", 1.0)
    one.arrive("b", 1.1)
    one.did(1.1)
    one.room.apply(table(number=2, functions=[replaced([("r0", "cpu")], [("r1", "cpu")], tags=("old",))]), 2.0)
    one.did(2.0)
    counts = one.room.counts(F, 3.0)
    assert counts is not None
    assert (counts.waiting, counts.oldest_waiting_s) == (0, 0.0)
    assert one.arrive("by tag", 3.0, pinned=True) == "waits"
    one.did(3.0)
    assert [line[:12] for line in one.ready("r0", 1, now=3.1)] == ["by tag -> r0"]


def test_what_waits_for_a_tagged_revision_that_serves_stays_there_though_it_gets_no_new_requests() -> None:
    one = lobby("r0")
    one.ready("r0")
    one.arrive("a", 1.0)
    one.did(1.0)
    one.room.apply(table(number=2, functions=[replaced([("r0", "cpu")], [("r1", "cpu")], tags=("old",))]), 2.0)
    one.did(2.0)
    assert one.hear("r0", Grant(((7, 1),)), now=2.1) == ["a -> r0 on 7, want 2 0"]


def test_none_moves_to_a_revision_that_gets_no_requests_itself() -> None:
    one = Lobby(table([("r0", "cpu")]))
    one.arrive("a", 1.0)
    one.did(1.0)
    one.room.apply(table(number=2, functions=[replaced([("r0", "cpu")], [], percents=(0.0, 0.0))]), 2.0)
    one.did(2.0)
    assert one.ready("r0", 1, now=2.1)[:1] == ["a -> r0 on 1"]


def test_a_failure_does_not_matter_while_a_replica_serves() -> None:
    one = lobby("r0")
    one.ready("r0", 1)
    one.room.apply(table(number=2, functions=[function([("r0", "cpu")], failure="the second did not start")]), 2.0)
    one.did(2.0)
    assert one.arrive("a", 3.0) == "a -> r0 on 1"
    assert one.arrive("b", 3.0) == "waits"


def split(*revisions: tuple[int, float, str]) -> FunctionRoute:
    """A function with revisions (number, percent, replica)."""
    routes = []
    for number, percent, replica in revisions:
        one = function([(replica, "cpu")], revision=f"f-{number:05d}").revisions[0]
        routes.append(RevisionRoute(id=one.id, percent=percent, groups=one.groups))
    whole = function([])
    return FunctionRoute(
        **{name: getattr(whole, name) for name in whole.__slots__ if name != "revisions"},
        revisions=tuple(routes),
    )


def test_requests_of_a_revision_that_is_gone_wait_for_the_largest_that_is_left() -> None:
    one = Lobby(table(functions=[split((1, 50.0, "r1"), (2, 50.0, "r2"))]))
    one.arrive("a", 1.0, revision="f-00001")
    one.did(1.0)
    one.room.apply(table(number=2, functions=[split((2, 10.0, "r2"), (3, 90.0, "r3"))]), 2.0)
    assert one.did(2.0) == ["unlink r1", "link r3"]
    assert one.ready("r3", 1, now=2.1)[0].startswith("a -> r3")


def test_requests_of_a_deleted_function_are_reported() -> None:
    one = lobby("r0")
    one.arrive("a", 1.0)
    one.did(1.0)
    one.room.apply(table(number=2, functions=[]), 2.0)
    assert one.did(2.0) == ["unlink r0", "refuse a: not_servable"]


def test_a_running_request_of_a_deleted_function_that_was_refused_is_reported() -> None:
    one = lobby("r0")
    one.ready("r0", 1)
    one.arrive("a", 1.0)
    one.room.apply(table(number=2, functions=[]), 2.0)
    one.did(2.0)
    one.room.refused(one.binds["a"], 2.1)
    assert one.did(2.1) == ["refuse a: not_servable"]
