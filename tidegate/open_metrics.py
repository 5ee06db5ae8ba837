"""The forms of an exposition, made from one: Prometheus text with exemplars, as ``tidegate.metrics`` renders it.

OpenMetrics 1.0 differs from Prometheus text 0.0.4 in four things that matter here: a counter's family has no
``_total``, bounds of buckets are floating-point numbers, quotes in help texts are escaped, and ``# EOF`` ends it. Only
OpenMetrics has exemplars.
"""

import re
from collections.abc import AsyncIterator
from enum import Enum

from tidegate.metrics import CONTENT_TYPE

_FAMILY = re.compile(rb"^# (HELP|TYPE) (\S+?)(?:_total)? (.*)$", re.MULTILINE)
_WHOLE_BOUND = re.compile(rb'([{,]le="[0-9]+)"\}')
_EXEMPLAR = re.compile(rb"^(\S*_bucket\{.*\} [0-9]+) # \{trace_id=.*$", re.MULTILINE)


class Form(Enum):
    """Forms of an exposition; the values are their content types."""

    TEXT = CONTENT_TYPE
    OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    MERGING = "text/plain; version=0.0.4; charset=utf-8; exemplars=yes"
    """Between Tidegate's processes: text, with the exemplars as OpenMetrics writes them."""


def form_of(accept: str) -> Form:
    """Returns the form that a scraper's ``Accept`` asks for: OpenMetrics if it is preferred to text."""
    best = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for part in accept.lower().split(","):
        media, *parameters = (each.strip() for each in part.split(";"))
        stated = dict(each.partition("=")[::2] for each in parameters)
        if media not in best or (media != "text/plain" and stated.get("version", "1.0.0") not in ("1.0.0", "0.0.1")):
            continue
        try:
            quality = float(stated.get("q", "1"))
        except ValueError:
            continue
        best[media] = max(best[media], quality)
    return Form.OPEN_METRICS if best["application/openmetrics-text"] > best["text/plain"] else Form.TEXT


async def formed(parts: AsyncIterator[bytes], form: Form) -> AsyncIterator[bytes]:
    """Yields the exposition in this form; each part must consist of whole lines."""
    async for part in parts:
        yield part_in(part, form)
    if form is Form.OPEN_METRICS:
        yield b"# EOF\n"


def part_in(part: bytes, form: Form) -> bytes:
    """Returns some lines of an exposition in this form, without the end mark."""
    if form is Form.OPEN_METRICS:
        return _WHOLE_BOUND.sub(rb'\1.0"}', _FAMILY.sub(_head, part))
    if form is Form.TEXT and b" # {" in part:
        return _EXEMPLAR.sub(rb"\1", part)
    return part


def _head(line: re.Match[bytes]) -> bytes:
    kind, name, rest = line.groups()
    return b"# %b %b %b" % (kind, name, rest.replace(b'"', b'\\"') if kind == b"HELP" else rest)
