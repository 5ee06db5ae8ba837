"""Feature vector of a configuration (OLTunes, table 3).

Batch size, memory, share and names are one-hot, sizes are numbers. A value that has no place, and a name that is not
known, leave its places at zero. The blocks of fixed length come first and the names last, in the order in which they
were met, so that a new model or device adds a position and moves none (our choice; the order has no meaning).
"""

import math
from dataclasses import dataclass
from typing import Final

BATCHES: Final = (1, 4, 8, 16, 32, 64, 128, 256)
MEMORIES_GB: Final = tuple(range(2, 40, 2))
SHARES_PCT: Final = tuple(range(5, 100, 5))
MOST_INPUT: Final = 1280
MOST_NAMES: Final = 256
"""Models and devices that get a position, each; further ones are unknown."""

_INPUT: Final = len(BATCHES)
_PARAMETERS: Final = _INPUT + 1
_MEMORY: Final = _PARAMETERS + 1
_DEVICE_MEMORY: Final = _MEMORY + len(MEMORIES_GB)
_SHARE: Final = _DEVICE_MEMORY + len(MEMORIES_GB)
_BATCH_NUMBER: Final = _SHARE + len(SHARES_PCT)
_SHARE_NUMBER: Final = _BATCH_NUMBER + 1
FIXED: Final = _SHARE_NUMBER + 1
"""Length of the vector without any name."""

_PLACES: Final[dict[int, dict[float, int]]] = {
    start: {value: start + index for index, value in enumerate(values)}
    for start, values in ((0, BATCHES), (_MEMORY, MEMORIES_GB), (_DEVICE_MEMORY, MEMORIES_GB), (_SHARE, SHARES_PCT))
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """How a model runs on a device."""

    model: str
    device: str
    """Kind of the device."""
    batch: int
    share_pct: float
    """Share of the device's compute units, 0..100."""
    memory_gb: float
    device_memory_gb: float
    input_size: float
    """Edge of an image or length of a sequence, up to ``MOST_INPUT``; 0 if unknown."""
    parameters: float
    """Number of the model's parameters; 0 if unknown."""


class FeatureSpace:
    """The positions of features; grows with each new name."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], int] = {}
        self._counts = {"model": 0, "device": 0}

    @property
    def length(self) -> int:
        """Length of a vector."""
        return FIXED + len(self._names)

    def admit(self, configuration: Configuration) -> None:
        """Gives the names of ``configuration`` their positions, while there are any."""
        for block, name in (("model", configuration.model), ("device", configuration.device)):
            if (block, name) not in self._names and self._counts[block] < MOST_NAMES:
                self._names[block, name] = self.length
                self._counts[block] += 1

    def encode(self, configuration: Configuration) -> list[tuple[int, float]]:
        """Returns (position, value) of the features that are not zero, by rising position.

        The input size is its logarithm in units of that of the largest one, the parameter count likewise in units of
        10^12 (our choice: latencies are learnt as logarithms).
        """
        found = []
        for start, value in (
            (0, configuration.batch),
            (_MEMORY, configuration.memory_gb),
            (_DEVICE_MEMORY, configuration.device_memory_gb),
            (_SHARE, configuration.share_pct),
        ):
            place = _PLACES[start].get(value)  # 8.0 finds 8
            if place is not None:
                found.append((place, 1.0))
        if 0.0 < configuration.input_size <= MOST_INPUT:
            found.append((_INPUT, math.log1p(configuration.input_size) / math.log1p(MOST_INPUT)))
        if configuration.parameters > 0.0:
            found.append((_PARAMETERS, math.log1p(configuration.parameters) / math.log1p(1e12)))
        if configuration.batch > 1:
            found.append((_BATCH_NUMBER, math.log2(configuration.batch) / 8.0))
        if 0.0 < configuration.share_pct < 100.0:
            found.append((_SHARE_NUMBER, -math.log2(configuration.share_pct / 100.0) / 4.0))
        for key in (("model", configuration.model), ("device", configuration.device)):
            place = self._names.get(key)
            if place is not None:
                found.append((place, 1.0))
        return sorted(entry for entry in found if entry[1] > 0.0)

    def __repr__(self) -> str:
        return (
            f"<FeatureSpace {self.length} features, {self._counts['model']} models, {self._counts['device']} devices>"
        )
