"""FTRL: the online update of one coordinate (OLTunes, algorithm 1; McMahan et al. for the proximal term).

A coordinate keeps a sum of gradients ``z`` and a sum of their squares ``n``; its weight follows from both in closed
form. As printed, ``z`` adds the gradient alone, and nothing ties a weight to the one before. The proximal form, the
default, also takes off ``sigma * w``, so that each step begins at the present weight.
"""

import math
from dataclasses import dataclass
from enum import StrEnum


class Form(StrEnum):
    """The two forms of the update."""

    PAPER = "paper"
    PROXIMAL = "proximal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ftrl:
    """Parameters of the update. The values are our choice; the paper prints none."""

    form: Form = Form.PROXIMAL
    eta: float = 0.1
    """Learning rate."""
    zeta: float = 1.0
    """Stability: what the step of a coordinate without gradients is divided by."""
    lambda1: float = 1e-4
    """L1: a sum of gradients up to this leaves the weight at 0."""
    lambda2: float = 1e-4
    """L2: pulls weights to 0."""

    def __post_init__(self) -> None:
        if not 0.0 < self.eta < math.inf:
            raise ValueError(f"eta {self.eta}; a learning rate above 0")
        if not (self.zeta >= 0.0 and self.lambda1 >= 0.0 and self.lambda2 >= 0.0):
            raise ValueError(f"zeta {self.zeta}, lambda1 {self.lambda1}, lambda2 {self.lambda2}; numbers from 0 on")

    def weight(self, z: float, n: float) -> float:
        """Returns the weight of a coordinate; 0 where ``z`` is at most ``lambda1`` from 0."""
        if abs(z) <= self.lambda1:
            return 0.0
        return -(z - math.copysign(self.lambda1, z)) / ((self.zeta + math.sqrt(n)) / self.eta + self.lambda2)

    def start(self, weight: float) -> float:
        """Returns the ``z`` with which a coordinate without gradients has this weight."""
        if weight == 0.0:
            return 0.0
        return -weight * (self.zeta / self.eta + self.lambda2) - math.copysign(self.lambda1, weight)

    def step(self, z: float, n: float, weight: float, gradient: float) -> tuple[float, float, float]:
        """Returns (z, n, weight) after one gradient."""
        squares = n + gradient * gradient
        if self.form is Form.PROXIMAL:
            z -= (math.sqrt(squares) - math.sqrt(n)) / self.eta * weight
        z += gradient
        return z, squares, self.weight(z, squares)
