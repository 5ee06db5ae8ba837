"""Figures that cannot be true and clocks that jump, in observations: the loop goes on, nothing is taken away blindly.

``tests/autoscaler/policies/test_properties.py`` sends the same through samples; here they come past the collector, as
if it or a trace had let them through.
"""

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.searches import part
from tests.support.worlds.autoscaling import T0, activation, group, observation, revision
from tidegate.autoscaler.decider import Decider
from tidegate.autoscaler.decisions.explain import explain, explain_now, logged
from tidegate.autoscaler.measure.collector import Collector
from tidegate.autoscaler.measure.observation import FleetGroup, GroupObservation, Observation
from tidegate.autoscaler.policies import registry
from tidegate.autoscaler.replay.changes import unrecorded
from tidegate.autoscaler.replay.player import again, instead
from tidegate.autoscaler.replay.recorder import Recorder
from tidegate.autoscaler.replay.recording import read
from tidegate.autoscaler.replay.report import text
from tidegate.autoscaler.replay.trace import COLUMNS, parse, play
from tidegate.errors import Fault, InvalidInputError
from tidegate.function import Revision, Scaling
from tidegate.manifest.annotations import ANNOTATION, PARAMETERS
from tidegate.records.codec import encode

BAD = st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 1e308, -1e308, 1e-320, 0.0, 3.0])
FIGURE = BAD | st.floats(allow_nan=True, allow_infinity=True)
UNKNOWN = FIGURE | st.none()
COUNT = st.integers(0, 4)
GROUP = st.fixed_dictionaries(
    {"ready": COUNT, "starting": st.integers(0, 2), "room": st.none() | COUNT},
    optional={
        **dict.fromkeys(("concurrency", "concurrency_inferences", "rps", "ips", "busy"), FIGURE),
        **dict.fromkeys(
            (
                "price_per_hour",
                "mu_ips",
                "mu_bound_ips",
                "mu_expected_ips",
                "mean_batch",
                "execution_s",
                "min_execution_s",
                "tail_s",
                "latency_s",
            ),
            UNKNOWN,
        ),
        "limit": st.none() | st.integers(0, 8),
        "answers": st.integers(0, 10**9),
        "late": st.integers(0, 10**9),
        "is_mu_learnt": st.booleans(),
        "metrics": st.dictionaries(st.sampled_from(["gpu-memory", "cpu"]), FIGURE, max_size=2),
    },
)
STEP = st.fixed_dictionaries(
    {"passed": st.floats(-4000.0, 4000.0) | st.floats(0.0, 2.0), "groups": st.lists(GROUP, max_size=2)},
    optional={
        **dict.fromkeys(
            ("lambda_ips", "rps", "concurrency", "concurrency_inferences", "idle_s", "oldest_waiting_s"), FIGURE
        ),
        "latency_s": UNKNOWN,
        "within_sla": UNKNOWN,
        "age_s": UNKNOWN,
        "waiting": st.integers(0, 10**6),
        "waiting_inferences": st.integers(0, 10**6),
        "complete": st.booleans(),
    },
)
NAMES = ("cpu", "gpu")


def seen(step: dict[str, Any], now: float) -> Observation:
    values = {name: value for name, value in step.items() if name not in ("passed", "groups")}
    groups: list[GroupObservation] = [
        group(name, **figures) for name, figures in zip(NAMES, step["groups"], strict=False)
    ]
    return structs.replace(observation(at=now, **values), groups=tuple(groups))


def spec_of(policy: str, low: int, high: int) -> Revision:
    parameters = {"metric": "gpu-memory", "period": "1s"} if policy == "hpa" else {}
    scaling = Scaling(policy=policy, parameters=parameters, min_scale=low, max_scale=high)
    return revision(scaling=scaling)


@pytest.mark.parametrize("policy", registry.names())
@given(st.lists(STEP, max_size=10), st.integers(0, 2), st.booleans())
@example([{"passed": 1.0, "groups": [{"ready": 1, "starting": 0, "room": 1}], "lambda_ips": math.inf}], 0, False)
@example([{"passed": 1.0, "groups": [{"ready": 0, "starting": 0, "min_execution_s": 3.0}], "rps": math.inf}], 0, False)
@example(
    [
        {"passed": 0.1, "waiting": 1, "groups": []},
        {"passed": 1.2, "complete": False, "groups": [{"ready": 3, "starting": 0}, {"ready": 2, "starting": 0}]},
    ],
    0,
    True,
)
@part(0.3)
def test_no_figure_and_no_clock_stops_a_decision(
    policy: str, steps: list[dict[str, Any]], low: int, push: bool
) -> None:
    spec, decider, now = spec_of(policy, low, 5), Decider(), T0
    decider.apply(spec, now)
    for step in steps:
        now += step["passed"]
        at = seen(step, now)
        decision = decider.activate(activation(), now, at) if push else decider.tick(now, at)
        assert decision.desired is None or isinstance(decision.desired, int)
        if decision.desired is not None:
            assert 0 <= decision.desired <= 5
            assert decision.groups is not None
            assert all(each.replicas >= 0 for each in decision.groups)
        if not at.complete and decision.desired is not None:
            assert decision.desired >= min(at.existing, 5), "blind: nothing is taken away"
        # A line of the log, and words for it.
        kept = logged(decision, at, {"cpu": 1.0})
        assert encode(kept)
        assert explain(kept, now + 1.0)
        assert explain_now(kept, {"cpu": math.nan}, now)
        # What it remembers can be written down and read.
        copy = Decider()
        copy.restore(spec, decider.snapshot(spec.id))


@pytest.mark.parametrize("policy", registry.names())
@given(st.lists(STEP, min_size=1, max_size=10), st.sampled_from(registry.names()))
@part(0.25)
def test_what_the_collector_lets_through_replays_bit_for_bit(
    policy: str, steps: list[dict[str, Any]], other: str
) -> None:
    """Reported rates and metrics may be anything; what is recorded of them is read as it was, by another policy too."""
    spec, now = spec_of(policy, 0, 5), T0
    collector, decider, recorder = Collector(), Decider(), Recorder(None)
    collector.expect(["g0"], ())
    collector.apply(spec.id, now)
    decider.apply(spec, now)
    begun = recorder.part(spec, decider, now)
    assert begun is not None
    for step in steps:
        now += abs(step["passed"])
        fleet = [
            FleetGroup(
                accelerator=name,
                ready=tuple(f"{name}-{index}" for index in range(figures["ready"])),
                starting=figures["starting"],
                room=figures["room"],
                mu_ips=figures.get("mu_ips"),
                metrics=figures.get("metrics", {}),
            )
            for name, figures in zip(NAMES, step["groups"], strict=False)
        ]
        at = collector.observe(spec, tuple(fleet), now)
        begun.add(at, decider.tick(now, at))
    faults: list[Fault] = []
    lines = list(read(begun.encoded().decode().splitlines(), faults))
    assert not faults
    played = again(lines)
    assert (played.compared, played.difference) == (len(steps), None)
    scaling = replace(spec.function.scaling, policy=other, parameters=spec_of(other, 0, 5).function.scaling.parameters)
    assert text(instead(lines, replace(spec.function, scaling=scaling)), is_other=True)


@given(st.text(max_size=12) | st.sampled_from(["nan", "inf", "-1", "1e999", "", "0x10", "١٢", "-0", "99999999999999s"]))
@settings(max_examples=100, deadline=None)
def test_a_bad_annotation_is_refused_or_understood_and_raises_nothing_else(value: str) -> None:
    rows = [
        *{row.key: row for row in ANNOTATION.values()}.values(),
        *(row for rows in PARAMETERS.values() for row in rows),
    ]
    for row in rows:
        row.accepts(value)


CELL = st.sampled_from(["", "0", "1", "2.5", "nan", "inf", "-1", "1e999", "x", "true", "\x00", '"', "9" * 400])


@given(
    st.lists(
        st.sampled_from(["at", "accelerator", "complete", "speed", "metric:gpu", "metric:", *COLUMNS]), max_size=8
    ),
    st.lists(st.lists(CELL, max_size=8), max_size=6),
    st.sampled_from([("smif", ["latency=1s"]), ("kpa", []), ("hpa", ["policy.metric=gpu"])]),
)
@settings(max_examples=200, deadline=None)
def test_a_csv_is_refused_or_played_and_raises_nothing_else(
    names: list[str], rows: list[list[str]], how: tuple[str, list[str]]
) -> None:
    names = ["at", "lambda_ips", "concurrency", "metric:gpu", *names]
    lines = [
        ",".join(cells) + "\n" for cells in (names, *([str(at), "1", "1", "1", *row] for at, row in enumerate(rows)))
    ]
    try:
        played = play(parse(lines), unrecorded(*how))
    except InvalidInputError as error:
        assert error.faults
    else:
        assert text(played, is_other=False)


@given(st.lists(st.text(max_size=60) | st.just('{"format": "tidegate-recording", "version": 1}'), max_size=6))
@settings(max_examples=200, deadline=None)
def test_a_recording_is_refused_or_read_and_raises_nothing_else(lines: list[str]) -> None:
    faults: list[Fault] = []
    found = list(read(lines, faults))
    assert faults or found


def test_the_recorder_needs_no_running_loop() -> None:
    assert list(asyncio.run(Recorder(None).lines("none-00001"))) == []
