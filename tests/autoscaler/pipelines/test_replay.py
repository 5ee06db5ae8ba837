"""Recordings of stages that a policy over all stages orders: each replays by itself, bit for bit, from any part on."""

import math
from typing import Any

import pytest

from tests.autoscaler.pipelines.test_scaling import A, B, known, pipeline
from tests.support.worlds.autoscaling import T0, group, observation
from tidegate.autoscaler.decider import Decider
from tidegate.autoscaler.measure.observation import StageOrder
from tidegate.autoscaler.replay.player import again
from tidegate.autoscaler.replay.recorder import Part, Recorder
from tidegate.autoscaler.replay.recording import Header, Line, read
from tidegate.errors import Fault
from tidegate.function import Revision

SECONDS = 120
FIGURES: Any = {"limit": 4, "min_execution_s": 0.1, "min_execution_occupancy": 1.0, "mean_batch": 1.0}
POLICIES = ("themis", "horizontal-only", "vertical-only")


def lived(policy: str) -> dict[str, list[tuple[int, Line]]]:
    """Two minutes of a load between 5 and 45/s under 400 ms for both stages, of 100 ms each: the recordings by stage.
    Orders are obeyed at once."""
    pipelines = known(pipeline("a", "b", policy=policy, headroom="1"))
    recorder, decider = Recorder(None, part_figures=20), Decider()
    revisions = [Revision(pipelines.scaled(each), 1) for each in (A, B)]
    for each in revisions:
        decider.apply(each, T0, ready=1)
    parts: dict[str, list[Part]] = {"a": [], "b": []}
    ready, cores = {"a": 1, "b": 1}, {"a": 1, "b": 1}
    for second in range(1, SECONDS + 1):
        now = T0 + second
        rps = round(25.0 + 20.0 * math.sin(second / 10.0))
        for revision in revisions:
            name = revision.function.name
            there = group(ready=ready[name], cores=cores[name], **FIGURES)
            observed = observation(
                there, function=name, revision=revision.id, at=now, rps=rps, lambda_ips=rps, waiting=0
            )
            with_order = pipelines.seen(observed, now)
            part = recorder.part(revision, decider, now)
            assert part is not None
            if not parts[name] or part is not parts[name][-1]:
                parts[name].append(part)
            decision = decider.tick(now, with_order)
            part.add(with_order, decision)
            ready[name] = max(1, decision.desired or ready[name])
            cores[name] = decision.cores or cores[name]
    return {name: _read(each) for name, each in parts.items()}


def _read(parts: list[Part]) -> list[tuple[int, Line]]:
    faults: list[Fault] = []
    lines = list(read(b"".join(part.encoded() for part in parts).decode().splitlines(), faults))
    assert not faults, faults
    return lines


@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_decided_over_all_stages_replays_for_each_of_them(policy: str) -> None:
    for lines in lived(policy).values():
        played = again(lines)
        assert (played.compared, played.difference) == (SECONDS, None)
        orders = [moment.step.observation.order for moment in played.moments]
        given = [each for each in orders if isinstance(each, StageOrder)]
        assert len(given) >= SECONDS - 1, "all but one before both stages were seen"
        assert len({(each.desired, each.cores) for each in given}) > 2, "the load made no difference"
        telling = [at for at, (_, line) in enumerate(lines) if isinstance(line, Header) and line.state is not None]
        assert len(telling) > 1 and again(lines[telling[-1] :]).difference is None, "also from a later part on"
