"""The policies ``hetsev-greedy`` and ``hetsev-ilp``: HetSev's control loop (section 4.1).

Every ``policy.period`` the rate of the window is read. If the capacity has been used above the threshold for
``policy.hold``, instances are launched, by the greedy rule or by the integer program; else surplus ones are removed
after a cool-down. Between two steps the result stays in force. The facts of the rules come from the observation:

- The throughput of a type is its service rate: learnt, or as a profile gives it. Without one the type is not launched,
  and what runs counts with the best rate seen.
- The cost of an instance is the price of its part of a device (``tidegate.deploy.placement.ledger.part_of``).
- The launch latency is the median of the starts seen; a place on each kind is the resource.
- A starting instance counts as running, so that nothing is launched twice.

Where this departs from the paper, and why:

- Removals go by the largest rate of the cool-down plus three standard deviations of a Poisson stream. With one
  threshold for both directions a constant load near it would launch and remove for ever.
- The program never removes in the step in which it launches: what runs stays until the new instances are ready. It
  removes, as many as are too many, once nothing has changed for a cool-down.
- Where no mix carries the load the program has no solution: the greedy rule then launches what fits.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from tidegate.autoscaler.decisions.groups import row
from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.measure.observation import GroupObservation, Observation
from tidegate.autoscaler.policies.contract import PolicyRow, Recommendation
from tidegate.autoscaler.policies.hetsev import exact
from tidegate.autoscaler.policies.hetsev.arrivals import ArrivalRates
from tidegate.autoscaler.policies.hetsev.greedy import scale_in, scale_out
from tidegate.autoscaler.policies.hetsev.instances import InstanceType, capacity_ips
from tidegate.autoscaler.policies.hetsev.saturation import RateSample, Saturation, saturation
from tidegate.autoscaler.policies.tide.starts import Starts
from tidegate.errors import Fault, InvalidInputError
from tidegate.function import Function
from tidegate.manifest import policy_parameters as scaling_parameters
from tidegate.manifest.policy_parameters import HETSEV_PARAMETERS
from tidegate.records.decision import GroupDecision, Reason

MANY: Final = 100_000
"""Instances of a type without a known limit."""
SIGMAS: Final = 3.0
"""Standard deviations of the arrivals that a removal leaves room for."""
UNPRICED: Final = 1.0
"""Cost of an instance without a price: then the number counts."""


class _Step(NamedTuple):
    """The outcome of one step of the loop."""

    counts: tuple[int, ...]
    reasons: tuple[Reason, ...]


class HetsevPolicy:
    """The policy of one revision."""

    __slots__ = (
        "_base",
        "_due",
        "_function",
        "_is_exact",
        "_last",
        "_last_scale",
        "_rates",
        "_samples",
        "_starts",
    )

    activation_scale = 1
    retention_s = 0.0

    def __init__(self, function: Function, now: float, *, is_exact: bool) -> None:
        self._function = function
        self._is_exact = is_exact
        self._rates = ArrivalRates(self._given["window"])
        self._samples: deque[RateSample] = deque()
        """Rates of the last steps, for as long as trigger or removal look back."""
        self._starts: dict[str, Starts] = {}
        self._due = now
        self._last: Recommendation | None = None
        self._base = 0
        """Instances at the last step."""
        self._last_scale: float | None = None

    @property
    def _given(self) -> dict[str, Any]:
        return scaling_parameters.values(HETSEV_PARAMETERS, self._function.scaling.parameters)

    def decide(self, observation: Observation, now: float) -> Recommendation:
        for group in observation.groups:
            self._starts.setdefault(group.accelerator, Starts()).update(
                group.ready, group.starting, group.draining, now
            )
        if not observation.complete:
            return Recommendation(
                desired=None, reasons=(reason("hold_no_data", "not every gateway and group was heard"),)
            )
        if not observation.groups:
            return Recommendation(desired=None, reasons=(reason("no_accelerator"),))
        self._rates.update(observation, now)
        if observation.existing == 0 and observation.is_quiet:
            self._rates.forget()
            self._samples.clear()
            self._last, self._due, self._base = None, now, 0
            return Recommendation(desired=0, reasons=(reason("zero"),))
        given = self._given
        is_fresh = self._base == 0 and observation.existing > 0
        if self._last is not None and now < self._due <= now + given["period"] and not is_fresh:
            return self._last
        if self._rates.covered_s < min(given["period"], given["window"]):
            seen = f"arrivals of {figure(self._rates.covered_s)} s of {figure(given['period'])} s"
            return Recommendation(desired=None, reasons=(reason("hold_no_data", seen),))
        self._due, self._base = now + given["period"], observation.existing
        self._last = self._evaluated(observation, given, now)
        return self._last

    def _evaluated(self, observation: Observation, given: dict[str, Any], now: float) -> Recommendation:
        rate, batch = self._rates.rate()
        self._samples.append(RateSample(now, rate, batch))
        longest = max(given["cooldown"], given["hold"] + given["period"])
        while not now - longest <= self._samples[0].at <= now:
            self._samples.popleft()
        types = [self._type(group) for group in observation.groups]
        capacity, threshold = capacity_ips(types), given["saturation"] / 100.0
        found = saturation(tuple(self._samples), capacity, threshold, given["hold"])
        if found.is_triggered:
            step = self._grown(observation, types, rate * batch, given)
        else:
            step = self._shrunk(observation, types, given, found, now)
        if step.counts != tuple(each.running for each in types):
            self._last_scale = now
        share = self._function.gpu.core_percentage
        return Recommendation(
            desired=sum(step.counts),
            groups=tuple(
                row(group.accelerator, count, share)
                for group, count in zip(observation.groups, step.counts, strict=True)
            ),
            reasons=step.reasons,
            observed={"arrivals_ips": rate * batch, "capacity_ips": capacity},
        )

    # --- out

    def _grown(
        self, observation: Observation, types: Sequence[InstanceType], arrivals_ips: float, given: dict[str, Any]
    ) -> _Step:
        threshold, weight = given["saturation"] / 100.0, given["launch-weight"]
        detail = (
            f"{figure(arrivals_ips)} of {figure(capacity_ips(types))} inferences/s for {figure(given['hold'])} s, "
            f"threshold {figure(100.0 * threshold)} %"
        )
        reasons = [reason("saturated", detail)]
        slo_s, named = self._slo_s, [group.accelerator for group in observation.groups]
        unknown = [name for name, each in zip(named, types, strict=True) if each.latency_s is None]
        if unknown:
            reasons.append(reason("mu_unknown", f"{', '.join(unknown)}: not launched without a rate"))
        known = [each for each in types if each.latency_s is not None]
        if known and not any(each.may_launch(slo_s) for each in known):
            fastest_s = min(each.latency_s or 0.0 for each in known)
            reasons.append(
                reason("slo_infeasible", f"the fastest takes {figure(1e3 * fastest_s)} ms of {figure(1e3 * slo_s)} ms")
            )
            if given["best-effort"]:
                slo_s = fastest_s
        free = {group.accelerator: float(_free(group)) for group in observation.groups}
        launch: tuple[int, ...] | None = None
        if self._is_exact:
            total = {name: free[name] + each.running for name, each in zip(named, types, strict=True)}
            program = exact.solve(types, arrivals_ips / threshold, slo_s, weight, total)
            if program.change is None:
                reasons.append(reason("program_infeasible"))
            else:
                launch = tuple(max(0, number) for number in program.change)
                if not program.is_proved:
                    reasons.append(reason("program_unproved"))
        if launch is None:
            out = scale_out(types, arrivals_ips, slo_s, weight, free, threshold)
            launch = out.launch
            if not out.is_satisfied and known and any(each.may_launch(slo_s) for each in known):
                reasons.append(reason("no_capacity"))
        if any(launch):
            costs = ", ".join(
                f"{count} {group.accelerator} at {figure(each.cost)}, {figure(each.launch_s)} s to start"
                for count, group, each in zip(launch, observation.groups, types, strict=True)
                if count
            )
            reasons.append(reason("launched", costs))
        return _Step(tuple(each.running + count for count, each in zip(launch, types, strict=True)), tuple(reasons))

    # --- in

    def _shrunk(
        self,
        observation: Observation,
        types: Sequence[InstanceType],
        given: dict[str, Any],
        found: Saturation,
        now: float,
    ) -> _Step:
        counts = [each.running for each in types]
        threshold, cooldown_s = given["saturation"] / 100.0, given["cooldown"]
        level = found.levels[-1]
        used = "no capacity yet" if level is None else f"{figure(100.0 * level)} % of the capacity in use"
        low = max(1, self._function.scaling.min_scale)
        arrivals_ips = self._largest_ips(given["window"])
        # Every rate of the cool-down is to be known: a restart removes nothing before.
        is_calm = now - self._samples[0].at >= cooldown_s - given["period"]
        index = None
        if is_calm:
            index = scale_in(types, arrivals_ips, threshold, now, self._last_scale, cooldown_s, low)
        if index is None:
            return _Step(tuple(counts), (reason("unsaturated", used),))
        if self._is_exact:
            # Without needs and with an SLO that nothing meets: removals alone. The limits keep the minimum.
            kept = [replace(each, needs={}) for each in types]
            change = exact.solve(kept, arrivals_ips / threshold, -1.0, 0.0, {}).change or (0,) * len(types)
        else:
            change = tuple(-int(each == index) for each in range(len(types)))
        removed = ", ".join(
            f"{-number} {group.accelerator}" for group, number in zip(observation.groups, change, strict=True) if number
        )
        kept_counts = tuple(count + number for count, number in zip(counts, change, strict=True))
        return _Step(kept_counts, (reason("surplus", f"{used}: {removed or 'none'}"),))

    def _largest_ips(self, window_s: float) -> float:
        """Returns the largest rate of the cool-down, and room for chance."""
        largest = max(self._samples, key=lambda each: each.rate * each.batch)
        arrivals_ips = largest.rate * largest.batch
        return arrivals_ips + SIGMAS * largest.batch * math.sqrt(largest.rate / window_s)

    # --- facts

    @property
    def _slo_s(self) -> float:
        return self._function.sla.latency_s or math.inf

    def _type(self, group: GroupObservation) -> InstanceType:
        given = group.mu_ips or 0.0
        latency_s = group.unloaded_s
        if latency_s is None and self._function.sla.latency_s is None:
            latency_s = 0.0
        return InstanceType(
            cost=group.price_per_hour or UNPRICED,
            launch_s=self._starts[group.accelerator].median_s,
            throughput_ips=given or group.mu_bound_ips,
            running=group.existing,
            latency_s=latency_s if given > 0.0 else None,
            needs={group.accelerator: 1.0},
        )

    def __repr__(self) -> str:
        return f"<HetsevPolicy {'exact' if self._is_exact else 'greedy'}, {self._rates!r}>"


def _free(group: GroupObservation) -> int:
    """Returns the places left: draining instances are taken back."""
    return MANY if group.capacity is None else max(0, group.capacity - group.existing)


def _greedy(function: Function, now: float, ready: int) -> HetsevPolicy:
    return HetsevPolicy(function, now, is_exact=False)


def _exact(function: Function, now: float, ready: int) -> HetsevPolicy:
    if not exact.is_available():
        raise InvalidInputError(
            "policy",
            [
                Fault(
                    "policy", "'hetsev-ilp'", "a policy that can run here: it needs scipy (pip install 'tidegate[ilp]')"
                )
            ],
        )
    return HetsevPolicy(function, now, is_exact=True)


_KEEPS: Final = (HetsevPolicy, ArrivalRates, RateSample, Starts, Recommendation, GroupDecision, Reason)
GREEDY: Final = PolicyRow(
    name="hetsev-greedy",
    sentence="HetSev's greedy rule: the cheapest accelerator kind that carries the load, launch latency weighed in.",
    build=_greedy,
    keeps=_KEEPS,
    is_by_size=True,
)
EXACT: Final = PolicyRow(
    name="hetsev-ilp",
    sentence="HetSev's integer program, solved exactly: the cheapest mix of accelerator kinds that carries the load.",
    build=_exact,
    keeps=_KEEPS,
    is_by_size=True,
)
