"""What the front door answers over gRPC by itself: health, reflection, and V2's questions about servers and models.

As over REST (``health.py``) a function is never woken by a question about its health, and one that sleeps counts as
ready. ``grpc.health.v1`` knows the front door ("" and the services it speaks) and every function by its name; a call
whose authority names a function asks about that one, whatever service it names.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tidegate.gateway.answers.health import server_metadata
from tidegate.gateway.routing.function import FunctionRouter
from tidegate.gateway.routing.grpc_methods import Unreadable, inflated
from tidegate.wire.grpc import messages
from tidegate.wire.grpc.protobuf import ProtobufError
from tidegate.wire.grpc.reflection import Reflection
from tidegate.wire.http2.grpc_fields import INVALID_ARGUMENT, RESOURCE_EXHAUSTED, UNAVAILABLE

if TYPE_CHECKING:
    from tidegate.aio.proxy.grpc_call import GrpcCall

_OWN_SERVICES: Final = frozenset(service.name for file in messages.FILES for service in file.services)
UNREAD_BYTES: Final = 64 * 1024
"""Of the answers to a client that reflects: while so much is not read, no more of its questions are answered."""


def model_metadata(copy: bytes) -> bytes | None:
    """What REST told of a model as the answer of ``ModelMetadata``; None: it is nothing of the kind."""
    try:
        told = json.loads(copy)
        tensors = {
            side: [{key: entry[key] for key in ("name", "datatype", "shape")} for entry in told.get(side) or ()]
            for side in ("inputs", "outputs")
        }
        return messages.MODEL_METADATA_RESPONSE.encode(
            {
                "name": told["name"],
                "versions": [str(version) for version in told.get("versions") or ()],
                "platform": told.get("platform", ""),
                **tensors,
            }
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def server_answer() -> bytes:
    """The front door's own ``ServerMetadata``."""
    return messages.SERVER_METADATA_RESPONSE.encode(server_metadata())


class Watches:
    """Calls that stay open and are answered here: who watches health, who reflects. They end when the worker leaves."""

    __slots__ = ("_open", "_reflection", "_state")

    def __init__(self, state: Callable[[str], int]) -> None:
        """``state``: the health of a function or service, by name."""
        self._state = state
        self._reflection = Reflection()
        self._open: dict[GrpcCall, tuple[str, int] | None] = {}
        """What a client watches and was told last; None: it reflects."""

    def watch(self, ex: "GrpcCall", name: str) -> None:
        """Tells the health of ``name`` now and whenever it changes."""
        ex.deadline = float("inf")
        state = self._state(name)
        self._open[ex] = (name, state)
        ex.serve(_ignore)
        ex.send(messages.HEALTH_RESPONSE.encode({"status": state}))

    def changed(self) -> None:
        """The route table has, or the worker leaves."""
        for ex, watched in tuple(self._open.items()):
            if watched is None:
                continue
            name, told = watched
            state = self._state(name)
            if state != told:
                self._open[ex] = (name, state)
                ex.send(messages.HEALTH_RESPONSE.encode({"status": state}))

    def reflect(self, ex: "GrpcCall", service: str) -> None:
        """Answers the questions of a client that reflects."""
        ex.deadline = float("inf")
        self._open[ex] = None

        def more(ex: "GrpcCall") -> None:
            self._answer(ex, service)

        ex.serve(more)

    def _answer(self, ex: "GrpcCall", service: str) -> None:
        while not ex.is_ended and ex.unsent < UNREAD_BYTES:
            found = ex.take_message()
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
                ex.send(self._reflection.answer(service, plain))
            except ProtobufError as error:
                ex.end(INVALID_ARGUMENT, f"the message cannot be read: {error}")

    def ended(self, ex: "GrpcCall") -> None:
        """A call of any kind is over."""
        self._open.pop(ex, None)

    def leave(self) -> None:
        """The worker leaves: its clients ask another one."""
        for ex in tuple(self._open):
            if not ex.is_ended:
                ex.end(UNAVAILABLE, "this process of the gateway is leaving; call again: another one answers")

    def __repr__(self) -> str:
        return f"<Watches {len(self._open)} open>"


def is_own_service(name: str) -> bool:
    """Whether it is "", or a service that the front door speaks."""
    return not name or name in _OWN_SERVICES


def state_of(router: FunctionRouter) -> int:
    """The health of a function: asleep counts as ready."""
    return messages.SERVING if router.failure is None else messages.NOT_SERVING


def states(routers: dict[str, FunctionRouter], own: int) -> bytes:
    """The answer of ``List``: the front door, its services, and every function."""
    told: dict[str, Any] = {name: {"status": own} for name in ("", *sorted(_OWN_SERVICES))}
    told |= {name: {"status": state_of(router)} for name, router in sorted(routers.items())}
    return messages.HEALTH_LIST_RESPONSE.encode({"statuses": told})


def _ignore(ex: "GrpcCall") -> None:
    """A watch has asked all that it can ask."""
