"""Readers of traces: lines of a file in, arrivals or counts out, one by one: memory does not grow with a trace.

Formats, distinguished by :class:`Format`:

========= ===========================================================================================================
counts    a whole number per line: the requests of one second (the Twitter trace's form); ``#`` begins a remark
azure-llm ``TIMESTAMP,ContextTokens,GeneratedTokens`` (Azure's LLM inference traces of 2023 and 2024)
azure-fn  ``HashOwner,HashApp,HashFunction,Trigger,1,...,1440``: invocations a minute (Azure Functions 2019)
jsonl     an object per line: ``at`` (seconds), and if they are known ``inferences``, ``prompt_tokens``,
          ``completion_tokens``, ``function``
========= ===========================================================================================================

What cannot be read becomes a fault with its line; reading goes on behind it, so that all of them are reported at once.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.schema.yaml_nodes import Faults, nearest, shown

MAX_COUNT: Final = 10_000_000
"""Maximum requests of one second or minute."""
MAX_TOKENS: Final = 100_000_000
MAX_INFERENCES: Final = 1_000_000
MINUTES: Final = 1440
MAX_SECONDS: Final = 1e10
_LLM_HEAD: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_FUNCTION_HEAD: Final = ("HashOwner", "HashApp", "HashFunction", "Trigger")
_JSON_KEYS: Final = frozenset({"at", "inferences", "prompt_tokens", "completion_tokens", "function"})

Lines = Iterable[str]


class Format(StrEnum):
    COUNTS = "counts"
    AZURE_LLM = "azure-llm"
    AZURE_FUNCTIONS = "azure-fn"
    JSON_LINES = "jsonl"


def format_of(first_line: str) -> Format:
    """Returns the format of a trace by its first line."""
    if first_line.startswith(_LLM_HEAD[0] + ","):
        return Format.AZURE_LLM
    if first_line.startswith(_FUNCTION_HEAD[0] + ","):
        return Format.AZURE_FUNCTIONS
    return Format.JSON_LINES if first_line.lstrip().startswith("{") else Format.COUNTS


def counts(lines: Lines, faults: Faults) -> Iterator[int]:
    """Yields the requests of each second. A line without a number in the middle of the trace is a fault: it may be a
    gap."""
    blank: int | None = None
    seconds, number = 0, 1
    for number, line in enumerate(lines, 1):
        word = line.strip()
        if word.startswith("#"):
            continue
        if not word:
            blank = blank or number
            continue
        if blank is not None and seconds:
            faults.report("trace", "an empty line", "a number in each line: 0 for a second without requests", blank)
        blank = None
        seconds += 1
        if word.isascii() and word.isdigit() and len(word) < 9 and int(word) <= MAX_COUNT:
            yield int(word)
        else:
            faults.add("trace", word, f"a whole number, 0 to {MAX_COUNT}: the requests of one second", number)
    if not seconds and not len(faults):
        faults.report("trace", "nothing", "at least one second", number)


def azure_llm(lines: Lines, faults: Faults) -> Iterator[Arrival]:
    """Yields requests with their tokens; times count from the first request."""
    began = last = -math.inf
    number = 1
    for number, line in _rows(lines, _LLM_HEAD, faults):
        fields = line.split(",")
        if len(fields) != len(_LLM_HEAD):
            faults.report("row", f"{len(fields)} fields", ",".join(_LLM_HEAD), number)
            continue
        at, asked, given = _seconds(fields[0]), _whole(fields[1], MAX_TOKENS), _whole(fields[2], MAX_TOKENS)
        if at is None:
            faults.add("TIMESTAMP", fields[0], "a time such as 2023-11-16 18:15:46.6805900", number)
        if asked is None:
            faults.add("ContextTokens", fields[1], f"a whole number, 0 to {MAX_TOKENS}", number)
        if given is None:
            faults.add("GeneratedTokens", fields[2].strip(), f"a whole number, 0 to {MAX_TOKENS}", number)
        if at is None or asked is None or given is None:
            continue
        if at < last:
            faults.report(
                "TIMESTAMP", f"{fields[0]}, {last - at:.3f} s before the line above", "times that rise", number
            )
            continue
        if last == -math.inf:
            began = at
        last = at
        yield Arrival(at - began, 1, asked, given)
    if last == -math.inf and not len(faults):
        faults.report("trace", "no requests", "at least one row", number)


def azure_functions(lines: Lines, faults: Faults) -> Iterator[tuple[str, list[int]]]:
    """Yields (name, invocations of each minute of a day) of each function."""
    found, number = False, 1
    width = len(_FUNCTION_HEAD) + MINUTES
    for number, line in _rows(lines, _FUNCTION_HEAD, faults):
        fields = line.split(",")
        if len(fields) != width:
            faults.report("row", f"{len(fields)} fields", f"{width}: four names and {MINUTES} minutes", number)
            continue
        minutes = [_whole(field, MAX_COUNT) for field in fields[len(_FUNCTION_HEAD) :]]
        wrong = [at for at, minute in enumerate(minutes) if minute is None]
        for at in wrong[:3]:
            text = fields[len(_FUNCTION_HEAD) + at].strip()
            faults.add(f"minute {at + 1}", text, f"a whole number, 0 to {MAX_COUNT}", number)
        if not wrong:
            found = True
            yield fields[2], [minute or 0 for minute in minutes]
    if not found and not len(faults):
        faults.report("trace", "no functions", "at least one row", number)


def json_lines(lines: Lines, faults: Faults) -> Iterator[Arrival]:
    """Yields requests from objects, one per line."""
    last: float | None = None
    number = 1
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        arrival = _object(line, number, faults)
        if arrival is None:
            continue
        if last is not None and arrival.at_s < last:
            faults.report("at", f"{arrival.at_s:g}, before the line above at {last:g}", "times that rise", number)
            continue
        last = arrival.at_s
        yield arrival
    if last is None and not len(faults):
        faults.report("trace", "no requests", "at least one object with `at`", number)


def _object(line: str, number: int, faults: Faults) -> Arrival | None:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError):
        faults.add("line", line.strip(), 'an object such as {"at": 1.5, "inferences": 4}', number)
        return None
    if not isinstance(record, dict):
        faults.report("line", f"a {type(record).__name__}", "an object", number)
        return None
    before = len(faults)
    for key in sorted(record.keys() - _JSON_KEYS):
        faults.report(
            shown(key), "an unknown key", f"{', '.join(sorted(_JSON_KEYS))}{nearest(key, _JSON_KEYS)}", number
        )
    at = record.get("at", -1)
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < MAX_SECONDS:
        given = shown(str(at)) if "at" in record else "nothing"
        faults.report("at", given, f"seconds after the beginning, 0 to {MAX_SECONDS:.0e}", number)
        at = 0.0
    whole = {
        key: _member(record, key, low, most, default, number, faults)
        for key, low, most, default in (
            ("inferences", 1, MAX_INFERENCES, 1),
            ("prompt_tokens", 0, MAX_TOKENS, 0),
            ("completion_tokens", 0, MAX_TOKENS, 0),
        )
    }
    function = record.get("function", "")
    if not isinstance(function, str) or len(function) > 200:
        faults.report("function", shown(str(function)), "a name", number)
    if len(faults) > before:
        return None
    return Arrival(float(at), whole["inferences"], whole["prompt_tokens"], whole["completion_tokens"], function)


def _member(record: dict[str, Any], key: str, low: int, most: int, default: int, number: int, faults: Faults) -> int:
    value = record.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= most:
        faults.report(key, shown(str(value)), f"a whole number, {low} to {most}", number)
        return default
    return value


def _rows(lines: Lines, head: tuple[str, ...], faults: Faults) -> Iterator[tuple[int, str]]:
    """Yields (number, text) of the rows after the head, without empty lines at the end."""
    blank: int | None = None
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")
        if number == 1:
            if tuple(text.lstrip("\ufeff").split(",")[: len(head)]) != head:
                faults.add("head", text, ",".join(head), 1)
            continue
        if not text.strip():
            blank = blank or number
            continue
        if blank is not None:
            faults.report("trace", "an empty line", "a row in each line", blank)
            blank = None
        yield number, text


def _whole(text: str, most: int) -> int | None:
    word = text.strip()
    if not (word.isascii() and word.isdigit() and len(word) <= 9):
        return None
    value = int(word)
    return value if value <= most else None


def _seconds(text: str) -> float | None:
    """Returns the Unix time of a UTC time with up to seven fractional digits, as Azure writes them; None if
    unreadable."""
    whole, _, fraction = text.strip().partition(".")
    fraction = fraction.removesuffix("+00:00").removesuffix("Z")
    if fraction and not (fraction.isascii() and fraction.isdigit() and len(fraction) <= 9):
        return None
    whole = whole.removesuffix("+00:00").removesuffix("Z")
    if len(whole) != len("2023-11-16 18:15:46"):
        return None
    try:
        moment = datetime.fromisoformat(f"{whole}+00:00")
    except ValueError:
        return None
    return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


READERS: Final[dict[Format, Callable[[Lines, Faults], Iterator[Any]]]] = {
    Format.COUNTS: counts,
    Format.AZURE_LLM: azure_llm,
    Format.AZURE_FUNCTIONS: azure_functions,
    Format.JSON_LINES: json_lines,
}
