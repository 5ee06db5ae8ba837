"""Devices of very different speed (figure 2): the load goes to the cheapest group that meets the SLA.

Two parts of the product decide that: the answer to a deploy, from declared profiles
(``tidegate.autoscaler.profiles.admission``), and the SLA policy, which gets no profile and learns from served requests.
"""

from dataclasses import dataclass, replace

from tidegate.autoscaler.profiles.admission import Kind as AdmissionKind
from tidegate.autoscaler.profiles.admission import assess
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind, Profile, Room
from tidegate.function import Function, Sla
from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.setups.worlds import deployed, fixed, function, kind, poisson, run, scaling
from tidegate.loadgen.experiments.tables import Count, Positive, Share, Some, Word
from tidegate.loadgen.simulator.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    name: Word
    price_per_hour: Positive
    seconds: dict[str, Positive]
    """Seconds of one inference, by model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    devices: Some[Device]
    each: Count
    """Devices of each kind."""
    models: Some[Word]
    room: Positive
    """Factor on the devices' times that gives the latency targets: slower devices cannot meet them."""
    use: Share
    """Load, as a share of the capacity of one replica of the right group."""
    jitter: Share
    duration_s: Positive
    settled_s: Positive
    """The end of the run in which the choice is judged."""

    def __post_init__(self) -> None:
        if self.settled_s > self.duration_s:
            raise ValueError("settled_s of at most duration_s")
        if any(model not in device.seconds for device in self.devices for model in self.models):
            raise ValueError("seconds of each model on each device")


@setup(Choice)
def choice(parameters: Choice, seed: int) -> ExperimentOutcome:
    """Runs each model with each latency that one of the devices just meets."""
    admitted, settled, late, cases = 0, 0.0, 0.0, 0
    for model in parameters.models:
        for target_s in sorted(parameters.room * each.seconds[model] for each in parameters.devices):
            right = min(
                (each for each in parameters.devices if each.seconds[model] <= target_s),
                key=lambda each: each.price_per_hour,
            )
            cases += 1
            admitted += _admission(parameters, model, target_s) == right.name
            share, missed = _settled(parameters, model, target_s, right, seed)
            settled += share
            late += missed
    return ExperimentOutcome(
        figures={
            "cases": float(cases),
            "admission_right_share": admitted / cases,
            "settled_right_share": settled / cases,
            "settled_late_share": late / cases,
        }
    )


def _function(target_s: float) -> Function:
    return function(sla=Sla(latency_s=target_s), scaling=scaling("smif"))


def _admission(parameters: Choice, model: str, target_s: float) -> str | None:
    """Returns the first kind, cheapest first, that a deploy reports as meeting the target."""
    kinds = []
    for each in sorted(parameters.devices, key=lambda each: each.price_per_hour):
        accelerator = Accelerator(
            name=each.name,
            kind=AcceleratorKind.EMULATED,
            count=parameters.each,
            memory_bytes=16_000_000_000,
            price_per_hour=each.price_per_hour,
            profile=Profile(base_s=each.seconds[model], per_item_s=0.0),
        )
        kinds.append(AdmissionKind(accelerator=accelerator, room=Room(free=parameters.each, total=parameters.each)))
    found = assess(_function(target_s), kinds)
    return next((each.accelerator for each in found.kinds if each.meets_latency), None)


def _settled(parameters: Choice, model: str, target_s: float, right: Device, seed: int) -> tuple[float, float]:
    """Returns (share of the replica time at the end in the right group, share of the answers then that are late)."""
    profiles = {each.name: fixed(each.seconds[model], jitter=parameters.jitter) for each in parameters.devices}
    cheapest = min(parameters.devices, key=lambda each: each.price_per_hour).name
    scenario = Scenario(
        kinds=tuple(kind(each.name, parameters.each, each.price_per_hour) for each in parameters.devices),
        functions=(deployed(profiles, of=_function(target_s), ready={cheapest: 1}),),
        seed=seed,
        arrivals=poisson(parameters.use / right.seconds[model], parameters.duration_s, seed),
    )
    _, sink = run(scenario, parameters.duration_s)
    since = parameters.duration_s - parameters.settled_s
    leased = [replace(each, start_s=max(each.start_s, since)) for each in sink.leases if each.end_s > since]
    all_s = sum(each.end_s - each.start_s for each in leased)
    right_s = sum(each.end_s - each.start_s for each in leased if each.accelerator == right.name)
    times = [each[2] - each[0][2] for each in sink.ended if each[0][2] >= since]
    return right_s / all_s, sum(each > target_s for each in times) / max(1, len(times))
