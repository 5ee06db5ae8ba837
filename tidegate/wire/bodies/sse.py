"""Events of an event stream as it passes (WHATWG HTML, section 9.2.6), read without holding them.

There is no delay: a caller forwards each piece and feeds it to :class:`EventStream`, which returns the events that the
piece has completed. The caller takes the time of the first event and between two events, from the moment of the piece.
"""

import re
from typing import Final

EVENT_BYTES: Final = 4096
"""Maximum kept bytes of one event; of a longer one only its beginning is returned."""
DONE: Final = b"[DONE]"
"""The end of OpenAI's streams."""

_EOL = rb"(?:\r\n|\n|\r(?=[^\n]))"
_MARK = b"\xef\xbb\xbf"
"""A stream may begin with a byte order mark."""
_TAIL = 3
"""Bytes that may contain the beginning of a blank line."""
_blank_lines = re.compile(_EOL + _EOL).finditer
_output = re.compile(
    rb'"(?:content|text|delta|thinking|partial_json|arguments|reasoning(?:_content)?|refusal)"\s*+:\s*+"[^"]'
).search


class EventStream:
    """Bytes in, the data of complete events out."""

    __slots__ = ("_front", "_tail", "done")

    def __init__(self) -> None:
        self._front = b""
        """The beginning of the incomplete event."""
        self._tail = b""
        """Its last bytes."""
        self.done = False
        """True after ``[DONE]``."""

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the data of each event that ends in this piece; comments and ``[DONE]`` have none."""
        if not self._tail and data[-2:] == b"\n\n" and data.find(b"\n\n") == len(data) - 2 and b"\r" not in data:
            blocks = [data[:EVENT_BYTES]]  # One event, as servers write them.
        else:
            blocks = self._blocks(data)
        found = []
        for block in blocks:
            content = _content(block)
            if content == DONE:
                self.done = True
            elif content is not None:
                found.append(content)
        return found

    def _blocks(self, data: bytes) -> list[bytes]:
        rest, front = self._tail + data, self._front
        blocks, at = [], 0
        for blank in _blank_lines(rest):
            blocks.append(front + rest[at : min(blank.start(), at + EVENT_BYTES - len(front))])
            front, at = b"", blank.end()
        split = max(at, len(rest) - _TAIL)
        self._front = front + rest[at : min(split, at + EVENT_BYTES - len(front))]
        self._tail = rest[split:]
        return blocks

    def __repr__(self) -> str:
        return f"<EventStream {len(self._front) + len(self._tail)} bytes of an event, done: {self.done}>"


def _content(block: bytes) -> bytes | None:
    """Returns the event's data lines, joined, or None without any."""
    line = block.rstrip(b"\n")
    if line[:6] == b"data: " and b"\n" not in line and b"\r" not in line:
        return line[6:]
    lines = block.removeprefix(_MARK).splitlines()
    lines = [line[6:] if line[5:6] == b" " else line[5:] for line in lines if line[:5] == b"data:"]
    return b"\n".join(lines) if lines else None


def has_output(event: bytes) -> bool:
    """Returns whether an event of an OpenAI or Anthropic stream contains generated text: the first of a stream often
    contains only the role."""
    return _output(event) is not None
