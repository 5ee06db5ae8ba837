"""What ``tidegate load`` was asked for, read from its options: every fault is found before anything is sent."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from loadgen import shapes
from loadgen.clients import shape_words
from loadgen.clients.runs import Worker
from loadgen.clients.workers import Caller, paced
from loadgen.shapes import Load
from loadgen.traces.arrival import Arrival
from loadgen.traces.changes import Placement, sliced
from loadgen.traces.files import TraceFile, open_trace
from tidegate.document import Faults
from tidegate.errors import InvalidInputError
from tidegate.units import UnreadableError, duration, number, percent, whole

MODES: Final = ("--rate", "--trace", "--shape", "--callers", "--phase", "--concurrency")
MOST_SECONDS: Final = 7 * 86_400.0
MOST_CONNECTIONS: Final = 50_000
PROTOCOLS: Final = ("http", "v2", "openai", "grpc")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Of the command line, as written."""

    target: str
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
    protocol: str | None = None
    model: str | None = None
    path: str | None = None
    method: str | None = None
    body: Path | None = None
    headers: tuple[str, ...] = ()
    batch_header: str | None = None
    prompt_words: str = "32"
    tokens: str = "32"
    stream: bool = False
    timeout: str = "60s"
    connections: str = "1024"
    seed: str = "1"
    sla: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A load: an open loop by ``schedule``, else a closed one by ``workers``."""

    mode: str
    seed: int
    total_s: float | None
    schedule: Callable[[random.Random], Iterator[Arrival]] | None
    workers: Callable[[], list[Worker]] | None
    batches: shape_words.Batches | None
    protocol: str | None
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    prompt_words: int
    tokens: int
    timeout_s: float
    connections: int
    sla: tuple[float, float] | None
    """Seconds and percent; None: as the function says."""


def plan_of(options: Options) -> Plan:
    """Raises InvalidInputError with every fault."""
    return _Reader(options).plan()


@dataclass(slots=True)
class _Reader:
    options: Options
    faults: Faults = field(default_factory=lambda: Faults("load"))
    mode: str = ""
    total_s: float | None = None
    schedule: Callable[[random.Random], Iterator[Arrival]] | None = None
    workers: Callable[[], list[Worker]] | None = None

    def plan(self) -> Plan:
        options, faults = self.options, self.faults
        self._mode()
        protocol = options.protocol
        if protocol is not None and protocol not in PROTOCOLS:
            faults.add("--protocol", protocol, ", ".join(PROTOCOLS))
        made = Plan(
            mode=self.mode,
            seed=self._whole("--seed", options.seed, 0, 2**53) or 0,
            total_s=self.total_s,
            schedule=self.schedule,
            workers=self.workers,
            batches=None if options.batches is None else shape_words.batches(options.batches, faults),
            protocol=protocol,
            headers=self._headers(),
            body=self._body(),
            prompt_words=self._whole("--prompt-words", options.prompt_words, 1, 1_000_000) or 1,
            tokens=self._whole("--tokens", options.tokens, 1, 1_000_000) or 1,
            timeout_s=self._time("--timeout", options.timeout, 0.001) or 0.0,
            connections=self._whole("--connections", options.connections, 1, MOST_CONNECTIONS) or 1,
            sla=self._sla(),
        )
        if options.body is not None and options.batches is not None and options.batch_header is None:
            faults.say("--batches", "with --body", "--batch-header beside it, or one of the two: a file has one size")
        faults.raise_any()
        return made

    # --- modes ---

    def _mode(self) -> None:
        options, faults = self.options, self.faults
        given = (options.rate, options.trace, options.shape, options.callers, options.phases, options.concurrency)
        named = [name for name, value in zip(MODES, given, strict=True) if value]
        if len(named) != 1:
            faults.say("mode", " and ".join(named) or "nothing", f"exactly one of {', '.join(MODES)}")
        span_s = None if options.span is None else self._time("--for", options.span, 0.001)
        if options.span is None and {"--rate", "--callers", "--concurrency"}.intersection(named):
            faults.say("--for", "nothing", "how long, such as 30s")
        arrivals = self._placement()
        for name in named:
            if name == "--rate":
                self._rate(options.rate or "", span_s, arrivals)
            elif name == "--shape":
                load = shape_words.shape(options.shape or "", span_s, faults)
                self._open(f"open loop, shape {options.shape}, {arrivals}", load, arrivals)
            elif name == "--trace":
                self._trace(arrivals)
            elif name == "--phase":
                self._phases()
            else:
                self._callers(name, span_s)
        for name, value in (("--from", options.first), ("--to", options.last)):
            if value is not None and "--trace" not in named:
                faults.add(name, value, "a moment of a --trace")
        if options.span is not None and named in (["--trace"], ["--phase"]):
            faults.add("--for", options.span, f"nothing beside {named[0]}, which has its own length")

    def _rate(self, text: str, span_s: float | None, arrivals: Placement) -> None:
        rate = self._number("--rate", text, shape_words.MOST_RATE)
        if rate is not None and span_s is not None:
            self._open(f"open loop, {rate:g} requests/s, {arrivals}", shapes.constant(span_s, rate), arrivals)

    def _open(self, mode: str, load: Load | None, arrivals: Placement) -> None:
        if load is None:
            return
        self.mode, self.total_s = mode, load.duration_s
        self.schedule = lambda rng: (Arrival(at_s) for at_s in shape_words.times(load, arrivals, rng))

    def _trace(self, arrivals: Placement) -> None:
        options = self.options
        factor = self._number("--scale", options.scale, 1e6)
        start_s = 0.0 if options.first is None else self._time("--from", options.first, 0.0)
        end_s = math.inf if options.last is None else self._time("--to", options.last, 0.0)
        if start_s is not None and end_s is not None and not start_s < end_s:
            self.faults.add("--to", str(options.last), "a moment after --from")
        trace = self._taken(lambda: open_trace(options.trace or Path()))
        if trace is not None and factor is not None and start_s is not None and end_s is not None:
            self._follow(trace, arrivals, factor, start_s, end_s)

    def _follow(self, trace: TraceFile, arrivals: Placement, factor: float, start_s: float, end_s: float) -> None:
        self.mode = f"open loop, trace {trace.path.name} at {factor:g} times its rate"
        self.total_s = max(0.0, min(end_s, trace.summary.duration_s) - start_s)
        self.schedule = lambda rng: sliced(trace.arrivals(rng, arrivals, factor), start_s, end_s)

    def _phases(self) -> None:
        found = shape_words.phases(self.options.phases, self.faults)
        self.mode = f"closed loop, hey's pacing, {len(found)} phases"
        self.workers = lambda: list(paced(found))

    def _callers(self, name: str, span_s: float | None) -> None:
        text = self.options.callers if name == "--callers" else self.options.concurrency
        count = self._whole(name, text or "", 1, shape_words.MOST_WORKERS)
        if count is not None and span_s is not None:
            seconds = span_s
            kind = "callers" if name == "--callers" else "requests at once"
            self.mode, self.total_s = f"closed loop, {count} {kind}", seconds
            self.workers = lambda: [Caller(seconds) for _ in range(count)]

    # --- values ---

    def _placement(self) -> Placement:
        try:
            return Placement(self.options.arrivals)
        except ValueError:
            self.faults.add("--arrivals", self.options.arrivals, ", ".join(Placement))
            return Placement.POISSON

    def _sla(self) -> tuple[float, float] | None:
        text = self.options.sla
        if text is None:
            return None
        latency, at, share = text.partition("@")
        try:
            found = duration(latency), percent(share) if at else 99.0
        except UnreadableError:
            found = 0.0, 0.0
        if not (found[0] > 0.0 and 0.0 < found[1] <= 100.0):
            self.faults.add("--sla", text, "LATENCY@PERCENT, such as 200ms@98")
        return found

    def _headers(self) -> tuple[tuple[str, str], ...]:
        found = []
        for text in self.options.headers:
            name, colon, value = text.partition(":")
            name, value = name.strip(), value.strip()
            is_name = name.replace("-", "").replace("_", "").isalnum() and name.isascii()
            if not colon or not is_name or not (value.isprintable() and value.isascii()):
                self.faults.add("--header", name, "NAME: VALUE in ASCII")
            elif name.lower() in ("content-length", "transfer-encoding", "connection"):
                self.faults.add("--header", name, "any other: the client frames requests itself")
            else:
                found.append((name.lower(), value))
        return tuple(found)

    def _body(self) -> bytes | None:
        path = self.options.body
        if path is None:
            return None
        try:
            return path.read_bytes()
        except OSError as error:
            self.faults.add("--body", str(path), f"a file that can be read ({error.strerror})")
            return None

    def _taken(self, read: Callable[[], T]) -> T | None:
        """What is read, with its faults among the others."""
        try:
            return read()
        except InvalidInputError as error:
            for fault in error.faults:
                self.faults.say(f"--trace: {fault.where}", fault.value, fault.allowed, fault.line)
            return None

    def _time(self, name: str, text: str, least: float) -> float | None:
        try:
            value = duration(text)
        except UnreadableError:
            value = -1.0
        if not least <= value <= MOST_SECONDS:
            self.faults.add(name, text, "a time with its unit, such as 30s or 500ms, at most 7 days")
            return None
        return value

    def _number(self, name: str, text: str, most: float) -> float | None:
        try:
            value = number(text)
        except UnreadableError:
            value = 0.0
        if not 0.0 < value <= most:
            self.faults.add(name, text, f"a number above 0, at most {most:g}")
            return None
        return value

    def _whole(self, name: str, text: str, least: int, most: int) -> int | None:
        try:
            value = whole(text)
        except UnreadableError:
            value = -1
        if not least <= value <= most:
            self.faults.add(name, text, f"a whole number, {least} to {most}")
            return None
        return value
