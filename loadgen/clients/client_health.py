"""Was it the client? What a load client says about itself, so that its own slowness is never taken for the server's."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.loadgen.clients.outcomes import RequestOutcome

LATE_S = 0.020
"""A request that left so much after it was due left late."""
LATE_SHARE = 0.01
"""More late ones than this, and the client was too slow."""
BUSY = 0.8
"""Of one core: above it the client may be what limits the rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientReport:
    """What the client was like while it measured."""

    requests: int
    late: int
    """Requests that left ``LATE_S`` or more after they were due."""
    lag_p99_ms: float
    busy: float
    """Processor time over wall time."""

    @property
    def is_bottleneck(self) -> bool:
        return self.busy > BUSY or self.late > LATE_SHARE * self.requests

    def __str__(self) -> str:
        told = f"client: {self.busy:.0%} of a core, requests left {self.lag_p99_ms:.1f} ms late at p99"
        return f"{told}; THE CLIENT IS THE BOTTLENECK" if self.is_bottleneck else told


def report_of(outcomes: Sequence[RequestOutcome], cpu_s: float, wall_s: float) -> ClientReport:
    """``cpu_s`` of the client's process and ``wall_s`` that went by while ``outcomes`` were gathered."""
    lags = sorted(outcome.lag_s for outcome in outcomes)
    p99 = lags[min(len(lags) - 1, int(0.99 * len(lags)))] if lags else 0.0
    return ClientReport(
        requests=len(lags),
        late=sum(lag >= LATE_S for lag in lags),
        lag_p99_ms=p99 * 1e3,
        busy=cpu_s / wall_s if wall_s > 0.0 else 0.0,
    )
