"""Service times of a model server, by batch, cores and share of a device.

A profile gives the *nominal* time, which replicas cache, and the variation around it. Times in seconds.
"""

import math
import random
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class Times(Protocol):
    """Time of one execution by batch size."""

    def seconds(self, inferences: int) -> float:
        """Returns the time for ``inferences`` >= 1."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """``base_s + per_item_s * inferences``: close to most models on most devices (Clipper, SMIF)."""

    base_s: float
    per_item_s: float = 0.0

    def __post_init__(self) -> None:
        if not (0.0 <= self.base_s < math.inf and 0.0 <= self.per_item_s < math.inf):
            raise ValueError(f"times must be finite and not negative, got {self}")

    def seconds(self, inferences: int) -> float:
        return self.base_s + self.per_item_s * inferences


class Table:
    """Measured times of some batch sizes: linear between them and beyond the last two, flat below the first."""

    __slots__ = ("_sizes", "_times")

    def __init__(self, measured: Mapping[int, float]) -> None:
        """``measured``: seconds by batch. Raises ValueError if it is empty, for sizes below 1 and for invalid
        durations."""
        if not measured:
            raise ValueError("a table of execution times is empty; it needs one batch size at least")
        for size, time_s in measured.items():
            if size < 1 or not 0.0 <= time_s < math.inf:
                raise ValueError(f"batch {size} takes {time_s} s; sizes are 1 or more, times finite and not negative")
        self._sizes = sorted(measured)
        self._times = [measured[size] for size in self._sizes]

    def seconds(self, inferences: int) -> float:
        sizes, times = self._sizes, self._times
        right = bisect_left(sizes, inferences)
        if right < len(sizes) and sizes[right] == inferences:
            return times[right]
        if right == 0 or len(sizes) == 1:
            return times[0]
        right = min(right, len(sizes) - 1)
        slope = (times[right] - times[right - 1]) / (sizes[right] - sizes[right - 1])
        return max(0.0, times[right - 1] + slope * (inferences - sizes[right - 1]))

    def __repr__(self) -> str:
        return f"<Table of {len(self._sizes)} batch sizes>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceProfile:
    """Service times of one function on one kind of accelerator. Raises ValueError for figures outside the ranges given
    here."""

    times: Times
    """Times with one core, or a whole device."""
    jitter: float = 0.0
    """0..1: an execution takes 1 - jitter .. 1 + jitter of its nominal time, uniformly drawn, as on the emulated
    accelerators of live deployments."""
    is_exponential: bool = False
    """Whether times are exponentially distributed around the nominal one instead: the M of queueing theory."""
    variation: float = 0.0
    """Coefficient of variation of lognormal times around the nominal one; 0: another of the three, or none."""
    per_prompt_token_s: float = 0.0
    """Time that each token of a request's prompt adds; trace formats without tokens add none."""
    per_completion_token_s: float = 0.0
    """Time that each token of its answer adds."""
    parallel: float = 0.0
    """0..1: part of the work that is divided among cores (Amdahl's law)."""
    full_share: int = 1
    """1..100: percent of a device that gives full speed; below it, time grows as the share falls."""
    width: int = 0
    """Requests that the model server runs at once, others wait inside it; 0: no bound."""
    joins: int = 1
    """Inferences of waiting requests that the model server joins to one execution, with a width of 1; 1: none."""
    first_s: float = 0.0
    """Minimum time of a replica's first execution, beside which nothing runs: loading or compiling with the first
    request."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.jitter <= 1.0 or not 0.0 <= self.parallel <= 1.0:
            raise ValueError(f"jitter {self.jitter} and parallel {self.parallel} lie in 0..1")
        if not 1 <= self.full_share <= 100 or self.width < 0:
            raise ValueError(f"full_share {self.full_share} lies in 1..100, width {self.width} is not negative")
        if self.joins < 1 or (self.joins > 1 and (self.width != 1 or self.is_by_token)):
            raise ValueError(f"joins is 1 or more, and above 1 with a width of 1 and without tokens, got {self.joins}")
        if not 0.0 <= self.first_s < math.inf:
            raise ValueError(f"first_s is finite and not negative, got {self.first_s}")
        tokens_s = min(self.per_prompt_token_s, self.per_completion_token_s)
        if not 0.0 <= tokens_s <= max(self.per_prompt_token_s, self.per_completion_token_s) < math.inf:
            raise ValueError("times of a token are finite and not negative")
        if not 0.0 <= self.variation <= 10.0:
            raise ValueError(f"variation lies in 0..10, got {self.variation}")
        if bool(self.jitter) + self.is_exponential + bool(self.variation) > 1:
            raise ValueError("times vary in one way: jitter, exponential or variation")

    @property
    def is_by_token(self) -> bool:
        """Whether tokens add to an execution's time."""
        return bool(self.per_prompt_token_s or self.per_completion_token_s)

    def nominal(self, inferences: int, *, cores: int = 1, share: int = 100) -> float:
        """Returns the undisturbed time of one execution; ``share``: percent of the device."""
        return self._slowed(self.times.seconds(inferences), cores, share)

    def of_tokens(self, prompt: int, completion: int, *, cores: int = 1, share: int = 100) -> float:
        """Returns the time that the tokens of one request add to :meth:`nominal`."""
        alone = self.per_prompt_token_s * prompt + self.per_completion_token_s * completion
        return self._slowed(alone, cores, share)

    def _slowed(self, alone_s: float, cores: int, share: int) -> float:
        divided = (1.0 - self.parallel) + self.parallel / max(1, cores)
        return alone_s * divided * max(1.0, self.full_share / max(1, share))

    def varied(self, nominal_s: float, rng: random.Random) -> float:
        """Returns one execution's time."""
        if self.jitter:
            return nominal_s * (1.0 + self.jitter * (2.0 * rng.random() - 1.0))
        if self.variation:
            squared = math.log1p(self.variation**2)  # That of the logarithm; the mean stays the nominal time.
            return nominal_s * rng.lognormvariate(-0.5 * squared, math.sqrt(squared))
        if self.is_exponential:
            return -math.log(1.0 - rng.random()) * nominal_s
        return nominal_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """Durations of a replica's start by phase, in seconds."""

    schedule_s: float = 0.0
    pull_s: float = 0.0
    load_s: float = 1.0
    warm_s: float = 0.0

    def __post_init__(self) -> None:
        if not all(0.0 <= each < math.inf for each in (self.schedule_s, self.pull_s, self.load_s, self.warm_s)):
            raise ValueError(f"durations must be finite and not negative, got {self}")

    @property
    def total_s(self) -> float:
        """Seconds from the decision to ready."""
        return self.schedule_s + self.pull_s + self.load_s + self.warm_s
