"""Affinity keys: the part of a request that decides which replica it prefers (``Spread.HASH``), by ``hash_on``.

``client``, ``session``, ``header:NAME`` and ``cookie:NAME`` are in the head. ``prompt``, ``prefix`` and ``model`` go by
what the model reads: the beginning of the prompt, and the adapter that answers. If a body was read for its route, the
place of the prompt is known. Otherwise its first 16 KB are searched; if nothing looks like a prompt, the body counts
from its first byte. Only hashes of it are kept.

Messages of gRPC begin with their lengths, so that equal prompts differ from the first byte on: there ``prompt`` and
``prefix`` have no effect.
"""

import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidegate.activator.prefixes import FINE_BYTES, block_hashes
from tidegate.activator.prefixes import PROMPT_BYTES as PREFIX_BYTES
from tidegate.activator.state.bind import Affinity
from tidegate.wire.bodies.json_scan import ObjectScan
from tidegate.wire.bodies.openai import KEYS, CallRequest, request_of
from tidegate.wire.http1.fields import Rejected

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

SESSION: Final = b"x-session-id"
"""The field of ``session``: the common name for a conversation's id among clients and model servers."""
PROMPT_BYTES: Final = 1024
"""Bytes of the prompt that ``prompt`` uses. Our choice: a short system prompt and the beginning of the first turn."""
READ_BYTES: Final = FINE_BYTES
"""Bytes of a body that are waited for, and searched for the prompt; further bytes that are there are used as well."""
FROM_BODY: Final = frozenset(("prompt", "prefix", "model"))

HashKey = Callable[["Exchange"], Affinity | None]
"""Returns the affinity key of a request; None if it has none."""


def hash_key(rule: str, models: int = 1) -> HashKey:
    """Returns the reader of ``hash_on`` for a function that answers to this many models."""
    if rule == "prefix":
        return _prefix if models <= 1 else _prefix_of_model
    source, _, name = rule.partition(":")
    if source == "header":
        return _field(name.lower().encode())
    if source == "cookie":
        cookie = name.encode()
        return lambda ex: _cookie(ex.head.get(b"cookie"), cookie)
    return {"client": _client, "session": _field(SESSION), "prompt": _prompt, "model": _model}[rule]


def _field(name: bytes) -> HashKey:
    return lambda ex: ex.head.get(name) or None


def _client(ex: "Exchange") -> bytes:
    """Returns the client's address: the one that a trusted proxy states, else the peer's."""
    if ex.trusted:
        found = (ex.head.get(b"x-forwarded-for") or b"").partition(b",")[0].strip(b" \t")
        if found:
            return found
    return ex.peer


def _cookie(field: bytes | None, name: bytes) -> bytes | None:
    for pair in (field or b"").split(b";"):
        key, equals, value = pair.partition(b"=")
        if equals and key.strip(b" \t") == name:
            return value.strip(b" \t") or None
    return None


# --- bodies ---------------------------------------------------------------------------------------------------------


def _prompt(ex: "Exchange") -> bytes | None:
    return _beginning(ex, _asked(ex, names=False), PROMPT_BYTES) or None


def _prefix(ex: "Exchange") -> list[int] | None:
    text = _beginning(ex, _asked(ex, names=False), PREFIX_BYTES)
    return block_hashes(text) if text else None


def _prefix_of_model(ex: "Exchange") -> list[int] | None:
    asked = _asked(ex)
    text = _beginning(ex, asked, PREFIX_BYTES)
    return block_hashes(text, _name(ex, asked).encode()) if text else None


def _model(ex: "Exchange") -> list[int] | None:
    name = _name(ex, _asked(ex))
    return [zlib.crc32(name.encode())] if name else None


def _asked(ex: "Exchange", *, names: bool = True) -> CallRequest | None:
    """Returns the fields of the body: as it was read for the route or its tokens, else those in its first bytes.

    ``names``: the model is wanted as well as the prompt's place.
    """
    asked: CallRequest | None = ex.context.asked
    if asked is not None or not ex.body.startswith(b"{"):
        return asked
    if ex.context.tokens is not None:
        asked = ex.context.tokens.request.asked
        if asked.prompt_start is not None and (asked.model is not None or not names):
            return asked
    scan = ObjectScan(KEYS)
    scan.feed(ex.body[:READ_BYTES])
    found = request_of(scan.found)
    return None if type(found) is Rejected else found


def _beginning(ex: "Exchange", asked: CallRequest | None, size: int) -> bytes:
    if ex.is_rpc:
        return b""
    start = 0 if asked is None or asked.prompt_start is None else asked.prompt_start
    return ex.body[start : start + size]


def _name(ex: "Exchange", asked: CallRequest | None) -> str:
    """Returns the model that the request names, in its path or body; empty if it names none."""
    model: str = ex.context.target.model
    return model or (asked.model if asked is not None else None) or ""
