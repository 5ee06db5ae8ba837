"""Arrival options of ``tidegate load``, which sends requests, and of ``tidegate simulate``, which does not."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from tidegate.errors import InvalidInputError
from tidegate.loadgen.arrivals import processes as arrivals
from tidegate.loadgen.arrivals import shapes
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.arrivals.changes import Placement, sliced
from tidegate.loadgen.arrivals.pace import LoadPhase
from tidegate.loadgen.arrivals.workloads import THEMIS, Share
from tidegate.loadgen.plans import shape_words
from tidegate.loadgen.plans.outputs import check_files
from tidegate.loadgen.traces.files import TraceFile, open_trace
from tidegate.loadgen.traces.formats import Format
from tidegate.schema.rows import Duration, suggested
from tidegate.schema.units import UnreadableError, duration, number, whole
from tidegate.schema.yaml_nodes import Faults, nearest

MODES: Final = ("--rate", "--trace", "--shape", "--callers", "--phase", "--concurrency")
MAX_SECONDS: Final = 7 * 86_400.0
MAX_SCALE: Final = 1e6
Schedule = Callable[[random.Random], Iterator[Arrival]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalOptions:
    """The arrival options, as written."""

    rate: str | None = None
    span: str | None = None
    arrivals: str = "poisson"
    trace: Path | None = None
    scale: str = "1"
    first: str | None = None
    last: str | None = None
    shape: str | None = None
    callers: str | None = None
    phases: tuple[str, ...] = ()
    concurrency: str | None = None
    batches: str | None = None
    seed: str = "1"
    outputs: tuple[tuple[str, Path | None], ...] = ()
    """Options that name a file to be written."""

    @property
    def inputs(self) -> tuple[Path | None, ...]:
        """Files that are read and must not be overwritten."""
        return (self.trace,)

    @property
    def modes(self) -> tuple[str, ...]:
        """Options that select the arrival process; exactly one must be given."""
        return MODES


class Loop(NamedTuple):
    """A closed loop: ``callers`` callers for ``seconds`` seconds, each of which sends its next request when it has the
    answer."""

    callers: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source of requests: an open loop by ``schedule``, else the closed loops in ``loops``."""

    mode: str = ""
    seed: int = 0
    total_s: float | None = None
    """Planned duration; None if it is unknown."""
    schedule: Schedule | None = None
    loops: tuple[Loop | LoadPhase, ...] = ()
    batches: shape_words.Batches | None = None


@dataclass(slots=True)
class Reader:
    """Reads option values; unreadable ones become entries of ``faults``."""

    faults: Faults

    def taken(self, name: str, read: Callable[[], T]) -> T | None:
        """Returns the value of ``read``; the faults of that other text are added here with their line."""
        try:
            return read()
        except InvalidInputError as error:
            for fault in error.faults:
                self.faults.report(f"{name}: {fault.where}", fault.value, fault.allowed, fault.line)
            return None

    def time(self, name: str, text: str, least: float) -> float | None:
        try:
            value = duration(text)
        except UnreadableError:
            value = -1.0
        if not least <= value <= MAX_SECONDS:
            meant = suggested(Duration(least, MAX_SECONDS), text)
            self.faults.add(name, text, f"a time with its unit, such as 30s or 5m, {least:g}s to 7 days{meant}")
            return None
        return value

    def number(self, name: str, text: str, most: float) -> float | None:
        try:
            value = number(text)
        except UnreadableError:
            value = 0.0
        if not 0.0 < value <= most:
            self.faults.add(name, text, f"a number above 0, at most {most:.0f}")
            return None
        return value

    def whole(self, name: str, text: str, least: int, most: int) -> int | None:
        try:
            value = whole(text)
        except UnreadableError:
            value = -1
        if not least <= value <= most:
            self.faults.add(name, text, f"a whole number, {least} to {most}")
            return None
        return value


def source_of(asked: ArrivalOptions, faults: Faults) -> Source:
    """Returns the source of requests and adds every fault to ``faults``. With a fault the source must not be used."""
    reader = _SourceReader(asked, faults)
    reader.read()
    check_files(asked.outputs, asked.inputs, faults)
    return Source(
        mode=reader.mode,
        seed=reader.values.whole("--seed", asked.seed, 0, 2**53) or 0,
        total_s=reader.total_s,
        schedule=reader.schedule,
        loops=reader.loops,
        batches=None if asked.batches is None else shape_words.batches(asked.batches, faults),
    )


@dataclass(slots=True)
class _SourceReader:
    asked: ArrivalOptions
    faults: Faults
    mode: str = ""
    total_s: float | None = None
    schedule: Schedule | None = None
    loops: tuple[Loop | LoadPhase, ...] = ()
    values: Reader = field(init=False)

    def __post_init__(self) -> None:
        self.values = Reader(self.faults)

    def read(self) -> None:
        asked, faults = self.asked, self.faults
        given = (asked.rate, asked.trace, asked.shape, asked.callers, asked.phases, asked.concurrency)
        named = [name for name, value in zip(MODES, given, strict=True) if value]
        if len(named) != 1:
            allowed = f"exactly one of {', '.join(asked.modes)}"
            if not named and "--rate" in asked.modes:
                allowed += ", such as --rate 10 --for 30s"
            faults.report("mode", " and ".join(named) or "nothing", allowed)
        span_s = None if asked.span is None else self.values.time("--for", asked.span, 0.001)
        if asked.span is None and {"--rate", "--callers", "--concurrency"}.intersection(named):
            faults.report("--for", "nothing", "how long, such as 30s")
        placement = self._placement()
        for name in named:
            if name == "--rate":
                self._rate(asked.rate or "", span_s, placement)
            elif name == "--shape":
                self._shape(asked.shape or "", span_s, placement)
            elif name == "--trace":
                self._trace(placement)
            elif name == "--phase":
                self._phases()
            else:
                self._callers(name, span_s)
        for name, value in (("--from", asked.first), ("--to", asked.last)):
            if value is not None and "--trace" not in named:
                faults.add(name, value, "a moment of a --trace")
        if asked.span is not None and named in (["--trace"], ["--phase"]):
            faults.add("--for", asked.span, f"nothing beside {named[0]}, which has its own length")

    def _rate(self, text: str, span_s: float | None, placement: Placement) -> None:
        rate = self.values.number("--rate", text, shape_words.MAX_RATE)
        if rate is not None and span_s is not None:
            self._open(f"{rate:g} requests/s", shapes.constant(span_s, rate), placement)

    def _shape(self, text: str, span_s: float | None, placement: Placement) -> None:
        if text.partition(":")[0] == shape_words.MMPP:
            self._modulated(text, span_s, placement)
            return
        load = shape_words.shape(text, span_s, self.faults, placement)
        if load is not None:
            self._open(f"shape {text}", load, placement)

    def _open(self, description: str, load: shapes.Load, placement: Placement) -> None:
        self.mode, self.total_s = f"open loop, {description}, {placement}", load.duration_s
        self.schedule = lambda rng: (Arrival(at_s) for at_s in shapes.times(load, placement, rng))

    def _modulated(self, text: str, span_s: float | None, placement: Placement) -> None:
        states = shape_words.modulated(text, self.faults)
        if span_s is None:
            self.faults.report("--for", "nothing", "how long the shape mmpp lasts, such as 60s")
        if placement is not Placement.POISSON:
            self.faults.add("--arrivals", str(placement), "poisson: the shape mmpp is a process of its own")
        if states is None or span_s is None:
            return
        total_s, stays, rates = span_s, [each[0] for each in states], [each[1] for each in states]
        self.mode, self.total_s = f"open loop, shape {text}", total_s
        self.schedule = lambda rng: (Arrival(at_s) for at_s in arrivals.mmpp(rates, stays, total_s, rng))

    def _trace(self, placement: Placement) -> None:
        asked, values = self.asked, self.values
        share = self._share(asked.scale)
        start_s = 0.0 if asked.first is None else values.time("--from", asked.first, 0.0)
        end_s = math.inf if asked.last is None else values.time("--to", asked.last, 0.0)
        if start_s is not None and end_s is not None and not start_s < end_s:
            self.faults.add("--to", str(asked.last), "a moment after --from")
        path = asked.trace or Path()
        trace = values.taken(f"--trace {path}", lambda: open_trace(path))
        if trace is None or share is None or start_s is None or end_s is None:
            return
        if share.least and trace.summary.format is not Format.COUNTS:
            self.faults.add("--scale", asked.scale, "a number: only traces of counts are shared among pipelines")
        elif start_s >= trace.summary.duration_s > 0.0:
            allowed = f"a moment before the trace's end at {trace.summary.duration_s:g} s"
            self.faults.add("--from", str(asked.first), allowed)
        else:
            self._follow(trace, placement, share, start_s, end_s)

    def _share(self, text: str) -> Share | None:
        if text in THEMIS:
            return THEMIS[text]
        if text[:1].isalpha():
            self.faults.add("--scale", text, f"a number, or one of {', '.join(THEMIS)}{nearest(text, THEMIS)}")
            return None
        factor = self.values.number("--scale", text, MAX_SCALE)
        return None if factor is None else Share(1.0 / factor, 0.0)

    def _follow(self, trace: TraceFile, placement: Placement, share: Share, start_s: float, end_s: float) -> None:
        factor, least = 1.0 / share.divisor, share.least
        self.mode = f"open loop, trace {trace.path.name} at {factor:g} times its rate"
        self.total_s = max(0.0, min(end_s, trace.summary.duration_s) - start_s)
        self.schedule = lambda rng: sliced(trace.arrivals(rng, placement, factor, least), start_s, end_s)

    def _phases(self) -> None:
        found = shape_words.phases(self.asked.phases, self.faults)
        self.mode = f"closed loop, hey's pacing, {len(found)} phases"
        self.loops = tuple(found)

    def _callers(self, name: str, span_s: float | None) -> None:
        text = self.asked.callers if name == "--callers" else self.asked.concurrency
        count = self.values.whole(name, text or "", 1, shape_words.MAX_WORKERS)
        if count is not None and span_s is not None:
            kind = "callers" if name == "--callers" else "requests at once"
            self.mode, self.total_s = f"closed loop, {count} {kind}", span_s
            self.loops = (Loop(count, span_s),)

    def _placement(self) -> Placement:
        try:
            return Placement(self.asked.arrivals)
        except ValueError:
            self.faults.add("--arrivals", self.asked.arrivals, ", ".join(Placement))
            return Placement.POISSON
