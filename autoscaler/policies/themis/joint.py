"""The decisions of ``themis``, ``horizontal-only`` and ``vertical-only`` over all stages of a pipeline at once.

``themis`` meets a burst with cores, within a second, and lets replicas of one core take over once the load is stable
(``transition``). ``horizontal-only`` is Algorithm 2 alone (as FA2), ``vertical-only`` Algorithm 1 alone (as Sponge). A
function by itself is a pipeline of one stage.

The load is the largest rate of a second at the first stage in the last ten (``load-window``), so that it compares with
the forecast of the next ten (our choice). It stays for that time after a burst: no instance starts for one that is
over. Only the first group of a stage, the cheapest, is scaled. A replica that is given fewer cores than it was ordered
to have limits the programs to what it has, for a while: then further replicas start instead.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from msgspec import UNSET, UnsetType

from tidegate.autoscaler.decisions.groups import row
from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.measure.observation import GroupObservation, Observation
from tidegate.autoscaler.policies.contract import Recommendation
from tidegate.autoscaler.policies.themis import forecast
from tidegate.autoscaler.policies.themis.model import StageProfile
from tidegate.autoscaler.policies.themis.programs import Problem, horizontal, vertical
from tidegate.autoscaler.policies.themis.transition import Action, Transition, decide
from tidegate.function import Scaling
from tidegate.manifest import policy_parameters as scaling_parameters
from tidegate.manifest.policy_parameters import THEMIS_PARAMETERS, QueueModel
from tidegate.records.decision import Reason

MOST_RPS: Final = 1e9
"""A larger load is a figure that no gateway measures."""
MOST_BATCH: Final = 64
"""Largest batch that the programs look at."""
OBEYED_S: Final = 3.0
"""Time after which an order for cores counts as refused."""
REFUSED_S: Final = 30.0
"""Time for which a replica's present cores then are the most."""
OVER_S: Final = 3
"""Seconds that show that a burst is over (our choice)."""
OVER_DEVIATIONS: Final = 2.0
"""Standard deviations of a second's requests by which they then lie below the load."""
MEASURED: Final = "measured"


class ThemisMode(StrEnum):
    BOTH = "themis"
    HORIZONTAL = "horizontal-only"
    VERTICAL = "vertical-only"


class ThemisStage:
    """One stage: its profile, its facts and its last orders."""

    __slots__ = ("b_max", "enough", "has_grown", "is_fitted", "ordered", "profile", "ready", "refused", "wanted")

    def __init__(self, profile: str, b_max: int, now: float) -> None:
        self.is_fitted = profile != MEASURED
        self.profile: StageProfile | None = None
        self.b_max = min(MOST_BATCH, b_max)
        if self.is_fitted:
            gamma, epsilon, delta, eta = map(float, profile.split(","))
            self.profile = StageProfile(gamma=gamma, epsilon=epsilon, delta=delta, eta=eta)
        self.wanted: deque[tuple[float, int]] = deque()
        """(time, replicas or cores that were enough), of the last ``stabilization``."""
        self.enough: deque[tuple[float, int]] = deque()
        """(time, cores of the present replicas that were enough), of the last ``stabilization``."""
        self.ordered = (0, now)
        """(cores, since when they are ordered)."""
        self.refused = (0, 0.0)
        """(the most cores, until when)."""
        self.ready = 0
        """Ready replicas as last seen: another one gets its cores after it has become ready."""
        self.has_grown = False
        """Replicas have become ready since the last decision."""

    def known(self, group: GroupObservation) -> StageProfile | None:
        """Returns the given profile, else one of the least execution time: cores divide it (our choice)."""
        if self.is_fitted or group.unloaded_s is None or (self.profile is not None and self.ordered[0] > 1):
            return self.profile
        ms = 1e3 * group.unloaded_s
        if 0.0 < ms < 1e9:
            self.profile = StageProfile(gamma=ms, epsilon=0.0, delta=0.0, eta=0.0)
        return self.profile

    def cores_of(self, group: GroupObservation, now: float) -> int:
        """Returns the cores that a replica has, or is about to get; notes it if it has not got those that were
        ordered."""
        self.has_grown = 0 < self.ready < group.ready
        if group.ready > self.ready:
            self.ordered = (self.ordered[0], now)
        self.ready = group.ready
        ordered, since = self.ordered
        if not isinstance(group.cores, int) or group.cores < 1:
            return max(1, ordered)
        if group.cores < ordered and now - since < OBEYED_S:
            return ordered  # on its way
        if group.cores < ordered:
            self.refused = (group.cores, now + REFUSED_S)
        return group.cores

    def most_cores(self, c_max: int, now: float) -> int:
        most, until = self.refused
        return max(1, min(c_max, most)) if now < until else c_max

    def held(self, wanted: int, present: int, now: float, stable_s: float) -> int:
        """Returns ``wanted``, or the most that was wanted in the last ``stable_s`` seconds if that is more. What runs
        at the beginning was wanted."""
        return _most_of(self.wanted, wanted, present, now, stable_s)

    def result(
        self,
        observation: Observation,
        count: int,
        cores: int | UnsetType,
        reasons: tuple[Reason, ...],
        figures: dict[str, float] | None = None,
    ) -> Recommendation:
        if isinstance(cores, int) and cores != self.ordered[0]:
            self.ordered = (cores, observation.at)
        first, *others = observation.groups
        return Recommendation(
            desired=count,
            groups=(row(first.accelerator, count), *(row(each.accelerator, 0) for each in others)),
            reasons=reasons,
            cores=cores,
            observed=figures or {},
        )

    def __repr__(self) -> str:
        return f"<ThemisStage {self.profile!r}, {words(self.ordered[0])}>"


class JointThemis:
    """The decisions of one pipeline."""

    __slots__ = (
        "_at", "_c_max", "_calm_since", "_headroom", "_mode", "_queue", "_rates", "_slo_ms", "_stable_s", "_stages",
        "_window_s",
    )  # fmt: skip

    def __init__(
        self,
        mode: ThemisMode,
        latency_s: float | None,
        scaling: Scaling,
        stages: Sequence[tuple[str | None, int]],
        now: float,
    ) -> None:
        """``stages``: for each (its profile as text, or None for that of ``scaling``; largest batch)."""
        given: dict[str, Any] = scaling_parameters.values(THEMIS_PARAMETERS, scaling.parameters)
        self._mode = mode
        self._slo_ms = 1e3 * (latency_s or 3600.0)
        self._headroom: float = given["headroom"]
        self._queue: QueueModel = given["queue-model"]
        self._c_max: int = given["max-cores"]
        self._stable_s: float = given["stabilization"]
        self._window_s = round(given["load-window"])
        self._stages = [ThemisStage(profile or given["profile"], b_max, now) for profile, b_max in stages]
        self._rates: deque[float] = deque(maxlen=forecast.MINUTE_S)
        """Requests of each of the last seconds."""
        self._at: float | None = None
        self._calm_since: float | None = None
        """Since when replicas of one core would do; None if they would not now."""

    def retarget(self, latency_s: float | None) -> None:
        """Goes on with another latency target."""
        self._slo_ms = 1e3 * (latency_s or 3600.0)

    def decide(self, observations: Sequence[Observation], now: float) -> list[Recommendation]:
        """Returns what each stage is to have. While one of them cannot be decided about, the others stay."""
        self._count(observations[0], now)
        profiles: list[StageProfile] = []
        early: list[Recommendation | None] = []
        for stage, seen in zip(self._stages, observations, strict=True):
            early.append(self._early(stage, seen))
            if early[-1] is None:
                profile = stage.known(seen.groups[0])
                if profile is None:
                    why = reason("mu_unknown", "no profile yet")
                    early[-1] = stage.result(seen, seen.groups[0].existing, UNSET, (why,))
                else:
                    profiles.append(replace(profile, b_max=stage.b_max))
        if len(profiles) < len(self._stages):
            waited = ", ".join(seen.function for seen, found in zip(observations, early, strict=True) if found)
            return [
                stage.result(seen, seen.groups[0].existing, UNSET, (reason("other_stage", waited),))
                if found is None
                else found
                for stage, seen, found in zip(self._stages, observations, early, strict=True)
            ]
        groups = [seen.groups[0] for seen in observations]
        config = [(group.ready, stage.cores_of(group, now)) for stage, group in zip(self._stages, groups, strict=True)]
        problem = Problem(
            stages=tuple(profiles),
            slo_ms=self._slo_ms,
            lambda_rps=max(list(self._rates)[-self._window_s :], default=0.0),
            b_max=max(stage.b_max for stage in self._stages),
            c_max=min(stage.most_cores(self._c_max, now) for stage in self._stages),
            headroom=self._headroom,
            queue=self._queue,
        )
        match self._mode:
            case ThemisMode.HORIZONTAL:
                return self._horizontal(observations, problem, now)
            case ThemisMode.VERTICAL:
                return self._vertical(observations, problem, now)
            case ThemisMode.BOTH:
                return self._both(observations, problem, config, now)

    def _early(self, stage: ThemisStage, observation: Observation) -> Recommendation | None:
        """Returns what is decided without a profile; None if one is needed."""
        if not observation.complete:
            return Recommendation(
                desired=None, reasons=(reason("hold_no_data", "not every gateway and group was heard"),)
            )
        if not observation.groups:
            return Recommendation(desired=None, reasons=(reason("no_accelerator"),))
        if not observation.existing:
            stage.wanted.clear()
            return Recommendation(desired=0, reasons=(reason("zero"),))
        group = observation.groups[0]
        if not group.ready:
            return stage.result(observation, max(1, group.existing), UNSET, (reason("starting"),))
        return None

    # --- the three modes

    def _both(
        self, observations: Sequence[Observation], problem: Problem, config: Sequence[tuple[int, int]], now: float
    ) -> list[Recommendation]:
        rates = list(self._rates)
        expected = forecast.predicted(rates, len(rates))
        found = decide(problem, config, expected)
        if found.action is Action.TO_HORIZONTAL and any(found.spawn) and self._is_over(problem.lambda_rps):
            found = replace(found, action=Action.HOLD)
        if found.action in (Action.HOLD, Action.TO_HORIZONTAL):
            config = self._with_fewest_cores(problem, config, expected, now)
        figures = {"load_rps": problem.lambda_rps, "forecast_rps": expected}
        said = f"{figure(problem.lambda_rps)} requests/s, {figure(expected)} expected"
        if found.action is not Action.TO_HORIZONTAL:
            self._calm_since = None
        elif self._calm_since is None or now < self._calm_since:
            self._calm_since = now
            for stage in self._stages:
                stage.wanted.clear()
        recommended = [
            self._stage_of_both(at, observation, problem, config[at][1], found, said, figures, now)
            for at, observation in enumerate(observations)
        ]
        if found.action not in (Action.HOLD, Action.TO_HORIZONTAL):
            for stage in self._stages:  # Cores that a burst asked for were not more than enough.
                _most_of(stage.enough, stage.ordered[0], stage.ordered[0], now, self._stable_s)
        return recommended

    def _with_fewest_cores(
        self, problem: Problem, config: Sequence[tuple[int, int]], expected: float, now: float
    ) -> Sequence[tuple[int, int]]:
        """Returns ``config`` with the fewest cores that carry load and forecast (Algorithm 1), once they have been
        enough for ``stabilization``. At once when instances have become ready, which do not get the cores that a burst
        asked of the others."""
        load = max(problem.lambda_rps, expected)
        plan = vertical(replace(problem, lambda_rps=load), [n for n, _ in config]).plan
        if plan is None:
            for stage in self._stages:
                stage.enough.clear()
            return config
        has_grown = any(stage.has_grown for stage in self._stages)
        found = []
        for stage, (n, c), least in zip(self._stages, config, plan.stages, strict=True):
            enough = _most_of(stage.enough, least.c, c, now, self._stable_s)
            found.append((n, min(c, least.c if has_grown else enough)))
        return found

    def _stage_of_both(
        self,
        at: int,
        observation: Observation,
        problem: Problem,
        cores: int,
        found: Transition,
        said: str,
        figures: dict[str, float],
        now: float,
    ) -> Recommendation:
        stage, group = self._stages[at], observation.groups[0]
        match found.action:
            case Action.HOLD:
                why = reason("cores_fit", f"{said}; {group.ready} of {words(cores)}")
                return stage.result(observation, group.existing, cores, (why,), figures)
            case Action.SLO_INFEASIBLE:
                why = reason("slo_infeasible", said)
                return stage.result(observation, group.existing, problem.c_max, (why,), figures)
            case Action.VERTICAL:
                assert found.plan is not None  # it has one by its action
                more = found.plan.stages[at].c
                why = reason("cores_for_burst", f"{said}; {group.ready} of {words(more)}")
                return stage.result(observation, group.existing, more, (why,), figures)
            case Action.VERTICAL_PLUS_HORIZONTAL:
                assert found.plan is not None  # as above
                more, count = found.plan.stages[at].c, group.ready + found.spawn[at]
                detail = f"{said}; {group.ready} of {words(more)} carry {found.supported_rps}"
                why = reason("cores_not_enough", f"{detail}, {count} in all")
                return stage.result(observation, max(group.existing, count), more, (why,), figures)
            case Action.TO_HORIZONTAL:
                count = group.ready + found.spawn[at] - found.retire[at]
                return self._to_horizontal(stage, observation, count, cores, now, said, figures)

    def _to_horizontal(
        self,
        stage: ThemisStage,
        observation: Observation,
        count: int,
        cores: int,
        now: float,
        said: str,
        figures: dict[str, float],
    ) -> Recommendation:
        """Replicas of one core take over: first they start, then the cores of all shrink, then those beyond go."""
        assert self._calm_since is not None  # set with this action
        group = observation.groups[0]
        count = stage.held(count, count, now, self._stable_s)
        is_stable = now - self._calm_since >= self._stable_s
        why = reason("to_one_core", f"{said}; {count} of 1 core")
        if not is_stable or group.ready < count:
            wanted = max(group.existing, count) if is_stable else group.existing
            return stage.result(observation, wanted, cores, (why,), figures)
        return stage.result(observation, group.existing if cores > 1 else count, 1, (why,), figures)

    def _horizontal(self, observations: Sequence[Observation], problem: Problem, now: float) -> list[Recommendation]:
        plan = horizontal(problem)
        said = f"{figure(problem.lambda_rps)} requests/s"
        figures = {"load_rps": problem.lambda_rps}
        found = []
        for at, (stage, observation) in enumerate(zip(self._stages, observations, strict=True)):
            existing = observation.groups[0].existing
            if plan is None:
                found.append(stage.result(observation, existing, 1, (reason("slo_infeasible", said),), figures))
                continue
            count = stage.held(plan.stages[at].n, existing, now, self._stable_s)
            why = reason("load", f"{said}: {count} of 1 core")
            found.append(stage.result(observation, count, 1, (why,), figures))
        return found

    def _vertical(self, observations: Sequence[Observation], problem: Problem, now: float) -> list[Recommendation]:
        answer = vertical(problem, [observation.groups[0].ready for observation in observations])
        said = f"{figure(problem.lambda_rps)} requests/s"
        figures = {"load_rps": problem.lambda_rps}
        plan = answer.plan or answer.at_lambda_max
        code = "cores_fit" if answer.plan is not None else "cores_not_enough"
        if plan is None:
            code = "slo_infeasible"
        found = []
        for at, (stage, observation) in enumerate(zip(self._stages, observations, strict=True)):
            group = observation.groups[0]
            wanted = problem.c_max if plan is None else plan.stages[at].c
            cores = stage.held(wanted, stage.ordered[0], now, self._stable_s)
            why = reason(code, f"{said}; {group.ready} of {words(cores)}")
            found.append(stage.result(observation, group.existing, cores, (why,), figures))
        return found

    # --- what it knows

    def _is_over(self, load: float) -> bool:
        """Returns whether the last seconds lie below the load by more than independent callers explain."""
        recent = max(list(self._rates)[-OVER_S:], default=0.0)
        return load - recent > OVER_DEVIATIONS * math.sqrt(load)

    def _count(self, observation: Observation, now: float) -> None:
        """Adds the rate of the last second; after a gap it stands for each second of it."""
        seconds = 1 if self._at is None else round(now - self._at)
        if seconds > 0:
            self._at = now
            self._rates.extend([min(MOST_RPS, max(0.0, observation.rps))] * min(seconds, forecast.MINUTE_S))
        elif seconds < 0:
            self._at = now  # The clock was set back.

    @property
    def ordered(self) -> tuple[int, ...]:
        """The cores that each stage was ordered to have; 0: none yet."""
        return tuple(stage.ordered[0] for stage in self._stages)

    def __repr__(self) -> str:
        return f"<JointThemis {self._mode.value}, {', '.join(map(words, self.ordered))}>"


def _most_of(noted: deque[tuple[float, int]], wanted: int, present: int, now: float, stable_s: float) -> int:
    """Notes ``wanted``, and ``present`` before it if nothing was noted in the last ``stable_s`` seconds. Returns the
    most that was noted in them."""
    while noted and not now - stable_s <= noted[0][0] <= now:
        noted.popleft()
    if not noted:
        noted.append((now, present))
    noted.append((now, wanted))
    return max(each for _, each in noted)


def words(cores: int) -> str:
    return f"{cores} core{'' if cores == 1 else 's'}"
