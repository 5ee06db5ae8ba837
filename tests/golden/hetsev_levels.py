"""Whether requests were answered in time, and how many came.

Sources: HetSev, H9 (service level), H10 (rates over windows) and its figure of violations per five seconds.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Requests within the limit, in percent of all that were asked; failed ones are not."""

    attained: float | None
    """None: there were none."""
    is_met: bool


def service_level(latencies_s: Iterable[float], limit_s: float, least_percent: float, failed: int = 0) -> Level:
    """Whether ``least_percent`` of the requests took ``limit_s`` at most. Exactly the limit is within it; without a
    request nothing was promised in vain."""
    answered = within = 0
    for latency_s in latencies_s:
        answered += 1
        within += latency_s <= limit_s + 1e-9
    asked = answered + failed
    if not asked:
        return Level(attained=None, is_met=True)
    return Level(attained=100.0 * within / asked, is_met=100.0 * within >= least_percent * asked - 1e-9)


def violations(
    requests: Iterable[tuple[float, float | None]], limit_s: float, period_s: float = 5.0
) -> list[tuple[float, float]]:
    """(start of the period, share of its requests that broke the limit) for every period with a request.

    ``requests``: (arrival, latency) of each; latency None: it failed.
    """
    asked: dict[int, int] = {}
    broken: dict[int, int] = {}
    for at_s, latency_s in requests:
        period = int(at_s // period_s)
        asked[period] = asked.get(period, 0) + 1
        if latency_s is None or latency_s > limit_s + 1e-9:
            broken[period] = broken.get(period, 0) + 1
    return [(period * period_s, broken.get(period, 0) / asked[period]) for period in sorted(asked)]


def windowed_rates(
    arrivals_s: Sequence[float], until_s: float, window_s: float = 120.0, step_s: float = 15.0
) -> list[float]:
    """Arrivals per second over the last ``window_s``, at every multiple of ``step_s`` up to ``until_s`` with it.

    ``arrivals_s`` rise. Windows begin after time 0: the first ones are shorter.
    """
    rates = []
    for step in range(1, int(until_s / step_s + 1e-9) + 1):
        now_s = step * step_s
        covered_s = min(now_s, window_s)
        since = bisect_right(arrivals_s, now_s - window_s) if now_s > window_s else bisect_right(arrivals_s, 0.0)
        rates.append((bisect_right(arrivals_s, now_s) - since) / covered_s)
    return rates
