"""The figures of the console and of Grafana's boards during a demo beside those of the load client, at each number of
replicas of its story. No clock, no sockets.

Like is compared with like. The console counts what the gateways have reported: its total says which of the client's
requests these are. A latency of the client is here the time from sending to the last byte, as at the gateway; the
client's own latency counts from the due time.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final

from tidegate.control.cli.demo.records import Look, Records, quantile
from tidegate.control.views.functions import TrafficView
from tidegate.loadgen.clients.outcomes import RequestOutcome

RATE_S: Final = 5.0
"""Window of the console's rates (``TrafficView.requests_per_s``)."""
AGES_S: Final = tuple(0.25 * step for step in range(7))
"""Ages that a rate may have. Of the client's rates at these ages the nearest is compared: as a load rises, a rate grows
by a tenth in a second."""
READINGS_BESIDE: Final = 2
"""Readings of the console before a scrape, and after it, of whose requests the scraped percentile may be."""
APART_S: Final = 1.0
"""Time between two such readings, from which on a scraped percentile is not compared: gateways are asked once a second,
so that it may be of a window that no reading has. Readings are half a second apart unless the machine is busy."""
MIN_LOOKS: Final = 6
"""Readings of a number of replicas that is compared: three seconds of it."""
MIN_RATE: Final = 1.0
"""Requests per second of the client from which on rates are compared: a few more or less are not 2 %."""
MIN_REQUESTS: Final = 100
"""Requests in a window from which on its percentiles are compared."""
BOARD_RATE_S: Final = 60.0
"""Window of the boards' rate (``function:tidegate_requests:rate1m``)."""
BOARD_SLA_S: Final = 300.0
"""Window of the boards' attainment (``function:tidegate_sla_attainment:ratio_rate5m``)."""
ALLOWED: Final = 0.02
"""Largest difference, as a fraction of the client's figure."""


Curve = Sequence[tuple[float, float]]
"""(time in seconds after the beginning of the load, value) of a panel; the time is that of the scrape behind it."""
Views = Sequence[tuple[float, TrafficView]]
"""The console's readings in order: (time in seconds after the beginning of the load, its figures)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardFigures:
    """The curves of the boards in one part of the story; empty: no data."""

    requests_per_s: Curve
    p50_s: Curve
    tail_s: Curve
    within_sla: Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One figure, counted by the load client and shown by the console or by a board. None: it has none, or the client's
    is too small to be compared."""

    client: float | None
    shown: float | None

    @property
    def difference(self) -> float | None:
        """Returns the figure that is shown against the client's, as a fraction of the latter."""
        if self.client is None or self.shown is None:
            return None
        if not self.client:
            return None if self.shown else 0.0
        return self.shown / self.client - 1.0

    @property
    def is_missing(self) -> bool:
        return self.shown is None or (self.client is not None and self.difference is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FiguresShown:
    """Figures of the console or the boards, each beside the client's figure of the same requests."""

    requests_per_s: Pair
    p50_s: Pair
    tail_s: Pair
    within_sla: Pair

    def pairs(self) -> Iterator[tuple[str, Pair]]:
        yield "requests/s", self.requests_per_s
        yield "p50", self.p50_s
        yield "tail", self.tail_s
        yield "within the target", self.within_sla


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The figures of one part of the story, in which ``ready`` replicas were ready; it ended at ``until_s``. Each is
    the mean over the readings."""

    ready: int
    looks: int
    until_s: float
    requests: int
    """Requests of the console's window at the last reading."""
    console: FiguresShown
    boards: FiguresShown | None
    """None: no Prometheus was there."""
    due_p50_s: float | None
    """The client's latencies of the console's requests from their due times."""
    due_tail_s: float | None

    def figures(self) -> Iterator[tuple[str, Pair]]:
        """Yields each figure with its name."""
        for place, shown in (("console", self.console), ("boards", self.boards)):
            for name, pair in () if shown is None else shown.pairs():
                yield f"{name} of the {place} at {self.ready} ready", pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    holds: bool
    text: str


def story(looks: Sequence[Look]) -> list[list[Look]]:
    """Returns the readings since the load began, by the times in which the number of ready replicas stayed the same."""
    seen = [look for look in looks if look.traffic is not None and look.at_s >= RATE_S]
    return [part for _, found in groupby(seen, lambda look: look.ready) if len(part := list(found)) >= MIN_LOOKS]


def compare(records: Records, boards: Sequence[BoardFigures] = ()) -> tuple[Compared, ...]:
    """Returns the comparison for each part of the story. ``boards``: their figures in each part; empty: none."""
    client = _Client([*records.asked, *records.outcomes], records.latency_s, records.percentile / 100.0)
    parts = story(records.looks)
    curves: Sequence[BoardFigures | None] = boards or [None] * len(parts)
    views = [(look.at_s, look.traffic) for look in records.looks if look.traffic is not None]
    compared = (_compared(client, part, views, board) for part, board in zip(parts, curves, strict=True))
    return tuple(each for each in compared if each is not None)


def agreement(compared: Sequence[Compared]) -> Agreement:
    """Returns whether every figure is within 2 % of the client's."""
    counts = ", ".join(str(each.ready) for each in compared)
    pairs = [pair for each in compared for pair in each.figures()]
    if not pairs:
        return Agreement(holds=False, text="Nothing to compare: the load was too short.")
    if missing := [name for name, pair in pairs if pair.is_missing]:
        return Agreement(holds=False, text=f"Figures are missing: {', '.join(missing)}.")
    name, worst = max(pairs, key=lambda found: abs(found[1].difference or 0.0))
    off = abs(worst.difference or 0.0)
    whose = "console's and the boards'" if any(each.boards is not None for each in compared) else "console's"
    if off <= ALLOWED:
        text = f"The {whose} figures are within 2 % of the client's at {counts} replicas ready; most off: {name}"
        return Agreement(holds=True, text=f"{text}, {off:.1%}.")
    return Agreement(holds=False, text=f"The {whose} figures differ from the client's by up to {off:.1%}: {name}.")


class _Client:
    """The counts of the load client."""

    def __init__(self, outcomes: Sequence[RequestOutcome], target_s: float, q: float) -> None:
        self._target_s = target_s
        self.q = q
        self._ended = sorted(outcomes, key=lambda each: each.ended_s)
        self._ends = [each.ended_s for each in self._ended]
        self._sent = sorted(each.sent_s for each in outcomes)
        self.sent_s = (self._sent[0], self._sent[-1]) if self._sent else (0.0, 0.0)
        """Times of the first and of the last request."""

    def shown(self, seen: TrafficView) -> Sequence[RequestOutcome]:
        """Returns the requests of the console's window, which follow from its total."""
        first, end = _shown(seen)
        return self._ended[first:end]

    def scraped(self, views: Sequence[TrafficView]) -> list[Sequence[RequestOutcome]]:
        """Returns the requests that a percentile may be of which was scraped amid these readings: control process and
        console take it from one window, and its ends move on between two readings, each for itself."""
        ends = [_shown(each) for each in views]
        return [self._ended[first:end] for first in {one for one, _ in ends} for end in {other for _, other in ends}]

    def ended(self, until: float, window_s: float) -> Sequence[RequestOutcome]:
        return self._ended[bisect_right(self._ends, until - window_s) : bisect_right(self._ends, until)]

    def rate(self, until: float, window_s: float) -> float:
        return (bisect_right(self._sent, until) - bisect_right(self._sent, until - window_s)) / window_s

    def served_s(self, outcomes: Sequence[RequestOutcome], q: float) -> float | None:
        """Returns the quantile of the times from sending to the last byte."""
        return quantile([each.served_s for each in outcomes if each.is_good], q)

    def due_s(self, outcomes: Sequence[RequestOutcome], q: float) -> float | None:
        return quantile([each.latency_s for each in outcomes if each.is_good], q)

    def within(self, outcomes: Sequence[RequestOutcome]) -> float:
        return sum(each.is_good and each.served_s <= self._target_s for each in outcomes) / len(outcomes)


def _shown(seen: TrafficView) -> tuple[int, int]:
    """Returns the first and the end of the requests in the console's window, counted by their ends."""
    counted = seen.answered + seen.failed + seen.refused + seen.expired + seen.cancelled
    return max(0, seen.ended_in_all - counted), seen.ended_in_all


def _compared(client: _Client, looks: Sequence[Look], all_views: Views, board: BoardFigures | None) -> Compared | None:
    """Returns the comparison of one part; None where too few requests were in each window."""
    views = [(look, look.traffic) for look in looks if look.traffic is not None]
    known = [(view, same) for _, view in views if len(same := client.shown(view)) >= MIN_REQUESTS]
    if not known:
        return None
    console = FiguresShown(
        requests_per_s=_rates(
            [
                (
                    _nearest([client.rate(look.at_s - age, RATE_S) for age in AGES_S], view.requests_per_s),
                    view.requests_per_s,
                )
                for look, view in views
            ]
        ),
        p50_s=_means([(client.served_s(same, 0.5), view.p50_s) for view, same in known]),
        tail_s=_means([(client.served_s(same, client.q), view.tail_s) for view, same in known]),
        within_sla=_means([(client.within(same), view.within_sla / len(same)) for view, same in known]),
    )
    return Compared(
        ready=looks[-1].ready,
        looks=len(looks),
        until_s=looks[-1].at_s,
        requests=len(known[-1][1]),
        console=console,
        boards=None if board is None else _boards(client, all_views, board),
        due_p50_s=_means([(client.due_s(same, 0.5), None) for _, same in known]).client,
        due_tail_s=_means([(client.due_s(same, client.q), None) for _, same in known]).client,
    )


def _boards(client: _Client, views: Views, board: BoardFigures) -> FiguresShown:
    times = [at for at, _ in views]

    def latency(curve: Curve, q: float) -> Pair:
        readings = []
        for at, value in curve:
            after = bisect_right(times, at)
            beside = views[max(0, after - READINGS_BESIDE) : after + READINGS_BESIDE]
            if any(later - earlier > APART_S for (earlier, _), (later, _) in pairwise(beside)):
                continue
            windows = client.scraped([view for _, view in beside])
            found = [client.served_s(each, q) for each in windows if len(each) >= MIN_REQUESTS]
            known = [latency for latency in found if latency is not None]
            if known:
                readings.append((_nearest(known, value), value))
        return _means(readings) if readings else _uncompared(curve)

    within = [(client.ended(at, BOARD_SLA_S), value) for at, value in board.within_sla]
    return FiguresShown(
        requests_per_s=_board_rates(client, board.requests_per_s),
        p50_s=latency(board.p50_s, 0.5),
        tail_s=latency(board.tail_s, client.q),
        within_sla=_means([(client.within(found), value) for found, value in within if len(found) >= MIN_REQUESTS]),
    )


def _board_rates(client: _Client, curve: Curve) -> Pair:
    """Compares rates over whole windows in which requests were sent. ``rate()`` of Prometheus extends the mean to both
    ends of its window, also to one at which nothing came yet or any more."""
    first, last = client.sent_s
    whole = [(client.rate(at, BOARD_RATE_S), value) for at, value in curve if first + BOARD_RATE_S <= at <= last]
    return _rates(whole) if whole else _uncompared(curve)


def _uncompared(curve: Curve) -> Pair:
    return Pair(client=None, shown=_means([(None, value) for _, value in curve]).shown)


def _nearest(known: Sequence[float], shown: float) -> float:
    return min(known, key=lambda each: abs(each - shown))


def _means(readings: Sequence[tuple[float | None, float | None]]) -> Pair:
    """Returns the means of the client's figures and of those shown; None where one has none."""

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known and len(known) == len(values) else None

    return Pair(client=mean([one for one, _ in readings]), shown=mean([other for _, other in readings]))


def _rates(readings: Sequence[tuple[float, float]]) -> Pair:
    pair = _means(readings)
    return pair if pair.client is not None and pair.client >= MIN_RATE else Pair(client=None, shown=pair.shown)
