"""What a gRPC call wants, as far as the front door must know, and what its first message says of that. Pure.

Most services are passed on without a look. Of the Open Inference Protocol the model's name is read where nothing else
names a function, and the batch; health, reflection and the protocol's questions about servers and models are told
apart, because they must not wake a function.
"""

import zlib
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from tidegate.wire.grpc import messages
from tidegate.wire.grpc.first_message import MESSAGE_HEAD, PEEKED_BYTES, Infer, peek_infer, peek_usual
from tidegate.wire.grpc.protobuf import STRING, Field, Message, ProtobufError

SMALL_BYTES: Final = 16 * 1024
"""Of a message that is read whole: names and versions."""
_WINDOW_BITS: Final = {b"gzip": 31, b"deflate": 15}
"""For zlib, by grpc-encoding."""
_ENDLESS: Final = b"\0\xff\xff\xff\xff"


class Kind(Enum):
    """Kinds of calls."""

    WORK = auto()
    """Any service: passed on."""
    INFER = auto()
    """Its first message names the model and holds a batch."""
    MODEL = auto()
    """A question or an order that names the model; passed on."""
    MODEL_READY = auto()
    MODEL_METADATA = auto()
    SERVER_LIVE = auto()
    SERVER_READY = auto()
    SERVER_METADATA = auto()
    CHECK = auto()
    LIST = auto()
    WATCH = auto()
    REFLECTION = auto()


class Method(NamedTuple):
    """One method that is more than work."""

    kind: Kind
    request: Message | None = None
    """What its only message is read as; ``name`` is the model's, or ``service``."""
    service: str = ""
    """Of reflection: which of the two."""
    streams: bool = False
    """Its answer is a stream: what its client waits for is the first message."""


def _renamed(field: int) -> Message:
    """A message of which only the model's name is looked at."""
    return Message("inference.Named", Field(field, "name", STRING))


def _methods() -> dict[bytes, Method]:
    def path(service: str, method: str) -> bytes:
        return f"/{service}/{method}".encode()

    inference, health = messages.INFERENCE.name, messages.HEALTH.name
    by_name = {
        "ModelInfer": Method(Kind.INFER),
        "ModelStreamInfer": Method(Kind.INFER, streams=True),
        "ModelReady": Method(Kind.MODEL_READY, messages.MODEL_READY_REQUEST),
        "ModelMetadata": Method(Kind.MODEL_METADATA, messages.MODEL_METADATA_REQUEST),
        "ModelConfig": Method(Kind.MODEL, _renamed(1)),
        "ModelStatistics": Method(Kind.MODEL, _renamed(1)),
        "RepositoryModelLoad": Method(Kind.MODEL, _renamed(2)),
        "RepositoryModelUnload": Method(Kind.MODEL, _renamed(2)),
        "TraceSetting": Method(Kind.MODEL, _renamed(2)),
        "ServerLive": Method(Kind.SERVER_LIVE),
        "ServerReady": Method(Kind.SERVER_READY),
        "ServerMetadata": Method(Kind.SERVER_METADATA),
    }
    found = {path(inference, name): method for name, method in by_name.items()}
    found[path(health, "Check")] = Method(Kind.CHECK, messages.HEALTH_REQUEST)
    found[path(health, "List")] = Method(Kind.LIST)
    found[path(health, "Watch")] = Method(Kind.WATCH, messages.HEALTH_REQUEST, streams=True)
    for file in messages.REFLECTION_FILES:
        service = file.services[0]
        found[path(service.name, service.methods[0].name)] = Method(Kind.REFLECTION, service=service.name, streams=True)
    return found


METHODS: Final = _methods()
"""By path; all others are work."""


class Unreadable(NamedTuple):
    """A first message that cannot be what it should be: an HTTP status of its kind, and why."""

    status: int
    why: str


def peek(body: bytes, coding: bytes | None, *, is_whole: bool) -> Infer | None:
    """Model and batch of an inference whose body begins with ``body``; None: more of it would tell more.

    ``coding``: the call's grpc-encoding; of a compressed message no more than what is looked at is decompressed.
    """
    usual = peek_usual(body)
    if usual is not None:
        return usual
    found = _peek_compressed(body, coding) if body and body[0] else peek_infer(body)
    return Infer(b"", 0) if found is None and is_whole else found


def _peek_compressed(body: bytes, coding: bytes | None) -> Infer | None:
    bits = _WINDOW_BITS.get(coding or b"")
    if bits is None or body[0] != 1:
        return Infer(b"", 0)
    decoder = zlib.decompressobj(bits)
    end = MESSAGE_HEAD + int.from_bytes(body[1:MESSAGE_HEAD], "big")
    try:
        plain = decoder.decompress(body[MESSAGE_HEAD:end], PEEKED_BYTES)
    except zlib.error:
        return Infer(b"", 0)
    if decoder.eof:
        return peek_infer(b"\0" + len(plain).to_bytes(4, "big") + plain)
    return peek_infer(_ENDLESS + plain)


def read_small(
    body: bytes, coding: bytes | None, request: Message, *, is_whole: bool
) -> dict[str, Any] | Unreadable | None:
    """The first message as a ``request``; None: it is not all there yet."""
    size = int.from_bytes(body[1:MESSAGE_HEAD], "big") if len(body) >= MESSAGE_HEAD else 0
    if size > SMALL_BYTES:
        return Unreadable(413, f"a {request.name} of {size} bytes is larger than {SMALL_BYTES}")
    if len(body) < MESSAGE_HEAD + size:
        return Unreadable(400, "the call ends without a message") if is_whole else None
    message = body[MESSAGE_HEAD : MESSAGE_HEAD + size]
    data = inflated(message, coding) if body[0] else message
    if isinstance(data, Unreadable):
        return data
    try:
        return request.decode(data)
    except ProtobufError as error:
        return Unreadable(400, f"the message cannot be read: {error}")


def inflated(data: bytes, coding: bytes | None) -> bytes | Unreadable:
    """A small compressed message, decompressed."""
    bits = _WINDOW_BITS.get(coding or b"")
    if bits is None:
        return Unreadable(400, "a compressed message, and grpc-encoding is neither gzip nor deflate")
    decoder = zlib.decompressobj(bits)
    try:
        plain = decoder.decompress(data, SMALL_BYTES)
    except zlib.error as error:
        return Unreadable(400, f"a message cannot be decompressed: {error}")
    if decoder.eof:
        return plain
    if len(plain) < SMALL_BYTES:
        return Unreadable(400, "a message cannot be decompressed: it breaks off")
    return Unreadable(413, f"a message is larger than {SMALL_BYTES} bytes when decompressed")
