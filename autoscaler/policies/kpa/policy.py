"""KPA: replicas from the average of requests in flight, as Knative Serving decides it.

:class:`KnativeScaler` is the exact decision core: two averaging windows, panic state, scale-down delay. Its numbers are
those of Knative's own code for the same samples (tests/golden). :class:`KpaPolicy` feeds it from observations.

Worked example: target 0.7 (concurrency 1 at 70 %), one ready replica, six requests in flight. The short window asks
for ceil(6 / 0.7) = 9 replicas; 9 / 1 is over the panic threshold of 2, so panic starts and 9 is held until the short
window has been calm for a whole stable window.

The threshold is compared with the *rounded up* number, so one ready replica panics just above its target (2 / 1 = 2),
not at twice its target. That is Knative's behaviour and kept.
"""

import math
from dataclasses import replace

import msgspec

from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.measure.observation import Observation
from tidegate.autoscaler.policies.contract import PolicyRow, Recommendation
from tidegate.autoscaler.policies.kpa import parameters as knative_parameters
from tidegate.autoscaler.policies.kpa.parameters import KpaParameters
from tidegate.autoscaler.policies.kpa.windows import Average, DelayWindow, LinearWindow, WeightedWindow
from tidegate.autoscaler.policies.kpa.zero import Condition, ZeroRules, ZeroSteps, rules
from tidegate.function import ConcurrencyUnit, Function
from tidegate.records.decision import Reason

GRACE_S = 30.0
"""Knative's scale-to-zero-grace-period. With the waiting room always in the path it has always passed."""
AUTO_CONCURRENCY = 4
"""Slots assumed for ``concurrency: auto`` until a replica has reported what its server declares."""


class KpaResult(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation. With ``valid`` False there is no data and nothing may be applied: ``desired`` and the capacity
    are 0."""

    valid: bool
    desired: int
    excess_burst_capacity: int
    """Requests that the ready replicas could take beyond the present load and the configured burst; below 0 Knative
    puts its activator in the path. Tidegate's waiting room is always in the path and only reports it."""
    stable: float | None
    panic: float | None
    in_panic: bool
    max_panic_replicas: int
    reasons: tuple[Reason, ...]


def _window(parameters: KpaParameters, seconds: float) -> Average:
    return WeightedWindow(seconds) if parameters.is_weighted else LinearWindow(seconds)


class KnativeScaler:
    """The decision core of one revision. Feed :meth:`record`, call :meth:`evaluate`; time is an argument."""

    __slots__ = ("_delay", "_max_panic", "_panic", "_panic_since", "_stable", "parameters")

    def __init__(self, parameters: KpaParameters, now: float, ready: int) -> None:
        self.parameters = parameters
        self._stable = _window(parameters, parameters.stable_window_s)
        self._panic = _window(parameters, parameters.panic_window_s)
        self._delay = DelayWindow(parameters.scale_down_delay_s) if parameters.scale_down_delay_s > 0 else None
        self._max_panic = ready
        # A restarted autoscaler has empty windows: panic keeps it from shrinking what runs.
        self._panic_since: float | None = now if ready > 1 else None

    @property
    def in_panic(self) -> bool:
        return self._panic_since is not None

    def record(self, now: float, value: float) -> None:
        """Adds one second's total (requests in flight, or requests per second) to both windows."""
        self._stable.record(now, value)
        self._panic.record(now, value)

    def update(self, parameters: KpaParameters, now: float) -> None:
        """Sets new parameters. Windows are resized, panic state stays, the delay window keeps its length."""
        self.parameters = parameters
        self._stable.resize(now, parameters.stable_window_s)
        self._panic.resize(now, parameters.panic_window_s)

    def evaluate(self, now: float, ready: int) -> KpaResult:
        """Returns the decision at ``now`` with ``ready`` replicas (starting ones do not count)."""
        p = self.parameters
        if p.has_scrape_target and self._stable.is_empty(now):
            return self._result(0, 0, None, None, [reason("hold_no_data", f"{p.stable_window_s:g} s window")])
        return self.decide(now, ready, self._stable.average(now), self._panic.average(now))

    def decide(self, now: float, ready: int, stable: float, panic: float) -> KpaResult:
        """Returns the decision from two averages that are known already."""
        p = self.parameters
        present = max(1, ready)
        by_stable, by_panic = math.ceil(stable / p.target_value), math.ceil(panic / p.target_value)
        reasons = [
            reason(
                "load",
                f"{p.metric} {figure(stable)} over {p.stable_window_s:g} s, {figure(panic)} over "
                f"{p.panic_window_s:g} s, target {figure(p.target_value)} a replica: {by_stable}, {by_panic}",
            )
        ]
        up, down = math.ceil(p.max_scale_up_rate * present), 0
        if p.reachable:
            down = math.floor(present / p.max_scale_down_rate)
        stable_count = self._step(by_stable, down, up, reasons)
        panic_count = self._step(by_panic, down, up, [])
        desired = self._apply_panic(now, by_panic / present, stable_count, panic_count, reasons)
        if self._delay is not None and p.reachable:
            held = self._delay.record(now, desired)
            if held > desired:
                reasons.append(reason("scale_down_delay", f"{held} instead of {desired}"))
            desired = held
        burst = p.target_burst_capacity
        spare = int(burst) if burst in (0, -1) else math.floor(ready * p.total_value - burst - panic)
        return self._result(desired, spare, stable, panic, reasons)

    def _step(self, wanted: int, down: int, up: int, reasons: list[Reason]) -> int:
        """Applies the rate limits, then the activation scale, which may exceed them."""
        count = min(max(wanted, down), up)
        if count < wanted:
            reasons.append(reason("rate_limited_up", f"{wanted} limited to {count}"))
        elif count > wanted:
            reasons.append(reason("rate_limited_down", f"{wanted} limited to {count}"))
        floor = self.parameters.activation_scale
        if floor > 1 and wanted > 0 and floor > count:
            reasons.append(reason("activation_scale", f"{count} raised to {floor}"))
            count = floor
        return count

    def _apply_panic(self, now: float, ratio: float, stable: int, panic: int, reasons: list[Reason]) -> int:
        p, was = self.parameters, self._panic_since is not None
        if ratio >= p.panic_threshold:
            self._panic_since = now
            if not was:
                reasons.append(reason("panic_enter", f"{figure(ratio)} >= {figure(p.panic_threshold)}"))
        elif self._panic_since is not None and self._panic_since + p.stable_window_s < now:
            self._panic_since, self._max_panic = None, 0
            reasons.append(reason("panic_leave"))
        if self._panic_since is None:
            return stable
        self._max_panic = max(self._max_panic, stable, panic)
        if was:
            reasons.append(reason("panic", f"at {self._max_panic}"))
        return self._max_panic

    def _result(
        self, desired: int, spare: int, stable: float | None, panic: float | None, reasons: list[Reason]
    ) -> KpaResult:
        return KpaResult(
            valid=stable is not None,
            desired=desired,
            excess_burst_capacity=spare,
            stable=stable,
            panic=panic,
            in_panic=self.in_panic,
            max_panic_replicas=self._max_panic,
            reasons=tuple(reasons),
        )

    def __repr__(self) -> str:
        mood = f"panic since {self._panic_since:g} at {self._max_panic}" if self._panic_since is not None else "calm"
        return f"<KnativeScaler {self.parameters.metric}, {self._stable!r}, {self._panic!r}, {mood}>"


class KpaPolicy:
    """The core under Tidegate's observations: one record a second, the limit learnt from the replicas.

    While a revision is at zero and nothing waits there is nothing to average (Knative records no sample without pods
    either). When it wakes the windows begin empty: neither the zeros of its idle time nor an earlier panic count.
    """

    __slots__ = ("_concurrency", "_function", "_is_asleep", "_recorded", "_zero", "retention_s", "scaler")

    def __init__(self, function: Function, now: float, ready: int) -> None:
        self._function = function
        self._concurrency = AUTO_CONCURRENCY if function.concurrency is None else function.concurrency
        self._recorded: int | None = None
        self._is_asleep = False
        derived = knative_parameters.of_function(function, self._concurrency)
        self.retention_s = derived.retention_s
        self.scaler = KnativeScaler(derived.parameters, now, ready)
        self._zero: ZeroSteps | None = None
        if function.scaling.parameters.get("zero-protocol") == "knative":
            own = replace(derived, min_scale=function.scaling.min_scale, max_scale=function.scaling.max_scale)
            # An activation is over when its replica is ready or has failed: there is no deadline beside those.
            steps = rules(own, grace_s=GRACE_S, progress_deadline_s=math.inf, is_enabled=True)
            self._zero = ZeroSteps(steps, now)

    @property
    def activation_scale(self) -> int:
        return max(1, self.scaler.parameters.activation_scale)

    def decide(self, observation: Observation, now: float) -> Recommendation:
        if observation.existing == 0 and observation.waiting == 0 and observation.concurrency == 0:
            self._is_asleep = True
            return Recommendation(desired=0)
        if self._is_asleep:
            self._is_asleep, self._recorded = False, None
            self.scaler = KnativeScaler(self.scaler.parameters, now, observation.ready)
            if self._zero is not None:
                self._zero = ZeroSteps(self._zero.rules, now)
        self._learn_limit(observation, now)
        if observation.complete:
            self._record(now, self._value(observation))
        result = self.scaler.evaluate(now, observation.ready)
        if not result.valid or result.stable is None or result.panic is None:
            return Recommendation(desired=None, reasons=result.reasons)
        p = self.scaler.parameters
        observed = {
            f"stable_{p.metric}": result.stable,
            f"panic_{p.metric}": result.panic,
            "target": p.target_value,
            "panic": float(result.in_panic),
        }
        if self._zero is None:
            return Recommendation(desired=result.desired, reasons=result.reasons, observed=observed)
        return self._by_steps(self._zero, observation, result, observed, now)

    def _by_steps(
        self, zero: ZeroSteps, observation: Observation, result: KpaResult, observed: dict[str, float], now: float
    ) -> Recommendation:
        """Applies Knative's protocol for zero to its averages."""
        existing = observation.existing
        desired = zero.step(now, result.desired, existing, observation.ready)
        reasons = result.reasons
        if result.desired == 0:
            reasons = (*reasons, reason("zero_protocol", f"{existing} to {desired}"))
        return Recommendation(desired=desired, reasons=reasons, observed=observed, is_zero_settled=True)

    def _value(self, observation: Observation) -> float:
        if self.scaler.parameters.metric == "rps":
            return observation.rps
        if self._function.concurrency_unit is ConcurrencyUnit.INFERENCES:
            return observation.concurrency_inferences
        return observation.concurrency

    def _record(self, now: float, value: float) -> None:
        """Makes one record for each second since the last one. Two ticks in one second must not add up. Unrecorded
        seconds (a late tick, an incomplete observation) are not silent ones. Samples carry integrals over the time
        since the sample before, so after a gap the value is the mean of the gap."""
        if not math.isfinite(value):
            return
        second = math.floor(now)
        start = second if self._recorded is None else self._recorded + 1
        window_s = math.ceil(self.scaler.parameters.stable_window_s)
        for at in range(max(start, second - window_s + 1), second + 1):
            self.scaler.record(at, value)
        self._recorded = max(start - 1, second)

    def _learn_limit(self, observation: Observation, now: float) -> None:
        if self._function.concurrency is not None or observation.limit in (None, self._concurrency):
            return
        self._concurrency = observation.limit or 0
        self.scaler.update(knative_parameters.of_function(self._function, self._concurrency).parameters, now)

    def __repr__(self) -> str:
        return f"<KpaPolicy {self._function.name} {self.scaler!r}>"


ROW = PolicyRow(
    name="kpa",
    sentence="Knative's pod autoscaler: requests in flight against a target per replica, with a panic mode.",
    build=KpaPolicy,
    keeps=(
        KpaPolicy,
        KnativeScaler,
        KpaParameters,
        LinearWindow,
        WeightedWindow,
        DelayWindow,
        ZeroSteps,
        ZeroRules,
        Condition,
    ),
)
