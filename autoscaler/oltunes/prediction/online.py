"""A factorisation machine that learns online: each coordinate is updated by FTRL (OLTunes, section 3.3)."""

import random
from typing import Final

from tidegate.autoscaler.oltunes.prediction.ftrl import Ftrl
from tidegate.autoscaler.oltunes.prediction.machine import Sparse, gradient, predict

FACTORS: Final = 8
START_STD: Final = 0.05
"""Spread of the factors at the start. At 0 all their gradients would be 0 for ever."""
CLIP: Final = 4.0
"""Bound on the common factor of a gradient (our choice), in standard deviations of the target."""


class OnlineMachine:
    """Weights and FTRL state of one target. Only the coordinates of features that are not zero are touched."""

    def __init__(self, rng: random.Random, ftrl: Ftrl | None = None, *, factors: int = FACTORS) -> None:
        self._rng = rng
        self._ftrl = ftrl or Ftrl()
        self._factors = factors
        self._w0, self._z0, self._n0 = 0.0, 0.0, 0.0
        self._w: list[float] = []
        self._z: list[float] = []
        self._n: list[float] = []
        self._v: list[list[float]] = []
        self._zv: list[list[float]] = []
        self._nv: list[list[float]] = []

    def grow(self, length: int) -> None:
        """Adds coordinates up to ``length`` features."""
        for _ in range(len(self._w), length):
            self._w.append(0.0)
            self._z.append(0.0)
            self._n.append(0.0)
            factors = [self._rng.gauss(0.0, START_STD) for _ in range(self._factors)]
            self._v.append(factors)
            self._zv.append([self._ftrl.start(each) for each in factors])
            self._nv.append([0.0] * self._factors)

    def predict(self, x: Sparse) -> float:
        """Returns the value for ``x``, whose positions are below the length."""
        return predict(self._w0, self._w, self._v, x)

    def learn(self, x: Sparse, y: float) -> None:
        """Takes one step towards ``y``."""
        found = gradient(self._w0, self._w, self._v, x, y, clip=CLIP)
        step = self._ftrl.step
        self._z0, self._n0, self._w0 = step(self._z0, self._n0, self._w0, found.w0)
        for (position, _), of_w, of_v in zip(x, found.w, found.v, strict=True):
            self._z[position], self._n[position], self._w[position] = step(
                self._z[position], self._n[position], self._w[position], of_w
            )
            v, z, n = self._v[position], self._zv[position], self._nv[position]
            for factor, each in enumerate(of_v):
                z[factor], n[factor], v[factor] = step(z[factor], n[factor], v[factor], each)

    def __repr__(self) -> str:
        return f"<OnlineMachine {len(self._w)} features, {self._factors} factors>"
