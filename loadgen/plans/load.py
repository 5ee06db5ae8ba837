"""The plan of ``tidegate load``, read from its options: every fault is found before anything is sent."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.arrivals.pace import LoadPhase
from tidegate.loadgen.clients.call import WantedSla
from tidegate.loadgen.clients.runs import LoadWorker
from tidegate.loadgen.clients.workers import callers, paced
from tidegate.loadgen.plans import shape_words
from tidegate.loadgen.plans.arrivals import ArrivalOptions, Loop, Reader, Source, source_of
from tidegate.manifest.annotations import ANNOTATIONS
from tidegate.schema.units import OBJECTIVE, UnreadableError, duration, objective, percent
from tidegate.schema.yaml_nodes import Faults

MAX_CONNECTIONS: Final = 50_000
_PERCENTILE: Final = next(str(row.default) for row in ANNOTATIONS if row.key == "percentile")
"""Of an SLA without one: as in a manifest."""
PROTOCOLS: Final = ("http", "v2", "openai", "grpc")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions(ArrivalOptions):
    """The options of the command line, as written."""

    target: str
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
    sla: str | None = None

    @property
    def inputs(self) -> tuple[Path | None, ...]:
        return self.trace, self.body


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A load: an open loop by ``schedule``, else a closed one by ``workers``."""

    mode: str
    seed: int
    total_s: float | None
    schedule: Callable[[random.Random], Iterator[Arrival]] | None
    workers: Callable[[], list[LoadWorker]] | None
    batches: shape_words.Batches | None
    protocol: str | None
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    prompt_words: int
    tokens: int
    timeout_s: float
    connections: int
    sla: WantedSla | None
    """None takes the function's own SLA."""


def plan_of(options: LoadOptions) -> LoadPlan:
    """Returns the plan. Raises InvalidInputError with every fault."""
    return _LoadReader(options).plan()


@dataclass(slots=True)
class _LoadReader:
    options: LoadOptions
    faults: Faults = field(default_factory=lambda: Faults("load"))
    values: Reader = field(init=False)

    def __post_init__(self) -> None:
        self.values = Reader(self.faults)

    def plan(self) -> LoadPlan:
        options, faults, values = self.options, self.faults, self.values
        source = source_of(options, faults)
        protocol = options.protocol
        if protocol is not None and protocol not in PROTOCOLS:
            faults.add("--protocol", protocol, ", ".join(PROTOCOLS))
        made = LoadPlan(
            mode=source.mode,
            seed=source.seed,
            total_s=source.total_s,
            schedule=source.schedule,
            workers=_workers(source),
            batches=source.batches,
            protocol=protocol,
            headers=self._headers(),
            body=self._body(),
            prompt_words=values.whole("--prompt-words", options.prompt_words, 1, 1_000_000) or 1,
            tokens=values.whole("--tokens", options.tokens, 1, 1_000_000) or 1,
            timeout_s=values.time("--timeout", options.timeout, 0.001) or 0.0,
            connections=values.whole("--connections", options.connections, 1, MAX_CONNECTIONS) or 1,
            sla=self._sla(),
        )
        if options.body is not None and options.batches is not None and options.batch_header is None:
            faults.report(
                "--batches", "with --body", "--batch-header beside it, or one of the two: a file has one size"
            )
        faults.raise_any()
        return made

    def _sla(self) -> WantedSla | None:
        text = self.options.sla
        if text is None:
            return None
        try:
            latency, share, per_token = objective(text)
            per_token_s = None if per_token is None else duration(per_token)
            found = WantedSla(duration(latency), percent(share or _PERCENTILE), per_token_s)
        except UnreadableError:
            found = WantedSla(0.0, 0.0, None)
        if not (found.latency_s > 0.0 and 0.0 < found.percentile <= 100.0 and found.per_token_s != 0.0):
            self.faults.add("--sla", text, OBJECTIVE)
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


def _workers(source: Source) -> Callable[[], list[LoadWorker]] | None:
    """Returns a maker of the closed loops' workers; None for an open loop."""
    phases = [loop for loop in source.loops if isinstance(loop, LoadPhase)]
    loops = [loop for loop in source.loops if isinstance(loop, Loop)]
    if not source.loops:
        return None
    return lambda: [*paced(phases), *(each for loop in loops for each in callers(loop.callers, loop.seconds))]
