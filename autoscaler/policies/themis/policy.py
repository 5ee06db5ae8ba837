"""The policies ``themis``, ``horizontal-only`` and ``vertical-only`` for one function: a pipeline of one stage.

``themis`` meets a burst with cores, within a second, and lets replicas of one core take over once the load is stable
(``transition``). ``horizontal-only`` is Algorithm 2 alone (as FA2), ``vertical-only`` Algorithm 1 alone (as Sponge).

The load is the largest rate of a second in the last ten, so that it compares with the forecast of the next ten (our
choice). Only the first group, the cheapest, is scaled. A replica that is given fewer cores than it was ordered to have
limits the programs to what it has, for a while: then further replicas start instead.
"""

from collections import deque
from enum import StrEnum
from functools import partial
from typing import Any, Final

from msgspec import UNSET, UnsetType

from tidegate.autoscaler.decisions.groups import row
from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.measure.observation import GroupObservation, Observation
from tidegate.autoscaler.policies.contract import PolicyRow, Recommendation
from tidegate.autoscaler.policies.themis import forecast
from tidegate.autoscaler.policies.themis.model import StageProfile
from tidegate.autoscaler.policies.themis.programs import Problem, horizontal, vertical
from tidegate.autoscaler.policies.themis.transition import Action, decide
from tidegate.function import Function
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


class ThemisMode(StrEnum):
    BOTH = "themis"
    HORIZONTAL = "horizontal-only"
    VERTICAL = "vertical-only"


class ThemisPolicy:
    """The policy of one revision."""

    __slots__ = (
        "_at",
        "_b_max",
        "_c_max",
        "_calm_since",
        "_function",
        "_headroom",
        "_is_fitted",
        "_mode",
        "_ordered",
        "_profile",
        "_queue",
        "_rates",
        "_refused",
        "_slo_ms",
        "_stable_s",
        "_wanted",
    )

    activation_scale = 1
    retention_s = 0.0

    def __init__(self, mode: ThemisMode, function: Function, now: float, ready: int) -> None:
        given: dict[str, Any] = scaling_parameters.values(THEMIS_PARAMETERS, function.scaling.parameters)
        self._function = function
        self._mode = mode
        self._slo_ms = 1e3 * (function.sla.latency_s or 3600.0)
        self._is_fitted = given["profile"] != "measured"
        self._profile: StageProfile | None = None
        if self._is_fitted:
            gamma, epsilon, delta, eta = map(float, given["profile"].split(","))
            self._profile = StageProfile(gamma=gamma, epsilon=epsilon, delta=delta, eta=eta)
        self._headroom: float = given["headroom"]
        self._queue: QueueModel = given["queue-model"]
        self._c_max: int = given["max-cores"]
        self._b_max = min(MOST_BATCH, function.batching.max_size)
        self._stable_s: float = given["stabilization"]
        self._rates: deque[float] = deque(maxlen=forecast.MINUTE_S)
        """Requests of each of the last seconds."""
        self._at: float | None = None
        self._wanted: deque[tuple[float, int]] = deque()
        """(time, replicas or cores that were enough), of the last ``stabilization``."""
        self._calm_since: float | None = None
        """Since when replicas of one core would do; None if they would not now."""
        self._ordered = (0, now)
        """(cores, since when they are ordered)."""
        self._refused = (0, 0.0)
        """(the most cores, until when)."""

    def decide(self, observation: Observation, now: float) -> Recommendation:
        self._count(observation, now)
        if not observation.complete:
            return Recommendation(
                desired=None, reasons=(reason("hold_no_data", "not every gateway and group was heard"),)
            )
        if not observation.groups:
            return Recommendation(desired=None, reasons=(reason("no_accelerator"),))
        group = observation.groups[0]
        if not observation.existing:
            self._wanted.clear()
            return Recommendation(desired=0, reasons=(reason("zero"),))
        if not group.ready:
            return self._result(observation, max(1, group.existing), UNSET, (reason("starting"),))
        profile = self._known(group)
        if profile is None:
            return self._result(observation, group.existing, UNSET, (reason("mu_unknown", "no profile yet"),))
        cores = self._cores_of(group, now)
        load = min(MOST_RPS, max(list(self._rates)[-forecast.SLICE_S :], default=0.0))
        problem = Problem(
            stages=(profile,),
            slo_ms=self._slo_ms,
            lambda_rps=load,
            b_max=self._b_max,
            c_max=self._limit(now),
            headroom=self._headroom,
            queue=self._queue,
        )
        match self._mode:
            case ThemisMode.HORIZONTAL:
                return self._horizontal(observation, group, problem, now)
            case ThemisMode.VERTICAL:
                return self._vertical(observation, group, problem, now)
            case ThemisMode.BOTH:
                return self._both(observation, group, problem, cores, now)

    # --- the three modes

    def _both(
        self, observation: Observation, group: GroupObservation, problem: Problem, cores: int, now: float
    ) -> Recommendation:
        rates = list(self._rates)
        expected = forecast.predicted(rates, len(rates))
        found = decide(problem, [(group.ready, cores)], expected)
        figures = {"load_rps": problem.lambda_rps, "forecast_rps": expected}
        words = f"{figure(problem.lambda_rps)} requests/s, {figure(expected)} expected"
        if found.action is not Action.TO_HORIZONTAL:
            self._calm_since = None
        match found.action:
            case Action.HOLD:
                why = reason("cores_fit", f"{words}; {group.ready} of {_words(cores)}")
                return self._result(observation, group.existing, cores, (why,), figures)
            case Action.SLO_INFEASIBLE:
                most = problem.c_max
                return self._result(observation, group.existing, most, (reason("slo_infeasible", words),), figures)
            case Action.VERTICAL:
                assert found.plan is not None  # it has one by its action
                more = found.plan.stages[0].c
                why = reason("cores_for_burst", f"{words}; {group.ready} of {_words(more)}")
                return self._result(observation, group.existing, more, (why,), figures)
            case Action.VERTICAL_PLUS_HORIZONTAL:
                assert found.plan is not None  # as above
                more, count = found.plan.stages[0].c, group.ready + found.spawn[0]
                detail = f"{words}; {group.ready} of {_words(more)} carry {found.supported_rps}"
                why = reason("cores_not_enough", f"{detail}, {count} in all")
                return self._result(observation, max(group.existing, count), more, (why,), figures)
            case Action.TO_HORIZONTAL:
                count = group.ready + found.spawn[0] - found.retire[0]
                return self._to_horizontal(observation, group, count, cores, now, words, figures)

    def _to_horizontal(
        self,
        observation: Observation,
        group: GroupObservation,
        count: int,
        cores: int,
        now: float,
        words: str,
        figures: dict[str, float],
    ) -> Recommendation:
        """Replicas of one core take over: first they start, then the cores of all shrink, then those beyond go."""
        count, is_stable = self._settled(count, now)
        why = reason("to_one_core", f"{words}; {count} of 1 core")
        if not is_stable or group.ready < count:
            wanted = max(group.existing, count) if is_stable else group.existing
            return self._result(observation, wanted, cores, (why,), figures)
        return self._result(observation, group.existing if cores > 1 else count, 1, (why,), figures)

    def _horizontal(
        self, observation: Observation, group: GroupObservation, problem: Problem, now: float
    ) -> Recommendation:
        plan = horizontal(problem)
        words = f"{figure(problem.lambda_rps)} requests/s"
        figures = {"load_rps": problem.lambda_rps}
        if plan is None:
            return self._result(observation, group.existing, 1, (reason("slo_infeasible", words),), figures)
        count = self._held(plan.stages[0].n, group.existing, now)
        return self._result(observation, count, 1, (reason("load", f"{words}: {count} of 1 core"),), figures)

    def _vertical(
        self, observation: Observation, group: GroupObservation, problem: Problem, now: float
    ) -> Recommendation:
        found = vertical(problem, [group.ready])
        words = f"{figure(problem.lambda_rps)} requests/s"
        figures = {"load_rps": problem.lambda_rps}
        plan = found.plan or found.at_lambda_max
        wanted = problem.c_max if plan is None else plan.stages[0].c
        cores = self._held(wanted, self._ordered[0], now)
        code = "cores_fit" if found.plan is not None else "cores_not_enough"
        if plan is None:
            code = "slo_infeasible"
        why = reason(code, f"{words}; {group.ready} of {_words(cores)}")
        return self._result(observation, group.existing, cores, (why,), figures)

    # --- what it knows

    def _count(self, observation: Observation, now: float) -> None:
        """Adds the rate of the last second; after a gap it stands for each second of it."""
        seconds = 1 if self._at is None else round(now - self._at)
        if seconds > 0:
            self._at = now
            self._rates.extend([max(0.0, observation.rps)] * min(seconds, forecast.MINUTE_S))
        elif seconds < 0:
            self._at = now  # The clock was set back.

    def _known(self, group: GroupObservation) -> StageProfile | None:
        """Returns the given profile, else one of the least execution time: cores divide it (our choice)."""
        if self._is_fitted or group.unloaded_s is None or (self._profile is not None and self._ordered[0] > 1):
            return self._profile
        ms = 1e3 * group.unloaded_s
        if 0.0 < ms < 1e9:
            self._profile = StageProfile(gamma=ms, epsilon=0.0, delta=0.0, eta=0.0)
        return self._profile

    def _cores_of(self, group: GroupObservation, now: float) -> int:
        """Returns the cores that a replica has, and notes it if it has not got those that were ordered."""
        ordered, since = self._ordered
        if not isinstance(group.cores, int) or group.cores < 1:
            return max(1, ordered)
        if group.cores < ordered and now - since >= OBEYED_S:
            self._refused = (group.cores, now + REFUSED_S)
        return group.cores

    def _limit(self, now: float) -> int:
        most, until = self._refused
        return max(1, min(self._c_max, most)) if now < until else self._c_max

    def _settled(self, count: int, now: float) -> tuple[int, bool]:
        """Notes that ``count`` would be enough. Returns the most of the last ``stabilization``, and whether it has been
        so for as long."""
        if self._calm_since is None or now < self._calm_since:
            self._calm_since = now
            self._wanted.clear()
        return self._held(count, count, now), now - self._calm_since >= self._stable_s

    def _held(self, wanted: int, present: int, now: float) -> int:
        """Returns ``wanted``, or the most that was wanted in the last ``stabilization`` if that is more. What runs at
        the beginning was wanted."""
        noted = self._wanted
        if not noted:
            noted.append((now, present))
        while noted and not now - self._stable_s <= noted[0][0] <= now:
            noted.popleft()
        noted.append((now, wanted))
        return max(each for _, each in noted)

    def _result(
        self,
        observation: Observation,
        count: int,
        cores: int | UnsetType,
        reasons: tuple[Reason, ...],
        figures: dict[str, float] | None = None,
    ) -> Recommendation:
        if isinstance(cores, int) and cores != self._ordered[0]:
            self._ordered = (cores, observation.at)
        first, *others = observation.groups
        return Recommendation(
            desired=count,
            groups=(row(first.accelerator, count), *(row(each.accelerator, 0) for each in others)),
            reasons=reasons,
            cores=cores,
            observed=figures or {},
        )

    def __repr__(self) -> str:
        return f"<ThemisPolicy {self._mode.value} {self._function.name}, {_words(self._ordered[0])}>"


def _words(cores: int) -> str:
    return f"{cores} core{'' if cores == 1 else 's'}"


def _row(mode: ThemisMode, sentence: str) -> PolicyRow:
    return PolicyRow(
        name=mode.value,
        sentence=sentence,
        build=partial(ThemisPolicy, mode),
        keeps=(ThemisPolicy, ThemisMode, QueueModel, StageProfile),
        scales_cores=True,
    )


ROWS: Final = (
    _row(ThemisMode.BOTH, "Cores at once for a burst, replicas of one core when the load is stable."),
    _row(ThemisMode.HORIZONTAL, "The fewest replicas of one core that keep the latency target."),
    _row(ThemisMode.VERTICAL, "The fewest cores of the present replicas that keep the latency target."),
)
