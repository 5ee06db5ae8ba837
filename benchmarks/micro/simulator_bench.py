"""Requests that the simulator gets through per second of wall time, on one core, for one function.

Prints one JSON line for each load:

- ``free``: 70 % of what eight replicas with four slots can do; hardly a request waits;
- ``scaled``: the same under a policy that decides each second, over many more seconds;
- ``busy``: one replica with one slot at 70 %: two of three requests wait, and waiting is reported to the replica;
- ``full``: more than the replicas can do: every request waits in a full room.

``cpu_requests_per_s`` counts the processor time of this process: where others use the machine, it is the steadier one.

    python -m benchmarks.micro.simulator_bench [--requests N] [--load NAME] [--profile]
"""

import argparse
import cProfile
import json
import platform
import pstats
import random
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter, process_time

from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import Function, Revision, Scaling, Server, ServerKind
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.simulator.devices import DeviceKind
from tidegate.loadgen.simulator.profiles import Line, ServiceProfile
from tidegate.loadgen.simulator.result import Totals
from tidegate.loadgen.simulator.scenario import Deployed, Scenario
from tidegate.loadgen.simulator.simulation import Simulation

SERVICE_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    replicas: int
    slots: int
    share: float
    """Load as a share of the capacity."""
    is_scaled: bool = False

    @property
    def rate(self) -> float:
        """Arrivals per second."""
        return self.share * self.replicas * self.slots / SERVICE_S


LOADS = {
    "free": Load(replicas=8, slots=4, share=0.7),
    "scaled": Load(replicas=4, slots=4, share=0.4, is_scaled=True),
    "busy": Load(replicas=1, slots=1, share=0.7),
    "full": Load(replicas=8, slots=4, share=1.05),
}


def poisson(rate: float, count: int) -> Iterator[Arrival]:
    rng, at_s = random.Random(1), 0.0
    for _ in range(count):
        at_s += rng.expovariate(rate)
        yield Arrival(at_s)


def scenario(load: Load, requests: int) -> Scenario:
    accelerator = Accelerator(
        name="emulated", kind=AcceleratorKind.EMULATED, count=load.replicas, memory_bytes=0, price_per_hour=1.0
    )
    function = Function(
        name="f",
        server=Server(kind=ServerKind.MODEL, target="/model.onnx"),
        concurrency=load.slots,
        scaling=Scaling(min_scale=load.replicas),
    )
    deployed = Deployed(
        revision=Revision(function, 1),
        profiles={"emulated": ServiceProfile(times=Line(base_s=SERVICE_S))},
        ready={"emulated": load.replicas},
    )
    return Scenario(
        kinds=(DeviceKind(accelerator=accelerator),),
        functions=(deployed,),
        arrivals=poisson(load.rate, requests),
        keeps_scale=not load.is_scaled,
    )


def measure(name: str, requests: int) -> dict[str, object]:
    """One run of one load."""
    totals = Totals()
    simulation = Simulation(scenario(LOADS[name], requests), totals)
    began, used = perf_counter(), process_time()
    result = simulation.run()
    took_s, used_s = perf_counter() - began, process_time() - used
    if sum(totals.ends.values()) != requests or result.unended:
        raise RuntimeError(f"not every request ended: {totals.ends} of {requests}")
    return {
        "benchmark": "simulator",
        "load": name,
        "requests": requests,
        "requests_per_s": round(requests / took_s),
        "cpu_requests_per_s": round(requests / used_s),
        "simulated_s": round(result.simulated_s),
        "mean_wait_ms": round(1e3 * totals.queued_s / totals.answered, 3),
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", action="append", choices=LOADS, help="default: all")
    parser.add_argument("--requests", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3, help="the best one counts")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.load or LOADS:
        if arguments.profile:
            profile = cProfile.Profile()
            profile.runcall(measure, name, arguments.requests)
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)
            continue
        rows = [measure(name, arguments.requests) for _ in range(arguments.rounds)]
        print(json.dumps(max(rows, key=lambda row: float(str(row["requests_per_s"])))), flush=True)


if __name__ == "__main__":
    main()
