"""Checks whether a function's SLA can be held with the given accelerators, with figures, before anything is started.
Pure.

For each accelerator kind that the function may use: the time of one inference (on an empty replica), the yield of a
replica, the number of possible replicas. The figures are rates learnt of this model, else those of the revision before,
else the profile of an emulated accelerator, else a predicted time. Without any of these they are unknown, and nothing
is objected. A predicted time meets or misses the latency only where its error leaves no doubt.

A profile gives the yield at the largest batch that leaves room inside the latency (``ROOM``), as the concurrency limit
would be learnt. ``target-ips`` is provided as the SLA policy does it: the cheapest kinds first, at the target
utilisation.

Only what can never hold is refused: a latency below the time of one inference on every kind by its declared profile,
jitter in its favour. Everything else is a warning: rates change, and accelerators may be added.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tidegate.autoscaler.decisions.reasons import figure
from tidegate.autoscaler.oltunes.prediction.served import FirstPrediction
from tidegate.autoscaler.profiles.concurrency_limit import ROOM
from tidegate.deploy.placement.ledger import Accelerator, Profile, Room
from tidegate.function import Function
from tidegate.manifest import policy_parameters as scaling_parameters
from tidegate.manifest.policy_parameters import SMIF_PARAMETERS

UTILIZATION = 0.8
"""Share of a replica's rate that policies without ``target-utilization`` plan with."""


class Source(StrEnum):
    """Origin of the figures of a kind."""

    LEARNT = "learnt"
    MEASURED = "measured"
    """Of `tidegate profile`."""
    EARLIER = "earlier"
    """Learnt of the revision before, which was another model or ran otherwise."""
    PROFILE = "profile"
    PREDICTED = "predicted"
    """Measured nowhere: it follows from the model's graph, or from what it takes on other accelerators."""
    UNKNOWN = "unknown"


class KnownFigures(NamedTuple):
    """What is known of a function on one accelerator before it has run there."""

    source: Source
    one_s: float | None
    """Time of one inference on an empty replica."""
    mu_ips: float | None
    """Inferences per second of one replica."""


UNKNOWN = KnownFigures(Source.UNKNOWN, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One accelerator kind that the function may use."""

    accelerator: Accelerator
    room: Room
    """Room for replicas of this function."""
    mu_ips: float | None = None
    """Learnt rate of one replica."""
    one_s: float | None = None
    """Learnt time of one inference."""
    is_own: bool = False
    """True if both are this very model's."""
    is_measured: bool = False
    """True if `tidegate profile` has measured them."""
    predicted: FirstPrediction | None = None
    """The time to expect if none is learnt."""
    first_s: float | None = None
    """Learnt time to the first token, where answers are streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindFigures:
    accelerator: str
    emulated: bool
    source: Source
    one_s: float | None
    """Time of one inference on an empty replica."""
    meets_latency: bool | None
    """None if there is no target, or the time is unknown."""
    mu_ips: float | None
    """Inferences per second of one replica."""
    places: int
    """Possible replicas of this function, if it were alone."""
    free: int
    price_per_hour: float
    """Price of one replica."""
    error: float | None = None
    """Relative error to expect of a predicted time; None for others."""
    basis: str | None = None
    """What a predicted time follows from, for people."""
    first_s: float | None = None
    """Time to the first token, which the latency is for where answers are streams; None for others."""

    @property
    def alone_s(self) -> float | None:
        """Time on an empty replica of what the latency is for."""
        return self.one_s if self.first_s is None else self.first_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    kinds: tuple[KindFigures, ...]
    provided: tuple[tuple[str, int], ...] = ()
    """Replicas by accelerator that carry ``target-ips``, the cheapest kinds first; empty if there is no such target, or
    no rate is known."""
    provided_ips: float | None = None
    """Rate that they carry at the target utilisation."""
    price_per_hour: float | None = None
    """Price of those replicas; without ``target-ips`` of one replica on the cheapest kind that meets the latency."""
    warnings: tuple[str, ...] = ()
    refusal: str | None = None
    """Why the latency can never be held: the allowed range."""


def assess(function: Function, kinds: Sequence[Kind]) -> Assessment:
    """Returns the assessment. ``kinds``: those that the function may use, cheapest first."""
    latency_s, utilization = function.sla.latency_s, _utilization(function)
    figures = tuple(_figures(kind, function, latency_s) for kind in kinds)
    usable = [each for each in figures if each.meets_latency is not False]
    warnings = _latency_warnings(figures, usable, latency_s)
    refusal = _refusal(kinds, latency_s)
    target = function.sla.target_ips
    if target is None or not usable:
        cheapest = usable[0].price_per_hour if usable else None
        return Assessment(kinds=figures, price_per_hour=cheapest, warnings=tuple(warnings), refusal=refusal)
    provided, carried = _provide(usable, target, utilization, function.scaling.max_scale)
    if provided and carried < target:
        warnings.append(_too_little(target, carried, utilization, provided, function.scaling.max_scale))
    prices = {each.accelerator: each.price_per_hour for each in figures}
    return Assessment(
        kinds=figures,
        provided=tuple(provided.items()),
        provided_ips=carried if provided else None,
        price_per_hour=sum(prices[name] * count for name, count in provided.items()) if provided else None,
        warnings=tuple(warnings),
        refusal=refusal,
    )


def _utilization(function: Function) -> float:
    if function.scaling.policy != "smif":
        return UTILIZATION
    given = scaling_parameters.values(SMIF_PARAMETERS, function.scaling.parameters)
    return float(given["target-utilization"]) / 100.0


def _figures(kind: Kind, function: Function, latency_s: float | None) -> KindFigures:
    accelerator = kind.accelerator
    source, one_s, mu_ips = known_figures(
        function,
        accelerator,
        mu_ips=kind.mu_ips,
        one_s=kind.one_s,
        is_own=kind.is_own,
        is_measured=kind.is_measured,
        predicted=kind.predicted,
    )
    sure = kind.predicted if source is Source.PREDICTED else None
    return KindFigures(
        accelerator=accelerator.name,
        emulated=accelerator.is_emulated,
        source=source,
        one_s=one_s,
        meets_latency=_meets(latency_s, kind.first_s or one_s, 0.0 if sure is None else sure.error),
        mu_ips=mu_ips,
        places=kind.room.total,
        free=max(0, kind.room.free),
        price_per_hour=accelerator.price_per_hour,
        error=None if sure is None else sure.error,
        basis=None if sure is None else sure.basis,
        first_s=kind.first_s,
    )


def _meets(latency_s: float | None, one_s: float | None, error: float) -> bool | None:
    """Returns whether one inference keeps the latency; None if that is not sure."""
    if latency_s is None or one_s is None:
        return None
    if one_s * (1.0 + error) <= latency_s:
        return True
    return False if one_s / (1.0 + error) > latency_s else None


def known_figures(
    function: Function,
    accelerator: Accelerator,
    *,
    mu_ips: float | None = None,
    one_s: float | None = None,
    is_own: bool = False,
    is_measured: bool = False,
    predicted: FirstPrediction | None = None,
) -> KnownFigures:
    """Returns what a deploy answers, and what its first decisions go by: the learnt figures, else the profile's, else
    the predicted time. ``is_own``: the learnt ones are of this very model; ``is_measured``: they are measured."""
    profile = accelerator.profile
    if one_s is not None or mu_ips is not None:
        own = Source.MEASURED if is_measured else Source.LEARNT
        return KnownFigures(own if is_own else Source.EARLIER, one_s, mu_ips)
    if profile is None:
        return UNKNOWN if predicted is None else KnownFigures(Source.PREDICTED, predicted.one_s, None)
    yielded = _yield(profile, function.batching.max_size, function.sla.latency_s)
    return KnownFigures(Source.PROFILE, profile.base_s + profile.per_item_s, yielded)


def _yield(profile: Profile, largest: int, latency_s: float | None) -> float | None:
    """Returns inferences per second at the largest batch that leaves room inside the latency."""
    batch = largest
    if latency_s is not None and profile.per_item_s > 0.0:
        batch = math.floor((ROOM * latency_s - profile.base_s) / profile.per_item_s + 1e-9)
    batch = max(1, min(largest, batch))
    seconds = profile.base_s + profile.per_item_s * batch
    return batch / seconds if seconds > 0.0 else None


def _provide(
    usable: Sequence[KindFigures], target: float, utilization: float, max_scale: int
) -> tuple[dict[str, int], float]:
    """Returns (replicas by kind for ``target``, the rate that they carry)."""
    provided: dict[str, int] = {}
    carried, left = 0.0, max_scale or math.inf
    for each in usable:
        if carried >= target or not each.mu_ips:
            continue
        one = utilization * each.mu_ips
        count = int(min(math.ceil((target - carried) / one - 1e-9), each.places, left))
        if count > 0:
            provided[each.accelerator] = count
            carried, left = carried + count * one, left - count
    return provided, carried


def _latency_warnings(
    figures: Sequence[KindFigures], usable: Sequence[KindFigures], latency_s: float | None
) -> list[str]:
    late = [each for each in figures if each.meets_latency is False]
    if latency_s is None or not late:
        return []
    listed = ", ".join(f"{each.accelerator} {figure(1e3 * (each.alone_s or 0.0))} ms ({each.source})" for each in late)
    what = "one inference alone takes" if late[0].first_s is None else "the first token of one stream alone takes"
    which = f"{what} longer than the latency target on"
    rest = "" if usable else "; no kind is left that meets it: the fastest serves, and is late"
    return [f"{which} {listed}, target {figure(1e3 * latency_s)} ms{rest}"]


def _too_little(target: float, carried: float, utilization: float, provided: dict[str, int], max_scale: int) -> str:
    count = sum(provided.values())
    why = f"max-scale is {max_scale}" if max_scale and count >= max_scale else "there are no more places"
    return (
        f"target-ips {figure(target)} cannot be provided: {count} replicas carry {figure(carried)} inferences/s at "
        f"{figure(100 * utilization)} % use, and {why}"
    )


def _refusal(kinds: Sequence[Kind], latency_s: float | None) -> str | None:
    """Returns the latency that can be held, if this one cannot by the profiles of all its kinds."""
    if latency_s is None or not kinds:
        return None
    least: dict[str, float] = {}
    for kind in kinds:
        profile = kind.accelerator.profile
        if profile is None:
            return None
        least[kind.accelerator.name] = (1.0 - profile.jitter) * (profile.base_s + profile.per_item_s)
    name = min(least, key=lambda each: least[each])
    if least[name] <= latency_s:
        return None
    return f"at least {figure(1e3 * least[name])} ms: what one inference takes on {name} by its declared profile"
