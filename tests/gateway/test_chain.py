"""Conversations with the gateway's request path: heads in, forwards and answers out, counted once."""

import gc

import pytest

from tests.support.worlds.gateway_chain import ONE, TWO, Door, table
from tidegate.activator.commands import Link, Send
from tidegate.flow.messages import Recall, Return, State, Welcome
from tidegate.function import ConcurrencyUnit
from tidegate.records.replica_state import ColdStartPhases, ReplicaState
from tidegate.records.route_table import FunctionRoute, RouteTable

BODY = b'{"inputs":[{"name":"x","shape":[8,3],"datatype":"FP32","data":[]}]}'


def test_a_request_with_a_free_slot_goes_through_at_once_and_is_counted_once() -> None:
    door = Door(table(1, ONE))
    first = door.arrive()
    door.ready(ONE, 7)
    assert first.log == ["to 10.0.0.1:1"]
    door.now = 100.1
    first.gets_answer(100.1, 200, "tidegate-credit: keep", "tidegate-timing: queue=0.500,model=40.000")
    second = door.arrive(body=BODY)
    assert second.log == ["to 10.0.0.1:1"], "the kept credit carries the next request without a message"
    assert b"tidegate-credit: 7\r\n" in second.sent
    assert b"tidegate-token: secret\r\n" in second.sent
    assert b"tidegate-batch-size: 8\r\n" in second.sent, "read from the V2 shape"
    assert b"tidegate-timeout-ms: 10000\r\n" in second.sent
    door.now = 100.4
    second.gets_answer(100.4, 200, "tidegate-credit: home", "tidegate-timing: queue=0.500,model=40.000")
    demand = door.demand()
    assert (demand.arrivals, demand.arrivals_inferences, demand.answered, demand.within_sla) == (2, 9, 2, 1)
    assert [(group.group, group.requests, group.inferences) for group in demand.groups] == [("cpu", 2, 9)]


def test_answers_carry_an_id_and_server_timing() -> None:
    door = Door(table(1, ONE))
    door.ready(ONE, 7)
    door.arrive("POST /v2/models/m/infer", "x-request-id: mine-1").gets_answer(100.0)
    own = door.arrive("POST /v2/models/m/infer", "x-request-id: mine-2")
    assert b"x-request-id" not in own.sent, "the client's own id passes as it is"
    made = door.arrive("POST /v2/models/m/infer")
    door.grant(ONE, 8, 9)
    assert b"x-request-id: " in made.sent
    made.gets_answer(100.0, 200, "tidegate-timing: queue=0.125,model=5.500", "x-request-id: from-the-server")
    assert made.extra.startswith(b"x-request-id: ")
    assert b"server-timing: wait;dur=0.000, queue;dur=0.125, model;dur=5.500\r\n" in made.extra


def test_at_zero_the_first_request_asks_for_activation_at_once_and_is_answered_with_the_phases() -> None:
    door = Door(table(1))
    cold = door.arrive()
    assert (cold.log, door.activations()) == ([], [1])
    door.now = 100.2
    door.core.apply(table(2, ONE))
    assert [command.address for command in door.shell if isinstance(command, Link)] == ["10.0.0.1:1"]
    door.starting(ONE)
    door.now = 101.0
    phases = ColdStartPhases(decide_s=0.001, schedule_s=0.002, pull_s=0.0, load_s=0.7)
    door.core.heard(ONE.id, State(ReplicaState.READY, phases))
    door.grant(ONE, 1)
    assert cold.log == ["to 10.0.0.1:1"]
    door.now = 101.05
    cold.gets_answer(101.05, 200, "tidegate-credit: keep", "tidegate-timing: queue=0.100,model=45.000")
    timing = cold.extra.decode()
    for part in ("wait;dur=1000.000", "cold-load;dur=700.000", "cold-first-response;dur=50.000", "model;dur=45.000"):
        assert part in timing
    warm = door.arrive()
    warm.gets_answer(101.1, 200)
    assert b"cold-" not in warm.extra, "only a client that waited through the start is sent its times"
    (seen,) = door.report.sample(101.0, table=(1, 1), connections=0, demands=()).cold_starts
    assert (seen.replica, seen.phases.load_s) == (ONE.id, 0.7)
    assert seen.phases.first_response_s == pytest.approx(0.05)


def test_a_replica_that_was_ready_before_this_worker_came_is_no_cold_start() -> None:
    door = Door(table(1, ONE))
    door.core.linked(ONE.id)
    door.core.heard(ONE.id, Welcome("inc", 4, ConcurrencyUnit.REQUESTS))
    door.core.heard(ONE.id, State(ReplicaState.READY, ColdStartPhases(load_s=9.0)))
    door.grant(ONE, 1)
    warm = door.arrive()
    warm.gets_answer(100.0)
    assert b"cold-" not in warm.extra
    assert not door.report.sample(101.0, table=(1, 1), connections=0, demands=()).cold_starts


def test_the_room_is_bounded_and_says_when_to_come_back() -> None:
    door = Door(table(1))
    waiting = [door.arrive() for _ in range(2)]
    third = door.arrive()
    assert third.log == ["answer 429"]
    assert b"retry-after: " in third.extra
    assert third.error["code"] == "queue_full"
    assert [one.log for one in waiting] == [[], []]
    assert (door.demand().refused, door.demand().waiting, door.demand().arrivals) == (1, 2, 3)
    assert door.demand().missed == 1, "with more replicas there would have been room"


def test_v2_clients_get_the_error_as_a_string_others_as_an_object() -> None:
    door = Door(table(1, queue_requests=0))
    v2 = door.arrive().error
    plain = door.arrive("POST /functions/f/predict", "x-request-id: r-1").error
    assert isinstance(v2["error"], str)
    assert (v2["code"], v2["function"], v2["executed"]) == ("queue_full", "f", "false")
    assert plain["error"]["code"] == "queue_full"
    assert plain["error"]["request_id"] == "r-1"


def test_the_prefix_is_stripped_with_the_query_kept() -> None:
    door = Door(table(1, ONE))
    door.ready(ONE, 1, 2, 3)
    assert door.arrive("POST /functions/f/predict?x=1").target == b"/predict?x=1"
    assert door.arrive("POST /functions/f?x=1").target == b"/?x=1"
    assert door.arrive("POST /v2/models/m/infer").target == b"/v2/models/m/infer"


def test_the_clients_own_fields_do_not_reach_the_replica_twice() -> None:
    door = Door(table(1, ONE))
    door.ready(ONE, 1)
    sent = door.arrive("POST /v2/models/m/infer", "tidegate-timeout-ms: 700", "tidegate-batch-size: 5")
    assert b"tidegate-" not in sent.head.fields
    assert b"tidegate-timeout-ms: 700\r\ntidegate-batch-size: 5\r\n" in sent.sent


def test_the_size_is_awaited_when_the_body_comes_after_the_head() -> None:
    door = Door(table(1, ONE))
    door.ready(ONE, 1)
    apart = door.arrive(body=b"", complete=False)
    assert apart.log == []
    apart.body_comes(BODY)
    assert b"tidegate-batch-size: 8\r\n" in apart.sent


def test_the_size_is_awaited_until_the_shape_has_come() -> None:
    door = Door(table(1, ONE))
    door.ready(ONE, 1)
    apart = door.arrive(body=b"", complete=False)
    apart.body_comes(BODY[:10], complete=False)
    assert apart.log == []
    apart.body_comes(BODY)
    assert b"tidegate-batch-size: 8\r\n" in apart.sent


def test_a_batch_above_the_functions_maximum_is_refused() -> None:
    door = Door(table(1, ONE))
    door.ready(ONE, 1)
    refused = door.arrive("POST /v2/models/m/infer", "tidegate-batch-size: 65")
    assert (refused.status, refused.error["code"]) == (413, "batch_too_large")


def test_a_stale_credit_returns_the_request_to_its_old_place() -> None:
    door = Door(table(1, ONE))
    door.ready(ONE, 1)
    first, second = door.arrive(), door.arrive()
    assert (first.attempts, second.attempts) == (1, 0)
    first.gets_answer(100.0, 409, "tidegate-outcome: not-started")
    assert first.log[-1] == "taken back"
    door.grant(ONE, 2)
    assert (first.attempts, second.attempts) == (2, 0), "it goes before the one that came later"


def test_a_replica_that_cannot_be_reached_hands_its_request_to_another() -> None:
    door = Door(table(1, ONE, TWO))
    door.ready(ONE, 1)
    lost = door.arrive()
    door.ready(TWO, 1)
    lost.breaks_off(100.0, sent=False)
    assert lost.log == ["to 10.0.0.1:1", "to 10.0.0.2:1"]


def test_a_request_whose_replica_broke_is_reported_and_never_sent_again() -> None:
    door = Door(table(1, ONE, TWO))
    door.ready(ONE, 1)
    lost = door.arrive()
    door.ready(TWO, 1)
    lost.breaks_off(100.0, sent=True)
    assert lost.log == ["to 10.0.0.1:1", "answer 502"]
    assert (lost.error["code"], lost.error["executed"]) == ("replica_failed", "unknown")
    started = door.arrive()
    started.gets_answer(100.0, 502, "tidegate-outcome: started")
    assert (started.status, started.error["executed"]) == (502, "unknown"), "reported in the client's shape, by us"
    assert door.demand().failed == 2


def test_an_idempotent_function_is_tried_once_more() -> None:
    door = Door(table(1, ONE, TWO, idempotent=True))
    door.ready(ONE, 1)
    lost = door.arrive()
    door.ready(TWO, 1)
    lost.breaks_off(100.0, sent=True)
    assert lost.log == ["to 10.0.0.1:1", "to 10.0.0.2:1"]
    lost.breaks_off(100.0, sent=True)
    assert lost.status == 502


@pytest.mark.parametrize(
    ("length", "credit", "goes"),
    [(None, "keep", True), (1 << 20, "keep", True), (99, "keep", False), (None, "home", False)],
)
def test_a_recalled_credit_does_not_wait_until_a_slow_client_has_read_a_long_answer(
    length: int | None, credit: str, goes: bool
) -> None:
    door = Door(table(1, ONE))
    door.ready(ONE, 7)
    slow = door.arrive()
    slow.gets_answer(100.0, 200, f"tidegate-credit: {credit}", length=length, ends=False)
    door.shell.clear()
    door.core.heard(ONE.id, Recall((7,)))
    assert door.shell == [Send(ONE.id, Return((7,)))] * goes
    slow.ends(105.0)
    assert door.shell == [Send(ONE.id, Return((7,)))] * (credit == "keep")
    assert door.arrive().log == [], "it is not here any more"


def test_an_older_table_is_ignored_and_a_deleted_function_frees_who_waits() -> None:
    door = Door(table(5, epoch=3))
    waiting = door.arrive()
    assert not door.core.apply(table(9, epoch=2))
    assert not door.core.apply(table(4, epoch=3))
    assert waiting.log == []
    assert door.core.apply(RouteTable(epoch=3, number=6, workers=1))
    assert waiting.status in (404, 503)
    assert door.arrive().status == 404


def test_a_function_without_traffic_says_so() -> None:
    nothing = table(1).functions[0]
    route = FunctionRoute(**{name: getattr(nothing, name) for name in nothing.__slots__} | {"revisions": ()})
    door = Door(RouteTable(epoch=1, number=1, workers=1, functions=(route,)))
    assert door.arrive().status == 503


def test_a_request_leaves_nothing_for_the_collector() -> None:
    door = Door(table(1, ONE))
    door.ready(ONE, 7)
    door.arrive().gets_answer(100.0, 200, "tidegate-credit: keep")
    gc.collect()
    gc.disable()
    try:
        first, second = door.arrive(), door.arrive()
        first.gets_answer(100.0, 200, "tidegate-credit: keep")
        second.gets_answer(100.0, 200, "tidegate-credit: keep")
        assert (first.status, second.status) == (200, 200)
        del first, second
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_body_too_large_to_send_again_is_reported_not_lost() -> None:
    door = Door(table(1, ONE))
    door.ready(ONE, 1)
    large = door.arrive()
    large.keep_nothing()
    large.gets_answer(100.0, 409, "tidegate-outcome: not-started")
    assert (large.status, large.error["executed"]) == (502, "false")
