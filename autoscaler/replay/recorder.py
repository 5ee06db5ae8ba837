"""Records all revisions, bounded in memory and on disk.

The last steps of a revision are its *part*, in memory, as the very objects that were decided upon: recording costs a
tick an append. A full part is encoded and compressed in a thread, off the loop, and appended to the revision's file.
Every part begins with a header of its own, so that any of them can be the first one left.

Bounds: ``PART_FIGURES`` observations of groups per revision in memory (some 60 KB), two files of ``FILE_BYTES`` per
revision and ``TOTAL_BYTES`` in all on disk. The files written longest ago are deleted first. More than
``FLUSH_FIGURES`` at a time (once a second) is dropped: a deployment of thousands of busy groups is recorded in part,
and neither a core nor a disk is busy with it.
"""

import asyncio
import gzip
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tidegate.autoscaler.decider import Decider
from tidegate.autoscaler.measure.observation import Observation
from tidegate.autoscaler.policies.policy_state import StateError
from tidegate.autoscaler.replay.recording import Header, Line, Step, header, to_line
from tidegate.function import Revision
from tidegate.records.decision import Decision
from tidegate.records.gateway_sample import Activation

PART_FIGURES = 100
FILE_BYTES = 512 * 1024
"""Size at which a file becomes ``.1`` and a new one begins."""
TOTAL_BYTES = 256 * 1024 * 1024
FLUSH_FIGURES = 2000
"""About 15 ms of processor time and 200 KB."""
STATE_EVERY = 60
"""Steps after which the next part has the policy's state: recording it takes longer than a decision."""
COUNT_EVERY = 60
"""Writes between two measurements of the folder."""
LEVEL = 1
"""Compression level: fast; observations are alike, so that they shrink to a tenth or less."""
SUFFIX = ".ndjson.gz"


@dataclass(slots=True)
class Part:
    """Successive steps of one revision."""

    header: Header
    room: int
    """Observations of groups that still fit."""
    since_state: int = 0
    """Steps since the last header with a state, before this part."""
    figures: int = 0
    steps: list[tuple[Observation, Activation | None, Decision]] = field(default_factory=list)

    @property
    def revision(self) -> str:
        return self.header.deployed.id

    def add(self, observation: Observation, decision: Decision, activation: Activation | None = None) -> None:
        self.steps.append((observation, activation, decision))
        figures = len(observation.groups) or 1
        self.figures += figures
        self.room -= figures

    def encoded(self) -> bytes:
        lines: list[Line] = [self.header]
        lines += [Step(observation=seen, activation=pushed, decision=decision) for seen, pushed, decision in self.steps]
        return b"".join(map(to_line, lines))


class Recorder:
    """Keeps the parts. Without a directory only the present parts are kept."""

    def __init__(
        self,
        directory: Path | None,
        *,
        part_figures: int = PART_FIGURES,
        file_bytes: int = FILE_BYTES,
        total_bytes: int = TOTAL_BYTES,
        flush_figures: int = FLUSH_FIGURES,
    ) -> None:
        self._directory = directory
        self._part_figures = part_figures
        self._file_bytes = file_bytes
        self._total_bytes = total_bytes
        self._flush_figures = flush_figures
        self._parts: dict[str, Part] = {}
        self._full: list[Part] = []
        """Parts that wait for the disk."""
        self._resting: dict[str, tuple[Header, int]] = {}
        """Revisions that lost a part when there was too much to write: the header where they stopped, and for how many
        steps more they are not recorded."""
        self._losers: dict[str, int] = {}
        """Those that have not been written since, with the write at which they lost: the earliest come first."""
        self._writing = asyncio.Lock()
        self._writes = 0
        self.fault: str | None = None
        """Why something could not be recorded lately; None if everything was."""

    def part(self, revision: Revision, decider: Decider, now: float) -> Part | None:
        """Returns the part for the step that is decided next; None if it is not recorded."""
        name = revision.id
        part = self._parts.get(name)
        if part is not None:
            if part.room > 0:
                return part
            self._full.append(part)
            return self._begun(name, decider, part.header, now, part.since_state + len(part.steps))
        if name not in self._resting:
            begins = header(revision, now, None)
            # Of a thousand revisions that begin together the parts end one by one.
            return self._begun(
                name, decider, begins, now, STATE_EVERY, room=1 + zlib.crc32(name.encode()) % self._part_figures
            )
        before, steps = self._resting[name]
        if steps > 0:
            self._resting[name] = (before, steps - 1)
            return None
        del self._resting[name]
        return self._begun(name, decider, before, now, STATE_EVERY)

    def _begun(
        self, name: str, decider: Decider, before: Header, now: float, since_state: int, room: int | None = None
    ) -> Part | None:
        """Begins a new part after ``before``."""
        state = None
        if since_state >= STATE_EVERY:
            since_state = 0
            try:
                state = decider.snapshot(name)
            except StateError as error:
                self.fault = f"{name}: {error}"
                self._parts.pop(name, None)
                return None
        begins = replace(before, at=now, part=before.part + 1, state=state)
        part = self._parts[name] = Part(begins, room or self._part_figures, since_state)
        return part

    def forget(self, revision_id: str) -> None:
        """Ends the recording of a removed revision; its files stay until the disk's bound needs the place."""
        part = self._parts.pop(revision_id, None)
        self._resting.pop(revision_id, None)
        self._losers.pop(revision_id, None)
        if part is not None:
            self._full.append(part)

    async def flush(self) -> None:
        """Writes full parts to disk, in a thread."""
        if not self._full:
            return
        async with self._writing:
            count = len(self._full)
            await asyncio.to_thread(self._write, self._chosen())
            del self._full[:count]

    def _chosen(self) -> list[Part]:
        """Returns the full parts to write. A revision that loses one rests for a while, so that all get a share, and
        begins again with its state of that time."""
        kept, left = [], self._flush_figures
        for part in sorted(self._full, key=lambda part: self._losers.get(part.revision, math.inf)):
            left -= part.figures
            name = part.revision
            if left >= 0:
                kept.append(part)
                self._losers.pop(name, None)
                continue
            self._losers.setdefault(name, self._writes)
            present = self._parts.pop(name, part)
            self._resting[name] = (present.header, STATE_EVERY)
        return kept

    def close(self) -> None:
        """Writes everything to disk, present parts too."""
        self._write([*self._full, *self._parts.values()])
        self._full.clear()
        self._parts.clear()

    # --- reading

    async def lines(self, revision_id: str) -> Iterator[bytes]:
        """Returns the recording of a revision, oldest first, in pieces of whole lines; empty if nothing was
        recorded."""
        async with self._writing:
            files = [] if self._directory is None else await asyncio.to_thread(self._read, revision_id)
            kept = [part for part in self._full if part.revision == revision_id]
        present = self._parts.get(revision_id)
        if present is not None:
            kept.append(Part(present.header, 0, steps=list(present.steps)))
        return _pieces(files, kept)

    def recorded(self, function: str) -> list[str]:
        """Returns the revisions of a function that have a recording, oldest first."""
        names = {name for name, part in self._parts.items() if part.header.function.name == function}
        names |= {part.revision for part in self._full if part.header.function.name == function}
        if self._directory is not None and self._directory.exists():
            files = self._directory.glob(f"{function}-?????{SUFFIX}*")
            names |= {path.name[: path.name.index(SUFFIX)] for path in files}
        return sorted(names)

    def _read(self, revision_id: str) -> list[bytes]:
        assert self._directory is not None
        path = self._directory / f"{revision_id}{SUFFIX}"
        return [each.read_bytes() for each in (_older(path), path) if each.exists()]

    # --- writing, in a thread

    def _write(self, parts: list[Part]) -> None:
        if self._directory is None or not parts:
            return
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for part in parts:
                if part.steps:
                    self._append(self._directory / f"{part.revision}{SUFFIX}", part)
            self._writes += 1
            if self._writes % COUNT_EVERY == 1:
                self._make_room(self._directory)
        except OSError as error:
            self.fault = f"{error}"
        else:
            self.fault = None

    def _append(self, path: Path, part: Part) -> None:
        if path.exists() and path.stat().st_size >= self._file_bytes:
            path.replace(_older(path))
        path.touch(0o600)
        with path.open("ab", buffering=0) as file:
            size, data = file.tell(), gzip.compress(part.encoded(), LEVEL, mtime=0)
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                file.truncate(size)  # half a part would hide the ones behind it
                raise

    def _make_room(self, directory: Path) -> None:
        found = sorted((path.stat().st_mtime_ns, path.stat().st_size, path) for path in directory.iterdir())
        total = sum(size for _, size, _ in found)
        for _, size, path in found:
            if total <= self._total_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size

    def __repr__(self) -> str:
        return f"<Recorder {len(self._parts)} revisions, {len(self._full)} parts to write, fault: {self.fault}>"


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _pieces(files: list[bytes], parts: list[Part]) -> Iterator[bytes]:
    for data in files:
        yield from _members(data)
    for part in parts:
        yield part.encoded()


def _members(data: bytes) -> Iterator[bytes]:
    """Yields the parts in a file; one that was cut off (a crash) ends it."""
    while data:
        member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            text = member.decompress(data)
        except zlib.error:
            return
        if not member.eof:
            return
        yield text
        data = member.unused_data
