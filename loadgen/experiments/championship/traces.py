"""The traces of the championship: synthetic ones by seed, public ones from files that the user gives."""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tidegate.errors import Fault, InvalidInputError
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.arrivals.changes import Placement, placed, sliced
from tidegate.loadgen.arrivals.processes import mmpp, poisson
from tidegate.loadgen.experiments.championship.fleets import BATCHES, CHAT, IMAGE, FleetService
from tidegate.loadgen.traces.files import TraceFile, open_trace
from tidegate.loadgen.traces.formats import Format

HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
QUICK_LEARN_S: Final = 600.0
QUICK_JUDGED_S: Final = 3000.0
SWING_S: Final = 6 * HOUR_S
"""Period of the diurnal traces: a quarter of a day is enough to see both sides of it."""
TWITTER_FROM_S: Final = 10 * DAY_S
"""The judged part of the Twitter trace begins with day 11."""
BATCH_SIZES: Final = (1, 4, 16)
BATCH_WEIGHTS: Final = (0.7, 0.2, 0.1)

Made = Callable[[float, random.Random], Iterator[Arrival]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Simulated seconds: ``learn_s`` before anything is judged, then ``judged_s``."""

    learn_s: float
    judged_s: float

    @property
    def total_s(self) -> float:
        return self.learn_s + self.judged_s


@dataclass(frozen=True, slots=True, kw_only=True)
class League:
    """One trace. Either ``made`` yields it for so many seconds, or it is in one of ``files`` of the user's folder."""

    name: str
    title: str
    lengths: Lengths
    service: FleetService
    made: Made | None = None
    files: tuple[str, ...] = ()
    """Patterns of file names."""
    begins_s: float = 0.0
    """The moment of the file at which the judged part begins."""

    def quick(self) -> Lengths:
        """Returns the lengths of a run that shows in minutes what a whole one would."""
        return Lengths(
            learn_s=min(self.lengths.learn_s, QUICK_LEARN_S), judged_s=min(self.lengths.judged_s, QUICK_JUDGED_S)
        )

    def find(self, folder: Path | None) -> Path | None:
        """Returns the trace's file in ``folder``; None if it is not there."""
        if folder is None:
            return None
        found = sorted(each for pattern in self.files for each in folder.glob(pattern) if each.is_file())
        return found[0] if found else None

    def arrivals(self, lengths: Lengths, file: Path | None, seed: int) -> Iterator[Arrival]:
        """Yields the requests, in seconds after the beginning of the learning part. Equal arguments give equal ones.
        Raises InvalidInputError for a file that does not hold the whole span."""
        rng = random.Random(seed)
        if self.made is not None:
            return self.made(lengths.total_s, rng)
        assert file is not None  # Traces without their file are left out.
        return _of_file(open_trace(file), self.begins_s - lengths.learn_s, lengths.total_s, rng)


def _of_file(trace: TraceFile, start_s: float, span_s: float, rng: random.Random) -> Iterator[Arrival]:
    summary = trace.summary
    if summary.duration_s < start_s + 1.0 or (start_s > 0.0 and summary.duration_s < start_s + span_s):
        held = f"{summary.duration_s:.0f} s"
        raise InvalidInputError(str(trace.path), [Fault("trace", held, f"at least {start_s + span_s:.0f} s")])
    if summary.format is Format.COUNTS:
        counts = islice(trace.counts(), int(start_s), int(start_s + span_s))
        return placed(counts, rng, Placement.UNIFORM)
    return sliced(trace.arrivals(rng), start_s, start_s + span_s)


def _plain(times: Iterator[float]) -> Iterator[Arrival]:
    return (Arrival(at_s) for at_s in times)


def constant(rate: float) -> Made:
    """Returns what makes a Poisson load of one rate, in requests per second."""

    def made(total_s: float, rng: random.Random) -> Iterator[Arrival]:
        return _plain(poisson(lambda _: rate, total_s, rate, rng))

    return made


def _diurnal(total_s: float, rng: random.Random) -> Iterator[Arrival]:
    return _plain(poisson(lambda at_s: _swing(at_s, 2.0, 108.0), total_s, 108.0, rng))


def _batches(total_s: float, rng: random.Random) -> Iterator[Arrival]:
    sizes = random.Random(rng.getrandbits(64))
    for at_s in poisson(lambda at_s: _swing(at_s, 8.0, 20.0), total_s, 20.0, rng):
        yield Arrival(at_s, sizes.choices(BATCH_SIZES, BATCH_WEIGHTS)[0])


def _swing(at_s: float, low: float, high: float) -> float:
    return low + (high - low) * (1.0 - math.cos(2.0 * math.pi * at_s / SWING_S)) / 2.0


def _spikes(total_s: float, rng: random.Random) -> Iterator[Arrival]:
    now_s, rate, until_s = 0.0, 30.0, rng.uniform(1800.0, 5400.0)
    is_high = False
    while now_s < total_s:
        at_s = now_s
        while (at_s := at_s + rng.expovariate(rate)) < min(until_s, total_s):
            yield Arrival(at_s)
        now_s, is_high = until_s, not is_high
        rate = 30.0 * rng.uniform(3.0, 6.0) if is_high else 30.0
        until_s = now_s + (rng.uniform(120.0, 480.0) if is_high else rng.uniform(1800.0, 5400.0))


def _bursts(total_s: float, rng: random.Random) -> Iterator[Arrival]:
    """Yields a low rate with bursts that are over before a replica is started for them."""
    now_s, is_high = 0.0, False
    while now_s < total_s:
        until_s = now_s + (rng.uniform(3.0, 8.0) if is_high else rng.uniform(300.0, 900.0))
        at_s, rate = now_s, 40.0 if is_high else 2.0
        while (at_s := at_s + rng.expovariate(rate)) < min(until_s, total_s):
            yield Arrival(at_s)
        now_s, is_high = until_s, not is_high


def _modulated(total_s: float, rng: random.Random) -> Iterator[Arrival]:
    return _plain(mmpp((30.0, 120.0), (90.0, 30.0), total_s, rng))


def _switched(total_s: float, rng: random.Random) -> Iterator[Arrival]:
    return _plain(mmpp((40.0, 0.0), (330.0, 1560.0), total_s, rng))


def _hours(learn: float, judged: float) -> Lengths:
    return Lengths(learn_s=learn * HOUR_S, judged_s=judged * HOUR_S)


LEAGUES: Final[Mapping[str, League]] = MappingProxyType(
    {
        league.name: league
        for league in (
            League(
                name="twitter",
                title="Twitter: messages a second, days 11 and 12 after days 8 to 10",
                lengths=_hours(72, 48),
                service=IMAGE,
                files=("twitter*.txt", "twitter*.txt.gz"),
                begins_s=TWITTER_FROM_S,
            ),
            League(
                name="azure-llm",
                title="Azure LLM 2023, conversation: an hour of prompts and answers",
                lengths=_hours(0, 1),
                service=CHAT,
                files=("azure*llm*conv*.csv", "azure*llm*conv*.csv.gz", "AzureLLM*conv*.csv", "AzureLLM*conv*.csv.gz"),
            ),
            League(
                name="constant",
                title="60 requests a second",
                lengths=_hours(1, 4),
                service=IMAGE,
                made=constant(60.0),
            ),
            League(
                name="diurnal",
                title="2 to 108 requests a second and back in six hours",
                lengths=_hours(6, 6),
                service=IMAGE,
                made=_diurnal,
            ),
            League(
                name="batches",
                title="Batch mix: 8 to 20 requests a second of 1, 4 or 16 inferences",
                lengths=_hours(6, 6),
                service=BATCHES,
                made=_batches,
            ),
            League(
                name="spike",
                title="30 requests a second; every 30 to 90 minutes 3 to 6 times as many, for 2 to 8 minutes",
                lengths=_hours(24, 12),
                service=IMAGE,
                made=_spikes,
            ),
            League(
                name="bursts",
                title="2 requests a second; every 5 to 15 minutes 40 a second, for 3 to 8 seconds",
                lengths=_hours(2, 4),
                service=IMAGE,
                made=_bursts,
            ),
            League(
                name="mmpp",
                title="30 or 120 requests a second, for 90 and 30 s on average",
                lengths=_hours(24, 6),
                service=IMAGE,
                made=_modulated,
            ),
            League(
                name="on-off",
                title="40 requests a second for 330 s on average, then nothing for 26 minutes",
                lengths=_hours(24, 12),
                service=IMAGE,
                made=_switched,
            ),
        )
    }
)
