"""The quantile of cumulative buckets, as SMIF reads it from model servers; its vectors are in ``data``."""

from collections.abc import Sequence

TIE = 1e-9
"""A rank this near to a cumulative count counts as equal to it."""


def histogram_quantile(q: float, buckets: Sequence[tuple[float | None, float]]) -> float | None:
    """Returns the q-quantile of cumulative buckets ``(upper bound, count)``, as model servers publish them; an upper
    bound of None is infinity. Linear inside the bucket, whose lower edge is the bound before it, 0 for the first. In
    the infinite bucket it is the largest finite bound. Returns None without observations."""
    total = buckets[-1][1] if buckets else 0.0
    if not total > 0:
        return None
    rank, lower, below = q * total, 0.0, 0.0
    for upper, count in buckets:
        own = count - below
        if own > 0 and count >= rank - TIE:
            if upper is None:
                return lower
            return lower + (upper - lower) * min(1.0, max(0.0, rank - below) / own)
        lower, below = lower if upper is None else upper, max(below, count)
    return lower
