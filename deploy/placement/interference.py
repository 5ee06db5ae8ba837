"""How much replicas slow each other on one device, by pairs of models: learnt, else as published.

An *increase* is the part by which an execution takes longer beside a replica of another model that is always at work:
0.18 is 18 %, and the service rate falls to 1 / 1.18. It is of one kind of accelerator and goes in one direction: a
large model slows a small one more than the small one slows it.
"""

import math
from collections.abc import Iterable
from typing import Final

DIFFERENT: Final = 0.09
"""Increase beside another model where none is learnt: the median of HetSev's 160 pairs (figure 2)."""
EQUAL: Final = 0.4
"""The same beside an equal model: between the 25 and the 60 % of figure 3."""


class Interference:
    """The increases that are known. Placement reads them; what learns them writes them."""

    __slots__ = ("_increases",)

    def __init__(self) -> None:
        self._increases: dict[tuple[str, str, str], float] = {}

    def set(self, kind: str, model: str, beside: str, increase: float) -> None:
        """Sets the increase of ``model`` beside ``beside`` on one kind."""
        self._increases[kind, model, beside] = increase

    def forget(self, kind: str, model: str, beside: str) -> None:
        """Forgets the increase of ``model`` beside ``beside`` on one kind."""
        self._increases.pop((kind, model, beside), None)

    def increase(self, kind: str, model: str, beside: str) -> float:
        """Returns the increase of ``model`` beside ``beside``, learnt or published."""
        known = self._increases.get((kind, model, beside))
        if known is not None:
            return known
        return EQUAL if model == beside else DIFFERENT

    def added(self, kind: str, model: str, tenants: Iterable[str]) -> float:
        """Returns what a replica of ``model`` would add to a device with these tenants: its own increase beside each of
        them, and theirs beside it."""
        return math.fsum(self.increase(kind, model, each) + self.increase(kind, each, model) for each in tenants)

    def __repr__(self) -> str:
        return f"<Interference of {len(self._increases)} pairs>"
