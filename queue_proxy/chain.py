"""The path of one request through a queue_proxy, readable top to bottom.

    channel? -> probe? -> trusted? -> deadline -> batch size -> slot (credit, or own queue) -> model server -> count

A request of a gateway carries the deployment's token and the number of a credit; anybody else's (curl, a Knative
ingress) takes a slot from the same ledger through the replica's own short queue, ten times the limit long, as
Knative's queue-proxy has it. Work past its deadline is never started. On failures ``tidegate-outcome`` tells the
gateway whether the model server may have seen the request.

When the model server breaks a connection off, it may be dying: its other connections and its listening socket go in
any order. Until a probe has told (milliseconds) nothing more is sent to it, so that a death costs the requests that ran
and no others.
"""

from _operator import _compare_digest as equal_secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from tidegate import headers
from tidegate.aio.proxy.kinds import as_call
from tidegate.errors import (
    BAD_REQUEST,
    DEADLINE,
    NOT_GRPC,
    NOT_SERVABLE,
    QUEUE_FULL,
    REPLICA_BROKE,
    SHUTTING_DOWN,
    STALE_CREDIT,
    START_FAILED,
    ErrorKind,
    Executed,
)
from tidegate.flow.slots import Credit, SlotLedger, Visit
from tidegate.flow.wants import read_want
from tidegate.queue_proxy.lifecycle import ReplicaLifecycle
from tidegate.queue_proxy.metrics import CLIENT_GONE, ReplicaCounters
from tidegate.queue_proxy.probes import KnativeProbe, knative_probe
from tidegate.queue_proxy.settings import KNATIVE_QUEUE_PER_SLOT, ProxySettings
from tidegate.records.replica_state import ReplicaState
from tidegate.timeout import TimeoutFieldError, request_timeout_s
from tidegate.wire.bodies.v2 import BatchSizer
from tidegate.wire.grpc.grpc import call_batch
from tidegate.wire.message_heads import AnyResponseHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.aio.proxy.grpc_call import GrpcCall
    from tidegate.aio.upstream.pool import UpstreamPool
    from tidegate.wire.http1.head import Internal

SLOTS_FOR_QUEUE: Final = 100
"""For the bound of the queue of a replica without a limit, where requests wait during its start only."""
_KEEP, _HOME = b"tidegate-credit: keep\r\n", b"tidegate-credit: home\r\n"
NO_CREDIT: Final = -1
"""No credit has this number."""
NOT_STARTED, STARTED, ANSWERED = b"not-started", b"started", b"answered"


class RequestState:
    """One request here, from its head to its end."""

    __slots__ = ("credit", "is_exposed", "is_unanswered", "sent_at", "trusted", "units", "visit", "was_sent")

    def __init__(self, trusted: bool, units: int = 0, sent_at: float = 0.0) -> None:
        self.trusted = trusted
        """It comes from a gateway of this deployment."""
        self.units = units
        """What the ledger charges it, where it had a slot at once and without a credit."""
        self.credit: Credit | None = None
        self.visit: Visit | None = None
        self.sent_at = sent_at
        """When it had its slot; 0: not yet."""
        self.is_exposed = False
        """The model server may have seen it."""
        self.was_sent = False
        """An earlier attempt had reached it."""
        self.is_unanswered = False
        """Its client or its deadline was gone before an answer began."""


class Sidecar:
    """The application behind the listening side (``tidegate.aio.proxy.exchange.ProxyApp``)."""

    def __init__(
        self,
        settings: ProxySettings,
        *,
        token: bytes | None,
        ledger: SlotLedger,
        life: ReplicaLifecycle,
        measure: ReplicaCounters,
        pool: "UpstreamPool",
        clock: Callable[[], float],
        pump: Callable[[], None],
        open_channel: Callable[["Exchange"], None],
        suspect: Callable[[str], None],
    ) -> None:
        """``pump`` carries out ``ledger.out`` and arms the ledger's timer; ``open_channel`` upgrades an exchange to a
        slot channel; ``suspect`` is told when the model server does not behave as a living one."""
        self._settings = settings
        self._token = token
        self._ledger = ledger
        self._life = life
        self._measure = measure
        self._pool = pool
        self._clock = clock
        self._carry_out = pump
        self._open_channel = open_channel
        self._suspect = suspect
        self._timeout_s = settings.timeout_s
        self._batch_header = settings.batch_header.lower().encode()
        self._own_header = None if self._batch_header.startswith(headers.INTERNAL_PREFIX) else self._batch_header
        """Where a usual call may state its batch; one with a field of ours is not usual."""
        self._max_batch = settings.max_batch
        self._sizer = BatchSizer(
            self._batch_header, settings.bytes_per_item, settings.batch_overhead_bytes, settings.max_batch
        )
        """Inferences of a stranger's request, read as the gateway would read them."""
        if settings.only_grpc:
            self.start = self._start_if_call  # type: ignore[method-assign]  # others pay nothing for it
        self._queued: dict[Visit, Exchange] = {}
        """Strangers that wait for a slot."""
        self._held: list[Exchange] | None = None
        """Requests with a slot that wait for what a probe of the model server tells; None: it is not in doubt."""

    # --- the engine's calls -----------------------------------------------------------------------------------------

    def start(self, ex: "Exchange") -> None:
        head = ex.head
        if self._life.message:
            self._start_unusual(ex)
            return
        if ex.is_rpc:
            self._start_call(as_call(ex))
            return
        if not head.plain or not ex.body_complete:
            told = head.internal
            if told is not None and self._token is not None and equal_secrets(told.token, self._token):
                self._start_told(ex, told)
            else:
                self._start_unusual(ex)
            return
        # Most strangers' requests, written out flat: the whole of it, with a free slot.
        now = ex.received
        ex.deadline = now + self._timeout_s
        ex.inferences = units = self._sizer.of(head, ex.body)
        charged = self._ledger.enter_at_once(units)
        if not charged:
            ex.context = run = RequestState(False)
            self._enter(ex, run, now)
            return
        ex.context = run = RequestState(False, charged, now)
        self._measure.began(now, units)
        if self._held is None:
            run.is_exposed = True
            ex.forward(self._pool)
        else:
            self._held.append(ex)

    def _start_if_call(self, ex: "Exchange") -> None:
        """Before a model server that speaks gRPC alone: a slot channel and Knative's probes are for us, the rest is
        refused."""
        head = ex.head
        if ex.is_rpc or head.upgrade is not None or head.mentions(b"-probe"):
            type(self).start(self, ex)
        else:
            ex.context = RequestState(False)
            self._refuse(ex, NOT_GRPC, "the model server speaks gRPC alone")

    def _start_call(self, ex: "GrpcCall") -> None:
        """A gRPC call. A stranger's that is usual and whole, with a free slot, is written out here."""
        head = ex.head
        told = head.internal
        if told is not None and self._token is not None and equal_secrets(told.token, self._token):
            ex.mark_as_gateway()
            self._start_told(ex, told)
            return
        if not head.is_usual or not ex.body_complete:
            self._start_unusual(ex)
            return
        now, timeout, own = ex.received, self._timeout_s, head.timeout_s
        ex.deadline = now + (timeout if own is None or own > timeout else own)
        ex.inferences = units = call_batch(head, ex.body, self._own_header, self._max_batch) or 1
        charged = self._ledger.enter_at_once(units) if now < ex.deadline else 0
        if not charged:
            ex.context = run = RequestState(False)
            self._enter(ex, run, now)
            return
        ex.context = run = RequestState(False, charged, now)
        self._measure.began(now, units)
        self._forward(ex)

    def _start_told(self, ex: "Exchange", told: "Internal") -> None:
        """A gateway's request as gateways write them."""
        ex.context = run = RequestState(True)
        now = ex.received
        own = int(told.timeout_ms) / 1000
        timeout = self._timeout_s
        ex.deadline = now + (own if own < timeout else timeout)
        ex.inferences = int(told.batch_size) or 1
        if told.credit is None:
            self._enter(ex, run, now)
        else:
            self._on_credit(ex, run, int(told.credit), told.want or b"", now)

    def _start_unusual(self, ex: "Exchange") -> None:
        """The same step by step, for every request that there may be."""
        head = ex.head
        given = head.get(headers.TOKEN) if self._token is not None else None
        trusted = given is not None and self._is_token(given)
        if not trusted and not ex.is_rpc and head.mentions(b"-probe") and self._answered_probe(ex):
            return
        ex.context = run = RequestState(trusted)
        if head.upgrade is not None and head.path == headers.SLOT_CHANNEL_PATH:
            self._channel(ex, run)
        elif self._life.message:
            self._refuse(ex, START_FAILED, self._life.message)
        elif self._set_deadline(ex):
            if trusted:
                self._admit_trusted(ex, run, ex.received)
            elif not ex.body_complete and self._tells_size_in_body(ex):
                ex.on_body = self._admit_late
            else:
                self._admit_stranger(ex, run, ex.received)

    def _admit_late(self, ex: "Exchange") -> None:
        """The first bytes of a stranger's body have come."""
        self._admit_stranger(ex, ex.context, self._clock())

    def _admit_stranger(self, ex: "Exchange", run: RequestState, now: float) -> None:
        ex.inferences = self._size(ex)
        self._enter(ex, run, now)

    def _size(self, ex: "Exchange") -> int:
        """Inferences of a stranger's request, by what of its body is there."""
        if ex.is_rpc:
            return call_batch(as_call(ex).head, ex.body, self._batch_header, self._settings.max_batch) or 1
        return self._sizer.of(ex.head, ex.body)

    def _admit_trusted(self, ex: "Exchange", run: RequestState, now: float) -> None:
        """A gateway's request: with a credit, or without one to a replica that has no limit."""
        head = ex.head
        told = head.get(headers.BATCH_SIZE)
        ex.inferences = self._size(ex) if told is None or not _is_number(told) else int(told) or 1
        number = head.get(headers.CREDIT)
        if number is None:
            self._enter(ex, run, now)
        else:
            credit = int(number) if _is_number(number) else NO_CREDIT
            self._on_credit(ex, run, credit, head.get(headers.WANT) or b"", now)

    def _on_credit(self, ex: "Exchange", run: RequestState, number: int, want: bytes, now: float) -> None:
        if now >= ex.deadline:
            self._late(ex)
            return
        run.credit = self._ledger.start(number, ex.inferences, read_want(want), now)
        if run.credit is None:
            self._refuse(ex, STALE_CREDIT, "the credit is not outstanding")
        else:
            self._send(ex, run, now)
        self._pump()

    def _enter(self, ex: "Exchange", run: RequestState, now: float) -> None:
        """A request without a credit: to the model server, or to wait in the replica's own queue."""
        if now >= ex.deadline:
            self._late(ex)
            return
        run.units = self._ledger.enter_at_once(ex.inferences)
        if run.units:
            self._send(ex, run, now)
            return
        visit = self._ledger.enter(ex, ex.inferences, now)
        if visit is None or visit.credit is None:
            self._wait(ex, run, visit, now)
        else:
            run.credit = visit.credit
            self._send(ex, run, now)
            self._pump()

    def admitted(self, visit: Visit) -> None:
        """A request that waited in the replica's own queue has a slot."""
        ex = self._queued.pop(visit, None)
        credit = visit.credit
        if credit is None:
            return
        now = self._clock()
        if ex is None:
            self._give_back(credit, now)
        elif now >= ex.deadline:
            ex.context.visit = None
            self._give_back(credit, now)
            self._refuse(ex, DEADLINE, "its deadline passed while it waited at the replica")
        else:
            ex.context.credit = credit
            self._send(ex, ex.context, now)

    def rejected(self, visit: Visit) -> None:
        """The replica will not run a request that waited."""
        ex = self._queued.pop(visit, None)
        if ex is not None:
            ex.context.visit = None
            self._refuse(ex, SHUTTING_DOWN, "the replica has drained")

    def model_failed(self, message: str) -> None:
        """The model server is gone: whoever waits for it is told."""
        held, self._held = self._held or [], None
        for ex in held:
            if not ex.ended:
                self._fail(ex, START_FAILED, message, STARTED if ex.context.is_exposed else NOT_STARTED)
        waiting, self._queued = self._queued, {}
        now = self._clock()
        for visit, ex in waiting.items():
            ex.context.visit = None
            self._ledger.leave(visit, now)
            self._refuse(ex, START_FAILED, message)
        self._pump()

    def doubt(self) -> None:
        """The model server may be dead: nothing is sent to it until ``trust`` or ``model_failed``."""
        if self._held is None:
            self._held = []

    def trust(self) -> None:
        """It lives: what was held goes on, unless its time is over."""
        held, self._held = self._held or [], None
        now = self._clock()
        for ex in held:
            if ex.ended:
                continue
            if now < ex.deadline:
                self._forward(ex)
            else:
                self.expired(ex)

    def abandoned(self, ex: "Exchange") -> None:
        run: RequestState | None = ex.context
        if run is not None:
            run.is_unanswered = not ex.first_byte
        self._leave(ex)

    def expired(self, ex: "Exchange") -> None:
        run: RequestState = ex.context
        run.is_unanswered = not ex.first_byte
        self._leave(ex)
        if run.is_exposed:
            self._fail(ex, DEADLINE, "its deadline passed while the model ran it", STARTED)
        else:
            self._refuse(ex, DEADLINE, "its deadline passed while it waited at the replica")

    def answering(self, ex: "Exchange", head: AnyResponseHead) -> bytes:
        run: RequestState = ex.context
        if not run.trusted:
            return b""
        now, sent_at = self._clock(), run.sent_at
        model_us = int((now - sent_at) * 1e6 + 0.5)
        queue_us = int((sent_at - ex.received) * 1e6 + 0.5)
        credit, last = run.credit, b""
        if credit is not None and credit.channel is not None:
            last = _KEEP if self._ledger.keeps(credit, now) else _HOME
        if head.status >= 500:
            last += b"tidegate-outcome: answered\r\n"
        # Milliseconds out of whole microseconds: a third of the time of formatting floats.
        return b"tidegate-timing: queue=%d.%03d,model=%d.%03d\r\n%b" % (
            queue_us // 1000,
            queue_us % 1000,
            model_us // 1000,
            model_us % 1000,
            last,
        )

    def upstream_failed(self, ex: "Exchange", sent: bool, why: str) -> None:
        run: RequestState = ex.context
        run.was_sent |= sent
        run.is_exposed = run.was_sent
        self._suspect(why)
        if ex.may_retry(sent, False) and self._clock() < ex.deadline:
            self._forward(ex)
        elif run.was_sent:
            self._fail(ex, REPLICA_BROKE, f"the model server broke off: {why}", STARTED)
        else:
            self._fail(ex, REPLICA_BROKE, f"the model server cannot be reached: {why}", NOT_STARTED)

    def finished(self, ex: "Exchange") -> None:
        run: RequestState | None = ex.context
        if run is None:
            return  # a probe
        now, sent_at = ex.ended, run.sent_at
        if sent_at:
            length = ex.head.content_length
            queue_s, unanswered = sent_at - ex.received, run.is_unanswered
            self._measure.ended(now, sent_at, ex.inferences, queue_s, length, ex.status, ex.truncated, unanswered)
        elif not run.trusted:
            # A gateway's request goes elsewhere: it is counted where it runs.
            self._measure.refused(ex.status)
        if ex.held is not None and (run.units or run.credit is not None):
            # Nobody waits for it, but the model server works on: its slot is not free before that has ended.
            ex.held.on_end = partial(self._held_ended, run.units, run.credit)
            run.units, run.credit = 0, None
        if run.units:
            if self._ledger.left(run.units, now):
                self._pump()
            return
        if run.credit is not None:
            self._ledger.ended(run.credit, now, aborted=ex.truncated or ex.status == CLIENT_GONE)
            run.credit = None
            self._pump()
        # Exchange -> run -> visit -> exchange: a circle would wait for the collector, and cold memory costs more time
        # than all the counting here.
        run.visit = None

    def _held_ended(self, units: int, credit: Credit | None) -> None:
        """The model server has ended a request that nobody waited for."""
        now = self._clock()
        if units:
            self._ledger.left(units, now)
        elif credit is not None:
            self._ledger.ended(credit, now, aborted=True)
        self._pump()

    # --- steps ------------------------------------------------------------------------------------------------------

    def _is_token(self, given: bytes) -> bool:
        """Whether it is the deployment's token; compared in constant time."""
        return self._token is not None and equal_secrets(given, self._token)

    def _channel(self, ex: "Exchange", run: RequestState) -> None:
        if not run.trusted or ex.head.upgrade != headers.SLOT_CHANNEL_PROTOCOL:
            ex.respond(403, b'{"error":"a slot channel needs the token of this deployment"}')
        elif self._life.is_failed:
            self._refuse(ex, START_FAILED, self._life.message)
        else:
            self._open_channel(ex)

    def _answered_probe(self, ex: "Exchange") -> bool:
        """Answers probes of Knative's own components; they take no slot and count nowhere."""
        head = ex.head
        network, digest = head.get(b"k-network-probe"), head.get(b"k-network-hash")
        probe = knative_probe(head.get(b"user-agent"), network, digest)
        if probe is KnativeProbe.NONE:
            return False
        text = b"text/plain"
        state = self._life.state
        if probe is KnativeProbe.BAD:
            ex.respond(400, b"unexpected probe header value", content_type=text)
        elif state in (ReplicaState.DRAINING, ReplicaState.DRAINED):
            ex.respond(503, b"shutting down", content_type=text)
        elif probe is KnativeProbe.NETWORK:
            ex.respond(200, b"probe", content_type=text, extra=b"k-network-hash: %b\r\n" % (digest or b""))
        elif state is ReplicaState.READY:
            ex.respond(200, b"queue", content_type=text)
        else:
            ex.respond(503, b"not ready", content_type=text)
        return True

    def _set_deadline(self, ex: "Exchange") -> bool:
        """The request's own deadline, at most the revision's timeout; False: the field was nonsense, answered."""
        try:
            own = request_timeout_s(ex.head)
        except TimeoutFieldError as error:
            self._refuse(ex, BAD_REQUEST, str(error))
            return False
        timeout = self._timeout_s
        ex.set_deadline(ex.received + (timeout if own is None or own > timeout else own))
        return True

    def _tells_size_in_body(self, ex: "Exchange") -> bool:
        """A stranger's V2 request whose body comes after its head, and whose head does not tell its size."""
        head = ex.head
        if ex.is_rpc:
            return call_batch(as_call(ex).head, ex.body, self._batch_header, self._settings.max_batch) is None
        return (
            not ex.body
            and not head.expect_continue
            and head.path.startswith(b"/v2/")
            and head.get(self._batch_header) is None
        )

    def _wait(self, ex: "Exchange", run: RequestState, visit: Visit | None, now: float) -> None:
        """A request without a credit that cannot run at once: waits in the replica's own queue, which is bounded."""
        if visit is None:
            self._refuse(ex, SHUTTING_DOWN, "the replica takes no work")
        elif self._ledger.queued > KNATIVE_QUEUE_PER_SLOT * (self._ledger.limit or SLOTS_FOR_QUEUE):
            self._ledger.leave(visit, now)
            self._refuse(ex, QUEUE_FULL, "the replica's own queue is full")
        else:
            run.visit = visit
            self._queued[visit] = ex
        self._pump()

    def _send(self, ex: "Exchange", run: RequestState, now: float) -> None:
        """A request that waited has its slot."""
        run.sent_at = now
        self._measure.began(now, ex.inferences)
        if run.trusted:
            ex.proceed()
        self._forward(ex)

    def _forward(self, ex: "Exchange") -> None:
        if self._held is None:
            ex.context.is_exposed = True
            ex.forward(self._pool)
        else:
            self._held.append(ex)

    def _leave(self, ex: "Exchange") -> None:
        """A request that still waits goes away."""
        visit = ex.context.visit
        if visit is not None and self._queued.pop(visit, None) is not None:
            ex.context.visit = None
            self._ledger.leave(visit, self._clock())
            self._pump()

    def _give_back(self, credit: Credit, now: float) -> None:
        self._ledger.ended(credit, now, aborted=True)
        self._pump()

    def _late(self, ex: "Exchange") -> None:
        self._refuse(ex, DEADLINE, "its deadline passed before it reached the replica")

    def _refuse(self, ex: "Exchange", kind: ErrorKind, message: str) -> None:
        """The model has not seen it."""
        self._fail(ex, kind, message, NOT_STARTED)

    def _pump(self) -> None:
        ledger = self._ledger
        if ledger.out or ledger.next_wakeup() is not None:
            self._carry_out()

    def _fail(self, ex: "Exchange", kind: ErrorKind, message: str, outcome: bytes) -> None:
        run: RequestState = ex.context
        status_kind = NOT_SERVABLE if kind is QUEUE_FULL else kind
        extra = b"tidegate-outcome: %b\r\n" % outcome if run.trusted else b""
        ex.fail(
            status_kind,
            message,
            function=self._settings.function or None,
            executed=Executed.FALSE if outcome is NOT_STARTED else Executed.UNKNOWN,
            extra=extra,
        )

    def __repr__(self) -> str:
        return f"<Sidecar {self._measure.in_flight} in flight, {len(self._queued)} queued, {self._ledger!r}>"


def _is_number(text: bytes) -> bool:
    """ASCII digits, not endless ones."""
    return text.isdigit() and len(text) < 19
