"""The path of one request through the gateway, readable top to bottom.

    entrance -> admission -> waiting room -> forward -> answer -> count

The way in is told in ``entrance.py`` (which function?) and ``admission.py`` (who calls, how large, how urgent?). The
waiting room (``activator``) is a core in this process: a request that finds a free slot never waits, another is bound
to a replica only when a slot frees, and one that a replica gives back untouched returns to its old place. This file
connects that room, the counters and the engine's exchanges. What becomes of requests whose replica failed is in
``recovery.py``, what the gateway itself tells a client in ``replies.py``; sockets are the shell's (``live.py``).

What most requests are (no field of ours, a whole body, a slot at once, a 200) takes the straight way through
``Entrance.start``, ``Admission.admit``, ``_run``, ``answering`` and ``finished``;
``benchmarks/micro/gateway_bench.py`` tells what that costs.
"""

import random
from typing import TYPE_CHECKING, Final

from tidegate import headers
from tidegate.activator.commands import Activate, Bind, Refuse
from tidegate.activator.room import WaitingRoom
from tidegate.errors import Executed
from tidegate.flow.messages import ProxyMessage, State
from tidegate.gateway.access.control import AccessControl
from tidegate.gateway.access_log import AccessLog
from tidegate.gateway.admission import Admission
from tidegate.gateway.answers.cold_answers import ColdAnswers
from tidegate.gateway.answers.cold_starts import ColdStarts
from tidegate.gateway.answers.errors import Replies
from tidegate.gateway.answers.grpc import GrpcFrontend
from tidegate.gateway.answers.health import HealthResponder
from tidegate.gateway.counting.counters import Ending, Report
from tidegate.gateway.counting.tokens import TokenAccounting
from tidegate.gateway.effects import ChainEffects
from tidegate.gateway.entrance import Entrance
from tidegate.gateway.resilience.recovery import Recovery
from tidegate.gateway.resilience.resilience import Resilience
from tidegate.gateway.resilience.shadow import Shadows
from tidegate.gateway.routing.function import FunctionRouter, FunctionState
from tidegate.gateway.routing.match import Matcher, stripped
from tidegate.gateway.routing.request_state import RequestState
from tidegate.records.route_table import RouteTable
from tidegate.wire.message_heads import AnyResponseHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

_EVENT_STREAM: Final = b"text/event-stream"
_LONG_BYTES: Final = 64 * 1024
"""The end of a longer answer may pass here long after it has left the replica: when its client has read so far."""
_NO_WAIT: Final = b"x-request-id: %b\r\nserver-timing: wait;dur=0.000, queue;dur=%b\r\n"


class Chain:
    """The application behind the front door (``tidegate.aio.proxy.exchange.ProxyApp``)."""

    def __init__(
        self,
        *,
        room: WaitingRoom,
        report: Report,
        token: str,
        rng: random.Random,
        host: ChainEffects,
        access: AccessLog | None = None,
    ) -> None:
        """``access``: None: not written."""
        self.room = room
        self.report = report
        self.access = access
        self._token_line = b"tidegate-token: %b\r\n" % token.encode()
        self._rng = rng
        self._clock = host.clock
        self._pool_of = host.pool_of
        self._shell = host.shell
        self._after = host.after
        self._memories: dict[str, FunctionState] = {}
        self._table = RouteTable(epoch=0, number=0, workers=1)
        self._cold = ColdStarts(report)
        self._unanswered = self._cold.unanswered
        self.cold_answers = ColdAnswers(self._cold, room, host.begin_stream)
        self.resilience = Resilience(room, run=self._run, copy=host.copy, alarm=host.alarm, probe=host.probe)
        self.shadows = Shadows(
            room, report, pool_of=host.pool_of, copy=host.shadow_copy, overhear=host.overhear, flush=self.flush
        )
        self._tokens = TokenAccounting(host.clock, host.overhear)
        self.gate = AccessControl(
            wall=host.wall, till=host.till, ask=host.ask, again=lambda *told: self._admission.heard_of_quota(*told)
        )
        self._outliers = self.resilience.outliers
        self._suspects = self._outliers.suspects
        self.desk = HealthResponder(self._cold, host.learn, self._watch)
        self.calls = GrpcFrontend(desk=self.desk, go=lambda *call: self.entrance.go_on(*call))
        self._replies = Replies(self.calls, report)
        self._admission = Admission(
            room,
            report,
            self._replies,
            calls=self.calls,
            gate=self.gate,
            tokens=self._tokens,
            outliers=self._outliers,
            cold_answers=self.cold_answers,
            run=self._run,
            clock=host.clock,
            flush=self.flush,
        )
        self.entrance = Entrance(
            room,
            self._admission,
            self._replies,
            calls=self.calls,
            desk=self.desk,
            rng=rng,
            clock=host.clock,
            flush=self.flush,
        )
        self.start = self.entrance.start
        """The engine's first call (``ProxyApp.start``)."""
        self._recovery = Recovery(
            room, self.resilience, self.shadows, self._replies, clock=host.clock, hand_over=host.hand_over
        )

    # --- route table ------------------------------------------------------------------------------------------------

    @property
    def table(self) -> RouteTable:
        return self._table

    def apply(self, table: RouteTable) -> bool:
        """Works from this table on; False: older than the present one, ignored. No request is dropped for it."""
        now = self._clock()
        if table.version < self._table.version or not self.room.apply(table, now):
            return False
        self._table = table
        self._memories = {
            route.name: self._memories.get(route.name) or FunctionState(now, self._rng.random())
            for route in table.functions
        }
        fronts = {
            route.name: FunctionRouter(route, self._memories[route.name], self._token_line) for route in table.functions
        }
        matcher = Matcher(table, fronts)
        self.entrance.apply(table, matcher)
        self.cold_answers.domain = table.domain
        self.calls.apply(matcher, fronts)
        self.gate.apply(table)
        self.resilience.apply(table, fronts.values())
        self._cold.apply(
            {
                replica.id: (route.name, revision.id)
                for route in table.functions
                for revision in route.revisions
                for group in revision.groups
                for replica in group.replicas
            }
        )
        revisions = frozenset(revision.id for route in table.functions for revision in route.revisions)
        self.report.forget_except(revisions)
        self.desk.copies.forget_except(revisions)
        self.flush()
        return True

    # --- to a replica -----------------------------------------------------------------------------------------------

    def _run(self, ex: "Exchange", bind: Bind, now: float) -> None:
        """Sends a request to the replica that it is bound to; never past its deadline."""
        ticket: RequestState = ex.context
        ticket.bind, ticket.bound_at = bind, now
        front = ticket.target.front
        deadline = ex.deadline
        if front is None or now >= deadline:
            self._replies.expired(ex, ticket, "its deadline passed before a replica was free for it")
            return
        replica = bind.replica
        ticket.replica = replica.id
        ticket.group = replica.group.accelerator
        if now + front.timeout_s == deadline:
            lines = front.lines(ex.inferences)
        else:
            lines = front.lines_with(ex.inferences, deadline - now)
        strip = ticket.target.strip
        ex.forward(
            self._pool_of(replica.address),
            lines + bind.header + ticket.id_line,
            target=stripped(ex.head.target, strip) if strip else None,
            hold=True,
        )
        if front.is_followed:
            self.resilience.sent(ex, ticket, front, now)
            if front.has_shadows and ticket.first is None:
                self.shadows.bound(ex, ticket, front)

    # --- the engine's calls -----------------------------------------------------------------------------------------

    def abandoned(self, ex: "Exchange") -> None:
        ticket: RequestState = ex.context
        ticket.ending = Ending.CANCELLED
        if ticket.bind is None and self.room.leave(ex, self._clock()):
            self.flush()

    def expired(self, ex: "Exchange") -> None:
        ticket: RequestState = ex.context
        ticket.ending = Ending.EXPIRED
        if ticket.bind is None:
            if self.room.leave(ex, self._clock(), expired=True):
                self.flush()
            self._replies.expired(ex, ticket, "its deadline passed before a replica was free for it")
        else:
            self._replies.expired(ex, ticket, "its deadline passed while a replica ran it", Executed.UNKNOWN)

    def answering(self, ex: "Exchange", head: AnyResponseHead) -> bytes | None:
        ticket: RequestState = ex.context
        bind = ticket.bind
        if bind is None:
            return b""
        status = head.status
        if status >= 400 and (outcome := head.control(headers.OUTCOME)) is not None:
            if outcome == b"not-started" or outcome == b"started":
                return self._not_served(ex, ticket, bind, status, is_started=outcome == b"started")
            if ticket.first is not None:
                return self._recovery.copy_failed(ex, ticket)
        if ticket.exchange is not None or ticket.first is not None:
            self._recovery.settle_copies(ex, ticket, head)
        if ticket.tokens is not None:
            self._tokens.answering(ex, ticket.tokens, head)
        ticket.is_answered = True
        ticket.keeps = head.control(headers.CREDIT) == b"keep"
        length = head.content_length
        if length is None:
            ticket.is_stream = status == 101 or (head.get(b"content-type") or b"").startswith(_EVENT_STREAM)
            if ex.is_rpc:
                ticket.is_stream = self.calls.streams(ex)
            if ticket.is_stream and ticket.counters is not None:
                ticket.counters.streaming += 1
            if ticket.keeps and (ticket.is_stream or not ex.is_rpc):
                self.room.keeps(bind)
        elif length > _LONG_BYTES and ticket.keeps:
            self.room.keeps(bind)
        if ticket.target.is_metadata and status == 200 and (ex.is_rpc or ex.head.method == b"GET"):
            self.desk.remember(ticket.target, ex.head.path, bind)
        if head.mentions(b"\nx-request-id:"):
            head.drop(headers.REQUEST_ID)
        told = head.control(headers.TIMING)
        if told is not None and ticket.bound_at == ex.received and not self._unanswered:
            return _NO_WAIT % (ticket.request_id, told[6:].replace(b",model=", b", model;dur=", 1))
        lines = self._cold.lines(bind.replica.id, ex.received, ticket.bound_at, told, self._clock())
        return b"x-request-id: %b\r\n%b" % (ticket.request_id, lines)

    def _not_served(
        self, ex: "Exchange", ticket: RequestState, bind: Bind, status: int, *, is_started: bool
    ) -> bytes | None:
        """A queue_proxy tells that this is no answer of its model."""
        take = self._recovery.broken if is_started else self._recovery.given_back
        told = take(ex, ticket, bind, status)
        if told is None:
            self.flush()
        return told

    def upstream_failed(self, ex: "Exchange", sent: bool, why: str) -> None:
        ticket: RequestState = ex.context
        bind = ticket.bind
        front = ticket.target.front
        if bind is not None and front is not None:
            self._recovery.broke_off(ex, ticket, bind, front, sent, why)
            self.flush()

    def finished(self, ex: "Exchange") -> None:
        ticket: RequestState = ex.context
        now = ex.ended
        bind = ticket.bind
        well = ticket.is_answered and not ex.truncated and ticket.ending is None
        if bind is not None:
            ticket.bind = None
            if well:
                self.room.answered(bind, ticket.keeps, now)
                if self._suspects:
                    self._outliers.succeeded(bind.replica.id, now)
            else:
                self._recovery.cut_short(ex, ticket, bind, now)
        if ticket.exchange is not None:
            ticket.exchange = None
            self.resilience.cancel(ticket)
            self.shadows.ends(ex, ticket, well)
        tokens = ticket.tokens
        if tokens is not None:
            if tokens.is_done and ticket.ending is Ending.CANCELLED:
                ticket.ending, well = None, True
            self._tokens.ended(ex, ticket, tokens, was_bound=bind is not None, ending=_ending(ex, ticket))
            if bind is not None:
                self.room.cost(bind, tokens.total or tokens.prompt_estimate)  # a slot was taken, whatever it told
        if ticket.held is not None:
            self.gate.settle(ex, ticket, ticket.held, was_bound=bind is not None)
        counters = ticket.counters
        if counters is not None:
            if ticket.is_stream:
                counters.streaming -= 1
            if well and ex.status < 500:
                front = ticket.target.front
                end = now
                if ticket.is_stream:
                    end = ex.first_byte if tokens is None else tokens.begun(ex.first_byte)
                latency_s = end - ex.received
                counters.ended_well(ticket.group, ex.inferences, latency_s, front.latency_s if front else None)
            else:
                counters.ended(ticket.ending or Ending.FAILED, ticket.group, ex.inferences)
        elif ex.is_rpc:
            self.calls.ended(ex)
        if self.access is not None and not ticket.is_mute:
            self.access.ended(ex, ticket, _ending(ex, ticket).value)
        room = self.room
        if room.out or room.unsettled:
            self.flush()

    # --- channels ---------------------------------------------------------------------------------------------------

    def linked(self, replica: str) -> None:
        self.room.linked(replica, self._clock())
        self.flush()

    def heard(self, replica: str, message: ProxyMessage) -> None:
        now = self._clock()
        if type(message) is State:
            self._cold.told(replica, message.state, message.phases, now)
            self.resilience.state_told(replica, self._cold.revision_of(replica), now)
        self.room.heard(replica, message, now)
        self.flush()

    def unlinked(self, replica: str) -> None:
        now = self._clock()
        self._cold.unlinked(replica)
        self.room.unlinked(replica, now)
        self.resilience.state_told(replica, self._cold.revision_of(replica), now)
        self.flush()

    def _watch(self, revision: str) -> None:
        """Somebody asks whether it serves."""
        self.room.watch(revision, self._clock())
        self.flush()

    # --- room and time ----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Carries out what the room has decided."""
        room = self.room
        while room.out:
            commands, room.out = room.out, []
            for command in commands:
                kind = type(command)
                if kind is Bind:
                    self._run(command.request, command, self._clock())  # type: ignore[union-attr,arg-type]  # mypy does not narrow on `type() is`; requests here are exchanges
                elif kind is Refuse:
                    self._replies.refused(command)  # type: ignore[arg-type]  # as above
                else:
                    if kind is Activate:
                        self._cold.activated(command.activation.revision)  # type: ignore[union-attr]  # as above
                    self._shell(command)
        self._after()

    def settle(self) -> None:
        """The end of a loop turn."""
        now = self._clock()
        self.shadows.launch(now)
        self.room.settle(now)
        self.flush()

    def wake(self) -> None:
        """The room's time has come."""
        self.room.on_wakeup(self._clock())
        self.flush()

    def late(self) -> None:
        """The time of the alarm has come."""
        self.resilience.late(self._clock())
        self.flush()

    def probed(self, replica: str, ok: bool) -> None:
        """What a probe of an ejected replica told."""
        self.resilience.probed(replica, ok, self._clock())
        self.flush()

    def sweep(self, now: float) -> None:
        """Some times a second."""
        self.resilience.sweep(now)
        self.shadows.sweep(now)
        self.cold_answers.sweep(now)
        if self.room.out or self.room.unsettled:
            self.flush()

    def __repr__(self) -> str:
        return f"<Chain table {self._table.version}, {self.room!r}>"


def _ending(ex: "Exchange", ticket: RequestState) -> Ending:
    if ticket.ending is not None:
        return ticket.ending
    return Ending.FAILED if ex.truncated or ex.status >= 500 else Ending.ANSWERED
