"""The summary of a run against a plain count over everything that the run reported."""

import math
from collections.abc import Mapping

import pytest

from tests.golden.hetsev_levels import violations
from tests.loadgen.simulator.worlds import deployed, fixed, function, kind, poisson, scaling
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import GpuNeeds, QueueBounds, Resources, Sla
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.metrics.summary import RunSummary
from tidegate.loadgen.metrics.usage import variation
from tidegate.loadgen.simulator.devices import DeviceKind, Sharing
from tidegate.loadgen.simulator.lease import Lease
from tidegate.loadgen.simulator.profiles import ColdStart
from tidegate.loadgen.simulator.result import Everything, FunctionSecond, SimulationResult, Start
from tidegate.loadgen.simulator.scenario import Callers, Crash, Scenario
from tidegate.loadgen.simulator.simulation import Simulation

START = ColdStart(load_s=2.0, warm_s=0.5)
GPU = Accelerator(
    name="a100",
    kind=AcceleratorKind.NVIDIA,
    count=3,
    memory_bytes=40_000_000_000,
    price_per_hour=1.2,
    tdp_w=250.0,
    mps=True,
)


def summed(scenario: Scenario, duration_s: float | None = None) -> tuple[Mapping[str, float], SimulationResult]:
    summary = RunSummary(scenario)
    result = Simulation(scenario, summary).run(duration_s)
    return summary.figures(result), result


def scaled(seed: int = 1) -> Scenario:
    """Two kinds, starts, a crash, an SLA that is sometimes broken."""
    of = function(scaling=scaling(max_scale=6), sla=Sla(latency_s=0.2))
    profiles = {"t4": fixed(0.05, jitter=0.2), "v100": fixed(0.03, jitter=0.2)}
    return Scenario(
        kinds=(kind(count=3), kind("v100", 3, 1.5)),
        functions=(deployed(profiles, of=of, ready={"t4": 1}, start=START),),
        arrivals=poisson(60.0, 2000, seed),
        failures=(Crash(at_s=20.0, function="f"),),
        seed=seed,
    )


def quantile(values: list[float], q: float) -> float:
    return sorted(values)[math.ceil(q * len(values)) - 1]


def test_figures_are_those_of_a_plain_count() -> None:
    found, result = summed(scaled())
    everything = Everything()
    Simulation(scaled(), everything).run()
    answered = [each for each in everything.ended if each[5] == "answered"]
    latencies = [at - request[2] for request, _, at, *_ in answered]
    queues = [sent_s - request[2] for request, sent_s, *_ in answered]
    assert found["requests"] == len(everything.ended) == 2000
    assert found["failures"] == found.get("failures.failed", 0) == 2000 - len(answered)
    assert found["duration_s"] == result.simulated_s
    for percent in (50, 90, 95, 98, 99):
        assert found[f"p{percent}_s"] == pytest.approx(quantile(latencies, percent / 100), rel=0.004)
    assert found["max_latency_s"] == max(latencies)
    assert found["mean_queue_s"] == pytest.approx(sum(queues) / len(queues))
    assert found["mean_latency_s"] == pytest.approx(found["mean_queue_s"] + found["mean_execution_s"])
    shares = violations(
        [
            (request[2], at - request[2] if end == "answered" else None)
            for request, _, at, _, _, end in everything.ended
        ],
        0.2,
    )
    assert found["slot_violations_share"] == pytest.approx(sum(each for _, each in shares) / len(shares))
    assert found["worst_slot_violations_share"] == max(each for _, each in shares)
    late = sum(each > 0.2 for each in latencies) + found["failures"]
    assert found["violations_share"] == pytest.approx(late / 2000)


def test_devices_are_paid_while_somebody_holds_them() -> None:
    found, _ = summed(scaled())
    everything = Everything()
    Simulation(scaled(), everything).run()
    for name, price in (("t4", 0.5), ("v100", 1.5)):
        held_s = sum(each.end_s - each.start_s for each in everything.leases if each.accelerator == name)
        busy_s = sum(until - since for accelerator, _, since, until in everything.spans if accelerator == name)
        assert found[f"replica_seconds.{name}"] == pytest.approx(held_s)
        assert found[f"cost_dollars.{name}"] == pytest.approx(held_s * price / 3600)
        assert found[f"utilisation_percent.{name}"] == pytest.approx(100 * busy_s / held_s)
        assert found[f"activity_percent.{name}"] == pytest.approx(100 * busy_s / (3 * found["duration_s"]))
    assert found["cost_dollars"] == pytest.approx(found["cost_dollars.t4"] + found["cost_dollars.v100"])
    assert found["inferences_per_dollar"] == pytest.approx(found["inferences"] / found["cost_dollars"])
    units = [found.get(f"activity_percent.{name}.{unit}", 0.0) for name in ("t4", "v100") for unit in range(3)]
    assert found["activity_variation"] == pytest.approx(variation(units))


def test_what_the_scenario_does_not_tell_is_absent_and_not_zero() -> None:
    scenario = Scenario(
        kinds=(kind(price=0.0),), functions=(deployed(of=function(concurrency=0)),), arrivals=[Arrival(0.5)]
    )
    found, _ = summed(scenario)
    for missing in ("cost_dollars", "memory_cost_dollars", "inferences_per_dollar", "mean_watts", "energy_joules"):
        assert missing not in found
    assert "violations_share" not in found and "core_seconds" not in found
    assert "workload_tau_percent" not in found and found["wanted_tau_percent"] == 0.0


def test_an_empty_run_has_no_times_and_no_division_by_zero() -> None:
    found, _ = summed(Scenario(kinds=(kind(),), functions=(deployed(),)), 3.0)
    assert found["requests"] == found["failures"] == 0 and "p99_s" not in found and "violations_share" not in found


def test_who_waited_through_a_start_and_how_long() -> None:
    scenario = Scenario(
        kinds=(kind(),),
        functions=(deployed(fixed(0.1), ready={}, start=START),),
        arrivals=[Arrival(1.0), Arrival(2.0), Arrival(10.0)],
    )
    found, result = summed(scenario)
    assert result.cold_starts == found["cold_starts"] >= 1
    assert found["cold_start_requests"] == 2
    assert found["max_cold_start_wait_s"] == pytest.approx(2.5, abs=0.05)
    assert found["mean_cold_start_wait_s"] == pytest.approx(2.0, abs=0.05)


def test_refusals_are_counted_by_their_code_and_break_the_sla() -> None:
    of = function(sla=Sla(latency_s=10.0), queue=QueueBounds(requests=1))
    scenario = Scenario(
        kinds=(kind(),),
        functions=(deployed(fixed(1.0), of=of),),
        arrivals=[Arrival(0.5 + 0.01 * each) for each in range(5)],
        keeps_scale=True,
    )
    found, _ = summed(scenario)
    assert found["answered"] == 2 and found["failures.queue_full"] == found["failures"] == 3
    assert found["violations_share"] == 0.6


def test_power_is_of_all_devices_and_activity_of_each() -> None:
    of = function(gpu=GpuNeeds(memory_gb=10.0))
    scenario = Scenario(
        kinds=(DeviceKind(accelerator=GPU),),
        functions=(deployed({"a100": fixed(1.0)}, of=of, ready={"a100": 1}),),
        callers=(Callers(function="f", callers=1, requests=5),),
        keeps_scale=True,
    )
    found, _ = summed(scenario, 10.0)
    assert found["activity_percent.a100.0"] == found["utilisation_percent.a100.0"] == pytest.approx(50.0, abs=0.1)
    assert "activity_percent.a100.1" not in found
    assert found["mean_watts"] == pytest.approx(60 + 95 + 60 + 60, abs=0.3)
    assert found["most_watts"] == pytest.approx(250 + 60 + 60, abs=0.2)
    assert found["energy_joules"] == pytest.approx(10 * found["mean_watts"])
    assert found["cost_dollars"] == pytest.approx(1.2 * 10 / 3600)
    assert found["memory_cost_dollars"] == pytest.approx(1.2 * 10 / 3600 / 4)


def test_a_shared_device_is_paid_once() -> None:
    of = function(gpu=GpuNeeds(memory_gb=10.0, mps=True, core_percentage=50))
    scenario = Scenario(
        kinds=(DeviceKind(accelerator=GPU, sharing=Sharing.MPS),),
        functions=(deployed({"a100": fixed(1.0)}, of=of, ready={"a100": 2}),),
        keeps_scale=True,
    )
    found, _ = summed(scenario, 10.0)
    assert found["replica_seconds"] == pytest.approx(20.0)
    assert found["cost_dollars"] == pytest.approx(1.2 * 10 / 3600)
    assert found["memory_cost_dollars"] == pytest.approx(1.2 * 20 / 3600 / 4)


def test_core_seconds_follow_a_replica_that_gets_other_cores() -> None:
    cpu = Accelerator(name="cpu", kind=AcceleratorKind.CPU, count=1, memory_bytes=0, cores=4)
    scenario = Scenario(
        kinds=(DeviceKind(accelerator=cpu),),
        functions=(deployed({"cpu": fixed(0.1)}, of=function(resources=Resources(threads=1)), ready={"cpu": 1}),),
        keeps_scale=True,
    )
    summary = RunSummary(scenario)
    simulation = Simulation(scenario, summary)
    simulation.kernel.at(4.0, lambda now, name: simulation.fleet.resize(name, 3), "f-00001-cpu-0")
    result = simulation.run(10.0)
    assert summary.figures(result)["core_seconds"] == pytest.approx(4.0 + 6.0 * 3.0)


def test_elasticity_by_what_was_wanted_and_by_what_the_load_needs() -> None:
    """Two replicas all the time where the load needs one: the first demand cannot see it."""
    scenario = Scenario(
        kinds=(kind(),),
        functions=(deployed(fixed(0.1), ready={"t4": 2}),),
        callers=(Callers(function="f", callers=1, rate=5.0, requests=145),),
        keeps_scale=True,
    )
    found, _ = summed(scenario, 30.0)
    assert found["wanted_tau_percent"] == found["wanted_theta_percent"] == 0.0
    assert found["workload_tau_over_percent"] == pytest.approx(100.0)
    assert found["workload_theta_over_percent"] == pytest.approx(100.0)
    assert found["workload_tau_under_percent"] == 0.0


def test_several_functions_are_distinguished_and_together() -> None:
    scenario = Scenario(
        kinds=(kind(count=2),),
        functions=(
            deployed(fixed(0.1), of=function("one", sla=Sla(latency_s=0.05))),
            deployed(fixed(0.1), of=function("two", sla=Sla(latency_s=0.5))),
        ),
        arrivals=[Arrival(1.0, function="one"), Arrival(2.0, function="two"), Arrival(3.0, function="two")],
        keeps_scale=True,
    )
    summary = RunSummary(scenario)
    result = Simulation(scenario, summary).run()
    assert summary.figures(result)["violations_share"] == pytest.approx(1 / 3)
    assert summary.of_function("one", result)["violations_share"] == 1.0
    assert summary.of_function("two", result)["violations_share"] == 0.0
    assert summary.of_function("two", result)["requests"] == 2


def size_after(hours: int) -> int:
    """Objects that a summary holds after a load of one request in ten seconds, each on a replica of its own."""
    scenario = Scenario(
        kinds=(kind(),), functions=(deployed(of=function(timeout_s=10.0, sla=Sla(latency_s=1.0)), ready={}),)
    )
    (revision,) = [each.revision.id for each in scenario.functions]
    summary = RunSummary(scenario)
    for at_s in range(0, 3600 * hours, 10):
        name = f"replica-{at_s}"
        summary.start(Start(name, "f", "t4", at_s, at_s + 0.5))
        summary.busy([("t4", 0, at_s + 0.5, at_s + 0.75)])
        summary.requests(
            [((at_s, revision, float(at_s), 1, None, 0, 0), at_s + 0.5, at_s + 0.75, "t4", name, "answered")]
        )
        summary.lease(Lease(accelerator="t4", used_gb=1.0, start_s=at_s, end_s=at_s + 1.0, function="f"))
        summary.second(FunctionSecond(at_s + 1.0, "f", wanted=0, ready=0, starting=0, draining=0, waiting=0))
    held = kept(summary)
    assert summary.figures()["cold_start_requests"] == 360 * hours
    return held


def kept(thing: object) -> int:
    """How many objects are reached from it, without those of its scenario."""
    found, todo, seen = 0, [thing], set()
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        found += 1
        if isinstance(each, Mapping):
            todo += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple):
            todo += each
        slots = [name for base in type(each).__mro__ for name in getattr(base, "__slots__", ())]
        todo += [getattr(each, name) for name in slots if hasattr(each, name)]
        todo += vars(each).values() if hasattr(each, "__dict__") and not isinstance(each, type) else ()
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_run_gives_the_same_figures(seed: int) -> None:
    assert summed(scaled(seed)) == summed(scaled(seed))


def test_memory_does_not_grow_with_the_trace() -> None:
    assert size_after(6) == pytest.approx(size_after(3), rel=0.05)
