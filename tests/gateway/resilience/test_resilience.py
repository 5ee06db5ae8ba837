"""Timelines of failing and slow replicas behind the chain: retries, ejections, probes, and the copy that counts."""

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.support.worlds.access_lines import lines_of
from tests.support.worlds.fake_exchange import FakeExchange
from tests.support.worlds.gateway_chain import ONE, TWO, Door, table
from tidegate.flow.messages import Grant, State, Welcome
from tidegate.flow.outliers import TRIAL_S
from tidegate.flow.retry_budget import FLOOR_PER_S, WINDOW_S
from tidegate.function import ConcurrencyUnit
from tidegate.gateway.access_log.records import AccessLog
from tidegate.metrics import Exposition
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import GroupRoute, Hedging, OutlierRules, ReplicaRoute, Spread

STARTED = ("tidegate-outcome: started",)
KEEP = ("tidegate-credit: keep", "tidegate-timing: queue=0.1,model=1.0")
FIXED = Hedging(percentile=None, after_s=0.05)


def door(*replicas: ReplicaRoute, credits_each: int = 1, **settings: Any) -> Door:
    """Replicas are ready and have granted."""
    opened = Door(table(1, *replicas, **{"queue_requests": 100, **settings}))
    opened.arrive().client_leaves(opened.now)
    for replica in replicas:
        opened.ready(replica, *range(1, credits_each + 1))
    opened.core.settle()
    return opened


def place(ex: FakeExchange) -> str:
    """Where it went last."""
    return next(line for line in reversed(ex.log) if line.startswith("to "))


def metric(opened: Door, name: str) -> float:
    text = Exposition()
    steps = opened.report.expose(
        text,
        opened.now,
        table=(1, 1),
        connections=0,
        waiting=lambda _: None,
        outliers=opened.core.resilience.outliers,
        log_lines_dropped=0,
    )
    assert list(steps)
    start = f'tidegate_gateway_{name}{{function="f",revision="f-00001"}} '
    (line,) = [line for line in text.render().decode().splitlines() if line.startswith(start)]
    return float(line.removeprefix(start))


# --- retries --------------------------------------------------------------------------------------------------------


def test_an_idempotent_request_whose_model_broke_off_is_sent_elsewhere() -> None:
    opened = door(ONE, TWO, idempotent=True)
    asked = opened.arrive()
    asked.gets_answer(100.1, 502, *STARTED)
    assert asked.log == ["to 10.0.0.1:1", "to 10.0.0.2:1", "taken back"]
    asked.gets_answer(100.2, 200, *KEEP)
    assert (asked.status, metric(opened, "retries_total"), opened.demand().answered) == (200, 1, 1)


def test_a_request_that_came_back_untouched_before_its_model_broke_off_is_still_sent_elsewhere() -> None:
    opened = door(ONE, TWO, idempotent=True)
    asked = opened.arrive()
    asked.gets_answer(100.1, 409, "tidegate-outcome: not-started")
    opened.grant(ONE, 7)
    asked.breaks_off(100.2, sent=True)
    assert (asked.attempts, asked.status, metric(opened, "retries_total")) == (3, 0, 1)
    asked.breaks_off(100.3, sent=True)
    assert asked.status == 502, "once more is once"


def test_when_every_replica_fails_second_copies_stay_within_the_budget() -> None:
    settings: dict[str, Any] = {"idempotent": True, "retry_percent": 20.0, "outlier": OutlierRules(failures=0)}
    opened = door(ONE, TWO, credits_each=1000, queue_requests=1000, **settings)
    asked = [opened.arrive() for _ in range(500)]
    for _ in range(3):
        for one in asked:
            if not one.ended and place(one) == one.log[-1]:
                one.breaks_off(opened.now, sent=True)
        opened.now += 0.5
        opened.core.on_room_due()
        for replica in (ONE, TWO):
            opened.ready(replica, *range(1, 1001))
    assert {(ex.status, ex.error["executed"]) for ex in asked} == {(502, "unknown")}
    attempts = sum(ex.attempts for ex in asked)
    allowed = 501 * 0.2 + FLOOR_PER_S * WINDOW_S
    assert allowed - 1 <= attempts - 500 <= allowed
    assert metric(opened, "retries_total") == attempts - 500
    assert metric(opened, "denied_retries_total") == 500 - (attempts - 500)


def test_what_never_started_goes_elsewhere_whatever_the_budget_says() -> None:
    opened = door(ONE, TWO, retry_percent=0.0)
    asked = opened.arrive()
    asked.breaks_off(opened.now, sent=False)
    assert place(asked) == "to 10.0.0.2:1"
    assert (metric(opened, "retries_total"), metric(opened, "denied_retries_total")) == (0, 0)


def test_a_deadline_after_a_retry_says_that_the_model_may_have_run_it() -> None:
    opened = door(ONE, idempotent=True)
    asked = opened.arrive()
    asked.breaks_off(opened.now, sent=True)
    asked.expires(110.0)
    assert (asked.status, asked.error["executed"]) == (504, "unknown")


# --- outliers and circuits --------------------------------------------------------------------------------------------


def broken(opened: Door, times: int) -> list[FakeExchange]:
    """Requests one after the other, each broken off by the replica that gets it, a tenth of a second apart."""
    asked = []
    for _ in range(times):
        one = opened.arrive()
        if not one.ended:
            one.breaks_off(opened.now, sent=True)
        asked.append(one)
        opened.now += 0.1
    return asked


def test_a_replica_that_breaks_every_request_gets_none_until_a_probe_succeeds() -> None:
    rules = OutlierRules(failures=3, ejection_s=5.0)
    opened = door(ONE, TWO, credits_each=9, outlier=rules, probe_path="/health", spread=Spread.FIRST_AVAILABLE)
    assert {place(ex) for ex in broken(opened, 3)} == {"to 10.0.0.1:1"}
    assert metric(opened, "ejected_replicas") == 1
    for _ in range(5):
        other = opened.arrive()
        assert place(other) == "to 10.0.0.2:1"
        other.gets_answer(opened.now, 200, *KEEP)
    opened.now = 105.5
    opened.core.sweep(opened.now)
    assert opened.probes == [(ONE.id, "/health")]
    opened.core.probed(ONE.id, ok=False)
    opened.now += 1.0
    opened.core.sweep(opened.now)
    opened.core.probed(ONE.id, ok=True)
    assert len(opened.probes) == 2
    opened.grant(ONE, 20, 21)
    well = opened.arrive()
    assert place(well) == "to 10.0.0.1:1"
    well.gets_answer(opened.now, 200, *KEEP)
    assert (metric(opened, "ejected_replicas"), metric(opened, "ejections_total")) == (0, 1)


@pytest.mark.parametrize("outcome", ["answered", "not-started"])
def test_answers_of_the_model_and_work_that_was_given_back_do_not_eject(outcome: str) -> None:
    opened = door(ONE, TWO, credits_each=9, outlier=OutlierRules(failures=2), spread=Spread.FIRST_AVAILABLE)
    for _ in range(6):
        asked = opened.arrive()
        asked.gets_answer(opened.now, 503, f"tidegate-outcome: {outcome}")
        opened.now += 10.0
        opened.core.on_room_due()
        opened.grant(ONE, int(opened.now * 10))
        if not asked.ended:
            asked.gets_answer(opened.now, 200, *KEEP)
    assert metric(opened, "ejections_total") == 0


def test_an_answer_that_breaks_off_in_the_middle_counts() -> None:
    opened = door(ONE, TWO, credits_each=9, outlier=OutlierRules(failures=1), spread=Spread.FIRST_AVAILABLE)
    asked = opened.arrive()
    asked.truncated = True
    asked.gets_answer(opened.now, 200)
    assert metric(opened, "ejections_total") == 1


def test_a_replica_that_dies_with_many_requests_has_failed_once() -> None:
    opened = door(ONE, TWO, credits_each=9, outlier=OutlierRules(failures=3), spread=Spread.FIRST_AVAILABLE)
    running = [opened.arrive() for _ in range(9)]
    opened.now += 0.1
    for one in running:
        one.breaks_off(opened.now, sent=True)
    assert metric(opened, "ejections_total") == 0


def unlimited(*replicas: ReplicaRoute, **settings: Any) -> Door:
    """``concurrency: 0``: replicas are ready and take whatever comes."""
    opened = Door(table(1, *replicas, revision={"limited": False}, **{"probe_path": "/health", **settings}))
    opened.arrive().client_leaves(opened.now)
    for replica in replicas:
        opened.core.linked(replica.id)
        opened.core.heard(replica.id, Welcome("inc", 0, ConcurrencyUnit.REQUESTS))
        opened.core.heard(replica.id, State(ReplicaState.READY))
    opened.core.settle()
    return opened


def served(opened: Door, seconds: float, *, hanging: ReplicaRoute) -> list[str]:
    """Two requests each half second, answered at once where they do not hang; where each of the last two went."""
    places: list[str] = []
    for _ in range(int(2 * seconds)):
        asked = [opened.arrive(), opened.arrive()]
        places = [place(one) for one in asked]
        opened.now += 0.5
        for one in asked:
            if place(one) != f"to {hanging.address}":
                one.gets_answer(opened.now, 200, *KEEP)
        opened.core.sweep(opened.now)
    return places


def test_a_replica_without_a_limit_that_hangs_gets_no_work_until_it_is_well_again() -> None:
    opened = unlimited(ONE, TWO, spread=Spread.ROUND_ROBIN)
    assert set(served(opened, 1.0, hanging=ONE)) == {"to 10.0.0.1:1", "to 10.0.0.2:1"}
    served(opened, 2.0, hanging=ONE)
    assert opened.probes == [(ONE.id, "/health")], "it has ended nothing; the other one has"
    opened.core.probed(ONE.id, ok=False)
    assert metric(opened, "ejected_replicas") == 1
    assert set(served(opened, 9.0, hanging=ONE)) == {"to 10.0.0.2:1"}
    served(opened, 2.0, hanging=TWO)
    assert opened.probes[1:] == [(ONE.id, "/health")], "its time is over"
    opened.core.probed(ONE.id, ok=True)
    assert "to 10.0.0.1:1" in served(opened, 1.0, hanging=TWO)


def test_a_replica_that_is_only_busy_keeps_its_work() -> None:
    opened = unlimited(ONE, TWO)
    opened.arrive()
    for _ in range(20):
        opened.now += 0.5
        opened.core.sweep(opened.now)
        for replica, _path in opened.probes:
            opened.core.probed(replica, ok=True)
    assert len(opened.probes) in (4, 5)
    assert metric(opened, "ejections_total") == 0


def test_the_last_replica_that_serves_is_kept_even_if_it_hangs() -> None:
    opened = unlimited(ONE)
    served(opened, 4.0, hanging=ONE)
    opened.core.probed(ONE.id, ok=False)
    assert metric(opened, "ejected_replicas") == 0
    assert opened.arrive().log == ["to 10.0.0.1:1"]


def test_what_cannot_be_asked_is_left_alone() -> None:
    opened = unlimited(ONE, TWO, probe_path=None)
    served(opened, 5.0, hanging=ONE)
    assert opened.probes == []


def test_when_the_last_replica_fails_too_requests_fail_fast_and_one_a_second_is_tried() -> None:
    opened = door(ONE, credits_each=60, outlier=OutlierRules(failures=3))
    asked = broken(opened, 20)
    assert [ex.status for ex in asked[:3]] == [502] * 3
    refused = [ex for ex in asked[3:] if ex.status == 503]
    assert len(refused) >= 15
    assert (refused[0].error["code"], refused[0].error["executed"]) == ("not_servable", "false")
    assert b"retry-after: 1\r\n" in refused[0].extra
    assert metric(opened, "circuit_open") == 1
    opened.now += TRIAL_S
    trial = opened.arrive()
    assert opened.arrive().status == 503
    trial.gets_answer(opened.now, 200, *KEEP)
    assert opened.arrive().log == ["to 10.0.0.1:1"]
    assert metric(opened, "circuit_open") == 0
    assert opened.demand().refused == metric(opened, "circuit_refused_requests_total") == len(refused) + 1
    assert opened.demand().missed == 0, "more replicas would fail as well"


def test_a_replica_whose_state_is_reported_anew_starts_with_a_clean_slate() -> None:
    opened = door(ONE, credits_each=9, outlier=OutlierRules(failures=1))
    broken(opened, 1)
    assert opened.arrive().status == 503
    opened.ready(ONE, 50)
    assert opened.arrive().log == ["to 10.0.0.1:1"]


def test_when_the_last_replica_is_gone_requests_wait_for_the_next() -> None:
    opened = door(ONE, credits_each=9, outlier=OutlierRules(failures=1))
    broken(opened, 1)
    assert opened.arrive().status == 503
    opened.core.unlinked(ONE.id)
    waiting = opened.arrive()
    assert waiting.log == []
    opened.ready(ONE, 50)
    assert waiting.log == ["to 10.0.0.1:1"]


@pytest.mark.parametrize("end", ["scaled in", "channel broke", "drains"])
def test_when_the_replicas_that_were_left_go_one_that_is_ejected_is_asked_at_once(end: str) -> None:
    settings: dict[str, Any] = {"outlier": OutlierRules(failures=1), "probe_path": "/health", "queue_requests": 100}
    opened = door(ONE, TWO, credits_each=9, spread=Spread.FIRST_AVAILABLE, **settings)
    broken(opened, 1)
    opened.core.sweep(opened.now)
    assert (metric(opened, "ejected_replicas"), opened.probes) == (1, [])
    if end == "scaled in":
        opened.core.apply(table(2, ONE, **settings))
    elif end == "channel broke":
        opened.core.unlinked(TWO.id)
    else:
        opened.core.heard(TWO.id, State(ReplicaState.DRAINING))
    waiting = opened.arrive()
    opened.now += 0.25
    opened.core.sweep(opened.now)
    assert opened.probes == [(ONE.id, "/health")]
    opened.core.probed(ONE.id, ok=True)
    opened.grant(ONE, 20)
    assert waiting.log == ["to 10.0.0.1:1"]


def test_a_failure_of_a_replica_that_left_the_table_counts_for_none() -> None:
    opened = door(ONE, TWO, outlier=OutlierRules(failures=1), spread=Spread.FIRST_AVAILABLE)
    asked = opened.arrive()
    opened.core.apply(table(2, TWO, queue_requests=100, outlier=OutlierRules(failures=1)))
    asked.breaks_off(opened.now, sent=True)
    opened.now += 3600.0
    opened.core.sweep(opened.now)
    assert (metric(opened, "ejections_total"), opened.probes) == (0, [])


# --- hedges ---------------------------------------------------------------------------------------------------------


def hedging(*replicas: ReplicaRoute, **settings: Any) -> Door:
    return door(*replicas, **{"idempotent": True, "hedging": FIXED, **settings})


def was_copied(ex: FakeExchange) -> bool:
    """Returns whether a second copy of it was sent."""
    return hasattr(ex, "twin") and bool(ex.twin.log)


def late(opened: Door, seconds: float = 0.05) -> None:
    """Time passes without an answer."""
    opened.now += seconds
    opened.core.on_hedges_due()


def test_a_late_request_gets_a_second_copy_and_the_first_answer_counts() -> None:
    opened = hedging(ONE, TWO)
    asked = opened.arrive()
    assert opened.alarms == [pytest.approx(100.05)]
    late(opened)
    twin = asked.twin
    assert (asked.log, twin.log) == (["to 10.0.0.1:1"], ["to 10.0.0.2:1"])
    twin.gets_answer(opened.now, 200, *KEEP)
    assert twin.log == ["to 10.0.0.2:1", "took over"]
    assert (asked.log[-1], asked.status) == ("gone", 499), "its connection is aborted"
    demand = opened.demand()
    assert (demand.arrivals, demand.answered, demand.cancelled) == (2, 1, 1), "the other one is the door's own"
    assert (metric(opened, "hedges_total"), metric(opened, "won_hedges_total")) == (1, 1)
    assert b"wait;dur=50.000" in twin.extra, "measured from the request's arrival"


def test_the_second_copy_ends_when_the_first_answers() -> None:
    opened = hedging(ONE, TWO)
    asked = opened.arrive()
    late(opened)
    asked.gets_answer(opened.now, 200, *KEEP)
    assert (asked.status, asked.twin.status) == (200, 499)
    assert (opened.demand().answered, metric(opened, "won_hedges_total")) == (1, 0)
    again = opened.arrive()
    assert again.log == ["to 10.0.0.1:1"], "the credit of the one that answered is free again"


def test_no_copy_without_a_free_slot_elsewhere() -> None:
    opened = hedging(ONE)
    asked = opened.arrive()
    late(opened)
    assert not was_copied(asked)
    opened = hedging(ONE, TWO)
    first, second = opened.arrive(), opened.arrive()
    late(opened)
    assert metric(opened, "hedges_total") == 0
    assert {place(first), place(second)} == {"to 10.0.0.1:1", "to 10.0.0.2:1"}
    assert opened.demand().waiting == 0, "a copy never waits"


def test_a_copy_takes_a_slot_that_those_who_wait_may_not_use() -> None:
    third = ReplicaRoute(id="f-00001-ccccc", address="10.0.0.3:1")
    routes = table(1, idempotent=True, hedging=FIXED)
    (route,) = routes.functions
    small = GroupRoute(accelerator="a", weight=0.5, largest=8, replicas=(ONE, TWO))
    large = GroupRoute(accelerator="b", weight=0.5, replicas=(third,))
    revision = replace(route.revisions[0], groups=(small, large), unit_inferences=True)
    opened = Door(replace(routes, functions=(replace(route, revisions=(revision,)),)))
    opened.arrive().client_leaves(opened.now)
    for replica in (ONE, TWO, third):
        opened.core.linked(replica.id)
        opened.core.heard(replica.id, Welcome("inc", 16, ConcurrencyUnit.INFERENCES))
        opened.core.heard(replica.id, State(ReplicaState.READY))
    opened.core.heard(ONE.id, Grant(((1, 8),)))
    asked = opened.arrive("POST /v2/models/m/infer", "tidegate-batch-size: 2")
    waits = opened.arrive("POST /v2/models/m/infer", "tidegate-batch-size: 16")
    opened.core.heard(TWO.id, Grant(((1, 8),)))
    late(opened)
    assert (asked.log, asked.twin.log, waits.log) == (["to 10.0.0.1:1"], ["to 10.0.0.2:1"], [])
    assert metric(opened, "hedges_total") == 1
    asked.twin.gets_answer(opened.now, 200, *KEEP)
    assert (asked.status, opened.demand().answered) == (499, 1)


def test_no_copy_once_the_head_is_there_or_without_a_budget() -> None:
    opened = hedging(ONE, TWO)
    asked = opened.arrive()
    asked.gets_answer(opened.now, 200, *KEEP)
    late(opened)
    assert not was_copied(asked)
    opened = hedging(ONE, TWO, retry_percent=0.0)
    asked = opened.arrive()
    late(opened)
    assert not was_copied(asked)


def test_a_client_that_leaves_takes_both_copies_with_it() -> None:
    opened = hedging(ONE, TWO)
    asked = opened.arrive()
    late(opened)
    asked.client_leaves(opened.now)
    assert asked.twin.log[-1] == "gone"
    assert opened.demand().cancelled == 2


def test_a_deadline_ends_both() -> None:
    opened = hedging(ONE, TWO)
    asked = opened.arrive()
    late(opened)
    asked.expires(opened.now)
    assert (asked.status, asked.twin.status) == (504, 499)
    assert asked.error["executed"] == "unknown"


@pytest.mark.parametrize("how", ["breaks off", "started"])
def test_when_the_first_replica_breaks_the_copy_decides(how: str) -> None:
    def breaks(ex: FakeExchange) -> None:
        if how == "started":
            ex.gets_answer(opened.now, 502, *STARTED)
        else:
            ex.breaks_off(opened.now, sent=True)

    opened = hedging(ONE, TWO)
    asked = opened.arrive()
    late(opened)
    breaks(asked)
    assert not asked.ended
    asked.twin.gets_answer(opened.now, 200, *KEEP)
    assert (asked.twin.log[-1], opened.demand().answered) == ("took over", 1)

    opened = hedging(ONE, TWO)
    asked = opened.arrive()
    late(opened)
    breaks(asked)
    breaks(asked.twin)
    assert (asked.status, asked.error["executed"]) == (502, "unknown")
    assert opened.demand().failed == 1


@pytest.mark.parametrize("status", [409, 500, 502, 503])
def test_a_copy_that_fails_changes_nothing_for_the_first(status: int) -> None:
    opened = hedging(ONE, TWO)
    asked = opened.arrive()
    late(opened)
    outcome = "answered" if status == 500 else "not-started"
    asked.twin.gets_answer(opened.now, status, f"tidegate-outcome: {outcome}")
    assert (asked.ended, asked.twin.log[-1]) == (0.0, "answer 502")
    asked.gets_answer(opened.now, 200, *KEEP)
    assert (asked.status, opened.demand().answered, opened.demand().failed) == (200, 1, 0)


def test_the_percentile_is_learnt_from_first_copies_also_from_those_that_lost() -> None:
    opened = hedging(ONE, TWO, hedging=Hedging(percentile=90.0), retry_percent=100.0)
    for _ in range(128):
        asked = opened.arrive()
        opened.now += 0.010
        asked.gets_answer(opened.now, 200, *KEEP)
    slow, copies = opened.arrive(), 0
    opened.now += 0.012
    opened.core.on_hedges_due()
    assert slow.twin.log == ["to 10.0.0.2:1"], "the percentile is about 10 ms"
    slow.twin.gets_answer(opened.now, 200, *KEEP)
    opened.grant(ONE, 1000)
    for number in range(400):
        asked = opened.arrive()
        opened.now += 0.010 if number % 2 else 0.012
        opened.core.on_hedges_due()
        if was_copied(asked):
            copies += 1
            opened.now += 0.001
            asked.twin.gets_answer(opened.now, 200, *KEEP)
            opened.grant(ONE if place(asked) == "to 10.0.0.1:1" else TWO, 2000 + number)
        else:
            asked.gets_answer(opened.now, 200, *KEEP)
    assert 0 < copies < 60, "half are slow: soon that is no longer late"


# --- priorities and keys ----------------------------------------------------------------------------------------------


def test_a_stated_priority_goes_first_and_the_functions_own_is_the_default() -> None:
    opened = door(ONE, priority=7)
    running = opened.arrive()
    usual = opened.arrive()
    urgent = opened.arrive("POST /v2/models/m/infer", "tidegate-priority: 0")
    late_class = opened.arrive("POST /v2/models/m/infer", "tidegate-priority: 9")
    for _ in range(3):
        running.gets_answer(opened.now, 200, *KEEP)
        opened.core.settle()
        running = next(ex for ex in (urgent, usual, late_class) if ex.log and not ex.ended)
        assert running is (urgent, usual, late_class)[_]
    assert b"tidegate-priority" not in urgent.head.fields


@pytest.mark.parametrize("value", ["10", "-1", "high", "1.5", ""])
def test_a_priority_that_is_none_is_refused_with_the_range(value: str) -> None:
    asked = door(ONE).arrive("POST /functions/f/x", f"tidegate-priority: {value}")
    assert (asked.status, asked.error["error"]["code"]) == (400, "bad_request")
    assert "0 (goes first) to 9 (goes last)" in asked.error["error"]["message"]


@pytest.mark.parametrize(
    ("oriented", "fields", "counts"),
    [
        (False, [], 7),
        (True, [], 17),
        (False, ["tidegate-task-class: throughput-oriented"], 17),
        (True, ["tidegate-task-class: latency-critical"], 7),
        (True, ["tidegate-priority: 0"], 10),
        (False, ["tidegate-priority: 0", "tidegate-task-class: throughput-oriented"], 10),
        (True, ["tidegate-priority: 9", "tidegate-task-class: latency-critical"], 9),
    ],
)
def test_throughput_oriented_requests_are_classed_behind_all_others(
    oriented: bool, fields: list[str], counts: int
) -> None:
    opened = door(ONE, priority=7, is_throughput_oriented=oriented)
    asked = opened.arrive("POST /v2/models/m/infer", *fields)
    assert asked.context.bind.priority == counts
    assert b"tidegate-task-class" not in asked.head.fields


@pytest.mark.parametrize("value", ["batch", "", "Latency-Critical", "throughput-oriented, latency-critical"])
def test_a_task_class_that_is_none_is_refused_with_both_names(value: str) -> None:
    asked = door(ONE).arrive("POST /functions/f/x", f"tidegate-task-class: {value}")
    assert (asked.status, asked.error["error"]["code"]) == (400, "bad_request")
    assert "latency-critical or throughput-oriented" in asked.error["error"]["message"]


def test_equal_keys_prefer_one_replica() -> None:
    opened = door(ONE, TWO, credits_each=4, spread=Spread.HASH, hash_on="header:x-user")
    for user in ("ann", "bob", "eve"):
        places = set()
        for _ in range(4):
            asked = opened.arrive("POST /v2/models/m/infer", f"x-user: {user}")
            places.add(place(asked))
            asked.gets_answer(opened.now, 200, *KEEP)
        assert len(places) == 1


# --- access log -------------------------------------------------------------------------------------------------------


def test_every_sampled_request_gets_one_line_also_when_two_copies_ran() -> None:
    log = AccessLog(1.0, rng=random.Random(1), take=lambda log: None)
    opened = Door(table(1, ONE, TWO, idempotent=True, hedging=FIXED), access=log)
    opened.arrive("GET /missing?token=secret", "x-request-id: i-1")
    (unmatched,) = lines_of(log).decode().splitlines()
    assert " id=i-1 function=- variant=- revision=- replica=- method=GET path=/missing status=404 " in unmatched
    asked = opened.arrive("POST /v2/models/m/infer", "x-request-id: i-2")
    opened.ready(ONE, 1)
    opened.ready(TWO, 1)
    late(opened)
    assert was_copied(asked)
    asked.twin.gets_answer(opened.now, 200, *KEEP)
    (line,) = lines_of(log).decode().splitlines()
    assert f" id=i-2 function=f variant=- revision=f-00001 replica={TWO.id} method=POST " in line
    assert line.endswith(" inferences=1 ending=answered trace=-")
