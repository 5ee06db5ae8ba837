"""The console's figures during a demo beside those of the load client, at each number of replicas. No clock, no
sockets."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.control.cli.demo.records import Look, Records, quantile
from tidegate.loadgen.clients.outcomes import RequestOutcome

RATE_S: Final = 5.0
"""Window of the console's rates (``TrafficView.requests_per_s``)."""
BEHIND_S: Final = 0.5
"""Mean age of what a reading shows: the control process pulls the gateways once a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One figure, counted by the load client and shown by the console. None: neither has it."""

    client: float | None
    console: float | None

    @property
    def difference(self) -> float | None:
        """Returns the console's figure against the client's, as a fraction of the latter."""
        return self.console / self.client - 1.0 if self.client and self.console is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The figures while ``ready`` replicas were ready, from ``looks`` readings."""

    ready: int
    looks: int
    requests_per_s: Pair
    """Mean over the readings."""
    p50_s: Pair
    """This and the next two: of the window before the last reading."""
    tail_s: Pair
    within_sla: Pair


def compare(records: Records, load_s: float) -> tuple[Compared, ...]:
    """Returns the comparison for each number of ready replicas, in the order of their first readings under load.
    ``load_s``: length of the load."""
    looks = [look for look in records.looks if look.traffic is not None and RATE_S <= look.at_s <= load_s]
    sent = sorted(outcome.at_s for outcome in records.outcomes)
    return tuple(
        _compared(records, [look for look in looks if look.ready == ready], sent)
        for ready in dict.fromkeys(look.ready for look in looks)
    )


def _compared(records: Records, looks: Sequence[Look], sent: Sequence[float]) -> Compared:
    last = looks[-1]
    seen = last.traffic
    assert seen is not None
    ended = _ended(records.outcomes, last.at_s - BEHIND_S, seen.window_s)
    latencies = [outcome.latency_s for outcome in ended if outcome.is_good]
    in_time = sum(latency_s <= records.latency_s for latency_s in latencies)
    counted = seen.answered + seen.failed + seen.refused + seen.expired
    rates = [each.traffic.requests_per_s for each in looks if each.traffic is not None]
    return Compared(
        ready=last.ready,
        looks=len(looks),
        requests_per_s=Pair(
            client=sum(_rate(sent, each.at_s - BEHIND_S) for each in looks) / len(looks),
            console=sum(rates) / len(rates),
        ),
        p50_s=Pair(client=quantile(latencies, 0.5), console=seen.p50_s),
        tail_s=Pair(client=quantile(latencies, records.percentile / 100.0), console=seen.tail_s),
        within_sla=Pair(
            client=in_time / len(ended) if ended else None,
            console=seen.within_sla / counted if counted else None,
        ),
    )


def _rate(sent: Sequence[float], until: float) -> float:
    return (bisect_right(sent, until) - bisect_right(sent, until - RATE_S)) / RATE_S


def _ended(outcomes: Sequence[RequestOutcome], until: float, window_s: float) -> list[RequestOutcome]:
    return [each for each in outcomes if until - window_s < each.at_s + each.latency_s <= until]
