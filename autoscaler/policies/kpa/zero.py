"""Knative's protocol for applying a decision: bounds, scale to zero in steps, and the condition that the steps wait
for.

The exact protocol, case by case (``tests/golden``), as pure functions. Policy ``kpa`` takes its conditions and times
from here with ``policy.zero-protocol: knative``. Otherwise ``tidegate.autoscaler.decisions.limits`` decides, since
nothing has to be switched over before one of our revisions may go to zero (docs/inside/autoscaling.md lists the
differences).

A revision is *activating* while too few replicas are ready for the first time or again, *active* while it serves, and
*inactive* once it is not wanted. Requests then go through the waiting room (Knative's activator), which must be known
to be in the path before the last replica may go.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tidegate.autoscaler.policies.kpa.parameters import Derived

ACTIVATION_SLACK_S = 30.0
"""Time beyond the progress deadline before an activation counts as failed."""
PROXY_LOOK_AGAIN_S = 3.0
"""Time until a revision that has just become inactive behind the waiting room is looked at again."""
UNKNOWN = -1
"""Number of wanted replicas while nothing is decided."""


class Condition(StrEnum):
    ACTIVE = "Active"
    INACTIVE = "Inactive"
    ACTIVATING = "Activating"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroRules:
    """The parameters of a revision that the protocol uses."""

    min_scale: int = 0
    max_scale: int = 0
    initial_scale: int = 1
    is_reachable: bool = True
    stable_window_s: float = 60.0
    grace_s: float = 30.0
    """Time that the waiting room must have been in the path."""
    retention_s: float = 0.0
    progress_deadline_s: float = 600.0
    is_enabled: bool = True
    """False: one replica always stays."""
    is_room_always_in_path: bool = False
    """True with a burst capacity of -1: nothing has to be probed."""


def rules(derived: Derived, *, grace_s: float, progress_deadline_s: float, is_enabled: bool) -> ZeroRules:
    """Returns the rules that follow from a revision's decision parameters and the cluster's settings."""
    parameters = derived.parameters
    return ZeroRules(
        min_scale=derived.min_scale,
        max_scale=derived.max_scale,
        initial_scale=derived.initial_scale,
        is_reachable=parameters.reachable,
        stable_window_s=parameters.stable_window_s,
        grace_s=grace_s,
        retention_s=derived.retention_s if parameters.reachable else 0.0,
        progress_deadline_s=progress_deadline_s,
        is_enabled=is_enabled,
        is_room_always_in_path=not parameters.has_scrape_target,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The outcome of a decision."""

    wanted: int
    """The number that counts from now on; -1: still unknown."""
    replicas: int | None = None
    """Replicas to have; None if nothing changes."""
    again_in_s: float | None = None
    """Time after which the decision is repeated, if nothing happens before."""
    is_probe_needed: bool = False
    """True if the waiting room was not found in the path: it is to be probed until it is."""


def apply(
    desired: int,
    present: int,
    condition: Condition,
    in_condition_s: float,
    room_in_path_s: float | None,
    rules: ZeroRules,
    *,
    is_initialized: bool,
    probe: Callable[[], bool],
) -> Applied:
    """Applies one decision for ``present`` replicas. ``room_in_path_s``: for how long the waiting room is known to be
    in the path, None if it is not. ``is_initialized``: the initial scale was reached once. ``probe``: returns whether a
    request would come through the waiting room now."""
    if desired < 0 and condition is not Condition.ACTIVATING:
        return Applied(wanted=desired)
    wanted = _bounded(desired, rules, is_initialized)
    if wanted > 0:
        return _patched(wanted, present)
    if not rules.is_enabled:
        return _patched(1, present)
    match condition:
        case Condition.ACTIVATING:
            limit_s = rules.progress_deadline_s + ACTIVATION_SLACK_S
            return _patched(0, present) if in_condition_s > limit_s else Applied(wanted=UNKNOWN, again_in_s=limit_s)
        case Condition.ACTIVE:
            left_s = rules.stable_window_s - in_condition_s
            if left_s <= 0:
                return Applied(wanted=0, again_in_s=None if room_in_path_s is None else PROXY_LOOK_AGAIN_S)
            one = _patched(1, present)
            return Applied(wanted=1, replicas=one.replicas, again_in_s=left_s)
        case Condition.INACTIVE:
            return _from_inactive(present, in_condition_s, room_in_path_s or 0.0, rules, probe)


def _bounded(desired: int, rules: ZeroRules, is_initialized: bool) -> int:
    low = rules.min_scale
    if rules.initial_scale > 1 and not is_initialized and rules.is_reachable:
        low = max(low, rules.initial_scale)
    if desired < low:
        return low
    return min(desired, rules.max_scale) if rules.max_scale else desired


def _patched(wanted: int, present: int) -> Applied:
    return Applied(wanted=wanted, replicas=wanted if wanted != present else None)


def _from_inactive(
    present: int, in_condition_s: float, room_in_path_s: float, rules: ZeroRules, probe: Callable[[], bool]
) -> Applied:
    if not rules.is_room_always_in_path and not probe():
        return Applied(wanted=0, is_probe_needed=True)
    if in_condition_s >= max(rules.grace_s, rules.retention_s):
        return _patched(0, present)
    if rules.retention_s > 0 and in_condition_s < rules.retention_s:
        return Applied(wanted=0, again_in_s=rules.retention_s - in_condition_s)
    left_s = rules.grace_s - room_in_path_s
    return _patched(0, present) if left_s <= 0 else Applied(wanted=0, again_in_s=left_s)


@dataclass(frozen=True, slots=True)
class Conditioned:
    condition: Condition
    reason: str
    """Empty while active."""
    is_initialized: bool


def active_condition(
    wanted: int, ready: int, before: Condition, rules: ZeroRules, *, is_initialized: bool
) -> Conditioned:
    """Returns the condition of a revision with ``ready`` replicas that is to serve with ``wanted`` ones (-1:
    unknown)."""
    least = max(rules.min_scale, 1) if is_initialized else max(rules.min_scale, rules.initial_scale)
    is_enough = ready >= least
    is_initialized = is_initialized or is_enough
    if wanted == 0 or least == 0:
        timed_out = before is Condition.ACTIVATING and least > 0
        return Conditioned(Condition.INACTIVE, "TimedOut" if timed_out else "NoTraffic", is_initialized)
    if wanted > 0 or before is not Condition.INACTIVE:
        if is_enough:
            return Conditioned(Condition.ACTIVE, "", is_initialized)
        return Conditioned(Condition.ACTIVATING, "Queued", is_initialized)
    return Conditioned(Condition.INACTIVE, "NoTraffic", is_initialized)


class ZeroSteps:
    """The protocol for one revision behind a waiting room that is always in the path, so that it is never probed."""

    __slots__ = ("_condition", "_is_initialized", "_since", "rules")

    def __init__(self, rules: ZeroRules, now: float) -> None:
        self.rules = rules
        self._condition = Condition.ACTIVATING
        self._since = now
        self._is_initialized = False

    def step(self, now: float, desired: int, present: int, ready: int) -> int:
        """Returns the replicas to have. ``present``: those that exist; ``desired``: the number that the windows ask
        for."""
        in_condition_s = max(0.0, now - self._since)
        applied = apply(
            desired,
            present,
            self._condition,
            in_condition_s,
            math.inf,
            self.rules,
            is_initialized=self._is_initialized,
            probe=lambda: True,
        )
        found = active_condition(
            applied.wanted, ready, self._condition, self.rules, is_initialized=self._is_initialized
        )
        if found.condition is not self._condition:
            self._condition, self._since = found.condition, now
        self._is_initialized = found.is_initialized
        if applied.replicas is not None:
            return applied.replicas
        return applied.wanted if applied.wanted > 0 else present

    def __repr__(self) -> str:
        return f"<ZeroSteps {self._condition} since {self._since:g}>"
