"""The SLA policy: replicas by kind, so that the load is carried inside the latency target (SMIF).

The rule is ``tidegate.autoscaler.policies.smif.rule``. This file feeds it from observations and adapts it to practice,
where a rate is noisy, a percentile remembers what was mended already, and a replica takes time to start. Where it
departs from the rule, and why:

- The load is what arrives, not what the groups have served (a full group serves less than it is sent), with its noise:
  nothing changes while the present size explains what was seen. Requests that wait beyond what is served within the
  target count on top. ``target-ips`` and ``target-tps`` are floors while there is traffic.
- Groups that exist are filled in order of price, so that an expensive replica without load goes first.
- The percentile is judged once a change of replicas has left its window, and only where clearly more answers are late
  than the SLA allows, in the window and over the last minutes. Where more replicas cannot help (the group is hardly
  busy, or its execution times alone miss the target) the load decides alone.
- The low watermark counts from the tail of the execution times: execution alone would otherwise forbid shrinking.
- A replica goes only if the ready ones that stay carry the load with N/(N-1) times the present share each, inside the
  target. A utilisation at which the target was missed is avoided for ``MISS_MEMORY_S``, doubled when it was true.
- Missing data: hold. A restart has an empty scale-in timer, so nothing shrinks for a cool-down.
- Service rates come, in this order, from the rate learnt at the limit, a given profile, the slots and the execution
  time (at most the expectation from the gain of higher occupancy so far), the best yield seen, the mean of the other
  groups; without any of them concurrency against slots decides.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tidegate.autoscaler.decisions.groups import order_of_price
from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.measure.observation import Observation
from tidegate.autoscaler.policies.contract import PolicyRow, Recommendation
from tidegate.autoscaler.policies.sla_basics import by_concurrency, floor_ips, held
from tidegate.autoscaler.policies.smif.kinds import (
    KindFacts,
    able_kinds,
    backlog_of,
    capacity_of,
    first_s,
    mean_batch,
    one_more,
    service_rate,
    utilization_at,
)
from tidegate.autoscaler.policies.smif.load import CERTAIN, NO_LOAD, STEADY_S, Load, LoadEstimate
from tidegate.autoscaler.policies.smif.outcome import held_back, recommendation
from tidegate.autoscaler.policies.smif.rule import Flag, RuleParameters, RuleResult, autoscale, ceil
from tidegate.autoscaler.policies.smif.scale_in import (
    LateShare,
    MissMemory,
    ScaleInTimer,
    SlowGroupHold,
    why_late,
    why_overloaded,
)
from tidegate.autoscaler.policies.smif.waiting import alone_s, waits_too_long
from tidegate.function import Function
from tidegate.manifest import policy_parameters as scaling_parameters
from tidegate.manifest.policy_parameters import SMIF_PARAMETERS
from tidegate.records.decision import Reason

SETTLE_S = 40.0
"""Time after a change of ready replicas in which the percentile still describes the time before: the latency window,
and the answers to what had waited."""
MISS_SIGMAS = 2.0
"""Standard deviations above the allowed late answers from which on late answers count as a miss."""
BUSY_SIGMAS = 3.5
"""Standard deviations between the seen load and the one that replicas are found too busy at, once the percentile has
settled; before, where it cannot be judged, ordinary certainty is enough."""
LATE_ANSWERS = 3
"""Fewer late answers than this are no miss: with few answers any percentile is one of them."""
HELD_S = 5.0
"""Time for which a refusal to shrink holds: its inputs change slowly."""
IDLE_SHARE = 0.25
"""A group busy for less of its time gains nothing from more replicas."""
TAIL_S = 65.0
"""Time after a change of the concurrency limit in which the tail of execution times still describes the old limit: its
window, and what had begun."""
STANDING_S = 15.0
"""A backlog of ``LARGE_BACKLOG`` that has stood for this long asks for one replica more; a larger one sooner, in
proportion."""
LARGE_BACKLOG = 2.0
"""A backlog of this many times what is served within the target is large."""
DRAIN_S = 10.0
"""Time in which a backlog is to be worked off."""
PARK_SHARE = 2.0 / 3.0
"""Part of the scale-to-zero time after which one replica is left (the rule's own 60 s of 90 s)."""
WORTH_A_START_S = 15.0
"""With less time than this until zero no replica is started only to park on."""
MANY = 1_000_000
"""Replicas of an accelerator without a known limit."""


class SmifPolicy:
    """The policy of one revision."""

    __slots__ = (
        "_backlog", "_calm", "_estimate", "_function", "_held", "_late", "_limits", "_parameters", "_q", "_rates",
        "_ready", "_scars", "_settled_at", "_slo_s", "_slowness", "_standing_since",
    )  # fmt: skip

    activation_scale = 1
    retention_s = 0.0

    def __init__(self, function: Function, now: float, ready: int) -> None:
        given: dict[str, Any] = scaling_parameters.values(SMIF_PARAMETERS, function.scaling.parameters)
        zero_s = function.scaling.scale_to_zero_after_s
        self._function = function
        self._slo_s = function.sla.latency_s or 3600.0
        self._parameters = RuleParameters(
            rho=given["target-utilization"] / 100.0,
            down_watermark=given["down-watermark"] / 100.0,
            cooldown_s=given["cooldown"],
            max_up_factor=given["max-up-factor"],
            scale_to_zero=function.scaling.min_scale == 0,
            zero_grace_s=zero_s,
        )
        self._q = function.sla.percentile / 100.0
        self._estimate = LoadEstimate()
        self._scars = MissMemory()
        self._calm: dict[str, ScaleInTimer] = {}
        self._rates: dict[str, tuple[str, float]] = {}
        """By group: origin of its service rate, and its mean over ``STEADY_S`` decisions."""
        self._late: dict[str, LateShare] = {}
        self._slowness: dict[str, SlowGroupHold] = {}
        self._limits: dict[str, tuple[int, float | None]] = {}
        """By group: its concurrency limit, and when that was last seen to change."""
        self._held: dict[str, tuple[float, str | None]] = {}
        """By group: until when the check for scale-in is not repeated, and its refusal."""
        self._ready: tuple[int, ...] = ()
        self._standing_since: float | None = None
        self._backlog = 0.0
        """Present requests over what is served within the target, as last seen."""
        self._settled_at = now + SETTLE_S

    def decide(self, observation: Observation, now: float) -> Recommendation:
        if observation.existing == 0 and observation.waiting == 0 and observation.concurrency == 0:
            self._estimate.forget()
            self._calm.clear()
            return Recommendation(desired=0, reasons=(reason("zero"),))
        if (nothing := held(observation)) is not None:
            return nothing
        self._note_changes(observation, now)
        reasons: list[Reason] = []
        kinds = self._kinds(observation, now, reasons)
        if kinds is None:
            p = self._parameters
            return by_concurrency(observation, self._function, tuple(reasons), used=p.rho, most_factor=p.max_up_factor)
        load = self._load(observation, kinds, now, reasons)
        if load.mid <= 0.0:
            return self._without_load(observation, kinds)
        feasible = able_kinds(kinds)
        fed = self._fed(load, feasible, observation, now, reasons)
        self._judge(kinds, feasible, load, fed, observation, now, reasons)
        result = autoscale(self._slo_s, kinds, self._parameters, 0.0)
        counts = self._after_checks(kinds, result, load, now, reasons)
        return recommendation(self._function, observation, kinds, counts, result, load, reasons)

    def retarget(self, function: Function) -> None:
        """Goes on under another SLA."""
        self._function = function
        self._slo_s = function.sla.latency_s or 3600.0
        self._q = function.sla.percentile / 100.0

    # --- facts

    def _note_changes(self, observation: Observation, now: float) -> None:
        ready, limits = tuple([group.ready for group in observation.groups]), self._limits
        if ready != self._ready:
            self._ready, self._settled_at = ready, now + SETTLE_S
        for group in observation.groups:
            limit = group.limit
            if limit is not None:
                known = limits.get(group.accelerator)
                if known is None or known[0] != limit:
                    limits[group.accelerator] = limit, None if known is None else now

    def _kinds(self, observation: Observation, now: float, reasons: list[Reason]) -> list[KindFacts] | None:
        """Returns groups in order of price with their service rates; None if no rate is known at all."""
        groups, slo_s, first = observation.groups, self._slo_s, first_s(observation)
        unit = self._function.concurrency_unit
        ordered = [groups[index] for index in order_of_price(tuple([group.price_per_hour for group in groups]))]
        rates = [service_rate(group, unit) for group in ordered]
        known = [mu for mu, _ in rates if mu > 0.0]
        if not known:
            return None
        mean = 0.0
        if len(known) < len(rates):
            mean = sum(known) / len(known)
            names = ", ".join([group.accelerator for group, (mu, _) in zip(ordered, rates, strict=True) if mu <= 0.0])
            reasons.append(reason("mu_unknown", f"{names}: as the others, {figure(mean)} inferences/s"))
        kinds = []
        for group, (mu, how) in zip(ordered, rates, strict=True):
            if mu <= 0.0:
                mu, how = mean, "as others"
            name, ready, room = group.accelerator, group.ready, group.room
            existing = ready + group.starting
            kind = KindFacts(
                group,
                mu,
                how,
                self._steady_mu(name, mu, how),
                existing,
                ready,
                MANY if room is None else existing + group.draining + room,
                group.unloaded_s,
            )
            if name in first:
                kind.execution_s, kind.is_stream = first[name], True
            execution_s = kind.execution_s
            if execution_s is not None and (execution_s > slo_s or name in self._slowness):
                kind.execution_s = self._counted_execution(kind, execution_s, now)
                kind.is_too_slow = kind.execution_s > slo_s
            kinds.append(kind)
        return kinds

    def _counted_execution(self, kind: KindFacts, execution_s: float, now: float) -> float:
        """Returns the execution time for the rule: for a kind that was too slow, the time that was seen then."""
        group, known = kind.group, self._slowness.get(kind.group.accelerator)
        if group.busy <= 0.0:
            return execution_s if known is None else known.held(now, execution_s)
        if known is None:
            known = self._slowness[group.accelerator] = SlowGroupHold()
        is_guess = not kind.is_stream and (group.min_execution_s or 0.0) > self._slo_s
        return known.update(now, execution_s, self._slo_s, is_guess=is_guess)

    def _steady_mu(self, name: str, mu: float, how: str) -> float:
        known = self._rates.get(name)
        mean = mu
        if known is not None and known[0] == how:
            mean = known[1] + (mu - known[1]) / STEADY_S
        self._rates[name] = (how, mean)
        return mu if mu < mean else mean

    def _load(self, observation: Observation, kinds: Sequence[KindFacts], now: float, reasons: list[Reason]) -> Load:
        """Returns the load: what arrives, what waits too long already, and the rate that is to be provided."""
        batch = mean_batch(observation)
        load = self._estimate.update(now, observation.lambda_ips, observation.rps * batch, max(1.0, batch))
        extra = 0.0
        if observation.waiting_inferences > 0:
            waiting = observation.waiting_inferences
            if observation.ready == 0:
                # Queued inferences over the time in which they came, at least a second.
                extra = max(0.0, waiting / max(1.0, observation.oldest_waiting_s) - load.mid)
            else:
                extra = max(0.0, waiting - capacity_of(kinds) * self._slo_s) / DRAIN_S
            if extra > 0.01 * load.mid:
                reasons.append(reason("backlog", f"{waiting} inferences wait: {figure(extra)}/s more"))
        self._note_standing(observation, kinds, now)
        if load.mid + extra <= 0.0:
            return NO_LOAD
        floor = floor_ips(self._function.sla, observation)
        if floor > load.mid + extra:
            reasons.append(reason("target_ips", f"{figure(floor)} instead of {figure(load.mid + extra)} inferences/s"))
        # A backlog is evidence of its own: then ordinary certainty is enough.
        sure = max(load.low, load.sure) if extra > 0.0 else load.sure
        if floor <= 0.0 and extra <= 0.0:
            return load
        return Load(*(max(floor, value + extra) for value in (load.mid, load.low, load.high, sure, load.steady)))

    def _note_standing(self, observation: Observation, kinds: Sequence[KindFacts], now: float) -> None:
        """Notes a standing backlog: ``LARGE_BACKLOG`` times what is served within the target, while nothing starts and
        nothing has just become ready, is no chance. Whatever the arrivals say, the size is too small."""
        self._backlog = backlog_of(observation, kinds, self._slo_s)
        if self._backlog < LARGE_BACKLOG or observation.starting or self._settled_at - SETTLE_S >= now:
            self._standing_since = None
        elif self._standing_since is None:
            self._standing_since = now

    # --- inputs of the rule

    def _fed(
        self, load: Load, feasible: Sequence[KindFacts], observation: Observation, now: float, reasons: list[Reason]
    ) -> float:
        """Returns the load that the rule decides upon: the one that the present size is right for, if it is among those
        that explain what was seen."""
        rho = self._parameters.rho
        carried = sum([rho * kind.mu_ips * kind.replicas for kind in feasible])
        if carried <= 0.0:
            return load.mid
        if (
            self._standing_since is not None
            and now - self._standing_since >= STANDING_S * LARGE_BACKLOG / self._backlog
        ):
            return one_more(load, feasible, carried)
        if load.sure > carried:
            is_guess = all(kind.how == "best seen" for kind in feasible if kind.replicas)
            if is_guess and self._is_calm(observation) and observation.waiting == 0:
                return carried  # The best yield seen so far is no limit, and no answer is late.
            return max(load.mid, load.sure)
        if self._is_too_busy(load, feasible, observation, now, reasons):
            return one_more(load, feasible, carried)
        return min(carried, load.high)

    def _is_too_busy(
        self, load: Load, feasible: Sequence[KindFacts], observation: Observation, now: float, reasons: list[Reason]
    ) -> bool:
        """Returns whether the existing replicas carry the load, but too busy for the target: requests are late, or wait
        too long to be in time, and Erlang's formula expects it at this load. Each alone may be chance, or the past;
        both together need no percentile that has settled."""
        if not waits_too_long(feasible, load.mid, self._slo_s, self._q):
            return False
        in_time = sum(kind.ready * kind.mu_ips * max(0.0, self._slo_s - (kind.execution_s or 0.0)) for kind in feasible)
        if observation.waiting_inferences <= in_time:
            answers = sum(kind.group.answers for kind in feasible)
            late, allowed = sum(kind.group.late for kind in feasible), answers * (1.0 - self._q)
            if late < LATE_ANSWERS or late < allowed + MISS_SIGMAS * math.sqrt(allowed):
                return False
        is_settled = now >= self._settled_at and observation.starting == 0
        likely = self._estimate.at_least(mean_batch(observation), BUSY_SIGMAS if is_settled else CERTAIN)
        if not waits_too_long(feasible, likely, self._slo_s, self._q):
            return False
        if is_settled:
            self._scars.missed(now, utilization_at(min(load.mid, load.steady), feasible))
        reasons.append(reason("too_busy", f"expected at {figure(likely)} inferences/s already"))
        return True

    def _is_calm(self, observation: Observation) -> bool:
        """Returns whether latencies are known, and small."""
        limit_s = self._parameters.down_watermark * self._slo_s
        return observation.latency_s is not None and observation.latency_s <= limit_s

    def _judge(
        self,
        kinds: Sequence[KindFacts],
        feasible: Sequence[KindFacts],
        load: Load,
        fed: float,
        observation: Observation,
        now: float,
        reasons: list[Reason],
    ) -> None:
        """Sets each kind's part of the load, its percentile as far as it counts, and its time below the mark."""
        left, rho, cooldown_s = fed, self._parameters.rho, self._parameters.cooldown_s
        slo_s, timers = self._slo_s, self._calm
        for kind in feasible:
            carried = rho * kind.mu_ips * kind.replicas
            kind.load_ips = carried if carried < left else left
            left -= kind.load_ips
        feasible[0].load_ips += max(0.0, left)
        is_settled = now >= self._settled_at and observation.starting == 0
        if not is_settled and any(kind.group.late >= LATE_ANSWERS for kind in kinds):
            reasons.append(reason("settling"))
        for kind in kinds:
            group = kind.group
            if group.latency_s is not None and group.answers:
                if is_settled:
                    kind.latency_s = self._counted_latency(kind, group.latency_s, load, kinds, now, reasons)
                else:
                    self._late.pop(group.accelerator, None)
                    kind.latency_s = slo_s
            kind.wanted = kind.replicas
            if not group.starting and (kind.latency_s is None or kind.latency_s < slo_s):
                kind.wanted = ceil(kind.load_ips / (rho * kind.mu_ips))
            if kind.wanted >= kind.replicas:
                timers.pop(group.accelerator, None)
                continue
            timer = timers.get(group.accelerator)
            if timer is None:
                timer = timers[group.accelerator] = ScaleInTimer()
            kind.below_for_s = timer.below_for_s(now, kind.wanted)
            kind.least = timer.max_wanted(now, cooldown_s)

    def _counted_latency(
        self,
        kind: KindFacts,
        latency_s: float,
        load: Load,
        kinds: Sequence[KindFacts],
        now: float,
        reasons: list[Reason],
    ) -> float | None:
        """Returns the percentile for the rule: a miss only where it is one and more replicas help, at most the low
        watermark while it is low, the target itself (neither) in between; None if it has no meaning."""
        group, slo_s, name = kind.group, self._slo_s, kind.group.accelerator
        known = self._late.get(name)
        if known is None:
            known = self._late[name] = LateShare()
        late_share = known.update(now, group.answers, group.late)
        if latency_s <= slo_s:
            tail_s = min(slo_s, group.tail_s or group.min_execution_s or 0.0)
            mark = self._parameters.down_watermark
            is_calm = latency_s <= tail_s + mark * (slo_s - tail_s)
            return min(latency_s, mark * slo_s) if is_calm else slo_s
        allowed = group.answers * (1.0 - self._q)
        if (
            late_share <= 1.0 - self._q
            or group.late < LATE_ANSWERS
            or group.late < allowed + MISS_SIGMAS * math.sqrt(allowed)
        ):
            return slo_s
        missed = f"{name}: {figure(latency_s * 1e3)} ms, target {figure(slo_s * 1e3)} ms"
        if group.busy < IDLE_SHARE * group.ready:
            reasons.append(reason("missed_idle", missed))
            return None
        if self._is_hopeless(kind, now):
            reasons.append(reason("slo_infeasible", f"{missed}, execution alone {figure(alone_s(kind) * 1e3)} ms"))
            return None
        reasons.append(reason("sla_missed", missed))
        self._scars.missed(now, utilization_at(min(load.mid, load.steady), kinds))
        return latency_s

    def _is_hopeless(self, kind: KindFacts, now: float) -> bool:
        """Returns whether execution alone misses the target, so that more replicas of a group would not help. The tail
        counts only where a replica runs one request at a time, and did so while it was measured: with more slots
        requests may have queued in the model server."""
        group = kind.group
        if kind.is_too_slow:
            return True
        if kind.is_stream or group.limit != 1 or group.tail_s is None or group.tail_s <= self._slo_s:
            return False
        limit = self._limits.get(group.accelerator)
        changed_at = None if limit is None else limit[1]
        return changed_at is None or now - changed_at >= TAIL_S

    # --- checks of the rule's result

    def _after_checks(
        self, kinds: Sequence[KindFacts], result: RuleResult, load: Load, now: float, reasons: list[Reason]
    ) -> list[int]:
        """Returns the rule's counts, smaller ones only where the replicas that stay carry the load inside the target.
        The most expensive go first."""
        ruled = result.replicas
        counts = [count if count > kind.replicas else kind.replicas for kind, count in zip(kinds, ruled, strict=True)]
        if tuple(counts) == ruled:
            return counts
        is_guess = any(kind.replicas and kind.how != "learnt" for kind in kinds)
        has_quick = any(kind.ready and not kind.is_too_slow for kind in kinds)
        for index in reversed(range(len(kinds))):
            wanted, present = ruled[index], kinds[index].replicas
            if wanted >= present or kinds[index].least >= present:
                continue
            wanted = max(wanted, kinds[index].least)
            if is_guess:
                wanted = present - 1  # Tried out one by one.
            name = kinds[index].group.accelerator
            until, refusal = self._held.get(name, (now, None))
            if refusal is not None and now < until:
                reasons.append(held_back(name, refusal))
                continue
            for count in range(wanted, present):
                fewer = [*counts[:index], count, *counts[index + 1 :]]
                refusal = why_overloaded(kinds, fewer, load, self._parameters.rho)
                if refusal is None and not (has_quick and kinds[index].is_too_slow):
                    refusal = why_late(kinds, fewer, load, self._scars, self._slo_s, self._q, now)
                if refusal is None:
                    reasons.append(reason("scale_in", f"{name}: {count} of {present}"))
                    counts[index] = count
                    break
            self._held[name] = (now + HELD_S, refusal)
            if refusal is not None:
                reasons.append(held_back(name, refusal))
        return counts

    def _without_load(self, observation: Observation, kinds: Sequence[KindFacts]) -> Recommendation:
        """Applies the rule's way to zero. The replica that is parked on must be ready before the others go."""
        p, idle_s = self._parameters, observation.idle_s
        cooldown_s = min(p.cooldown_s, PARK_SHARE * p.zero_grace_s) if p.scale_to_zero else p.cooldown_s
        p = replace(p, cooldown_s=cooldown_s)
        self._calm.clear()
        result = autoscale(self._slo_s, kinds, p, idle_s)
        counts = list(result.replicas)
        if Flag.PARK in result.flags:
            ready = next((index for index, kind in enumerate(kinds) if kind.ready), None)
            parked = counts.index(1)
            if ready is not None and not kinds[parked].ready:
                counts[ready] = 1
                if p.scale_to_zero and p.zero_grace_s - idle_s < WORTH_A_START_S and not kinds[parked].replicas:
                    counts[parked] = 0
        return recommendation(self._function, observation, kinds, counts, result, NO_LOAD, [])

    def __repr__(self) -> str:
        return f"<SmifPolicy {self._function.name} {self._estimate!r} {self._scars!r}>"


ROW = PolicyRow(
    name="smif",
    sentence="Replicas by accelerator kind, so that the load is carried inside the latency target.",
    retarget=SmifPolicy.retarget,
    build=SmifPolicy,
    keeps=(SmifPolicy, RuleParameters, LoadEstimate, MissMemory, SlowGroupHold, ScaleInTimer, LateShare),
)
