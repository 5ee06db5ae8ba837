"""Parameters of a request, usage of its response, failures in the clients' shapes."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.bytes_plan import cut
from tidegate.errors import DEADLINE, NOT_FOUND, QUEUE_FULL, TOO_LARGE, Executed
from tidegate.wire.bodies.openai import (
    USAGE_BYTES,
    CallRequest,
    RequestReader,
    TokenEstimate,
    UsageFinder,
    anthropic_error,
    openai_error,
    read_request,
)
from tidegate.wire.http1.fields import Rejected


def asked(**members: Any) -> CallRequest:
    found = read_request(json.dumps(members).encode())
    assert type(found) is CallRequest, found
    return found


def used(pieces: list[bytes]) -> tuple[int, int, int] | None:
    finder = UsageFinder()
    for piece in pieces:
        finder.feed(piece)
    usage = finder.usage()
    return None if usage is None else (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)


# --- requests -------------------------------------------------------------------------------------------------------


def test_a_chat() -> None:
    messages = [{"role": "user", "content": 'say "model": "evil"'}]
    found = asked(
        messages=messages, model="llama", stream=True, stream_options={"include_usage": True}, max_tokens=9, user="u"
    )
    assert (found.model, found.stream, found.include_usage, found.max_tokens, found.user) == (
        "llama",
        True,
        True,
        9,
        "u",
    )
    assert found.prompt_bytes == len(json.dumps(messages))
    assert found.prompt_start == len('{"messages": ')
    assert found.inferences(b"/v1/chat/completions") == 1


def test_what_is_not_given_and_null_are_alike() -> None:
    for found in (asked(), asked(model=None, stream=None, max_tokens=None, user=None, stream_options=None)):
        assert (found.model, found.stream, found.include_usage, found.max_tokens, found.user) == (
            None, False, False, None, None
        )  # fmt: skip


def test_the_largest_of_the_limits_counts() -> None:
    assert asked(max_tokens=5, max_completion_tokens=7).max_tokens == 7
    assert asked(max_output_tokens=0).max_tokens == 0
    assert asked(max_tokens=-1).max_tokens is None


@pytest.mark.parametrize(
    ("path", "members", "expected"),
    [
        (b"/v1/embeddings", {"input": "one"}, 1),
        (b"/v1/embeddings", {"input": ["one", 'two, "three"', "\\"]}, 3),
        (b"/v1/embeddings", {"input": [1, 2, 3]}, 1),
        (b"/v1/embeddings", {"input": [[1, 2], [3]]}, 2),
        (b"/v1/embeddings", {"input": []}, 1),
        (b"/openai/v1/completions", {"prompt": ["a", "b"]}, 2),
        (b"/v1/rerank", {"query": "q", "documents": ["a", "b", "c"]}, 3),
        (b"/v1/responses", {"input": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, 1),
    ],
)
def test_batches(path: bytes, members: dict[str, Any], expected: int) -> None:
    for separators in ((",", ":"), (", ", ": "), (" , ", ":")):
        found = read_request(json.dumps(members, separators=separators).encode())
        assert type(found) is CallRequest and found.inferences(path) == expected


@pytest.mark.parametrize(
    "members",
    [
        {"model": 5}, {"model": ["a"]}, {"model": "\ud800"}, {"user": {}}, {"stream": "true"}, {"stream": 1},
        {"max_tokens": "5"}, {"max_tokens": 5.0}, {"max_tokens": -2}, {"max_tokens": True}, {"max_tokens": 2**31 + 1},
        {"stream_options": []}, {"stream_options": {"include_usage": "yes"}},
        {"stream_options": {"include_usage": 1}},
    ],
)  # fmt: skip
def test_wrong_types_are_refused(members: dict[str, Any]) -> None:
    found = read_request(json.dumps(members).encode())
    assert type(found) is Rejected and found.status == 400
    assert repr(next(iter(members))) in found.why


def test_a_key_twice_inside_the_stream_options() -> None:
    assert type(read_request(b'{"stream_options":{"include_usage":true,"include_usage":false}}')) is Rejected


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["model", "user", "stream", "max_tokens", "messages", "input", "x"]),
        st.one_of(st.text(max_size=5), st.booleans(), st.integers(-2, 9), st.none(), st.lists(st.text(max_size=3))),
    ),
    st.binary(min_size=1, max_size=5),
)
def test_a_body_in_pieces_asks_for_the_same(members: dict[str, Any], cuts: bytes) -> None:
    body = json.dumps(members).encode()
    reader = RequestReader()
    for piece in cut(body, cuts):
        assert reader.feed(piece) is None
    whole, pieces = read_request(body), reader.end()
    assert type(whole) is type(pieces)
    if type(whole) is CallRequest and type(pieces) is CallRequest:
        assert all(getattr(whole, name) == getattr(pieces, name) for name in CallRequest.__slots__)
        assert whole.model == members.get("model") == reader.model


def test_the_model_is_known_early() -> None:
    reader = RequestReader()
    reader.feed(b'{"user":"b","model":"a')
    before = reader.model
    reader.feed(b'","messages":[')
    assert (before, reader.model) == (None, "a")
    assert type(reader.end()) is Rejected


# --- tokens ---------------------------------------------------------------------------------------------------------


def test_estimates_follow_what_is_reported() -> None:
    """Prompts of 100 bytes to 20 KB at 2.9 bytes a token and 30 tokens of a template, each a tenth more or less."""
    rng = random.Random(1)
    estimate = TokenEstimate()
    assert estimate.of(4096) == 1024
    total = error = 0
    for number in range(400):
        size = int(100 * 200 ** rng.random())
        tokens = int(size / 2.9 * rng.uniform(0.9, 1.1)) + 30
        if number >= 50:
            total += tokens
            error += estimate.of(size) - tokens
        estimate.learn(size, tokens)
    assert abs(error) < 0.02 * total


def test_estimates_learn_nothing_from_nothing() -> None:
    estimate = TokenEstimate()
    for size, tokens in ((0, 5), (5, 0), (5, -1), (5, 1 << 40)):
        estimate.learn(size, tokens)
    assert (estimate.of(400), estimate.of(0)) == (100, 1)


# --- usage ----------------------------------------------------------------------------------------------------------

_CHAT = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17, "prompt_tokens_details": {"cached_tokens": 8}}
_SAID = {"content": 'he said \\"usage\\": {"prompt_tokens": 1} "usage":{"prompt_tokens":99}'}


def stream(*events: object, named: bool = False) -> bytes:
    text = b""
    for event in events:
        if named and type(event) is dict:
            text += b"event: %b\n" % event["type"].encode()
        text += b"data: %b\n\n" % (event if type(event) is bytes else json.dumps(event).encode())
    return text


_ANSWERS: list[tuple[bytes, tuple[int, int, int] | None]] = [
    (json.dumps({"choices": [_SAID], "usage": _CHAT}).encode(), (12, 5, 8)),
    (json.dumps({"usage": _CHAT, "choices": [_SAID]}, indent=2).encode(), (12, 5, 8)),
    (json.dumps({"object": "list", "usage": {"prompt_tokens": 8, "total_tokens": 8}}).encode(), (8, 0, 0)),
    (json.dumps({"usage": {"input_tokens": 9, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}}}
                ).encode(), (9, 3, 4)),
    (json.dumps({"type": "message", "usage": {"input_tokens": 9, "cache_read_input_tokens": 100, "output_tokens": 3}}
                ).encode(), (109, 3, 100)),
    (stream({"choices": [_SAID], "usage": None}, {"choices": [], "usage": _CHAT}, b"[DONE]"), (12, 5, 8)),
    (stream({"usage": {"prompt_tokens": 12, "completion_tokens": 1}}, {"usage": _CHAT}, b"[DONE]"), (12, 5, 8)),
    (stream({"type": "response.created", "response": {"usage": None}},
            {"type": "response.completed",
             "response": {"output": [_SAID], "usage": {"input_tokens": 7, "output_tokens": 2}}},
            named=True), (7, 2, 0)),
    (stream({"type": "message_start",
             "message": {"usage": {"input_tokens": 25, "cache_creation_input_tokens": 5, "output_tokens": 1}}},
            *[{"type": "content_block_delta", "delta": _SAID}] * 30,
            {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 15}}, named=True), (30, 15, 0)),
    (json.dumps({"usage": _CHAT, "tools": [{"schema": {"usage": {"type": "object"}}}]}).encode(), (12, 5, 8)),
    (stream({"usage": {"input_tokens": 4, "output_tokens": 1}}, {"usage": {"output_tokens": 9}}, {"usage": {}}),
     (4, 9, 0)),
    (stream({"choices": [_SAID]}, b"[DONE]"), None),
    (json.dumps({"usage": [1], "choices": [_SAID]}).encode(), None),
    (b'{"usage":{"prompt_tokens":', None),
    *[(b'{"usage":{"prompt_tokens":%b,"completion_tokens":1}}' % nonsense, None)
      for nonsense in (b'"9"', b"-1", b"9.0", b"true", b"[9]", b"9" * 30)],
    (b'{"usage":{"prompt_tokens":null,"completion_tokens":null}}', None),
    (stream({"usage": _CHAT}, {"usage": {"prompt_tokens": -1}}), (12, 5, 8)),
    (json.dumps({"usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 70}}}).encode(), (7, 0, 7)),
    # What a caller's tool has in its schema or a model in a tool's arguments completes no other record.
    (json.dumps({"content": [{"type": "tool_use", "input": {"usage": {"prompt_tokens": 1, "completion_tokens": 1,
                 "cache_read_input_tokens": 10**6}}}], "usage": {"input_tokens": 5000, "output_tokens": 60}}).encode(),
     (5000, 60, 0)),
    (stream({"type": "response.created", "tools": [{"examples": [{"usage": {"prompt_tokens": 1}}]}]},
            {"type": "response.completed", "response": {"usage": {"input_tokens": 70, "output_tokens": 2}}},
            named=True), (70, 2, 0)),
    # LiteLLM says both names of one cache; its prompt has those tokens already.
    (json.dumps({"usage": _CHAT | {"cache_read_input_tokens": 8, "cache_creation_input_tokens": 2}}).encode(),
     (12, 5, 8)),
    (json.dumps({"usage": {"prompt_tokens": 12, "cache_read_input_tokens": 8}}).encode(), (12, 0, 8)),
    (stream({"usage": {"input_tokens": 25, "output_tokens": 1}}, {"usage": {"input_tokens": 0, "output_tokens": 9}}),
     (25, 9, 0)),
    (stream({"usage": {"input_tokens": 0, "output_tokens": 0}}, {"usage": {"input_tokens": 25, "output_tokens": 9}}),
     (25, 9, 0)),
    (stream({"usage": {"input_tokens": 25}}, {"usage": {"output_tokens": 9, "cache_read_input_tokens": 3}}),
     (25, 9, 0)),
    # Rerankers and embedders tell the sum alone.
    (json.dumps({"results": [], "usage": {"total_tokens": 56}}).encode(), (56, 0, 0)),
    (json.dumps({"results": [], "usage": {"total_tokens": -56}}).encode(), None),
    # The largest number of a type, or -1 in an unsigned one.
    *[(json.dumps({"usage": {"prompt_tokens": most, "completion_tokens": 1}}).encode(), None)
      for most in (2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)],
    (json.dumps({"usage": {"prompt_tokens": 2**26, "completion_tokens": 1}}).encode(), (2**26, 1, 0)),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(_ANSWERS)))
@pytest.mark.parametrize("step", [1, 5, 64, 1 << 20])
def test_usage_in_any_pieces(case: int, step: int) -> None:
    body, expected = _ANSWERS[case]
    assert used([body[at : at + step] for at in range(0, len(body), step)]) == expected


def test_usage_takes_little_memory() -> None:
    finder = UsageFinder()
    for _ in range(50):
        finder.feed(b'"usage":{' * 10_000)
    assert len(finder._first) + len(finder._last) + len(finder._open) + len(finder._tail) <= 4 * USAGE_BYTES


# --- failures -------------------------------------------------------------------------------------------------------


def test_failures_in_openais_shape() -> None:
    body = json.loads(openai_error(QUEUE_FULL, "full", function="f", request_id="r", executed=Executed.FALSE))
    error = body["error"]
    assert (error["message"], error["type"], error["param"], error["code"]) == (
        "full", "rate_limit_error", None, "queue_full"
    )  # fmt: skip
    assert (error["request_id"], error["executed"], error["action"]) == ("r", "false", QUEUE_FULL.action)


def test_failures_in_anthropics_shape() -> None:
    for kind, name in ((QUEUE_FULL, "rate_limit_error"), (NOT_FOUND, "not_found_error"), (DEADLINE, "timeout_error"),
                       (TOO_LARGE, "request_too_large")):  # fmt: skip
        body = json.loads(anthropic_error(kind, "so", function=None, request_id="r", executed=Executed.UNKNOWN))
        assert (body["type"], body["request_id"]) == ("error", "r")
        assert (body["error"]["type"], body["error"]["message"]) == (name, "so")
