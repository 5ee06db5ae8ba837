"""The autoscaler at work: pulls samples, writes the decision log, brings recordings to disk.

Everything that can fail here fails softly and is counted: a source that does not answer within ``PULL_TIMEOUT_S`` is
one missing sample, unreadable bytes are one fault, a full disk stops the log and never a decision.
"""

import asyncio
import errno
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec

from tidegate.autoscaler.autoscaler import Autoscaler, FleetContext
from tidegate.autoscaler.measure.collector import Collector
from tidegate.autoscaler.replay.recorder import Recorder
from tidegate.clock import Clock
from tidegate.records.codec import CodecError, decode, encode
from tidegate.records.decision import Decision
from tidegate.records.gateway_sample import GatewaySample, RevisionDemand
from tidegate.records.replica_sample import ReplicaSample

PULL_TIMEOUT_S = 0.5
SLICE_S = 0.003
"""Maximum time for which decisions occupy the event loop."""
LOG_BYTES = 4 * 1024 * 1024
"""Size at which a decision log becomes ``.1`` and a new one begins: at most twice this per function."""
UNWRITTEN = 256
"""Lines of all decision logs that are kept until they can be written; then the oldest are lost."""
TAIL_BYTES = 128 * 1024
"""Bytes that are read back from an earlier run's log."""

Fetch = Callable[[], Awaitable[bytes]]
"""One ``GET /sample`` of a source; may raise whatever its client raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnreadSample(GatewaySample):
    """A gateway's sample with its demands unread: those of a thousand functions are read in parts."""

    demands: tuple[msgspec.Raw, ...] = ()  # type: ignore[assignment]  # the same bytes, not decoded yet

    def with_demands(self, demands: Iterable[RevisionDemand]) -> GatewaySample:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return GatewaySample(**values | {"demands": tuple(demands)})


class Puller:
    """Pulls one sample from every source, all at once, each within the time limit, into the collector."""

    def __init__(
        self,
        collector: Collector,
        clock: Clock,
        *,
        timeout_s: float = PULL_TIMEOUT_S,
        gateway_seen: Callable[[GatewaySample], None] | None = None,
        replica_seen: Callable[[ReplicaSample], None] | None = None,
    ) -> None:
        self._collector = collector
        self._clock = clock
        self._timeout_s = timeout_s
        self._gateway_seen = gateway_seen
        self._replica_seen = replica_seen
        self.last_errors: dict[str, str] = {}
        """Errors of the last pull by source; sources that answered are absent."""

    async def pull(self, gateways: Mapping[str, Fetch], replicas: Mapping[str, Fetch]) -> None:
        """Pulls once. Cancelling it is safe; a source that fails does not disturb the others."""
        names = [*gateways, *replicas]
        unanswered: set[asyncio.Task[None]] = set()
        pulls = [self._one(fetch, self._take_gateway, unanswered) for fetch in gateways.values()]
        pulls += [self._one(fetch, self._take_replica, unanswered) for fetch in replicas.values()]
        # One timer for all: ten thousand of their own cost a tenth of a round.
        timer = asyncio.get_running_loop().call_later(self._timeout_s, _cancel, unanswered)
        try:
            results = await asyncio.gather(*pulls, return_exceptions=True)
        finally:
            timer.cancel()
        errors: dict[str, str] = {}
        for name, result in zip(names, results, strict=True):
            if isinstance(result, Exception):
                self._collector.fault("unreadable" if isinstance(result, CodecError) else "unreachable")
                late = f"no answer within {self._timeout_s:g} s"
                errors[name] = late if isinstance(result, TimeoutError) else f"{type(result).__name__}: {result}"
            elif isinstance(result, BaseException):
                raise result
        self.last_errors = errors

    async def _one(
        self, fetch: Fetch, take: Callable[[bytes], Awaitable[None]], unanswered: set[asyncio.Task[None]]
    ) -> None:
        """Takes one answer; raises TimeoutError if it has not come when the timer cancels all of ``unanswered``."""
        task = asyncio.current_task()
        assert task is not None
        unanswered.add(task)
        try:
            data = await fetch()
        except asyncio.CancelledError:
            if task in unanswered:
                raise
            raise TimeoutError from None
        finally:
            unanswered.discard(task)
        await take(data)

    async def _take_gateway(self, data: bytes) -> None:
        sample = decode(data, _UnreadSample)
        demands: list[RevisionDemand] = []
        reading = self._read(sample.demands, demands)
        for _ in self._collector.gateway_parts(sample, self._clock.now(), reading):
            await asyncio.sleep(0)
        if self._gateway_seen is not None:
            for _ in reading:
                pass  # The collector has not read the rest.
            self._gateway_seen(sample.with_demands(demands))

    def _read(self, unread: Iterable[msgspec.Raw], into: list[RevisionDemand]) -> Iterator[RevisionDemand]:
        """Decodes one demand after the other and keeps it; each undecodable one counts as a fault."""
        for raw in unread:
            try:
                demand = decode(bytes(raw), RevisionDemand)
            except CodecError:
                self._collector.fault("unreadable")
                continue
            into.append(demand)
            yield demand

    async def _take_replica(self, data: bytes) -> None:
        sample = decode(data, ReplicaSample)
        self._collector.replica(sample, self._clock.now())
        if self._replica_seen is not None:
            self._replica_seen(sample)

    def __repr__(self) -> str:
        return f"<Puller {self._timeout_s:g} s, failing: {sorted(self.last_errors)}>"


def _cancel(unanswered: set[asyncio.Task[None]]) -> None:
    """Cancels pulls that take too long. They find themselves no longer in the set."""
    late = tuple(unanswered)
    unanswered.clear()
    for task in late:
        task.cancel()


class DecisionLog:
    """Writes ``<directory>/<function>.jsonl``, one decision per line, bounded. Without a directory nothing is
    written."""

    def __init__(self, directory: Path | None, *, max_bytes: int = LOG_BYTES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._unwritten: deque[tuple[str, bytes]] = deque()
        """(function, line), oldest first."""
        self.fault: str | None = None
        """Why the last write failed; None after a success."""
        self.lost = 0
        """Lines since the start that were given up because too many could not be written."""

    def write(self, decision: Decision) -> None:
        """Writes a decision, or keeps it for :meth:`write_again` while there are some that could not be written."""
        if self._directory is None:
            return
        again = not self._unwritten
        self._unwritten.append((decision.function, encode(decision) + b"\n"))
        if again:
            self.write_again()
        elif len(self._unwritten) > UNWRITTEN:
            self._unwritten.popleft()
            self.lost += 1

    def write_again(self) -> None:
        """Writes what could not be written before. To be called every second: the fault passes with its cause, also
        where nothing new is decided."""
        if self._directory is None or not self._unwritten:
            return
        failed: set[str] = set()
        left: deque[tuple[str, bytes]] = deque()
        fault = None
        for function, line in self._unwritten:
            if function not in failed:
                try:
                    self._append(self._directory, function, line)
                    continue
                except OSError as error:
                    fault = f"decision log: {error}"
                    failed.add(function)
            left.append((function, line))
        self._unwritten = left
        self.fault = fault

    def _append(self, directory: Path, function: str, line: bytes) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(directory, function)
        if path.exists() and path.stat().st_size >= self._max_bytes:
            path.replace(path.with_suffix(".jsonl.1"))
        path.touch(0o600)
        with path.open("ab", buffering=0) as log:
            end = log.tell()
            if log.write(line) != len(line):
                log.truncate(end)  # The rest of a line would spoil the next one.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def read(self, function: str, n: int) -> list[Decision]:
        """Returns the last ``n`` decisions of earlier runs, oldest first; undecodable lines are left out."""
        if self._directory is None:
            return []
        try:
            lines = self._tail(self._path(self._directory, function))
        except OSError as error:
            self.fault = f"decision log: {error}"
            return []
        decisions: deque[Decision] = deque(maxlen=n)
        for line in lines:
            try:
                decisions.append(decode(line, Decision))
            except CodecError:
                continue
        return list(decisions)

    @staticmethod
    def _tail(path: Path) -> list[bytes]:
        if not path.exists():
            return []
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return log.read().splitlines()

    @staticmethod
    def _path(directory: Path, function: str) -> Path:
        return directory / f"{function}.jsonl"

    def __repr__(self) -> str:
        return f"<DecisionLog {self._directory}, fault: {self.fault}>"


class LiveAutoscaler:
    """An :class:`Autoscaler` with its sources, its log and its recordings. Order of one round::

    sources(...)  ->  await sample()  ->  core.fleet.put(...)  ->  await decided(now)
    """

    def __init__(
        self,
        clock: Clock,
        context: FleetContext,
        log_directory: Path | None = None,
        recordings: Path | None = None,
        *,
        gateway_seen: Callable[[GatewaySample], None] | None = None,
        replica_seen: Callable[[ReplicaSample], None] | None = None,
        wall: Callable[[], float] | None = None,
        max_replicas: int = 0,
    ) -> None:
        """``wall``, ``max_replicas``: as for :class:`Autoscaler`."""
        self._clock = clock
        self.log = DecisionLog(log_directory)
        self.recorder = Recorder(recordings)
        self.core = Autoscaler(clock, context, self.log, recorder=self.recorder, wall=wall, max_replicas=max_replicas)
        self.puller = Puller(self.core.collector, clock, gateway_seen=gateway_seen, replica_seen=replica_seen)
        self._gateways: dict[str, Fetch] = {}
        self._replicas: dict[str, Fetch] = {}
        self._ticks = 0

    def sources(self, gateways: Mapping[str, Fetch], replicas: Mapping[str, Fetch]) -> None:
        """Sets the sources to pull from: gateway workers by name, replicas by id. Others are forgotten."""
        self._gateways, self._replicas = dict(gateways), dict(replicas)
        self.core.collector.expect(self._gateways.keys(), self._replicas.keys())

    async def sample(self) -> None:
        """Pulls one sample from every source; takes at most the pull's time limit, never raises for a source. Meanwhile
        recordings go to disk."""
        self._ticks += 1
        self.log.write_again()
        left_out = self.core.fleet.unsampled(self._ticks)
        replicas = {name: fetch for name, fetch in self._replicas.items() if name not in left_out}
        await asyncio.gather(self.puller.pull(self._gateways, replicas), self.recorder.flush())

    async def decided(self, now: float) -> list[Decision]:
        """Returns the decisions of ``core.decide(now)``, letting the loop run every ``SLICE_S``: the activations of the
        moment do not wait for a tick over a thousand functions."""
        decisions, began = [], self._clock.now()
        for decision in self.core.decisions_at(now):
            decisions.append(decision)
            if self._clock.now() - began >= SLICE_S:
                await asyncio.sleep(0)
                began = self._clock.now()
        return decisions

    def close(self) -> None:
        """Writes what is recorded to disk."""
        self.log.write_again()
        self.recorder.close()

    def faults(self) -> dict[str, int | str]:
        """Returns what went wrong: ignored samples by kind, sources that do not answer now, windows of time that are
        left out, a log or recording that cannot be written."""
        found: dict[str, int | str] = dict(self.core.collector.faults)
        found.pop("unreachable", None)  # Counts past failures; the sources that do not answer now are named below.
        found |= {f"source {name}": error for name, error in self.puller.last_errors.items()}
        found |= self.core.faults()
        if self.log.fault is not None:
            found["log"] = self.log.fault
            if self.log.lost:
                found["log_lines_lost"] = self.log.lost
        if self.recorder.fault is not None:
            found["recordings"] = self.recorder.fault
        return found

    def __repr__(self) -> str:
        return f"<LiveAutoscaler {self.core!r}, {self.puller!r}>"
