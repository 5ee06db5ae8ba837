"""Learnt figures of a function's groups, as they are kept over a restart and passed to its next revision.

A *profile* is of one model on one accelerator with one share of its device: rates by batch size and occupancy, the
concurrency limit, and how much other models on the device slow it. It is a revision's own if nothing that the speed
depends on differs (``identity``): a redeploy that only changes the SLA continues with it. Else it is a *prior*: it
counts until the revision has rates of its own. The content of model files is not looked at: a model that was replaced
in place is followed like any model that changes its speed.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tidegate.autoscaler.measure.rates import GroupRates, LearntCell
from tidegate.autoscaler.profiles.concurrency_limit import LearntLimit
from tidegate.autoscaler.profiles.interference import LearntPair
from tidegate.autoscaler.profiles.memory import digest, work_of
from tidegate.deploy.placement.ledger import Accelerator
from tidegate.function import Function
from tidegate.records.profile_point import ProfilePoint

MAX_PROFILES = 32
"""Profiles kept per function, the newest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntProfile:
    identity: str
    accelerator: str
    share: int
    at: float
    """When it was last stored, Unix seconds."""
    mean_batch: float | None = None
    """Inferences per request, as they last were."""
    cells: tuple[LearntCell, ...] = ()
    limit: LearntLimit | None = None
    beside: tuple[LearntPair, ...] = ()
    """Increases of the execution time beside other models on one device."""
    is_measured: bool = False
    """True if it is what `tidegate profile` has measured; what is learnt from served requests takes its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntFunction:
    """All profiles of one function: one record in the store."""

    function: str
    profiles: tuple[LearntProfile, ...] = ()


def identity(function: Function, accelerator: Accelerator) -> str:
    """Returns a digest of everything that the speed of a replica depends on, as far as it is declared."""
    speed = (accelerator.kind, accelerator.cores, accelerator.quota, accelerator.profile)
    return digest((*work_of(function), *speed))


def found(known: LearntFunction, wanted: str, accelerator: str, share: int) -> tuple[LearntProfile | None, bool]:
    """Returns (the profile to start from, whether it is the revision's own), or (None, False)."""
    here = [each for each in known.profiles if (each.accelerator, each.share) == (accelerator, share)]
    own = next((each for each in here if each.identity == wanted), None)
    if own is not None:
        return own, True
    return max(here, key=lambda each: each.at, default=None), False


def chosen(points: Sequence[ProfilePoint], function: Function) -> list[ProfilePoint]:
    """Returns those of one accelerator's measured points that a replica of the function is like: with as many cores, or
    else with the fewest."""
    wanted = function.resources.threads
    numbers = {each.cell.cores for each in points}
    cores = wanted if wanted in numbers else min(numbers, default=0)
    return [each for each in points if each.cell.cores == cores]


def merged(known: LearntFunction, fresh: Iterable[LearntProfile]) -> LearntFunction:
    """Returns ``known`` with what was learnt since; equal to it if nothing was learnt."""
    kept = {(each.identity, each.accelerator, each.share): each for each in known.profiles}
    for each in fresh:
        key = (each.identity, each.accelerator, each.share)
        before = kept.get(key)
        if (each.cells or each.limit is not None or each.beside) and (
            before is None or replace(each, at=before.at) != before
        ):
            kept[key] = each
    newest = sorted(kept.values(), key=lambda each: (-each.at, each.identity, each.accelerator))[:MAX_PROFILES]
    profiles = tuple(newest)
    return known if set(profiles) == set(known.profiles) else replace(known, profiles=profiles)


def rate_of(profile: LearntProfile) -> float | None:
    """Returns a profile's rate for its last batch size; None if it was never learnt at the limit."""
    rates = GroupRates()
    rates.restore(profile.cells)
    rate = rates.rate(profile.mean_batch)
    return rate.mu_ips if rate is not None and rate.is_at_limit and math.isfinite(rate.mu_ips) else None


def floor_of(profile: LearntProfile) -> float | None:
    """Returns the execution time of one inference on an empty replica; None if unknown."""
    rates = GroupRates()
    rates.restore(profile.cells)
    return rates.min_execution_s(1.0)
