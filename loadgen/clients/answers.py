"""What is read of an answer's body: nothing of most, the times of a stream's outputs, the code of a failure."""

import json
import re
from typing import Final, Protocol

from tidegate.loadgen.clients.call import BROKEN, Call
from tidegate.wire.bodies.openai import UsageFinder
from tidegate.wire.bodies.sse import EventStream, has_output

FAILURE_BYTES: Final = 8 * 1024
"""Read of the body of a failure."""
_code = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}").fullmatch


class Answer(Protocol):
    """Gets the body of one answer."""

    def feed(self, data: bytes, now: float) -> None:
        """The next piece, at ``now``."""

    def end(self, call: Call) -> None:
        """That was all: what was found goes into the call."""


class FailureAnswer:
    """The body of an answer that is no success: it may name its failure."""

    __slots__ = ("_body",)

    def __init__(self) -> None:
        self._body = b""

    def feed(self, data: bytes, now: float) -> None:
        if len(self._body) < FAILURE_BYTES:
            self._body += data[: FAILURE_BYTES - len(self._body)]

    def end(self, call: Call) -> None:
        call.error = failure_code(self._body)


class StreamAnswer:
    """An event stream in OpenAI's way: outputs are its events that carry text."""

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
            else:
                self._call.gaps.append(now - self._last)
            self._last = now

    def end(self, call: Call) -> None:
        """Tokens are those that the stream's usage tells, else its outputs. One without its end is a failure."""
        usage = self._usage.usage()
        call.tokens = usage.completion_tokens if usage is not None else self._outputs
        if not self._events.done:
            call.is_good = False
            call.error = BROKEN


def failure_code(body: bytes) -> str | None:
    """The word that a failure's JSON has for itself: ``error.code`` (ours), else ``error.type`` (OpenAI's)."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return None
    error = told.get("error") if isinstance(told, dict) else None
    if not isinstance(error, dict):
        return None
    for key in ("code", "type"):
        word = error.get(key)
        if isinstance(word, str) and _code(word):
            return word
    return None
