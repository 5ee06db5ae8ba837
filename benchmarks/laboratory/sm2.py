"""SMIF, figure 5, live: twelve callers with batches of 16 and of 128, under requests in flight and under the SLA.

Both policies run at once on emulated devices of their own with the service times of the paper's table 1; the simulated
figures are those of the experiment ``sm2``, at the same length.
"""

from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

from benchmarks.autoscaling.lab import Kind, Lab, lab
from benchmarks.autoscaling.timeline import Run, throughput_ips
from benchmarks.laboratory.rows import Row
from benchmarks.laboratory.setup import Setup, lost
from benchmarks.laboratory.twin import measured_start_s
from tidegate.loadgen.clients.bodies import v2_body
from tidegate.loadgen.clients.call import Request
from tidegate.loadgen.clients.workers import callers
from tidegate.loadgen.experiments.definition import catalogue
from tidegate.loadgen.experiments.registry import known
from tidegate.loadgen.experiments.setups.smif.batches import Scaled, scaled
from tidegate.schema.yaml_nodes import Faults

NAME = "sm2"
POLICIES = ("kpa", "smif")
BATCHES = (16, 128)
LEAST_GAIN = {16: 1.0, 128: 1.5}


def run(setup: Setup) -> Iterator[Row]:
    parameters = replace(_parameters(), duration_s=setup.long(60.0, 6.0), window_s=setup.long(25.0, 3.0))
    kinds = [
        Kind(
            name=policy,
            base_s=parameters.base_s,
            per_item_s=parameters.per_item_s,
            jitter=parameters.jitter,
            count=parameters.max_scale,
            start_up_s=parameters.start_s,
        )
        for policy in POLICIES
    ]
    replicas: dict[int, float] = {}
    with lab(kinds) as world:
        for batch in BATCHES[: 1 if setup.smoke else None]:
            found = _live(world, parameters, batch)
            replicas[batch] = _replicas(found["kpa"], parameters)
            yield from _rows(setup, parameters, batch, found)
    apart = max(replicas.values()) - min(replicas.values())
    yield Row(experiment=NAME, case="kpa", measure="replicas_apart", live=apart, simulated=0.0, most=0.0)


def _parameters() -> Scaled:
    experiment, faults = catalogue()[NAME], Faults(NAME)
    found = known()[experiment.setup].read(experiment.parameters, faults)
    faults.raise_any()
    assert isinstance(found, Scaled)
    return found


def _live(world: Lab, parameters: Scaled, batch: int) -> dict[str, Run]:
    target_s = parameters.sla_factor * parameters.profile.nominal(batch)
    request = Request(v2_body(batch), batch)
    for policy in POLICIES:
        annotations = {
            "policy": policy,
            "latency": f"{1e3 * target_s:.3f}ms",
            "concurrency": 0,
            "min-scale": 1,
            "max-scale": parameters.max_scale,
        }
        world.deploy(f"{policy}-{batch}", on=[policy], annotations=annotations)
    found = world.run(
        parameters.duration_s,
        {
            f"{policy}-{batch}": lambda load: load.closed_loop(
                callers(parameters.callers, parameters.duration_s), lambda: request
            )
            for policy in POLICIES
        },
    )
    *others, last = found
    for name in others:
        world.client.delete(name)
    world.delete(last)
    return {policy: found[f"{policy}-{batch}"] for policy in POLICIES}


def _replicas(found: Run, parameters: Scaled) -> float:
    """Mean of those that were ready in the time that is measured."""
    since = parameters.duration_s - parameters.window_s
    return fmean(look.replicas for look in found.looks if look.at_s > since)


def _rows(setup: Setup, parameters: Scaled, batch: int, live: dict[str, Run]) -> Iterator[Row]:
    since = parameters.duration_s - parameters.window_s
    start_s = measured_start_s(list(live.values()), parameters.start_s)
    rates: dict[str, tuple[float, float]] = {}
    for policy, found in live.items():
        case = f"{policy}, batch {batch}"
        simulated = scaled(replace(parameters, start_s=start_s), policy, batch, setup.seed)
        done = sum(each[2] > since and each[5] == "answered" for each in simulated.ended)
        rates[policy] = (
            throughput_ips(found.outcomes, since, parameters.duration_s),
            done * batch / parameters.window_s,
        )
        yield lost(NAME, case, found)
        yield Row(
            experiment=NAME,
            case=case,
            measure="replicas",
            live=_replicas(found, parameters),
            simulated=fmean(each.ready for each in simulated.seconds if each.at_s > since),
        )
        real, virtual = rates[policy]
        yield Row(experiment=NAME, case=case, measure="throughput_ips", live=real, simulated=virtual)
    (kpa, kpa_virtual), (smif, smif_virtual) = rates["kpa"], rates["smif"]
    yield Row(
        experiment=NAME,
        case=f"smif over kpa, batch {batch}",
        measure="throughput_gain",
        live=smif / kpa if kpa else None,
        simulated=smif_virtual / kpa_virtual if kpa_virtual else None,
        least=LEAST_GAIN[batch],
        is_judged=not setup.smoke,
    )
