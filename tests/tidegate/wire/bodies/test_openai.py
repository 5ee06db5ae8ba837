"""Parameters of a request, usage of its response, failures in the clients' shapes."""

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.bytes_plan import cut
from tidegate.errors import (
    BAD_REQUEST,
    DEADLINE,
    DROPPED,
    MODEL_NOT_FOUND,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_GRPC,
    QUEUE_FULL,
    REPLICA_BROKE,
    TOO_LARGE,
    UNAUTHENTICATED,
    ErrorKind,
    Executed,
)
from tidegate.wire.bodies.openai import (
    USAGE_BYTES,
    CallRequest,
    RequestReader,
    TokenEstimate,
    Usage,
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
    ("written", "expected"),
    [
        (b"0", 0), (b"1", 1), (b"2147483648", 2**31), (b"2147483649", None), (b"9999999999", None), (b"07", None),
        (b"10000000000", None), (b"5.0", None), (b"1e3", None), (b"-0", None), (b"-2", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_a_limit_is_a_whole_number_up_to_2_to_the_31(key: str, written: bytes, expected: int | None) -> None:
    found = read_request(b'{"%b":%b}' % (key.encode(), written))
    if expected is None:
        assert type(found) is Rejected
        assert found.why == f"{key!r} must be a whole number from 0 to 2147483648"
    else:
        assert type(found) is CallRequest and found.max_tokens == expected


def test_all_input_of_the_model_is_the_prompt() -> None:
    parts = {"documents": ["d"], "input": "in", "instructions": "be", "messages": [], "prompt": "p", "system": "s",
             "tools": [{}]}  # fmt: skip
    found = asked(**parts, other="not this")
    assert found.prompt_bytes == sum(len(json.dumps(part)) for part in parts.values())
    assert asked(other="x").prompt_bytes == 0


def test_the_part_that_grows_is_the_messages_then_the_prompt_the_input_the_documents() -> None:
    parts = {"documents": ["d"], "input": "in", "prompt": "p", "messages": []}
    while parts:
        grows = list(parts)[-1]
        body = json.dumps({"tools": [], **parts})
        found = asked(tools=[], **parts)
        assert found.prompt_start == body.index(f'"{grows}": ') + len(grows) + 4
        del parts[grows]
    assert asked(tools=[], system="s").prompt_start is None


def test_the_longest_list_is_the_batch() -> None:
    path = b"/v1/rerank"
    assert asked(input=["a", "b"], documents=["a", "b", "c"]).inferences(path) == 3
    assert asked(input=["a", "b", "c"], documents=["a", "b"]).inferences(path) == 3
    assert asked(input=["a"], documents=[]).inferences(path) == 1
    assert asked(input=["a", "b"]).inferences(b"/v1/chat/completions") == 1


def test_a_wanted_usage_is_an_object_with_a_flag() -> None:
    for written, wanted in (("{}", False), ('{"include_usage":null}', False), ('{"include_usage":false}', False),
                            ('{"x":1,"include_usage":true}', True), ('{"include_usage": true}', True),
                            ('{"include_usage":true}', True), ("null", False)):  # fmt: skip
        found = read_request(b'{"stream_options":%b}' % written.encode())
        assert type(found) is CallRequest and found.include_usage is wanted
    for written in ("true", "false", "1", '"x"', '{"include_usage":0}', "[" * 5000 + "]" * 5000):
        assert type(read_request(b'{"stream_options":%b}' % written.encode())) is Rejected


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


def test_an_estimate_is_a_ratio_of_sums_that_forget_a_fiftieth_at_each_report() -> None:
    estimate = TokenEstimate()
    estimate.learn(1_000_000, 400_000)
    tokens, size = 0.98 * 1024 + 400_000, 0.98 * 4096 + 1_000_000
    assert estimate.of(10**9) == math.ceil(10**9 * tokens / size)
    estimate.learn(3_000_000, 600_000)
    tokens, size = 0.98 * tokens + 600_000, 0.98 * size + 3_000_000
    assert estimate.of(10**9) == math.ceil(10**9 * tokens / size)
    assert repr(estimate) == f"<TokenEstimate {size / tokens:.2f} bytes per token>"


def test_a_report_of_more_tokens_than_text_counts_8192_besides() -> None:
    for tokens in (8192 + 1000, 8192 + 1001, 1 << 31):
        estimate = TokenEstimate()
        estimate.learn(1000, tokens)
        assert estimate.of(10**9) == math.ceil(10**9 * (0.98 * 1024 + 9192) / (0.98 * 4096 + 1000))
    estimate = TokenEstimate()
    estimate.learn(1000, 9191)
    assert estimate.of(10**9) == math.ceil(10**9 * (0.98 * 1024 + 9191) / (0.98 * 4096 + 1000))


def test_the_smallest_report_counts_and_an_impossible_one_does_not() -> None:
    estimate = TokenEstimate()
    estimate.learn(1, 1)
    assert estimate.of(10**9) == math.ceil(10**9 * (0.98 * 1024 + 1) / (0.98 * 4096 + 1))
    before = estimate.of(10**9)
    estimate.learn(1000, (1 << 31) + 1)
    assert estimate.of(10**9) == before
    assert [TokenEstimate().of(size) for size in (0, 1, 4, 5, 8, 9)] == [1, 1, 1, 2, 2, 3]


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


@pytest.mark.parametrize(("more", "expected"), [(0, (7, 1, 0)), (1, None)])
@pytest.mark.parametrize("step", [1, 100, 1 << 20])
def test_a_record_is_read_up_to_2048_bytes(step: int, more: int, expected: tuple[int, int, int] | None) -> None:
    front, back = b'{"prompt_tokens":7,"pad":"', b'","completion_tokens":1}'
    record = front + b"x" * (2048 + more - len(front) - len(back)) + back
    body = b'{"usage":' + record + b"}" + b" " * 3000
    assert used([body[at : at + step] for at in range(0, len(body), step)]) == expected
    last = b'{"id":"x","usage":' + record + b"}"
    assert used([last]) == expected, "nothing follows it"


@pytest.mark.parametrize(("spaces", "expected"), [(4, (7, 1, 0)), (5, None)])
def test_a_record_is_found_with_four_spaces_wherever_it_is_cut(
    spaces: int, expected: tuple[int, int, int] | None
) -> None:
    space = b" \t\r\n "[:spaces]
    body = b'{"id":1,"usage"%b:%b{"prompt_tokens":7,"completion_tokens":1}}' % (space, space)
    for at in range(len(body)):
        assert used([body[:at], body[at:]]) == expected
        assert used([body[:at], body[at : at + 1], body[at + 1 :]]) == expected


def test_what_is_found_is_shown() -> None:
    assert repr(Usage(5, 6, 4)) == "<Usage 5 (4 cached) + 6 tokens>"
    assert repr(UsageFinder()) == "<UsageFinder None>"
    assert repr(asked(model="m", prompt="p", max_tokens=3)) == "<CallRequest 'm', 3 bytes, at most 3 tokens>"


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"prompt_tokens": 2**26, "completion_tokens": 2**26}, (2**26, 2**26, 0)),
        ({"prompt_tokens": 2**26 + 1, "completion_tokens": 1}, None),
        ({"prompt_tokens": 1, "completion_tokens": 2**26 + 1}, None),
        ({"prompt_tokens": 0, "completion_tokens": 0}, (0, 0, 0)),
        ({"completion_tokens": 4}, (0, 4, 0)),
        ({"total_tokens": 0}, (0, 0, 0)),
        ({"total_tokens": 2**26 + 1}, None),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": -1}}, (5, 0, 0)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 0}, "cache_read_input_tokens": 3}, (5, 0, 3)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {}, "cache_read_input_tokens": 3}, (5, 0, 3)),
        ({"prompt_tokens": 5, "input_tokens": 9, "output_tokens": 2}, (5, 2, 0)),
        ({"prompt_tokens": 0, "input_tokens": 9, "output_tokens": 2}, (9, 2, 0)),
        ({"input_tokens": 9, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 4}, (16, 0, 3)),
        ({"input_tokens": 9, "input_tokens_details": {}, "cache_read_input_tokens": 3}, (9, 0, 3)),
        ({"input_tokens": 9, "prompt_tokens_details": {"cached_tokens": 1}, "input_tokens_details": {}}, (9, 0, 1)),
        ({"output_tokens": 9, "total_tokens": 12}, (0, 9, 0)),
    ],
)  # fmt: skip
def test_the_figures_of_a_record(record: dict[str, Any], expected: tuple[int, int, int] | None) -> None:
    assert used([json.dumps({"usage": record}).encode()]) == expected


# --- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "openai", "anthropic"),
    [
        (BAD_REQUEST, "invalid_request_error", "invalid_request_error"),
        (UNAUTHENTICATED, "authentication_error", "authentication_error"),
        (NOT_ALLOWED, "permission_error", "permission_error"),
        (NOT_FOUND, "not_found_error", "not_found_error"),
        (MODEL_NOT_FOUND, "invalid_request_error", "not_found_error"),
        (TOO_LARGE, "invalid_request_error", "request_too_large"),
        (NOT_GRPC, "invalid_request_error", "invalid_request_error"),
        (QUEUE_FULL, "rate_limit_error", "rate_limit_error"),
        (ErrorKind("x", 499, False, "y"), "invalid_request_error", "invalid_request_error"),
        (ErrorKind("x", 500, False, "y"), "server_error", "api_error"),
        (REPLICA_BROKE, "server_error", "api_error"),
        (DROPPED, "server_error", "overloaded_error"),
        (DEADLINE, "server_error", "timeout_error"),
    ],
)
def test_each_status_has_its_type(kind: ErrorKind, openai: str, anthropic: str) -> None:
    for made, expected in ((openai_error, openai), (anthropic_error, anthropic)):
        body = json.loads(made(kind, "so", function="f", request_id="r", executed=Executed.TRUE))
        error = body["error"]
        assert (error["type"], error["code"], error["function"], error["executed"]) == (
            expected,
            kind.code,
            "f",
            "true",
        )
        if made is openai_error:
            assert error["param"] == ("model" if kind is MODEL_NOT_FOUND else None)


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
