"""Comparison of computed figures: two that differ by binary noise are equal, and the next criterion decides."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

TIE: Final = 1e-9
"""Figures this near to each other, or to a limit, count as equal."""

Score = Sequence[float]
"""Criteria, the most important one first; smaller is better."""


def least(items: Iterable[T], score: Callable[[T], Score]) -> T:
    """Returns the item with the least first criterion; among ties the least second one, and so on. Full ties go to the
    first in the order given. Raises ValueError without items."""
    left = [(item, score(item)) for item in items]
    if not left:
        raise ValueError("there is nothing to choose from")
    for part in range(len(left[0][1])):
        most = min(criteria[part] for _, criteria in left) + TIE
        left = [each for each in left if each[1][part] <= most]
    return left[0][0]


def ranked(items: Iterable[T], score: Callable[[T], Score]) -> list[T]:
    """Returns the items in the order in which :func:`least` would take them one by one."""
    left, order = list(items), []
    while left:
        order.append(least(left, score))
        left.remove(order[-1])
    return order
