"""Tokens of a call: an estimate of its prompt before it is routed, and the tokens of its response as it passes.

The number of tokens of a text depends on the model's tokenizer, which is not available here. Tokens per byte of a
language differ little, though, and responses report the true number. So the ratio is learnt, for each class of scripts
separately, because a function's callers may write English and Chinese.

A stream is read and not held: :class:`StreamReader` is fed each piece after it was forwarded. Its counts do not depend
on how the stream was split into pieces.
"""

import re
import zlib
from typing import Final

from tidegate.wire.bodies.openai import TokenEstimate, Usage, UsageFinder
from tidegate.wire.bodies.sse import DONE, EVENT_BYTES, EventStream, has_output

SAMPLE_BYTES: Final = 4096
"""Bytes of a prompt that decide about its script."""
PLAIN, ESCAPED, ALPHABETIC, WIDE = range(4)
"""Scripts: mostly ASCII; ASCII with most of the text as ``\\uXXXX``; two bytes a character (Greek, Cyrillic, Hebrew,
Arabic); three and more (Chinese, Japanese, Korean, the scripts of India, Thai, emoji)."""
_SHARE: Final = 3
"""A prompt with a third or more of its bytes in another script belongs to it: keys and punctuation are ASCII anyway.
Our choice."""
_ASCII: Final = bytes(range(128))
_LEADS_OF_TWO: Final = bytes(range(0xC2, 0xE0))
_ESCAPE_BYTES: Final = 6

CODINGS: Final = frozenset({b"gzip", b"x-gzip", b"deflate"})
SLICE_BYTES: Final = 64 * 1024
MAX_UNPACKED_BYTES: Final = 4 << 20
"""Maximum unpacked size of one piece: text packs twentyfold, a piece is some 64 KB. Larger ones are read no further."""
_ZLIB_OR_GZIP: Final = 32 + zlib.MAX_WBITS


def script(sample: bytes) -> int:
    """Returns the class of scripts of a text, by its first bytes; a truncated character does not matter."""
    if sample.isascii():
        if b"\\" not in sample:
            return PLAIN
        escaped = sample.count(b"\\u") * _ESCAPE_BYTES
        return ESCAPED if 2 * escaped > len(sample) else PLAIN
    foreign = sample.translate(None, _ASCII)
    if len(foreign) * _SHARE <= len(sample):
        return PLAIN
    in_twos = 2 * (len(foreign) - len(foreign.translate(None, _LEADS_OF_TWO)))
    return ALPHABETIC if 2 * in_twos > len(foreign) else WIDE


class PromptEstimate:
    """Estimates the tokens of prompts by their bytes and scripts, for one function; right in total
    (:class:`TokenEstimate`).

    Each class begins with four bytes a token, in UTF-8: about the ratio of common tokenizers on English, half a token
    for a Cyrillic letter, three quarters of one for a Chinese character. An escaped character is six bytes and counts
    three.
    """

    __slots__ = ("_ratios",)

    def __init__(self) -> None:
        self._ratios = tuple(TokenEstimate() for _ in range(4))

    def of(self, prompt_bytes: int, written: int) -> int:
        """Returns the estimated tokens of a prompt in the script ``written``, at least 1."""
        return self._ratios[written].of(_weight(prompt_bytes, written))

    def learn(self, prompt_bytes: int, written: int, tokens: int) -> None:
        """Learns the reported tokens of a prompt."""
        self._ratios[written].learn(_weight(prompt_bytes, written), tokens)

    def __repr__(self) -> str:
        return f"<PromptEstimate {self._ratios}>"


def _weight(prompt_bytes: int, written: int) -> int:
    return prompt_bytes // 2 if written == ESCAPED else prompt_bytes


class AnswerLength:
    """Mean tokens of the responses to one kind of call, newer ones weighted more; begins with ``FIRST``."""

    __slots__ = ("_answers", "_tokens")

    FIRST: Final = 256.0
    """Expected tokens of the first response: our choice, a short paragraph or two."""
    KEPT: Final = 0.98
    """As in :class:`TokenEstimate`."""
    MAX_TOKENS: Final = 1 << 17
    """A longer response counts as this long: about the maximum output of a model, so that a single false report does
    not distort the mean."""

    def __init__(self, first: float = FIRST) -> None:
        self._tokens = first
        self._answers = 1.0

    def expected(self, limit: int | None) -> int:
        """Returns the expected tokens of the next response, which may have ``limit``; None if the request sets no
        limit."""
        mean = round(self._tokens / self._answers)
        return mean if limit is None or mean < limit else limit

    def learn(self, tokens: int) -> None:
        """Learns the tokens of a response that ended."""
        self._tokens = self._tokens * self.KEPT + min(tokens, self.MAX_TOKENS)
        self._answers = self._answers * self.KEPT + 1.0

    def __repr__(self) -> str:
        return f"<AnswerLength {self._tokens / self._answers:.1f} tokens>"


_summarizes = re.compile(rb'"type"\s*+:\s*+"response\.[a-z_.]*+(?<!\.delta)"').search


_ends = re.compile(rb'"type"\s*+:\s*+"(?:message_stop|response\.(?:completed|incomplete|failed))"').search


def is_output(event: bytes) -> bool:
    """Returns whether an event contains newly generated text. Events of the Responses API that repeat the whole text
    (``response.output_text.done``, ``response.completed``) do not."""
    at = event.find(b'"content":"')
    if (at < 0 or event[at + 11 : at + 12] in (b'"', b"")) and not has_output(event):
        return False
    return b'"response.' not in event or _summarizes(event) is None


_LINE_FEED: Final = 10
_NO_WORD: Final = b'"\n'
_APART: Final = b"\n" * 16
"""Fed to the finder between two pieces that are not adjacent, so that no record is read across them."""


class StreamReader:
    """Counts the events of a response that contain output, and finds its usage and its end."""

    __slots__ = ("_events", "_is_between", "_missed", "_usage", "is_done", "outputs")

    def __init__(self) -> None:
        self._events = EventStream()
        self._usage = UsageFinder()
        self._is_between = True
        """True if the next piece begins an event."""
        self._missed = False
        """True if the last pieces had no usage and were not fed to the finder."""
        self.outputs = 0
        """Events with output so far."""
        self.is_done = False
        """True after the event that ends a response in its protocol."""

    def feed(self, data: bytes) -> int:
        """Reads the next piece of the body; returns the number of events with output that it has completed."""
        if self._is_between and data[:6] == b"data: " and data.find(b"\n") == len(data) - 2 <= EVENT_BYTES:
            # Nearly all are one event of one line with a word: the general way below has the same result.
            at = data.find(b'"content":"')
            if (
                at > 0
                and data[at + 11] not in _NO_WORD
                and data[-1] == _LINE_FEED
                and (b'"usage"' not in data or _has_null_usage(data))
                and b'"response.' not in data
                and b"\r" not in data
            ):
                self._missed = True
                self.outputs += 1
                return 1
        events = self._whole(data) if self._is_between else None
        if events is None:
            events = self._events.feed(data)
            self._is_between = data[-2:] == b"\n\n"
            self.is_done = self.is_done or self._events.done
            self._find(data)
        elif b'"usage"' in data and not _has_null_usage(data):
            self._find(data)
        else:
            self._missed = True
        found = 0
        for event in events:
            if is_output(event):
                found += 1
            elif event == DONE or _ends(event) is not None:
                self.is_done = True
        self.outputs += found
        return found

    def _whole(self, data: bytes) -> list[bytes] | None:
        """Returns the events of a piece in the usual form of servers: all begin and end in it and have one line of data
        each, all with a line that names them or all without. Returns None for other pieces."""
        if data[-2:] != b"\n\n" or b"\r" in data:
            return None
        if data[:7] == b"event: ":
            at = data.find(b"\ndata: ")
            if 0 < at <= len(data) - 10 and len(data) <= EVENT_BYTES and data.count(b"\n") == 3:
                return [data[at + 7 : -2]]
            return _named(data[:-2].split(b"\n\n"))
        if data[:6] != b"data: ":
            return None
        events = data[6:-2].split(b"\n\ndata: ")
        if data.count(b"\n") != 2 * len(events):
            return None
        return events if len(data) <= EVENT_BYTES else [event[: EVENT_BYTES - 6] for event in events]

    def _find(self, data: bytes) -> None:
        if self._missed:
            self._usage.feed(_APART)
            self._missed = False
        self._usage.feed(data)

    def usage(self) -> Usage | None:
        """Returns the reported tokens so far, or None without any."""
        return self._usage.usage()

    def __repr__(self) -> str:
        return f"<StreamReader {self.outputs} outputs, {self._usage!r}>"


def _has_null_usage(data: bytes) -> bool:
    """Returns whether each ``usage`` of some events is null, as it is in all but the last event of a stream that will
    report it."""
    return data.count(b'"usage"') == data.count(b'"usage":null')


def _named(blocks: list[bytes]) -> list[bytes] | None:
    """Returns the data of events with a line ``event: ...`` and one with data each, as in Anthropic's streams and those
    of the Responses API. Returns None if some differ."""
    events = []
    for block in blocks:
        name, _, event = block[:EVENT_BYTES].partition(b"\ndata: ")
        if not event or name[:7] != b"event: " or block.count(b"\n") != 1:
            return None
        events.append(event)
    return events


class BodyReader:
    """The reader of a response that is one JSON body: it has its usage, and no events."""

    __slots__ = ("_usage",)

    outputs: Final = 0
    is_done: Final = False
    """The length of the body states the end."""

    def __init__(self) -> None:
        self._usage = UsageFinder()

    def feed(self, data: bytes) -> int:
        self._usage.feed(data)
        return 0

    def usage(self) -> Usage | None:
        return self._usage.usage()

    def __repr__(self) -> str:
        return f"<BodyReader {self._usage!r}>"


class CodedReader:
    """Unpacks a response with ``content-encoding: gzip`` or ``deflate`` (RFC 9110, section 8.4.1) and feeds it to
    ``reader``. From malformed bytes on nothing more is counted."""

    __slots__ = ("_inflate", "_is_over", "_reader")

    def __init__(self, reader: StreamReader | BodyReader) -> None:
        self._reader = reader
        self._inflate = zlib.decompressobj(_ZLIB_OR_GZIP)
        self._is_over = False

    @property
    def outputs(self) -> int:
        """Events with output so far, of the reader."""
        return self._reader.outputs

    @property
    def is_done(self) -> bool:
        """End of the response, of the reader."""
        return self._reader.is_done

    def feed(self, data: bytes) -> int:
        """Reads the next piece; returns the number of events with output that it has completed."""
        found, left = 0, MAX_UNPACKED_BYTES
        while data and not self._is_over:
            try:
                piece = self._inflate.decompress(data, SLICE_BYTES)
            except zlib.error:
                self._is_over = True
                break
            left -= len(piece)
            data = self._inflate.unconsumed_tail
            self._is_over = self._inflate.eof or left < 0
            if piece:
                found += self._reader.feed(piece)
        return found

    def usage(self) -> Usage | None:
        """Returns the reported tokens so far, or None without any."""
        return self._reader.usage()

    def __repr__(self) -> str:
        return f"<CodedReader of {self._reader!r}>"
