"""One decision per revision and tick: policy, limits, accelerators, reasons.

The decider keeps only what must survive between ticks: the policy's windows, the last wanted number, and whether the
initial scale was reached. Observations come from the collector; ``now`` is an argument. Activations come between ticks
and are idempotent: however many gateway workers push, one push gets the decision and the others get a hold.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.autoscaler.decisions.groups import fitted, leaving, spread
from tidegate.autoscaler.decisions.limits import LimitContext, bounded, capped, dry_run_floor, within_total
from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.measure.observation import Observation
from tidegate.autoscaler.policies import registry
from tidegate.autoscaler.policies.contract import Policy, Recommendation
from tidegate.autoscaler.policies.policy_state import Plain, StateError, recorded_name, restored, snapshot
from tidegate.errors import TidegateError
from tidegate.function import Revision
from tidegate.records.decision import Decision, GroupDecision, Reason
from tidegate.records.gateway_sample import Activation

ACTIVATION_SEEN_WITHIN_S = 10.0
"""Time in which a decided start from zero must show up as a replica; afterwards another push may start one."""


_REMEMBERED = ("is_initial", "up_since", "activating_until", "kept")
"""Names of the decider's own state of a revision, beside its policy's; plain values."""


class UnknownRevisionError(TidegateError):
    """The revision was never applied, or was forgotten."""


@dataclass(slots=True)
class _State:
    """The state of one revision."""

    revision: Revision
    policy: Policy
    is_initial: bool
    up_since: float | None = None
    """When the revision was last seen to get a ready replica; None if it has none."""
    activating_until: float | None = None
    """Until when a decided start from zero may be invisible; then another push may start one."""
    wanted: int = 0
    """Replicas wanted without the limit over all functions."""
    kept: int = 0
    """Replicas that a dry run keeps: the maximum seen so far."""
    last: Decision | None = field(default=None, repr=False)


class Decider:
    """Makes decisions for any number of revisions; one call, one revision."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: dict[str, _State] = {}

    def apply(self, revision: Revision, now: float, *, fresh: bool = True, ready: int = 0) -> None:
        """Makes a revision known. Applying it again changes nothing.

        ``fresh``: it was just deployed and gets its initial scale. Without it the revision comes back after a restart
        of the control process. ``ready``: its ready replicas. Raises InvalidInputError for an unknown policy.
        """
        known = self._states.get(revision.id)
        if known is not None and known.revision == revision:
            return
        self._states[revision.id] = _State(
            revision=revision,
            policy=registry.build(revision.function, now, ready),
            is_initial=fresh and revision.function.scaling.initial_scale > 0,
        )

    def snapshot(self, revision_id: str) -> Plain:
        """Returns the state of a revision as plain data. Raises UnknownRevisionError, StateError."""
        known = self._state(revision_id)
        function, keeps = known.revision.function, registry.row(known.revision.function.scaling.policy).keeps
        remembered = {name: getattr(known, name) for name in _REMEMBERED}
        return remembered | {"policy": snapshot(known.policy, function, keeps)}

    def restore(self, revision: Revision, remembered: Plain) -> None:
        """Takes a revision under control with the state of :meth:`snapshot`. Raises StateError, and InvalidInputError
        for an unknown policy."""
        function = revision.function
        row = registry.row(function.scaling.policy)
        if not (isinstance(remembered, dict) and remembered.keys() == {*_REMEMBERED, "policy"}):
            raise StateError(f"a decider's state has {', '.join((*_REMEMBERED, 'policy'))}")
        if type(remembered["policy"]) is not dict or recorded_name(row.keeps[0]) not in remembered["policy"]:
            raise StateError(f"not a state of policy {row.name}")
        given = {name: remembered[name] for name in _REMEMBERED}
        policy = restored(remembered["policy"], function, row.keeps)
        self._states[revision.id] = _State(revision=revision, policy=policy, **given)

    def forget(self, revision_id: str) -> None:
        """Drops a revision; an unknown one is no fault."""
        self._states.pop(revision_id, None)

    @property
    def revisions(self) -> tuple[Revision, ...]:
        return tuple(state.revision for state in self._states.values())

    def revision(self, revision_id: str) -> Revision | None:
        state = self._states.get(revision_id)
        return None if state is None else state.revision

    def tick(self, now: float, observation: Observation) -> Decision:
        """Returns the decision for the observed revision. Raises UnknownRevisionError."""
        state = self._state(observation.revision)
        scaling = state.revision.function.scaling
        context = self._context(state, now, observation)
        usable = fitted(observation)
        recommended = self._recommendation(state, usable, now)
        desired, limits = bounded(
            recommended.desired, observation, scaling, context, is_zero_settled=recommended.is_zero_settled
        )
        if scaling.dry_run:
            started, why = self._in_dry_run(state, observation, desired, context)
            if started is not None:
                placed = spread(started, observation.groups)
                return self._decide(state, now, observation, started, placed, why, recommended.observed)
            limits += why
        else:
            state.wanted = observation.existing if desired is None else desired
            desired, shared = within_total(desired, observation)
            limits += shared
        groups = None if desired is None else self._groups(desired, recommended, usable)
        if groups is not None and usable is not observation:
            groups, shrunk = leaving(groups, observation)
            limits, desired = limits + shrunk, sum(group.replicas for group in groups)
        return self._decide(
            state,
            now,
            observation,
            desired,
            groups,
            recommended.reasons + limits,
            recommended.observed,
            scaling.dry_run,
        )

    def _in_dry_run(
        self, state: _State, observation: Observation, desired: int | None, context: LimitContext
    ) -> tuple[int | None, tuple[Reason, ...]]:
        """Returns the number that a dry run carries out, or None for no action. The limit over all functions counts
        that number and what exists, never the policy's recommendation."""
        existing = observation.existing
        state.kept = max(state.kept, existing)
        started, why = dry_run_floor(desired, observation, state.revision.function.scaling, context, state.kept)
        state.wanted = existing if started is None else started
        granted, shared = within_total(started, observation)
        if started is None or granted is None or granted <= existing:
            return None, shared
        return granted, why + shared

    def activate(self, activation: Activation, now: float, observation: Observation) -> Decision:
        """Decides on an activation: a request waits and no replica is ready. One start follows, however often it is
        pushed.

        Raises UnknownRevisionError.
        """
        state = self._state(activation.revision)
        waiting = f"{activation.waiting} waiting, the oldest for {figure(activation.oldest_waiting_s * 1e3)} ms"
        if observation.ready > 0:
            return self._hold(state, now, observation, reason("already_ready", waiting))
        if observation.starting > 0 or self._is_activating(state, now):
            return self._hold(state, now, observation, reason("already_starting", waiting))
        scaling = state.revision.function.scaling
        reasons = [reason("activation", waiting)]
        wanted = max(1, scaling.min_scale, 1 if scaling.dry_run else state.policy.activation_scale)
        if scaling.dry_run:
            reasons.append(reason("dry_run_start", "a request waits"))
        state.wanted = capped(wanted, observation, scaling, reasons)
        desired, shared = within_total(state.wanted, observation)
        reasons += shared
        observed = {"waiting": float(activation.waiting)}
        groups = None if desired is None else spread(desired, observation.groups)
        return self._decide(state, now, observation, desired, groups, tuple(reasons), observed)

    def wanted(self, revision_id: str) -> int:
        """Returns the replicas wanted at the last decision without the limit over all functions."""
        state = self._states.get(revision_id)
        return 0 if state is None else state.wanted

    def idle_s(self, now: float, observation: Observation) -> float:
        """Returns how long the revision has had no work since it became ready."""
        state = self._states.get(observation.revision)
        up_since = None if state is None else state.up_since
        return observation.idle_s if up_since is None else min(observation.idle_s, now - up_since)

    def last(self, revision_id: str) -> Decision | None:
        """Returns the last decision of a revision, holds included."""
        state = self._states.get(revision_id)
        return None if state is None else state.last

    def _state(self, revision_id: str) -> _State:
        state = self._states.get(revision_id)
        if state is None:
            known = ", ".join(sorted(self._states)) or "none"
            raise UnknownRevisionError(f"revision {revision_id} was never applied; known: {known}")
        return state

    def _is_activating(self, state: _State, now: float) -> bool:
        return state.activating_until is not None and now < state.activating_until

    def _context(self, state: _State, now: float, observation: Observation) -> LimitContext:
        scaling = state.revision.function.scaling
        if observation.existing > 0:
            state.activating_until = None
        if observation.ready == 0:
            state.up_since = None
        elif state.up_since is None:
            state.up_since = now
        if state.is_initial:
            bounds = (observation.ceiling, observation.most)
            goals = [scaling.initial_scale, scaling.max_scale or scaling.initial_scale, *bounds]
            state.is_initial = observation.ready < max(1, min(goal for goal in goals if goal is not None))
        return LimitContext(
            idle_s=self.idle_s(now, observation),
            is_initial=state.is_initial,
            is_activating=self._is_activating(state, now),
            activation_scale=state.policy.activation_scale,
            retention_s=state.policy.retention_s,
        )

    def _recommendation(self, state: _State, observation: Observation, now: float) -> Recommendation:
        try:
            return state.policy.decide(observation, now)
        except (ArithmeticError, ValueError, LookupError) as error:
            # One function's figures must not stop the decisions of all others; the reason is in its decision log.
            return Recommendation(desired=None, reasons=(reason("policy_failed", f"{type(error).__name__}: {error}"),))

    def _groups(self, desired: int, recommended: Recommendation, observation: Observation) -> tuple[GroupDecision, ...]:
        most, draining = observation.most, sum(group.draining for group in observation.groups)
        # Under the limit over all functions a draining replica still has its place: it is taken back, not replaced.
        is_tight = most is not None and observation.existing < desired and desired + draining > most
        if recommended.groups is None or (is_tight and draining > 0):
            return spread(desired, observation.groups)
        if sum(group.replicas for group in recommended.groups) == desired:
            return recommended.groups
        return spread(desired, observation.groups, {group.accelerator: group.replicas for group in recommended.groups})

    def _hold(self, state: _State, now: float, observation: Observation, why: Reason) -> Decision:
        return self._decide(state, now, observation, None, None, (why,), {})

    def _decide(
        self,
        state: _State,
        now: float,
        observation: Observation,
        desired: int | None,
        groups: tuple[GroupDecision, ...] | None,
        reasons: tuple[Reason, ...],
        observed: Mapping[str, float],
        is_dry_run: bool = False,
    ) -> Decision:
        if desired == 0:
            state.activating_until = None
        elif (
            desired is not None and not is_dry_run and observation.existing == 0 and not self._is_activating(state, now)
        ):
            state.activating_until = now + ACTIVATION_SEEN_WITHIN_S
        state.last = Decision(
            function=state.revision.function.name,
            revision=observation.revision,
            at=now,
            policy=state.revision.function.scaling.policy,
            ready=observation.ready,
            desired=desired,
            groups=groups,
            reasons=reasons,
            observed={**figures(observation), **observed},
            is_dry_run=is_dry_run,
        )
        return state.last

    def __repr__(self) -> str:
        return f"<Decider {len(self._states)} revisions>"


def figures(observation: Observation) -> dict[str, float]:
    """Returns the figures of an observation that every decision record carries."""
    values = {
        "concurrency": observation.concurrency,
        "lambda_ips": observation.lambda_ips,
        "waiting": float(observation.waiting),
        "starting": float(observation.starting),
        "idle_s": observation.idle_s,
    }
    if observation.latency_s is not None:
        values["latency_s"] = observation.latency_s
    if observation.age_s is not None:
        values["age_s"] = observation.age_s
    tokens = observation.tokens
    if tokens is not None:
        values["lambda_tps"] = tokens.lambda_tps
        values["tps"] = tokens.prompt_tps + tokens.completion_tps
        values |= {f"mu_tps_{name}": each.mu_tps for name, each in tokens.groups.items() if each.mu_tps is not None}
    return values
