"""What one model takes on one kind of accelerator, as ``tidegate profile`` measured it."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileCell:
    """What is measured at once. ``cores`` is 0 where a replica is not bound to any."""

    accelerator: str
    cores: int
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePoint:
    """One cell: first with one request at a time, then with as many callers as keep every slot of a replica taken."""

    cell: ProfileCell
    execution_s: float
    """Mean time in the model server, one request at a time."""
    p50_s: float
    """Latency of its clients, one request at a time; the same for the next two."""
    p95_s: float
    p99_s: float
    slots: int
    """Requests that a replica takes at once."""
    full_execution_s: float
    """Mean time in the model server with all slots taken."""
    rate_ips: float
    """Inferences per second of one replica with all slots taken."""
    requests: int
    """Requests that both runs answered."""

    @property
    def is_possible(self) -> bool:
        """Whether all figures are finite and above 0."""
        times = (self.execution_s, self.p50_s, self.p95_s, self.p99_s, self.full_execution_s, self.rate_ips)
        is_finite = all(math.isfinite(each) and each > 0.0 for each in times)
        return is_finite and min(self.slots, self.requests, self.cell.batch) > 0
