"""The whole: equal runs, waking from zero, scaling, what breaks, bounded memory."""

import random
import subprocess
import sys
from collections import Counter
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.loadgen.simulator.worlds import deployed, fixed, function, kind, latencies, poisson, run, scaling
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import QueueBounds, Resources, Routing, SizeRouting, Sla
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.simulator.devices import DeviceKind, Sharing
from tidegate.loadgen.simulator.profiles import ColdStart, Line, ServiceProfile
from tidegate.loadgen.simulator.result import Everything, Totals
from tidegate.loadgen.simulator.scenario import BrokenStarts, Callers, Crash, Scenario
from tidegate.loadgen.simulator.simulation import Simulation
from tidegate.records.codec import encode

START = ColdStart(schedule_s=0.1, pull_s=0.4, load_s=2.0, warm_s=0.5)


def busy_scenario(seed: int = 1) -> Scenario:
    """Scaling, two kinds, jitter, a crash: much that could come out differently."""
    of = function(scaling=scaling(max_scale=6), sla=Sla(latency_s=0.2))
    profiles = {"t4": fixed(0.05, jitter=0.2), "v100": fixed(0.03, jitter=0.2)}
    return Scenario(
        kinds=(kind(count=3), kind("v100", 3, 1.5)),
        functions=(deployed(profiles, of=of, ready={"t4": 1}, start=START),),
        seed=seed,
        arrivals=poisson(60.0, 3000, seed),
        failures=(Crash(at_s=20.0, function="f"),),
    )


def printed(scenario: Scenario) -> bytes:
    """All output of a run."""
    result, sink = run(scenario)
    return encode([result, sink.ended, sink.spans, sink.decisions, sink.leases, sink.seconds])


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert printed(busy_scenario()) == printed(busy_scenario())
    assert printed(busy_scenario()) != printed(busy_scenario(2))


def test_the_same_bytes_in_processes_that_hash_strings_differently() -> None:
    code = (
        "import hashlib; from tests.loadgen.simulator.test_simulation import printed, busy_scenario;"
        "print(hashlib.sha256(printed(busy_scenario())).hexdigest())"
    )
    root = Path(__file__).resolve().parents[3]
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=root,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_every_request_ends_once() -> None:
    result, sink = run(busy_scenario())
    numbers = [each[0][0] for each in sink.ended]
    assert sorted(numbers) == list(range(3000)) and result.requests == 3000 and not result.unended
    assert {each[5] for each in sink.ended} <= {"answered", "failed"}
    assert all(request[2] <= sent_at <= at for request, sent_at, at, _, _, _ in sink.ended)


def test_load_scales_out_and_back_and_the_log_says_why() -> None:
    _, sink = run(busy_scenario())
    assert max(each.ready for each in sink.seconds) >= 3
    assert {each.function for each in sink.decisions} == {"f"}
    assert all(each.reasons and each.digest for each in sink.decisions)
    assert all(before.at <= after.at for before, after in pairwise(sink.decisions))


def test_a_function_that_sleeps_wakes_and_loses_nothing() -> None:
    """Asleep, ten requests at once, asleep again after its time, and the same once more."""
    of = function(scaling=scaling(scale_to_zero_after_s=30.0, initial_scale=0))
    bursts = [Arrival(at_s) for at_s in (5.0, 200.0) for _ in range(10)]
    scenario = Scenario(
        kinds=(kind(),),
        functions=(deployed(fixed(0.01), of=of, ready={}, start=START),),
        arrivals=bursts,
    )
    result, sink = run(scenario, 400.0)
    assert [each[5] for each in sink.ended] == ["answered"] * 20
    assert result.cold_starts >= 2
    first = min(latencies(sink))
    assert START.total_s < first < START.total_s + 0.1
    ready = {each.at_s: each.ready for each in sink.seconds}
    assert ready[4.0] == 0 and ready[10.0] >= 1 and ready[190.0] == 0 and ready[210.0] >= 1 and ready[400.0] == 0
    woken = [each for each in sink.decisions if any(reason.code == "activation" for reason in each.reasons)]
    assert [round(each.at, 2) for each in woken] == [5.0, 200.0]
    # What was started is paid for from its creation to its end.
    assert len(sink.leases) == result.cold_starts
    assert all(lease.end_s > lease.start_s + START.total_s for lease in sink.leases)


def test_a_crash_is_made_good_and_requests_that_may_run_twice_are_not_lost() -> None:
    of = function(scaling=scaling(min_scale=2, max_scale=2), idempotent=True)
    scenario = Scenario(
        kinds=(kind(),),
        functions=(deployed(fixed(0.05), of=of, ready={"t4": 2}, start=START),),
        arrivals=poisson(30.0, 900),
        failures=(Crash(at_s=10.02, function="f"),),
    )
    _, sink = run(scenario)
    assert {each[5] for each in sink.ended} == {"answered"}
    ready = {each.at_s: each.ready for each in sink.seconds}
    assert ready[10.0] == 2 and ready[11.0] == 1 and ready[20.0] == 2


def test_starts_that_break_are_tried_again_after_the_back_off() -> None:
    of = function(scaling=scaling(initial_scale=0))
    scenario = Scenario(
        kinds=(kind(),),
        functions=(deployed(of=of, ready={}, start=START),),
        arrivals=[Arrival(1.0), Arrival(20.0)],
        failures=(BrokenStarts(at_s=0.0, function="f"),),
    )
    _, sink = run(scenario, 40.0)
    assert [each[5] for each in sink.ended] == ["start_failed", "answered"]


def test_replicas_become_ready_at_their_own_times() -> None:
    """Two functions wake 0.3 s apart; each serves when its own start is over."""
    of = [function(name, scaling=scaling(initial_scale=0)) for name in ("f", "g")]
    scenario = Scenario(
        kinds=(kind(),),
        functions=tuple(deployed(fixed(0.01), of=each, ready={}, start=START) for each in of),
        arrivals=[Arrival(5.2), Arrival(5.5, function="g")],
        message_s=0.0,
        turn_s=0.0,
    )
    _, sink = run(scenario)
    assert [(each[0][1], each[5]) for each in sink.ended] == [("f-00001", "answered"), ("g-00001", "answered")]
    assert latencies(sink) == pytest.approx([START.total_s + 0.01] * 2, abs=1e-6)
    assert [each.function for each in sink.seconds[:2]] == ["f", "g"]


def test_callers_that_are_refused_do_not_stop_the_time() -> None:
    scenario = Scenario(
        kinds=(kind(),),
        functions=(deployed(fixed(1.0), of=function(queue=QueueBounds(requests=1))),),
        callers=(Callers(function="f", callers=3, requests=300),),
        keeps_scale=True,
    )
    result, sink = run(scenario)
    ends = Counter(each[5] for each in sink.ended)
    assert result.requests == 300 and set(ends) == {"answered", "queue_full"} and sum(ends.values()) == 300


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rate=st.floats(5.0, 150.0),
    concurrency=st.integers(0, 3),
    is_idempotent=st.booleans(),
    crashes=st.lists(st.floats(0.0, 12.0), max_size=3),
    message_s=st.sampled_from([0.0, 0.0002, 0.05]),
    turn_s=st.sampled_from([0.0, 0.001]),
)
def test_nothing_is_lost_whatever_happens(
    seed: int,
    rate: float,
    concurrency: int,
    is_idempotent: bool,
    crashes: list[float],
    message_s: float,
    turn_s: float,
) -> None:
    """Every request ends once and in order of time; what runs at once on a replica stays within its slots."""
    of = function(
        concurrency=concurrency,
        idempotent=is_idempotent,
        scaling=scaling(max_scale=4, scale_to_zero_after_s=5.0),
        timeout_s=30.0,
    )
    scenario = Scenario(
        kinds=(kind(),),
        functions=(deployed(fixed(0.05, jitter=0.5, width=3), of=of, ready={}, start=START),),
        seed=seed,
        arrivals=poisson(rate, 300, seed),
        failures=tuple(Crash(at_s=at_s, function="f") for at_s in crashes),
        message_s=message_s,
        turn_s=turn_s,
    )
    result, sink = run(scenario)
    assert sorted(each[0][0] for each in sink.ended) == list(range(300)) and not result.unended
    assert all(request[2] <= sent_at <= at for request, sent_at, at, _, _, _ in sink.ended)
    assert all(before[2] <= after[2] for before, after in pairwise(sink.ended))
    if is_idempotent and not crashes:
        assert {each[5] for each in sink.ended} == {"answered"}
    steps: dict[str, list[tuple[float, int]]] = {}
    for _, sent_at, at, _, replica, end in sink.ended:
        if end == "answered":
            steps.setdefault(replica, []).extend([(sent_at, 1), (at, -1)])
    for changes in steps.values() if concurrency else ():
        running = list(accumulate(change for _, change in sorted(changes)))
        assert max(running) <= concurrency


def test_memory_is_flat_in_the_length_of_the_trace() -> None:
    """Nothing that the simulation holds grows with the requests that went through it."""

    def held(count: int) -> int:
        scenario = Scenario(kinds=(kind(),), functions=(deployed(),), arrivals=poisson(50.0, count), keeps_scale=True)
        simulation = Simulation(scenario, Totals())
        simulation.run()
        return sum(sized(simulation, set()).values())

    assert held(8000) <= held(2000) + 50


def sized(thing: object, seen: set[int]) -> Counter[str]:
    """Entries of all containers that can be reached from an object of ours, by kind of container."""
    found: Counter[str] = Counter()
    todo = [thing]
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, type | str | bytes):
            continue
        seen.add(id(each))
        if isinstance(each, dict):
            found["dict"] += len(each)
            todo += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            found[type(each).__name__] += len(each)
            todo += each
        else:
            todo += [getattr(each, name) for name in slots_of(each) if hasattr(each, name)]
            todo += vars(each).values() if hasattr(each, "__dict__") else ()
    return found


def slots_of(thing: object) -> list[str]:
    names: list[str] = []
    for base in type(thing).__mro__:
        own = base.__dict__.get("__slots__", ())
        names += [own] if isinstance(own, str) else list(own)
    return [name for name in names if not name.startswith("__")]


def test_the_hop_holds_the_slot() -> None:
    scenario = Scenario(
        kinds=(kind(),),
        functions=(deployed(fixed(0.01)),),
        callers=(Callers(function="f", callers=1, requests=100),),
        hop_s=0.002,
        keeps_scale=True,
    )
    _, sink = run(scenario)
    assert latencies(sink)[1:] == pytest.approx([0.012] * 99)


@pytest.mark.parametrize("sharing", [Sharing.EXCLUSIVE, Sharing.TIME_MULTIPLEXED])
def test_the_first_execution_of_a_replica_is_longer_and_alone(sharing: Sharing) -> None:
    """Three requests at once: two wait inside the model server for the first one, then all that is there runs."""
    scenario = Scenario(
        kinds=(kind(count=1, sharing=sharing),),
        functions=(deployed(fixed(0.1, first_s=2.0), of=function(concurrency=0)),),
        callers=(Callers(function="f", callers=3, requests=3, start_s=1.0),),
        keeps_scale=True,
    )
    _, sink = run(scenario)
    later = 2.1 if sharing is Sharing.EXCLUSIVE else 2.2
    assert latencies(sink) == pytest.approx([2.0, later, later], abs=1e-3)
    assert sum(until - since for _, _, since, until in sink.spans) == pytest.approx(later)


def test_other_cores_come_after_their_time() -> None:
    cpu = Accelerator(name="cpu", kind=AcceleratorKind.CPU, count=1, memory_bytes=0, cores=4)
    scenario = Scenario(
        kinds=(DeviceKind(accelerator=cpu),),
        functions=(
            deployed({"cpu": fixed(0.1, parallel=1.0)}, of=function(resources=Resources(threads=1)), ready={"cpu": 1}),
        ),
        callers=(Callers(function="f", callers=1),),
        resize_s=1.5,
        keeps_scale=True,
    )
    sink = Everything()
    simulation = Simulation(scenario, sink)
    simulation.kernel.at(1.01, lambda now, name: simulation.fleet.resize(name, 4), "f-00001-cpu-0")
    simulation.run(5.0)
    took = {round(at - sent_at, 6) for _, sent_at, at, _, _, _ in sink.ended}
    assert took == {0.1, 0.025}
    (first,) = [sent_at for _, sent_at, at, _, _, _ in sink.ended if at - sent_at < 0.05][:1]
    assert 2.51 <= first < 2.62
    assert [(each.cores, each.start_s, each.end_s) for each in sink.leases] == [(1, 0.0, 2.51), (4, 2.51, 5.0)]


def test_the_sink_is_reported_when_a_replica_was_asked_for_and_when_it_was_ready() -> None:
    scenario = Scenario(kinds=(kind(),), functions=(deployed(ready={}, start=START),), arrivals=[Arrival(5.0)])
    _, sink = run(scenario)
    (start,), (lease, *_) = sink.starts, sink.leases
    assert start.ready_s - start.asked_s == pytest.approx(START.total_s)
    assert (lease.start_s, lease.function, lease.unit) == (start.asked_s, "f", 0)
    ((_, _, _, _, replica, _),) = sink.ended
    assert replica == start.replica


def test_what_a_replica_that_dies_was_running_fails() -> None:
    scenario = Scenario(
        kinds=(kind(),),
        functions=(deployed(fixed(1.0, width=1), of=function(concurrency=2)),),
        arrivals=[Arrival(0.0), Arrival(0.0), Arrival(0.0)],
        failures=(Crash(at_s=0.5, function="f"),),
    )
    _, sink = run(scenario)
    # One runs, one waits inside the model server: neither may be sent again. The third had not been sent.
    assert [(each[0][0], each[5]) for each in sink.ended] == [(0, "failed"), (1, "failed"), (2, "answered")]
    assert sum(until - since for _, _, since, until in sink.spans) == pytest.approx(1.5, abs=0.01)


@pytest.mark.parametrize(
    ("sharing", "limits"),
    [
        (Sharing.TIME_MULTIPLEXED, [4, 3, 2, 1]),  # Executions take turns: one slot yields as much as four.
        (Sharing.EXCLUSIVE, [4, 3, 4]),  # Each slot works at full speed: three were tried once, in vain.
    ],
)
def test_limits_are_learnt_where_the_function_says_auto(sharing: Sharing, limits: list[int]) -> None:
    scenario = Scenario(
        kinds=(kind(count=1, sharing=sharing),),
        functions=(deployed(fixed(0.05), of=function(concurrency=None)),),
        callers=(Callers(function="f", callers=12),),
        keeps_scale=True,
    )
    _, sink = run(scenario, 180.0)
    running: list[int] = []
    for second in range(10, 180):
        at_s = second + 0.5
        here = sum(sent_at <= at_s < ended_at for _, sent_at, ended_at, _, _, _ in sink.ended)
        if not running or running[-1] != here:
            running.append(here)
    assert running == limits


def test_what_does_not_fit_is_reported_all_at_once() -> None:
    with pytest.raises(ValueError, match="f has no profile for t4; no function 'g' is deployed; hop_s"):
        Scenario(
            kinds=(kind(),),
            functions=(deployed({"v100": fixed(0.01)}, ready={}),),
            callers=(Callers(function="g", callers=1),),
            hop_s=-1.0,
        )
    with pytest.raises(ValueError, match="is exclusive"):
        kind(sharing=Sharing.EXCLUSIVE, gain={2: 1.5})


@pytest.mark.parametrize(
    ("arrivals", "message"),
    [
        ([Arrival(2.0), Arrival(1.0)], "arrival 2 is at 1.0 s, after one at 2.0 s"),
        ([Arrival(float("nan"))], "arrival 1 is at nan s"),
        ([Arrival(0.0, function="g")], "'g', which is not deployed"),
        ([Arrival(0.0, inferences=0)], "arrival 1 has 0 inferences"),
    ],
)
def test_bad_arrivals_are_refused(arrivals: list[Arrival], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(Scenario(kinds=(kind(),), functions=(deployed(),), arrivals=arrivals))


def test_callers_without_an_end_need_a_duration() -> None:
    scenario = Scenario(kinds=(kind(),), functions=(deployed(),), callers=(Callers(function="f", callers=1),))
    with pytest.raises(ValueError, match="need a duration"):
        run(scenario)


def test_a_request_takes_the_place_of_an_idle_replica_of_another_function() -> None:
    quiet = scaling(scale_to_zero_after_s=600.0, initial_scale=0)
    functions = tuple(
        deployed(of=function(name, scaling=quiet), ready={"t4": 1} if name != "c" else {}, start=START)
        for name in ("a", "b", "c")
    )
    calls = (Arrival(20.0, function="a"), Arrival(30.0, function="c"))
    _, sink = run(Scenario(kinds=(kind(count=2),), functions=functions, seed=1, arrivals=iter(calls)))
    ended = {request[1]: (end, at - request[2]) for request, _, at, _, _, end in sink.ended}
    (end, took_s) = next(each for name, each in ended.items() if "c" in str(name))
    assert end == "answered" and took_s < 6.0, "it waits for the start, not for an idle window"
    given = [each.function for each in sink.decisions if any(why.code == "place_given_up" for why in each.reasons)]
    assert set(given) == {"b"}, "a was used"


def served_large(routing: SizeRouting) -> tuple[int, int]:
    """Batches of 32 that each accelerator served in the second of two minutes: the one that is good at single
    inferences, and the one that is good at batches."""
    rng, arrivals, at_s = random.Random(3), [], 0.0
    while at_s < 120.0:
        at_s += rng.expovariate(30.0)
        arrivals.append(Arrival(at_s, 32 if rng.random() < 0.25 else 1))
    profiles = {
        "weak": ServiceProfile(times=Line(base_s=0.004, per_item_s=0.008)),
        "strong": ServiceProfile(times=Line(base_s=0.020, per_item_s=0.001)),
    }
    of = function(routing=Routing(size_routing=routing))
    scenario = Scenario(
        kinds=(kind("weak", price=0.5), kind("strong", price=3.0)),
        functions=(deployed(profiles, of=of, ready={"weak": 1, "strong": 1}),),
        arrivals=arrivals,
        keeps_scale=True,
    )
    _, sink = run(scenario)
    late = [each for each in sink.ended if each[5] == "answered" and each[0][3] == 32 and each[0][2] > 60.0]
    return sum(each[3] == "weak" for each in late), sum(each[3] == "strong" for each in late)


def test_sizes_are_cut_as_they_are_live() -> None:
    weak, strong = served_large(SizeRouting.AUTO)
    assert strong > 300
    assert weak == 0, "large requests go where they cost little"
    assert served_large(SizeRouting.OFF)[0] > 50


# --- batches


def test_a_server_that_joins_runs_what_waits_as_one_batch_and_waits_for_none() -> None:
    """One alone takes 1.5 s; the four that come meanwhile run as a batch of three (0.5 s each, 1 s base), then one."""
    profile = ServiceProfile(times=Line(base_s=1.0, per_item_s=0.5), width=1, joins=3)
    arrivals = [Arrival(1.0 + 0.1 * at) for at in range(5)]
    scenario = Scenario(
        kinds=(kind(),), functions=(deployed(profile, of=function(concurrency=8)),), arrivals=arrivals, keeps_scale=True
    )
    _, sink = run(scenario)
    ends = [each[2] for each in sink.ended]
    assert ends == pytest.approx([2.5, 5.0, 5.0, 5.0, 6.5], abs=0.01)


def test_a_batch_goes_on_without_the_one_whose_deadline_has_passed() -> None:
    profile = ServiceProfile(times=Line(base_s=1.0, per_item_s=0.5), width=1, joins=3)
    of = function(concurrency=8, timeout_s=3.5)
    arrivals = [Arrival(at_s) for at_s in (1.0, 1.1, 2.0)]
    scenario = Scenario(kinds=(kind(),), functions=(deployed(profile, of=of),), arrivals=arrivals, keeps_scale=True)
    _, sink = run(scenario)
    assert [(round(each[2], 1), each[5]) for each in sink.ended] == [
        (2.5, "answered"),
        (4.5, "answered"),
        (4.5, "answered"),
    ]
    late = [Arrival(at_s) for at_s in (1.0, 1.1, 2.4, 2.45)]
    _, sink = run(Scenario(kinds=(kind(),), functions=(deployed(profile, of=of),), arrivals=late, keeps_scale=True))
    found = [(round(each[2], 1), each[5]) for each in sink.ended]
    assert found == [(2.5, "answered"), (4.6, "deadline_exceeded"), (5.0, "answered"), (5.0, "answered")]


@pytest.mark.parametrize("gap_s", [0.2, 0.05, 0.036])
def test_free_replicas_take_turns_and_run_one_batch_each(gap_s: float) -> None:
    """Three replicas of 100 ms a batch, from few requests to 93 % of what they can do (F78)."""
    arrivals = [Arrival(1.0 + gap_s * at) for at in range(300)]
    profile = fixed(0.1, width=1, joins=4)
    scenario = Scenario(
        kinds=(kind(count=3),),
        functions=(deployed(profile, of=function(concurrency=4), ready={"t4": 3}),),
        arrivals=arrivals,
        keeps_scale=True,
    )
    _, sink = run(scenario)
    in_turns = [each[4] for each in sorted(sink.ended, key=lambda each: each[1])]
    assert all(set(in_turns[at : at + 3]) == set(in_turns[:3]) for at in range(0, 300, 3)) and len(set(in_turns)) == 3
    assert max(each[2] - each[0][2] for each in sink.ended) < 0.101, "none waits behind another one"
