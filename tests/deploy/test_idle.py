"""The state of a replica that is not needed: which is cheapest, for how long, and from which measurements."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.idle import IdleState, IdleStates, Stakes, cheapest, kept_s, stakes_of
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import Function, Server, ServerKind, Sla
from tidegate.records.replica_state import ColdStartPhases, ReplicaState

CPU = Accelerator(name="cpu", kind=AcceleratorKind.CPU, count=2, memory_bytes=1000, cores=1)
READY = IdleState(name="ready", ready_s=0.0, held=1.0)
ASLEEP = IdleState(name="asleep", ready_s=0.5, held=0.1)
GONE = IdleState(name="gone", ready_s=10.0, held=0.0)
ALL = (READY, ASLEEP, GONE)
NO_PRICE = Stakes()


def replica(**changes: object) -> ReplicaStatus:
    status = ReplicaStatus(
        id="f-00001-a",
        function="f",
        revision="f-00001",
        accelerator="cpu",
        state=ReplicaState.READY,
        address="unix:/q",
        admin="unix:/a",
        created_at=100.0,
        ready_at=103.0,
    )
    return replace(status, **changes)  # type: ignore[arg-type]  # field names of ReplicaStatus


def test_a_replica_goes_down_the_states_as_the_idle_time_grows() -> None:
    names = [cheapest(ALL, idle_s, NO_PRICE).name for idle_s in (0.0, 0.5, 0.6, 94.0, 96.0, 1e6)]
    assert names == ["ready", "ready", "asleep", "asleep", "gone", "gone"]
    assert math.isclose(kept_s(READY, ALL, NO_PRICE), 0.5 / 0.9)
    assert math.isclose(kept_s(ASLEEP, ALL, NO_PRICE), 95.0), "0.1 of a unit for 95 s is what the start takes longer"
    assert kept_s(GONE, ALL, NO_PRICE) == math.inf


def test_a_state_that_returns_in_time_saves_the_price_of_a_late_request() -> None:
    dear = Stakes(late_s=100.0, in_time_s=1.0)
    assert math.isclose(kept_s(ASLEEP, ALL, dear), 1095.0)
    assert math.isclose(kept_s(ASLEEP, ALL, Stakes(late_s=100.0, in_time_s=0.1)), 95.0), "the wake is late as well"
    assert math.isclose(kept_s(ASLEEP, ALL, Stakes(late_s=100.0)), 95.0), "without a target nothing is late"


@given(st.lists(st.tuples(st.floats(0, 60), st.floats(0, 1)), min_size=1, max_size=5), st.floats(0, 1e4))
def test_the_cheapest_state_costs_at_most_twice_what_hindsight_does(
    rows: list[tuple[float, float]], idle_s: float
) -> None:
    states = [READY, *(IdleState(name=str(i), ready_s=ready, held=held) for i, (ready, held) in enumerate(rows))]
    paid, at, steps = 0.0, 0.0, 400
    for step in range(steps):  # the cost of following the cheapest state, in small steps
        paid += cheapest(states, at, NO_PRICE).held * idle_s / steps
        at = idle_s * (step + 1) / steps
    paid += cheapest(states, idle_s, NO_PRICE).ready_s
    best = min(each.held * idle_s + each.ready_s for each in states)
    assert paid <= 2.0 * best + idle_s / steps + 1e-6


def test_a_replica_sleeps_where_a_wake_saves_a_second_of_its_measured_start() -> None:
    states = IdleStates()
    assert states.sleeps(replica(), CPU, NO_PRICE) is None, "no start was measured"
    states.observe([replica()])
    why = states.sleeps(replica(), CPU, NO_PRICE)
    assert why == "f-00001-a: no wake was measured yet, 20 ms are assumed; a start takes 3 s"
    quick = IdleStates()
    quick.observe([replica(ready_at=100.5)])
    assert quick.sleeps(replica(), CPU, NO_PRICE) is None, "half a second makes no difference"
    assert quick.sleeps(replica(), CPU, Stakes(late_s=50.0, in_time_s=0.1)) is not None, "unless it makes requests late"
    assert states.sleeps(replica(state=ReplicaState.STARTING), CPU, NO_PRICE) is None
    adopted = IdleStates()
    adopted.observe([replica(adopted=True)])
    assert adopted.sleeps(replica(), CPU, NO_PRICE) is None, "its start is of another process's clock"
    asleep = replica(state=ReplicaState.ASLEEP, asleep_at=200.0, held_bytes=100, adopted=True)
    assert adopted.ends(asleep, CPU, NO_PRICE, 3600.0) is None, "what is not known ends no sleep"
    adopted.observe([replica(adopted=True, phases=ColdStartPhases(load_s=2.5, warm_s=0.5))])
    said = adopted.words("f-00001", CPU, NO_PRICE)
    assert said is not None and "a start takes 3 s" in said, "its queue_proxy measured it"


def test_a_sleep_ends_when_its_memory_has_cost_what_a_start_does() -> None:
    states = IdleStates()
    states.observe([replica()])
    asleep = replica(state=ReplicaState.ASLEEP, asleep_at=200.0, held_bytes=100)
    states.observe([asleep])
    longest_s = (3.0 - 0.02) / 0.1
    assert math.isclose(states.sleep_s(asleep, CPU, NO_PRICE), longest_s)
    assert states.ends(asleep, CPU, NO_PRICE, 200.0 + longest_s - 0.1) is None
    assert states.ends(asleep, CPU, NO_PRICE, 200.0 + longest_s) is not None
    assert states.ends(asleep, CPU, Stakes(late_s=1e9, in_time_s=0.1), 200.0 + 6 * 3600.0) is not None, "six hours"
    states.observe([replica(wake_s=1.0)])
    assert math.isclose(states.sleep_s(asleep, CPU, NO_PRICE), 20.0), "the measured wake counts from now on"


def test_the_states_are_said_with_their_figures() -> None:
    states = IdleStates()
    assert states.words("f-00001", CPU, NO_PRICE) is None
    states.observe([replica()])
    assert states.words("f-00001", CPU, NO_PRICE) == "a start takes 3 s: surplus ones sleep"
    states.observe([replica(state=ReplicaState.ASLEEP, asleep_at=1.0, held_bytes=100, wake_s=0.01)])
    assert states.sleeps(replica(), CPU, NO_PRICE) == "f-00001-a: a wake takes 10 ms; a start takes 3 s"
    said = "a start takes 3 s: surplus ones sleep (a wake takes 10 ms, holds 10 % of a place) for 29.9 s"
    assert states.words("f-00001", CPU, NO_PRICE) == said
    states.forget("f-00001")
    assert states.words("f-00001", CPU, NO_PRICE) is None


def test_where_the_backend_lets_no_replica_sleep_surplus_ones_are_not_said_to() -> None:
    states = IdleStates()
    states.observe([replica()])
    said = states.words("f-00001", CPU, NO_PRICE, "a Pod holds its cores until it is deleted")
    assert said == "a start takes 3 s: surplus ones end (a Pod holds its cores until it is deleted)"
    states.refused(replica(), "servers.sleep is false")
    assert states.words("f-00001", CPU, NO_PRICE) == "a start takes 3 s: surplus ones end (servers.sleep is false)"
    states.observe([replica(state=ReplicaState.ASLEEP, asleep_at=1.0, held_bytes=1)])
    assert "surplus ones sleep" in str(states.words("f-00001", CPU, NO_PRICE))


def test_a_wake_that_was_not_measured_is_not_said_as_if_it_was_and_long_times_are_readable() -> None:
    states = IdleStates()
    states.observe([replica()])
    states.observe([replica(state=ReplicaState.ASLEEP, asleep_at=1.0, held_bytes=1)])
    wake = "no wake was measured yet, 20 ms are assumed"
    sleep = f"a start takes 3 s: surplus ones sleep ({wake}, holds 0.1 % of a place)"
    assert states.words("f-00001", CPU, NO_PRICE) == f"{sleep} for 49.7 min"
    assert states.words("f-00001", CPU, Stakes(late_s=5.0, in_time_s=0.1)) == f"{sleep} for 2.22 h"


def test_half_of_the_latency_is_left_for_the_execution() -> None:
    function = Function(name="f", server=Server(kind=ServerKind.HANDLER, target="m.py:M"))
    assert stakes_of(function, 5.0) == Stakes(late_s=5.0, in_time_s=None)
    timed = replace(function, sla=Sla(latency_s=0.4))
    assert stakes_of(timed, 5.0) == Stakes(late_s=5.0, in_time_s=0.2)
