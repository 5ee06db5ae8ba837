"""The timeline of a run and figures from it. Pure: status readings and outcomes in, figures out."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.loadgen.clients.client_health import ClientReport
from tidegate.loadgen.clients.outcomes import RequestOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The function as its deployment shows it, ``at_s`` seconds after the load began."""

    at_s: float
    ready: Mapping[str, int]
    """Ready replicas by accelerator."""
    present: Mapping[str, int]
    """Starting and ready ones."""
    desired: int | None
    weights: Mapping[str, float]
    """By accelerator, as the gateways have them."""
    price_per_hour: float
    waiting: int
    starts: Mapping[str, float] = field(default_factory=dict)
    """Seconds from the decision to ready, by ready replica."""

    @property
    def replicas(self) -> int:
        return sum(self.ready.values())


@dataclass(slots=True, kw_only=True)
class Run:
    """Everything that one load saw."""

    outcomes: list[RequestOutcome] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    client: ClientReport | None = None
    seconds: float = 0.0

    @property
    def lost(self) -> list[RequestOutcome]:
        return [outcome for outcome in self.outcomes if not outcome.is_good]


def ended_s(outcome: RequestOutcome) -> float:
    return outcome.at_s + outcome.latency_s


def throughput_ips(outcomes: Iterable[RequestOutcome], first_s: float, last_s: float) -> float:
    """Inferences per second whose good answers came in [``first_s``, ``last_s``)."""
    done = sum(each.inferences for each in outcomes if each.is_good and first_s <= ended_s(each) < last_s)
    return done / (last_s - first_s)


def within(outcomes: Sequence[RequestOutcome], latency_s: float, since_s: float = 0.0) -> float:
    """Share of the requests due from ``since_s`` on that were answered well and in time; 1.0 of none."""
    asked = [outcome for outcome in outcomes if outcome.at_s >= since_s]
    return sum(each.is_good and each.latency_s <= latency_s for each in asked) / len(asked) if asked else 1.0


def latency_s(outcomes: Iterable[RequestOutcome], q: float) -> float | None:
    """The q-quantile of the good answers (nearest rank)."""
    good = sorted(outcome.latency_s for outcome in outcomes if outcome.is_good)
    return good[min(len(good) - 1, int(q * len(good)))] if good else None


def converged_s(looks: Sequence[Look], is_right: Callable[[Look], bool]) -> float | None:
    """From when on every look was right; None: the last one was not."""
    since: float | None = None
    for look in looks:
        if not is_right(look):
            since = None
        elif since is None:
            since = look.at_s
    return since


def turns(sizes: Sequence[int]) -> int:
    """Returns how often growth was followed by shrinking, or the other way round: 1, 2, 1, 2 has two turns."""
    steps = [after - before for before, after in itertools.pairwise(sizes) if after != before]
    return sum((one > 0) != (other > 0) for one, other in itertools.pairwise(steps))


def flip_flops(looks: Sequence[Look]) -> int:
    """Turns over all accelerators, each counted for itself: a replica that moves from one to another and stays there
    is none."""
    names = sorted({name for look in looks for name in look.present})
    return sum(turns([look.present.get(name, 0) for look in looks]) for name in names)


def cost(looks: Sequence[Look], until_s: float) -> float:
    """Returns the cost of the replicas, in the currency of their prices: each reading's price holds until the next
    one."""
    return sum(look.price_per_hour * span_s for look, span_s in _spans(looks, until_s)) / 3600.0


def replica_seconds(looks: Sequence[Look], until_s: float) -> float:
    """Returns the seconds of ready replicas: each reading holds until the next one."""
    return sum(look.replicas * span_s for look, span_s in _spans(looks, until_s))


def _spans(looks: Sequence[Look], until_s: float) -> list[tuple[Look, float]]:
    inside = [look for look in looks if 0.0 <= look.at_s < until_s]
    ends = [look.at_s for look in inside[1:]] + [until_s]
    return [(look, end - look.at_s) for look, end in zip(inside, ends, strict=True)]


@dataclass(frozen=True, slots=True)
class Second:
    """Requests that were due in one second."""

    at_s: int
    requests: int
    inferences: int
    late: int
    """Late or lost."""
    p50_ms: float | None
    p98_ms: float | None


def by_second(outcomes: Iterable[RequestOutcome], target_s: float, seconds: float) -> list[Second]:
    slices: list[list[RequestOutcome]] = [[] for _ in range(int(seconds) + 1)]
    for outcome in outcomes:
        if 0.0 <= outcome.at_s < len(slices):
            slices[int(outcome.at_s)].append(outcome)
    return [_second(at_s, found, target_s) for at_s, found in enumerate(slices)]


def _second(at_s: int, found: list[RequestOutcome], target_s: float) -> Second:
    p50, p98 = latency_s(found, 0.5), latency_s(found, 0.98)
    return Second(
        at_s=at_s,
        requests=len(found),
        inferences=sum(outcome.inferences for outcome in found),
        late=sum(not outcome.is_good or outcome.latency_s > target_s for outcome in found),
        p50_ms=None if p50 is None else p50 * 1e3,
        p98_ms=None if p98 is None else p98 * 1e3,
    )
