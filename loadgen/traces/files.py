"""Trace files: format detected, checked completely, then readable any number of times. Plain text or gzip.

``sample:NAME`` is a trace that ships with the package (samples/README.md lists their sources).
"""

import gzip
import io
import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.arrivals.changes import Placement, joined, placed, scaled
from tidegate.loadgen.traces.formats import READERS, Format, azure_functions, azure_llm, counts, format_of, json_lines
from tidegate.schema.yaml_nodes import Faults, nearest

SAMPLE: Final = "sample:"
SAMPLES: Final = {"azure-llm": "azure-llm.csv.gz", "bursts": "bursts.txt.gz", "twitter": "twitter.txt.gz"}
"""Sample files by name."""
_SAMPLES_AT: Final = Path(__file__).parent / "samples"
GZIP: Final = b"\x1f\x8b"
LINE_CHARACTERS: Final = 64 * 1024
"""Maximum characters of a line; a file with a longer one is no trace."""
MINUTE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """Summary of a whole trace."""

    format: Format
    requests: int
    duration_s: float
    peak_per_s: float
    """Requests of the busiest second (Azure Functions: of a second of the busiest minute)."""


class TraceFile:
    """A file that has been read once completely and is a valid trace."""

    def __init__(self, path: Path, summary: TraceSummary) -> None:
        self.path = path
        self.summary = summary

    def arrivals(
        self, rng: random.Random, placement: Placement = Placement.POISSON, factor: float = 1.0, least: float = 0.0
    ) -> Iterator[Arrival]:
        """Yields its requests, one by one, at ``factor`` times the rate. ``placement`` and ``least`` (minimum requests
        per second) apply to traces of counts; the other formats contain the time of each request."""
        faults = Faults(str(self.path))
        with _opened(self.path) as lines:
            match self.summary.format:
                case Format.AZURE_LLM:
                    yield from scaled(azure_llm(lines, faults), factor, rng)
                case Format.JSON_LINES:
                    yield from scaled(json_lines(lines, faults), factor, rng)
                case Format.COUNTS:
                    yield from placed((max(least, count * factor) for count in counts(lines, faults)), rng, placement)
                case Format.AZURE_FUNCTIONS:
                    rows = list(azure_functions(lines, faults))
                    seeds = [random.Random(rng.getrandbits(64)) for _ in rows]
                    yield from joined(
                        *(
                            _named(name, [minute * factor for minute in minutes], seed, placement)
                            for (name, minutes), seed in zip(rows, seeds, strict=True)
                        )
                    )
        faults.raise_any()  # It was whole when it was opened, and has been changed since.

    def counts(self) -> Iterator[int]:
        """Yields the requests of each second of a trace of counts."""
        faults = Faults(str(self.path))
        with _opened(self.path) as lines:
            yield from counts(lines, faults)
        faults.raise_any()

    def __repr__(self) -> str:
        return f"<TraceFile {self.path.name}: {self.summary.requests} requests>"


def open_trace(path: Path) -> TraceFile:
    """Reads the file once completely; ``sample:NAME`` is one of :data:`SAMPLES`. Raises InvalidInputError with every
    fault and its line."""
    faults = Faults(str(path))
    numbers = _Numbers(faults)
    path = _located(path, faults)
    try:
        with _opened(path) as lines:
            first = next(lines, "")
        found = format_of(first)
        with _opened(path) as lines:
            summary = _summary(found, numbers.of(lines), faults)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        got = f"gzip that breaks off or is damaged at or behind this line ({error})"
        faults.report("file", got, "a whole file", numbers.last or 1)
        raise faults.error() from error
    except UnicodeDecodeError as error:
        got = f"bytes that are no text at or behind this line ({error.reason})"
        faults.report("file", got, "text in UTF-8, or gzip of it", numbers.last or 1)
        raise faults.error() from error
    except OSError as error:
        faults.report("file", error.strerror or str(error), "a file that can be read")
        raise faults.error() from error
    faults.raise_any()
    return TraceFile(path, summary)


def _located(path: Path, faults: Faults) -> Path:
    """Returns the path of the file itself."""
    text = str(path)
    if not text.startswith(SAMPLE):
        return path
    name = text.removeprefix(SAMPLE)
    if name not in SAMPLES:
        faults.add("sample", name, f"one of the samples: {', '.join(SAMPLES)}{nearest(name, SAMPLES)}")
        raise faults.error()
    return _SAMPLES_AT / SAMPLES[name]


@contextmanager
def _opened(path: Path) -> Iterator[Iterator[str]]:
    with path.open("rb") as file:
        packed = file.read(2) == GZIP
        file.seek(0)
        raw = gzip.GzipFile(fileobj=file) if packed else file
        with io.TextIOWrapper(raw, encoding="utf-8", newline="\n") as text:
            yield iter(lambda: text.readline(LINE_CHARACTERS), "")


class _Numbers:
    """Passes lines on and counts them; an overlong line is a fault and ends the file."""

    def __init__(self, faults: Faults) -> None:
        self.last = 0
        self._faults = faults

    def of(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            self.last += 1
            if len(line) >= LINE_CHARACTERS:
                self._faults.report("line", f"more than {LINE_CHARACTERS} characters", "lines of a trace", self.last)
                return
            yield line


def _summary(found: Format, lines: Iterator[str], faults: Faults) -> TraceSummary:
    requests, duration_s, peak = 0, 0.0, 0.0
    if found is Format.COUNTS:
        for count in counts(lines, faults):
            requests, duration_s, peak = requests + count, duration_s + 1.0, max(peak, count)
    elif found is Format.AZURE_FUNCTIONS:
        sums: list[int] = []
        for _, minutes in azure_functions(lines, faults):
            sums = [a + b for a, b in zip(sums, minutes, strict=True)] if sums else minutes
        requests, duration_s, peak = sum(sums), len(sums) * MINUTE_S, max(sums, default=0) / MINUTE_S
    else:
        second, in_second = -1, 0
        for arrival in READERS[found](lines, faults):
            if int(arrival.at_s) != second:
                second, in_second = int(arrival.at_s), 0
            in_second += 1
            requests, duration_s, peak = requests + 1, arrival.at_s, max(peak, in_second)
    return TraceSummary(format=found, requests=requests, duration_s=duration_s, peak_per_s=peak)


def _named(name: str, minutes: list[float], rng: random.Random, placement: Placement) -> Iterator[Arrival]:
    for arrival in placed(minutes, rng, placement, MINUTE_S):
        yield arrival._replace(function=name)
