"""The report of a load as a record: printed by ``--json``, and the source of all other forms."""

from dataclasses import dataclass
from typing import Final

from tidegate.loadgen.clients.client_health import ClientReport
from tidegate.loadgen.histogram import RELATIVE_ERROR, FineHistogram
from tidegate.loadgen.reports.tally import Tally, TallySlot

PERCENTILES: Final = (10, 25, 50, 75, 90, 95, 99)
"""Percentiles of the latency table in the thesis on in-flight and utilisation autoscaling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """A distribution of durations, in seconds."""

    count: int
    fastest_s: float
    mean_s: float
    slowest_s: float
    percentiles_s: dict[str, float]
    """By percent: ``99`` is exceeded by one in a hundred."""
    relative_error: float = RELATIVE_ERROR
    """Maximum relative error of the percentiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens and times of the streams among the successes."""

    streams: int
    tokens: int
    tokens_per_s: float
    first: Durations | None
    """Time to first output, from the due time."""
    between: Durations | None
    """Time between consecutive outputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sla:
    """The SLA: ``percentile`` percent of all requests sent must succeed within ``latency_s``, and streams with
    ``per_token_s`` at most."""

    latency_s: float
    percentile: float
    within: float
    """Percent that succeeded in time."""
    is_met: bool
    per_token_s: float | None = None
    """Mean time per output token of a stream behind its first; None without such a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRecord:
    """The load client's self-check."""

    busy: float
    """Processor time over wall time: 1.0 is one core."""
    late: int
    """Requests that left 20 ms or more after their due time."""
    lag_p99_s: float
    is_bottleneck: bool
    is_starved: bool = False
    """Whether requests left late because the machine had no processor free for the client."""
    held: int = 0
    """Requests that waited because as many as allowed were in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondRecord:
    """The requests due in one slot of time, from ``at_s`` on."""

    at_s: float
    answered_per_s: float
    good_per_s: float
    inferences_per_s: float
    p50_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    target: str
    mode: str
    protocol: str
    seed: int
    is_partial: bool
    """Whether the run was interrupted; requests in flight at that time are ``unfinished``."""
    began: str
    """Start time in UTC, RFC 3339."""
    wall_s: float
    sent: int
    answered: int
    good: int
    """Requests with a success status and, for streams, the whole stream."""
    unfinished: int
    inferences: int
    """Inferences of successful requests."""
    rate_per_s: float
    """Answers per second, until the last one."""
    inferences_per_s: float
    latency: Durations | None
    """Latency of successes, from the due time to the moment that the SLA judges: the end of the answer, or a stream's
    first output (its head, where outputs are not read)."""
    service: Durations | None
    """The same from the time they were sent."""
    whole: Durations | None
    """Of the streams among them: from the due time to the end."""
    codes: dict[str, int]
    errors: dict[str, int]
    tokens: Tokens | None
    sla: Sla | None
    client: ClientRecord
    slot_s: float
    seconds: tuple[SecondRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Facts of a run beside its calls."""

    target: str
    mode: str
    protocol: str
    seed: int
    is_partial: bool
    began: str
    sent: int
    wall_s: float
    cpu_s: float


def durations(of: FineHistogram) -> Durations | None:
    """Returns the distribution; None without observations."""
    if not of.total:
        return None
    found = of.quantiles(tuple(percent / 100 for percent in PERCENTILES))
    return Durations(
        count=of.total,
        fastest_s=of.smallest,
        mean_s=of.sum / of.total,
        slowest_s=of.largest,
        percentiles_s={str(percent): value or 0.0 for percent, value in zip(PERCENTILES, found, strict=True)},
    )


def report_of(tally: Tally, about: About) -> LoadReport:
    """Returns the report of a run. Rates cover the time until the last answer."""
    span_s = tally.last_s or about.wall_s or 1.0
    client = ClientReport(
        requests=tally.ended,
        late=tally.late,
        lag_p99_ms=(tally.lag.quantile(0.99) or 0.0) * 1e3,
        busy=about.cpu_s / about.wall_s if about.wall_s > 0.0 else 0.0,
    )
    answered = tally.ended - tally.unanswered
    return LoadReport(
        target=about.target,
        mode=about.mode,
        protocol=about.protocol,
        seed=about.seed,
        is_partial=about.is_partial,
        began=about.began,
        wall_s=about.wall_s,
        sent=about.sent,
        answered=answered,
        good=tally.good,
        unfinished=about.sent - tally.ended,
        inferences=tally.inferences,
        rate_per_s=answered / span_s,
        inferences_per_s=tally.inferences / span_s,
        latency=durations(tally.latency),
        service=durations(tally.service),
        whole=durations(tally.whole),
        codes=dict(sorted(tally.codes.items())),
        errors=dict(sorted(tally.errors.items())),
        tokens=_tokens(tally, span_s),
        sla=_sla(tally),
        client=ClientRecord(
            busy=client.busy,
            late=client.late,
            lag_p99_s=client.lag_p99_ms / 1e3,
            is_bottleneck=client.is_bottleneck,
            is_starved=client.is_starved,
            held=tally.held,
        ),
        slot_s=tally.slot_s,
        seconds=tuple(_second(index * tally.slot_s, slot, tally.slot_s) for index, slot in enumerate(tally.slots)),
    )


def _tokens(tally: Tally, span_s: float) -> Tokens | None:
    if not tally.streams:
        return None
    return Tokens(
        streams=tally.streams,
        tokens=tally.tokens,
        tokens_per_s=tally.tokens / span_s,
        first=durations(tally.first),
        between=durations(tally.gaps),
    )


def _sla(tally: Tally) -> Sla | None:
    wanted = tally.sla
    if wanted is None or not tally.ended:
        return None
    within = 100.0 * tally.within / tally.ended
    return Sla(
        latency_s=wanted.latency_s,
        percentile=wanted.percentile,
        within=within,
        is_met=within >= wanted.percentile * (1.0 - 1e-12),
        per_token_s=wanted.per_token_s,
    )


def _second(at_s: float, slot: TallySlot, span_s: float) -> SecondRecord:
    p50, p99 = slot.latency.quantiles((0.5, 0.99))
    return SecondRecord(
        at_s=at_s,
        answered_per_s=slot.answered / span_s,
        good_per_s=slot.good / span_s,
        inferences_per_s=slot.inferences / span_s,
        p50_s=p50,
        p99_s=p99,
    )
