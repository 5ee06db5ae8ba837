"""The gRPC methods that the gateway distinguishes, and what it reads of a call's first message. Pure.

Most services are passed on unread. Of the Open Inference Protocol the gateway reads the batch, and the model's name if
nothing else names a function. Health, reflection and the protocol's questions about servers and models are
distinguished because they must not start a replica.
"""

import zlib
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from tidegate.wire.grpc import messages
from tidegate.wire.grpc.first_message import MESSAGE_HEAD, PEEKED_BYTES, Infer, peek_infer, peek_usual
from tidegate.wire.grpc.protobuf import STRING, Field, Message, ProtobufError
from tidegate.wire.http2.limits import STREAM_WINDOW

SMALL_BYTES: Final = 16 * 1024
"""Bytes of a message that is read whole: names and versions."""
DEEP_BYTES: Final = STREAM_WINDOW
"""Bytes of a message in which an uncommon shape is searched, once: as many as are there before a call goes on."""
UNREAD: Final = -1
"""Stands for the inferences of a call whose caller is charged and whose shape is not in the bytes that were read."""
_WINDOW_BITS: Final = {b"gzip": 31, b"deflate": 15}
"""Window bits for zlib, by grpc-encoding."""
_ENDLESS: Final = b"\0\xff\xff\xff\xff"


class MethodKind(Enum):
    """Kinds of calls."""

    WORK = auto()
    """Any other service: passed on."""
    INFER = auto()
    """Its first message names the model and holds a batch."""
    MODEL = auto()
    """A question or a command that names the model; passed on."""
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
    """A method that is not simply passed on."""

    kind: MethodKind
    request: Message | None = None
    """Type of its only message; ``name`` is the model's name, or ``service`` the service's."""
    service: str = ""
    """The service of a reflection method: there are two."""
    streams: bool = False
    """Its answer is a stream: its client waits for the first message."""


def _renamed(field: int) -> Message:
    """Returns a message type with the model's name only."""
    return Message("inference.Named", Field(field, "name", STRING))


def _methods() -> dict[bytes, Method]:
    def path(service: str, method: str) -> bytes:
        return f"/{service}/{method}".encode()

    inference, health = messages.INFERENCE.name, messages.HEALTH.name
    by_name = {
        "ModelInfer": Method(MethodKind.INFER),
        "ModelStreamInfer": Method(MethodKind.INFER, streams=True),
        "ModelReady": Method(MethodKind.MODEL_READY, messages.MODEL_READY_REQUEST),
        "ModelMetadata": Method(MethodKind.MODEL_METADATA, messages.MODEL_METADATA_REQUEST),
        "ModelConfig": Method(MethodKind.MODEL, _renamed(1)),
        "ModelStatistics": Method(MethodKind.MODEL, _renamed(1)),
        "RepositoryModelLoad": Method(MethodKind.MODEL, _renamed(2)),
        "RepositoryModelUnload": Method(MethodKind.MODEL, _renamed(2)),
        "TraceSetting": Method(MethodKind.MODEL, _renamed(2)),
        "ServerLive": Method(MethodKind.SERVER_LIVE),
        "ServerReady": Method(MethodKind.SERVER_READY),
        "ServerMetadata": Method(MethodKind.SERVER_METADATA),
    }
    found = {path(inference, name): method for name, method in by_name.items()}
    found[path(health, "Check")] = Method(MethodKind.CHECK, messages.HEALTH_REQUEST)
    found[path(health, "List")] = Method(MethodKind.LIST)
    found[path(health, "Watch")] = Method(MethodKind.WATCH, messages.HEALTH_REQUEST, streams=True)
    for file in messages.REFLECTION_FILES:
        service = file.services[0]
        found[path(service.name, service.methods[0].name)] = Method(
            MethodKind.REFLECTION, service=service.name, streams=True
        )
    return found


METHODS: Final = _methods()
"""Methods by path; all other paths are work."""


class Unreadable(NamedTuple):
    """A first message that is malformed: an HTTP status of its kind, and the reason."""

    status: int
    why: str


def peek(body: bytes, coding: bytes | None, *, is_whole: bool) -> Infer | None:
    """Returns model and batch of an inference with a body that begins with ``body``; None if more bytes are needed.

    ``coding``: the call's grpc-encoding. Of a compressed message only the bytes that are read are decompressed.
    """
    usual = peek_usual(body)
    if usual is not None:
        return usual
    found = _peek_compressed(body, coding, PEEKED_BYTES) if body and body[0] else peek_infer(body)
    return Infer(b"", 0) if found is None and is_whole else found


def deep_batch(body: bytes, coding: bytes | None) -> int:
    """Returns the batch of an inference whose shape was not in the bytes that :func:`peek` reads, by the first
    DEEP_BYTES of its message; 0 if it is not there either."""
    if not body:
        return 0
    found = _peek_compressed(body, coding, DEEP_BYTES) if body[0] else peek_infer(body, DEEP_BYTES)
    return 0 if found is None else found.batch


def _peek_compressed(body: bytes, coding: bytes | None, limit: int) -> Infer | None:
    bits = _WINDOW_BITS.get(coding or b"")
    if bits is None or body[0] != 1:
        return Infer(b"", 0)
    decoder = zlib.decompressobj(bits)
    end = MESSAGE_HEAD + int.from_bytes(body[1:MESSAGE_HEAD], "big")
    try:
        plain = decoder.decompress(body[MESSAGE_HEAD:end], limit)
    except zlib.error:
        return Infer(b"", 0)
    if decoder.eof:
        return peek_infer(b"\0" + len(plain).to_bytes(4, "big") + plain, limit)
    return peek_infer(_ENDLESS + plain, limit)


def read_small(
    body: bytes, coding: bytes | None, request: Message, *, is_whole: bool
) -> dict[str, Any] | Unreadable | None:
    """Returns the first message as a ``request``; None if it is not complete yet."""
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


def inflated(data: bytes, coding: bytes | None, most: int = SMALL_BYTES) -> bytes | Unreadable:
    """Decompresses a message of at most ``most`` bytes."""
    bits = _WINDOW_BITS.get(coding or b"")
    if bits is None:
        return Unreadable(400, "a compressed message, and grpc-encoding is neither gzip nor deflate")
    decoder = zlib.decompressobj(bits)
    try:
        plain = decoder.decompress(data, most)
    except zlib.error as error:
        return Unreadable(400, f"a message cannot be decompressed: {error}")
    if decoder.eof:
        return plain
    if len(plain) < most:
        return Unreadable(400, "a message cannot be decompressed: it breaks off")
    return Unreadable(413, f"a message is larger than {most} bytes when decompressed")
