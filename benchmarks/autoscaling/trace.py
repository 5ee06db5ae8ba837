"""A trace of requests per second: read, cut, scaled, and made into arrivals. Pure.

A file has one whole number per line: the requests of one second. Lines that begin with ``#`` say where it is from.
"""

import math
import random
from collections.abc import Iterator, Sequence


class TraceError(ValueError):
    """The text is no trace; the message names the line."""


def parse(text: str) -> list[int]:
    """The counts of a trace. Raises TraceError."""
    counts = []
    for number, line in enumerate(text.splitlines(), 1):
        word = line.strip()
        if not word or word.startswith("#"):
            continue
        if not (word.isascii() and word.isdigit()):
            raise TraceError(f"line {number} is {word[:40]!r}; it must be a whole number, the requests of one second")
        counts.append(int(word))
    if not counts:
        raise TraceError("there is no second in it")
    return counts


def cut(counts: Sequence[int], first_s: int, seconds: int) -> list[int]:
    """So many seconds from ``first_s`` on. Raises TraceError where the trace is too short."""
    if first_s < 0 or seconds <= 0 or first_s + seconds > len(counts):
        raise TraceError(f"{seconds} s from {first_s} s on are wanted; the trace has {len(counts)} s")
    return list(counts[first_s : first_s + seconds])


def scaled(counts: Sequence[float], low: float, high: float) -> list[float]:
    """The same shape between two rates: the smallest count is ``low``, the largest ``high``; a flat one the mean."""
    smallest, largest = min(counts), max(counts)
    if largest == smallest:
        return [(low + high) / 2.0] * len(counts)
    return [low + (high - low) * (count - smallest) / (largest - smallest) for count in counts]


def smoothed(counts: Sequence[float], window_s: int) -> list[float]:
    """Running means over a centred window: what one second's chance adds would else be scaled with the shape."""
    half = window_s // 2
    parts = [counts[max(0, at - half) : at + half + 1] for at in range(len(counts))]
    return [sum(part) / len(part) for part in parts]


def arrivals(rates: Sequence[float], rng: random.Random) -> Iterator[float]:
    """Times of a Poisson process whose rate is ``rates[i]`` in second i (Knuth's way: unit steps of an integral)."""
    wanted, done = rng.expovariate(1.0), 0.0
    for at, rate in enumerate(rates):
        while rate > 0.0 and wanted <= done + rate:
            yield at + (wanted - done) / rate
            wanted += rng.expovariate(1.0)
        done += rate
    if not math.isfinite(done):
        raise TraceError("a rate is not finite")
