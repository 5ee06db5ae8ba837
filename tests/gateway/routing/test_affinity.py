"""Affinity keys: the part of a request that each rule of the hash spread reads."""

import json
import zlib
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.worlds.fake_exchange import request
from tidegate.activator.prefixes import BLOCK_BYTES, MAX_BLOCKS, block_hashes
from tidegate.gateway.routing.affinity import PROMPT_BYTES, hash_key
from tidegate.gateway.routing.match import Call, Target
from tidegate.gateway.routing.request_state import RequestState
from tidegate.wire.bodies.openai import CallRequest, read_request


class Seen:
    """A request as far as the hash spread looks at it."""

    is_rpc = False

    def __init__(
        self,
        *fields: str,
        peer: bytes = b"10.0.0.7",
        trusted: bool = False,
        body: bytes = b"",
        is_read: bool = False,
        model: str = "",
    ) -> None:
        lines = "".join(f"{field}\n" for field in fields)
        self.head = request(f"POST / HTTP/1.1\nhost: x\n{lines}\n")
        self.peer = peer
        self.trusted = trusted
        self.body = body
        self.context = RequestState(Target(Call.WORK, None, model=model), b"1", b"")
        if is_read:
            asked = read_request(body)
            assert type(asked) is CallRequest
            self.context.asked = asked


@pytest.mark.parametrize(
    ("rule", "asked", "key"),
    [
        ("client", Seen(), b"10.0.0.7"),
        ("client", Seen("x-forwarded-for: 1.2.3.4"), b"10.0.0.7"),
        ("client", Seen("x-forwarded-for: 1.2.3.4, 5.6.7.8", trusted=True), b"1.2.3.4"),
        ("client", Seen(trusted=True), b"10.0.0.7"),
        ("session", Seen("X-Session-Id: chat-9"), b"chat-9"),
        ("session", Seen(), None),
        ("session", Seen("x-session-id: "), None),
        ("header:X-User", Seen("x-user: Ann"), b"Ann"),
        ("header:x-user", Seen(), None),
        ("cookie:sid", Seen("cookie: a=1; sid=x=y; b=2"), b"x=y"),
        ("cookie:sid", Seen("cookie: xsid=1"), None),
        ("cookie:sid", Seen("cookie: sid=; a=1"), None),
        ("cookie:sid", Seen(), None),
    ],
)
def test_what_heads_say(rule: str, asked: Any, key: bytes | None) -> None:
    assert hash_key(rule)(asked) == key


def key_of(rule: str, seen: Seen, models: int = 1) -> Any:
    exchange: Any = seen
    return hash_key(rule, models)(exchange)


def body(turns: int, *, first: dict[str, object] | None = None, last: dict[str, object] | None = None) -> bytes:
    """A conversation after so many turns; ``first`` and ``last`` stand around the messages."""
    messages = [{"role": "user", "content": f"turn {turn} " + "x" * 700} for turn in range(turns)]
    return json.dumps((first or {}) | {"messages": messages} | (last or {})).encode()


@pytest.mark.parametrize("is_read", [False, True])
def test_a_conversation_keeps_its_chain_whatever_else_its_bodies_say(is_read: bool) -> None:
    def blocks(turns: int, **around: dict[str, object]) -> Any:
        return key_of("prefix", Seen(body=body(turns, **around), is_read=is_read))

    short = blocks(2)
    longer = blocks(5, first={"model": "m", "max_tokens": 17}, last={"stream": True})
    assert len(short) == (len(body(2)) - len(b'{"messages": ')) // BLOCK_BYTES
    whole_turns = short[: len(short) - 1]
    assert longer[: len(whole_turns)] == whole_turns and len(longer) > len(short)
    assert blocks(5, first={"seed": 1})[: len(longer)] == longer[: len(blocks(5, first={"seed": 1}))]
    other = key_of("prefix", Seen(body=body(2).replace(b"turn 0", b"turn x"), is_read=is_read))
    assert other is not None and not set(other) & set(short)


def test_what_is_looked_at_is_bounded() -> None:
    long = Seen(body=b'{"prompt": "' + b"a" * 300_000 + b'"}')
    blocks = key_of("prefix", long)
    assert blocks is not None and len(blocks) == MAX_BLOCKS
    key = key_of("prompt", long)
    assert key is not None and len(key) == PROMPT_BYTES and key.startswith(b'"aaa')


def test_a_body_without_a_prompt_counts_from_its_first_byte_and_none_counts_not() -> None:
    assert key_of("prefix", Seen(body=b"\x00binary")) == block_hashes(b"\x00binary")
    assert key_of("prefix", Seen(body=b'{"inputs": [1, 2]}')) == block_hashes(b'{"inputs": [1, 2]}')
    assert key_of("prefix", Seen(body=b'{"model": 7, ]')) == block_hashes(b'{"model": 7, ]')
    for rule in ("prefix", "prompt", "model"):
        assert key_of(rule, Seen()) is None
    assert key_of("prefix", Seen(), models=2) is None


def test_what_was_read_of_a_large_body_for_its_tokens_is_not_read_again() -> None:
    seen: Any = Seen(body=b'{"messages": ["' + b"a" * 20_000 + b'"], "model": "one"}')
    call = CallRequest()
    call.prompt_start = 1000  # Elsewhere, so that one sees who was asked.
    seen.context.tokens = SimpleNamespace(request=SimpleNamespace(asked=call))
    assert key_of("prefix", seen) == block_hashes(seen.body[1000:])
    assert key_of("prompt", seen) == seen.body[1000 : 1000 + PROMPT_BYTES]
    assert key_of("prefix", seen, models=2) == block_hashes(seen.body[13:]), "it did not tell the model"
    call.model = "two"
    assert key_of("prefix", seen, models=2) == block_hashes(seen.body[1000:], b"two")


def test_messages_of_grpc_have_a_model_and_no_prompt() -> None:
    seen = Seen(body=b"\x00\x00\x00\x00\x05hello", model="adapter")
    seen.is_rpc = True
    assert key_of("prefix", seen) is None and key_of("prompt", seen) is None
    assert key_of("model", seen) == [zlib.crc32(b"adapter")]


def test_models_are_found_in_path_and_body() -> None:
    expected = [zlib.crc32(b"adapter")]
    assert key_of("model", Seen(model="adapter")) == expected
    assert key_of("model", Seen(body=b'{"model": "adapter", "prompt": "x"}')) == expected
    assert key_of("model", Seen(body=b'{"prompt": "x", "model": "adapter"}', is_read=True)) == expected


def test_where_models_share_replicas_the_first_link_is_the_model() -> None:
    text = b'{"prompt": "' + b"a" * 600 + b'", "model": "one"}'
    alone, shared = (key_of("prefix", Seen(body=text), models) for models in (1, 2))
    assert alone is not None and shared is not None
    assert shared[0] == zlib.crc32(b"one") and len(shared) == len(alone) + 1
    assert not set(shared) & set(alone)
