"""From the head of a request to the function that it is for: what nobody needs to wait for is answered here.

    id -> match -> health? -> (the body names the function?) -> tag, deadline -> (the body tells the size?) -> admission

Most requests name their function in the head (``match.py``). Calls of OpenAI's API name it in the body
(``openai_body.py``), gRPC calls in their first message (``grpc.py``); these come back by ``go_on``.
"""

import random
import re
from binascii import hexlify
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate import headers
from tidegate.activator.room import WaitingRoom
from tidegate.errors import ErrorKind
from tidegate.gateway.admission import Admission
from tidegate.gateway.answers.errors import Replies
from tidegate.gateway.answers.grpc import GrpcFrontend
from tidegate.gateway.answers.health import HealthResponder
from tidegate.gateway.counting.counters import Ending
from tidegate.gateway.routing.match import Matcher, Target
from tidegate.gateway.routing.openai_body import Bodies
from tidegate.gateway.routing.request_state import RequestState
from tidegate.records.route_table import RouteTable
from tidegate.wire.message_heads import AnyRequestHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.wire.bodies.openai import Asked

_ID = re.compile(rb"[!-~]{1,128}").fullmatch


class Entrance:
    """One per worker."""

    __slots__ = (
        "_admission",
        "_admit",
        "_bodies",
        "_calls",
        "_clock",
        "_desk",
        "_flush",
        "_matcher",
        "_replies",
        "_rng",
        "_room",
        "_table",
        "is_draining",
    )

    def __init__(
        self,
        room: WaitingRoom,
        admission: Admission,
        replies: Replies,
        *,
        calls: GrpcFrontend,
        desk: HealthResponder,
        rng: random.Random,
        clock: Callable[[], float],
        flush: Callable[[], None],
    ) -> None:
        """``rng`` makes ids; ``flush`` carries out what the room has decided."""
        self._room = room
        self._admission = admission
        self._admit = admission.admit
        self._replies = replies
        self._calls = calls
        self._desk = desk
        self._rng = rng
        self._clock = clock
        self._flush = flush
        self._bodies = Bodies(named=self._named, failed=self._misread)
        self._table = RouteTable(epoch=0, number=0, workers=1)
        self._matcher = Matcher(self._table, {})
        self.is_draining = False
        """The worker is about to end: its health says so."""

    def apply(self, table: RouteTable, matcher: Matcher) -> None:
        """Works from this table on."""
        self._table = table
        self._matcher = matcher

    def start(self, ex: "Exchange") -> None:
        """A request's head has come (``ProxyApp.start``)."""
        head = ex.head
        target = self._matcher.of_call(head) if ex.is_rpc else self._matcher.match(head)
        given = head.get(headers.REQUEST_ID)
        if given is not None and ((given.isalnum() and len(given) <= 64) or _ID(given) is not None):
            ex.context = ticket = RequestState(target, given, b"")
        else:
            ex.context = ticket = self._with_new_id(head, target, given)
        if ex.is_rpc:
            if self._calls.takes(ex, ticket):
                return
            target = ticket.target
        if not target.is_work and self._answered_here(ex, ticket):
            return
        front = target.front
        if front is None:
            if target.named_in_body:
                self._bodies.begin(ex)
            else:
                self._replies.not_found(ex, self._matcher)
            return
        if head.plain:
            ex.deadline = ex.received + front.timeout_s
        elif not (ex.is_rpc and self._calls.sets_deadline(ex, front)):
            front = self._admission.read_head(ex, ticket, front)
            if front is None:
                return
        if not ex.body_complete and not ex.is_rpc and front.tells_size_in_body(head, ex.body):
            ex.on_body = self._body_went_on
        else:
            self._admit(ex, ticket, front, ex.received)

    def go_on(self, ex: "Exchange", ticket: RequestState) -> None:
        """What was read has told for which function the request is."""
        front = ticket.target.front
        if front is None:
            self._replies.not_found(ex, self._matcher)
            return
        if ex.head.plain:
            ex.deadline = ex.received + front.timeout_s
        else:
            front = self._admission.read_head(ex, ticket, front)
        if front is not None:
            self._admit(ex, ticket, front, self._clock())

    def _with_new_id(self, head: AnyRequestHead, target: Target, given: bytes | None) -> RequestState:
        """A ticket for a request without an id, or with one that is none."""
        if given is not None:
            head.drop(headers.REQUEST_ID)
        made = hexlify(self._rng.getrandbits(128).to_bytes(16, "big"))
        return RequestState(target, made, b"x-request-id: %b\r\n" % made)

    def _answered_here(self, ex: "Exchange", ticket: RequestState) -> bool:
        """Answers what must not wake a function, or needs none; False: it is work after all."""
        front = ticket.target.front
        if front is not None:
            if self._admission.tagged(ex, ticket, front) is None:
                return True
            if ticket.target.is_metadata and front.access is not None and not self._admission.enters(ex, ticket, front):
                return True
        found = self._desk.answer(ticket.target, ex.head.path, self._table, self.is_draining)
        if found is None:
            return False
        status, body = found
        ex.respond(status, body, extra=b"x-request-id: %b\r\n" % ticket.request_id)
        return True

    # --- bodies that are read first ---------------------------------------------------------------------------------

    def _named(self, ex: "Exchange", model: str | None, asked: "Asked | None") -> None:
        """The body has told for which model the request is."""
        ticket: RequestState = ex.context
        ticket.asked = asked
        ticket.target = self._matcher.of_model(ticket.target, model)
        self.go_on(ex, ticket)

    def _misread(self, ex: "Exchange", kind: ErrorKind, message: str) -> None:
        """A body that names the function cannot be read, or its rest is faulty: no replica ever sees its end."""
        ticket: RequestState = ex.context
        if ticket.target.front is not None:
            ticket.ending = Ending.CANCELLED
            if ticket.bind is None and self._room.leave(ex, self._clock()):
                self._flush()
        if ex.first_byte:
            ex.truncate()
        else:
            self._replies.fail(ex, kind, message, extra=b"retry-after: 1\r\n" if kind.retry_helps else b"")

    def _body_went_on(self, ex: "Exchange") -> None:
        """More of a body is there that may tell the size."""
        ticket: RequestState = ex.context
        front = ticket.target.front
        if front is None:
            return
        if not ex.body_complete and front.tells_size_in_body(ex.head, ex.body):
            ex.on_body = self._body_went_on
        else:
            self._admit(ex, ticket, front, self._clock())

    def __repr__(self) -> str:
        return f"<Entrance {self._matcher!r}>"
