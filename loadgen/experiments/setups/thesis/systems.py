"""The systems of the thesis, what loads them, and the scenarios that these make.

One cluster of GPUs with one replica on each, under one of the product's own policies:

- **kpa** (the thesis' system A): policy ``kpa`` on requests in flight. A request goes to a random replica and waits in
  its queue: blind routing.
- **hpa** (system B): policy ``hpa`` on the utilisation of the GPUs. No limit and no queue: requests in one replica run
  together and slow each other.
- **late** (neither): policy ``kpa`` and late binding. A request waits in front and goes to the first replica that is
  free.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta

from tidegate.function import Routing, Scaling
from tidegate.loadgen.experiments.setups.worlds import deployed, fixed, function, kind, scaling
from tidegate.loadgen.experiments.tables import Count, NotNegative, Positive, Share
from tidegate.loadgen.simulator.devices import DeviceKind, Sharing
from tidegate.loadgen.simulator.profiles import ColdStart, ServiceProfile
from tidegate.loadgen.simulator.scenario import Callers, Scenario
from tidegate.records.route_table import Spread

GPU: Final = "p100"
Percent = Annotated[float, Meta(gt=0.0, le=100.0)]


class System(StrEnum):
    KPA = "kpa"
    HPA = "hpa"
    LATE = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPhase:
    """Workers that together send ``requests`` requests, each at most ``rate`` per second."""

    start_s: NotNegative
    requests: Count
    workers: Count
    rate: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    devices: Annotated[int, Meta(ge=1, le=1000)]
    service_s: Positive
    """Service time of a request that is alone in its replica."""
    hop_s: NotNegative
    """Network time of a request and its answer."""
    first_s: NotNegative
    """Minimum time of a replica's first request."""
    idle_s: NotNegative
    """Time before the load, with one replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kpa:
    target: Positive
    """Target of requests in flight per replica."""
    utilization: Annotated[float, Meta(gt=0.0, le=1.0)]
    """Share of the target that is aimed at."""
    start_s: NotNegative
    """Start-up time of a replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hpa:
    threshold: Percent
    """Target utilisation in percent."""
    busy_utilization: Percent
    """Measured utilisation of a GPU that always executes, in percent."""
    tolerance: Share
    period_s: Annotated[float, Meta(ge=1.0, le=3600.0)]
    window_s: Annotated[float, Meta(ge=1.0, le=3600.0)]
    cooldown_s: Annotated[float, Meta(ge=0.0, le=86_400.0)]
    start_s: NotNegative
    """Start-up time of a replica."""
    calm: Count
    """Requests in one replica up to which they only share it."""
    crowd: Annotated[int, Meta(ge=2)]
    """Requests in one replica from which on one is answered every ``crowded_s`` seconds; linear between ``calm`` and
    here."""
    crowded_s: Positive

    def __post_init__(self) -> None:
        if self.calm >= self.crowd:
            raise ValueError("a calm below crowd")
        if self.threshold > 10.0 * self.busy_utilization:
            raise ValueError("a threshold of at most ten times busy_utilization")


def scenario(
    system: System, phases: Sequence[SystemPhase], cluster: Cluster, kpa: Kpa, hpa: Hpa, begin_s: float, seed: int
) -> Scenario:
    """Returns the scenario; the load begins at ``begin_s``."""
    start_s = hpa.start_s if system is System.HPA else kpa.start_s
    of = function(
        concurrency=1 if system is System.LATE else 0,
        routing=Routing(spread=Spread.MOST_FREE if system is System.LATE else Spread.RANDOM),
        scaling=_hpa(hpa, cluster.devices) if system is System.HPA else _kpa(kpa, cluster.devices),
    )
    callers = (
        Callers(
            function="f",
            callers=phase.workers,
            requests=phase.requests,
            rate=phase.rate,
            start_s=begin_s + phase.start_s,
        )
        for phase in phases
    )
    return Scenario(
        kinds=(_gpus(system, cluster, hpa),),
        functions=(deployed({GPU: _profile(system, cluster)}, of=of, ready={GPU: 1}, start=ColdStart(load_s=start_s)),),
        callers=tuple(callers),
        hop_s=cluster.hop_s,
        seed=seed,
    )


def _kpa(given: Kpa, most: int) -> Scaling:
    parameters = {"target": f"{given.target:g}", "target-utilization-percentage": f"{100.0 * given.utilization:g}"}
    return scaling("kpa", min_scale=1, max_scale=most, parameters=parameters)


def _hpa(given: Hpa, most: int) -> Scaling:
    """Returns the scaling rules. Utilisation counts as proportional to the share of time in which GPUs execute."""
    parameters = {
        "metric": "busy",
        "target": f"{100.0 * given.threshold / given.busy_utilization:g}",
        "tolerance": f"{100.0 * given.tolerance:g}",
        "period": f"{given.period_s:g}s",
        "window": f"{given.window_s:g}s",
        "cooldown": f"{given.cooldown_s:g}s",
        "shrink": "stabilization",
    }
    return scaling("hpa", min_scale=1, max_scale=most, parameters=parameters)


def _profile(system: System, cluster: Cluster) -> ServiceProfile:
    return fixed(cluster.service_s, width=0 if system is System.HPA else 1, first_s=cluster.first_s)


def _gpus(system: System, cluster: Cluster, hpa: Hpa) -> DeviceKind:
    if system is not System.HPA:
        return kind(GPU, cluster.devices)
    gain = {hpa.crowd: cluster.service_s / hpa.crowded_s}
    if hpa.calm > 1:
        gain[hpa.calm] = 1.0
    return kind(GPU, cluster.devices, sharing=Sharing.TIME_MULTIPLEXED, gain=gain)
