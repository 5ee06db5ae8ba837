"""A reader of the few wanted series in Prometheus and OpenMetrics text. Pure, bounded, light.

It is strict with samples (a malformed one is counted and left out) and tolerant of the rest (unknown names, comments,
timestamps, exemplars, ``# EOF``, a comma after the last label, CRLF). A line of another name costs one look-up.
:func:`scan` works in parts, so that a large text delays no request for long.
"""

import re
from collections.abc import Container, Generator, Mapping
from dataclasses import dataclass, field
from typing import Final

MAX_BYTES: Final = 4 << 20
MAX_LINES: Final = 50_000
MAX_SAMPLES: Final = 2_000
"""Samples of wanted names: eleven figures over dozens of models or label values."""
LINE_BYTES: Final = 16 << 10
PART: Final = 200
"""Lines between two pauses: about 0.2 ms."""

_NAME: Final = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*+")
_REST: Final = re.compile(
    rb"""
    (?: [ \t]*+ \{ ( (?: [^"{}] | "(?: [^"\\] | \\. )*+" )*+ ) \} [ \t]*+ | [ \t]++ )
    ( [+-]? (?: [0-9]++ (?: \.[0-9]*+ )? | \.[0-9]++ ) (?: [eE][+-]?[0-9]++ )? | [+-]?[Ii]nf | [Nn]a[Nn] )
    (?: [ \t]++ -?[0-9]++ (?: \.[0-9]*+ )? (?: [eE][+-]?[0-9]++ )? )?
    [ \t]*+ (?: \#\ [^\n]*+ )? \r? \Z
    """,
    re.VERBOSE,
)
_LABEL: Final = re.compile(
    rb'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]|\\.)*+)"[ \t]*+(?:,[ \t]*+|\Z)'
)
_ESCAPES: Final = re.compile(r"\\(.)")


class ExpositionError(Exception):
    """The whole text is refused. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    key: bytes
    """The labels as written. They distinguish the series of one name."""
    value: float
    """The value as written, including NaN, infinities and negative numbers."""

    def labels(self) -> Mapping[str, str]:
        return read_labels(self.key) or {}


@dataclass(slots=True)
class Scan:
    """The content of one text."""

    samples: list[Sample] = field(default_factory=list)
    lines: int = 0
    others: int = 0
    """Lines of names that are not wanted. The rest of such a line is not read."""
    malformed: int = 0


def scan(text: bytes, wanted: Container[bytes]) -> Generator[None, None, Scan]:
    """Reads ``text`` and yields after every ``PART`` lines. Raises ExpositionError if a bound is exceeded."""
    if len(text) > MAX_BYTES:
        raise ExpositionError(f"more than {MAX_BYTES} bytes")
    found, at, end = Scan(), 0, len(text)
    while at < end:
        stop = text.find(b"\n", at)
        stop = end if stop < 0 else stop
        found.lines += 1
        if found.lines > MAX_LINES:
            raise ExpositionError(f"more than {MAX_LINES} lines")
        if text.startswith(b"# EOF", at):
            break
        _line(text, at, stop, wanted, found)
        if not found.lines % PART:
            yield
        at = stop + 1
    return found


def _line(text: bytes, at: int, stop: int, wanted: Container[bytes], found: Scan) -> None:
    name = _NAME.match(text, at, stop)
    if name is None:
        if text[at : at + 1] not in (b"#", b"") and text[at : min(stop, at + 64)].strip():
            found.malformed += 1
        return
    if name[0] not in wanted:
        found.others += 1
        return
    rest = _REST.match(text, name.end(), stop) if stop - at <= LINE_BYTES else None
    if rest is None or (rest[1] is not None and read_labels(rest[1]) is None):
        found.malformed += 1
        return
    if len(found.samples) >= MAX_SAMPLES:
        raise ExpositionError(f"more than {MAX_SAMPLES} series of the names that are read")
    found.samples.append(Sample(name[0].decode("ascii"), rest[1] or b"", float(rest[2])))


def read_labels(text: bytes) -> Mapping[str, str] | None:
    """Returns the labels between the braces. Returns None if they are malformed or a name occurs twice."""
    labels: dict[str, str] = {}
    at = 0
    while at < len(text) and (at or text.strip(b" \t")):
        pair = _LABEL.match(text, at)
        if pair is None:
            return None
        name, at = pair[1].decode("ascii"), pair.end()
        if name in labels:
            return None
        labels[name] = _ESCAPES.sub(
            lambda found: "\n" if found[1] == "n" else found[1], pair[2].decode("utf-8", "replace")
        )
    return labels
