"""Requests that end before their answer: late, or abandoned by their client."""

from tests.support.worlds.gateway_chain import ONE, Door, table


def test_a_deadline_bounds_waiting_and_the_model_never_sees_the_request() -> None:
    door = Door(table(1))
    late = door.arrive("POST /v2/models/m/infer", "tidegate-timeout-ms: 500")
    assert late.deadline == 100.5
    door.now = 100.6
    late.expires(100.6)
    assert (late.status, late.error["executed"], late.attempts) == (504, "false", 0)
    door.core.apply(table(2, ONE))
    door.ready(ONE, 1)
    assert late.attempts == 0
    assert (door.demand().expired, door.demand().waiting) == (1, 0)


def test_the_rooms_own_timer_expires_it_without_the_engine() -> None:
    door = Door(table(1))
    late = door.arrive("POST /v2/models/m/infer", "grpc-timeout: 200m")
    door.now = 100.21
    door.core.on_room_due()
    assert late.status == 504
    assert door.demand().expired == 1


def test_a_deadline_is_capped_by_the_functions_timeout_and_zero_is_over_at_once() -> None:
    door = Door(table(1, ONE))
    assert door.arrive("POST /v2/models/m/infer", "tidegate-timeout-ms: 99999999").deadline == 110.0
    assert door.arrive("POST /v2/models/m/infer", "tidegate-timeout-ms: 0").status == 504
    assert door.arrive("POST /v2/models/m/infer", "tidegate-timeout-ms: soon").error["code"] == "bad_request"


def test_a_client_that_leaves_takes_its_work_with_it() -> None:
    door = Door(table(1, ONE))
    door.ready(ONE, 1)
    running, waiting = door.arrive(), door.arrive()
    waiting.client_leaves(100.0)
    running.client_leaves(100.0)
    demand = door.demand()
    assert (demand.cancelled, demand.waiting, demand.answered) == (2, 0, 0)
