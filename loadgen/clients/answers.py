"""Readers of answer bodies: nothing for most, output times for streams, the code for failures."""

import json
import re
from typing import Final, Protocol

from tidegate.loadgen.clients.call import BROKEN, Call
from tidegate.wire.bodies.openai import UsageFinder
from tidegate.wire.bodies.sse import EventStream, has_output

FAILURE_BYTES: Final = 8 * 1024
"""Bytes read of a failure's body."""
_code = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}").fullmatch


class Answer(Protocol):
    """A reader of one answer's body."""

    def feed(self, data: bytes, now: float) -> None:
        """Takes the next piece, received at ``now``."""

    def end(self, call: Call) -> None:
        """Takes the end of the body and writes the results into the call."""


class FailureAnswer:
    """Reads the body of an unsuccessful answer, which may contain the failure's code."""

    __slots__ = ("_body",)

    def __init__(self) -> None:
        self._body = b""

    def feed(self, data: bytes, now: float) -> None:
        if len(self._body) < FAILURE_BYTES:
            self._body += data[: FAILURE_BYTES - len(self._body)]

    def end(self, call: Call) -> None:
        call.error = failure_code(self._body)


class StreamAnswer:
    """Reads an event stream in OpenAI's format: its outputs are the events that carry text."""

    __slots__ = ("_call", "_events", "_last", "_outputs", "_usage")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._events = EventStream()
        self._usage = UsageFinder()
        self._outputs = 0
        self._last = 0.0

    def feed(self, data: bytes, now: float) -> None:
        self._usage.feed(data)
        for event in self._events.feed(data):
            if not has_output(event):
                continue
            self._outputs += 1
            if self._outputs == 1:
                self._call.first = now
                if self._call.began:
                    self._call.began = now
            else:
                self._call.gaps.append(now - self._last)
            self._last = now

    def end(self, call: Call) -> None:
        """Sets the tokens from the stream's usage, else from its number of outputs. A stream without its final event is
        a failure."""
        usage = self._usage.usage()
        call.tokens = usage.completion_tokens if usage is not None else self._outputs
        if not self._events.done:
            call.is_good = False
            call.error = BROKEN


def retry_after(field: bytes | None) -> float | None:
    """Returns the seconds of a Retry-After field; None without one, or for a date."""
    text = b"" if field is None else field.strip()
    return float(text) if text.isdigit() and len(text) < 10 else None


def failure_code(body: bytes) -> str | None:
    """Returns the code in a failure's JSON: ``error.code`` (ours), ``error.type`` (OpenAI's), or the ``code`` beside
    an error that is a text (ours for V2)."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    error = content.get("error") if isinstance(content, dict) else None
    if isinstance(error, str):
        error = content
    if not isinstance(error, dict):
        return None
    for key in ("code", "type"):
        word = error.get(key)
        if isinstance(word, str) and _code(word):
            return word
    return None
