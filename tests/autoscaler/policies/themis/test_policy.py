"""The policies for one function: what they order, second by second, and what that does in the simulator."""

import random
from typing import Any

import pytest
from msgspec import UNSET

from tests.loadgen.simulator.worlds import deployed, fixed, run
from tests.support.worlds.autoscaling import T0, group, observation, revision
from tidegate.autoscaler.policies.contract import Recommendation
from tidegate.autoscaler.policies.themis.joint import REFUSED_S, ThemisMode
from tidegate.autoscaler.policies.themis.policy import ThemisPolicy
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import Function, Resources, Scaling, Server, ServerKind, Sla
from tidegate.loadgen.arrivals import processes
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.simulator.devices import DeviceKind
from tidegate.loadgen.simulator.profiles import ColdStart
from tidegate.loadgen.simulator.scenario import Scenario

PROFILE = "100,0,0,0"
"""A request takes 100 ms of one core, and is divided among more."""
SLA_S = 0.3


class Timeline:
    """One policy; its orders for cores are obeyed at once, unless ``most`` limits them."""

    def __init__(
        self, mode: ThemisMode = ThemisMode.BOTH, most: int = 64, max_cores: int = 8, **parameters: str
    ) -> None:
        given = {"profile": PROFILE, "headroom": "1", "max-cores": str(max_cores)} | parameters
        spec = revision(sla=Sla(latency_s=SLA_S), scaling=Scaling(policy=mode.value, parameters=given))
        self.policy = ThemisPolicy(mode, spec.function, T0, 1)
        self.now, self.ready, self.starting, self.cores, self.most = T0, 1, 0, 1, most

    def second(self, rps: float, **values: Any) -> Recommendation:
        self.now += 1.0
        there = group(ready=self.ready, starting=self.starting, cores=self.cores)
        found = self.policy.decide(observation(there, at=self.now, rps=rps, **values), self.now)
        if isinstance(found.cores, int):
            self.cores = min(found.cores, self.most)
        return found

    def seconds(self, count: int, rps: float) -> Recommendation:
        found = [self.second(rps) for _ in range(count)]
        return found[-1]


def code(found: Recommendation) -> str:
    return found.reasons[0].code


def test_a_burst_gets_cores_at_once_and_the_same_replicas() -> None:
    """5/s on one core of 10/s; 35/s need four cores: 100 ms / 4 carries 40/s."""
    line = Timeline()
    assert (line.seconds(5, 5.0).cores, line.cores) == (1, 1)
    found = line.second(35.0)
    assert (found.desired, found.cores, code(found)) == (1, 4, "cores_for_burst")


def test_a_stable_load_gets_replicas_of_one_core_first_then_the_cores_go() -> None:
    line = Timeline()
    line.seconds(70, 5.0)
    line.seconds(1, 35.0)
    found = line.seconds(70, 35.0)
    assert code(found) == "to_one_core"
    assert found.desired is not None and found.desired >= 4 and found.cores == 4, "they start while the cores stay"
    line.ready = found.desired
    shrunk = line.second(35.0)
    assert (shrunk.desired, shrunk.cores) == (line.ready, 1), "ready: now the cores go"
    assert line.second(35.0).cores == 1


def test_beyond_all_cores_further_replicas_start() -> None:
    line = Timeline(max_cores=2)
    line.seconds(5, 5.0)
    found = line.second(50.0)
    assert (found.cores, found.desired, code(found)) == (2, 3, "cores_not_enough")
    line.ready = 3
    assert code(line.second(50.0)) == "cores_fit"


def test_cores_that_are_not_given_are_no_longer_counted_on() -> None:
    """The machine has one core more than the replica: four are ordered, two are given, so replicas start instead."""
    line = Timeline(most=2)
    line.seconds(5, 5.0)
    assert line.second(35.0).cores == 4
    found = line.seconds(4, 35.0)
    assert (found.cores, code(found)) == (2, "cores_not_enough")
    assert found.desired is not None and found.desired > 1
    line.ready, line.most = 1, 64
    assert line.seconds(int(REFUSED_S) + 2, 35.0).cores == 4, "and asked for again later"


def test_a_further_replica_gets_its_cores_after_it_is_ready_and_is_no_refusal() -> None:
    line = Timeline(max_cores=2)
    line.seconds(5, 5.0)
    assert line.second(50.0).cores == 2
    line.seconds(6, 50.0)
    line.ready, line.cores = 3, 1  # two of them are new, on one core each
    found = line.second(50.0)
    assert (found.cores, code(found)) == (2, "cores_fit"), "theirs are on the way"
    line.cores = 1
    assert code(line.seconds(4, 50.0)) == "cores_fit"


def test_a_load_that_has_fallen_keeps_replicas_and_cores_for_the_stabilization() -> None:
    line = Timeline(stabilization="20s")
    line.ready = 6
    line.seconds(60, 50.0)
    line.seconds(10, 5.0)
    assert line.seconds(10, 5.0).desired == 6
    assert line.seconds(80, 5.0).desired == 1


def test_horizontal_only_never_changes_cores_and_holds_before_it_shrinks() -> None:
    line = Timeline(ThemisMode.HORIZONTAL)
    assert (line.second(5.0).desired, line.second(35.0).desired) == (1, 4)
    line.ready = 4
    assert line.seconds(10, 5.0).desired == 4
    assert line.seconds(12, 5.0).desired == 1
    assert line.second(5.0).cores == 1


def test_vertical_only_never_changes_replicas_and_takes_all_cores_beyond_what_they_carry() -> None:
    line = Timeline(ThemisMode.VERTICAL, max_cores=4)
    assert line.second(35.0).cores == 4
    beyond = line.second(200.0)
    assert (beyond.desired, beyond.cores, code(beyond)) == (1, 4, "cores_not_enough")
    assert line.seconds(30, 5.0).cores == 1


def test_without_a_profile_the_measured_time_is_divided_by_the_cores() -> None:
    line = Timeline(profile="measured")
    assert code(line.second(5.0)) == "mu_unknown"
    line.now += 1.0
    there = group(ready=1, cores=1, min_execution_s=0.1, min_execution_occupancy=1.0)
    found = line.policy.decide(observation(there, at=line.now, rps=35.0), line.now)
    assert found.cores == 4


def test_an_sla_that_no_cores_meet_is_said_and_everything_stays() -> None:
    line = Timeline(profile="0,0,0,400")
    found = line.second(5.0)
    assert (found.desired, code(found)) == (1, "slo_infeasible")


def test_without_data_without_replicas_or_while_the_first_starts_nothing_is_ordered() -> None:
    line = Timeline()
    assert line.second(5.0, complete=False).desired is None
    line.ready = 0
    assert line.second(0.0).desired == 0
    line.starting = 1
    found = line.second(5.0)
    assert (found.desired, found.cores, code(found)) == (1, UNSET, "starting")


# --- in the simulator -------------------------------------------------------------------------------------------------


def burst(policy: str) -> tuple[float, list[float]]:
    """(share of requests later than the target, mean cores after 30 s and in the last minute) of a load of 5/s
    that becomes 35/s after a minute, for four minutes."""
    of = Function(
        name="f",
        server=Server(kind=ServerKind.MODEL, target="/m.onnx"),
        concurrency=1,
        resources=Resources(threads=1),
        sla=Sla(latency_s=SLA_S),
        scaling=Scaling(policy=policy, parameters={"profile": PROFILE, "headroom": "1.2"}),
    )
    cpu = Accelerator(name="cpu", kind=AcceleratorKind.CPU, count=12, memory_bytes=1 << 34, cores=8)
    profile = {"cpu": fixed(0.1, parallel=1.0)}
    times = list(processes.poisson(lambda at_s: 5.0 if at_s < 60.0 else 35.0, 300.0, 35.0, random.Random(3)))
    scenario = Scenario(
        kinds=(DeviceKind(accelerator=cpu),),
        functions=(deployed(profile, of=of, ready={"cpu": 1}, start=ColdStart(load_s=6.0)),),
        arrivals=[Arrival(at) for at in times],
        resize_s=0.1,
    )
    _, sink = run(scenario)
    late = sum(each[5] != "answered" or each[2] - each[0][2] > SLA_S for each in sink.ended)

    def cores(begin: float, end: float) -> float:
        spans = ((min(end, each.end_s) - max(begin, each.start_s), each.cores) for each in sink.leases)
        return sum(max(0.0, span_s) * count for span_s, count in spans) / (end - begin)

    ready = next(each.ready for each in sink.seconds if each.at_s >= 295.0)
    return late / len(times), [cores(30.0, 60.0), cores(240.0, 300.0), float(ready)]


def test_a_burst_is_late_for_far_fewer_requests_than_with_replicas_alone_at_the_same_cores() -> None:
    (late, themis), (later, horizontal) = burst("themis"), burst("horizontal-only")
    assert late < 0.02 and later > 4.0 * late
    assert themis[1] <= 2.0 * horizontal[1]
    assert themis[2] > 1, "replicas of one core have taken over"


@pytest.mark.parametrize(("before", "seconds", "burst"), [(5.0, 4, 60.0), (10.0, 6, 35.0), (20.0, 3, 35.0)])
def test_no_replica_starts_for_a_burst_that_is_over(before: float, seconds: int, burst: float) -> None:
    """The load is the largest second of the last ten, so it stays for a while after a burst. Replicas that started then
    were cancelled a few seconds later."""
    line = Timeline()
    line.ready = max(1, int(before / 10.0))
    line.seconds(80, before)
    line.seconds(seconds, burst)
    assert {line.second(before).desired for _ in range(60)} == {line.ready}


def test_a_replica_that_starts_for_a_load_that_stays_does() -> None:
    line = Timeline()
    line.seconds(30, 5.0)
    assert line.seconds(25, 35.0).desired == 4


def test_replicas_that_have_become_ready_get_the_fewest_cores_not_those_of_the_burst() -> None:
    """One replica of four cores carries the burst; of the four that are there now two each are enough."""
    line = Timeline()
    line.seconds(30, 5.0)
    line.seconds(25, 35.0)
    assert (line.ready, line.cores) == (1, 4)
    line.ready = 4
    found = line.second(39.0)
    assert (found.desired, found.cores, code(found)) == (4, 2, "cores_fit"), "39/s, and more expected"


def test_cores_that_are_no_longer_needed_go_before_replicas_take_over() -> None:
    """Six cores for 60/s; two carry 12/s and its forecast, of one replica."""
    line = Timeline(stabilization="5s")
    line.seconds(30, 5.0)
    line.seconds(4, 60.0)
    assert line.cores == 6
    cores = [line.second(12.0).cores for _ in range(30)]
    assert cores[:10] == [6] * 10, "the largest second of the last ten still counts"
    assert set(cores) == {6, 2} and cores[-1] == 2 and line.ready == 1


@pytest.mark.parametrize("max_cores", [3, 4])
def test_cores_of_bursts_that_return_within_the_stabilization_stay(max_cores: int) -> None:
    """45/s for 2 s in every 16 s; the replica that is missing never becomes ready. The burst is the load for 9 s more;
    the five seconds until the next one are shorter than the stabilization."""
    line = Timeline(max_cores=max_cores, stabilization="10s")
    line.seconds(70, 8.0)
    cores = []
    for second in range(192):
        line.starting = (line.second(45.0 if second % 16 < 2 else 8.0).desired or 1) - 1
        cores.append(line.cores)
    assert set(cores) == {max_cores} and line.starting == 1


def test_cores_shrink_once_they_were_more_than_enough_for_the_stabilization() -> None:
    line = Timeline(max_cores=3, stabilization="10s")
    line.seconds(70, 8.0)
    line.seconds(2, 45.0)
    line.starting = 1
    cores = [line.second(8.0).cores for _ in range(40)]
    assert cores.index(2) == 19, "9 s with the burst in the window, then 10 s"
    assert cores[:19] == [3] * 19 and set(cores[19:]) <= {2, 1}


def test_the_load_is_the_largest_second_of_its_window() -> None:
    for window, load in (("1s", 5.0), ("5s", 8.0), ("60s", 9.0)):
        line = Timeline(ThemisMode.HORIZONTAL, 64, 8, **{"load-window": window})
        line.second(9.0)
        line.seconds(6, 5.0)
        line.second(8.0)
        line.seconds(2, 5.0)
        assert line.second(5.0).observed["load_rps"] == load
