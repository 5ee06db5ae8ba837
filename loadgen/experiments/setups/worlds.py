"""Small scenarios shared by experiments and the simulator's tests."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import Function, Revision, Scaling, Server, ServerKind
from tidegate.loadgen.arrivals import processes as arrivals
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.simulator.devices import DeviceKind
from tidegate.loadgen.simulator.profiles import ColdStart, Line, ServiceProfile
from tidegate.loadgen.simulator.result import Everything, SimulationResult
from tidegate.loadgen.simulator.scenario import Deployed, Scenario
from tidegate.loadgen.simulator.simulation import Simulation


def kind(name: str = "t4", count: int = 4, price: float = 0.5, **rules: Any) -> DeviceKind:
    """Returns a kind with ``count`` devices with MPS, at ``price`` dollars an hour each; ``rules``: fields of
    :class:`Kind`."""
    accelerator = Accelerator(
        name=name, kind=AcceleratorKind.NVIDIA, count=count, memory_bytes=16_000_000_000, price_per_hour=price, mps=True
    )
    return DeviceKind(accelerator=accelerator, **rules)


def function(name: str = "f", concurrency: int | None = 1, **settings: Any) -> Function:
    return Function(
        name=name, server=Server(kind=ServerKind.MODEL, target="/m.onnx"), concurrency=concurrency, **settings
    )


def scaling(policy: str = "kpa", **bounds: Any) -> Scaling:
    return Scaling(policy=policy, **bounds)


def fixed(seconds: float, **rules: Any) -> ServiceProfile:
    """Returns a profile with the same time for any batch."""
    return ServiceProfile(times=Line(base_s=seconds), **rules)


def deployed(
    profile: ServiceProfile | Mapping[str, ServiceProfile] | None = None,
    *,
    of: Function | None = None,
    ready: Mapping[str, int] | None = None,
    start: ColdStart | None = None,
) -> Deployed:
    """Returns a function with its profile by accelerator; a single profile is that of ``t4``, where one replica is
    ready."""
    chosen = fixed(0.01) if profile is None else profile
    profiles = {"t4": chosen} if isinstance(chosen, ServiceProfile) else chosen
    return Deployed(
        revision=Revision(of or function(), 1),
        profiles=profiles,
        ready={"t4": 1} if ready is None else ready,
        cold_starts={} if start is None else dict.fromkeys(profiles, start),
    )


def poisson(rate: float, duration_s: float, seed: int) -> Iterator[Arrival]:
    """Yields requests of one inference at ``rate`` per second for ``duration_s``."""
    return (Arrival(at_s) for at_s in arrivals.poisson(lambda _: rate, duration_s, rate, random.Random(seed)))


def run(scenario: Scenario, duration_s: float | None = None) -> tuple[SimulationResult, Everything]:
    sink = Everything()
    return Simulation(scenario, sink).run(duration_s), sink


def latencies(sink: Everything) -> list[float]:
    """Returns the latencies of answered requests, in order of their ends."""
    return [at - request[2] for request, _, at, _, _, end in sink.ended if end == "answered"]
