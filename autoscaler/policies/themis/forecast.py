"""The load of the next ten seconds: the largest rate of a second in them (Themis, section 4.3).

The last minute is seen as six slices of ten seconds. A small network, trained on a trace of requests per second
(``python -m benchmarks.forecast``), gets the largest and the mean rate of each slice, relative to the minute's mean,
and that mean. It answers with the largest rate of the next slice, relative to it too, so that it serves loads of any
size. Before a minute is known a rule of thumb holds: a tenth more than the last two slices (our choice).

Rates are in requests per second, one figure for each second, the oldest first.
"""

import math
from collections.abc import Sequence
from typing import Final

from tidegate.autoscaler.policies.themis.forecast_weights import BIAS, HIDDEN, HIDDEN_BIAS, OUTPUT
from tidegate.errors import Fault, InvalidInputError

SLICE_S: Final = 10
SLICES: Final = 6
MINUTE_S: Final = SLICE_S * SLICES
MARGIN: Final = 1.1
"""Multiple of the last two slices that is expected while a minute is not known."""
STEADY: Final = 1.05
"""A minute whose maxima differ by no more than this is steadier than independent callers are: it goes on so."""
SMALLEST_RPS: Final = 0.5
"""Added to every rate before its logarithm is taken."""


def maxima(rps: Sequence[float], now_index: int) -> tuple[float, ...]:
    """Returns the largest rate of each of the six slices before ``now_index``, the oldest first. Raises
    InvalidInputError if less than a minute is before it."""
    return tuple(max(each) for each in _slices(rps, now_index))


def next_maximum(rps: Sequence[float], now_index: int) -> float:
    """Returns the largest rate of the ten seconds from ``now_index`` on: what is to be predicted. Raises
    InvalidInputError if they are not all there."""
    if not 0 <= now_index <= len(rps) - SLICE_S:
        raise InvalidInputError("load", [Fault("now_index", str(now_index), f"0 to {len(rps) - SLICE_S}")])
    return max(rps[now_index : now_index + SLICE_S])


def absolute_error_pct(prediction: float, target: float) -> float | None:
    """Returns the error in percent of the target; None for a target of zero."""
    return 100.0 * abs(prediction - target) / target if target else None


def features(rps: Sequence[float], now_index: int) -> tuple[tuple[float, ...], float]:
    """Returns what the network gets for the minute before ``now_index``, and the rate that it is relative to. Raises
    InvalidInputError if less than a minute is before it."""
    slices = _slices(rps, now_index)
    means = [math.fsum(each) / SLICE_S for each in slices]
    scale = math.fsum(means) / SLICES + SMALLEST_RPS
    relative = [math.log((max(each) + SMALLEST_RPS) / scale) for each in slices]
    relative += [math.log((mean + SMALLEST_RPS) / scale) for mean in means]
    return (*relative, math.log(scale) / 4.0 - 1.0), scale


def predicted(rps: Sequence[float], now_index: int) -> float:
    """Returns the largest rate expected in the ten seconds from ``now_index`` on."""
    if now_index < MINUTE_S:
        known = rps[max(0, now_index - 2 * SLICE_S) : now_index]
        return max(known) * MARGIN if known else 0.0
    tops = maxima(rps, now_index)
    if max(tops) <= STEADY * min(tops):
        return max(tops)
    given, scale = features(rps, now_index)
    answer = BIAS
    for weights, bias, factor in zip(HIDDEN, HIDDEN_BIAS, OUTPUT, strict=True):
        answer += factor * math.tanh(bias + math.fsum(map(float.__mul__, weights, given)))
    return max(0.0, scale * math.exp(min(answer, 5.0)) - SMALLEST_RPS)


def _slices(rps: Sequence[float], now_index: int) -> list[Sequence[float]]:
    if not MINUTE_S <= now_index <= len(rps):
        raise InvalidInputError("load", [Fault("now_index", str(now_index), f"{MINUTE_S} to {len(rps)}")])
    starts = range(now_index - MINUTE_S, now_index, SLICE_S)
    return [rps[start : start + SLICE_S] for start in starts]
