"""Token counters of a revision on one gateway worker: sums by group, times to and between tokens.

The times are kept twice: in the buckets of ``tidegate.histogram``, which the autoscaler and ``status`` read, and in
those that OpenTelemetry's conventions for generative AI require, by operation and model. Labels are bounded: operations
are an enumeration, models those that the function declares.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Final, Protocol

from tidegate import gen_ai, metrics
from tidegate.histogram import INDEX, KNOWN, Histogram, bucket_index
from tidegate.records.gateway_sample import GroupTokens, TokensSeen

OTHER_MODEL: Final = "_OTHER"
"""Label of models that the function does not declare: OpenTelemetry's word for all other values."""


class Operation(Enum):
    """The operation that a request calls: ``gen_ai.operation.name`` and ``gen_ai.provider.name`` (the owner of the
    protocol)."""

    CHAT = ("chat", "openai")
    """Chat completions and responses."""
    MESSAGES = ("chat", "anthropic")
    TEXT_COMPLETION = ("text_completion", "openai")
    EMBEDDINGS = ("embeddings", "openai")
    RERANK = ("rerank", "openai")
    OTHER = (OTHER_MODEL, "openai")
    """Sound, pictures, anything else: counted if the answer reports its usage."""

    @property
    def is_generative(self) -> bool:
        """Its answers are written token by token."""
        return self in (Operation.CHAT, Operation.MESSAGES, Operation.TEXT_COMPLETION)

    @staticmethod
    def of(path: bytes) -> "Operation":
        """Returns the operation of a request's path; any prefix is ignored."""
        for end, call in _CALLS:
            if path.endswith(end):
                return call
        return Operation.OTHER


_CALLS: Final = (
    (b"/chat/completions", Operation.CHAT),
    (b"/completions", Operation.TEXT_COMPLETION),
    (b"/messages", Operation.MESSAGES),
    (b"/responses", Operation.CHAT),
    (b"/embeddings", Operation.EMBEDDINGS),
    (b"/rerank", Operation.RERANK),
    (b"/score", Operation.RERANK),
)


class RequestTokens(Protocol):
    """The final token figures of one request, as the counters read them."""

    @property
    def call(self) -> Operation: ...

    @property
    def model(self) -> str: ...

    @property
    def prompt(self) -> int: ...

    @property
    def completion(self) -> int: ...

    @property
    def cached(self) -> int: ...

    @property
    def is_estimated(self) -> bool: ...

    @property
    def first_at(self) -> float: ...

    @property
    def last_at(self) -> float: ...


class GenAi:
    """The histograms of OpenTelemetry's conventions, for one operation and model."""

    __slots__ = ("durations", "first", "input", "operations", "output", "per_token")

    def __init__(self) -> None:
        self.durations: dict[str, metrics.StepHistogram] = {}
        """Durations by error type; the type is empty for requests without an error."""
        self.operations: dict[str, metrics.StepHistogram] = {}
        self.first = metrics.StepHistogram(gen_ai.FIRST_TOKEN)
        self.per_token = metrics.StepHistogram(gen_ai.PER_TOKEN)
        self.input = metrics.StepHistogram(gen_ai.USAGE)
        self.output = metrics.StepHistogram(gen_ai.USAGE)

    def ended(self, tokens: RequestTokens, received: float, bound_at: float, now: float, error: str) -> None:
        """Counts one request. Times in seconds; ``bound_at`` is 0.0 if it got no replica."""
        _of(self.durations, error, gen_ai.DURATION).record_s(now - received)
        if bound_at:
            _of(self.operations, error, gen_ai.OPERATION).record_s(now - bound_at)
        if tokens.first_at:
            self.first.record_s(tokens.first_at - received)
            if not error and tokens.completion > 1:
                self.per_token.record_s((tokens.last_at - tokens.first_at) / (tokens.completion - 1))
        if not tokens.is_estimated:
            self.input.record(tokens.prompt)
            if tokens.call.is_generative:
                self.output.record(tokens.completion)


class GroupSums:
    """The work of one group of replicas (``GroupTokens`` has the meanings)."""

    __slots__ = ("between", "between_s", "completion", "first_s", "inferences", "prompt", "streams")

    def __init__(self) -> None:
        self.inferences = self.prompt = self.completion = self.streams = self.between = 0
        self.first_s = self.between_s = 0.0

    def seen(self, group: str) -> GroupTokens:
        """Returns the present values as a record."""
        return GroupTokens(
            group=group,
            inferences=self.inferences,
            prompt=self.prompt,
            completion=self.completion,
            streams=self.streams,
            first_s=self.first_s,
            between=self.between,
            between_s=self.between_s,
        )


class TokenCounters:
    """Counters of one revision."""

    __slots__ = (
        "answers", "arrived", "between", "cached", "completion", "estimated", "first", "gen_ai", "groups", "prompt",
    )  # fmt: skip

    def __init__(self) -> None:
        self.arrived = self.prompt = self.completion = self.cached = self.answers = self.estimated = 0
        self.first = Histogram()
        self.between = Histogram()
        self.groups: dict[str, GroupSums] = {}
        self.gen_ai: dict[tuple[Operation, str], GenAi] = {}
        """Histograms by operation and model, both of bounded sets."""

    def between_tokens(self, gap_s: float, count: int) -> None:
        """Counts ``count`` outputs that came ``gap_s`` after each other."""
        micros, between = int(gap_s * 1e6), self.between
        between.counts[INDEX[micros] if 0 <= micros < KNOWN else bucket_index(micros)] += count
        between.sum_micros += micros * count

    def counted(self, tokens: RequestTokens, group: str, inferences: int, bound_at: float) -> None:
        """Counts the tokens of one request that ``group`` worked on since ``bound_at``."""
        self.prompt += tokens.prompt
        self.completion += tokens.completion
        self.cached += tokens.cached
        self.answers += 1
        self.estimated += tokens.is_estimated
        sums = self.groups.get(group)
        if sums is None:
            sums = self.groups[group] = GroupSums()
        sums.inferences += inferences
        sums.prompt += tokens.prompt
        sums.completion += tokens.completion
        if tokens.first_at:
            sums.streams += 1
            sums.first_s += tokens.first_at - bound_at
            if tokens.completion > 1:
                sums.between += tokens.completion - 1
                sums.between_s += tokens.last_at - tokens.first_at

    def ended(self, tokens: RequestTokens, received: float, bound_at: float, now: float, error: str) -> None:
        """Counts the end of one request; ``error`` is a word of a bounded set, empty if it was answered well."""
        if tokens.first_at:
            self.first.record(tokens.first_at - received)
        key = (tokens.call, tokens.model)
        kept = self.gen_ai.get(key)
        if kept is None:
            kept = self.gen_ai[key] = GenAi()
        kept.ended(tokens, received, bound_at, now, error)

    def seen(self) -> TokensSeen:
        """Returns the present values as a record."""
        return TokensSeen(
            arrived=self.arrived,
            prompt=self.prompt,
            completion=self.completion,
            cached=self.cached,
            answers=self.answers,
            estimated=self.estimated,
            first=self.first.sparse(),
            between=self.between.sparse(),
            groups=tuple(sums.seen(name) for name, sums in self.groups.items()),
        )

    def expose(self, into: metrics.Exposition, labels: tuple[str, str]) -> None:
        """Adds everything to one scrape; ``labels``: function and revision."""
        into.add(metrics.GATEWAY_ARRIVED_TOKENS, labels, self.arrived)
        into.add(metrics.GATEWAY_CACHED_TOKENS, labels, self.cached)
        into.add(metrics.GATEWAY_ESTIMATED_ANSWERS, labels, self.estimated)
        for group, sums in self.groups.items():
            into.add(metrics.GATEWAY_PROMPT_TOKENS, (*labels, group), sums.prompt)
            into.add(metrics.GATEWAY_COMPLETION_TOKENS, (*labels, group), sums.completion)
        into.add_histogram(metrics.GATEWAY_FIRST_TOKEN, labels, self.first)
        into.add_histogram(metrics.GATEWAY_BETWEEN_TOKENS, labels, self.between)
        for (call, model), kept in self.gen_ai.items():
            of = (*labels, *call.value, model)
            for metric, histogram, last in _series(kept):
                into.add_steps(metric, of if last is None else (*of, last), histogram)

    def __repr__(self) -> str:
        return f"<TokenCounters {self.prompt} + {self.completion} tokens in {self.answers} answers>"


def _series(kept: GenAi) -> Iterator[tuple[metrics.Metric, metrics.StepHistogram, str | None]]:
    for metric, by_error in ((gen_ai.DURATION, kept.durations), (gen_ai.OPERATION, kept.operations)):
        for error, histogram in by_error.items():
            yield metric, histogram, error
    yield gen_ai.FIRST_TOKEN, kept.first, None
    yield gen_ai.PER_TOKEN, kept.per_token, None
    yield gen_ai.USAGE, kept.input, "input"
    yield gen_ai.USAGE, kept.output, "output"


def _of(kept: dict[str, metrics.StepHistogram], error: str, metric: metrics.Metric) -> metrics.StepHistogram:
    histogram = kept.get(error)
    if histogram is None:
        histogram = kept[error] = metrics.StepHistogram(metric)
    return histogram
