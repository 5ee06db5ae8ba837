"""gRPC calls at the front door, from their head to where they are like any other request.

A call names its function by authority (``NAME.<domain>``) or a function's rules (``match``) as every request does; else
a call of the Open Inference Protocol by ``model_name`` in its first message; else it goes to the default function. What
the front door answers by itself is answered here and wakes nobody; all other calls go on through the chain: deadline,
size, revision, waiting room, forward. Failures are statuses with a message that says what to do.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tidegate.aio.proxy.kinds import as_call
from tidegate.errors import BAD_REQUEST, NOT_FOUND, TAG_NOT_FOUND, TOO_LARGE, ErrorKind, Executed
from tidegate.function import Protocol
from tidegate.gateway.answers.failures import no_such_method, rpc_message
from tidegate.gateway.answers.grpc_health import (
    Watches,
    is_own_service,
    model_metadata,
    server_answer,
    state_of,
    states,
)
from tidegate.gateway.answers.health import HealthResponder, asks_its_server
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.grpc_methods import METHODS, Kind, Method, Unreadable, peek, read_small
from tidegate.gateway.routing.match import Call, Matcher, Target
from tidegate.gateway.routing.request_state import RequestState
from tidegate.wire.bodies.v2 import estimated_batch, stated_batch
from tidegate.wire.grpc import grpc as wire
from tidegate.wire.grpc import messages as protos
from tidegate.wire.grpc.grpc import MESSAGE_HEAD, Infer

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.aio.proxy.grpc_call import GrpcCall

_SPEAKS_V2: Final = frozenset((Protocol.V2, Protocol.GRPC))
"""Of a function's protocols: its server may be asked V2's questions over gRPC."""
_READING: Final = frozenset((Kind.MODEL, Kind.MODEL_READY, Kind.MODEL_METADATA, Kind.CHECK, Kind.WATCH))
"""Kinds whose message is read whole."""


class GrpcFrontend:
    """The gRPC side of one chain."""

    def __init__(self, *, desk: HealthResponder, go: Callable[[Any, RequestState], None]) -> None:
        """``go``: the call's function is known (its ticket's target), or known to be nobody: the chain goes on."""
        self._desk = desk
        self._go = go
        self._matcher: Matcher | None = None
        self._fronts: dict[str, FunctionRouter] = {}
        self._is_leaving = False
        self.watches = Watches(self._state)

    def apply(self, matcher: Matcher, fronts: dict[str, FunctionRouter]) -> None:
        """Works from this table's functions on."""
        self._matcher, self._fronts = matcher, fronts
        self.watches.changed()

    def leave(self, *, is_draining: bool) -> None:
        """The worker takes no new clients; ``is_draining``: the deployment ends, and health says so."""
        self._is_leaving = is_draining
        self.watches.changed()
        self.watches.leave()

    # --- the way in -------------------------------------------------------------------------------------------------

    def takes(self, exchange: "Exchange", ticket: RequestState) -> bool:
        """Answers the call, or goes on with it by itself once its first message is there; False: it goes the way of all
        requests, to the ticket's target."""
        ex = as_call(exchange)
        method = METHODS.get(ex.head.target)
        target = ticket.target
        front = target.front
        if method is None or (front is None and target.named):
            return False
        kind = method.kind
        if kind is Kind.REFLECTION:
            if target.named:
                return False
            self.watches.reflect(ex, method.service)
            return True
        if kind is Kind.LIST:
            self._list(ex, front if target.named else None)
            return True
        if kind in _READING:
            self._read(ex)
            return True
        if target.named and front is not None and front.route.protocol not in _SPEAKS_V2:
            return False
        if kind is Kind.INFER:
            return not self._is_sized(ex, ticket)
        return self._server(ex, kind, front if target.named else None)

    def streams(self, ex: "Exchange") -> bool:
        """Whether the call is known to be answered by a stream."""
        method = METHODS.get(ex.head.target)
        return method is not None and method.streams

    def is_usual(self, ex: "Exchange") -> bool:
        """Whether no field of the call means something but its timeout."""
        return as_call(ex).head.is_usual

    def sets_deadline(self, ex: "Exchange", front: FunctionRouter) -> bool:
        """Sets a usual call's deadline, at most the function's timeout; False: its fields must be looked at."""
        head = as_call(ex).head
        if not head.is_usual:
            return False
        own_s = head.timeout_s
        ex.deadline = ex.received + (front.timeout_s if own_s is None else min(own_s, front.timeout_s))
        return True

    def inferences(self, ex: "Exchange", front: FunctionRouter) -> int:
        """As ``FunctionRouter.inferences``: what the call states (field, V2 shape), else an estimate by the length of
        its first message, else 1; 0: it states more than the function's ``max-batch``."""
        head, route = as_call(ex).head, front.route
        stated = 0 if head.is_usual and front.header_is_ours else stated_batch(ex.head, b"", front.batch_header)
        if not stated and head.is_inference:
            stated = ex.inferences
        if stated:
            return stated if stated <= front.max_batch else 0
        body = ex.body
        if not route.bytes_per_item or len(body) < MESSAGE_HEAD:
            return 1
        size = int.from_bytes(body[1:MESSAGE_HEAD], "big")
        return estimated_batch(size, route.bytes_per_item, route.overhead_bytes, route.max_batch)

    def fail(
        self,
        exchange: "Exchange",
        ticket: RequestState,
        kind: ErrorKind,
        message: str,
        executed: Executed,
        extra: bytes = b"",
    ) -> None:
        """Ends the call with the status of this failure."""
        ex = as_call(exchange)
        front = ticket.target.front
        function = front.name if front is not None else None
        text = rpc_message(kind, message, function)
        if kind is NOT_FOUND or kind is TAG_NOT_FOUND:
            status = wire.NOT_FOUND if ticket.target.named else wire.UNIMPLEMENTED
            ex.end(status, text, b"x-request-id: %b\r\n%b" % (ticket.request_id, extra))
        else:
            request_id = ticket.request_id.decode("latin-1")
            ex.fail(kind, text, function=function, executed=executed, request_id=request_id, extra=extra)

    def ended(self, ex: "Exchange") -> None:
        """A call that no function got is over."""
        self.watches.ended(as_call(ex))

    def nobody(self, ex: "Exchange") -> str:
        """What is said of a call that names nobody where there is no default function."""
        return no_such_method(ex.head.target)

    def _fail(self, ex: "GrpcCall", kind: ErrorKind, message: str) -> None:
        self.fail(ex, ex.context, kind, message, Executed.FALSE)

    # --- first messages ---------------------------------------------------------------------------------------------

    def _is_sized(self, ex: "GrpcCall", ticket: RequestState) -> bool:
        """Reads model and batch of an inference; False: more of its first message must come."""
        found = peek(ex.body, ex.head.get(b"grpc-encoding"), is_whole=ex.body_complete)
        if found is None:
            ex.on_body = self._came
            return False
        ex.inferences = found.batch or 1
        self._to_model(ticket, _text(found))
        return True

    def _came(self, ex: "GrpcCall") -> None:
        """More of an inference's first message is there."""
        if self._is_sized(ex, ex.context):
            self._go(ex, ex.context)

    def _read(self, ex: "GrpcCall") -> None:
        """Calls whose message is read whole."""
        method = METHODS[ex.head.target]
        ticket: RequestState = ex.context
        if method.request is None:
            raise TypeError(f"{method} reads no message")
        fields = read_small(ex.body, ex.head.get(b"grpc-encoding"), method.request, is_whole=ex.body_complete)
        if fields is None:
            ex.on_body = self._read
        elif isinstance(fields, Unreadable):
            kind = TOO_LARGE if fields.status == TOO_LARGE.status else BAD_REQUEST
            self._fail(ex, kind, fields.why)
        elif method.kind is Kind.CHECK or method.kind is Kind.WATCH:
            self._health(ex, ticket, method, fields.get("service", ""))
        else:
            self._about_model(ex, ticket, method, fields)

    def _to_model(self, ticket: RequestState, model: str) -> None:
        """The function of a call that names none but a model."""
        if model and not ticket.target.named and self._matcher is not None:
            ticket.target = self._matcher.of_served(model)

    def _about_model(self, ex: "GrpcCall", ticket: RequestState, method: Method, fields: dict[str, Any]) -> None:
        model = fields.get("name", "")
        self._to_model(ticket, model)
        front = ticket.target.front
        if front is None or front.route.protocol not in _SPEAKS_V2 or method.kind is Kind.MODEL:
            self._go(ex, ticket)
            return
        route = front.route
        is_awake = self._desk.is_awake(route)
        if method.kind is Kind.MODEL_READY:
            if is_awake and asks_its_server(front, model, is_versioned=bool(fields.get("version"))):
                self._go(ex, ticket)
            else:
                ex.reply(protos.MODEL_READY_RESPONSE.encode({"ready": front.failure is None}))
            return
        if fields.get("version"):
            self._go(ex, ticket)
            return
        # Who may not call the function is told nothing of its model: that is found out where it is called.
        may_tell = not is_awake and front.access is None
        copy = self._desk.copy_of(front, f"/v2/models/{model}") if may_tell else None
        told = None if copy is None else model_metadata(copy)
        if told is not None:
            ex.reply(told)
        else:
            if route.protocol == Protocol.V2:  # its server speaks REST too: what it tells can be kept
                ticket.target = Target(Call.METADATA, front, 0, True, ticket.target.named or front.name, model)
            self._go(ex, ticket)

    # --- health -----------------------------------------------------------------------------------------------------

    def _health(self, ex: "GrpcCall", ticket: RequestState, method: Method, service: str) -> None:
        front = ticket.target.front if ticket.target.named else None
        name = front.name if front is not None else service
        if method.kind is Kind.WATCH:
            self.watches.watch(ex, name)
            return
        state = self._state(name)
        if state == protos.SERVICE_UNKNOWN:
            ticket.target = Target(Call.WORK, None, named=name)
            self._fail(ex, NOT_FOUND, f"no function is called {name[:200]!r} here")
        else:
            ex.reply(protos.HEALTH_RESPONSE.encode({"status": state}))

    def _list(self, ex: "GrpcCall", front: FunctionRouter | None) -> None:
        fronts = self._fronts if front is None else {front.name: front}
        ex.reply(states(fronts, self._own_state))

    def _state(self, name: str) -> int:
        front = self._fronts.get(name)
        if front is not None:
            return state_of(front)
        return self._own_state if is_own_service(name) else protos.SERVICE_UNKNOWN

    @property
    def _own_state(self) -> int:
        return protos.NOT_SERVING if self._is_leaving else protos.SERVING

    # --- V2's questions about servers -------------------------------------------------------------------------------

    def _server(self, ex: "GrpcCall", kind: Kind, front: FunctionRouter | None) -> bool:
        """Answers for the front door, or for the function that the call names; False: only its server knows."""
        if kind is Kind.SERVER_LIVE:
            ex.reply(protos.SERVER_LIVE_RESPONSE.encode({"live": True}))
        elif kind is Kind.SERVER_READY:
            ready = not self._is_leaving if front is None else front.failure is None
            ex.reply(protos.SERVER_READY_RESPONSE.encode({"ready": ready}))
        elif front is None or not self._desk.is_awake(front.route):
            ex.reply(server_answer())
        else:
            return False
        return True

    def __repr__(self) -> str:
        return f"<Calls {len(self._fronts)} functions, {self.watches!r}>"


def _text(found: Infer) -> str:
    """The model's name; bytes that are not UTF-8 stand for themselves."""
    try:
        return found.model.decode()
    except UnicodeDecodeError:
        return found.model.decode("latin-1")
