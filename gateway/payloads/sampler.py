"""Payloads: draws the requests of a function whose bodies are kept, and collects these while the request runs. Pure.

It stands beside the shadows and taps answers as they do. A request that is not drawn costs one draw; a function that
samples nothing costs nothing. What is kept is bounded: ``MAX_OPEN`` requests and ``ALL_BYTES`` at once. A request that
is drawn beyond that is not kept, and its two events count as dropped.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidegate.gateway.payloads.events import Payload
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.request_state import RequestState
from tidegate.records.payload_rules import PayloadRules
from tidegate.wire.bodies.v2 import JSON_LENGTH
from tidegate.wire.http1.events import Piece
from tidegate.wire.message_heads import AnyRequestHead, AnyResponseHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.detached import BodyTap
    from tidegate.aio.proxy.exchange import Exchange

MAX_OPEN: Final = 256
"""Requests whose bodies are kept at once."""
ALL_BYTES: Final = 32 << 20
"""Bytes that these may take together, as their functions bound them."""

PutPayloads = Callable[[tuple[Payload, Payload]], None]
"""Takes the two events of a request; must not wait."""


class _Sample:
    """One request whose bodies are kept."""

    __slots__ = ("answer", "answer_size", "answered", "coding", "content_type", "json_bytes", "request", "rules")

    def __init__(self, rules: PayloadRules, request: bytes) -> None:
        self.rules = rules
        self.request = request
        self.answer: list[bytes] = []
        self.answer_size = 0
        self.answered = False
        self.content_type = self.coding = ""
        self.json_bytes: int | None = None

    def begins(self, head: AnyResponseHead) -> None:
        self.answered = True
        self.content_type, self.coding, self.json_bytes = _form(head)

    def read(self, data: Piece) -> None:
        left = self.rules.max_bytes - self.answer_size
        self.answer_size += len(data)
        if left > 0:
            self.answer.append(bytes(data[:left]))


class Payloads:
    """The samples of one worker."""

    __slots__ = ("_bytes", "_clock", "_open", "_put", "_tap_response", "_wall", "draw", "dropped")

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        rng: random.Random,
        put: PutPayloads | None,
        tap_response: "Callable[[Exchange, BodyTap], None]",
    ) -> None:
        """``put``: None if there are no sinks; ``tap_response``: that of ``tidegate.aio.proxy.detached``."""
        self._clock = clock
        self._wall = wall
        self.draw = rng.random
        """Draws for a request: it is kept (``bound``) if that is less than its function's share."""
        self._put = put
        self._tap_response = tap_response
        self._open: dict[RequestState, _Sample] = {}
        self._bytes = 0
        self.dropped = 0
        """Events of requests that were drawn while too many were kept."""

    @property
    def has_open(self) -> bool:
        """Whether any request's bodies are kept now."""
        return bool(self._open)

    def bound(self, ex: "Exchange", state: RequestState, rules: PayloadRules) -> None:
        """A request that was drawn was sent to its replica."""
        if state.counters is None or ex.attempts > 1 or ex.head.upgrade is not None:
            return  # A request that is sent again was drawn, or not, at its first attempt.
        if self._put is None:
            return
        if len(self._open) >= MAX_OPEN or self._bytes + 2 * rules.max_bytes > ALL_BYTES:
            self.dropped += 2
            return
        if not ex.body_complete:
            ex.keep(rules.max_bytes)
        self._bytes += 2 * rules.max_bytes
        self._open[state] = _Sample(rules, ex.body[: rules.max_bytes])
        state.follow(ex)

    def moved(self, before: RequestState, after: RequestState, ex: "Exchange") -> None:
        """Another exchange answers the client now: the second copy of a late request has won."""
        sample = self._open.pop(before, None)
        if sample is not None:
            self._open[after] = sample
            after.follow(ex)

    def begins(self, ex: "Exchange", state: RequestState, head: AnyResponseHead) -> None:
        """The head of the client's answer is there."""
        sample = self._open.get(state)
        if sample is None or sample.answered:
            return
        sample.begins(head)
        self._complete(ex, sample)
        self._tap_response(ex, sample.read)

    def ends(self, ex: "Exchange", state: RequestState, router: FunctionRouter) -> None:
        """The request is over, however it ended."""
        sample = self._open.pop(state, None)
        if sample is None or state.counters is None:
            return
        self._bytes -= 2 * sample.rules.max_bytes
        self._complete(ex, sample)
        offset = self._wall() - self._clock()
        content_type, coding, json_bytes = _form(ex.head)
        request = Payload(
            kind="request",
            rules=sample.rules,
            function=router.name,
            revision=state.counters.revision,
            replica=state.replica,
            request_id=state.request_id.decode("latin-1"),
            at=ex.received + offset,
            content_type=content_type,
            coding=coding,
            json_bytes=json_bytes,
            data=sample.request,
            size=ex.bytes_in,
        )
        response = Payload(
            kind="response",
            rules=sample.rules,
            function=request.function,
            revision=request.revision,
            replica=request.replica,
            request_id=request.request_id,
            at=ex.ended + offset,
            content_type=sample.content_type,
            coding=sample.coding,
            json_bytes=sample.json_bytes,
            data=b"".join(sample.answer),
            size=sample.answer_size,
            status=ex.status,
        )
        if self._put is not None:
            self._put((request, response))

    def _complete(self, ex: "Exchange", sample: _Sample) -> None:
        """Takes more of the request's body if more of it is there now."""
        limit = sample.rules.max_bytes
        if len(sample.request) < min(limit, ex.bytes_in):
            body = ex.body
            if len(body) > len(sample.request):
                sample.request = body[:limit]

    def __repr__(self) -> str:
        return f"<Payloads {len(self._open)} kept, {self.dropped} events dropped>"


def _form(head: AnyRequestHead | AnyResponseHead) -> tuple[str, str, int | None]:
    """Returns the content type, the coding and the length of V2's JSON part."""
    content_type = (head.get(b"content-type") or b"").decode("latin-1")
    coding = (head.get(b"content-encoding") or b"").decode("latin-1").lower()
    length = head.get(JSON_LENGTH)
    known = length is not None and length.isdigit() and len(length) <= 18
    return content_type, "" if coding == "identity" else coding, int(length) if known and length is not None else None
