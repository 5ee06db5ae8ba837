"""How much of a model's work cores divide among them, from measured times (Amdahl's law)."""

import math
from collections.abc import Mapping


def parallel_part(times: Mapping[tuple[int, int], float]) -> float:
    """Returns the part of the work, 0..1, that cores divide among them. ``times``: seconds by (batch, cores).

    For each batch that was measured with several numbers of cores, ``a + b / cores`` is fitted by least squares; the
    part is ``b / (a + b)``, and the mean over the batches counts the longer ones more. Returns 0 without such a batch.
    """
    divided = whole = 0.0
    for batch in {size for size, _ in times}:
        at = {cores: seconds for (size, cores), seconds in times.items() if size == batch and cores > 0}
        if len(at) < 2:
            continue
        a, b = _line({1.0 / cores: seconds for cores, seconds in at.items()})
        if a + b > 0.0:
            divided += min(max(b, 0.0), a + b)
            whole += a + b
    return divided / whole if whole > 0.0 else 0.0


def on_one_core(seconds: float, cores: int, parallel: float) -> float:
    """Returns the time with one core of work that takes ``seconds`` with ``cores``; 0 cores are taken as one."""
    return seconds / ((1.0 - parallel) + parallel / max(1, cores))


def _line(points: Mapping[float, float]) -> tuple[float, float]:
    """Returns (a, b) of ``a + b x`` through the points, of which at least two differ in x."""
    mean_x, mean_y = math.fsum(points) / len(points), math.fsum(points.values()) / len(points)
    spread = math.fsum((x - mean_x) ** 2 for x in points)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in points.items()) / spread
    return mean_y - slope * mean_x, slope
