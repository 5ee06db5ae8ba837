"""Knative's way to zero: bounds, each condition's step, and the limits of time to the second."""

from dataclasses import asdict
from typing import Any

import pytest

from tests.support.worlds.autoscaling import T0
from tidegate.autoscaler.policies.kpa.parameters import config, derive
from tidegate.autoscaler.policies.kpa.zero import (
    Applied,
    Condition,
    Conditioned,
    ZeroRules,
    ZeroSteps,
    active_condition,
    apply,
    rules,
)

ACTIVE, INACTIVE, ACTIVATING = Condition.ACTIVE, Condition.INACTIVE, Condition.ACTIVATING


def test_the_defaults() -> None:
    assert asdict(ZeroRules()) == {
        "min_scale": 0,
        "max_scale": 0,
        "initial_scale": 1,
        "is_reachable": True,
        "stable_window_s": 60.0,
        "grace_s": 30.0,
        "retention_s": 0.0,
        "progress_deadline_s": 600.0,
        "is_enabled": True,
        "is_room_always_in_path": False,
    }
    assert asdict(Applied(wanted=3)) == {"wanted": 3, "replicas": None, "again_in_s": None, "is_probe_needed": False}


@pytest.mark.parametrize("reachable", [True, False])
def test_rules_follow_from_the_parameters_of_a_revision(reachable: bool) -> None:
    given = {"min-scale": "2", "max-scale": "9", "initial-scale": "4", "window": "40s", "target-burst-capacity": "-1",
             "scale-to-zero-pod-retention-period": "1m"}  # fmt: skip
    made = rules(
        derive(given, config({}), 10.0, reachable=reachable), grace_s=20.0, progress_deadline_s=500.0, is_enabled=False
    )
    assert asdict(made) == {
        "min_scale": 2 if reachable else 0,
        "max_scale": 9,
        "initial_scale": 4,
        "is_reachable": reachable,
        "stable_window_s": 40.0,
        "grace_s": 20.0,
        "retention_s": 60.0 if reachable else 0.0,
        "progress_deadline_s": 500.0,
        "is_enabled": False,
        "is_room_always_in_path": True,
    }
    plain = rules(derive({}, config({}), 10.0), grace_s=20.0, progress_deadline_s=500.0, is_enabled=True)
    assert (plain.is_enabled, plain.is_room_always_in_path) == (True, False)


def applied(
    desired: int,
    present: int = 3,
    condition: Condition = ACTIVE,
    in_s: float = 100.0,
    room_s: float | None = 100.0,
    *,
    is_initialized: bool = True,
    is_probed: bool = True,
    **fields: Any,
) -> Applied:
    made = ZeroRules(**fields)
    return apply(
        desired, present, condition, in_s, room_s, made, is_initialized=is_initialized, probe=lambda: is_probed
    )


@pytest.mark.parametrize(
    ("desired", "fields", "is_initialized", "wanted"),
    [
        (1, {}, True, 1),
        (5, {"max_scale": 4}, True, 4),
        (4, {"max_scale": 4}, True, 4),
        (5, {"max_scale": 0}, True, 5),
        (1, {"min_scale": 2}, True, 2),
        (2, {"min_scale": 2}, True, 2),
        (0, {"min_scale": 2}, True, 2),
        (1, {"min_scale": 6, "max_scale": 4}, True, 6),
        (1, {"initial_scale": 5}, True, 1),
        (1, {"initial_scale": 5}, False, 5),
        (7, {"initial_scale": 5}, False, 7),
        (1, {"initial_scale": 5, "min_scale": 6}, False, 6),
        (1, {"initial_scale": 5, "is_reachable": False}, False, 1),
        (0, {"initial_scale": 2}, False, 2),
        (0, {"initial_scale": 1, "is_enabled": False}, False, 1),
    ],
)
def test_bounds_come_first(desired: int, fields: dict[str, Any], is_initialized: bool, wanted: int) -> None:
    assert applied(desired, is_initialized=is_initialized, **fields) == Applied(
        wanted=wanted, replicas=None if wanted == 3 else wanted
    )
    assert applied(desired, wanted, is_initialized=is_initialized, **fields) == Applied(wanted=wanted)


def test_nothing_decided_changes_nothing_but_of_what_is_activating() -> None:
    assert applied(-1, condition=ACTIVE) == applied(-1, condition=INACTIVE) == Applied(wanted=-1)
    assert applied(-1, condition=ACTIVATING) == Applied(wanted=-1, again_in_s=630.0)
    assert applied(-1, condition=ACTIVATING, min_scale=2) == Applied(wanted=2, replicas=2)


@pytest.mark.parametrize("present", [0, 1, 3])
def test_where_zero_is_not_enabled_one_stays(present: int) -> None:
    assert applied(0, present, is_enabled=False) == Applied(wanted=1, replicas=None if present == 1 else 1)


@pytest.mark.parametrize(("in_s", "is_over"), [(630.0, False), (630.1, True)])
def test_an_activation_has_the_deadline_and_30_s(in_s: float, is_over: bool) -> None:
    found = applied(0, condition=ACTIVATING, in_s=in_s)
    assert found == (Applied(wanted=0, replicas=0) if is_over else Applied(wanted=-1, again_in_s=630.0))


@pytest.mark.parametrize("present", [1, 3])
def test_what_is_active_keeps_one_for_a_window(present: int) -> None:
    one = None if present == 1 else 1
    assert applied(0, present, in_s=0.0) == Applied(wanted=1, replicas=one, again_in_s=60.0)
    assert applied(0, present, in_s=59.5) == Applied(wanted=1, replicas=one, again_in_s=0.5)
    assert applied(0, present, in_s=60.0) == Applied(wanted=0, again_in_s=3.0)
    assert applied(0, present, in_s=60.0, room_s=None) == Applied(wanted=0)


@pytest.mark.parametrize(
    ("in_s", "room_s", "fields", "expected"),
    [
        (30.0, 0.0, {}, Applied(wanted=0, replicas=0)),
        (29.9, 30.0, {}, Applied(wanted=0, replicas=0)),
        (29.9, 29.0, {}, Applied(wanted=0, again_in_s=1.0)),
        (29.9, None, {}, Applied(wanted=0, again_in_s=30.0)),
        (29.0, 30.0, {"retention_s": 20.0}, Applied(wanted=0, replicas=0)),
        (19.0, 30.0, {"retention_s": 20.0}, Applied(wanted=0, again_in_s=1.0)),
        (20.0, 29.0, {"retention_s": 20.0}, Applied(wanted=0, again_in_s=1.0)),
        (39.0, 90.0, {"retention_s": 40.0}, Applied(wanted=0, again_in_s=1.0)),
        (40.0, 0.0, {"retention_s": 40.0}, Applied(wanted=0, replicas=0)),
        (0.0, 0.5, {"retention_s": 0.5}, Applied(wanted=0, again_in_s=0.5)),
    ],
)
def test_what_is_inactive_goes_after_its_grace_and_retention(
    in_s: float, room_s: float | None, fields: dict[str, Any], expected: Applied
) -> None:
    assert applied(0, 3, INACTIVE, in_s, room_s, **fields) == expected


def test_the_room_is_probed_unless_it_is_always_in_the_path() -> None:
    assert applied(0, 3, INACTIVE, is_probed=False) == Applied(wanted=0, is_probe_needed=True)
    assert applied(0, 3, INACTIVE, is_probed=False, is_room_always_in_path=True) == Applied(wanted=0, replicas=0)
    assert applied(0, 0, INACTIVE) == Applied(wanted=0)


@pytest.mark.parametrize(
    ("wanted", "ready", "before", "fields", "was", "expected"),
    [
        (1, 1, ACTIVATING, {}, False, Conditioned(ACTIVE, "", True)),
        (1, 0, ACTIVATING, {}, False, Conditioned(ACTIVATING, "Queued", False)),
        (1, 0, ACTIVE, {}, True, Conditioned(ACTIVATING, "Queued", True)),
        (3, 1, ACTIVE, {"min_scale": 2}, True, Conditioned(ACTIVATING, "Queued", True)),
        (3, 2, ACTIVE, {"min_scale": 2}, True, Conditioned(ACTIVE, "", True)),
        (3, 2, ACTIVATING, {"initial_scale": 3}, False, Conditioned(ACTIVATING, "Queued", False)),
        (3, 3, ACTIVATING, {"initial_scale": 3}, False, Conditioned(ACTIVE, "", True)),
        (3, 1, ACTIVE, {"initial_scale": 3}, True, Conditioned(ACTIVE, "", True)),
        (3, 3, ACTIVATING, {"initial_scale": 3, "min_scale": 4}, False, Conditioned(ACTIVATING, "Queued", False)),
        (0, 0, ACTIVATING, {}, False, Conditioned(INACTIVE, "TimedOut", False)),
        (0, 1, ACTIVE, {}, True, Conditioned(INACTIVE, "NoTraffic", True)),
        (0, 0, ACTIVATING, {"initial_scale": 0}, False, Conditioned(INACTIVE, "NoTraffic", True)),
        (1, 1, ACTIVATING, {"initial_scale": 0}, False, Conditioned(INACTIVE, "NoTraffic", True)),
        (-1, 0, INACTIVE, {}, True, Conditioned(INACTIVE, "NoTraffic", True)),
        (-1, 1, INACTIVE, {}, True, Conditioned(INACTIVE, "NoTraffic", True)),
        (-1, 1, ACTIVE, {}, True, Conditioned(ACTIVE, "", True)),
        (-1, 0, ACTIVATING, {}, False, Conditioned(ACTIVATING, "Queued", False)),
        (1, 0, INACTIVE, {}, True, Conditioned(ACTIVATING, "Queued", True)),
    ],
)
def test_the_condition_of_a_revision(
    wanted: int, ready: int, before: Condition, fields: dict[str, int], was: bool, expected: Conditioned
) -> None:
    assert active_condition(wanted, ready, before, ZeroRules(**fields), is_initialized=was) == expected  # type: ignore[arg-type]


def test_the_steps_of_a_revision_behind_a_room_that_is_always_in_the_path() -> None:
    steps = ZeroSteps(ZeroRules(stable_window_s=10.0, grace_s=5.0, progress_deadline_s=100.0), T0)
    assert repr(steps) == "<ZeroSteps Activating since 1.7e+09>"
    assert steps.step(T0 + 1, 0, 2, 0) == 2, "it is activating: what exists stays"
    assert steps.step(T0 + 2, 2, 2, 2) == 2
    assert steps.step(T0 + 3, 0, 2, 2) == 1, "active for less than a window"
    assert steps.step(T0 + 11.9, 0, 1, 1) == 1
    assert steps.step(T0 + 12, 0, 1, 1) == 1, "inactive now, and still there"
    assert steps.step(T0 + 13, 0, 1, 1) == 0
    assert steps.step(T0 + 14, 3, 0, 0) == 3
    assert steps.step(T0 + 15, 0, 3, 1) == 3, "activating again"
    assert steps.step(T0 + 144, 0, 3, 0) == 3
    assert steps.step(T0 + 144.1, 0, 3, 0) == 0, "the deadline and 30 s are over"


def test_a_clock_that_was_set_back_makes_no_time_negative() -> None:
    steps = ZeroSteps(ZeroRules(stable_window_s=10.0), T0)
    assert steps.step(T0, 1, 1, 1) == 1
    assert steps.step(T0 - 100, 0, 1, 1) == 1
    assert steps.step(T0 + 10, 0, 1, 1) == 1
    assert steps.step(T0 + 11, 0, 1, 1) == 0
