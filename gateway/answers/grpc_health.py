"""Calls that the gateway answers itself over gRPC: health, reflection, and V2's questions about servers and models.

As over REST (``health.py``) a question about health never starts a replica, and a function that is scaled to zero
counts as ready. ``grpc.health.v1`` knows the gateway ("" and the services it speaks) and every function by its name. A
call with an authority that names a function asks about that one, whatever service it names.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.gateway.answers.health import server_metadata
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.grpc_methods import Unreadable, inflated
from tidegate.wire.grpc import messages
from tidegate.wire.grpc.protobuf import ProtobufError
from tidegate.wire.grpc.reflection import Reflection
from tidegate.wire.http2.grpc_fields import INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAVAILABLE

if TYPE_CHECKING:
    from tidegate.aio.proxy.grpc_call import GrpcCall, LocalReply

_OWN_SERVICES: Final = frozenset(service.name for file in messages.FILES for service in file.services)
UNREAD_BYTES: Final = 64 * 1024
"""Bytes of unread answers to a reflecting client, above which no more of its questions are answered."""


def model_metadata(copy: bytes) -> bytes | None:
    """Returns a model's REST metadata as the answer of ``ModelMetadata``; None if it is not such metadata."""
    try:
        copied = json.loads(copy)
        tensors = {
            side: [{key: entry[key] for key in ("name", "datatype", "shape")} for entry in copied.get(side) or ()]
            for side in ("inputs", "outputs")
        }
        return messages.MODEL_METADATA_RESPONSE.encode(
            {
                "name": copied["name"],
                "versions": [str(version) for version in copied.get("versions") or ()],
                "platform": copied.get("platform", ""),
                **tensors,
            }
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def server_answer() -> bytes:
    """Returns the gateway's own ``ServerMetadata``."""
    return messages.SERVER_METADATA_RESPONSE.encode(server_metadata())


@dataclass(slots=True)
class _Watch:
    """The health of a name, as a client watches it."""

    name: str
    reply: "LocalReply"
    sent: int | None = None
    """The health that it was sent last."""

    def send(self, state: int) -> None:
        """Sends another health."""
        if state != self.sent:
            self.sent = state
            self.reply.send(messages.HEALTH_RESPONSE.encode({"status": state}))


class Watches:
    """Open calls that are answered here: watches of health, and reflection. They end when the worker leaves."""

    __slots__ = ("_open", "_reflection", "_state")

    def __init__(self, state: Callable[[str], int]) -> None:
        """``state`` returns the health of a function or service, by name."""
        self._state = state
        self._reflection = Reflection()
        self._open: dict[GrpcCall, _Watch | None] = {}
        """None if the client reflects."""

    def watch(self, ex: "GrpcCall", name: str) -> None:
        """Sends the health of ``name`` now and whenever it changes."""
        ex.deadline = float("inf")
        self._open[ex] = watch = _Watch(name, ex.serve())
        watch.send(self._state(name))

    def changed(self) -> None:
        """Sends changed health after a new route table, or when the worker leaves."""
        for watch in tuple(self._open.values()):
            if watch is not None:
                watch.send(self._state(watch.name))

    def reflect(self, ex: "GrpcCall", service: str) -> None:
        """Answers the questions of a client that reflects."""
        ex.deadline = float("inf")
        self._open[ex] = None

        ex.serve(lambda reply: self._answer(ex, reply, service))

    def _answer(self, ex: "GrpcCall", reply: "LocalReply", service: str) -> None:
        while not ex.is_ended and reply.unsent < UNREAD_BYTES:
            found = reply.take()
            if found is None:
                if ex.body_complete and not ex.is_ended:
                    ex.end()
                return
            is_compressed, question = found
            plain = inflated(question, ex.head.get(b"grpc-encoding")) if is_compressed else question
            if isinstance(plain, Unreadable):
                ex.end(RESOURCE_EXHAUSTED if plain.status == 413 else INVALID_ARGUMENT, plain.why)
                return
            try:
                reply.send(self._reflection.answer(service, plain))
            except ProtobufError as error:
                ex.end(INVALID_ARGUMENT, f"the message cannot be read: {error}")

    def ended(self, ex: "GrpcCall") -> None:
        """A call of any kind is over."""
        self._open.pop(ex, None)

    def leave(self) -> None:
        """Ends all calls: their clients ask another worker."""
        for ex in tuple(self._open):
            if not ex.is_ended:
                ex.end(UNAVAILABLE, "this process of the gateway is leaving; call again: another one answers")

    def __repr__(self) -> str:
        return f"<Watches {len(self._open)} open>"


def is_own_service(name: str) -> bool:
    """Returns whether the name is "", or a service that the gateway speaks."""
    return not name or name in _OWN_SERVICES


def state_of(router: FunctionRouter) -> int:
    """Returns the health of a function; scaled to zero counts as ready."""
    return messages.SERVING if router.failure is None else messages.NOT_SERVING


def states(routers: dict[str, FunctionRouter], own: int) -> bytes:
    """Returns the answer of ``List``: the gateway, its services, and every function."""
    statuses: dict[str, Any] = {name: {"status": own} for name in ("", *sorted(_OWN_SERVICES))}
    statuses |= {name: {"status": state_of(router)} for name, router in sorted(routers.items())}
    return messages.HEALTH_LIST_RESPONSE.encode({"statuses": statuses})
