"""Deadlines of running work, as live: a 504, and the slot is free at once or when the server has ended."""

from dataclasses import replace

import pytest

from tests.loadgen.simulator.worlds import deployed, fixed, function, kind, run
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import Cancel, Routing
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.simulator.devices import DeviceKind, Sharing
from tidegate.loadgen.simulator.profiles import ServiceProfile
from tidegate.loadgen.simulator.scenario import BrokenStarts, Callers, Crash, Scenario
from tidegate.records.route_table import QueueOrder

Ends = list[tuple[object, str]]


def ends(
    cancel: Cancel,
    arrivals: list[float],
    profile: ServiceProfile,
    *,
    timeout_s: float = 1.0,
    deadline_s: float | None = None,
    concurrency: int = 1,
    sharing: Sharing = Sharing.EXCLUSIVE,
    failures: tuple[Crash | BrokenStarts, ...] = (),
) -> Ends:
    """Returns (end, how) of each request by arrival, of one replica on one device."""
    of = function(concurrency=concurrency, timeout_s=timeout_s, cancel=cancel)
    scenario = Scenario(
        kinds=(kind(count=1, sharing=sharing),),
        functions=(replace(deployed(profile, of=of), deadline_s=deadline_s),),
        arrivals=[Arrival(at_s) for at_s in arrivals],
        failures=failures,
        keeps_scale=True,
        message_s=0.0,
        turn_s=0.0,
    )
    result, sink = run(scenario)
    assert not result.unended
    found = sorted(sink.ended, key=lambda each: each[0][0])
    return [(pytest.approx(each[2], abs=1e-6), each[5]) for each in found]


@pytest.mark.parametrize("sharing", [Sharing.EXCLUSIVE, Sharing.MPS])
def test_the_timeout_ends_running_work_and_frees_the_slot(sharing: Sharing) -> None:
    found = ends(Cancel.CLOSE, [10.0, 10.5], fixed(3.0), sharing=sharing)
    # The second waits for the slot, gets it when the first is ended, and is ended by its own deadline.
    assert found == [(11.0, "deadline_exceeded"), (11.5, "deadline_exceeded")]


@pytest.mark.parametrize("sharing", [Sharing.EXCLUSIVE, Sharing.MPS])
def test_a_server_that_goes_on_holds_its_slot(sharing: Sharing) -> None:
    assert ends(Cancel.CLOSE, [10.0, 11.2], fixed(1.5), sharing=sharing, timeout_s=1.4) == [
        (11.4, "deadline_exceeded"),
        (12.6, "deadline_exceeded"),
    ]
    assert ends(Cancel.HOLD, [10.0, 11.2], fixed(0.9), sharing=sharing, timeout_s=0.8) == [
        (10.8, "deadline_exceeded"),
        (12.0, "deadline_exceeded"),
    ]


def test_what_waits_behind_a_held_slot_runs_when_the_server_has_ended() -> None:
    fast = fixed(0.5, first_s=2.0)
    # The first execution takes 2 s: its client has a 504 after 1 s, and the slot is held for another.
    assert ends(Cancel.HOLD, [10.0, 11.2], fast) == [(11.0, "deadline_exceeded"), (12.2, "deadline_exceeded")]
    assert ends(Cancel.HOLD, [10.0, 11.6], fast) == [(11.0, "deadline_exceeded"), (12.5, "answered")]
    assert ends(Cancel.AUTO, [10.0, 11.6], fast) == [(11.0, "deadline_exceeded"), (12.5, "answered")]


def test_a_shorter_deadline_of_clients_counts_and_a_longer_one_does_not() -> None:
    assert ends(Cancel.CLOSE, [10.0], fixed(3.0), deadline_s=0.25) == [(10.25, "deadline_exceeded")]
    assert ends(Cancel.CLOSE, [10.0], fixed(3.0), deadline_s=60.0) == [(11.0, "deadline_exceeded")]


def test_a_request_that_waits_inside_the_server_leaves_it() -> None:
    found = ends(Cancel.HOLD, [10.0, 10.1, 10.9], fixed(0.7, width=1), concurrency=4)
    # The second is in line until its deadline; the third follows the first.
    assert found == [(10.7, "answered"), (11.1, "deadline_exceeded"), (11.9, "deadline_exceeded")]


def test_an_answer_at_its_deadline_is_an_answer() -> None:
    assert ends(Cancel.CLOSE, [10.0], fixed(1.0)) == [(11.0, "answered")]


@pytest.mark.parametrize("sharing", [Sharing.EXCLUSIVE, Sharing.MPS])
def test_a_replica_that_dies_with_held_work_ends_nothing_twice(sharing: Sharing) -> None:
    found = ends(*(Cancel.HOLD, [10.0], fixed(5.0)), sharing=sharing, failures=(Crash(at_s=12.0, function="f"),))
    assert found == [(11.0, "deadline_exceeded")]


def test_callers_go_on_after_a_deadline() -> None:
    of = function(timeout_s=1.0, cancel=Cancel.CLOSE)
    scenario = Scenario(
        kinds=(kind(count=1),),
        functions=(deployed(fixed(2.0), of=of),),
        callers=(Callers(function="f", callers=1, requests=3),),
        keeps_scale=True,
    )
    _, sink = run(scenario)
    assert [each[5] for each in sink.ended] == ["deadline_exceeded"] * 3


def test_an_emulated_server_is_the_shipped_one() -> None:
    emulated = Accelerator(name="t4", kind=AcceleratorKind.EMULATED, count=1, memory_bytes=10**9)
    scenario = Scenario(
        kinds=(DeviceKind(accelerator=emulated),),
        functions=(deployed(fixed(1.5), of=function(timeout_s=1.0)),),
        arrivals=[Arrival(10.0), Arrival(10.2)],
        keeps_scale=True,
    )
    _, sink = run(scenario)
    # It computes until 11.5 s; the second request's deadline passes while it waits.
    assert [each[4] != "" for each in sorted(sink.ended)] == [True, False]


@pytest.mark.parametrize(
    ("order", "expected"), [(QueueOrder.ARRIVAL, [1, 1, 4]), (QueueOrder.URGENCY, [1, 4, 1])], ids=str
)
def test_waiting_requests_go_by_urgency_if_the_function_asks_for_it(order: QueueOrder, expected: list[int]) -> None:
    """All are due 10 s after they came: the large one has least time for its size when the slot frees."""
    scenario = Scenario(
        kinds=(kind(count=1),),
        functions=(deployed(fixed(3.0), of=function(routing=Routing(queue_order=order), task_deadline_s=10.0)),),
        arrivals=[Arrival(10.0), Arrival(10.1), Arrival(10.2, 4)],
        keeps_scale=True,
    )
    _, sink = run(scenario)
    assert [request[3] for request, *_ in sorted(sink.ended, key=lambda each: each[2])] == expected
