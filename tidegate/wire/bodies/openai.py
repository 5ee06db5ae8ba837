"""What the gateway must know of OpenAI's and Anthropic's calls: what a request asks for, what its answer used.

A request's figures come from the top level of its JSON body (:mod:`tidegate.wire.bodies.json_scan`): the model that
routes it, whether it streams, how many tokens it may make, how large its prompt is. What has the wrong type is
refused, as the servers do, because some of them would read ``"max_tokens": "5"`` as a number that nobody here has
counted.

An answer's figures are in its ``usage``, in a JSON body as in an event stream. The key with its quotes cannot stand in
a string (its own quotes would be escaped there), so it is found with ``find``, without parsing what the model wrote.
"""

import json
import re
from math import ceil
from typing import Any, Final, TypeGuard

from tidegate.errors import MODEL_NOT_FOUND, ErrorKind, Executed
from tidegate.wire.bodies.json_scan import Found, Keys, ObjectScan, read_object
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
"""Of the calls that send forms (audio, images)."""
_PROMPTS: Final = ("messages", "prompt", "input", "documents")
"""Where a prompt that grows from turn to turn stands."""
_MOST_TOKENS: Final = 1 << 31
MOST_REPORTED: Final = 1 << 26
"""Tokens that a prompt or an answer may be reported to have: the last bucket of OpenTelemetry's, some times the largest
context of any model. More is the largest number of some type, or -1 in an unsigned one."""
_BATCHED: Final = (b"/embeddings", b"/rerank", b"/completions")
USAGE_BYTES: Final = 2048
"""Kept of a usage record."""


class Asked:
    """What a request asks for."""

    __slots__ = (
        "include_usage", "inputs", "max_tokens", "model", "prompt_bytes", "prompt_start", "stream", "user",
    )  # fmt: skip

    def __init__(self) -> None:
        self.model: str | None = None
        self.stream = False
        self.include_usage = False
        """The last event of the stream is to say what it used."""
        self.max_tokens: int | None = None
        """The most that one answer may have; None: the server's own limit."""
        self.user: str | None = None
        self.prompt_bytes = 0
        """Of messages and whatever else the model reads, as JSON; images and sounds count some KB each."""
        self.prompt_start: int | None = None
        """Where in the body the part of the prompt begins that grows from turn to turn."""
        self.inputs = 1
        """Texts, token lists or documents in a list."""

    def inferences(self, path: bytes) -> int:
        """A list is a batch where each of its items is answered for itself; elsewhere it is a conversation."""
        return self.inputs if path.endswith(_BATCHED) and not path.endswith(b"/chat/completions") else 1

    def __repr__(self) -> str:
        return f"<Asked {self.model!r}, {self.prompt_bytes} bytes, at most {self.max_tokens} tokens>"


class RequestReader:
    """A body that comes in pieces: ``feed`` each, then ``end``."""

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

    def end(self) -> Asked | Rejected:
        return self._scan.end() or asked_by(self._scan.found)


def read_request(body: bytes) -> Asked | Rejected:
    """The same of a body that is complete."""
    found = read_object(body, KEYS)
    return found if type(found) is Rejected else asked_by(found)


def asked_by(found: Found) -> Asked | Rejected:
    """The types of what was found."""
    asked = Asked()
    for key, value in found.chosen.items():
        if value == b"null":
            continue
        bad = _READ[key](asked, key, value)
        if bad is not None:
            return bad
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


def _read_model(asked: Asked, key: str, value: bytes) -> Rejected | None:
    text = _text(key, value)
    if type(text) is Rejected:
        return text
    asked.model = text
    return None


def _read_user(asked: Asked, key: str, value: bytes) -> Rejected | None:
    text = _text(key, value)
    if type(text) is Rejected:
        return text
    asked.user = text
    return None


def _read_stream(asked: Asked, key: str, value: bytes) -> Rejected | None:
    if value not in (b"true", b"false"):
        return Rejected(400, f"{key!r} must be true or false")
    asked.stream = value == b"true"
    return None


def _read_tokens(asked: Asked, key: str, value: bytes) -> Rejected | None:
    if value == b"-1":  # No limit, say clients of llama.cpp and LM Studio; other servers refuse it themselves.
        return None
    if _number(value) is None or int(value) > _MOST_TOKENS:
        return Rejected(400, f"{key!r} must be a whole number from 0 to {_MOST_TOKENS}")
    asked.max_tokens = max(asked.max_tokens or 0, int(value))
    return None


def _read_stream_options(asked: Asked, key: str, value: bytes) -> Rejected | None:
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
            read.encode()  # Half a surrogate pair is no text.
            return read
    except ValueError:
        pass
    return Rejected(400, f"{key!r} must be a string")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key stands twice")
    return members


# --- tokens ---------------------------------------------------------------------------------------------------------


class TokenEstimate:
    """Tokens of a prompt by its bytes, for one model: the ratio of what answers have reported, newer ones more.

    A ratio of sums, so that estimates are right in total, which is what quotas add up. Begins with four bytes a token,
    as English text has with common tokenizers, weighing as much as one request of 4 KB.
    """

    __slots__ = ("_bytes", "_tokens")

    KEPT: Final = 0.98
    """Of what was known before, at each report: some fifty reports count. Our choice."""
    BESIDE: Final = 8192
    """Tokens of a prompt that no bytes of its text stand for (a template, pictures): our choice. Text has at most one
    token per byte, so that a report of more says nothing of other texts."""

    def __init__(self) -> None:
        self._bytes = 4096.0
        self._tokens = 1024.0

    def of(self, prompt_bytes: int) -> int:
        """Tokens, at least 1."""
        return max(1, ceil(prompt_bytes * self._tokens / self._bytes))

    def learn(self, prompt_bytes: int, tokens: int) -> None:
        """A request with so many bytes was reported to have so many tokens."""
        if prompt_bytes > 0 and 0 < tokens <= _MOST_TOKENS:
            self._bytes = self._bytes * self.KEPT + prompt_bytes
            self._tokens = self._tokens * self.KEPT + min(tokens, prompt_bytes + self.BESIDE)

    def __repr__(self) -> str:
        return f"<TokenEstimate {self._bytes / self._tokens:.2f} bytes per token>"


class Usage:
    """Tokens that an answer reports."""

    __slots__ = ("cached_tokens", "completion_tokens", "prompt_tokens")

    def __init__(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        """All of the prompt, those from a cache too."""
        self.completion_tokens = completion_tokens
        self.cached_tokens = cached_tokens
        """Of the prompt, those that a cache had."""

    def __repr__(self) -> str:
        return f"<Usage {self.prompt_tokens} ({self.cached_tokens} cached) + {self.completion_tokens} tokens>"


class UsageFinder:
    """The ``usage`` of an answer as it passes: ``feed`` each piece of the body, then ask for :meth:`usage`.

    The last record with figures counts; for the prompt or the answer, if it is silent on it, the first one: streams of
    Anthropic tell the prompt at their beginning, the answer at their end. Kept are the beginnings of these two, and of
    the one that is read: what follows may have the key without figures (a tool's schema).
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
        """The record that was read is over: it counts if it has figures."""
        if b'_tokens"' in self._open and _has_figures(_record(self._open)):
            self._first = self._first or self._last
            self._last = self._open
        self._open = b""

    def usage(self) -> Usage | None:
        """What was reported so far; None: nothing, or nothing that is known."""
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
    """Some figure, and none that cannot be one: a server that says -1 or "7" has reported nothing."""
    told = [value for key in _FIGURES if (value := record.get(key)) is not None]
    return all(map(_is_count, told)) and (bool(told) or _is_count(record.get("total_tokens")))


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= MOST_REPORTED


def _figure(record: dict[str, Any], *keys: str) -> int | None:
    """Of the first of the keys that has one."""
    for key in keys:
        value = record.get(key)
        if _is_count(value):
            return value
    return None


def _prompt(record: dict[str, Any]) -> tuple[int, int]:
    """Tokens of the prompt, and how many of them a cache had.

    OpenAI counts these among the prompt's, and tells them as details; Anthropic tells them beside its
    ``input_tokens``. LiteLLM tells OpenAI's figures and Anthropic's names for the cache.
    """
    details = record.get("prompt_tokens_details") or record.get("input_tokens_details")
    read = _figure(record, "cache_read_input_tokens") or 0
    prompt = _figure(record, "prompt_tokens")
    if prompt is None and type(details) is not dict:
        fresh = _figure(record, "input_tokens")
        if fresh is not None:
            return fresh + read + (_figure(record, "cache_creation_input_tokens") or 0), read
        if all(record.get(key) is None for key in _FIGURES):  # Rerankers and embedders that tell nothing else.
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
    """A failure in OpenAI's shape; the keys of Tidegate's own stand beside theirs."""
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
    """A failure in Anthropic's shape; the keys of Tidegate's own stand beside theirs."""
    error = {
        "type": _ANTHROPIC_TYPES.get(kind.status) or ("invalid_request_error" if kind.status < 500 else "api_error"),
        "message": message,
        "code": kind.code,
        "function": function,
        "executed": executed.value,
        "action": kind.action,
    }
    return json.dumps({"type": "error", "error": error, "request_id": request_id}).encode()
