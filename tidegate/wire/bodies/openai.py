"""OpenAI's and Anthropic's calls as far as the gateway needs them: parameters of a request, and tokens that a response
reports.

A request's figures come from the top level of its JSON body (:mod:`tidegate.wire.bodies.json_scan`): the model that
routes it, whether it streams, its maximum tokens, the size of its prompt. Values of a wrong type are refused, as the
servers do, because some of them would read ``"max_tokens": "5"`` as a number that was not counted here.

A response's figures are in its ``usage``, in a JSON body as in an event stream. The key with its quotes cannot occur in
a string (its own quotes would be escaped there), so it is found with ``find``, without parsing the model's output.
"""

import json
import re
from math import ceil
from typing import Any, Final, TypeGuard

from tidegate.errors import MODEL_NOT_FOUND, ErrorKind, Executed
from tidegate.wire.bodies.json_scan import FoundMembers, Keys, ObjectScan, read_object
from tidegate.wire.http1.fields import Rejected

KEYS: Final = Keys(
    chosen=(
        "max_completion_tokens", "max_output_tokens", "max_tokens", "model", "stream", "stream_options", "user",
    ),
    measured=("documents", "input", "instructions", "messages", "prompt", "system", "tools"),
    counted=("documents", "input", "prompt"),
    exact=("model",),
)  # fmt: skip
FORM_FIELDS: Final = ("model", "stream", "user")
"""Fields of the calls that send forms (audio, images)."""
_PROMPTS: Final = ("messages", "prompt", "input", "documents")
"""Keys of a prompt that grows from turn to turn."""
_MAX_TOKENS: Final = 1 << 31
MAX_REPORTED: Final = 1 << 26
"""Maximum tokens that a prompt or a completion may be reported to have: the last bucket of OpenTelemetry's, some times
the largest context of any model. A larger value is the largest number of some type, or -1 in an unsigned one."""
_BATCHED: Final = (b"/embeddings", b"/rerank", b"/completions")
USAGE_BYTES: Final = 2048
"""Maximum kept bytes of a usage record."""


class CallRequest:
    """The parameters of a request."""

    __slots__ = (
        "include_usage", "inputs", "max_tokens", "model", "prompt_bytes", "prompt_start", "stream", "user",
    )  # fmt: skip

    def __init__(self) -> None:
        self.model: str | None = None
        self.stream = False
        self.include_usage = False
        """True if the last event of the stream must report the usage."""
        self.max_tokens: int | None = None
        """Maximum tokens of one completion. None for the server's own limit."""
        self.user: str | None = None
        self.prompt_bytes = 0
        """Bytes of messages and of all other model input, as JSON; images and sounds count some KB each."""
        self.prompt_start: int | None = None
        """Position in the body of the part of the prompt that grows from turn to turn."""
        self.inputs = 1
        """Texts, token lists or documents in a list."""

    def inferences(self, path: bytes) -> int:
        """Returns the number of inferences. A list is a batch if each of its items is answered separately; otherwise it
        is a conversation."""
        return self.inputs if path.endswith(_BATCHED) and not path.endswith(b"/chat/completions") else 1

    def __repr__(self) -> str:
        return f"<CallRequest {self.model!r}, {self.prompt_bytes} bytes, at most {self.max_tokens} tokens>"


class RequestReader:
    """Reads a body that comes in pieces: ``feed`` each, then ``end``."""

    __slots__ = ("_scan",)

    def __init__(self) -> None:
        self._scan = ObjectScan(KEYS)

    def feed(self, data: bytes) -> Rejected | None:
        return self._scan.feed(data)

    @property
    def model(self) -> str | Rejected | None:
        """The model as soon as it was read; final only when :meth:`end` finds no fault."""
        value = self._scan.found.chosen.get("model", b"null")
        return None if value == b"null" else _text("model", value)

    def end(self) -> CallRequest | Rejected:
        return self._scan.end() or request_of(self._scan.found)


def read_request(body: bytes) -> CallRequest | Rejected:
    """Reads a whole body."""
    found = read_object(body, KEYS)
    return found if type(found) is Rejected else request_of(found)


def request_of(found: FoundMembers) -> CallRequest | Rejected:
    """Checks the types of the found values."""
    asked = CallRequest()
    for key, value in found.chosen.items():
        if value == b"null":
            continue
        rejected = _READ[key](asked, key, value)
        if rejected is not None:
            return rejected
    extents = found.extents
    for extent in extents.values():
        asked.prompt_bytes += extent.size
        if extent.items > 1:
            asked.inputs = max(asked.inputs, extent.items)
    for key in _PROMPTS:
        if key in extents:
            asked.prompt_start = extents[key].start
            break
    return asked


def _read_model(asked: CallRequest, key: str, value: bytes) -> Rejected | None:
    text = _text(key, value)
    if type(text) is Rejected:
        return text
    asked.model = text
    return None


def _read_user(asked: CallRequest, key: str, value: bytes) -> Rejected | None:
    text = _text(key, value)
    if type(text) is Rejected:
        return text
    asked.user = text
    return None


def _read_stream(asked: CallRequest, key: str, value: bytes) -> Rejected | None:
    if value not in (b"true", b"false"):
        return Rejected(400, f"{key!r} must be true or false")
    asked.stream = value == b"true"
    return None


def _read_tokens(asked: CallRequest, key: str, value: bytes) -> Rejected | None:
    if value == b"-1":  # Clients of llama.cpp and LM Studio mean no limit; other servers refuse it themselves.
        return None
    if _number(value) is None or int(value) > _MAX_TOKENS:
        return Rejected(400, f"{key!r} must be a whole number from 0 to {_MAX_TOKENS}")
    asked.max_tokens = max(asked.max_tokens or 0, int(value))
    return None


def _read_stream_options(asked: CallRequest, key: str, value: bytes) -> Rejected | None:
    if value in _USAGE_WANTED:
        asked.include_usage = True
        return None
    try:
        options = json.loads(value, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        options = None
    wanted = options.get("include_usage", False) if type(options) is dict else options
    if type(options) is not dict or (wanted is not None and type(wanted) is not bool):
        return Rejected(400, f"{key!r} must be an object, its 'include_usage' true or false")
    asked.include_usage = wanted is True
    return None


_READ: Final = {
    "model": _read_model,
    "user": _read_user,
    "stream": _read_stream,
    "stream_options": _read_stream_options,
    "max_tokens": _read_tokens,
    "max_completion_tokens": _read_tokens,
    "max_output_tokens": _read_tokens,
}
_USAGE_WANTED = (b'{"include_usage":true}', b'{"include_usage": true}')
_plain_text = re.compile(rb'"([ !#-\[\]-~]*+)"').fullmatch
_number = re.compile(rb"0|[1-9][0-9]{0,9}").fullmatch


def _text(key: str, value: bytes) -> str | Rejected:
    plain = _plain_text(value)
    if plain is not None:
        return plain[1].decode()
    try:
        read = json.loads(value)
        if type(read) is str:
            read.encode()  # Half a surrogate pair is not a text.
            return read
    except ValueError:
        pass
    return Rejected(400, f"{key!r} must be a string")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key occurs twice")
    return members


# --- tokens ---------------------------------------------------------------------------------------------------------


class TokenEstimate:
    """Estimates the tokens of a prompt by its bytes, for one model: a ratio of the reported figures, newer ones
    weighted more.

    It is a ratio of sums, so that estimates are right in total, which is what quotas add up. It begins with four bytes
    a token, as English text has with common tokenizers, with the weight of one request of 4 KB.
    """

    __slots__ = ("_bytes", "_tokens")

    KEPT: Final = 0.98
    """Weight of the previous sums at each report: some fifty reports count. Our choice."""
    BESIDE: Final = 8192
    """Tokens of a prompt without bytes of text (a template, pictures): our choice. Text has at most one token per byte,
    so that a report of more carries no information on other texts."""

    def __init__(self) -> None:
        self._bytes = 4096.0
        self._tokens = 1024.0

    def of(self, prompt_bytes: int) -> int:
        """Returns the estimated tokens, at least 1."""
        return max(1, ceil(prompt_bytes * self._tokens / self._bytes))

    def learn(self, prompt_bytes: int, tokens: int) -> None:
        """Learns the reported tokens of a prompt with this many bytes."""
        if prompt_bytes > 0 and 0 < tokens <= _MAX_TOKENS:
            self._bytes = self._bytes * self.KEPT + prompt_bytes
            self._tokens = self._tokens * self.KEPT + min(tokens, prompt_bytes + self.BESIDE)

    def __repr__(self) -> str:
        return f"<TokenEstimate {self._bytes / self._tokens:.2f} bytes per token>"


class Usage:
    """Tokens that a response reports."""

    __slots__ = ("cached_tokens", "completion_tokens", "prompt_tokens")

    def __init__(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        """All tokens of the prompt, including those from a cache."""
        self.completion_tokens = completion_tokens
        self.cached_tokens = cached_tokens
        """Tokens of the prompt that a cache had."""

    def __repr__(self) -> str:
        return f"<Usage {self.prompt_tokens} ({self.cached_tokens} cached) + {self.completion_tokens} tokens>"


class UsageFinder:
    """Finds the ``usage`` of a response as it passes: ``feed`` each piece of the body, then call :meth:`usage`.

    The last record with figures counts; if it lacks the prompt or the completion, the first record counts for it:
    streams of Anthropic report the prompt at their beginning, the completion at their end. Kept are the beginnings of
    these two records, and of the present one: later text may contain the key without figures (a tool's schema).
    """

    __slots__ = ("_first", "_last", "_open", "_tail")

    def __init__(self) -> None:
        self._first = self._last = self._open = self._tail = b""

    def feed(self, data: bytes) -> None:
        if len(self._open) < USAGE_BYTES and self._open:
            self._open += data[: USAGE_BYTES - len(self._open)]
        text, seen = self._tail + data, len(self._tail)
        self._tail = text[-_RECORD_BYTES:]
        if b'"usage"' not in text:
            return
        for record in _records(text):
            begin = record.end() - 1
            if begin >= seen:
                self._close()
                self._open = text[begin : begin + USAGE_BYTES]

    def _close(self) -> None:
        """Ends the present record: it counts if it has figures."""
        if b'_tokens"' in self._open and _has_figures(_record(self._open)):
            self._first = self._first or self._last
            self._last = self._open
        self._open = b""

    def usage(self) -> Usage | None:
        """Returns the reported tokens so far, or None without any known figures."""
        opened, closed = _record(self._open), _record(self._last)
        has_opened = _has_figures(opened)
        last = opened if has_opened else closed
        first = _record(self._first or (self._last if has_opened else b""))
        if not _has_figures(last):
            return None
        prompt, cached = _prompt(last)
        if not prompt:
            prompt, cached = _prompt(first)
        completion = _figure(last, "completion_tokens", "output_tokens")
        if completion is None:
            completion = _figure(first, "completion_tokens", "output_tokens") or 0
        return Usage(prompt, completion, min(cached, prompt))

    def __repr__(self) -> str:
        return f"<UsageFinder {self.usage()}>"


_RECORD_BYTES: Final = 16
"""The key, its colon and up to four spaces before and after it, less one."""
_FIGURES = frozenset({"prompt_tokens", "completion_tokens", "input_tokens", "output_tokens"})
_records = re.compile(rb'"usage"[ \t\r\n]{0,4}:[ \t\r\n]{0,4}\{').finditer
_decode = json.JSONDecoder().raw_decode


def _record(text: bytes) -> dict[str, Any]:
    try:
        record, _ = _decode(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return record if type(record) is dict else {}


def _has_figures(record: dict[str, Any]) -> bool:
    """Returns whether there is a figure, and no impossible one: a server that reports -1 or "7" has reported
    nothing."""
    figures = [value for key in _FIGURES if (value := record.get(key)) is not None]
    return all(map(_is_count, figures)) and (bool(figures) or _is_count(record.get("total_tokens")))


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MAX_REPORTED


def _figure(record: dict[str, Any], *keys: str) -> int | None:
    """Returns the value of the first of the keys that has one."""
    for key in keys:
        value = record.get(key)
        if _is_count(value):
            return value
    return None


def _prompt(record: dict[str, Any]) -> tuple[int, int]:
    """Returns the tokens of the prompt, and how many of them a cache had.

    OpenAI counts the cached ones among the prompt's, and reports them as details; Anthropic reports them in addition to
    its ``input_tokens``. LiteLLM reports OpenAI's figures with Anthropic's names for the cache.
    """
    details = record.get("prompt_tokens_details") or record.get("input_tokens_details")
    read = _figure(record, "cache_read_input_tokens") or 0
    prompt = _figure(record, "prompt_tokens")
    if prompt is None and type(details) is not dict:
        fresh = _figure(record, "input_tokens")
        if fresh is not None:
            return fresh + read + (_figure(record, "cache_creation_input_tokens") or 0), read
        if all(record.get(key) is None for key in _FIGURES):  # Rerankers and embedders that report nothing else.
            return _figure(record, "total_tokens") or 0, 0
    cached = _figure(details, "cached_tokens") if type(details) is dict else None
    return prompt or _figure(record, "input_tokens") or 0, cached or read


# --- failures -------------------------------------------------------------------------------------------------------

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def openai_error(
    kind: ErrorKind, message: str, *, function: str | None, request_id: str | None, executed: Executed
) -> bytes:
    """Returns a failure in OpenAI's shape; Tidegate's own keys are added."""
    about_model = kind is MODEL_NOT_FOUND
    kinds = {} if about_model else _OPENAI_TYPES
    error = {
        "message": message,
        "type": kinds.get(kind.status) or ("invalid_request_error" if kind.status < 500 else "server_error"),
        "param": "model" if about_model else None,
        "code": kind.code,
        "function": function,
        "request_id": request_id,
        "executed": executed.value,
        "action": kind.action,
    }
    return json.dumps({"error": error}).encode()


def anthropic_error(
    kind: ErrorKind, message: str, *, function: str | None, request_id: str | None, executed: Executed
) -> bytes:
    """Returns a failure in Anthropic's shape; Tidegate's own keys are added."""
    error = {
        "type": _ANTHROPIC_TYPES.get(kind.status) or ("invalid_request_error" if kind.status < 500 else "api_error"),
        "message": message,
        "code": kind.code,
        "function": function,
        "executed": executed.value,
        "action": kind.action,
    }
    return json.dumps({"type": "error", "error": error, "request_id": request_id}).encode()
