"""The same deployment twice: live, and in the simulator with the same manifest, accelerators and arrivals.

What the simulator cannot know of a machine is measured on it and given to it: how long a replica takes to start, and
what a request and its answer spend on their way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.autoscaling.lab import HERE, Kind, Lab, manifest_text
from benchmarks.autoscaling.timeline import Run
from benchmarks.laboratory.rows import start_s
from tidegate.autoscaler.policies import registry
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind, Profile
from tidegate.function import Function, Revision
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.clients.bodies import v2_body
from tidegate.loadgen.clients.call import Request
from tidegate.loadgen.experiments.setups.worlds import run as simulate
from tidegate.loadgen.simulator.devices import DeviceKind as SimulatedKind
from tidegate.loadgen.simulator.profiles import ColdStart, Line, ServiceProfile
from tidegate.loadgen.simulator.result import Everything
from tidegate.loadgen.simulator.scenario import Callers, Deployed, Scenario
from tidegate.manifest import reader as manifest

GIB = 1 << 30
WAY_S = 4.0
"""For so long one caller measures the way."""
WAY_SERVICE_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Measurements of the machine."""

    hop_s: float
    """Network time of a request and its answer between gateway and replica."""
    start_s: float
    """From a decision to a ready replica, what its accelerator takes to start included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A function on emulated accelerators."""

    name: str
    kinds: tuple[Kind, ...]
    annotations: Mapping[str, object]
    ready: int = 0
    """Replicas that are ready when the load begins, all on the first kind."""

    def deploy(self, world: Lab) -> None:
        world.deploy(self.name, on=self._names, replicas=self.ready, annotations=self._annotations)

    def function(self) -> Function:
        """Read from the manifest that is deployed."""
        text = manifest_text(self.name, on=self._names, annotations=self._annotations)
        known = dict.fromkeys(self._names, AcceleratorKind.EMULATED.value)
        (found,) = manifest.parse(text, source=self.name, base=str(HERE), policies=registry.names(), accelerators=known)
        return found

    @property
    def _names(self) -> list[str]:
        return [kind.name for kind in self.kinds]

    @property
    def _annotations(self) -> Mapping[str, object]:
        return {"initial-scale": self.ready, **self.annotations}

    def simulated(
        self,
        machine: Machine,
        seconds: float | None,
        *,
        arrivals: Sequence[Arrival] = (),
        callers: Sequence[Callers] = (),
        seed: int = 1,
    ) -> Everything:
        starts = ColdStart(load_s=machine.start_s)
        deployed = Deployed(
            revision=Revision(self.function(), 1),
            profiles={kind.name: profile(kind) for kind in self.kinds},
            cold_starts={kind.name: starts for kind in self.kinds},
            ready={self.kinds[0].name: self.ready} if self.ready else {},
        )
        scenario = Scenario(
            kinds=tuple(SimulatedKind(accelerator=_accelerator(kind)) for kind in self.kinds),
            functions=(deployed,),
            seed=seed,
            arrivals=arrivals,
            callers=tuple(callers),
            hop_s=machine.hop_s,
        )
        return simulate(scenario, seconds)[1]


def profile(kind: Kind) -> ServiceProfile:
    """One batch after the other, as the emulated server has it."""
    return ServiceProfile(times=Line(base_s=kind.base_s, per_item_s=kind.per_item_s), jitter=kind.jitter, width=1)


def _accelerator(kind: Kind) -> Accelerator:
    return Accelerator(
        name=kind.name,
        kind=AcceleratorKind.EMULATED,
        count=kind.count,
        memory_bytes=GIB,
        price_per_hour=kind.price,
        profile=Profile(base_s=kind.base_s, per_item_s=kind.per_item_s, jitter=kind.jitter),
    )


def shots(arrivals: Sequence[Arrival]) -> list[tuple[float, Request]]:
    """The arrivals as requests of a live load."""
    requests = {size: Request(v2_body(size), size) for size in {each.inferences for each in arrivals}}
    return [(each.at_s, requests[each.inferences]) for each in arrivals]


def measured_start_s(runs: Sequence[Run], otherwise: float) -> float:
    """Returns the start-up time of a replica in these runs."""
    found = start_s([look.starts for run in runs for look in run.looks])
    return otherwise if found is None else found


def way_s(world: Lab, on: str, service_s: float) -> float:
    """Returns the network time of a request and its answer: one caller's median latency less the service time."""
    annotations = {"min-scale": 1, "max-scale": 1, "concurrency": 1, "policy": "kpa"}
    world.deploy("way", on=[on], replicas=1, annotations=annotations)
    found = world.closed("way", 1, WAY_S)
    world.delete("way")
    times = [each.latency_s for each in found.outcomes if each.is_good]
    if not times:
        raise RuntimeError(f"no request was answered in {WAY_S:g} s")
    return max(0.0, median(times[len(times) // 4 :]) - service_s)
