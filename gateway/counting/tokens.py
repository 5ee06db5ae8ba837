"""Tokens of requests to functions that speak OpenAI's or Anthropic's protocol: expected, read from the answer, counted.

Before it is routed a request gets an estimate of its prompt and of its answer (:class:`Tokens`), which a quota reserves
and a fair queue charges. Its answer is read as it passes. At the end the figures are those that the model server has
reported, or our own if it has reported none.

Nothing of a request or answer is changed or kept: a stream without ``stream_options.include_usage`` stays one.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidegate.gateway.counting.token_metrics import Operation, TokenCounters
from tidegate.wire.bodies.openai import CallRequest
from tidegate.wire.bodies.tokens import (
    CODINGS,
    PLAIN,
    AnswerLength,
    BodyReader,
    CodedReader,
    PromptEstimate,
    StreamReader,
)
from tidegate.wire.http1.events import Piece
from tidegate.wire.message_heads import AnyResponseHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.detached import BodyTap


class FunctionTokens:
    """The estimates that a worker has learnt of one function's tokens; they outlive route tables."""

    __slots__ = ("answers", "prompts")

    def __init__(self) -> None:
        self.prompts = PromptEstimate()
        self.answers = {call: AnswerLength(AnswerLength.FIRST if call.is_generative else 0.0) for call in Operation}

    def __repr__(self) -> str:
        return f"<FunctionTokens {self.prompts!r}, {self.answers[Operation.CHAT]!r}>"


class Prompt:
    """The size of a request's prompt."""

    __slots__ = ("asked", "script", "size")

    def __init__(self, size: int, written: int = PLAIN, asked: CallRequest | None = None) -> None:
        self.size = size
        """Bytes of text; 0 without text, or if its size is unknown."""
        self.script = written
        self.asked = asked or _NOTHING
        """The fields of the request; of a large one that was not read before, those in its beginning."""

    def __repr__(self) -> str:
        return f"<Prompt {self.size} bytes, script {self.script}, {self.asked!r}>"


_NOTHING: Final = CallRequest()


class Tokens:
    """The tokens of one request: expected before it is routed, final after :meth:`end`."""

    __slots__ = (
        "_is_refused", "_known", "_now", "_reader", "cached", "call", "completion", "counters",
        "expected", "first_at", "is_estimated", "last_at", "max_tokens", "model", "prompt", "prompt_estimate",
        "request",
    )  # fmt: skip

    def __init__(
        self,
        call: Operation,
        model: str,
        prompt: Prompt,
        known: FunctionTokens,
        counters: TokenCounters,
        now: Callable[[], float],
    ) -> None:
        """``model``: one of the function's own names, else ``OTHER_MODEL``, so that it is safe as a label."""
        self.call = call
        self.model = model
        self.max_tokens = prompt.asked.max_tokens
        """The longest answer that the request allows; None if it states no limit."""
        self.prompt_estimate = known.prompts.of(prompt.size, prompt.script)
        """Estimated tokens of the prompt, at least 1."""
        self.expected = self.prompt_estimate + known.answers[call].expected(self.max_tokens)
        """Expected tokens of prompt and answer, which a quota reserves."""
        self.prompt = self.completion = self.cached = 0
        """Final figures: as reported; else, for a request that a replica worked on, the estimate and the counted
        events."""
        self.is_estimated = True
        """No usage was reported."""
        self.first_at = self.last_at = 0.0
        """When the first and the last event with output passed (seconds of ``time.monotonic``); 0.0: none has."""
        self.request = prompt
        """The prompt as it was sized."""
        self._known = known
        self.counters = counters
        self._now = now
        self._reader: StreamReader | BodyReader | CodedReader | None = None
        self._is_refused = False
        """The answer is an error: nothing was used."""

    @property
    def total(self) -> int:
        """Tokens of prompt and answer, at the end."""
        return self.prompt + self.completion

    @property
    def per_token_s(self) -> float:
        """Mean seconds per output token behind the first, at the end; 0.0 without such tokens."""
        return (self.last_at - self.first_at) / (self.completion - 1) if self.first_at and self.completion > 1 else 0.0

    def arrived(self) -> None:
        """Adds the request to the load: it was admitted."""
        self.counters.arrived += self.expected

    def begun(self, first_byte: float) -> float:
        """Returns when a stream's answer began for the client: with its first output, if that was seen.

        The head, and comments during a cold start, are sent before the model has written anything.
        """
        return self.first_at or first_byte

    def answering(self, head: AnyResponseHead) -> "BodyTap | None":
        """An answer begins: returns the reader of its body; None if it reports nothing (an error, no JSON, another
        coding)."""
        kind = (head.get(b"content-type") or b"").lower()
        self._is_refused = head.status >= 400
        is_stream = kind.startswith(b"text/event-stream")
        if self._is_refused or not (is_stream or kind.startswith(b"application/json")):
            return None
        reader = StreamReader() if is_stream else BodyReader()
        coding = head.get(b"content-encoding")
        if coding is None or coding == b"identity":
            self._reader = reader
        elif coding in CODINGS:
            self._reader = CodedReader(reader)
        else:
            return None
        return self._read

    def _read(self, data: Piece) -> None:
        reader = self._reader
        if reader is None or not data:
            return
        found = reader.feed(data if type(data) is bytes else bytes(data))
        if not found:
            return
        now, last = self._now(), self.last_at
        self.last_at = now
        if not last:
            self.first_at = last = now
            found -= 1
        if found:
            # Those that came together came so for the client: they share the time since the last one.
            self.counters.between_tokens((now - last) / found, found)

    @property
    def is_done(self) -> bool:
        """A stream has ended by its protocol. A client may leave then without waiting for the connection to end
        (OpenAI's own does); it has had its whole answer."""
        return self._reader is not None and self._reader.is_done

    def end(self, *, is_answered: bool, bound_at: float, group: str, inferences: int) -> None:
        """Computes the final figures at the end of the request.

        ``is_answered``: completely and without an error; ``bound_at``: a replica had it since then, whether that
        answered or not; 0.0 if none had it.
        """
        reader, known = self._reader, self._known
        usage = None if reader is None else reader.usage()
        if usage is not None:
            self.prompt, self.completion = usage.prompt_tokens, usage.completion_tokens
            self.cached = usage.cached_tokens
            self.is_estimated = False
            known.prompts.learn(self.request.size, self.request.script, usage.prompt_tokens)
        elif bound_at and not self._is_refused and self.call is not Operation.OTHER:
            self.prompt, self.completion = self.prompt_estimate, 0 if reader is None else reader.outputs
        if not is_answered and reader is not None and reader.outputs > self.completion:
            # It broke off: what it had reported was of its beginning.
            self.completion, self.is_estimated = reader.outputs, True
        if is_answered and (usage is not None or self.completion):
            known.answers[self.call].learn(self.completion)
        if self.total:
            self.counters.counted(self, group, inferences, bound_at)

    def __repr__(self) -> str:
        sign = "~" if self.is_estimated else ""
        return f"<Tokens {self.expected} expected, {sign}{self.prompt} + {sign}{self.completion}>"
