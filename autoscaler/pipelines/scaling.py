"""Scaling of pipelines under one SLA each.

The functions of the stages are scaled by the pipeline's policy, each under its budget (``budgets``): *scaled* returns a
function as its policy is to see it. Budgets are divided again each minute, and sooner when a service time has moved. A
policy that decides over all stages at once gets the last observations of all, once a second at the first stage's turn;
the other stages find their part in their own observation.

A stage whose function has a latency target of its own keeps that target and its policy.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from msgspec import structs

from tidegate.autoscaler.measure.observation import Observation, StageOrder
from tidegate.autoscaler.pipelines.budgets import Budgets, StageFacts, divided, stage_percentile
from tidegate.autoscaler.policies.smif.waiting import spread_of
from tidegate.autoscaler.policies.themis.joint import JointThemis, ThemisMode
from tidegate.function import Function
from tidegate.records.pipeline import before

REVIEW_S: Final = 60.0
"""Interval at which budgets are divided again."""
SOONEST_S: Final = 10.0
"""Least time between two divisions."""
MOVED: Final = 0.25
"""Relative change of a service time from which on they are divided at once."""
ADOPTED: Final = 0.05
"""Relative change of a budget that is worth another one: each begins a new route table and recording."""
FRESH_S: Final = 5.0
"""Age from which on an observation, or an order, no longer counts."""
EACH_S: Final = 0.5
"""Least time between two decisions over all stages: an activation may come between two seconds."""


@dataclass(frozen=True, slots=True)
class _Seen:
    observation: Observation
    at: float


class PipelineScaling:
    """One pipeline with a latency target."""

    __slots__ = (
        "_basis", "_decided_at", "_joint", "_measured", "_orders", "_own_s", "_reviewed_at", "_seen", "budgets",
        "function", "stages",
    )  # fmt: skip

    def __init__(self, function: Function, known: "PipelineScaling | None") -> None:
        """``known``: the pipeline as it was deployed before."""
        self.function = function
        self.stages = tuple(each.function for each in function.server.stages)
        self._own_s: dict[str, float] = {} if known is None else known._own_s
        self._seen: dict[str, dict[str, _Seen]] = {} if known is None else known._seen
        """By stage and revision."""
        self._measured: dict[str, Measured] = {} if known is None else known._measured
        """By stage: the last measurements, which stay while it sleeps."""
        self._joint: JointThemis | None = None
        self._orders: dict[str, StageOrder] = {}
        self._decided_at = -inf
        self._reviewed_at = -inf
        self._basis: tuple[float | None, ...] = ()
        """Service times that the budgets were divided by."""
        self.budgets: Budgets = self._divided(-inf)

    @property
    def latency_s(self) -> float:
        return self.function.sla.latency_s or inf

    def budget_s(self, stage: str) -> float:
        return next(each.budget_s for each in self.budgets.stages if each.name == stage)

    def own(self, stage: str, latency_s: float | None) -> None:
        """Notes the latency target that a stage's function has of its own."""
        if self._own_s.get(stage) != latency_s:
            if latency_s is None:
                self._own_s.pop(stage, None)
            else:
                self._own_s[stage] = latency_s
            self._reviewed_at = -inf

    def scaled(self, function: Function) -> Function:
        """Returns the function of a stage as its policy is to see it."""
        stage = next(each for each in self.function.server.stages if each.function == function.name)
        whole = self.function
        parameters = dict(whole.scaling.parameters)
        if stage.profile is not None:
            parameters["profile"] = stage.profile
        return replace(
            function,
            sla=replace(
                function.sla,
                latency_s=self.budget_s(function.name),
                percentile=stage_percentile(whole.sla.percentile, len(self.stages)),
            ),
            scaling=replace(function.scaling, policy=whole.scaling.policy, parameters=parameters),
        )

    # --- budgets

    def review(self, now: float) -> bool:
        """Divides the SLA again if it is time. Returns whether the budgets are others."""
        elapsed_s = now - self._reviewed_at
        if 0.0 <= elapsed_s < SOONEST_S or (0.0 <= elapsed_s < REVIEW_S and not self._has_moved(now)):
            return False
        self._reviewed_at, known = now, self.budgets
        found = self._divided(now)
        if found == known:
            return False
        same = (
            abs(each.budget_s - old.budget_s) <= ADOPTED * old.budget_s
            for each, old in zip(found.stages, known.stages, strict=True)
        )
        if (found.is_measured, found.is_feasible) == (known.is_measured, known.is_feasible) and all(same):
            # What they follow from is shown; the budgets in force stay.
            kept = zip(found.stages, known.stages, strict=True)
            self.budgets = replace(found, stages=tuple(replace(new, budget_s=old.budget_s) for new, old in kept))
            return False
        self.budgets = found
        return True

    def _has_moved(self, now: float) -> bool:
        present = tuple(each.service_s for each in self._facts(now))
        for new, old in zip(present, self._basis, strict=True):
            if (new is None) is not (old is None):
                return True
            if new is not None and old is not None and abs(new - old) > MOVED * old:
                return True
        return False

    def _divided(self, now: float) -> Budgets:
        facts = self._facts(now)
        self._basis = tuple(each.service_s for each in facts)
        return divided(self.latency_s, self.function.sla.percentile, facts)

    def _facts(self, now: float) -> list[StageFacts]:
        waits = before(self.function.server.stages)
        for name in self.stages:
            seen = self.seen(name, now)
            if seen is not None and (measured := measured_of(seen)) is not None:
                self._measured[name] = measured
        return [
            facts_of(name, waits[at], self._measured.get(name), self._own_s.get(name))
            for at, name in enumerate(self.stages)
        ]

    # --- observations

    def note(self, observation: Observation, now: float) -> None:
        """Takes a stage's observation."""
        if observation.function not in self._measured and (measured := measured_of(observation)) is not None:
            self._measured[observation.function] = measured
        known = self._seen.setdefault(observation.function, {})
        known[observation.revision] = _Seen(observation, now)
        if len(known) > 1:
            for revision in [each for each, seen in known.items() if now - seen.at > FRESH_S]:
                del known[revision]

    def seen(self, stage: str, now: float) -> Observation | None:
        """Returns the last observation of the revision that serves a stage; None without a fresh one."""
        fresh = [each.observation for each in self._seen.get(stage, {}).values() if now - each.at <= FRESH_S]
        return max(fresh, key=lambda each: (each.rps, each.ready, each.revision), default=None)

    # --- decisions over all stages

    def order(self, observation: Observation, batches: Mapping[str, int], now: float) -> StageOrder | None:
        """Returns what was decided about a stage's revision; None if its own policy decides. ``batches``: the largest
        batch of each stage."""
        policy = self.function.scaling.policy
        if policy not in {each.value for each in ThemisMode} or self._own_s:
            return None
        if observation.function == self.stages[0] and now - self._decided_at >= EACH_S:
            self._decide(ThemisMode(policy), batches, now)
        order = self._orders.get(observation.revision)
        return order if order is not None and now - self._decided_at <= FRESH_S else None

    def _decide(self, mode: ThemisMode, batches: Mapping[str, int], now: float) -> None:
        observations = [self.seen(stage, now) for stage in self.stages]
        present = [each for each in observations if each is not None]
        if len(present) < len(observations):
            return
        if self._joint is None:
            whole = self.function
            stages = [(each.profile, batches.get(each.function, 1)) for each in whole.server.stages]
            self._joint = JointThemis(mode, whole.sla.latency_s, whole.scaling, stages, now)
        self._decided_at = now
        self._orders = {
            seen.revision: StageOrder(
                pipeline=self.function.name,
                desired=found.desired,
                groups=found.groups,
                reasons=found.reasons,
                cores=found.cores,
                observed=found.observed,
            )
            for seen, found in zip(present, self._joint.decide(present, now), strict=True)
        }

    def __repr__(self) -> str:
        shown = ", ".join(f"{each.name} {each.budget_s:.3g} s" for each in self.budgets.stages)
        return f"<PipelineScaling {self.function.name}: {shown}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements of a stage in one observation."""

    service_s: float
    slots: float
    rps: float
    price: float
    spread: float


def measured_of(seen: Observation) -> Measured | None:
    """Returns the measurements of a stage in an observation; None if nothing was served yet.

    The mean execution time is used until a request is known to have had a replica for itself.
    """
    timed = [(each, each.unloaded_s or each.execution_s) for each in seen.groups]
    group, mean_s = max(timed, key=lambda each: (each[1] is not None, each[0].ready), default=(None, None))
    if group is None or not mean_s:
        return None
    service_s, batch = mean_s, group.mean_batch or 1.0
    if group.limit == 1 and group.tail_s is not None:
        service_s = max(service_s, group.tail_s)
    return Measured(
        service_s=service_s,
        slots=max(1.0, (group.mu_ips or 0.0) / batch * mean_s),
        rps=seen.lambda_ips / batch if seen.lambda_ips else seen.rps,
        price=group.price_per_hour or 1.0,
        spread=spread_of(mean_s, service_s),
    )


def facts_of(name: str, after: tuple[int, ...], measured: Measured | None, own_s: float | None) -> StageFacts:
    """Returns the facts by which budgets are divided."""
    if measured is None:
        return StageFacts(name=name, after=after, service_s=None, own_s=own_s)
    return StageFacts(
        name=name,
        after=after,
        service_s=measured.service_s,
        slots=measured.slots,
        rps=measured.rps,
        price=measured.price,
        spread=measured.spread,
        own_s=own_s,
    )


class Pipelines:
    """All pipelines with a latency target."""

    __slots__ = ("_batches", "_functions", "_of_stage", "_pipelines")

    def __init__(self) -> None:
        self._functions: tuple[Function, ...] = ()
        self._pipelines: dict[str, PipelineScaling] = {}
        self._of_stage: dict[str, list[PipelineScaling]] = {}
        self._batches: dict[str, int] = {}

    def apply(self, functions: Iterable[Function]) -> bool:
        """Sets the pipelines. Returns whether they have changed."""
        found = tuple(each for each in functions if each.is_pipeline and each.sla.latency_s is not None)
        if found == self._functions:
            return False
        known, self._functions = self._pipelines, found
        self._pipelines = {}
        self._of_stage = {}
        for function in sorted(found, key=lambda each: each.name):
            before_ = known.get(function.name)
            if before_ is None or before_.function != function:
                before_ = PipelineScaling(function, before_)
            self._pipelines[function.name] = before_
            for stage in before_.stages:
                self._of_stage.setdefault(stage, []).append(before_)
        return True

    def scaled(self, function: Function) -> Function:
        """Returns a function as its policy is to see it: a stage under its smallest budget. Stages of several pipelines
        have the policy of the first by name."""
        pipelines = self._of_stage.get(function.name)
        if not pipelines:
            return function
        self._batches[function.name] = function.batching.max_size
        for each in pipelines:
            each.own(function.name, function.sla.latency_s)
        if function.sla.latency_s is not None:
            return function
        found = pipelines[0].scaled(function)
        least = min((each.scaled(function).sla for each in pipelines), key=lambda sla: sla.latency_s or inf)
        return replace(found, sla=least) if least != found.sla else found

    def review(self, now: float) -> bool:
        """Divides SLAs again where it is time. Returns whether a budget has changed."""
        changed = [each for each in self._pipelines.values() if each.review(now)]
        return bool(changed)

    def seen(self, observation: Observation, now: float) -> Observation:
        """Takes an observation. Returns it with what was decided over all stages, if it is one of such a pipeline."""
        for each in self._of_stage.get(observation.function, ()):
            each.note(observation, now)
            order = each.order(observation, self._batches, now)
            if order is not None:
                return structs.replace(observation, order=order)
        return observation

    def of_stage(self, function: str) -> tuple[str, ...]:
        """Returns the pipelines that a function is a stage of."""
        return tuple(each.function.name for each in self._of_stage.get(function, ()))

    def budgets(self, pipeline: str) -> Budgets | None:
        """Returns the budgets of a pipeline; None if it has no latency target."""
        known = self._pipelines.get(pipeline)
        return None if known is None else known.budgets

    def __repr__(self) -> str:
        return f"<Pipelines {', '.join(self._pipelines) or 'none'}>"
