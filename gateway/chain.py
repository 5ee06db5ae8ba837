"""The path of one request through the gateway, readable top to bottom.

    match -> health? -> deadline -> size -> revision by weight -> waiting room -> forward -> answer headers -> count

The waiting room (``activator``) is a core in this process: a request that finds a free slot never waits, another is
bound to a replica only when a slot frees, and one that a replica gives back untouched returns to its old place. This
file connects that room, the counters and the engine's exchanges; sockets are the shell's (``live.py``).
"""

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from activator.commands import Activate, Bind, Command, Refuse
from activator.room import WaitingRoom
from gateway.failures import failure_body
from gateway.front import Front
from gateway.health import Copies, model_answer, model_list, server_answer
from gateway.match import Call, Matcher, Target
from gateway.report import Ending, Report, RevisionCounters
from tidegate import headers
from tidegate.errors import (
    BAD_REQUEST,
    BATCH_TOO_LARGE,
    DEADLINE,
    NOT_FOUND,
    NOT_SERVABLE,
    REPLICA_BROKE,
    ErrorKind,
    Executed,
)
from tidegate.flow.messages import ProxyMessage, State
from tidegate.phases import ColdStartPhases, known_phases
from tidegate.records import ColdStartSeen, RouteTable
from tidegate.replica import ReplicaState
from tidegate.timeout import TimeoutFieldError, request_timeout_s
from tidegate.wire.head import RequestHead, ResponseHead

if TYPE_CHECKING:
    from tidegate.aio.exchange import Exchange
    from tidegate.aio.upstream import UpstreamPool

CLIENT_GONE: Final = 499
KEPT_BYTES: Final = 256 * 1024
"""Of a waiting request's body stay in memory at most."""
_ID = re.compile(rb"[!-~]{1,128}")
_EVENT_STREAM: Final = b"text/event-stream"


class Ticket:
    """What the gateway knows of one request, from its head to its end."""

    __slots__ = (
        "bind",
        "bound_at",
        "counters",
        "ending",
        "front",
        "group",
        "id_line",
        "is_answered",
        "is_stream",
        "keeps",
        "request_id",
        "target",
    )

    def __init__(self, target: Target, request_id: bytes, id_line: bytes) -> None:
        self.target = target
        self.request_id = request_id
        self.id_line = id_line
        """The field to add on the way to the replica; empty where the client sent one."""
        self.front: Front | None = None
        self.counters: RevisionCounters | None = None
        self.bind: Bind | None = None
        """Set while a replica has the request."""
        self.bound_at = 0.0
        self.group: str | None = None
        self.is_answered = False
        self.is_stream = False
        self.keeps = False
        self.ending: Ending | None = None
        """Set where the status alone does not tell how it ended."""


class Chain:
    """The application behind the front door (``tidegate.aio.exchange.ProxyApp``)."""

    def __init__(
        self,
        *,
        room: WaitingRoom,
        report: Report,
        token: str,
        rng: random.Random,
        clock: Callable[[], float],
        pool_of: Callable[[str], "UpstreamPool"],
        shell: Callable[[Command], None],
        after: Callable[[], None],
        learn: Callable[[str, str, str], None],
    ) -> None:
        """``shell`` carries out commands about channels and activation; ``after`` is called when the room may want
        to be settled or woken; ``learn(revision, address, path)`` fetches a copy of model metadata."""
        self.room = room
        self.report = report
        self._token_line = b"tidegate-token: %b\r\n" % token.encode()
        self._rng = rng
        self._clock = clock
        self._pool_of = pool_of
        self._shell = shell
        self._after = after
        self._learn = learn
        self._fronts: dict[str, Front] = {}
        self._table = RouteTable(epoch=0, number=0, workers=1)
        self._matcher = Matcher(self._table)
        self._revision_of: dict[str, tuple[str, str]] = {}
        """(function, revision) of each replica in the table."""
        self._states: dict[str, ReplicaState] = {}
        """What each replica said last on its channel."""
        self._starts: dict[str, tuple[float, ColdStartPhases]] = {}
        """Replicas that this worker saw become ready: when, and after what."""
        self._unanswered: set[str] = set()
        """Of those, the ones that have not answered yet."""
        self._woken: set[str] = set()
        """Revisions for which this worker asked for activation, until one of their replicas was ready."""
        self.copies = Copies()
        self.is_draining = False

    # --- route table ------------------------------------------------------------------------------------------------

    @property
    def table(self) -> RouteTable:
        return self._table

    def apply(self, table: RouteTable) -> bool:
        """Works from this table on; False: older than the present one, ignored. No request is dropped for it."""
        if table.version < self._table.version or not self.room.apply(table, self._clock()):
            return False
        self._table = table
        self._matcher = Matcher(table)
        self._fronts = {route.name: Front(route) for route in table.functions}
        self._revision_of = {
            replica.id: (route.name, revision.id)
            for route in table.functions
            for revision in route.revisions
            for group in revision.groups
            for replica in group.replicas
        }
        for known in (self._states, self._starts):
            for name in known.keys() - self._revision_of.keys():
                del known[name]
        self._unanswered &= self._revision_of.keys()
        revisions = frozenset(revision.id for route in table.functions for revision in route.revisions)
        self.report.forget_except(revisions)
        self.copies.forget_except(revisions)
        self.flush()
        return True

    # --- the engine's calls -----------------------------------------------------------------------------------------

    def start(self, ex: "Exchange") -> None:
        head = ex.head
        target = self._matcher.match(head.method, head.host, head.path)
        ex.context = ticket = self._ticket(ex, target)
        if target.route is not None:
            ticket.front = self._fronts[target.route.name]
        if target.call is not Call.WORK and self._answered_here(ex, ticket):
            return
        front = ticket.front
        if front is None:
            self.report.unmatched += 1
            self._fail(ex, NOT_FOUND, _not_found(target))
            return
        if not head.mentions(b"-timeout"):
            ex.deadline = ex.received + front.timeout_s
        elif not self._set_deadline(ex, front):
            return
        self._sized(ex, ticket, front)

    def abandoned(self, ex: "Exchange") -> None:
        if self.room.leave(ex, self._clock()):
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
        outcome = head.get(headers.OUTCOME) if head.status >= 400 else None
        if outcome == b"not-started":
            return self._given_back(ex, ticket, bind, head.status)
        if outcome == b"started":
            self._broken(ex, ticket, head.status)
            return b""
        ticket.is_answered = True
        ticket.keeps = head.get(headers.CREDIT) == b"keep"
        if head.content_length is None:
            ticket.is_stream = (head.get(b"content-type") or b"").startswith(_EVENT_STREAM)
        if head.status == 200 and ticket.target.call is Call.METADATA and ex.head.method == b"GET":
            self._remember(ex, ticket, bind)
        if head.get(headers.REQUEST_ID) is not None:
            head.drop(headers.REQUEST_ID)
        return b"x-request-id: %b\r\nserver-timing: %b\r\n" % (
            ticket.request_id,
            self._timing(ex, ticket, bind, head.get(headers.TIMING)),
        )

    def upstream_failed(self, ex: "Exchange", sent: bool, why: str) -> None:
        ticket: Ticket = ex.context
        bind, ticket.bind = ticket.bind, None
        if bind is None:
            return
        now = self._clock()
        harmless = ticket.front is not None and ticket.front.route.idempotent
        again = ex.may_retry(sent, harmless) if sent else ex.replayable
        if again and now < ex.deadline:
            self.room.unsent(bind, now)
            self.flush()
            return
        ticket.bind = bind
        executed = Executed.UNKNOWN if sent else Executed.FALSE
        self._fail(ex, REPLICA_BROKE, f"replica {bind.replica.id} broke off: {why}", executed=executed)

    def finished(self, ex: "Exchange") -> None:
        ticket: Ticket = ex.context
        now = ex.ended
        bind, ticket.bind = ticket.bind, None
        whole = ticket.is_answered and not ex.truncated and ex.status != CLIENT_GONE
        if bind is not None:
            if whole:
                self.room.answered(bind, ticket.keeps, now)
            else:
                self.room.aborted(bind, now)
        counters = ticket.counters
        if counters is not None:
            ending = ticket.ending or _ending(ex)
            latency_s = (ex.first_byte if ticket.is_stream else now) - ex.received
            target_s = ticket.front.latency_s if ticket.front is not None else None
            counters.ended(ending, ticket.group, ex.inferences, latency_s, target_s is None or latency_s <= target_s)
        if bind is not None:
            self.flush()

    # --- channels ---------------------------------------------------------------------------------------------------

    def linked(self, replica: str) -> None:
        self.room.linked(replica, self._clock())
        self.flush()

    def heard(self, replica: str, message: ProxyMessage) -> None:
        now = self._clock()
        if type(message) is State:
            self._state_told(replica, message, now)
        self.room.heard(replica, message, now)
        self.flush()

    def unlinked(self, replica: str) -> None:
        self._states.pop(replica, None)
        self.room.unlinked(replica, self._clock())
        self.flush()

    # --- room -------------------------------------------------------------------------------------------------------

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
                        self._woken.add(command.activation.revision)  # type: ignore[union-attr]  # as above
                    self._shell(command)
        self._after()

    def settle(self) -> None:
        """The end of a loop turn."""
        self.room.settle(self._clock())
        self.flush()

    def wake(self) -> None:
        """The room's time has come."""
        self.room.on_wakeup(self._clock())
        self.flush()

    # --- steps ------------------------------------------------------------------------------------------------------

    def _ticket(self, ex: "Exchange", target: Target) -> Ticket:
        given = ex.head.get(headers.REQUEST_ID)
        if given is not None and _ID.fullmatch(given):
            return Ticket(target, given, b"")
        if given is not None:
            ex.head.drop(headers.REQUEST_ID)
        made = b"%032x" % self._rng.getrandbits(128)
        return Ticket(target, made, b"x-request-id: %b\r\n" % made)

    def _set_deadline(self, ex: "Exchange", front: Front) -> bool:
        """The request's own deadline, at most the function's timeout; False: the field was nonsense, answered."""
        try:
            own_s = request_timeout_s(ex.head)
        except TimeoutFieldError as error:
            self._fail(ex, BAD_REQUEST, str(error))
            return False
        ex.set_deadline(ex.received + (front.timeout_s if own_s is None else min(own_s, front.timeout_s)))
        return True

    def _sized(self, ex: "Exchange", ticket: Ticket, front: Front) -> None:
        """Admits a request whose size is known, or asks for more of a body that may still tell it."""
        if not ex.body_complete and front.tells_size_in_body(ex.head, ex.body):
            ex.on_body = self._body_went_on
        else:
            self._admit(ex, ticket, front)

    def _body_went_on(self, ex: "Exchange") -> None:
        ticket: Ticket = ex.context
        if ticket.front is not None:
            self._sized(ex, ticket, ticket.front)

    def _admit(self, ex: "Exchange", ticket: Ticket, front: Front) -> None:
        """Size, revision, then the room: bound now, waiting, or refused."""
        inferences = front.inferences(ex.head, ex.body)
        if not inferences:
            self._fail(
                ex, BATCH_TOO_LARGE, f"its batch is larger than {front.route.max_batch}, {front.name}'s max-batch"
            )
            return
        ex.inferences = inferences
        revision = front.revision(self._rng.random())
        if revision is None:
            self._fail(ex, NOT_SERVABLE, f"no revision of {front.name} takes traffic")
            return
        ticket.counters = counters = self.report.revision(front.name, revision)
        counters.arrived(ex.inferences)
        _drop_own_fields(ex.head)
        now = self._clock()
        if now >= ex.deadline:
            ticket.ending = Ending.EXPIRED
            self._fail(ex, DEADLINE, "its deadline had passed on arrival")
            return
        size = max(len(ex.body), min(ex.head.content_length or 0, KEPT_BYTES))
        found = self.room.arrive(ex, revision, ex.inferences, ex.deadline, now, size)
        if found is None:
            self.flush()
        elif type(found) is Bind:
            self._run(ex, found, now)
            self.flush()
        else:
            self._refused(found)  # type: ignore[arg-type]  # mypy does not narrow on `type() is`
            self.flush()

    def _run(self, ex: "Exchange", bind: Bind, now: float) -> None:
        """Sends a request to the replica that it is bound to; never past its deadline."""
        ticket: Ticket = ex.context
        ticket.bind, ticket.bound_at = bind, now
        if now >= ex.deadline:
            ticket.ending = Ending.EXPIRED
            self._fail(ex, DEADLINE, "its deadline passed before a replica was free for it")
            return
        ticket.group = bind.replica.group.accelerator
        extra = b"%btidegate-timeout-ms: %d\r\ntidegate-batch-size: %d\r\n%b%b" % (
            self._token_line,
            max(1, int((ex.deadline - now) * 1000.0)),
            ex.inferences,
            bind.header,
            ticket.id_line,
        )
        strip = ticket.target.strip
        target = _stripped(ex.head.target, strip) if strip else None
        ex.forward(self._pool_of(bind.replica.address), extra, target=target, hold=True)

    def _refused(self, refusal: Refuse) -> None:
        ex: Exchange = refusal.request  # type: ignore[assignment]  # requests here are exchanges
        ticket: Ticket = ex.context
        ticket.ending = Ending.EXPIRED if refusal.kind is DEADLINE else Ending.REFUSED
        extra = b"" if refusal.retry_after_s is None else b"retry-after: %d\r\n" % refusal.retry_after_s
        self._fail(ex, refusal.kind, refusal.message, extra=extra)

    def _given_back(self, ex: "Exchange", ticket: Ticket, bind: Bind, status: int) -> bytes | None:
        """The replica did not start it: back to its old place, unless its time is over or its body is gone."""
        now = self._clock()
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

    def _broken(self, ex: "Exchange", ticket: Ticket, status: int) -> None:
        """The replica had started it and could not finish: the client is told by us, in its shape."""
        if status == DEADLINE.status:
            ticket.ending = Ending.EXPIRED
            self._fail(ex, DEADLINE, "its deadline passed while the model ran it", executed=Executed.UNKNOWN)
        else:
            self._fail(ex, REPLICA_BROKE, "the model server broke off while it ran", executed=Executed.UNKNOWN)

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
        body = failure_body(
            kind,
            message,
            v2=ticket.target.v2,
            function=ticket.front.name if ticket.front is not None else ticket.target.named or None,
            request_id=ticket.request_id.decode("latin-1"),
            executed=executed,
        )
        ex.respond(kind.status, body, extra=b"x-request-id: %b\r\n%b" % (ticket.request_id, extra))

    # --- health and metadata ----------------------------------------------------------------------------------------

    def _answered_here(self, ex: "Exchange", ticket: Ticket) -> bool:
        """Answers what must not wake a function, or needs none; False: it is work after all."""
        target = ticket.target
        call, route, front = target.call, target.route, ticket.front
        answer: tuple[int, bytes] | None
        if route is None or front is None:
            answer = model_list(self._table) if call is Call.MODEL_LIST else server_answer(call, self.is_draining)
        elif call is Call.METADATA:
            answer = self._copy_while_asleep(ex, front)
        elif call is Call.MODEL_READY and target.model not in route.models and self._is_awake(front):
            answer = None  # A model it does not declare: only its server knows.
        else:
            answer = model_answer(call, target.model or route.name, front.failure)
        if answer is None:
            return False
        status, body = answer
        ex.respond(status, body, extra=b"x-request-id: %b\r\n" % ticket.request_id)
        return True

    def _copy_while_asleep(self, ex: "Exchange", front: Front) -> tuple[int, bytes] | None:
        if self._is_awake(front):
            return None
        path = _stripped(ex.head.path, ex.context.target.strip).decode("latin-1")
        for revision in front.route.revisions:
            body = self.copies.get(revision.id, path)
            if body is not None:
                return 200, body
        return None

    def _is_awake(self, front: Front) -> bool:
        """Whether some replica of it is ready, as far as the channels told."""
        return any(
            self._states.get(replica.id) is ReplicaState.READY
            for revision in front.route.revisions
            for group in revision.groups
            for replica in group.replicas
        )

    def _remember(self, ex: "Exchange", ticket: Ticket, bind: Bind) -> None:
        """Has a copy of metadata made, once per revision and path."""
        revision = bind.revision.id
        path = _stripped(ex.head.path, ticket.target.strip).decode("latin-1")
        if self.copies.wants(revision, path):
            self._learn(revision, bind.replica.address, path)

    # --- cold starts ------------------------------------------------------------------------------------------------

    def _state_told(self, replica: str, message: State, now: float) -> None:
        """Notes when a replica that this worker waited for became ready."""
        before = self._states.get(replica)
        self._states[replica] = message.state
        named = self._revision_of.get(replica)
        if message.state is not ReplicaState.READY or named is None:
            return
        was_woken = named[1] in self._woken
        self._woken.discard(named[1])
        if replica in self._starts or message.phases is None:
            return
        # A fast start may be over before its first state is heard: then the activation tells that it was one.
        if before is ReplicaState.STARTING or (before is None and was_woken):
            self._starts[replica] = (now, message.phases)
            self._unanswered.add(replica)

    def _timing(self, ex: "Exchange", ticket: Ticket, bind: Bind, told: bytes | None) -> bytes:
        """``Server-Timing``: wait, the phases of a cold start that the request waited through, queue, model."""
        parts = [b"wait;dur=%.3f" % ((ticket.bound_at - ex.received) * 1e3)]
        start = self._starts.get(bind.replica.id)
        if start is not None:
            parts.extend(self._cold_start(ex, bind, *start))
        if told is not None:
            queue, _, model = told.partition(b",model=")
            parts.append(b"queue;dur=%b, model;dur=%b" % (queue.removeprefix(b"queue="), model))
        return b", ".join(parts)

    def _cold_start(self, ex: "Exchange", bind: Bind, ready_at: float, phases: ColdStartPhases) -> list[bytes]:
        """Records the first answer of a replica; the phases as timings for requests that waited through the start."""
        replica = bind.replica.id
        waited = ex.received < ready_at
        if replica in self._unanswered:
            self._unanswered.discard(replica)
            # First response: measured only where somebody waited, else it would be idle time.
            phases = replace(phases, first_response_s=self._clock() - ready_at if waited else None)
            self._starts[replica] = (ready_at, phases)
            function, revision = bind.revision.function.name, bind.revision.id
            self.report.cold_start(ColdStartSeen(function=function, revision=revision, replica=replica, phases=phases))
        if not waited:
            return []
        return [
            b"cold-%b;dur=%.3f" % (name.replace("_", "-").encode(), seconds * 1e3)
            for name, seconds in known_phases(phases)
        ]

    def __repr__(self) -> str:
        return f"<Chain table {self._table.version}, {self.room!r}>"


def _drop_own_fields(head: RequestHead) -> None:
    """The client's own deadline and size: the replica gets what remains and what was found."""
    if head.mentions(b"\ntidegate-"):
        head.drop(headers.TIMEOUT_MS, headers.BATCH_SIZE)


def _ending(ex: "Exchange") -> Ending:
    if ex.status == CLIENT_GONE:
        return Ending.CANCELLED
    return Ending.FAILED if ex.truncated or ex.status >= 500 else Ending.ANSWERED


def _not_found(target: Target) -> str:
    if target.named:
        return f"no function or model is called {target.named!r} here"
    return "the request names no function: use the host NAME.<domain>, /functions/NAME/ or a V2 model path"


def _stripped(path: bytes, strip: int) -> bytes:
    """Without the function's prefix; never empty, and a query alone gets its slash."""
    rest = path[strip:]
    return rest if rest.startswith(b"/") else b"/" + rest
