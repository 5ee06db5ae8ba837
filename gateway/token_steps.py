"""The steps of the request path that concern tokens: estimate, read the answer, count."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidegate.gateway.counting.outcomes import Ending, ending_of
from tidegate.gateway.counting.token_metrics import OTHER_MODEL, Operation, TokenCounters
from tidegate.gateway.counting.tokens import FunctionTokens, Prompt, Tokens
from tidegate.gateway.routing.openai_body import is_json
from tidegate.records.route_table import FunctionRoute
from tidegate.wire.bodies.json_scan import BINARY_BYTES, ObjectScan
from tidegate.wire.bodies.openai import KEYS, CallRequest, read_request, request_of
from tidegate.wire.bodies.tokens import PLAIN, SAMPLE_BYTES, script
from tidegate.wire.message_heads import AnyResponseHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.detached import BodyTap
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.gateway.routing.request_state import RequestState

SCANNED_BYTES: Final = 8192
"""Bytes that are scanned of a body that was not read before."""
MAX_UNREAD_BYTES: Final = 4 << 20
"""Bytes of a body still to come that count as prompt at most, whatever its head says: a million tokens."""
MAX_MODELS: Final = 16
"""Model names of a function that metrics distinguish: the first ones of its list."""
REJECTED: Final = "rejected"
"""Error type of requests answered with a status from 400 to 499."""
_BINARY_SAMPLE_BYTES: Final = 1024
"""ASCII of this length without a space, quote or escape is a picture or a sound in base64, not text."""


class TokenAccounting:
    """Estimates, reads and counts the tokens of requests."""

    __slots__ = ("_clock", "_tap_response")

    def __init__(self, clock: Callable[[], float], tap_response: "Callable[[Exchange, BodyTap], None]") -> None:
        self._clock = clock
        self._tap_response = tap_response

    def estimate(self, ex: "Exchange", state: "RequestState", known: FunctionTokens, route: FunctionRoute) -> None:
        """Sets ``state.tokens`` before the waiting room. Only POST requests over HTTP have tokens."""
        counters = state.counters
        if counters is None or ex.head.method != b"POST" or ex.is_rpc:
            return
        if counters.tokens is None:
            counters.tokens = TokenCounters()
        if state.tokens is not None:
            state.tokens.counters = counters.tokens  # Admitted again, perhaps to another revision.
            return
        prompt = _prompt(ex, state)
        named = prompt.asked.model or state.target.model
        model = named if named in route.models[:MAX_MODELS] else OTHER_MODEL
        state.tokens = Tokens(Operation.of(ex.head.path), model, prompt, known, counters.tokens, self._clock)

    def answering(self, ex: "Exchange", tokens: Tokens, head: AnyResponseHead) -> None:
        """The head of the client's answer is there: reads the body as it passes."""
        tap = tokens.answering(head)
        if tap is not None:
            self._tap_response(ex, tap)

    def ended(
        self, ex: "Exchange", state: "RequestState", tokens: Tokens, *, was_bound: bool, is_complete: bool
    ) -> bool:
        """Counts the tokens of a request that has ended; ``was_bound``: while a replica had it.

        Returns whether its answer was complete: a stream is, if it had ended by its protocol.
        """
        if tokens.is_done and state.ending is Ending.CANCELLED:
            state.ending, is_complete = None, True
        ending = ending_of(state.ending, ex.status, is_truncated=ex.truncated)
        error = "" if ending is Ending.ANSWERED else ending.value
        if not error and ex.status >= 400 and not tokens.is_done:
            error = REJECTED
        bound_at = state.bound_at if was_bound else 0.0
        tokens.end(is_answered=not error, bound_at=bound_at, group=state.group, inferences=ex.inferences)
        tokens.counters.ended(tokens, ex.received, bound_at, ex.ended, error)
        return is_complete

    def __repr__(self) -> str:
        return "<TokenAccounting>"


def _prompt(ex: "Exchange", state: "RequestState") -> Prompt:
    """Returns the size of a request's prompt.

    It is taken from what was read of the body before, else from all of a short body, else from the beginning.
    """
    body, head, asked = ex.body, ex.head, state.asked
    size = len(body) if ex.body_complete else max(len(body), min(head.content_length or 0, MAX_UNREAD_BYTES))
    kind = head.get(b"content-type")
    if kind is not None and not is_json(kind):
        return Prompt(0, PLAIN, asked)  # The bytes of a form, a sound or a picture are not text.
    if asked is None and ex.body_complete and size <= SCANNED_BYTES:
        read = read_request(body)
        if type(read) is not CallRequest:
            return Prompt(size)
        asked = state.asked = read
    elif asked is None:
        scan = ObjectScan(KEYS)
        scan.feed(body[:SCANNED_BYTES])
        found = request_of(scan.found)
        if type(found) is not CallRequest:
            return Prompt(size)
        asked = found
        if size > SCANNED_BYTES:
            # Its values may end far behind: the whole body counts as prompt.
            asked.prompt_bytes = 0
            if _is_binary(body[SCANNED_BYTES - _BINARY_SAMPLE_BYTES : SCANNED_BYTES]):
                size = SCANNED_BYTES + BINARY_BYTES
            elif _is_binary(body[-_BINARY_SAMPLE_BYTES:]):
                size = body.rfind(b'"') + BINARY_BYTES  # Binary after a long text; most of what is to come is binary.
    start = asked.prompt_start or 0
    return Prompt(asked.prompt_bytes or size, script(body[start : start + SAMPLE_BYTES]), asked)


def _is_binary(text: bytes) -> bool:
    text = text.replace(b"\\/", b"//")  # PHP escapes slashes.
    return (
        len(text) == _BINARY_SAMPLE_BYTES and text.isascii() and not any(mark in text for mark in (b" ", b'"', b"\\"))
    )
