"""The simulator decides as the live control process does: one stream of samples, fleets and activations, given to the
live shell as it pulls, decodes and logs, leaves the same decision log, line by line."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.loadgen.simulator.test_simulation import START
from tests.loadgen.simulator.worlds import deployed, fixed, function, kind, poisson, scaling
from tidegate.autoscaler.autoscaler import StandaloneContext
from tidegate.autoscaler.live import LiveAutoscaler
from tidegate.clock import ManualClock
from tidegate.function import Sla
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.simulator.result import Everything
from tidegate.loadgen.simulator.scenario import Crash, Scenario
from tidegate.loadgen.simulator.simulation import Simulation
from tidegate.records.codec import encode


@dataclass
class Round:
    """What came in before one call of ``decide`` or ``activated``."""

    call: str
    at: float
    argument: Any
    fleet: tuple[Any, Any]
    weights: Mapping[str, float]
    samples: dict[str, bytes] = field(default_factory=dict)
    there: tuple[str, ...] = ()


def recorded(scenario: Scenario, seconds: float, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Round], list[bytes]]:
    """Every input of the simulator's autoscaler, in order, and its decision log."""
    sink = Everything()
    simulation = Simulation(scenario, sink)
    at = simulation.autoscaler
    rounds: list[Round] = []
    fleets: list[tuple[Any, Any]] = []
    samples: dict[str, bytes] = {}
    there: list[str] = []

    def before(thing: object, name: str, note: Callable[..., object]) -> None:
        real = getattr(thing, name)

        def noted(*arguments: Any) -> Any:
            note(*arguments)
            return real(*arguments)

        monkeypatch.setattr(thing, name, noted)

    def expect(gateways: Any, replicas: Any) -> None:
        samples.clear()
        there[:] = replicas

    def call(name: str, *arguments: Any) -> None:
        taken, samples_then = (tuple(there), dict(samples)) if name == "decide" else ((), {})
        argument, now = (None, *arguments) if name == "decide" else arguments
        rounds.append(Round(name, now, argument, fleets[-1], dict(at.weights("f-00001")), samples_then, taken))

    before(at.fleet, "put", lambda replicas, rooms: fleets.append((tuple(replicas), rooms)))
    before(at.collector, "expect", expect)
    before(at.collector, "gateway", lambda sample, now: samples.update({sample.worker: encode(sample)}))
    before(at.collector, "replica", lambda sample, now: samples.update({sample.replica: encode(sample)}))
    before(at, "decide", partial(call, "decide"))
    before(at, "activated", partial(call, "activated"))
    simulation.run(seconds)
    return rounds, [encode(each) for each in sink.decisions]


class Weighted(StandaloneContext):
    """The weights that were in force."""

    def __init__(self) -> None:
        self.now: Mapping[str, float] = {}

    def weights(self, revision: str) -> Mapping[str, float]:
        return self.now


async def live(of: Scenario, rounds: list[Round], directory: Path) -> dict[str, int | str]:
    """The same rounds through the live shell, as the control process calls it; its faults."""
    clock, context = ManualClock(), Weighted()
    at = LiveAutoscaler(clock, context, directory)
    (one,) = of.functions
    at.core.apply(one.revision, fresh=not one.ready, ready=sum(one.ready.values()))

    def gives(samples: Mapping[str, bytes], name: str) -> Callable[[], Awaitable[bytes]]:
        async def fetch() -> bytes:
            return samples[name]

        return fetch

    for each in rounds:
        clock.advance(each.at - clock.now())
        context.now = each.weights
        at.core.fleet.put(*each.fleet)
        if each.call == "activated":
            at.core.activated(each.argument, each.at)
            continue
        at.sources({"g0": gives(each.samples, "g0")}, {name: gives(each.samples, name) for name in each.there})
        await at.sample()
        at.core.decide(each.at)
    at.close()
    return at.faults()


def test_the_decision_logs_are_equal_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Awake and asleep, out to more replicas than are sampled at once, back, a crash, and an activation."""
    of = function(scaling=scaling(max_scale=32, scale_to_zero_after_s=20.0), sla=Sla(latency_s=0.5))
    arrivals = [*poisson(90.0, 3600), *(Arrival(200.0 + number) for number in range(10))]
    scenario = Scenario(
        kinds=(kind(count=32),),
        functions=(deployed(fixed(0.25, jitter=0.2), of=of, start=START),),
        arrivals=arrivals,
        failures=(Crash(at_s=25.3, function="f"),),
    )
    rounds, simulated = recorded(scenario, 260.0, monkeypatch)
    assert any(len(each.samples) < len(each.there) for each in rounds)  # Not all of a large group are asked.
    assert not rounds[-1].there
    assert {each.call for each in rounds} == {"decide", "activated"}
    faults = asyncio.run(live(scenario, rounds, tmp_path))
    assert faults == {}
    assert (tmp_path / "f.jsonl").read_bytes().splitlines() == simulated
    assert len(simulated) > 10
