"""Limits between a policy's recommendation and a decision: bounds, the way to zero and back, accelerator capacity.

Order: missing data, then zero, then minimum (and initial scale), maximum, capacity. Every limit that bites leaves a
reason. The rules for zero, ours and not Knative's (whose gateway has to be switched over first):

- a revision goes to zero only when it has been idle for its ``scale-to-zero-after`` (no arrival, nothing waiting,
  nothing running), measured from the moment it was last ready, and only on complete data; then it goes whatever
  average the policy still remembers;
- more than one replica goes to one first;
- a starting replica is not stopped before it is ready: a request has asked for it;
- a revision at zero stays there until a request waits for it, unless its last replica broke: then another one is
  started, within the time for which the broken one would have stayed.
"""

import msgspec

from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.measure.observation import Observation
from tidegate.function import Scaling
from tidegate.records.decision import Reason


class LimitContext(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The decider's state of a revision that the limits need."""

    idle_s: float
    """Time since the last sign of work or since the revision became ready, whichever is later."""
    is_initial: bool = False
    """True until the initial scale has been reached."""
    is_activating: bool = False
    """True while an activation was decided and its replica has not been seen."""
    activation_scale: int = 1
    """Replicas that a revision at zero gets when it wakes."""
    is_lost: bool = False
    """True if the last replica broke, and none has been ready since. ``idle_s`` then goes on from before."""
    retention_s: float = 0.0
    """Time that the last replica stays beyond ``scale-to-zero-after``."""


def bounded(
    recommended: int | None,
    observation: Observation,
    scaling: Scaling,
    context: LimitContext,
    *,
    is_zero_settled: bool = False,
    starts_ahead: bool = False,
) -> tuple[int | None, tuple[Reason, ...]]:
    """Returns the number of replicas to have, or None to hold, with the reasons of every limit that bit.
    ``is_zero_settled``: the policy went through a protocol of its own before it recommended zero. ``starts_ahead``: its
    number counts at zero as well."""
    reasons: list[Reason] = []
    floor, code = floor_of(observation, scaling, is_initial=context.is_initial)
    desired = _hold_on_incomplete_data(recommended, observation, reasons)
    if floor == 0 and not (is_zero_settled and observation.existing > 0):
        ahead = desired if starts_ahead and observation.existing == 0 else None
        desired = _zero_protocol(desired, observation, scaling, context, reasons)
        if ahead is not None and ahead > (desired or 0):
            reasons = [reason("ahead", f"{ahead} for what is expected")]
            desired = ahead
    if desired is None and observation.existing >= floor:
        return None, tuple(reasons)
    raised = max(desired or 0, floor)
    if desired is None or raised > desired:
        reasons.append(reason(code, f"{'nothing' if desired is None else desired} raised to {raised}"))
    return capped(raised, observation, scaling, reasons), tuple(reasons)


def floor_of(observation: Observation, scaling: Scaling, *, is_initial: bool) -> tuple[int, str]:
    """Returns the least number of replicas, and the code of the limit that it comes from."""
    floor, code = scaling.min_scale, "raised_to_min"
    if observation.least > floor:
        floor, code = observation.least, "window_minimum"
    if observation.is_rolled_out and floor < 1:
        floor, code = 1, "rollout_awake"
    if is_initial and scaling.initial_scale > floor:
        floor, code = scaling.initial_scale, "initial_scale"
    return floor, code


def dry_run_floor(
    recommended: int | None, observation: Observation, scaling: Scaling, context: LimitContext, kept: int
) -> tuple[int | None, tuple[Reason, ...]]:
    """Returns the number that a dry run carries out, or None for no action. A dry run keeps the present size (``kept``,
    broken replicas replaced), at least the minimum (and initial) scale, and starts one replica once a request waits."""
    least = max(scaling.min_scale, observation.least, int(observation.is_rolled_out))
    floor, existing, why = max(least, kept), observation.existing, f"{kept} kept"
    if context.is_initial and scaling.initial_scale > floor:
        floor, why = scaling.initial_scale, "initial scale"
    elif least > kept:
        why = "minimum scale"
    if floor == 0 and (observation.waiting > 0 or context.is_activating):
        floor, why = 1, "a request waits"
    if floor <= existing:
        return None, ()
    stated = "to hold" if recommended is None else str(recommended)
    reasons = [reason("dry_run_start", f"{why}: {floor}; the policy wants {stated}")]
    desired = capped(floor, observation, scaling, reasons)
    return (desired, tuple(reasons)) if desired > existing else (None, ())


def within_total(desired: int | None, observation: Observation) -> tuple[int | None, tuple[Reason, ...]]:
    """Returns ``desired`` (None: to hold) under the share of this function in the limit over all functions."""
    wanted, most = observation.existing if desired is None else desired, observation.most
    if most is None or wanted <= most:
        return desired, ()
    return most, (reason("capped_by_total", f"wanted {wanted}, its share is {most}"),)


def capped(desired: int, observation: Observation, scaling: Scaling, reasons: list[Reason]) -> int:
    """Returns ``desired`` under the maximum scale and the accelerators' room; adds a reason for each that bites."""
    if 0 < scaling.max_scale < desired:
        reasons.append(reason("capped_by_max", f"wanted {desired}, maximum {scaling.max_scale}"))
        desired = scaling.max_scale
    if desired > 0 and not observation.groups:
        reasons.append(reason("no_accelerator", f"wanted {desired}"))
        return 0
    ceiling = observation.ceiling
    if ceiling is not None and desired > ceiling:
        reasons.append(reason("capped_by_capacity", f"wanted {desired}, the accelerators take {ceiling}"))
        desired = ceiling
    return desired


def _hold_on_incomplete_data(recommended: int | None, observation: Observation, reasons: list[Reason]) -> int | None:
    existing = observation.existing
    if recommended is None or observation.complete or recommended >= existing:
        return recommended
    reasons.append(reason("hold_stale_metrics", f"{recommended} wanted, {existing} kept"))
    return existing


def _zero_protocol(
    desired: int | None, observation: Observation, scaling: Scaling, context: LimitContext, reasons: list[Reason]
) -> int | None:
    after = scaling.scale_to_zero_after_s + context.retention_s
    if observation.existing == 0:
        return _at_zero(observation, context, after, reasons)
    if observation.ready == 0:
        if desired == 0:
            reasons.append(reason("starting"))
            return 1
        return desired
    is_quiet = (
        observation.complete and observation.waiting == 0 and observation.concurrency == 0 and observation.rps == 0
    )
    if is_quiet and context.idle_s >= after:
        if observation.existing > 1:
            reasons.append(reason("one_before_zero", f"idle for {figure(context.idle_s)} s"))
            return 1
        reasons.append(reason("idle", f"{figure(context.idle_s)} s >= {figure(after)} s"))
        return 0
    if desired == 0:
        reasons.append(reason("not_idle_yet", f"{figure(context.idle_s)} s < {figure(after)} s"))
        return 1
    return desired


def _at_zero(observation: Observation, context: LimitContext, after: float, reasons: list[Reason]) -> int:
    """At zero always starts ``activation_scale`` replicas, whatever the queue. The policy's averages predate the idle
    time; the load counts again once a replica is starting. A last replica that broke is replaced as long as it would
    not have been idle for ``after`` seconds."""
    if observation.waiting > 0:
        reasons.append(reason("activation", f"{observation.waiting} waiting"))
        return context.activation_scale
    if context.is_lost and context.idle_s < after:
        reasons.append(reason("restart", f"idle for {figure(context.idle_s)} s < {figure(after)} s"))
        return 1
    if context.is_activating:
        reasons.append(reason("activating"))
        return context.activation_scale
    reasons.append(reason("asleep"))
    return 0
