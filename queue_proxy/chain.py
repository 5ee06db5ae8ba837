"""The path of one request through a queue_proxy, readable top to bottom.

    channel? -> probe? -> trusted? -> deadline -> batch size -> slot (credit, or own queue) -> model server -> count

A request of a gateway carries the deployment's token and the number of a credit. A *direct* request (curl, a Knative
ingress) has no token. It takes a slot from the same ledger through the replica's own short queue, which is ten times
the limit long, as in Knative's queue-proxy. ``request_slots.py`` has both ways. A request past its deadline is never
started. On failures ``tidegate-outcome`` reports to the gateway whether the model server may have seen the request.

A model server that breaks a connection off may be dying: its other connections and its listening socket close in any
order. Until a probe has decided (milliseconds) nothing more is sent to it. A death thus costs the requests that ran and
no others.
"""

from _operator import _compare_digest as equal_secrets
from collections.abc import Callable
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
    START_FAILED,
    ErrorKind,
    Executed,
)
from tidegate.flow.slots import SlotLedger
from tidegate.headers import TimeoutFieldError, request_timeout_s
from tidegate.queue_proxy.held_calls import HeldCall
from tidegate.queue_proxy.lifecycle import ReplicaLifecycle
from tidegate.queue_proxy.metrics import CLIENT_GONE, ReplicaCounters
from tidegate.queue_proxy.probes import answer_probe
from tidegate.queue_proxy.request_slots import RequestSlots
from tidegate.queue_proxy.request_state import RequestState
from tidegate.queue_proxy.settings import ProxySettings
from tidegate.wire.bodies.v2 import BatchSizer
from tidegate.wire.grpc.first_message import call_batch
from tidegate.wire.message_heads import AnyResponseHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.aio.proxy.grpc_call import GrpcCall
    from tidegate.aio.upstream.pool import UpstreamPool
    from tidegate.wire.http1.request_head import Internal

_KEEP, _HOME = b"tidegate-credit: keep\r\n", b"tidegate-credit: home\r\n"
NO_CREDIT: Final = -1
"""A number that no credit has."""
NOT_STARTED, STARTED, ANSWERED = b"not-started", b"started", b"answered"


class Sidecar:
    """The application behind the listening side (``tidegate.aio.proxy.exchange.ProxyApp``)."""

    def __init__(
        self,
        settings: ProxySettings,
        *,
        token: bytes | None,
        ledger: SlotLedger,
        lifecycle: ReplicaLifecycle,
        counters: ReplicaCounters,
        pool: "UpstreamPool",
        clock: Callable[[], float],
        pump: Callable[[], None],
        open_channel: Callable[["Exchange"], None],
        check_model: Callable[[str], None],
        watch_held: Callable[[], None] = lambda: None,
    ) -> None:
        """``pump`` carries out ``ledger.out`` and arms the ledger's timer. ``open_channel`` upgrades an exchange to a
        slot channel. ``check_model`` is called when the model server behaves as if it were dead, ``watch_held`` when a
        call without a client holds its slot."""
        self._settings = settings
        self._token = token
        self._ledger = ledger
        self._lifecycle = lifecycle
        self._counters = counters
        self._pool = pool
        self._clock = clock
        self._open_channel = open_channel
        self._check_model = check_model
        self._watch_held = watch_held
        self.slots = RequestSlots(ledger, clock=clock, pump=pump, send=self._send, refuse=self._refuse)
        self._timeout_s = settings.timeout_s
        self._batch_header = settings.batch_header.lower().encode()
        self._own_header = None if self._batch_header.startswith(headers.INTERNAL_PREFIX) else self._batch_header
        """The field in which a usual gRPC call may state its batch. A call with one of Tidegate's own fields is not
        usual."""
        self._max_batch = settings.max_batch
        self._sizer = BatchSizer(
            self._batch_header, settings.bytes_per_item, settings.batch_overhead_bytes, settings.max_batch
        )
        """Reads the inferences of a direct request as the gateway would."""
        if settings.only_grpc:
            self.start = self._start_only_grpc  # type: ignore[method-assign]  # others pay nothing for it
        self._paused: list[Exchange] | None = None
        """Requests with a slot that wait for the result of a probe. None if the model server is not in doubt."""

    # --- the engine's calls -----------------------------------------------------------------------------------------

    def start(self, ex: "Exchange") -> None:
        head = ex.head
        if self._lifecycle.message:
            self._start_in_steps(ex)
            return
        if ex.is_rpc:
            self._start_grpc(as_call(ex))
            return
        if not head.plain or not ex.body_complete:
            internal = head.internal
            if internal is not None and self._token is not None and equal_secrets(internal.token, self._token):
                self._start_from_gateway(ex, internal)
            else:
                self._start_in_steps(ex)
            return
        # Most direct requests: no field but the usual ones, the body is whole. Flat on purpose: 8.5 us a request, with
        # calls of `_enter` and `_send` 8.7, step by step 10.2 (engine_bench --app queue_proxy --load post).
        now = ex.received
        ex.deadline = now + self._timeout_s
        ex.inferences = units = self._sizer.of(head, ex.body)
        charged = self._ledger.enter_at_once(units)
        if not charged:
            ex.context = request = RequestState(False)
            self.slots.enter(ex, request, now)
            return
        ex.context = request = RequestState(False, charged, now)
        self._counters.began(now, units)
        if self._paused is None:
            request.may_have_run = True
            ex.forward(self._pool)
        else:
            self._paused.append(ex)

    def _start_only_grpc(self, ex: "Exchange") -> None:
        """Starts a request at a model server that speaks gRPC only. Slot channels and Knative's probes are
        handled here; other HTTP requests are refused."""
        head = ex.head
        if ex.is_rpc or head.upgrade is not None or head.mentions(b"-probe"):
            type(self).start(self, ex)
        else:
            ex.context = RequestState(False)
            self._refuse(ex, NOT_GRPC, "the model server speaks gRPC alone")

    def _start_grpc(self, ex: "GrpcCall") -> None:
        """Starts a gRPC call. Usual and complete direct calls take a short cut."""
        head = ex.head
        internal = head.internal
        if internal is not None and self._token is not None and equal_secrets(internal.token, self._token):
            ex.mark_as_gateway()
            self._start_from_gateway(ex, internal)
            return
        if not head.is_usual or not ex.body_complete:
            self._start_in_steps(ex)
            return
        # Flat as in `start`: saves 0.2 to 0.3 us of 17.5 a call (h2_bench --subject queue_proxy --load same).
        now, timeout, own = ex.received, self._timeout_s, head.timeout_s
        ex.deadline = now + (timeout if own is None or own > timeout else own)
        ex.inferences = units = call_batch(head, ex.body, self._own_header, self._max_batch) or 1
        charged = self._ledger.enter_at_once(units) if now < ex.deadline else 0
        if not charged:
            ex.context = request = RequestState(False)
            self.slots.enter(ex, request, now)
            return
        ex.context = request = RequestState(False, charged, now)
        self._counters.began(now, units)
        self._forward(ex)

    def _start_from_gateway(self, ex: "Exchange", internal: "Internal") -> None:
        """Starts a request in the form in which gateways send it."""
        ex.context = request = RequestState(True)
        now = ex.received
        own = int(internal.timeout_ms) / 1000
        timeout = self._timeout_s
        ex.deadline = now + (own if own < timeout else timeout)
        ex.inferences = int(internal.batch_size) or 1
        if internal.credit is None:
            self.slots.enter(ex, request, now)
        else:
            self.slots.start_credit(ex, request, int(internal.credit), internal.want or b"", now)

    def _start_in_steps(self, ex: "Exchange") -> None:
        """Starts a request of any form, step by step."""
        head = ex.head
        given = head.get(headers.TOKEN) if self._token is not None else None
        is_trusted = given is not None and self._is_token(given)
        if not is_trusted and not ex.is_rpc and head.mentions(b"-probe") and answer_probe(ex, self._lifecycle.state):
            return
        ex.context = request = RequestState(is_trusted)
        if head.upgrade is not None and head.path == headers.SLOT_CHANNEL_PATH:
            self._channel(ex, request)
        elif self._lifecycle.message:
            self._refuse(ex, START_FAILED, self._lifecycle.message)
        elif self._set_deadline(ex):
            if is_trusted:
                self._admit_from_gateway(ex, request, ex.received)
            elif not ex.body_complete and self._has_size_in_body(ex):
                ex.on_body = self._admit_on_body
            else:
                self._admit_direct(ex, request, ex.received)

    def _admit_on_body(self, ex: "Exchange") -> None:
        """Continues a direct request when the first bytes of its body have arrived."""
        self._admit_direct(ex, ex.context, self._clock())

    def _admit_direct(self, ex: "Exchange", request: RequestState, now: float) -> None:
        ex.inferences = self._size(ex)
        self.slots.enter(ex, request, now)

    def _size(self, ex: "Exchange") -> int:
        """Returns the inferences of a direct request, judged by the part of its body that has arrived."""
        if ex.is_rpc:
            return call_batch(as_call(ex).head, ex.body, self._batch_header, self._settings.max_batch) or 1
        return self._sizer.of(ex.head, ex.body)

    def _admit_from_gateway(self, ex: "Exchange", request: RequestState, now: float) -> None:
        """Admits a gateway's request: with a credit, or without one if the replica has no limit."""
        head = ex.head
        stated = head.get(headers.BATCH_SIZE)
        ex.inferences = self._size(ex) if stated is None or not _is_number(stated) else int(stated) or 1
        number = head.get(headers.CREDIT)
        if number is None:
            self.slots.enter(ex, request, now)
        else:
            credit = int(number) if _is_number(number) else NO_CREDIT
            self.slots.start_credit(ex, request, credit, head.get(headers.WANT) or b"", now)

    def model_failed(self, message: str) -> None:
        """Ends all requests that wait for the model server, which is gone."""
        held, self._paused = self._paused or [], None
        for ex in held:
            if not ex.ended:
                self._fail(ex, START_FAILED, message, STARTED if ex.context.may_have_run else NOT_STARTED)
        self.slots.refuse_queued(message)

    def pause(self) -> None:
        """Holds requests back until ``resume`` or ``model_failed``, since the model server may be dead."""
        if self._paused is None:
            self._paused = []

    def resume(self) -> None:
        """Sends the requests that were held back, except those past their deadline. The model server lives."""
        held, self._paused = self._paused or [], None
        now = self._clock()
        for ex in held:
            if ex.ended:
                continue
            if now < ex.deadline:
                self._forward(ex)
            else:
                self.expired(ex)

    def abandoned(self, ex: "Exchange") -> None:
        request: RequestState | None = ex.context
        if request is not None:
            request.is_unanswered = not ex.first_byte
            if request.may_have_run:
                self._hold_running(ex)
        self.slots.leave_queue(ex)

    def expired(self, ex: "Exchange") -> None:
        request: RequestState = ex.context
        request.is_unanswered = not ex.first_byte
        self.slots.leave_queue(ex)
        if request.may_have_run:
            self._hold_running(ex)
            self._fail(ex, DEADLINE, "its deadline passed while the model ran it", STARTED)
        else:
            self._refuse(ex, DEADLINE, "its deadline passed while it waited at the replica")

    def answering(self, ex: "Exchange", head: AnyResponseHead) -> bytes:
        request: RequestState = ex.context
        if not request.is_trusted:
            return b""
        now, sent_at = self._clock(), request.sent_at
        model_us = int((now - sent_at) * 1e6 + 0.5)
        queue_us = int((sent_at - ex.received) * 1e6 + 0.5)
        credit, last = request.credit, b""
        if credit is not None and credit.channel is not None:
            last = _KEEP if self._ledger.keeps(credit, now) else _HOME
        if head.status >= 500:
            last += b"tidegate-outcome: answered\r\n"
        # Milliseconds from whole microseconds: takes a third of the time of formatting floats.
        return b"tidegate-timing: queue=%d.%03d,model=%d.%03d\r\n%b" % (
            queue_us // 1000,
            queue_us % 1000,
            model_us // 1000,
            model_us % 1000,
            last,
        )

    def upstream_failed(self, ex: "Exchange", sent: bool, why: str) -> None:
        request: RequestState = ex.context
        request.was_sent |= sent
        request.may_have_run = request.was_sent
        self._check_model(why)
        if ex.may_retry(sent, False) and self._clock() < ex.deadline:
            self._forward(ex)
        elif request.was_sent:
            self._fail(ex, REPLICA_BROKE, f"the model server broke off: {why}", STARTED)
        else:
            self._fail(ex, REPLICA_BROKE, f"the model server cannot be reached: {why}", NOT_STARTED)

    def finished(self, ex: "Exchange") -> None:
        request: RequestState | None = ex.context
        if request is None:
            return  # a probe
        now, sent_at = ex.ended, request.sent_at
        if sent_at:
            length = ex.head.content_length
            queue_s, unanswered = sent_at - ex.received, request.is_unanswered
            self._counters.ended(now, sent_at, ex.inferences, queue_s, length, ex.status, ex.truncated, unanswered)
        elif not request.is_trusted:
            # A gateway sends its request to another replica, which counts it.
            self._counters.refused(ex.status)
        if ex.held is not None and (request.units or request.credit is not None):
            # No client waits, but the model server goes on computing: the slot is free when that has ended.
            self.slots.hold(ex.held, request, now)
            self._watch_held()
        if request.units:
            if self._ledger.left(request.units, now):
                self.slots.pump()
            return
        if request.credit is not None:
            self._ledger.ended(request.credit, now, ex.truncated or ex.status == CLIENT_GONE)
            request.credit = None
            self.slots.pump()
        # Exchange -> request -> visit -> exchange is a circle that would wait for the garbage collector. Cold memory
        # costs more time than all the counting here.
        request.visit = None

    def _hold_running(self, ex: "Exchange") -> None:
        """Holds the slot of a request without a client if the model server can be asked for its end."""
        if self._settings.asks_running:
            ex.held = HeldCall()

    # --- steps ------------------------------------------------------------------------------------------------------

    def _is_token(self, given: bytes) -> bool:
        """Returns True if it is the deployment's token. Compares in constant time."""
        return self._token is not None and equal_secrets(given, self._token)

    def _channel(self, ex: "Exchange", request: RequestState) -> None:
        if not request.is_trusted or ex.head.upgrade != headers.SLOT_CHANNEL_PROTOCOL:
            ex.respond(403, b'{"error":"a slot channel needs the token of this deployment"}')
        elif self._lifecycle.is_failed:
            self._refuse(ex, START_FAILED, self._lifecycle.message)
        else:
            self._open_channel(ex)

    def _set_deadline(self, ex: "Exchange") -> bool:
        """Sets the deadline that the request asks for, at most the revision's timeout. Returns False if the field was
        invalid, after refusing the request."""
        try:
            own = request_timeout_s(ex.head)
        except TimeoutFieldError as error:
            self._refuse(ex, BAD_REQUEST, str(error))
            return False
        timeout = self._timeout_s
        ex.set_deadline(ex.received + (timeout if own is None or own > timeout else own))
        return True

    def _has_size_in_body(self, ex: "Exchange") -> bool:
        """Returns True if the size of a direct request is known only from a body that has not arrived yet."""
        head = ex.head
        if ex.is_rpc:
            return call_batch(as_call(ex).head, ex.body, self._batch_header, self._settings.max_batch) is None
        return (
            not ex.body
            and not head.expect_continue
            and head.path.startswith(b"/v2/")
            and head.get(self._batch_header) is None
        )

    def _send(self, ex: "Exchange", request: RequestState, now: float) -> None:
        """Sends a request that has got a slot to the model server."""
        request.sent_at = now
        self._counters.began(now, ex.inferences)
        if request.is_trusted:
            ex.proceed()
        self._forward(ex)

    def _forward(self, ex: "Exchange") -> None:
        if self._paused is None:
            ex.context.may_have_run = True
            ex.forward(self._pool)
        else:
            self._paused.append(ex)

    def _refuse(self, ex: "Exchange", kind: ErrorKind, message: str) -> None:
        """Fails a request that the model server has not seen."""
        self._fail(ex, kind, message, NOT_STARTED)

    def _fail(self, ex: "Exchange", kind: ErrorKind, message: str, outcome: bytes) -> None:
        request: RequestState = ex.context
        status_kind = NOT_SERVABLE if kind is QUEUE_FULL else kind
        extra = b"tidegate-outcome: %b\r\n" % outcome if request.is_trusted else b""
        ex.fail(
            status_kind,
            message,
            function=self._settings.function or None,
            executed=Executed.FALSE if outcome is NOT_STARTED else Executed.UNKNOWN,
            extra=extra,
        )

    def __repr__(self) -> str:
        return f"<Sidecar {self._counters.in_flight} in flight, {self.slots.queued} queued, {self._ledger!r}>"


def _is_number(text: bytes) -> bool:
    """Returns True for up to 18 ASCII digits."""
    return text.isdigit() and len(text) < 19
