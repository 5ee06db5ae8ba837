"""gRPC calls at the gateway, up to the point where they are like any other request.

A call names its function as every request does: by authority (``NAME.<domain>``) or by a function's rules (``match``).
Otherwise a call of the Open Inference Protocol names it by ``model_name`` in its first message. Otherwise it goes to
the default function. Health, reflection and questions about servers and models are answered here and start no replica.
All other calls go on through the chain. Errors are gRPC statuses with a message that says what to do.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tidegate.aio.proxy.kinds import as_call
from tidegate.errors import (
    BAD_REQUEST,
    DEADLINE,
    NOT_FOUND,
    QUEUE_FULL,
    QUOTA_EXCEEDED,
    TAG_NOT_FOUND,
    TOO_LARGE,
    ErrorKind,
    Executed,
)
from tidegate.function import Protocol
from tidegate.gateway.answers.grpc_health import (
    Watches,
    is_own_service,
    model_metadata,
    server_answer,
    state_of,
    states,
)
from tidegate.gateway.answers.health import HealthResponder, only_its_server_knows
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.grpc_methods import (
    DEEP_BYTES,
    METHODS,
    UNREAD,
    Method,
    MethodKind,
    Unreadable,
    deep_batch,
    peek,
    read_small,
)
from tidegate.gateway.routing.match import Call, Matcher, Target
from tidegate.gateway.routing.request_state import RequestState
from tidegate.wire.bodies.v2 import estimated_batch, stated_batch
from tidegate.wire.grpc import messages
from tidegate.wire.grpc.first_message import MESSAGE_HEAD, Infer, first_message_end
from tidegate.wire.http2 import grpc_fields

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.aio.proxy.grpc_call import GrpcCall

_SPEAKS_V2: Final = frozenset((Protocol.V2, Protocol.GRPC))
"""Protocols of servers that understand V2's questions over gRPC."""
_READING: Final = frozenset(
    (MethodKind.MODEL, MethodKind.MODEL_READY, MethodKind.MODEL_METADATA, MethodKind.CHECK, MethodKind.WATCH)
)
"""Kinds of calls with a message that is read whole."""
_RPC_ACTIONS: Final = {
    DEADLINE.code: "allow the call more time",
    NOT_FOUND.code: "name a deployed function by the call's authority, NAME.<domain>, or by model_name",
    QUEUE_FULL.code: "retry after the seconds in retry-after",
    QUOTA_EXCEEDED.code: "retry after the seconds in retry-after",
}
"""The advice to a gRPC client where it differs from the advice to an HTTP client."""

OnFunctionKnown = Callable[["Exchange", RequestState], None]
"""Called once the first message has named the call's function (``state.target``), or named none."""


class GrpcFrontend:
    """The gRPC side of one chain."""

    def __init__(self, health: HealthResponder) -> None:
        self._health = health
        self._matcher: Matcher | None = None
        self._routers: dict[str, FunctionRouter] = {}
        self._is_leaving = False
        self.watches = Watches(self._state)

    def apply(self, matcher: Matcher, routers: dict[str, FunctionRouter]) -> None:
        """Works from this table's functions on."""
        self._matcher, self._routers = matcher, routers
        self.watches.changed()

    def leave(self, *, is_draining: bool) -> None:
        """The worker takes no new clients; ``is_draining``: the deployment ends, and health says so."""
        self._is_leaving = is_draining
        self.watches.changed()
        self.watches.leave()

    # --- the way in -------------------------------------------------------------------------------------------------

    def takes(self, exchange: "Exchange", state: RequestState, on_function_known: OnFunctionKnown) -> bool:
        """Returns False if the call goes the way of all requests, to ``state.target``.

        Returns True if the call is answered here or waits for its first message; in the latter case
        ``on_function_known`` follows.
        """
        ex = as_call(exchange)
        method = METHODS.get(ex.head.target)
        target = state.target
        router = target.router
        if method is None or (router is None and target.named):
            return False
        kind = method.kind
        if kind is MethodKind.REFLECTION:
            if target.named:
                return False
            self.watches.reflect(ex, method.service)
            return True
        if kind is MethodKind.LIST:
            self._list(ex, router if target.named else None)
            return True
        if kind in _READING:
            self._read(ex, on_function_known)
            return True
        if target.named and router is not None and router.route.protocol not in _SPEAKS_V2:
            return False
        if kind is MethodKind.INFER:
            if self._is_sized(ex, state):
                return False
            self._wait_for_size(ex, on_function_known)
            return True
        return self._server(ex, kind, router if target.named else None)

    def streams(self, ex: "Exchange") -> bool:
        """Returns whether the call is known to be answered by a stream."""
        method = METHODS.get(ex.head.target)
        return method is not None and method.streams

    def is_usual(self, ex: "Exchange") -> bool:
        """Returns whether no field of the call except its timeout has a meaning for the gateway."""
        return as_call(ex).head.is_usual

    def sets_deadline(self, ex: "Exchange", router: FunctionRouter) -> bool:
        """Sets a usual call's deadline, at most the function's timeout. Returns False if the call has other fields to
        read."""
        head = as_call(ex).head
        if not head.is_usual:
            return False
        own_s = head.timeout_s
        ex.deadline = ex.received + (router.timeout_s if own_s is None else min(own_s, router.timeout_s))
        return True

    def inferences(self, ex: "Exchange", router: FunctionRouter) -> int:
        """Returns the inferences of a call, as ``FunctionRouter.inferences``; 0 if it states more than ``max-batch``.

        The call states them (field, else V2 shape; where callers are charged the larger of both); else they are
        estimated by the length of its first message; else they are 1. Returns UNREAD where callers are charged if the
        message goes on behind what was read of it, or is compressed, and no shape was in there.
        """
        head, route = as_call(ex).head, router.route
        stated = 0 if head.is_usual and router.header_is_ours else stated_batch(ex.head, b"", router.batch_header)
        if head.is_inference and (not stated or route.access is not None):
            # Where callers are charged the larger of field and shape counts.
            shape = ex.inferences or deep_batch(ex.body, ex.head.get(b"grpc-encoding"))
            if not shape and route.access is not None and _goes_on(ex.body):
                return UNREAD
            stated = max(stated, shape or 1)
        if stated:
            return stated if stated <= router.max_batch else 0
        body = ex.body
        if not route.bytes_per_item or len(body) < MESSAGE_HEAD:
            return 1
        size = int.from_bytes(body[1:MESSAGE_HEAD], "big")
        return estimated_batch(size, route.bytes_per_item, route.overhead_bytes, route.max_batch)

    def fail(
        self,
        exchange: "Exchange",
        state: RequestState,
        kind: ErrorKind,
        message: str,
        executed: Executed,
        extra: bytes = b"",
    ) -> None:
        """Ends the call with the status of this error."""
        ex = as_call(exchange)
        router = state.target.router
        function = router.name if router is not None else None
        text = rpc_message(kind, message, function)
        if kind is NOT_FOUND or kind is TAG_NOT_FOUND:
            status = grpc_fields.NOT_FOUND if state.target.named else grpc_fields.UNIMPLEMENTED
            ex.end(status, text, b"x-request-id: %b\r\n%b" % (state.request_id, extra))
        else:
            request_id = state.request_id.decode("latin-1")
            ex.fail(kind, text, function=function, executed=executed, request_id=request_id, extra=extra)

    def ended(self, ex: "Exchange") -> None:
        """A call that no function got is over: ends its watch."""
        self.watches.ended(as_call(ex))

    def no_function_message(self, ex: "Exchange") -> str:
        """Returns the message for a call that names no function while there is no default function."""
        return no_such_method(ex.head.target)

    def _fail(self, ex: "GrpcCall", kind: ErrorKind, message: str) -> None:
        self.fail(ex, ex.context, kind, message, Executed.FALSE)

    # --- first messages ---------------------------------------------------------------------------------------------

    def _is_sized(self, ex: "GrpcCall", state: RequestState) -> bool:
        """Reads model and batch of an inference. Returns False if more of its first message must arrive before."""
        found = peek(ex.body, ex.head.get(b"grpc-encoding"), is_whole=ex.body_complete)
        if found is None:
            return False
        ex.inferences = found.batch  # 0 if it was not there; ``inferences`` looks further.
        self._to_model(state, _text(found))
        return True

    def _wait_for_size(self, ex: "GrpcCall", on_function_known: OnFunctionKnown) -> None:
        def more(ex: "GrpcCall") -> None:
            if self._is_sized(ex, ex.context):
                on_function_known(ex, ex.context)
            else:
                ex.on_body = more

        ex.on_body = more

    def _read(self, ex: "GrpcCall", on_function_known: OnFunctionKnown) -> None:
        """Reads the whole message of a call, waiting for it if necessary, then answers the call or passes it on."""
        method = METHODS[ex.head.target]
        state: RequestState = ex.context
        if method.request is None:
            raise TypeError(f"{method} reads no message")
        fields = read_small(ex.body, ex.head.get(b"grpc-encoding"), method.request, is_whole=ex.body_complete)
        if fields is None:
            ex.on_body = lambda ex: self._read(ex, on_function_known)
        elif isinstance(fields, Unreadable):
            kind = TOO_LARGE if fields.status == TOO_LARGE.status else BAD_REQUEST
            self._fail(ex, kind, fields.why)
        elif method.kind is MethodKind.CHECK or method.kind is MethodKind.WATCH:
            self._answer_health(ex, state, method, fields.get("service", ""))
        elif not self._answers_about_model(ex, state, method, fields):
            on_function_known(ex, state)

    def _to_model(self, state: RequestState, model: str) -> None:
        """Sets the function of a call that names only a model."""
        if model and not state.target.named and self._matcher is not None:
            state.target = self._matcher.of_served(model)

    def _answers_about_model(self, ex: "GrpcCall", state: RequestState, method: Method, fields: dict[str, Any]) -> bool:
        """Answers a question about a model. Returns False if only a replica can answer it."""
        model = fields.get("name", "")
        self._to_model(state, model)
        router = state.target.router
        if router is None or router.route.protocol not in _SPEAKS_V2 or method.kind is MethodKind.MODEL:
            return False
        route = router.route
        is_awake = self._health.is_awake(route)
        if method.kind is MethodKind.MODEL_READY:
            if is_awake and only_its_server_knows(router, model, is_versioned=bool(fields.get("version"))):
                return False
            ex.reply(messages.MODEL_READY_RESPONSE.encode({"ready": router.failure is None}))
            return True
        if fields.get("version"):
            return False
        # Metadata of a function with an access rule goes to authorised callers only; that is checked by the chain.
        may_answer = not is_awake and router.access is None
        copy = self._health.copy_of(router, f"/v2/models/{model}") if may_answer else None
        answer = None if copy is None else model_metadata(copy)
        if answer is not None:
            ex.reply(answer)
            return True
        if route.protocol == Protocol.V2:  # Its server speaks REST too, so a copy of its answer can be made.
            state.target = Target(Call.METADATA, router, 0, True, state.target.named or router.name, model)
        return False

    # --- health -----------------------------------------------------------------------------------------------------

    def _answer_health(self, ex: "GrpcCall", state: RequestState, method: Method, service: str) -> None:
        router = state.target.router if state.target.named else None
        name = router.name if router is not None else service
        if method.kind is MethodKind.WATCH:
            self.watches.watch(ex, name)
            return
        status = self._state(name)
        if status == messages.SERVICE_UNKNOWN:
            state.target = Target(Call.WORK, None, named=name)
            self._fail(ex, NOT_FOUND, f"no function is called {name[:200]!r} here")
        else:
            ex.reply(messages.HEALTH_RESPONSE.encode({"status": status}))

    def _list(self, ex: "GrpcCall", router: FunctionRouter | None) -> None:
        routers = self._routers if router is None else {router.name: router}
        ex.reply(states(routers, self._own_state))

    def _state(self, name: str) -> int:
        router = self._routers.get(name)
        if router is not None:
            return state_of(router)
        return self._own_state if is_own_service(name) else messages.SERVICE_UNKNOWN

    @property
    def _own_state(self) -> int:
        return messages.NOT_SERVING if self._is_leaving else messages.SERVING

    # --- V2's questions about servers -------------------------------------------------------------------------------

    def _server(self, ex: "GrpcCall", kind: MethodKind, router: FunctionRouter | None) -> bool:
        """Answers for the gateway, or for the function that the call names. Returns False if only the function's server
        knows."""
        if kind is MethodKind.SERVER_LIVE:
            ex.reply(messages.SERVER_LIVE_RESPONSE.encode({"live": True}))
        elif kind is MethodKind.SERVER_READY:
            ready = not self._is_leaving if router is None else router.failure is None
            ex.reply(messages.SERVER_READY_RESPONSE.encode({"ready": ready}))
        elif router is None or not self._health.is_awake(router.route):
            ex.reply(server_answer())
        else:
            return False
        return True

    def __repr__(self) -> str:
        return f"<GrpcFrontend {len(self._routers)} functions, {self.watches!r}>"


def _text(found: Infer) -> str:
    """Returns the model's name; a name that is not UTF-8 is read as Latin-1."""
    try:
        return found.model.decode()
    except UnicodeDecodeError:
        return found.model.decode("latin-1")


def rpc_message(kind: ErrorKind, message: str, function: str | None) -> str:
    """Returns the ``grpc-message`` of an error: the function, the message, advice.

    The function is left out if the message begins with its name.
    """
    where = "" if function is None or message.startswith(f"{function} ") else f"{function}: "
    return f"{where}{message}; {_RPC_ACTIONS.get(kind.code, kind.action)}"


def no_such_method(path: bytes) -> str:
    """Returns the message for a call that names no function while there is no default function."""
    return f"no function takes the call {path.decode('latin-1')[:200]}: it names none, and there is no default one"


def _goes_on(body: bytes) -> bool:
    """Returns whether a first message may hold a shape in bytes that were not read: it is longer, or compressed."""
    return first_message_end(body) > min(len(body), DEEP_BYTES) or (body != b"" and body[0] != 0)
