"""A pipeline of Themis in the simulator: its stages under their published profiles, a segment of the Twitter trace.

An instance has as many slots as its largest batch. Its model server joins what waits in them, and waits for no full
batch, as the shipped one does. The paper's waits for exactly b.
"""

import random
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import msgspec

from tidegate.autoscaler.policies.themis.model import StageProfile
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import Batching, Function, Resources, Scaling, Server, ServerKind, Sla
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.arrivals.changes import Placement, placed
from tidegate.loadgen.experiments.setups.worlds import deployed, function, run
from tidegate.loadgen.experiments.tables import Count, NotNegative, Positive, Share, Some, Word
from tidegate.loadgen.simulator.counters import ANSWERED
from tidegate.loadgen.simulator.devices import DeviceKind
from tidegate.loadgen.simulator.lease import Lease
from tidegate.loadgen.simulator.profiles import ColdStart, Line, ServiceProfile
from tidegate.loadgen.simulator.scenario import Scenario
from tidegate.loadgen.traces.files import open_trace
from tidegate.manifest.policy_parameters import HORIZONTAL_PARAMETERS, THEMIS_PARAMETERS
from tidegate.records.pipeline import Stage

THEMIS, HORIZONTAL, VERTICAL = POLICIES = ("themis", "horizontal-only", "vertical-only")
NAME = "pipeline"
GB = 1_000_000_000
_RUNS: dict[str, "PipelineRun"] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOfPaper:
    """A stage by its fitted latency in milliseconds: ``gamma*b/c + epsilon/c + delta*b + eta``."""

    name: Word
    gamma: float
    epsilon: float
    delta: float
    eta: float

    @property
    def text(self) -> str:
        return ",".join(map(repr, (self.gamma, self.epsilon, self.delta, self.eta)))

    def profile(self) -> StageProfile:
        return StageProfile(gamma=self.gamma, epsilon=self.epsilon, delta=self.delta, eta=self.eta)


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTimes(ServiceProfile):
    """Service times by a fit over batch and cores."""

    fit: StageProfile

    def nominal(self, inferences: int, *, cores: int = 1, share: int = 100) -> float:
        return self.fit.latency_ms(inferences, cores) / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperPipeline:
    """A pipeline, its load and its machine."""

    name: Word
    stages: Some[StageOfPaper]
    slo_ms: Positive
    b_max: Count
    """Largest batch."""
    divisor: Positive
    """Part of the trace's load that it gets."""
    start_s: Positive
    """Start-up time of an instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    trace: Word
    """Requests of each second; ``sample:NAME`` ships with the package."""
    offset_s: Annotated[int, msgspec.Meta(ge=0)]
    seconds: Count
    least_rps: NotNegative
    resize_s: NotNegative
    jitter: Share
    cores: Count
    """Most cores of an instance."""
    instances: Count
    """Instances that the machine has cores for."""
    drop_after: NotNegative
    """Multiple of the SLO from which on a request that waits is dropped; 0: never."""
    settings: dict[str, str]
    """Parameters of ``themis`` (``policy.NAME``)."""
    baseline_settings: dict[str, str]
    """Those of the two that the paper compares it with."""

    def rates(self, divisor: float) -> list[float]:
        """Returns the requests per second of each second."""
        counts = list(open_trace(Path(self.trace)).counts())[self.offset_s : self.offset_s + self.seconds]
        return [max(self.least_rps, each / divisor) for each in counts]


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """One run."""

    arrived: "array[float]"
    """Time of arrival of each request, in order of their ends."""
    late: bytes
    """For each, whether it missed the SLO."""
    leases: Sequence[Lease]
    seconds: int

    def late_percent(self, from_s: float = 0.0, to_s: float = float("inf")) -> float:
        """Returns the percentage of requests that arrived in this time and missed the SLO."""
        counted = [late for at_s, late in zip(self.arrived, self.late, strict=True) if from_s <= at_s < to_s]
        return 100.0 * sum(counted) / max(1, len(counted))

    def mean_cores(self, from_s: float = 0.0, to_s: float | None = None) -> float:
        end_s = self.seconds if to_s is None else to_s
        spans = ((max(0.0, min(each.end_s, end_s) - max(each.start_s, from_s)), each.cores) for each in self.leases)
        return sum(span_s * max(1, cores) for span_s, cores in spans) / (end_s - from_s)

    def seconds_late(self, from_s: float, above_percent: float) -> int:
        """Returns the seconds in which more than this percentage of the arriving requests missed the SLO."""
        return sum(self.late_percent(float(at), at + 1.0) > above_percent for at in range(int(from_s), self.seconds))


def played(
    world: World,
    pipeline: PaperPipeline,
    policy: str,
    seed: int,
    *,
    settings: dict[str, str] | None = None,
    drop_after: float | None = None,
) -> PipelineRun:
    """Returns the run of a pipeline under a policy, from one instance of one core for each stage on. ``settings`` and
    ``drop_after``: others than the world's. Several experiments look at the same runs, which are remembered."""
    drop = world.drop_after if drop_after is None else drop_after
    if settings is None:
        settings = world.settings if policy == THEMIS else world.baseline_settings
    settings = _known(policy, settings)
    facts = {each.name: getattr(world, each.name) for each in fields(World) if "settings" not in each.name}
    key = repr((facts, pipeline, policy, seed, settings, drop))
    if key not in _RUNS:
        _RUNS[key] = _run(world, pipeline, policy, seed, settings, drop)
    return _RUNS[key]


def forget() -> None:
    """Forgets all runs."""
    _RUNS.clear()


def _run(
    world: World, pipeline: PaperPipeline, policy: str, seed: int, settings: dict[str, str], drop: float
) -> PipelineRun:
    whole = Function(
        name=NAME,
        server=Server(
            kind=ServerKind.STAGES,
            stages=tuple(Stage(function=each.name, profile=each.text) for each in pipeline.stages),
        ),
        sla=Sla(latency_s=pipeline.slo_ms / 1e3, drop_after=drop),
        scaling=Scaling(policy=policy, parameters=settings),
    )
    cpu = Accelerator(
        name="cpu", kind=AcceleratorKind.CPU, count=world.instances, memory_bytes=64 * GB, cores=world.cores
    )
    scenario = Scenario(
        kinds=(DeviceKind(accelerator=cpu),),
        functions=tuple(
            deployed(
                {"cpu": _times(world, pipeline, each)},
                of=function(
                    each.name,
                    concurrency=pipeline.b_max,
                    resources=Resources(threads=1),
                    batching=Batching(max_size=pipeline.b_max),
                ),
                ready={"cpu": 1},
                start=ColdStart(load_s=pipeline.start_s),
            )
            for each in pipeline.stages
        ),
        pipelines=(whole,),
        seed=seed,
        arrivals=_arrivals(world, pipeline, seed),
        resize_s=world.resize_s,
    )
    _, sink = run(scenario)
    slo_s = pipeline.slo_ms / 1e3 + 1e-9
    return PipelineRun(
        array("d", (each[0][2] for each in sink.ended)),
        bytes(each[5] != ANSWERED or each[2] - each[0][2] > slo_s for each in sink.ended),
        sink.leases,
        world.seconds,
    )


def _known(policy: str, settings: dict[str, str]) -> dict[str, str]:
    """Returns the settings that the policy has."""
    rows = HORIZONTAL_PARAMETERS if policy == HORIZONTAL else THEMIS_PARAMETERS
    keys = {row.key for row in rows}
    return {key: value for key, value in settings.items() if key in keys}


def _times(world: World, pipeline: PaperPipeline, stage: StageOfPaper) -> FittedTimes:
    return FittedTimes(times=Line(base_s=0.0), fit=stage.profile(), jitter=world.jitter, width=1, joins=pipeline.b_max)


def _arrivals(world: World, pipeline: PaperPipeline, seed: int) -> Iterable[Arrival]:
    rng = random.Random(f"{seed}/arrivals")
    return (each._replace(function=NAME) for each in placed(world.rates(pipeline.divisor), rng, Placement.POISSON))
