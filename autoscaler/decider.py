"""One decision per revision and tick: policy, limits, accelerators, reasons.

The decider keeps only what must survive between ticks: the policy's windows, the last wanted number, and whether the
initial scale was reached. Observations come from the collector; ``now`` is an argument. Activations come between ticks
and are idempotent: however many gateway workers push, one push gets the decision and the others get a hold.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from tidegate.autoscaler.decisions.groups import fitted, leaving, spread, too_slow
from tidegate.autoscaler.decisions.limits import LimitContext, bounded, capped, dry_run_floor, floor_of, within_total
from tidegate.autoscaler.decisions.places import without_given_up
from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.measure.observation import GivenUp, Observation
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
_IS_LOST = "is_lost"
"""Name of the part of that state that is recorded only while it is true, as recordings made before have none."""


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
    is_lost: bool = False
    """The last replica broke, and none has been ready since. ``up_since`` stays meanwhile: a crash does not lengthen
    the idle time."""
    last: Decision | None = field(default=None, repr=False)
    is_zero_settled: bool = False
    """Whether the policy goes to zero by steps of its own, as of its last recommendation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idleness:
    """Why a revision without work has replicas."""

    idle_s: float
    zero_in_s: float | None
    """Time until it goes to zero if no request comes. None: something keeps it, or its policy has steps of its own."""
    kept_by: str
    """Code of the limit, or of the policy's last reason, that keeps replicas; empty if it is their time alone."""


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

    def follow(self, revision: Revision, now: float) -> None:
        """Goes on with a known revision under another SLA or policy, where it is. A policy that stays keeps what it
        knows. Raises InvalidInputError for an unknown policy."""
        state, ready = self._state(revision.id), 0
        if state.last is not None:
            ready = state.last.ready
        if state.revision.function.scaling == revision.function.scaling:
            registry.row(revision.function.scaling.policy).retarget(state.policy, revision.function)
        else:
            state.policy = registry.build(revision.function, now, ready)
        state.revision = revision

    def snapshot(self, revision_id: str) -> Plain:
        """Returns the state of a revision as plain data. Raises UnknownRevisionError, StateError."""
        known = self._state(revision_id)
        function, keeps = known.revision.function, registry.row(known.revision.function.scaling.policy).keeps
        remembered = {name: getattr(known, name) for name in _REMEMBERED}
        if known.is_lost:
            remembered[_IS_LOST] = True
        return remembered | {"policy": snapshot(known.policy, function, keeps)}

    def restore(self, revision: Revision, remembered: Plain) -> None:
        """Takes a revision under control with the state of :meth:`snapshot`. Raises StateError, and InvalidInputError
        for an unknown policy."""
        function = revision.function
        row = registry.row(function.scaling.policy)
        if not (isinstance(remembered, dict) and remembered.keys() - {_IS_LOST} == {*_REMEMBERED, "policy"}):
            raise StateError(f"a decider's state has {', '.join((*_REMEMBERED, 'policy'))}")
        if type(remembered["policy"]) is not dict or recorded_name(row.keeps[0]) not in remembered["policy"]:
            raise StateError(f"not a state of policy {row.name}")
        given = {name: remembered[name] for name in (*_REMEMBERED, _IS_LOST) if name in remembered}
        policy = restored(remembered["policy"], function, row.keeps)
        self._states[revision.id] = _State(revision=revision, policy=policy, **given)

    def memory(self, revision_id: str) -> Plain | None:
        """Returns what a revision's policy has learnt as plain data; None if there is nothing. Raises StateError."""
        known = self._states.get(revision_id)
        if known is None:
            return None
        function = known.revision.function
        row = registry.row(function.scaling.policy)
        learnt = row.memory(known.policy)
        return None if learnt is None else snapshot(learnt, function, row.keeps)

    def resume(self, revision_id: str, memory: Plain, away_s: float) -> None:
        """Gives a revision's policy what :meth:`memory` returned ``away_s`` seconds ago. Raises StateError."""
        known = self._state(revision_id)
        row = registry.row(known.revision.function.scaling.policy)
        row.resume(known.policy, restored(memory, known.revision.function, row.keeps), away_s)

    def unlearn(self, revision_id: str) -> None:
        """Drops what a revision's policy has learnt; its windows, and what runs, stay. An unknown one is no fault."""
        known = self._states.get(revision_id)
        if known is not None:
            registry.row(known.revision.function.scaling.policy).forget(known.policy)

    def load(self, revision_id: str) -> tuple[float, float] | None:
        """Returns (mean arrivals per second of the last day, inferences of a request) if its policy knows."""
        known = self._states.get(revision_id)
        return None if known is None else registry.row(known.revision.function.scaling.policy).load(known.policy)

    def late_price_s(self, revision_id: str) -> float:
        """Returns what a late request is worth to a revision's policy, in seconds of one replica; 0 if unknown."""
        known = self._states.get(revision_id)
        return 0.0 if known is None else registry.row(known.revision.function.scaling.policy).late_price_s(known.policy)

    def words(self, revision_id: str) -> tuple[str, ...]:
        """Returns what a revision's policy has learnt, for people."""
        known = self._states.get(revision_id)
        return () if known is None else registry.row(known.revision.function.scaling.policy).words(known.policy)

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
        state.is_zero_settled = recommended.is_zero_settled
        desired, limits = bounded(
            recommended.desired,
            observation,
            scaling,
            context,
            is_zero_settled=recommended.is_zero_settled,
            starts_ahead=recommended.starts_ahead,
        )
        if scaling.dry_run:
            started, why = self._in_dry_run(state, observation, desired, context)
            if started is not None:
                placed = spread(started, observation.groups, slo_s=_slo_s(state))
                return self._decide(state, now, observation, started, placed, why, recommended.observed)
            limits += why
        else:
            state.wanted = observation.existing if desired is None else desired
            desired, shared = within_total(desired, observation)
            limits += shared
        groups = None if desired is None else self._groups(state, desired, recommended, usable)
        if desired and not observation.existing:
            limits += _passed_over(state, observation)
        if groups is not None and usable is not observation:
            groups, shrunk = leaving(groups, observation)
            limits, desired = limits + shrunk, sum(group.replicas for group in groups)
        if isinstance(observation.gives_up, GivenUp):
            held = spread(observation.existing, observation.groups) if groups is None else groups
            groups, given = without_given_up(held, observation, observation.gives_up)
            limits, desired = limits + given, sum(group.replicas for group in groups)
            state.is_initial = False  # its first start has been; it does not ask for its place again by itself
        return self._decide(
            state,
            now,
            observation,
            desired,
            groups,
            recommended.reasons + limits,
            recommended.observed,
            scaling.dry_run,
            recommended.cores,
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
        pushed. A replica that is still ready counts unless the last decision ended it: the gateway may know of its
        drain before the backend reports it, and an order to wake a variant comes only once.

        Raises UnknownRevisionError.
        """
        state = self._state(activation.revision)
        waiting = f"{activation.waiting} waiting, the oldest for {figure(activation.oldest_waiting_s * 1e3)} ms"
        is_ending = 0 < observation.existing <= _ended(state.last)
        if observation.ready > 0 and not is_ending:
            return self._hold(state, now, observation, reason("already_ready", waiting))
        if observation.starting > 0 or self._is_activating(state, now):
            return self._hold(state, now, observation, reason("already_starting", waiting))
        scaling = state.revision.function.scaling
        reasons = [reason("activation", waiting)]
        wanted = max(1, scaling.min_scale, 1 if scaling.dry_run else state.policy.activation_scale)
        if not observation.complete:
            wanted = max(wanted, observation.existing)  # what is not seen whole loses nothing
        if scaling.dry_run:
            reasons.append(reason("dry_run_start", "a request waits"))
        state.wanted = capped(wanted, observation, scaling, reasons)
        desired, shared = within_total(state.wanted, observation)
        reasons += shared
        observed = {"waiting": float(activation.waiting)}
        groups = None
        if desired is not None:
            groups = spread(desired, observation.groups, slo_s=_slo_s(state))
            reasons += _passed_over(state, observation)
        decision = self._decide(state, now, observation, desired, groups, tuple(reasons), observed)
        if is_ending and desired:
            state.activating_until = now + ACTIVATION_SEEN_WITHIN_S  # in case that it cannot be revived
        return decision

    def wanted(self, revision_id: str) -> int:
        """Returns the replicas wanted at the last decision without the limit over all functions."""
        state = self._states.get(revision_id)
        return 0 if state is None else state.wanted

    def idle_s(self, now: float, observation: Observation) -> float:
        """Returns how long the revision has had no work since it became ready."""
        state = self._states.get(observation.revision)
        up_since = None if state is None else state.up_since
        return observation.idle_s if up_since is None else min(observation.idle_s, now - up_since)

    def idleness(self, now: float, observation: Observation) -> Idleness | None:
        """Returns why the revision has replicas; None if it has work, or no replica is ready."""
        state = self._states.get(observation.revision)
        idle_s = self.idle_s(observation.at, observation)
        if state is None or not observation.ready or not observation.is_quiet:
            return None
        idle_s += max(0.0, now - observation.at)
        scaling = state.revision.function.scaling
        floor, code = floor_of(observation, scaling, is_initial=state.is_initial)
        left_s = max(0.0, scaling.scale_to_zero_after_s + state.policy.retention_s - idle_s)
        codes = [] if state.last is None else [each.code for each in state.last.reasons]
        has_time = not state.is_zero_settled or codes == ["not_idle_yet"]
        if floor or scaling.dry_run:
            return Idleness(idle_s=idle_s, zero_in_s=None, kept_by=code if floor else "")
        return Idleness(
            idle_s=idle_s,
            zero_in_s=left_s if has_time else None,
            kept_by="" if has_time else next(iter(codes[-1:]), ""),
        )

    def is_first_start(self, revision_id: str) -> bool:
        """Returns whether the revision was just deployed and has not reached its initial scale."""
        state = self._states.get(revision_id)
        return state is not None and state.is_initial

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
        if observation.ready > 0:
            state.is_lost = False
            if state.up_since is None:
                state.up_since = now
        elif not self._is_lost(state, now, observation):
            state.up_since = None
        if state.is_initial:
            bounds = (observation.ceiling, observation.most)
            goals = [scaling.initial_scale, scaling.max_scale or scaling.initial_scale, *bounds]
            state.is_initial = observation.ready < max(1, min(goal for goal in goals if goal is not None))
        return LimitContext(
            idle_s=self.idle_s(now, observation),
            is_initial=state.is_initial,
            is_activating=self._is_activating(state, now),
            activation_scale=state.policy.activation_scale,
            is_lost=state.is_lost,
            retention_s=state.policy.retention_s,
        )

    def _is_lost(self, state: _State, now: float, observation: Observation) -> bool:
        """Returns whether a revision without a ready replica lost its last one, and would still keep it."""
        if not state.is_lost and observation.lost and observation.existing == 0:
            state.is_lost = True
            state.up_since = now if state.up_since is None else state.up_since  # It broke within its first second.
        after = state.revision.function.scaling.scale_to_zero_after_s + state.policy.retention_s
        if state.is_lost and observation.existing == 0 and self.idle_s(now, observation) >= after:
            state.is_lost = False
        return state.is_lost

    def _recommendation(self, state: _State, observation: Observation, now: float) -> Recommendation:
        try:
            return state.policy.decide(observation, now)
        except (ArithmeticError, ValueError, LookupError) as error:
            # One function's figures must not stop the decisions of all others; the reason is in its decision log.
            return Recommendation(desired=None, reasons=(reason("policy_failed", f"{type(error).__name__}: {error}"),))

    def _groups(
        self, state: _State, desired: int, recommended: Recommendation, observation: Observation
    ) -> tuple[GroupDecision, ...]:
        slo_s = _slo_s(state)
        if recommended.groups is None or _takes_back(desired, observation):
            return spread(desired, observation.groups, slo_s=slo_s)
        if sum([group.replicas for group in recommended.groups]) == desired:
            return recommended.groups
        base = {group.accelerator: group.replicas for group in recommended.groups}
        return spread(desired, observation.groups, base, slo_s=slo_s)

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
        cores: int | UnsetType = UNSET,
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
            cores=None if cores is UNSET else cores,
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


def _ended(decision: Decision | None) -> int:
    """Returns how many replicas a decision saw and ended: all of them, or none. A dry run ends none."""
    if decision is None or decision.desired != 0 or decision.is_dry_run:
        return 0
    return decision.ready + int(decision.observed["starting"])


def _takes_back(desired: int, observation: Observation) -> bool:
    """Returns whether draining replicas are taken back before others start: under the limit over all functions each
    still has its place."""
    if observation.most is None or observation.existing >= desired:
        return False
    draining = sum(group.draining for group in observation.groups)
    return draining > 0 and desired + draining > observation.most


def _slo_s(state: _State) -> float | None:
    return state.revision.function.sla.latency_s


def _passed_over(state: _State, observation: Observation) -> tuple[Reason, ...]:
    """Returns a reason where a first replica avoids an accelerator that is too slow for the target."""
    slo_s = _slo_s(state)
    slow = too_slow(observation.groups, slo_s)
    if slo_s is None or not slow or len(slow) == len(observation.groups):
        return ()
    seen = ", ".join(f"{group.accelerator} {figure((group.unloaded_s or 0.0) * 1e3)} ms" for group in slow)
    return (reason("passed_over", f"{seen}, target {figure(slo_s * 1e3)} ms"),)
