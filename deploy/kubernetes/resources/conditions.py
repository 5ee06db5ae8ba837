"""The kinds of values of a manifest as conditions in CEL, which the API server checks.

A condition accepts every text that the kind reads. It refuses all others, but for what CEL cannot say in a line:
whether percents rise, the length of a list, whether a size is a whole number of bytes, and the texts of
:class:`~tidegate.schema.rows.Checked`. The reader of manifests checks those.
"""

import re
from typing import Final

from tidegate.manifest.routing import FIELD_NAME, GroupWeights, HashOn, HedgeAfter
from tidegate.schema.rows import (
    Choice,
    Duration,
    Gigabytes,
    Kind,
    Number,
    Percent,
    RisingPercents,
    Size,
    Text,
    Whole,
    WholeSeconds,
    WordOr,
    YesNo,
)
from tidegate.schema.units import BYTES, SECONDS, plain

MAX_REPEAT: Final = 1000
"""Largest count in a regular expression of Go."""

_WHOLE: Final = "(?:0|[1-9][0-9]{0,17})"
_NUMBER: Final = rf"{_WHOLE}(?:\.[0-9]{{1,18}})?"
_HEADER: Final = HashOn().allowed
_SCALES: Final = ", ".join(f"'{unit}': {float(scale)}" for unit, scale in BYTES.items())
_REPEATED: Final = re.compile(r"(\[(?:\\.|[^\]\\])*\]|\.)\{([0-9]+),([0-9]+)\}")
_REPEATED_GROUP: Final = re.compile(r"\)\{([01]),[0-9]+\}")
_LOOK_AHEAD: Final = re.compile(r"\(\?([=!])((?:[^()]|\([^()]*\))*)\)")


def condition(kind: Kind, text: str) -> str | None:
    """Returns the condition in CEL under which ``text``, an expression of a string, is of the kind. None: any is."""
    match kind:
        case Whole():
            return _both(matches(_WHOLE, text), _within(f"int({text})", str(kind.low), _bound(kind.high)))
        case Number():
            return _both(matches(_NUMBER, text), _numbers(f"double({text})", kind.low, kind.high, above=kind.above))
        case Percent():
            pattern = f"{_WHOLE if kind.whole else _NUMBER}%?"
            return _both(matches(pattern, text), _numbers(f"double({text}.replace('%', ''))", kind.low, kind.high))
        case Duration():
            return _duration(kind, text)
        case WholeSeconds():
            whole = f"duration({text}) == duration(string(duration({text}).getSeconds()) + 's')"
            return _both(_duration(kind.kind, text), whole)
        case Size():
            return _amount(text, "", float(kind.low), float(kind.high))
        case Gigabytes():
            return _amount(text, "GB", kind.low * 1e9, kind.high * 1e9)
        case Choice():
            return _one_of([word.value for word in kind.words], text)
        case YesNo():
            return _one_of(["true", "false"], text)
        case Text():
            return matches(kind.pattern, text)
        case WordOr():
            inner = condition(kind.kind, text)
            return None if inner is None else _either(f"{text} == {literal(kind.word)}", inner)
        case RisingPercents():
            return matches(rf" *none *| *{_NUMBER}%? *(?:, *{_NUMBER}%? *)*", text)
        case HashOn():
            words = _HEADER.partition(", header:")[0].split(", ")
            return _either(_one_of(words, text), matches(f"(?:header|cookie):{FIELD_NAME.pattern}", text))
        case HedgeAfter():
            percentile = _both(f"{text}.startsWith('p')", condition(Percent(1, 99.999), f"{text}.substring(1)") or "")
            return _either(percentile, _duration(Duration(kind.low_s, kind.high_s), text))
        case GroupWeights():
            pair = rf" *[A-Za-z0-9][A-Za-z0-9._-]{{0,62}}={_NUMBER} *"
            return _either(_one_of(["learnt", "equal"], text), matches(f"{pair}(?:,{pair})*", text))
        case _:
            return None


def _duration(kind: Duration, text: str) -> str:
    units = "|".join(SECONDS)
    read, pattern = text, f"{_NUMBER}(?:{units})"
    if kind.bare is not None:
        pattern = f"{pattern}?"
        read = f"({text}.matches('[0-9]$') ? {text} + '{kind.bare}' : {text})"
    low, high = f"duration('{plain(kind.low_s)}s')", f"duration('{plain(kind.high_s)}s')"
    return _both(matches(pattern, text), _within(f"duration({read})", low, high))


def _amount(text: str, bare: str, low: float, high: float) -> str:
    """Returns the condition of a size: its number by the scale of its unit. ``bare`` is the unit of a number alone."""
    units = "|".join(unit for unit in BYTES if unit)
    unit = f"{text}.find('[A-Za-z]*$')"
    if bare:
        unit = f"({unit} == '' ? '{bare}' : {unit})"
    value = f"double({text}.find('^[0-9.]+')) * {{{_SCALES}}}[{unit}]"
    return _both(matches(f"{_NUMBER}(?:{units})?", text), _within(value, repr(low), repr(high)))


def _numbers(value: str, low: float, high: float | None, *, above: bool = False) -> str:
    return _within(value, repr(float(low)), None if high is None else repr(float(high)), above=above)


def _within(value: str, low: str, high: str | None, *, above: bool = False) -> str:
    found = f"{value} {'>' if above else '>='} {low}"
    return found if high is None else f"{found} && {value} <= {high}"


def _bound(value: int | None) -> str | None:
    return None if value is None else str(value)


def _both(one: str, other: str) -> str:
    return f"{one} && {other}"


def _either(one: str, other: str) -> str:
    return f"({one} || ({other}))"


def _one_of(words: list[str], text: str) -> str:
    return f"{text} in [{', '.join(map(literal, words))}]"


def matches(pattern: str, text: str) -> str:
    """Returns the condition that all of ``text`` matches a pattern of Python's.

    Go has no look-ahead: one at the beginning of the pattern becomes a condition of its own. It repeats nothing more
    than 1,000 times: a larger count is written as several; that of a group that repeats something becomes any number.
    """
    parts = []
    while found := _LOOK_AHEAD.match(pattern):
        beginning = f"{text}.matches({literal(f'^(?:{found[2]})')})"
        parts.append(beginning if found[1] == "=" else f"!{beginning}")
        pattern = pattern[found.end() :]
    pattern = _REPEATED_GROUP.sub(lambda group: ")*" if group[1] == "0" else ")+", pattern)
    pattern = _REPEATED.sub(_split, pattern)
    return " && ".join([*parts, f"{text}.matches({literal(f'^(?:{pattern})$')})"])


def _split(repeated: re.Match[str]) -> str:
    """Returns ``[a-z]{0,1000}[a-z]{0,23}`` for ``[a-z]{0,1023}``."""
    what, low, high = repeated[1], int(repeated[2]), int(repeated[3])
    if high <= MAX_REPEAT:
        return repeated[0]
    more, rest = divmod(high - MAX_REPEAT, MAX_REPEAT)
    counts = [f"{{{low},{MAX_REPEAT}}}", *[f"{{0,{MAX_REPEAT}}}"] * more, *([f"{{0,{rest}}}"] if rest else [])]
    return "".join(what + count for count in counts)


def literal(text: str) -> str:
    """Returns a text as a literal of CEL, raw if it has backslashes."""
    raw = "r" if "\\" in text else ""
    quote = next(quote for quote in ("'", '"', "'''") if quote not in text)
    return f"{raw}{quote}{text}{quote}"
