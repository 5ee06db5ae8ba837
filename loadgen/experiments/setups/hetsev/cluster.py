"""HetSev's testbed in the simulator: V100 and T4, four models, and both systems that the paper compares.

One request is one batch. A replica serves at its profiled throughput and latency: it runs as many requests side by side
as both together say. On a device with another tenant each request is slowed by the interference of the pair, as far as
the other one is at work. HetSev's replicas have half a device (at most two tenants) and 4 GB; those of the baseline
have a whole device.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from tidegate.autoscaler.profiles.admission import KnownFigures, Source
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.deploy.placement.strategies import WORST_FIT, StrategyRow
from tidegate.function import DnnModel, GpuNeeds, Scaling, Sla
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.arrivals.changes import Placement
from tidegate.loadgen.arrivals.shapes import Load, times
from tidegate.loadgen.experiments.setups.worlds import deployed, fixed, function, run
from tidegate.loadgen.experiments.tables import Count, NotNegative, Positive, Share, Some, Word
from tidegate.loadgen.metrics.cost import Accounting, memory_cost
from tidegate.loadgen.simulator.devices import DeviceKind, Sharing
from tidegate.loadgen.simulator.lease import Lease
from tidegate.loadgen.simulator.profiles import ColdStart
from tidegate.loadgen.simulator.result import Everything
from tidegate.loadgen.simulator.scenario import Callers, Deployed, Scenario

HALF = 50
"""Percent of a device that a replica of HetSev has: the paper's two models and anti-affinity allow two tenants."""
GB = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    name: Word
    count: Count
    memory_gb: Positive
    price_per_gb: Positive
    """Per gigabyte and unit of time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    name: Word
    rt_max_s: Positive
    """Largest response time that meets the SLO."""
    throughput: dict[str, Positive]
    """Requests per second of one replica, by kind."""
    peak_rps: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Testbed:
    gpus: Some[Gpu]
    models: Some[Model]
    latency_share: dict[str, Positive]
    """Latency of a request on each kind, as a part of the model's largest response time."""
    footprint_gb: Positive
    interference: NotNegative
    """Slow-down by a co-tenant of another model that is fully at work: 0.09 is 9 %."""
    equal_interference: NotNegative = 0.0
    """The same by a co-tenant of the same model, where a strategy lets them share."""
    launch_s: NotNegative
    jitter: Share
    settings: dict[str, str]
    """Parameters of HetSev's policy (``policy.NAME``)."""
    baseline_settings: dict[str, str]

    def __post_init__(self) -> None:
        kinds = {each.name for each in self.gpus}
        if any(each.throughput.keys() != kinds for each in self.models) or self.latency_share.keys() != kinds:
            raise ValueError("throughput and latency_share of each kind of gpus")

    def width(self, model: Model) -> int:
        """Returns the requests that one replica runs side by side (Little's law), where kinds differ the fewest."""
        busy = [model.throughput[kind] * share * model.rt_max_s for kind, share in self.latency_share.items()]
        return max(1, round(min(busy)))

    def kinds(self) -> tuple[DeviceKind, ...]:
        """Returns the devices, with MPS. A tenant alone runs at its profile; the slow-down of a pair is divided among
        the requests that the other one runs at most, so that an idle tenant slows nothing."""
        made = []
        for gpu in self.gpus:
            accelerator = Accelerator(
                name=gpu.name,
                kind=AcceleratorKind.NVIDIA,
                count=gpu.count,
                memory_bytes=int(gpu.memory_gb * GB),
                price_per_hour=gpu.price_per_gb * gpu.memory_gb,
                mps=True,
            )
            pairs = {
                (one.name, other.name): (1.0 + self._increase(one, other)) ** (1.0 / self.width(other))
                for one in self.models
                for other in self.models
            }
            made.append(
                DeviceKind(accelerator=accelerator, sharing=Sharing.MPS, gain={1000: 1000.0}, interference=pairs)
            )
        return tuple(made)

    def _increase(self, one: Model, other: Model) -> float:
        return self.equal_interference if one is other else self.interference

    def deployed(self, model: Model, policy: str, ready: Mapping[str, int], only: tuple[str, ...] = ()) -> Deployed:
        """Returns one service. ``ready``: replicas at the beginning. ``only``: its kinds; empty: all."""
        allowed, is_shared = only or tuple(each.name for each in self.gpus), policy != "k8s-baseline"
        share, width = HALF if is_shared else 100, self.width(model)
        of = function(
            model.name,
            concurrency=width,
            sla=Sla(latency_s=model.rt_max_s),
            scaling=Scaling(policy=policy, min_scale=1, parameters=self._settings(policy)),
            gpu=GpuNeeds(memory_gb=self.footprint_gb, mps=is_shared, core_percentage=share),
            dnn=DnnModel(name=model.name),
            accelerators=allowed,
        )
        seconds = {kind: width / model.throughput[kind] for kind in allowed}
        profiles = {kind: fixed(each_s, width=width, jitter=self.jitter) for kind, each_s in seconds.items()}
        known = {kind: KnownFigures(Source.PROFILE, seconds[kind], model.throughput[kind]) for kind in allowed}
        started = deployed(profiles, of=of, ready=ready, start=ColdStart(load_s=self.launch_s))
        return replace(started, known=known)

    def _settings(self, policy: str) -> dict[str, str]:
        return self.baseline_settings if policy == "k8s-baseline" else self.settings

    def run(
        self,
        services: tuple[Deployed, ...],
        duration_s: float,
        seed: int,
        *,
        arrivals: Iterable[Arrival] = (),
        callers: tuple[Callers, ...] = (),
        strategy: StrategyRow = WORST_FIT,
    ) -> Everything:
        """Runs the services side by side."""
        scenario = Scenario(
            kinds=self.kinds(),
            functions=services,
            seed=seed,
            arrivals=arrivals,
            callers=callers,
            strategy=strategy,
        )
        return run(scenario, duration_s)[1]

    def cost(self, leases: Iterable[Lease], model: str, accounting: Accounting) -> float:
        """Returns the cost of one service."""
        return memory_cost(
            (each for each in leases if each.function == model),
            {each.name: each.price_per_gb for each in self.gpus},
            {each.name: each.memory_gb for each in self.gpus},
            accounting,
        )


def named(load: Load, name: str, placement: Placement, rng: random.Random) -> Iterator[Arrival]:
    """Yields the arrivals of one service."""
    return (Arrival(at_s, function=name) for at_s in times(load, placement, rng))
