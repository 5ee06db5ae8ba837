"""Copies for shadows: sent behind the client's answer, on free slots alone, compared and thrown away."""

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.support.worlds.fake_exchange import FakeExchange
from tests.support.worlds.gateway_chain import ONE, Door, table
from tests.support.worlds.spans import SpanSink
from tidegate.gateway.resilience.shadow import ALL_BYTES, BODY_BYTES, MAX_COPIES
from tidegate.gateway.tracing.trace import Tracer
from tidegate.records.gateway_sample import ShadowSeen
from tidegate.records.route_table import GroupRoute, Hedging, ReplicaRoute, RevisionRoute, RouteTable
from tidegate.wire.http1.grammar import SAMPLED

DARK = ReplicaRoute(id="f-00002-aaaaa", address="10.0.0.9:1")
TWO = ReplicaRoute(id="f-00001-bbbbb", address="10.0.0.2:1")


def shadowed(number: int = 1, *first: ReplicaRoute, percent: float = 100.0, **settings: Any) -> RouteTable:
    """``f`` with a second revision that gets copies of so many of its requests."""
    routes = table(number, *(first or (ONE,)), **settings)
    (route,) = routes.functions
    group = GroupRoute(accelerator="cpu", weight=1.0, replicas=(DARK,))
    dark = RevisionRoute(id="f-00002", percent=0.0, shadow_percent=percent, groups=(group,))
    return replace(routes, functions=(replace(route, revisions=(*route.revisions, dark)),))


def open_door(slots: int = 1, tracer: Tracer | None = None, **settings: Any) -> Door:
    """Both revisions are ready; the shadow has so many slots for this worker. The first request opened the links."""
    door = Door(shadowed(**settings), tracer=tracer)
    door.ready(ONE, *range(1, 9))
    door.arrive().gets_answer(door.now, 200, "tidegate-credit: keep")
    door.core.settle()
    door.ready(DARK, *range(101, 101 + slots))
    return door


def seen(door: Door) -> ShadowSeen:
    (found,) = [demand.shadow for demand in door.report.demands(lambda _: None) if demand.revision == "f-00002"]
    assert found is not None
    return found


def answered(door: Door, body: bytes = b"{}", status: int = 200, **more: Any) -> FakeExchange:
    """Returns a request that has been answered; the loop turn is over."""
    asked = door.arrive(**more)
    door.now += 0.010
    asked.gets_answer(door.now, status, "tidegate-credit: keep", body=body)
    door.core.settle()
    return asked


def test_a_copy_goes_out_behind_the_clients_answer_and_is_compared() -> None:
    door = open_door()
    asked = door.arrive(body=b'{"inputs":[{"shape":[4]}]}')
    asked.gets_answer(door.now + 0.050, 200, "tidegate-credit: keep", body=b"same")
    assert asked.shadow.log == [], "nothing is sent before the end of the loop turn"
    door.core.settle()
    assert (asked.log, asked.shadow.log) == (["to 10.0.0.1:1"], ["to 10.0.0.9:1"])
    for line in (
        b"tidegate-shadow: true\r\n",
        b"tidegate-batch-size: 4\r\n",
        b"tidegate-credit: 101\r\n",
        b"x-request-id: ",
    ):
        assert line in asked.shadow.sent
    assert b"tidegate-shadow" not in asked.sent
    asked.shadow.gets_answer(door.now + 0.200, 200, "tidegate-credit: keep", body=b"same")
    found = seen(door)
    assert (found.requests, found.skipped, found.failed, found.status_differs, found.output_differs) == (1, 1, 0, 0, 0)
    assert len(found.latency) == len(found.served_latency) == 1
    assert found.latency != found.served_latency


def test_the_copy_of_a_traced_request_names_none_of_its_spans() -> None:
    door = open_door(tracer=Tracer(ratio=0.0, rng=random.Random(5), offset=0.0, put=SpanSink().put))
    asked = door.arrive("POST /v2/models/m/infer", f"traceparent: 00-{1:032x}-{1:016x}-01")
    head = asked.head
    head._block, head.traced = head._original, SAMPLED  # As if the replica's parent stood in the place of the client's.
    asked.gets_answer(door.now, 200, "tidegate-credit: keep")
    door.core.settle()
    assert asked.shadow.log == ["to 10.0.0.9:1"]
    assert b"traceparent" in head._block
    assert b"traceparent" not in asked.shadow.head._block + asked.shadow.sent


def test_copies_are_no_arrivals_and_no_answers_of_the_shadow() -> None:
    door = open_door()
    answered(door).shadow.gets_answer(door.now, 200, "tidegate-credit: keep", body=b"{}")
    (dark,) = [demand for demand in door.report.demands(lambda _: None) if demand.revision == "f-00002"]
    assert (dark.arrivals, dark.answered, dark.failed, dark.within_sla, dark.groups) == (0, 0, 0, 0, ())
    counts = door.core.room.counts("f-00002", door.now)
    assert counts is not None
    assert (counts.arrivals, counts.waiting, counts.cancelled) == (0, 0, 0)


@pytest.mark.parametrize(
    ("real", "dark", "counted"),
    [
        ((200, b"a"), (200, b"a"), (0, 0, 0)),
        ((200, b"a"), (200, b"b"), (0, 0, 1)),
        ((200, b"a"), (404, b"a"), (0, 1, 0)),
        ((200, b"a"), (500, b"a"), (1, 0, 0)),
        ((500, b"a"), (500, b"a"), (0, 0, 0)),
        ((500, b"a"), (200, b"b"), (0, 1, 0)),
        ((422, b"a"), (422, b"b"), (0, 0, 1)),
    ],
)
@pytest.mark.parametrize("is_dark_first", [False, True])
def test_what_differs(
    real: tuple[int, bytes], dark: tuple[int, bytes], counted: tuple[int, int, int], is_dark_first: bool
) -> None:
    door = open_door()
    asked = door.arrive()
    asked.gets_answer(door.now, real[0], "tidegate-credit: keep", body=real[1], ends=not is_dark_first)
    door.core.settle()
    asked.shadow.gets_answer(door.now, dark[0], "tidegate-outcome: answered", body=dark[1])
    if is_dark_first:
        assert seen(door).requests == 0, "the client's answer may yet break off"
        asked.ends(door.now)
    found = seen(door)
    assert (found.requests, found.failed, found.status_differs, found.output_differs) == (1, *counted)


def test_event_streams_are_compared_by_status_and_timed_to_their_first_byte() -> None:
    door = open_door()
    asked = door.arrive()
    asked.gets_answer(door.now, 200, "content-type: text/event-stream", length=None, body=b"data: 1", ends=False)
    door.core.settle()
    dark = asked.shadow
    dark.gets_answer(door.now + 0.001, 200, "content-type: text/event-stream", length=None, body=b"data: 2", ends=False)
    dark.ends(door.now + 60.0)
    asked.ends(door.now + 100.0)
    found = seen(door)
    assert (found.requests, found.output_differs) == (1, 0)
    assert found.latency[0][0] < 80, "milliseconds"


def test_without_a_free_slot_nothing_is_sent_and_none_is_woken() -> None:
    door = open_door(slots=1)
    one, other = answered(door), answered(door)
    assert (one.shadow.log, other.shadow.log) == (["to 10.0.0.9:1"], [])
    assert seen(door).skipped == 2, "the first one of all found no link yet"
    assert door.activations() == []
    one.shadow.gets_answer(door.now, 200, "tidegate-credit: keep")
    assert answered(door).shadow.log == [], "the slot went home: the queue_proxy deals it anew"
    door.grant(DARK, 102)
    assert answered(door).shadow.log == ["to 10.0.0.9:1"]


def test_a_copy_does_not_overtake_requests_that_wait_for_the_shadows_revision() -> None:
    door = Door(shadowed())
    (route,) = door.core.table.functions
    first, dark = route.revisions
    routes = replace(
        door.core.table, number=2, functions=(replace(route, revisions=(first, replace(dark, tags=("dark",)))),)
    )
    assert door.core.apply(routes)
    door.ready(ONE, *range(1, 9))
    waits = door.arrive("POST /v2/models/m/infer", "tidegate-tag: dark")
    asked = door.arrive()
    door.ready(DARK)
    asked.gets_answer(door.now)
    door.core.settle()
    assert (waits.log, asked.shadow.log) == ([], [])
    door.grant(DARK, 101)
    assert waits.log == ["to 10.0.0.9:1"]
    waits.gets_answer(door.now)
    assert not hasattr(waits, "shadow"), "who asks for a revision by its tag is copied to none"


def test_a_copy_is_never_sent_twice_and_its_failure_is_the_shadows() -> None:
    door = open_door(slots=4)
    broken, refused, unreached, started = (answered(door) for _ in range(4))
    broken.shadow.breaks_off(door.now, sent=True)
    refused.shadow.gets_answer(door.now, 409, "tidegate-outcome: not-started")
    unreached.shadow.breaks_off(door.now, sent=False)
    started.shadow.gets_answer(door.now, 502, "tidegate-outcome: started")
    for asked in (broken, refused, unreached, started):
        assert asked.shadow.attempts == 1
        assert asked.status == 200
    found = seen(door)
    assert (found.requests, found.failed, found.skipped) == (3, 3, 2), "a stale credit says nothing of the model"


def test_a_request_without_a_whole_answer_is_not_compared() -> None:
    door = open_door(slots=4)
    left, cut, none = door.arrive(), door.arrive(), door.arrive()
    for asked in (left, cut):
        asked.gets_answer(door.now, 200, "tidegate-credit: keep", ends=False)
    door.core.settle()
    left.client_leaves(door.now)
    cut.ends(door.now, truncated=True)
    none.client_leaves(door.now)
    assert (left.shadow.log[-1], cut.shadow.log[-1]) == ("gone", "gone"), "their copies end with them"
    assert (seen(door).requests, seen(door).skipped) == (0, 4)


def test_copies_end_with_their_deadline() -> None:
    door = open_door(slots=2)
    silent, slow = answered(door), door.arrive()
    slow.gets_answer(door.now, 200, "content-type: text/event-stream", length=None, ends=False)
    door.core.settle()
    slow.shadow.gets_answer(door.now, 200, "content-type: text/event-stream", length=None, ends=False)
    door.now += 10.5
    door.core.sweep(door.now)
    assert (silent.shadow.log[-1], slow.shadow.log[-1]) == ("gone", "gone")
    slow.ends(door.now)
    found = seen(door)
    assert (found.requests, found.failed, found.status_differs) == (2, 1, 0)


def test_only_so_many_bytes_are_kept_for_copies() -> None:
    door = open_door()
    large = door.arrive(body=b"x" * (BODY_BYTES + 1))
    assert (large.kept, seen(door).skipped) == (0, 2)
    large.gets_answer(door.now, 200, "tidegate-credit: keep")
    assert not hasattr(large, "shadow")
    whole = b"x" * BODY_BYTES
    fitting = ALL_BYTES // BODY_BYTES
    door.grant(ONE, *range(20, 20 + fitting))
    kept = [door.arrive(body=whole).kept for _ in range(fitting + 1)]
    assert kept == [BODY_BYTES] * fitting + [0]
    assert seen(door).skipped == 3


def test_only_so_many_copies_are_on_their_way() -> None:
    door = Door(shadowed(queue_requests=10_000))
    door.ready(ONE, *range(1, 1000))
    asked = [door.arrive() for _ in range(MAX_COPIES + 7)]
    assert seen(door).skipped == 7
    for one in asked:
        one.gets_answer(door.now)
    door.core.settle()
    assert repr(door.core.shadows) == "<Shadows 0 to come, 0 on their way, 0 bytes>"


def test_everything_is_given_back() -> None:
    door = open_door(slots=3)
    one, other, third = (answered(door) for _ in range(3))
    assert repr(door.core.shadows).startswith("<Shadows 0 to come, 3 on their way, ")
    one.shadow.gets_answer(door.now, 200, body=b"{}")
    other.shadow.breaks_off(door.now, sent=True)
    third.shadow.client_gone()
    assert repr(door.core.shadows) == "<Shadows 0 to come, 0 on their way, 0 bytes>"


def test_a_retried_request_is_copied_once() -> None:
    door = open_door(slots=4)
    asked = door.arrive()
    asked.gets_answer(door.now, 409, "tidegate-outcome: not-started")
    door.grant(ONE, 50)
    asked.gets_answer(door.now, 200, body=b"{}")
    door.core.settle()
    assert asked.log == ["to 10.0.0.1:1", "to 10.0.0.1:1", "taken back"]
    asked.shadow.gets_answer(door.now, 200, body=b"{}")
    assert (seen(door).requests, seen(door).skipped) == (1, 1)
    assert repr(door.core.shadows).endswith("0 bytes>"), "its body counted once"


def test_the_second_copy_of_a_late_request_is_the_one_to_compare_when_it_wins() -> None:
    rule = Hedging(percentile=None, after_s=0.1)
    door = Door(shadowed(1, ONE, TWO, idempotent=True, hedging=rule))
    door.ready(ONE, 1, 2)
    door.ready(TWO, 11, 12)
    door.arrive().gets_answer(door.now, 200, "tidegate-credit: keep")
    door.core.settle()
    door.ready(DARK, 101)
    late = door.arrive()
    door.now += 0.2
    door.core.on_hedges_due()
    twin = late.twin
    twin.gets_answer(door.now, 200, "tidegate-credit: keep", body=b"a")
    door.core.settle()
    assert (late.log[-1], twin.shadow.log) == ("gone", ["to 10.0.0.9:1"])
    twin.shadow.gets_answer(door.now, 200, body=b"a")
    assert (seen(door).requests, seen(door).output_differs) == (1, 0)


def test_the_percentage_is_that_of_all_requests() -> None:
    door = open_door(slots=1, percent=25.0)
    copied = 0
    for _ in range(200):
        asked = answered(door)
        if hasattr(asked, "shadow"):
            copied += 1
    assert copied == pytest.approx(50, abs=2)
