"""The expositions of many processes as one.

Series of several processes with equal labels become one series: counters, histograms and levels add up; of ages and of
flags the largest counts. A counter of processes that share it never falls while the control process runs: what a
process has counted stays when it has ended, and while it does not answer. Series with a label of one process (worker,
replica, process) end with that process.

The texts are those of ``tidegate.metrics``: families in one piece, HELP and TYPE first.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import add
from typing import Final

from tidegate.metrics import number

LINES_A_STEP: Final = 50
TABLE: Final = 2048
LARGEST: Final = (b"oldest", b"circuit_open", b"_age_")
"""Parts of a name that mark an age or a flag."""
CUMULATIVE: Final = (b"counter", b"histogram")
ONE_PROCESS: Final = (b'worker="', b'replica="', b'process="')


class _Samples:
    """The values of a family by series (name and labels as they are written), in the order in which they came.

    They are in tables of ``TABLE`` series: one of 30,000 holds the loop for a millisecond when it grows, and again when
    it is freed."""

    __slots__ = ("tables",)

    def __init__(self) -> None:
        self.tables: list[dict[bytes, float]] = [{}]

    def items(self) -> Iterator[tuple[bytes, float]]:
        return chain.from_iterable(table.items() for table in self.tables)

    def last(self) -> dict[bytes, float]:
        """Returns the table that takes the next new series."""
        if len(self.tables[-1]) >= TABLE:
            self.tables.append({})
        return self.tables[-1]

    def taken(self) -> Iterator[tuple[bytes, float]]:
        """Yields all and drops them, a table at a time."""
        self.tables.reverse()
        while self.tables:
            yield from self.tables.pop().items()
        self.tables.append({})

    def joined(self, others: "_Samples", join: Callable[[float, float], float]) -> Iterator[None]:
        """Adds the values of ``others``; ``join`` makes one of two of the same series. Yields after some each."""
        if not any(self.tables):
            for table in others.tables:
                self.tables[-1] = dict(table)
                self.tables.append({})
                yield
            return
        found = self.tables[0]  # neighbours lie together: the table of the one before is tried first
        for count, (series, value) in enumerate(others.items(), start=1):
            before = found.get(series)
            if before is None:
                found = next((table for table in self.tables if series in table), self.tables[-1])
                if series not in found:
                    found = self.last()
                before = found.get(series)
            found[series] = value if before is None else join(before, value)
            if count % LINES_A_STEP == 0:
                yield


@dataclass(slots=True)
class _Family:
    kind: bytes
    head: bytes
    samples: _Samples = field(default_factory=_Samples)


Families = dict[bytes, _Family]
Exemplars = dict[bytes, bytes]
"""By series, as OpenMetrics writes them."""


class MergedMetrics:
    """Merges one scrape after another. ``ended``: what processes had counted that ended under an earlier control
    process, as :meth:`ended` gave it."""

    def __init__(self, ended: Mapping[str, Mapping[str, float]] | None = None) -> None:
        self.unreadable = 0
        """Processes that did not answer at the last scrape, or with no exposition."""
        self.changes = 0
        """Times that what ended processes had counted has changed."""
        self._ended: Families = {name.encode(): _Family(b"counter", b"") for name in ended or {}}
        for name, samples in (ended or {}).items():
            for series, value in samples.items():
                self._ended[name.encode()].samples.last()[series.encode()] = value
        self._living: dict[str, Families] = {}

    def ended(self) -> Iterator[bytes]:
        """Yields what processes that have ended had counted, by family and series, as JSON in parts."""
        opening = "{"
        for name, family in self._ended.items():
            yield f"{opening}{json.dumps(name.decode())}:".encode()
            inner, opening = "{", ","
            for table in family.samples.tables:
                series = tuple(table.items())
                for start in range(0, len(series), LINES_A_STEP):
                    some = {each.decode(): value for each, value in series[start : start + LINES_A_STEP]}
                    yield f"{inner}{json.dumps(some)[1:-1]}".encode()
                    inner = ","
            yield b"}" if inner == "," else b"{}"
        yield b"}" if opening == "," else b"{}"

    def steps(self, texts: Mapping[str, bytes | None], functions: Collection[str]) -> Iterator[bytes]:
        """Yields the merged text in parts, empty ones while it reads.

        ``texts``: by process, one name for each run of a program; None: it did not answer. ``functions``: those that
        are deployed; what had been counted for others is dropped.
        """
        self.unreadable = 0
        merged: Families = {}
        exemplars: Exemplars = {}
        yield from self._retire(texts.keys(), {each.encode() for each in functions})
        for process, text in texts.items():
            found: Families = {}
            try:
                if text is None:
                    raise ValueError("no answer")
                for _ in _read(text, found, exemplars):
                    yield b""
            except ValueError:
                self.unreadable += 1
                found = self._living.get(process, {})
            else:
                before = self._living.get(process, {})
                self._living[process] = {name: each for name, each in found.items() if _is_shared(each)}
                yield from _dropped(before)
            yield from _add(merged, found)
            yield from _dropped({name: each for name, each in found.items() if not _is_shared(each)})
        yield from _add(merged, self._ended)
        for family in merged.values():
            if family.head:  # None where only a process of an earlier control process had it.
                yield from _written(family, exemplars)

    def _retire(self, living: Collection[str], functions: Collection[bytes]) -> Iterator[bytes]:
        for gone in self._living.keys() - living:
            self.changes += 1
            yield from _add(self._ended, self._living.pop(gone))
        for name, family in tuple(self._ended.items()):
            for table in family.samples.tables:
                for count, series in enumerate(tuple(table), start=1):
                    function = _function(series)
                    if function is not None and function not in functions:
                        del table[series]
                        self.changes += 1
                    if count % LINES_A_STEP == 0:
                        yield b""
            if not any(family.samples.tables):
                del self._ended[name]
            yield b""


def _read(text: bytes, families: Families, exemplars: Exemplars) -> Iterator[None]:
    """Reads an exposition into ``families`` and ``exemplars``. Raises ValueError if it is none."""
    family, table, head, start, count = None, dict[bytes, float](), b"", 0, 0
    while start < len(text):
        end = text.find(b"\n", start)
        if end < 0:
            raise ValueError("the last line has no end")
        line, start = text[start:end], end + 1
        if line.startswith(b"# HELP "):
            head = line + b"\n"
        elif line.startswith(b"# TYPE "):
            _, _, name, kind = line.split(b" ")
            family = families.setdefault(name, _Family(kind, head + line + b"\n"))
            table = family.samples.last()
        elif line and not line.startswith(b"#"):
            exemplar = b""
            if b" # {" in line and b"_bucket{" in line:
                line, _, exemplar = line.rpartition(b" # {")
            series, _, value = line.rpartition(b" ")
            if family is None or not series:
                raise ValueError("a sample without a family")
            table[series] = float(value)
            if len(table) >= TABLE:
                table = family.samples.last()
            if exemplar and _second(exemplar) >= _second(exemplars.get(series, b"} 0 0")):
                exemplars[series] = exemplar
        count += 1
        if count % LINES_A_STEP == 0:
            yield


def _second(exemplar: bytes) -> float:
    """Returns the Unix time of an exemplar. Raises ValueError if it has none."""
    return float(exemplar.rpartition(b" ")[2])


def _is_shared(family: _Family) -> bool:
    """Whether the family's series are counters of several processes together; all have the same labels."""
    series, _ = next(family.samples.items(), (b"", 0.0))
    return family.kind in CUMULATIVE and not any(label in series for label in ONE_PROCESS)


def _add(merged: Families, found: Families) -> Iterator[bytes]:
    for name, family in found.items():
        into = merged.get(name)
        if into is None:
            into = merged[name] = _Family(family.kind, family.head)
        into.head = into.head or family.head
        is_largest = any(part in name for part in LARGEST)
        for _ in into.samples.joined(family.samples, max if is_largest else add):
            yield b""


def _dropped(families: Families) -> Iterator[bytes]:
    """Drops series a few at a time: to free a hundred thousand at once takes 10 ms."""
    for family in families.values():
        for count, _ in enumerate(family.samples.taken(), start=1):
            if count % LINES_A_STEP == 0:
                yield b""


def _written(family: _Family, exemplars: Exemplars) -> Iterator[bytes]:
    """Yields the lines of a family, which has no samples afterwards; of equal series the newest exemplar counts."""
    lines = [family.head]
    for series, value in family.samples.taken():
        exemplar = exemplars.get(series) if exemplars else None
        mark = b"" if exemplar is None else b" # {" + exemplar
        lines.append(b"%s %s%s\n" % (series, number(int(value) if value.is_integer() else value).encode(), mark))
        if len(lines) >= LINES_A_STEP:
            yield b"".join(lines)
            lines = []
    yield b"".join(lines)


def _function(series: bytes) -> bytes | None:
    """Returns the label ``function`` of a series; names of functions need no escapes."""
    _, found, rest = series.partition(b'function="')
    return rest.partition(b'"')[0] if found else None
