"""Comparison of computed numbers: two values that differ by at most ``TOLERANCE`` are equal."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

TOLERANCE: Final = 1e-9

Item = TypeVar("Item")


def is_above(value: float, limit: float) -> bool:
    """Returns whether ``value`` exceeds ``limit``; equal within ``TOLERANCE`` is not above."""
    return value > limit + TOLERANCE


def is_below(value: float, limit: float) -> bool:
    """Returns whether ``value`` is less than ``limit``; equal within ``TOLERANCE`` is not below."""
    return value < limit - TOLERANCE


def ranked(items: Iterable[Item], scores: Sequence[Callable[[Item], float]], name: Callable[[Item], Any]) -> list[Item]:
    """Returns the items in rising order of the first score, ties by the next one, and at last by ``name``.

    Values within ``TOLERANCE`` of the smallest value of their run tie: 0, 0.9e-9, 1.8e-9 are two runs.
    """
    if not scores:
        return sorted(items, key=name)
    score, *rest = scores
    found: list[Item] = []
    run: list[Item] = []
    start = 0.0
    for value, _, item in sorted(
        ((score(item), index, item) for index, item in enumerate(items)), key=lambda each: each[:2]
    ):
        if run and is_above(value, start):
            found += ranked(run, rest, name)
            run = []
        if not run:
            start = value
        run.append(item)
    return found + (ranked(run, rest, name) if run else [])
