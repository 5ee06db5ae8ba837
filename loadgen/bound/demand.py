"""Earliest arrival and latest completion of work: two curves between which every plan without lateness runs.

Energetic reasoning (Erschler, Lopez): a request has work ``w``, arrives at ``a``, takes at least ``s`` seconds and is
due at ``a + L``. By time t a plan has done at most ``w clamp((t - a) / s)`` of it, and at least ``w clamp((t - (a + L -
s)) / s)``. The sums of both over all requests are piecewise linear, so they are added up as changes of slope, a chunk
of arrivals at a time: memory grows with the slots, not with the requests.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from tidegate.errors import Fault

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

CHUNK = 65_536
"""Arrivals held at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work of a request of one batch size."""

    work_s: float
    """Seconds of one slot of the reference group."""
    least_s: float
    """Seconds on the fastest group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Both curves at the ends of slots of ``slot_s`` seconds, in seconds of a reference slot, and their contents."""

    slot_s: float
    possible_s: Floats
    required_s: Floats
    requests: int
    hopeless: int
    """Requests that no group can answer in time; they are in neither curve."""
    batches: tuple[int, ...]
    """Batch sizes in the curves."""


class _Curve:
    """A sum of ramps at the ends of slots."""

    def __init__(self, slots: int, slot_s: float) -> None:
        self._slots = slots
        self._slot_s = slot_s
        self._within = np.zeros(slots)
        """Contribution of slope changes to the slot in which they lie."""
        self._slopes = np.zeros(slots + 1)
        """Slope changes in force from the beginning of the slot."""

    def ramps(self, since_s: Floats, rate: float, span_s: float) -> None:
        """Adds, from each ``since_s`` on, ``rate`` per second for ``span_s`` seconds."""
        self._bend(since_s, rate)
        self._bend(since_s + span_s, -rate)

    def _bend(self, at_s: Floats, rate: float) -> None:
        at_s = at_s[at_s < self._slots * self._slot_s]
        if not len(at_s):
            return
        slots = np.minimum((at_s / self._slot_s).astype(np.int64), self._slots - 1)
        rest_s = (slots + 1) * self._slot_s - at_s
        self._within += rate * np.bincount(slots, weights=rest_s, minlength=self._slots)
        self._slopes += rate * np.bincount(slots + 1, minlength=self._slots + 1)

    def sums(self) -> Floats:
        steps = self._within + self._slot_s * np.cumsum(self._slopes)[: self._slots]
        return np.asarray(np.maximum.accumulate(np.maximum(0.0, np.cumsum(steps))))


def demand(
    arrivals: Iterable[tuple[float, int]],
    job: Callable[[int], Job],
    *,
    latency_s: float,
    duration_s: float,
    slot_s: float,
    faults: list[Fault],
) -> Demand:
    """Returns the demand of ``arrivals`` (at, inferences), in any order; those from ``duration_s`` on are ignored, and
    the curves end with its last whole slot. ``job`` is called once per batch size. Invalid arrivals become entries of
    ``faults`` and are left out."""
    slots = int(duration_s / slot_s + 1e-9)
    possible, required = _Curve(slots, slot_s), _Curve(slots, slot_s)
    jobs: dict[int, Job] = {}
    requests = hopeless = 0
    for at_s, batches in _chunks(arrivals, duration_s, faults):
        requests += len(at_s)
        for batch in np.unique(batches).tolist():
            known = jobs.get(batch) or jobs.setdefault(batch, job(batch))
            since_s = at_s[batches == batch]
            if known.least_s > latency_s:
                hopeless += len(since_s)
                continue
            rate = known.work_s / known.least_s
            possible.ramps(since_s, rate, known.least_s)
            required.ramps(since_s + (latency_s - known.least_s), rate, known.least_s)
    return Demand(
        slot_s=slot_s,
        possible_s=possible.sums(),
        required_s=required.sums(),
        requests=requests,
        hopeless=hopeless,
        batches=tuple(sorted(batch for batch, known in jobs.items() if known.least_s <= latency_s)),
    )


def _chunks(
    arrivals: Iterable[tuple[float, int]], until_s: float, faults: list[Fault]
) -> Iterator[tuple[Floats, Integers]]:
    """Yields the arrivals before ``until_s`` in chunks."""
    source, first = iter(arrivals), 1
    while chunk := list(islice(source, CHUNK)):
        at_s = np.array([at for at, _ in chunk], dtype=np.float64)
        batches = np.array([inferences for _, inferences in chunk], dtype=np.int64)
        is_wrong = ~(np.isfinite(at_s) & (at_s >= 0.0)) | (batches < 1)
        faults += _faults(chunk, np.flatnonzero(is_wrong).tolist(), first)
        keeps = ~is_wrong & (at_s < until_s)
        yield at_s[keeps], batches[keeps]
        first += len(chunk)


def _faults(chunk: Sequence[tuple[float, int]], wrong: Sequence[int], first: int) -> Iterator[Fault]:
    for index in wrong:
        yield Fault(
            f"arrival {first + index}",
            f"{chunk[index][1]} inferences at {chunk[index][0]} s",
            "1 inference or more, at a time that is finite and not negative",
        )
