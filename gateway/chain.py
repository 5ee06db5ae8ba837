"""The path of one request through the gateway, readable top to bottom.

    match -> health? -> deadline, priority -> size -> revision by weight -> waiting room -> forward -> answer -> count

The waiting room (``activator``) is a core in this process: a request that finds a free slot never waits, another is
bound to a replica only when a slot frees, and one that a replica gives back untouched returns to its old place. This
file connects that room, the counters, what is done about failures (``resilience.py``) and the engine's exchanges;
sockets are the shell's (``live.py``).

What most requests are (no field of ours, a whole body, a slot at once, a 200) takes the straight way through ``start``,
``_admit``, ``_run``, ``answering`` and ``finished``; ``benchmarks/micro/gateway_bench.py`` tells what that costs.
"""

import random
import re
from typing import TYPE_CHECKING, Final

from activator.commands import Activate, Bind, Refuse
from activator.room import WaitingRoom
from gateway.access_log import AccessLog
from gateway.cold import ColdStarts
from gateway.cold_answers import ColdAnswers
from gateway.failures import failure_body, no_such_function, no_such_tag
from gateway.front import Front, Memory
from gateway.grpc import Calls
from gateway.health import Desk
from gateway.host import Host
from gateway.match import Matcher, Target, stripped
from gateway.openai import missing
from gateway.openai_body import Bodies
from gateway.quotas import Account
from gateway.report import Ending, Report, RevisionCounters
from gateway.resilience import Resilience
from gateway.shadow import Shadows
from gateway.tenants import Denial, Gate
from gateway.ticket import Ticket
from gateway.tokens import TokenDesk
from tidegate import headers
from tidegate.errors import (
    BAD_REQUEST,
    BATCH_TOO_LARGE,
    DEADLINE,
    NOT_FOUND,
    NOT_GRPC,
    NOT_SERVABLE,
    REPLICA_BROKE,
    TAG_NOT_FOUND,
    ErrorKind,
    Executed,
)
from tidegate.flow.fair_queue import Claim
from tidegate.flow.messages import ProxyMessage, State
from tidegate.histogram import INDEX, KNOWN, bucket_index
from tidegate.records import RouteTable
from tidegate.timeout import TimeoutFieldError, request_timeout_s
from tidegate.wire.head import RequestHead, ResponseHead

if TYPE_CHECKING:
    from tidegate.aio.exchange import Exchange
    from tidegate.wire.openai import Asked

CLIENT_GONE: Final = 499
KEPT_BYTES: Final = 256 * 1024
"""Of a waiting request's body stay in memory at most."""
_ID = re.compile(rb"[!-~]{1,128}").fullmatch
_EVENT_STREAM: Final = b"text/event-stream"
_NO_WAIT: Final = b"x-request-id: %b\r\nserver-timing: wait;dur=0.000, queue;dur=%b\r\n"


class Chain:
    """The application behind the front door (``tidegate.aio.exchange.ProxyApp``)."""

    def __init__(
        self,
        *,
        room: WaitingRoom,
        report: Report,
        token: str,
        rng: random.Random,
        host: Host,
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
        self._hand_over = host.hand_over
        self._memories: dict[str, Memory] = {}
        self._table = RouteTable(epoch=0, number=0, workers=1)
        self._matcher = Matcher(self._table, {})
        self._cold = ColdStarts(report)
        self._unanswered = self._cold.unanswered
        self.cold_answers = ColdAnswers(self._cold, room, host.begin_stream)
        self.resilience = Resilience(room, run=self._run, copy=host.copy, alarm=host.alarm, probe=host.probe)
        self.shadows = Shadows(
            room, report, pool_of=host.pool_of, copy=host.shadow_copy, overhear=host.overhear, flush=self.flush
        )
        self._tokens = TokenDesk(host.clock, host.overhear)
        self.gate = Gate(wall=host.wall, till=host.till, ask=host.ask, again=self._heard_of_quota)
        self._bodies = Bodies(named=self._named, failed=self._misread)
        self._outliers = self.resilience.outliers
        self._suspects = self._outliers.suspects
        self._open_circuits = self._outliers.open_circuits
        self.desk = Desk(self._cold, host.learn, self._watch)
        self.calls = Calls(desk=self.desk, go=self._go_on)
        self.is_draining = False

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
            route.name: self._memories.get(route.name) or Memory(now, self._rng.random()) for route in table.functions
        }
        fronts = {route.name: Front(route, self._memories[route.name], self._token_line) for route in table.functions}
        self._matcher = Matcher(table, fronts)
        self.cold_answers.domain = table.domain
        self.calls.apply(self._matcher, fronts)
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

    # --- the engine's calls -----------------------------------------------------------------------------------------

    def start(self, ex: "Exchange") -> None:
        head = ex.head
        target = self._matcher.of_call(head) if ex.is_rpc else self._matcher.match(head)
        given = head.get(headers.REQUEST_ID)
        if given is not None and ((given.isalnum() and len(given) <= 64) or _ID(given) is not None):
            ex.context = ticket = Ticket(target, given, b"")
        else:
            ex.context = ticket = self._with_new_id(head, target, given)
        if ex.is_rpc:
            if self.calls.takes(ex, ticket):
                return
            target = ticket.target
        if not target.is_work and self._answered_here(ex, ticket):
            return
        front = target.front
        if front is None:
            if target.named_in_body:
                self._bodies.begin(ex)
            else:
                self._not_found(ex, target)
            return
        if head.plain:
            ex.deadline = ex.received + front.timeout_s
        elif not (ex.is_rpc and self.calls.sets_deadline(ex, front)):
            if head.control(headers.TAG) is not None:
                front = self._tagged(ex, ticket, front)
            if front is None or not self._set_deadline(ex, front):
                return
        if not ex.body_complete and not ex.is_rpc and front.tells_size_in_body(head, ex.body):
            ex.on_body = self._body_went_on
        else:
            self._admit(ex, ticket, front, ex.received)

    def abandoned(self, ex: "Exchange") -> None:
        ticket: Ticket = ex.context
        ticket.ending = Ending.CANCELLED
        if ticket.bind is None and self.room.leave(ex, self._clock()):
            self.flush()

    def expired(self, ex: "Exchange") -> None:
        ticket: Ticket = ex.context
        ticket.ending = Ending.EXPIRED
        if ticket.bind is None:
            if self.room.leave(ex, self._clock(), expired=True):
                self.flush()
            self._fail(ex, DEADLINE, "its deadline passed before a replica was free for it")
        else:
            self._fail(ex, DEADLINE, "its deadline passed while a replica ran it", executed=Executed.UNKNOWN)

    def answering(self, ex: "Exchange", head: ResponseHead) -> bytes | None:
        ticket: Ticket = ex.context
        bind = ticket.bind
        if bind is None:
            return b""
        status = head.status
        if status >= 400 and (outcome := head.control(headers.OUTCOME)) is not None:
            if outcome == b"not-started":
                return self._given_back(ex, ticket, bind, status)
            if outcome == b"started":
                return self._broken(ex, ticket, bind, status)
            if ticket.first is not None:
                return self._copy_failed(ex, ticket)
        if ticket.exchange is not None or ticket.first is not None:
            self._settle_copies(ex, ticket, head)
        if ticket.tokens is not None:
            self._tokens.answering(ex, ticket.tokens, head)
        ticket.is_answered = True
        ticket.keeps = head.control(headers.CREDIT) == b"keep"
        if head.content_length is None:
            ticket.is_stream = status == 101 or (head.get(b"content-type") or b"").startswith(_EVENT_STREAM)
            if ex.is_rpc:
                ticket.is_stream = self.calls.streams(ex)
            if ticket.is_stream and ticket.counters is not None:
                ticket.counters.streaming += 1
        if ticket.target.is_metadata and status == 200 and (ex.is_rpc or ex.head.method == b"GET"):
            self.desk.remember(ticket.target, ex.head.path, bind)
        if head.mentions(b"\nx-request-id:"):
            head.drop(headers.REQUEST_ID)
        told = head.control(headers.TIMING)
        if told is not None and ticket.bound_at == ex.received and not self._unanswered:
            return _NO_WAIT % (ticket.request_id, told[6:].replace(b",model=", b", model;dur=", 1))
        lines = self._cold.lines(bind.replica.id, ex.received, ticket.bound_at, told, self._clock())
        return b"x-request-id: %b\r\n%b" % (ticket.request_id, lines)

    def upstream_failed(self, ex: "Exchange", sent: bool, why: str) -> None:
        ticket: Ticket = ex.context
        bind, ticket.bind = ticket.bind, None
        front = ticket.target.front
        if bind is None or front is None:
            return
        now = self._clock()
        self.resilience.failed(bind, ticket.bound_at, front.route.outlier, now)
        ran_before, ticket.is_exposed = ticket.is_exposed, ticket.is_exposed or sent
        if ticket.first is not None or ticket.copy is not None:
            self.room.aborted(bind, now)
            if ticket.copy is not None:
                ticket.is_stranded = True
            else:
                self._copy_failed(ex, ticket)
        elif now < ex.deadline and (self._may_run_again(ex, ticket, front, ran_before, now) if sent else ex.replayable):
            if sent:
                self.room.broke_off(bind, now)
            else:
                self.room.unsent(bind, now)
        else:
            ticket.bind = bind
            self._fail(ex, REPLICA_BROKE, f"replica {bind.replica.id} broke off: {why}")
        self.flush()

    def finished(self, ex: "Exchange") -> None:
        ticket: Ticket = ex.context
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
                self._not_well(ex, ticket, bind, now)
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
                self.room.cost(bind, tokens.total)
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
                    self._refused(command)  # type: ignore[arg-type]  # as above
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

    # --- steps ------------------------------------------------------------------------------------------------------

    def _with_new_id(self, head: RequestHead, target: Target, given: bytes | None) -> Ticket:
        """A ticket for a request without an id, or with one that is none."""
        if given is not None:
            head.drop(headers.REQUEST_ID)
        made = b"%032x" % self._rng.getrandbits(128)
        return Ticket(target, made, b"x-request-id: %b\r\n" % made)

    def _answered_here(self, ex: "Exchange", ticket: Ticket) -> bool:
        """Answers what must not wake a function, or needs none; False: it is work after all."""
        front = ticket.target.front
        if front is not None and ex.head.control(headers.TAG) is not None and self._tagged(ex, ticket, front) is None:
            return True
        is_closed = ticket.target.is_metadata and front is not None and front.access is not None
        if is_closed and front is not None and not self._enters(ex, ticket, front):
            return True
        found = self.desk.answer(ticket.target, ex.head.path, self._table, self.is_draining)
        if found is None:
            return False
        status, body = found
        ex.respond(status, body, extra=b"x-request-id: %b\r\n" % ticket.request_id)
        return True

    def _watch(self, revision: str) -> None:
        """Somebody asks whether it serves."""
        self.room.watch(revision, self._clock())
        self.flush()

    def _tagged(self, ex: "Exchange", ticket: Ticket, front: Front) -> Front | None:
        """The front of the tag that the request names by its field; None: the function has no such tag, answered."""
        tag = ex.head.control(headers.TAG) or b""
        found = front.tagged.get(tag)
        if found is None:
            self._fail(ex, TAG_NOT_FOUND, no_such_tag(front.name, tag.decode("latin-1"), front.tagged))
        else:
            ticket.target = ticket.target.of(found)
        return found

    def _not_found(self, ex: "Exchange", target: Target) -> None:
        """No function is called as the request says."""
        self.report.unmatched += 1
        if target.model or target.named_in_body:
            self._fail(ex, *missing(target.model, has_body=ex.bytes_in > 0))
            return
        nearest = self._matcher.nearest(target.named)
        if nearest is None:
            named = target.named
            self._fail(ex, NOT_FOUND, self.calls.nobody(ex) if ex.is_rpc and not named else no_such_function(named))
        else:
            tag = target.named[: -len(nearest.name) - 1]
            self._fail(ex, TAG_NOT_FOUND, no_such_tag(nearest.name, tag, nearest.tagged))

    def _named(self, ex: "Exchange", model: str | None, asked: "Asked | None") -> None:
        """The body has told for which model the request is."""
        ticket: Ticket = ex.context
        ticket.asked = asked
        ticket.target = self._matcher.of_model(ticket.target, model)
        self._go_on(ex, ticket)

    def _go_on(self, ex: "Exchange", ticket: Ticket) -> None:
        """What was read has told for which function the request is."""
        front = ticket.target.front
        if front is None:
            self._not_found(ex, ticket.target)
            return
        if ex.head.plain:
            ex.deadline = ex.received + front.timeout_s
        else:
            if ex.head.control(headers.TAG) is not None:
                front = self._tagged(ex, ticket, front)
            if front is None or not self._set_deadline(ex, front):
                return
        self._admit(ex, ticket, front, self._clock())

    def _misread(self, ex: "Exchange", kind: ErrorKind, message: str) -> None:
        """A body that names the function cannot be read, or its rest is faulty: no replica ever sees its end."""
        ticket: Ticket = ex.context
        if ticket.counters is not None:
            ticket.ending = Ending.CANCELLED
            if ticket.bind is None and self.room.leave(ex, self._clock()):
                self.flush()
        if ex.first_byte:
            ex.truncate()
        else:
            self._fail(ex, kind, message, extra=b"retry-after: 1\r\n" if kind.retry_helps else b"")

    def _set_deadline(self, ex: "Exchange", front: Front) -> bool:
        """The request's own deadline, at most the function's timeout; False: the field was nonsense, answered."""
        ex.deadline = ex.received + front.timeout_s
        if not ex.head.mentions(b"-timeout"):
            return True
        try:
            own_s = request_timeout_s(ex.head)
        except TimeoutFieldError as error:
            self._fail(ex, BAD_REQUEST, str(error))
            return False
        if own_s is not None and own_s < front.timeout_s:
            ex.set_deadline(ex.received + own_s)
        return True

    def _body_went_on(self, ex: "Exchange") -> None:
        """More of a body is there that may tell the size."""
        ticket: Ticket = ex.context
        front = ticket.target.front
        if front is None:
            return
        if not ex.body_complete and front.tells_size_in_body(ex.head, ex.body):
            ex.on_body = self._body_went_on
        else:
            self._admit(ex, ticket, front, self._clock())

    def _admit(self, ex: "Exchange", ticket: Ticket, front: Front, now: float) -> None:
        """Who calls, size, revision, quotas, then the room: bound now, waiting, or refused. Once more for a request
        whose quota was to be asked for."""
        head = ex.head
        body = ex.body
        if front.access is not None and ticket.tenant is None and not self._enters(ex, ticket, front):
            return
        if front.is_grpc and not ex.is_rpc:
            self._fail(ex, NOT_GRPC, f"{front.name} speaks gRPC alone")
            return
        inferences = self.calls.inferences(ex, front) if ex.is_rpc else front.inferences(head, body)
        ex.inferences = inferences
        if not inferences:
            ex.inferences = 1
            self._fail(ex, BATCH_TOO_LARGE, f"its batch is larger than {front.max_batch}, {front.name}'s max-batch")
            return
        counters = front.counters or self._counters(front)
        if counters is None:
            self._fail(ex, NOT_SERVABLE, f"no revision of {front.name} takes traffic")
            return
        tenant = ticket.tenant
        priority = front.priority if tenant is None or tenant.priority is None else tenant.priority
        if not head.plain:
            priority = self._read_own_fields(ex, priority)
            if priority < 0:
                return
        ticket.counters = counters
        if front.tokens is not None:
            self._tokens.admit(ex, ticket, front.tokens, front.route)
        if tenant is not None:
            priority = max(priority, tenant.best)
            if ticket.held is None and not self._is_charged(ex, ticket, tenant):
                return
        counters.sizes[INDEX[inferences] if inferences < KNOWN else bucket_index(inferences)] += 1
        counters.arrivals_inferences += inferences
        if ticket.tokens is not None:
            ticket.tokens.arrived()
        front.budget.requests += 1
        if now >= ex.deadline:
            ticket.ending = Ending.EXPIRED
            self._fail(ex, DEADLINE, "its deadline had passed on arrival")
            return
        if self._open_circuits and self._outliers.refuses(counters.revision, now):
            self._circuit_open(ex, ticket, counters)
            return
        size = len(body) if ex.body_complete else max(len(body), min(head.content_length or 0, KEPT_BYTES))
        key = None if front.hash_key is None else front.hash_key(ex)
        claim = None
        if tenant is not None:
            claim = Claim(tenant.name, tenant.weight, inferences if ticket.tokens is None else ticket.tokens.expected)
        found = self.room.arrive(
            ex, counters.revision, inferences, ex.deadline, now, size, priority, key, front.is_tag, claim=claim
        )
        if type(found) is Bind:
            self._run(ex, found, now)
            if self.room.out or self.room.unsettled:
                self.flush()
            return
        if found is not None:
            self._refused(found)  # type: ignore[arg-type]  # mypy does not narrow on `type() is`
        elif not front.route.cold.is_silent:
            self.cold_answers.waits(ex, ticket, front, now)
        self.flush()

    def _enters(self, ex: "Exchange", ticket: Ticket, front: Front) -> bool:
        """Whether the caller may call; else he is told why not."""
        denial = self.gate.enters(ex.head, ticket, front)
        if denial is not None:
            self._deny(ex, ticket, denial)
        return denial is None

    def _is_charged(self, ex: "Exchange", ticket: Ticket, account: Account) -> bool:
        """Whether the tenant's quotas let it through now. What they refuse is no demand that replicas are needed for:
        it is not counted as an arrival."""
        verdict = self.gate.charges(ex, ticket, account)
        if verdict is True:
            return True
        ticket.counters = None
        if verdict is not False:
            self._deny(ex, ticket, verdict)
        return False

    def _heard_of_quota(self, ex: "Exchange", denial: Denial | None) -> None:
        """A request that waited to hear of its quota goes on, or is denied."""
        ticket: Ticket = ex.context
        front = ticket.target.front
        if denial is not None:
            self._deny(ex, ticket, denial)
        elif front is not None:
            self._admit(ex, ticket, front, self._clock())

    def _deny(self, ex: "Exchange", ticket: Ticket, denial: Denial) -> None:
        ticket.ending = Ending.REFUSED
        self._fail(ex, denial.kind, denial.message, extra=denial.extra)

    def _counters(self, front: Front) -> RevisionCounters | None:
        """Those of the revision that a request goes to, by the revisions' percent; None: none takes traffic."""
        revision = front.revision()
        if revision is None:
            return None
        counters = self.report.revision(front.name, revision)
        if front.has_one_revision:
            front.counters = counters
        return counters

    def _read_own_fields(self, ex: "Exchange", priority: int) -> int:
        """The priority that a request states, else ``priority``; -1: it states nonsense, answered.

        The client's own fields go no further: the replica gets the deadline that remains and the size that was found.
        """
        head = ex.head
        if (ex.is_rpc and self.calls.is_usual(ex)) or not head.mentions(b"\ntidegate-"):
            return priority
        given = head.get(headers.PRIORITY)
        if given is not None:
            if len(given) != 1 or not given.isdigit():
                self._fail(ex, BAD_REQUEST, "tidegate-priority must be a digit: 0 (goes first) to 9 (goes last)")
                return -1
            priority = int(given)
        head.drop(headers.TIMEOUT_MS, headers.BATCH_SIZE, headers.PRIORITY, headers.TAG)
        return priority

    def _run(self, ex: "Exchange", bind: Bind, now: float) -> None:
        """Sends a request to the replica that it is bound to; never past its deadline."""
        ticket: Ticket = ex.context
        ticket.bind, ticket.bound_at = bind, now
        front = ticket.target.front
        deadline = ex.deadline
        if front is None or now >= deadline:
            ticket.ending = Ending.EXPIRED
            self._fail(ex, DEADLINE, "its deadline passed before a replica was free for it")
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

    def _refused(self, refusal: Refuse) -> None:
        ex: Exchange = refusal.request  # type: ignore[assignment]  # requests here are exchanges
        ticket: Ticket = ex.context
        ticket.ending = Ending.EXPIRED if refusal.kind is DEADLINE else Ending.REFUSED
        extra = b"" if refusal.retry_after_s is None else b"retry-after: %d\r\n" % refusal.retry_after_s
        self._fail(ex, refusal.kind, refusal.message, extra=extra)

    def _circuit_open(self, ex: "Exchange", ticket: Ticket, counters: RevisionCounters) -> None:
        counters.circuit_refusals += 1
        ticket.ending = Ending.REFUSED
        message = "every replica fails one request after the other; one request a second is tried"
        self._fail(ex, NOT_SERVABLE, message, extra=b"retry-after: 1\r\n")

    # --- failures ---------------------------------------------------------------------------------------------------

    def _given_back(self, ex: "Exchange", ticket: Ticket, bind: Bind, status: int) -> bytes | None:
        """The replica did not start it: back to its old place, unless its time is over or its body is gone."""
        now = self._clock()
        front = ticket.target.front
        if status == REPLICA_BROKE.status and front is not None:
            self.resilience.failed(bind, ticket.bound_at, front.route.outlier, now)
        if ticket.first is not None:
            return self._copy_failed(ex, ticket)
        if status == DEADLINE.status:
            ticket.ending = Ending.EXPIRED
            self._fail(ex, DEADLINE, "its deadline passed before the model ran it")
            return b""
        if not ex.replayable:
            self._fail(ex, REPLICA_BROKE, "the replica gave it back, and its body is too large to send again")
            return b""
        ticket.bind = None
        if status == 409:
            self.room.refused(bind, now)
        else:
            self.room.unsent(bind, now)
        self.flush()
        return None

    def _broken(self, ex: "Exchange", ticket: Ticket, bind: Bind, status: int) -> bytes | None:
        """The replica had started it and could not finish: once more where that does no harm, else the client is told
        by us, in its shape."""
        front = ticket.target.front
        if status == DEADLINE.status or front is None:
            ticket.ending = Ending.EXPIRED
            self._fail(ex, DEADLINE, "its deadline passed while the model ran it", executed=Executed.UNKNOWN)
            return b""
        now = self._clock()
        self.resilience.failed(bind, ticket.bound_at, front.route.outlier, now)
        ran_before, ticket.is_exposed = ticket.is_exposed, True
        if ticket.first is not None:
            return self._copy_failed(ex, ticket)
        if ticket.copy is not None:
            ticket.bind, ticket.is_stranded = None, True
            self.room.aborted(bind, now)
        elif now < ex.deadline and self._may_run_again(ex, ticket, front, ran_before, now):
            ticket.bind = None
            self.room.broke_off(bind, now)
        else:
            self._fail(ex, REPLICA_BROKE, "the model server broke off while it ran")
            return b""
        self.flush()
        return None

    def _may_run_again(self, ex: "Exchange", ticket: Ticket, front: Front, ran_before: bool, now: float) -> bool:
        """Whether a request that a replica had when it failed is sent once more: if that does no harm and the budget
        allows it. Replicas that gave it back before, untouched, do not count."""
        if ran_before or not ex.may_repeat(front.idempotent):
            return False
        return self.resilience.may_send_again(front, ticket.counters, now)

    def _not_well(self, ex: "Exchange", ticket: Ticket, bind: Bind, now: float) -> None:
        """An exchange ended with a replica that has not answered it completely."""
        self.room.aborted(bind, now)
        front = ticket.target.front
        if ex.truncated and ticket.ending is None and front is not None:
            self.resilience.failed(bind, ticket.bound_at, front.route.outlier, now)

    def _settle_copies(self, ex: "Exchange", ticket: Ticket, head: ResponseHead) -> None:
        """The client's answer is there: of two copies the other one ends, a shadow gets its own."""
        front = ticket.target.front
        if front is None:
            return
        now = self._clock()
        first = self.resilience.answered(ex, ticket, front, now)
        if first is not None:
            before: Ticket = first.context
            ticket.tokens, before.tokens = before.tokens, None
            ticket.held, before.held = before.held, None
            self.shadows.moved(before, ticket, ex)
            self._hand_over(first, ex)
        self.shadows.begins(ex, ticket, head, now)

    def _copy_failed(self, ex: "Exchange", ticket: Ticket) -> bytes:
        """A second copy ends without an answer; the first one goes on, or fails if it waited for this one alone."""
        first, ticket.first = ticket.first, None
        ex.respond(REPLICA_BROKE.status)
        if first is not None:
            before: Ticket = first.context
            before.copy = None
            if before.is_stranded:
                self._fail(first, REPLICA_BROKE, "two replicas broke off while they ran it")
        return b""

    def _fail(
        self,
        ex: "Exchange",
        kind: ErrorKind,
        message: str,
        *,
        executed: Executed = Executed.FALSE,
        extra: bytes = b"",
    ) -> None:
        """Answers a failure in the client's shape; always with the request's id."""
        ticket: Ticket = ex.context
        target = ticket.target
        function = target.front.name if target.front is not None else target.named or None
        request_id = ticket.request_id.decode("latin-1")
        executed = Executed.UNKNOWN if ticket.is_exposed else executed
        if ex.is_rpc:
            self.calls.fail(ex, ticket, kind, message, executed, extra)
            return
        if target.tell is not None:
            body = target.tell(kind, message, function=function, request_id=request_id, executed=executed)
        else:
            body = failure_body(
                kind, message, v2=target.v2, function=function, request_id=request_id, executed=executed
            )
        ex.respond(kind.status, body, extra=b"x-request-id: %b\r\n%b" % (ticket.request_id, extra))

    def __repr__(self) -> str:
        return f"<Chain table {self._table.version}, {self.room!r}>"


def _ending(ex: "Exchange", ticket: Ticket) -> Ending:
    if ticket.ending is not None:
        return ticket.ending
    return Ending.FAILED if ex.truncated or ex.status >= 500 else Ending.ANSWERED
