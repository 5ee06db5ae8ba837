"""Rows of the tables of annotations and settings, and the kinds of their values.

A row states everything about one key that people can write: the kind and bounds of its value, the default, the field
that it fills, and one sentence of description. Parsing, the text of faults, command-line flags and the reference pages
come from the rows; there is no second list.
"""

import difflib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from ipaddress import ip_network
from typing import Any, Final, Protocol, TypeVar

from tidegate.errors import suggestion
from tidegate.schema import units
from tidegate.schema.units import UnreadableError

NAME: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
"""A DNS label."""

MAX_PERCENTS: Final = 20
"""Maximum length of a list of rising percents (steps of a canary). Our choice."""

T = TypeVar("T")


class Kind(Protocol):
    """A kind of value: reads a text, and states the allowed values in words."""

    @property
    def allowed(self) -> str: ...

    @property
    def unit(self) -> str:
        """Unit of the value once read; empty for a value without unit."""
        ...

    def read(self, text: str) -> Any:
        """Returns the value; raises UnreadableError."""
        ...


def _bounds(low: str, high: str | None) -> str:
    return f"{low} or more" if high is None else f"{low} to {high}"


def _check(value: float, low: float, high: float | None, text: str) -> None:
    if value < low or (high is not None and value > high):
        raise UnreadableError(text)


@dataclass(frozen=True, slots=True)
class Whole:
    low: int
    high: int | None = None
    unit: str = ""

    @property
    def allowed(self) -> str:
        return f"a whole number, {_bounds(str(self.low), None if self.high is None else str(self.high))}"

    def read(self, text: str) -> int:
        value = units.whole(text)
        _check(value, self.low, self.high, text)
        return value


@dataclass(frozen=True, slots=True)
class Number:
    """A number. With ``above`` the lower bound itself is not allowed."""

    low: float
    high: float | None = None
    unit: str = ""
    above: bool = False

    @property
    def allowed(self) -> str:
        if not self.above:
            return f"a number, {_bounds(units.plain(self.low), None if self.high is None else units.plain(self.high))}"
        upper = "" if self.high is None else f", at most {units.plain(self.high)}"
        return f"a number above {units.plain(self.low)}{upper}"

    def read(self, text: str) -> float:
        value = units.number(text)
        _check(value, self.low, self.high, text)
        if self.above and value == self.low:
            raise UnreadableError(text)
        return value


@dataclass(frozen=True, slots=True)
class Percent:
    low: float
    high: float
    whole: bool = False
    unit: str = "%"

    @property
    def allowed(self) -> str:
        kind = "whole percent" if self.whole else "percent"
        return f"{kind}, {units.plain(self.low)} to {units.plain(self.high)}"

    def read(self, text: str) -> float:
        value = units.whole(text.removesuffix("%")) if self.whole else units.percent(text)
        _check(value, self.low, self.high, text)
        return value


@dataclass(frozen=True, slots=True)
class Duration:
    """A duration in seconds. ``bare`` is the unit of a number without one; with None a unit is required."""

    low_s: float
    high_s: float
    bare: str | None = None
    unit: str = "s"

    @property
    def allowed(self) -> str:
        low, high = units.show_duration(self.low_s), units.show_duration(self.high_s)
        bare = "" if self.bare is None else f"; a bare number is {self.bare}"
        return f"a duration, {low} to {high} (units us, ms, s, m, h{bare})"

    def read(self, text: str) -> float:
        value = units.duration(text, bare=self.bare)
        _check(value, self.low_s, self.high_s, text)
        return value


@dataclass(frozen=True, slots=True)
class Size:
    low: int
    high: int
    unit: str = "bytes"

    @property
    def allowed(self) -> str:
        low, high = units.show_size(self.low), units.show_size(self.high)
        return f"a size, {low} to {high} (bytes, or Ki, Mi, Gi, Ti, kB, MB, GB, TB)"

    def read(self, text: str) -> int:
        value = units.size(text)
        _check(value, self.low, self.high, text)
        return value


@dataclass(frozen=True, slots=True)
class Gigabytes:
    low: float
    high: float
    unit: str = "GB"

    @property
    def allowed(self) -> str:
        return f"gigabytes, {units.plain(self.low)} to {units.plain(self.high)} (16, 16GB, 16Gi)"

    def read(self, text: str) -> float:
        value = units.gigabytes(text)
        _check(value, self.low, self.high, text)
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the words of an enum."""

    words: type[StrEnum]
    unit: str = ""

    @property
    def allowed(self) -> str:
        return ", ".join(word.value for word in self.words)

    def read(self, text: str) -> StrEnum:
        for word in self.words:
            if word.value == text:
                return word
        raise UnreadableError(text)


@dataclass(frozen=True, slots=True)
class YesNo:
    unit: str = ""

    @property
    def allowed(self) -> str:
        return "true or false"

    def read(self, text: str) -> bool:
        return units.yes_or_no(text)


@dataclass(frozen=True, slots=True)
class Text:
    """A text of a given shape, which ``allowed`` states in words."""

    pattern: str
    allowed: str
    unit: str = ""
    lower: bool = False
    """Case has no meaning; the value is kept in lower case."""

    def read(self, text: str) -> str:
        if not re.fullmatch(self.pattern, text):
            raise UnreadableError(text)
        return text.lower() if self.lower else text


@dataclass(frozen=True, slots=True)
class WordOr:
    """A word that stands for None (``auto``, ``none``), or a value of another kind."""

    word: str
    kind: Kind

    @property
    def allowed(self) -> str:
        return f"{self.word or 'empty'}, or {self.kind.allowed}"

    @property
    def unit(self) -> str:
        return self.kind.unit

    def read(self, text: str) -> Any:
        return None if text == self.word else self.kind.read(text)


@dataclass(frozen=True, slots=True)
class Checked:
    """A text that is kept as written once ``check`` has accepted it (parameters of policies)."""

    check: Callable[[str], bool]
    """May raise UnreadableError as well as return False."""
    allowed: str
    unit: str = ""

    def read(self, text: str) -> str:
        if not self.check(text):
            raise UnreadableError(text)
        return text


@dataclass(frozen=True, slots=True)
class RisingPercents:
    """Rising percents: ``1,5,25,50``."""

    unit: str = "%"

    @property
    def allowed(self) -> str:
        return f"1 to {MAX_PERCENTS} rising percents above 0 and below 100 (1,5,25,50), or none"

    def read(self, text: str) -> tuple[float, ...]:
        if text.strip() == "none":
            return ()
        kind = Percent(0, 100)
        steps = tuple(kind.read(part.strip()) for part in text.split(","))
        rising = all(one < other for one, other in itertools.pairwise(steps))
        if not rising or len(steps) > MAX_PERCENTS or not 0 < steps[0] <= steps[-1] < 100:
            raise UnreadableError(text)
        return steps


@dataclass(frozen=True, slots=True)
class WholeSeconds:
    """A duration without a fraction of a second."""

    kind: Duration
    unit: str = "s"

    @property
    def allowed(self) -> str:
        return f"{self.kind.allowed}, whole seconds"

    def read(self, text: str) -> float:
        value = self.kind.read(text)
        if value != int(value):
            raise UnreadableError(text)
        return value


@dataclass(frozen=True, slots=True)
class Address:
    """An address to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


_HOST: Final = re.compile(r"(?:\[([0-9a-fA-F:.]{2,45})\]|([A-Za-z0-9._-]{1,253})):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Listen:
    unit: str = ""

    @property
    def allowed(self) -> str:
        return "HOST:PORT (127.0.0.1:8080, [::1]:8080), port 0 for any free one"

    def read(self, text: str) -> Address:
        found = _HOST.fullmatch(text)
        if found is None or int(found[3]) > 65535:
            raise UnreadableError(text)
        return Address(found[1] or found[2], int(found[3]))


@dataclass(frozen=True, slots=True)
class Networks:
    """Addresses and networks, separated by commas."""

    unit: str = ""

    @property
    def allowed(self) -> str:
        return "addresses or networks (10.0.0.0/8, ::1)"

    def read(self, text: str) -> tuple[str, ...]:
        parts = tuple(part.strip(" ") for part in text.split(",")) if text else ()
        for part in parts:
            try:
                ip_network(part)
            except ValueError as error:
                raise UnreadableError(text) from error
        return parts


@dataclass(frozen=True, slots=True)
class Words:
    """Words of one pattern, separated by commas. ``words`` describes them, for messages."""

    pattern: str
    words: str
    may_be_empty: bool = True
    unit: str = ""

    @property
    def allowed(self) -> str:
        return f"{self.words}, separated by commas"

    def read(self, text: str) -> tuple[str, ...]:
        parts = tuple(part.strip(" ") for part in text.split(",")) if text else ()
        if not all(re.fullmatch(self.pattern, part) for part in parts) or not (parts or self.may_be_empty):
            raise UnreadableError(text)
        return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One key that people can write. ``default`` is the text of the default value, or None without a default."""

    key: str
    kind: Kind
    field: str
    """Path of the field that it fills, from the record's root: ``sla.latency_s``."""
    description: str
    default: str | None = None
    default_words: str = ""
    """The default in words, if it depends on other keys."""
    aliases: tuple[str, ...] = ()
    topic: str = ""

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return "--" + self.key.replace(".", "-")

    def accepts(self, text: str) -> bool:
        """Returns whether ``text`` is an allowed value."""
        return accepts(self.kind, text)

    @property
    def spellings(self) -> tuple[str, ...]:
        """All spellings of the key; the first is the preferred one."""
        return tuple(dict.fromkeys((self.key, camel(self.key), *self.aliases)))


def accepts(kind: Kind, text: str) -> bool:
    """Returns whether ``text`` is of the kind."""
    try:
        kind.read(text)
    except UnreadableError:
        return False
    return True


def allowed_for(kind: Kind, text: str) -> str:
    """Returns the allowed values for a text that is not of the kind, and the value that it probably means: ``0.98`` for
    a percentile of 98, ``60`` for 60s, ``yes`` for true."""
    return kind.allowed + suggested(kind, text)


def suggested(kind: Kind, text: str) -> str:
    """Returns the suggestion of :func:`allowed_for` alone; empty if there is none."""
    meant = next((each for each in _candidates(kind, text.strip()) if each != text and accepts(kind, each)), None)
    return "" if meant is None else suggestion(meant)


_UNIT_WORDS: Final = {
    "ms": ("ms", "msec", "msecs", "millisecond", "milliseconds", "millis"),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
}
_WORDS_OF: Final = {"true": ("true", "yes", "on", "1"), "false": ("false", "no", "off", "0")}
_AMOUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z%]*)")


def _candidates(kind: Kind, text: str) -> Iterator[str]:
    """Yields texts that ``text`` may have meant, the likeliest first."""
    if isinstance(kind, WordOr):
        yield from _candidates(kind.kind, text)
        yield text.lower()
        return
    if isinstance(kind, YesNo):
        yield from (known for known, words in _WORDS_OF.items() if text.lower() in words)
    if isinstance(kind, Choice):
        yield text.lower().replace("_", "-")
        yield from difflib.get_close_matches(text[:64], [word.value for word in kind.words], n=1, cutoff=0.6)
    if isinstance(kind, Listen):
        bare = re.sub("^https?://", "", text).rstrip("/")
        yield bare
        yield f"127.0.0.1:{bare.removeprefix(':')}"
    if isinstance(kind, Whole | Number):
        yield re.sub(r"(?<=[0-9])[_,](?=[0-9]{3})", "", text)
        yield re.sub(r"\.0+$", "", text)
    found = _AMOUNT.fullmatch(text)
    if found is None:
        return
    amount, unit = found[1], found[2]
    if kind.unit == "%" and not unit and float(amount) <= 1:
        yield units.plain(round(100 * float(amount), 9))
    if isinstance(kind, Duration | WholeSeconds) or (isinstance(kind, Checked) and "duration" in kind.allowed):
        yield from (amount + short for short, words in _UNIT_WORDS.items() if unit.lower() in words)
        if not unit:
            yield f"{amount}s"
    if isinstance(kind, Size | Gigabytes) and unit:
        known = [each for each in units.BYTES if each.lower() == unit.lower()]
        guess = [f"{unit[0].upper()}i"] if len(unit) <= 3 else []
        yield from (amount + each for each in (*known, *guess))


def camel(key: str) -> str:
    """Returns the camelCase spelling: ``min-scale`` -> ``minScale``."""
    first, *others = key.split("-")
    return first + "".join(word.capitalize() for word in others)


def by_spelling(rows: tuple[Row, ...]) -> dict[str, Row]:
    return {spelling: row for row in rows for spelling in row.spellings}


def assemble(start: T, values: Mapping[str, object]) -> T:
    """Returns a copy of the record ``start`` with the fields at the dotted paths replaced."""
    changes: dict[str, Any] = {}
    inner: dict[str, dict[str, object]] = {}
    for path, value in values.items():
        head, dot, tail = path.partition(".")
        if dot:
            inner.setdefault(head, {})[tail] = value
        else:
            changes[head] = value
    for head, below in inner.items():
        changes[head] = assemble(changes.get(head, getattr(start, head)), below)
    return replace(start, **changes)  # type: ignore[type-var]  # T is a dataclass in every use


def reach(record: object, path: str) -> Any:
    """Returns the field at a dotted path."""
    for name in path.split("."):
        record = getattr(record, name)
    return record
