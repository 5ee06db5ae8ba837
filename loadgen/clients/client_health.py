"""Self-check of a load client, so that its own slowness is never attributed to the server."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.loadgen.clients.outcomes import RequestOutcome

LATE_S = 0.020
"""A request that left this long after its due time left late."""
LATE_SHARE = 0.01
"""Share of late requests above which the client was too slow."""
BUSY = 0.8
"""Share of one core above which the client may be the bottleneck."""
IDLE = 0.5
"""Share of one core up to which lateness is not the client's own: it was ready, and got no processor."""


def verdict(is_bottleneck: bool, is_starved: bool) -> str:
    """Returns the end of the line about the client; empty for one that kept its schedule."""
    if is_bottleneck:
        return "; THE CLIENT IS THE BOTTLENECK"
    return "; the machine had no processor free in time: it is too busy for this load" if is_starved else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientReport:
    """Load and lateness of the client during the measurement."""

    requests: int
    late: int
    """Requests that left ``LATE_S`` or more after their due time."""
    lag_p99_ms: float
    busy: float
    """Processor time over wall time."""

    @property
    def is_bottleneck(self) -> bool:
        return self.busy > BUSY or (self.busy > IDLE and self.late > LATE_SHARE * self.requests)

    @property
    def is_starved(self) -> bool:
        """Whether requests left late because the machine had no processor free for the client."""
        return self.busy <= IDLE and self.late > LATE_SHARE * self.requests

    def __str__(self) -> str:
        line = f"client: {self.busy:.0%} of a core, requests left {self.lag_p99_ms:.1f} ms late at p99"
        return line + verdict(self.is_bottleneck, self.is_starved)


def report_of(outcomes: Sequence[RequestOutcome], cpu_s: float, wall_s: float) -> ClientReport:
    """Builds the report. ``cpu_s`` is the processor time of the client's process, ``wall_s`` the time that passed while
    ``outcomes`` were gathered."""
    lags = sorted(outcome.lag_s for outcome in outcomes)
    p99 = lags[min(len(lags) - 1, int(0.99 * len(lags)))] if lags else 0.0
    return ClientReport(
        requests=len(lags),
        late=sum(lag >= LATE_S for lag in lags),
        lag_p99_ms=p99 * 1e3,
        busy=cpu_s / wall_s if wall_s > 0.0 else 0.0,
    )
