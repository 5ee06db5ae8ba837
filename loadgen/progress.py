"""Progress of a load: present figures from counters. No clock, no output."""

from tidegate.loadgen.histogram import FineHistogram
from tidegate.loadgen.reports.tally import Tally
from tidegate.loadgen.reports.text import milliseconds

RECENT_SLOTS = 5


class Progress:
    """Progress of one run; ``total_s`` is the planned duration, None if unknown."""

    def __init__(self, tally: Tally, total_s: float | None) -> None:
        self._tally = tally
        self._total_s = total_s
        self._last_s = 0.0
        self._last_ended = 0

    def figures(self, now_s: float, sent: int, on_the_way: int) -> dict[str, str]:
        """Returns figures by name; rates are since the last call."""
        tally = self._tally
        span_s = now_s - self._last_s
        rate = (tally.ended - self._last_ended) / span_s if span_s > 0.0 else 0.0
        self._last_s, self._last_ended = now_s, tally.ended
        recent = FineHistogram()
        for slot in tally.slots[-RECENT_SLOTS:]:
            recent.add(slot.latency)
        p50, p99 = recent.quantiles((0.5, 0.99))
        return {
            "time": f"{now_s:.0f} s" + (f" of {self._total_s:.0f} s" if self._total_s is not None else ""),
            "requests": f"{sent} sent, {tally.good} good, {tally.ended - tally.good} failed, {on_the_way} on the way",
            "rate": f"{rate:.0f}/s",
            "p50": milliseconds(p50),
            "p99": milliseconds(p99),
            "late": str(tally.late),
        }
