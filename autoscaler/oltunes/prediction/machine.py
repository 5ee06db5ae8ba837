"""Factorisation machine: a linear model with a term for each pair of features (OLTunes, Eq. 2 and 3).

``y = w0 + sum_j w_j x_j + sum_{j<k} x_j x_k <V_j, V_k>``. Each feature has a vector of ``k`` factors, and two features
interact by the product of theirs: a pair that was never seen together has a weight all the same. The sum over pairs is
``0.5 * sum_f ((sum_j V_jf x_j)^2 - sum_j (V_jf x_j)^2)``, linear in the features.

A feature vector is sparse: (position, value) of the features that are not zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Sparse = Sequence[tuple[int, float]]
"""(position, value) of a vector's entries, each position once."""


class _Rows(Protocol):
    def __getitem__(self, position: int, /) -> Sequence[float]: ...


class _Weights(Protocol):
    def __getitem__(self, position: int, /) -> float: ...


@dataclass(frozen=True, slots=True)
class Gradient:
    """Derivatives of the squared error; entries of ``w`` and ``v`` in the order of the features."""

    w0: float
    w: list[float]
    v: list[list[float]]


def factor_sums(v: _Rows, x: Sparse) -> list[float]:
    """Returns ``sum_j V_jf x_j`` by factor; empty without features."""
    if not x:
        return []
    (first, value), *rest = x
    sums = [each * value for each in v[first]]
    for position, value in rest:
        for factor, each in enumerate(v[position]):
            sums[factor] += each * value
    return sums


def predict(w0: float, w: _Weights, v: _Rows, x: Sparse) -> float:
    """Returns the machine's value for the features ``x``."""
    linear = w0
    squares = 0.0
    for position, value in x:
        linear += w[position] * value
        for each in v[position]:
            squares += (each * value) ** 2
    return linear + 0.5 * (sum(each * each for each in factor_sums(v, x)) - squares)


def gradient(w0: float, w: _Weights, v: _Rows, x: Sparse, y: float, *, clip: float | None = None) -> Gradient:
    """Returns the gradient of ``(prediction - y)^2``.

    ``clip`` bounds the factor ``2 * (prediction - y)`` that all derivatives share, and with it one sample's effect.
    """
    error = 2.0 * (predict(w0, w, v, x) - y)
    if clip is not None:
        error = min(max(error, -clip), clip)
    sums = factor_sums(v, x)
    return Gradient(
        w0=error,
        w=[error * value for _, value in x],
        v=[
            [error * (value * total - each * value * value) for each, total in zip(v[position], sums, strict=True)]
            for position, value in x
        ],
    )
