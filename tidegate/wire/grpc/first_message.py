"""The framing of gRPC messages, and the beginning of a V2 inference request.

Of the first message of a ``ModelInfer`` call the name of the model and the batch are read, with a few lines of the
protobuf wire format and no schema compiler. Messages themselves are forwarded untouched.
"""

from typing import Final, NamedTuple, Protocol

from tidegate.wire.grpc.protobuf import varint

MESSAGE_HEAD: Final = 5
"""Bytes before a message: the compressed flag and the length."""
PEEKED_BYTES: Final = 4096
"""Maximum bytes that are read: name and shape are near the front of a request, contents follow them."""


class Infer(NamedTuple):
    """Model and batch of a ModelInfer request."""

    model: bytes
    """``model_name``; b"" if it was not found in the bytes read."""
    batch: int
    """First dimension of the first input; 0 if it was not found in the bytes read."""


_UNKNOWN: Final = Infer(b"", 0)
_MODEL_NAME, _INPUTS, _SHAPE = 1, 5, 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def first_message_end(data: bytes) -> int:
    """Returns the size of the first message with its head; 0 if ``data``, the beginning of a body, is too short."""
    return MESSAGE_HEAD + int.from_bytes(data[1:MESSAGE_HEAD], "big") if len(data) >= MESSAGE_HEAD else 0


def peek_infer(data: bytes, limit: int = PEEKED_BYTES) -> Infer | None:
    """Returns model and batch of a call from the beginning ``data`` of its body, or None if more bytes are needed.

    Reads the first ``limit`` bytes of the first message only. A compressed message, or one that is no protobuf, yields
    neither; it is not rejected, since that is the server's task.
    """
    if len(data) < MESSAGE_HEAD:
        return None
    if data[0]:
        return _UNKNOWN
    end = first_message_end(data)
    is_whole = len(data) >= min(end, limit)
    model, batch = b"", 0
    at, end = MESSAGE_HEAD, min(end, len(data), limit)
    try:
        while at < end and not (model and batch):
            number, kind, start, at = _next_field(data, at)
            if kind == _BYTES and number == _MODEL_NAME:
                model = data[start:at] if at <= end else b""
            elif kind == _BYTES and number == _INPUTS and not batch:
                batch = _first_dimension(data, start, min(at, end))
    except (IndexError, ValueError):
        pass  # The message is truncated, or no protobuf: values found before are valid.
    return Infer(model, batch) if is_whole or (model and batch) else None


def peek_usual(data: bytes) -> Infer | None:
    """Returns the result of :func:`peek_infer` in a fraction of the time, for requests in the usual form, with name and
    first input at their beginning. Returns None for other requests."""
    if len(data) <= MESSAGE_HEAD or data[0]:
        return None
    model = b""
    at, end = MESSAGE_HEAD, min(len(data), MESSAGE_HEAD + int.from_bytes(data[1:MESSAGE_HEAD], "big"), 256) - 1
    while at < end:
        tag, size = data[at], data[at + 1]
        at += 2
        if tag == _INPUTS << 3 | _BYTES:
            batch = _usual_batch(data, at, size)
            return Infer(model, batch) if model and batch else None
        if tag & 0x87 != _BYTES or size > 127:
            return None
        if tag == _MODEL_NAME << 3 | _BYTES:
            model = data[at : at + size]  # The last value of a repeated field counts.
        at += size
    return None


def peek_batch(data: bytes) -> int | None:
    """Returns the batch alone, as :func:`peek_infer` finds it, in a fraction of the time: the fields before the inputs
    are short in most requests, and skipped."""
    if len(data) > MESSAGE_HEAD and not data[0]:
        at, end = MESSAGE_HEAD, min(len(data), 128) - 1
        if data[4] < 128 and data[1:4] == b"\0\0\0":  # The message may end before that.
            end = min(end, MESSAGE_HEAD + data[4] - 1)
        while at < end:
            tag, size = data[at], data[at + 1]
            if tag == _INPUTS << 3 | _BYTES:
                batch = _usual_batch(data, at + 2, size)
                if batch:
                    return batch
                break
            if tag & 0x87 != _BYTES or size > 127:
                break
            at += 2 + size
    found = peek_infer(data)
    return None if found is None else found.batch


def _usual_batch(data: bytes, at: int, size: int) -> int:
    """Returns the batch of a tensor of less than 128 bytes that has name and type before its packed shape; 0 for other
    tensors."""
    end = at + size
    if size > 127 or end > len(data):
        return 0
    while at < end - 2:
        tag, size = data[at], data[at + 1]
        at += 2
        if tag == _SHAPE << 3 | _BYTES:
            first = data[at]
            return first if 0 < size < 128 and first < 128 else 0
        if tag & 0x87 != _BYTES or size > 127:
            return 0
        at += size
    return 0


class CallFields(Protocol):
    """The part of a call's head that is needed here."""

    is_inference: bool
    """True if the path is one of INFER_PATHS."""

    def get(self, name: bytes, /) -> bytes | None:
        """Returns the value of the field with this lower-case name, or None."""
        ...


def call_batch(head: CallFields, body: bytes, header: bytes | None, limit: int) -> int | None:
    """Returns the inferences of a call, 1 to ``limit``; ``body`` is the beginning of its body.

    Sources are the field ``header`` (None if it is known to be absent), then the first input's shape of a V2 inference,
    then 1. Returns None if more of the body is needed.
    """
    stated = None if header is None else head.get(header)
    if stated is not None and stated.isdigit() and len(stated) < 10 and (count := int(stated)):
        return min(count, limit)
    if not head.is_inference:
        return 1
    batch = peek_batch(body)
    return None if batch is None else max(1, min(batch, limit))


def _first_dimension(data: bytes, at: int, end: int) -> int:
    """Returns the first dimension of an InferInputTensor; 0 without a valid one. Dimensions are packed or not."""
    while at < end:
        number, kind, start, at = _next_field(data, at)
        stop = min(at, end)
        if number != _SHAPE or kind not in (_BYTES, _VARINT) or start >= stop:
            continue
        value, stated = varint(data, start)
        return value if stated <= stop and value < 1 << 31 else 0
    return 0


def _next_field(data: bytes, at: int) -> tuple[int, int, int, int]:
    """Returns number, wire type, and start and end of the value; the end may lie behind the data."""
    tag, at = varint(data, at)
    kind = tag & 7
    if kind == _BYTES:
        size, at = varint(data, at)
        return tag >> 3, kind, at, at + size
    if kind == _VARINT:
        return tag >> 3, kind, at, varint(data, at)[1]
    if kind == _FIXED64:
        return tag >> 3, kind, at, at + 8
    if kind == _FIXED32:
        return tag >> 3, kind, at, at + 4
    raise ValueError("not a wire type of protobuf")
