"""Tokens of a call: an estimate of its prompt before it is routed, and what its answer shows of them as it passes.

How many tokens a text has is up to the model's tokenizer, which is not here. Tokens per byte of a language differ
little, though, and answers report what it was: so the ratio is learnt, for each class of scripts by itself, because a
function's callers may write English and Chinese.

A stream is heard and not held: :class:`StreamReader` is shown each piece after it has gone on. What it counts does not
depend on how the stream was cut into pieces.
"""

import re
import zlib
from typing import Final

from tidegate.wire.bodies.openai import TokenEstimate, Usage, UsageFinder
from tidegate.wire.bodies.sse import DONE, EVENT_BYTES, EventStream, has_output

SAMPLE_BYTES: Final = 4096
"""Of a prompt are looked at to tell its script."""
PLAIN, ESCAPED, ALPHABETIC, WIDE = range(4)
"""Scripts: mostly ASCII; ASCII with most of the text as ``\\uXXXX``; two bytes a character (Greek, Cyrillic, Hebrew,
Arabic); three and more (Chinese, Japanese, Korean, the scripts of India, Thai, emoji)."""
_SHARE: Final = 3
"""From a third of its bytes on a prompt is of another script: keys and punctuation are ASCII anyway. Our choice."""
_ASCII: Final = bytes(range(128))
_LEADS_OF_TWO: Final = bytes(range(0xC2, 0xE0))
_ESCAPE_BYTES: Final = 6

CODINGS: Final = frozenset({b"gzip", b"x-gzip", b"deflate"})
SLICE_BYTES: Final = 64 * 1024
MOST_BYTES: Final = 4 << 20
"""Of one piece, unpacked: text packs twentyfold, a piece is some 64 KB. What unpacks to more is read no further."""
_ZLIB_OR_GZIP: Final = 32 + zlib.MAX_WBITS


def script(sample: bytes) -> int:
    """The class of scripts of a text, by its first bytes; a character that is cut off does not matter."""
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
    """Tokens of prompts by their bytes and scripts, for one function; right in total (:class:`TokenEstimate`).

    Each class begins with four bytes a token, in UTF-8: about what common tokenizers make of English, half a token for
    a Cyrillic letter, three quarters of one for a Chinese character. An escaped character is six bytes and counts
    three.
    """

    __slots__ = ("_ratios",)

    def __init__(self) -> None:
        self._ratios = tuple(TokenEstimate() for _ in range(4))

    def of(self, prompt_bytes: int, written: int) -> int:
        """Tokens of a prompt in the script ``written``, at least 1."""
        return self._ratios[written].of(_weight(prompt_bytes, written))

    def learn(self, prompt_bytes: int, written: int, tokens: int) -> None:
        """A prompt was reported to have so many tokens."""
        self._ratios[written].learn(_weight(prompt_bytes, written), tokens)

    def __repr__(self) -> str:
        return f"<PromptEstimate {self._ratios}>"


def _weight(prompt_bytes: int, written: int) -> int:
    return prompt_bytes // 2 if written == ESCAPED else prompt_bytes


class AnswerLength:
    """Tokens that answers of one kind of call have had, newer ones counting more; begins with ``FIRST``."""

    __slots__ = ("_answers", "_tokens")

    FIRST: Final = 256.0
    """Expected of the first answer: our choice, a short paragraph or two."""
    KEPT: Final = 0.98
    """As in :class:`TokenEstimate`."""
    LONGEST: Final = 1 << 17
    """A longer one counts as this long: what models write at most, so that one that says more does not tell of all."""

    def __init__(self, first: float = FIRST) -> None:
        self._tokens = first
        self._answers = 1.0

    def expected(self, most: int | None) -> int:
        """Tokens of the next answer, which may have ``most``; None: the request sets no limit."""
        mean = round(self._tokens / self._answers)
        return mean if most is None or mean < most else most

    def learn(self, tokens: int) -> None:
        """An answer that ended has had so many."""
        self._tokens = self._tokens * self.KEPT + min(tokens, self.LONGEST)
        self._answers = self._answers * self.KEPT + 1.0

    def __repr__(self) -> str:
        return f"<AnswerLength {self._tokens / self._answers:.1f} tokens>"


_summarizes = re.compile(rb'"type"\s*+:\s*+"response\.[a-z_.]*+(?<!\.delta)"').search


_ends = re.compile(rb'"type"\s*+:\s*+"(?:message_stop|response\.(?:completed|incomplete|failed))"').search


def is_output(event: bytes) -> bool:
    """Whether an event brings text that the model has just written. Events of the Responses API that tell the whole
    text again (``response.output_text.done``, ``response.completed``) do not."""
    at = event.find(b'"content":"')
    if (at < 0 or event[at + 11 : at + 12] in (b'"', b"")) and not has_output(event):
        return False
    return b'"response.' not in event or _summarizes(event) is None


_LINE_FEED: Final = 10
_NO_WORD: Final = b'"\n'
_APART: Final = b"\n" * 16
"""Shown to the finder between two pieces that do not follow each other, so that no record is read across them."""


class StreamReader:
    """Counts the events of an answer that bring output, and finds its usage and its end."""

    __slots__ = ("_events", "_is_between", "_missed", "_usage", "is_done", "outputs")

    def __init__(self) -> None:
        self._events = EventStream()
        self._usage = UsageFinder()
        self._is_between = True
        """The next piece begins an event."""
        self._missed = False
        """The last pieces had no usage, and the finder was not shown them."""
        self.outputs = 0
        """Events with output so far."""
        self.is_done = False
        """The event was there with which an answer of its protocol ends."""

    def feed(self, data: bytes) -> int:
        """The next piece of the body; how many events with output it has completed."""
        if self._is_between and data[:6] == b"data: " and data.find(b"\n") == len(data) - 2 <= EVENT_BYTES:
            # Nearly all are one event of one line with a word: what follows would say the same of it.
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
        """The events of a piece in which all begin and end and have one line of data each, as servers write them, all
        with a line that names them or none; None: it is no such piece."""
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
        """What was reported so far; None: nothing."""
        return self._usage.usage()

    def __repr__(self) -> str:
        return f"<StreamReader {self.outputs} outputs, {self._usage!r}>"


def _has_null_usage(data: bytes) -> bool:
    """Whether each ``usage`` of some events is null, as it is in all but the last one of a stream that will tell it."""
    return data.count(b'"usage"') == data.count(b'"usage":null')


def _named(blocks: list[bytes]) -> list[bytes] | None:
    """The data of events, each a line ``event: ...`` and one with it, as in Anthropic's streams and those of the
    Responses API; None: some are otherwise."""
    events = []
    for block in blocks:
        name, _, event = block[:EVENT_BYTES].partition(b"\ndata: ")
        if not event or name[:7] != b"event: " or block.count(b"\n") != 1:
            return None
        events.append(event)
    return events


class BodyReader:
    """The same of an answer that is one JSON body: it has its usage, and no events."""

    __slots__ = ("_usage",)

    outputs: Final = 0
    is_done: Final = False
    """Its length tells."""

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
    """Unpacks what passes and shows it to ``reader``. What cannot be unpacked tells nothing from there on."""

    __slots__ = ("_inflate", "_is_over", "_reader")

    def __init__(self, reader: StreamReader | BodyReader) -> None:
        self._reader = reader
        self._inflate = zlib.decompressobj(_ZLIB_OR_GZIP)
        self._is_over = False

    @property
    def outputs(self) -> int:
        """As of the reader."""
        return self._reader.outputs

    @property
    def is_done(self) -> bool:
        """As of the reader."""
        return self._reader.is_done

    def feed(self, data: bytes) -> int:
        """The next piece as it passes; how many events with output it has completed."""
        found, left = 0, MOST_BYTES
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
        """What was reported so far; None: nothing."""
        return self._reader.usage()

    def __repr__(self) -> str:
        return f"<CodedReader of {self._reader!r}>"
