"""The fit of a stage's latency to measured points (Themis, section 4.1).

Ordinary least squares on the columns ``[b/c, 1/c, b, 1]``. For work with an SLA the points are a high percentile (P95
to P99) of the measured latencies. A negative ``epsilon`` or ``eta`` is normal.
"""

import math
from collections.abc import Sequence

import numpy as np

from tidegate.autoscaler.policies.themis.model import StageProfile
from tidegate.errors import Fault, InvalidInputError

COEFFICIENTS = 4


def fit(points: Sequence[tuple[float, float, float]]) -> StageProfile:
    """Returns the profile of points (batch size, cores, latency in ms). Raises InvalidInputError for fewer than four
    points, for impossible figures, and for points that do not determine the four coefficients."""
    faults = []
    if len(points) < COEFFICIENTS:
        faults.append(Fault("points", str(len(points)), f"at least {COEFFICIENTS}"))
    for index, (b, c, ms) in enumerate(points):
        if not (all(map(math.isfinite, (b, c, ms))) and b >= 1 and c > 0 and ms > 0):
            faults.append(
                Fault(f"points[{index}]", f"batch {b}, cores {c}, {ms} ms", "batch from 1, cores and ms above 0")
            )
    if faults:
        raise InvalidInputError("latency profile", faults)
    rows = np.array([[b / c, 1.0 / c, b, 1.0] for b, c, _ in points])
    found, _, rank, _ = np.linalg.lstsq(rows, np.array([ms for _, _, ms in points]), rcond=None)
    if rank < COEFFICIENTS:
        shapes = sorted({(b, c) for b, c, _ in points})
        raise InvalidInputError(
            "latency profile",
            [Fault("points", f"(batch, cores) {shapes}", "at least two batch sizes, each at two numbers of cores")],
        )
    gamma, epsilon, delta, eta = map(float, found)
    return StageProfile(gamma=gamma, epsilon=epsilon, delta=delta, eta=eta)


def r_squared(profile: StageProfile, points: Sequence[tuple[float, float, float]]) -> float:
    """Returns the share of the points' variance that the fit explains, at most 1."""
    mean = math.fsum(ms for _, _, ms in points) / len(points)
    total = math.fsum((ms - mean) ** 2 for _, _, ms in points)
    left = math.fsum(
        (ms - (profile.gamma * b / c + profile.epsilon / c + profile.delta * b + profile.eta)) ** 2
        for b, c, ms in points
    )
    return 1.0 - left / total if total > 0.0 else 1.0
