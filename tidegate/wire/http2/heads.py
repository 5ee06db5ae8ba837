"""Heads of HTTP/2 messages as applications read them: the interface of ``wire.http1`` heads, over a header block.

Each head is made once per distinct block and kept on it (``Block.memo``), so that repeated metadata costs a look-up. A
head from which an application has dropped a field is no longer shared.
"""

from collections.abc import Callable
from copy import copy
from functools import lru_cache
from typing import Any, ClassVar, Final, final

from tidegate import headers
from tidegate.headers import TimeoutFieldError, read_timeout_s
from tidegate.wire.http1 import grammar
from tidegate.wire.http1.request_head import Internal
from tidegate.wire.http2 import grpc_fields
from tidegate.wire.http2.block_memory import REQUEST, RESPONSE, Block, Blocks
from tidegate.wire.http2.header_blocks import Reader
from tidegate.wire.http2.hpack import literal, literal_name
from tidegate.wire.http2.tails import call_tail

_FORWARDING: Final = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"})
_MODEL_MAY_SEE: Final = frozenset({headers.TIMEOUT_MS, headers.BATCH_SIZE, headers.SHADOW})
_ALWAYS_WRITTEN_ANEW: Final = frozenset({b"grpc-timeout", b"expect"})
_MEANINGFUL: Final = frozenset(
    {
        b"expect",
        b"inference-header-content-length",
        b"k-network-probe",
        b"k-network-hash",
        headers.TIMEOUT_MS,
        headers.BATCH_SIZE,
        headers.PRIORITY,
        headers.TASK_CLASS,
        headers.TAG,
        headers.TOKEN,
        headers.CREDIT,
        headers.WANT,
        headers.SHADOW,
    }
)
"""A call with none of these fields, and no ``grpc-timeout``, is plain."""
_LOOKED_FOR: Final = _MEANINGFUL | _FORWARDING
CONTINUE: Final = literal(b":status", b"100")


def request_drops(*, front_door: bool, trusted: bool) -> Callable[[bytes], bool]:
    """Returns the predicate of the names of request fields that are not forwarded. These are the fields that the proxy
    writes itself, an untrusted peer's forwarding fields, and of the ``tidegate-`` fields all (``front_door``: the
    gateway adds its own) or those that are not for the model server."""
    dropped = _ALWAYS_WRITTEN_ANEW if trusted else _ALWAYS_WRITTEN_ANEW | _FORWARDING
    kept = frozenset[bytes]() if front_door else _MODEL_MAY_SEE

    def drops(name: bytes) -> bool:
        return name in dropped or (name.startswith(headers.INTERNAL_PREFIX) and name not in kept)

    return drops


def drops_internal(name: bytes) -> bool:
    """Returns whether a field of a response is not forwarded: those between Tidegate's processes."""
    return name.startswith(headers.INTERNAL_PREFIX)


class _Head:
    """Look-up and removal of fields."""

    __slots__ = ("_fields", "_first", "_own", "_tail", "_text", "is_changed", "outgoing")

    _kind: ClassVar[int]

    def __init__(self, block: Block) -> None:
        # Parts of the block, not the block: it refers to the head, and a reference cycle would wait for the collector.
        self._first, self._own, self._fields, self._tail = block.first, block.own, block.fields, block.tail
        self.is_changed = False
        """True if a field was dropped from it: it stands for no other call."""
        self._text: bytes | None = None
        self.outgoing = block.outgoing
        """The fields to forward, as literals."""

    def get(self, name: bytes) -> bytes | None:
        """Returns the value of the first field ``name`` (in lower case), or None; also of fields that are not
        forwarded."""
        found = self._own.get(name)
        return found if found is not None or self._first is None else self._first.get(name)

    def control(self, name: bytes) -> bytes | None:
        """Returns a field as :meth:`get`, for ``tidegate-`` fields: their values mean the same in lower case."""
        value = self.get(name)
        return None if value is None else value.lower()

    def mentions(self, text: bytes) -> bool:
        """Returns whether ``text`` (in lower case) occurs anywhere in the fields, each written as ``\\nname:value``."""
        if text[-1:] == b":" and text[:1] == b"\n":
            return _Head.get(self, text[1:-1]) is not None  # Only a name: the fields need not be written out.
        found = self._text
        if found is None:
            self._text = found = b"".join([b"\n%b:%b" % pair for pair in self._pairs()]).lower()
        return found.find(text) >= 0

    def _pairs(self) -> list[tuple[bytes, bytes]]:
        """Returns names and values of all fields."""
        pairs = [field[:2] for field in self._fields if field[0][:1] != b":"]
        return pairs if self._tail is None else [*pairs, *self._tail.items()]

    def drop(self, *names: bytes) -> None:
        """Removes fields (names in lower case) from the forwarded ones."""
        if any(_Head.get(self, name) is not None for name in names):
            self.is_changed = True
            self.outgoing = without(self.outgoing, self._kind, names)


@final
class CallHead(_Head):
    """The head of a call. It has the interface of ``request_head.RequestHead``."""

    __slots__ = (
        "authority",
        "content_length",
        "expect_continue",
        "has_timeout",
        "hides_internal",
        "host",
        "internal",
        "is_inference",
        "is_usual",
        "memo",
        "method",
        "names_host",
        "names_proto",
        "plain",
        "target",
        "timeout_s",
        "traced",
    )

    _kind = REQUEST
    version_minor: ClassVar[int] = 1
    chunked: ClassVar[bool] = True
    """The length of its body is never announced."""
    keep_alive: ClassVar[bool] = True
    upgrade: ClassVar[bytes | None] = None

    def __init__(self, block: Block, *, front_door: bool, trusted: bool) -> None:
        """``front_door``: fields that no client may send are hidden; ``trusted``: its forwarding fields are kept."""
        _Head.__init__(self, block)
        self.method = block.method
        self.target = block.path
        self.authority = block.authority
        self.host = block.host
        self.content_length = block.content_length
        self.hides_internal = front_door
        self.memo: Any = None
        """Belongs to the application: its results about this head."""
        trace = block.get(b"traceparent")
        self.traced = trace is not None and grammar.TRACEPARENT.fullmatch(trace) is not None
        if trace is not None and not self.traced:
            self.drop(b"traceparent", b"tracestate")
        self.is_usual = block.lacks(_MEANINGFUL)
        """True if none of its fields has a meaning for Tidegate or for applications, except perhaps a
        ``grpc-timeout``."""
        timeout = block.get(b"grpc-timeout")
        self.has_timeout = timeout is not None
        self.plain = self.is_usual and timeout is None
        self.timeout_s: float | None = None
        """The value of ``grpc-timeout``, if that is the only field with a meaning."""
        self.is_inference = block.path in grpc_fields.INFER_PATHS
        self.names_host = self.names_proto = self.expect_continue = False
        self.internal: Internal | None = None
        if timeout is not None and self.is_usual:
            try:
                self.timeout_s = read_timeout_s(None, timeout)
            except TimeoutFieldError:
                self.is_usual = False
        if trusted:
            self.names_host = block.get(b"x-forwarded-host") is not None
            self.names_proto = block.get(b"x-forwarded-proto") is not None
        if not self.is_usual and not front_door:
            self.expect_continue = block.get(b"expect") == b"100-continue"
            self.internal = _internal(block)

    def fields(self) -> list[tuple[bytes, bytes]]:
        """Returns names and values of the fields that are forwarded."""
        hidden = request_drops(front_door=self.hides_internal, trusted=True)
        return [pair for pair in self._pairs() if not hidden(pair[0])]

    def trace_fields(self) -> tuple[bytes, bytes]:
        """Returns its valid ``traceparent``, and its ``tracestate``; b"" without one."""
        return self.get(b"traceparent") or b"", self.get(b"tracestate") or b""

    def take_trace(self) -> None:
        """Removes its ``traceparent``: the application adds another one to what is forwarded."""
        self.drop(b"traceparent")
        self.traced = self.is_changed = True

    def renew_parent(self, parent: bytes) -> bool:
        """Removes its ``traceparent``, and returns False: no place of it is known."""
        self.take_trace()
        return False

    def without_trace(self) -> "CallHead":
        """Returns a copy that is forwarded without a ``traceparent``: other calls may share this head."""
        copied = copy(self)
        copied.take_trace()
        return copied

    def with_more(self, block: Block) -> "CallHead | None":
        """Returns the head of a call that begins as this one, with a trace, a deadline or metadata behind it. Returns
        None if its fields must be interpreted together."""
        own = block.own
        if not self.plain or self.is_changed or self.traced or not _LOOKED_FOR.isdisjoint(own):
            return None
        trace = own.get(b"traceparent")
        if trace is not None and grammar.TRACEPARENT.fullmatch(trace) is None:
            return None
        timeout = own.get(b"grpc-timeout")
        head = CallHead.__new__(CallHead)
        head.timeout_s = None
        if timeout is not None:
            try:
                head.timeout_s = read_timeout_s(None, timeout)
            except TimeoutFieldError:
                return None
        head._first, head._own, head._fields, head._tail = block.first, own, block.fields, None
        head.is_changed = False
        head._text = head.memo = head.internal = None
        head.outgoing = block.outgoing
        head.method, head.target, head.authority, head.host = self.method, self.target, self.authority, self.host
        head.content_length, head.is_inference = self.content_length, self.is_inference
        head.hides_internal = self.hides_internal
        head.names_host, head.names_proto = self.names_host, self.names_proto
        head.traced = trace is not None
        head.has_timeout = timeout is not None
        head.is_usual = True
        head.plain = timeout is None
        head.expect_continue = False
        return head

    def with_gateway_fields(self, block: Block, tail: dict[bytes, bytes]) -> "CallHead | None":
        """Returns the head of a call that begins as this one and ends with a gateway's fields. Returns None if its
        fields must be interpreted together."""
        if not self.plain or self.is_changed or self.hides_internal:
            return None
        head = CallHead.__new__(CallHead)
        head._first, head._own, head._fields, head._tail = block.first, block.own, block.fields, tail
        head.is_changed = head.is_usual = head.plain = False
        head._text = head.memo = head.timeout_s = None
        head.outgoing = block.outgoing
        head.method, head.target, head.authority, head.host = self.method, self.target, self.authority, self.host
        head.content_length, head.is_inference = self.content_length, self.is_inference
        head.hides_internal = False
        head.names_host, head.names_proto = self.names_host, self.names_proto
        head.traced = self.traced or b"traceparent" in tail
        head.has_timeout = b"grpc-timeout" in tail
        head.expect_continue = b"expect" in tail
        head.internal = Internal(
            tail[headers.TOKEN],
            tail[headers.TIMEOUT_MS],
            tail[headers.BATCH_SIZE],
            tail.get(headers.CREDIT),
            tail.get(headers.WANT),
        )
        return head

    @property
    def path(self) -> bytes:
        """The target before ``?``."""
        return self.target.partition(b"?")[0]

    def get(self, name: bytes) -> bytes | None:
        if self.hides_internal and _is_hidden(name):
            return None
        found = self._own.get(name)
        return found if found is not None or self._first is None else self._first.get(name)

    def received_fields(self) -> bytes:
        """Returns all fields as header lines, each ``name: value CRLF``."""
        return b"".join([b"%b: %b\r\n" % pair for pair in self._pairs()])

    def __repr__(self) -> str:
        return f"<CallHead {self.target!r} at {self.host!r}>"


@final
class AnswerHead(_Head):
    """The head of a response to a call. It has the interface of ``response_head.ResponseHead``."""

    __slots__ = ("content_length", "status")

    _kind = RESPONSE

    def __init__(self, block: Block, *, ends: bool) -> None:
        """``ends``: the response consists of this head only."""
        super().__init__(block)
        self.content_length = block.content_length
        self.status = block.status
        """The HTTP status; for a response that is only a gRPC status, the HTTP status that stands for it."""
        if ends:
            stated = block.get(headers.STATUS)
            if stated is not None and stated.isdigit() and len(stated) == 3 and block.get(headers.OUTCOME) is not None:
                self.status = int(stated)
            else:
                self.status = grpc_fields.ended_status(block.status, block.grpc_status)

    @property
    def names_id(self) -> bool:
        """True if an ``x-request-id`` is among the fields."""
        return self.get(headers.REQUEST_ID) is not None

    def __repr__(self) -> str:
        return f"<AnswerHead {self.status}>"


def call_head(block: Block, *, front_door: bool, trusted: bool) -> CallHead:
    """Returns the head of this block; equal blocks share it."""
    base, tail = block.base, block.tail
    if base is not None and base.is_call:
        like: CallHead | None = base.memo
        if like is None:
            like = call_head(base, front_door=front_door, trusted=trusted)
        head = like.with_more(block) if tail is None else like.with_gateway_fields(block, tail)
        if head is not None:
            block.memo = head
            return head
    block.memo = head = CallHead(block, front_door=front_door, trusted=trusted)
    return head


def answer_head(block: Block, ends: bool) -> AnswerHead:
    """Returns the head of this block; equal blocks share it."""
    memo: tuple[bool, AnswerHead] | None = block.memo
    if memo is not None and memo[0] is ends and not memo[1].is_changed:
        return memo[1]
    head = AnswerHead(block, ends=ends)
    block.memo = (ends, head)
    return head


def without(outgoing: bytes, kind: int, names: tuple[bytes, ...]) -> bytes:
    """Returns a block of literals without the fields ``names``."""
    return Reader(Blocks(kind, lambda name: name in names)).read(outgoing).outgoing


def with_path(outgoing: bytes, path: bytes) -> bytes:
    """Returns a request's block of literals with another ``:path``."""
    reader = Reader(Blocks(REQUEST, lambda name: name == b":path"))
    return literal(b":path", path) + reader.read(outgoing).outgoing


def literals(lines: bytes) -> bytes:
    """Converts Tidegate's header lines (``b"name: value\\r\\n"``..., names in lower case) into fields to be appended to
    a block."""
    if lines.startswith(_TOKEN_LINE):
        stated = call_tail(lines)
        if stated is not None:
            return stated
    fields = []
    for line in lines.split(b"\r\n"):
        name, colon, value = line.partition(b": ")
        if colon:
            length = len(value)
            fields.append(
                b"%b%c%b" % (_name(name), length, value) if length < 127 else literal(name, value)  # Most are short.
            )
    return b"".join(fields)


_name = lru_cache(maxsize=256)(literal_name)
_TOKEN_LINE: Final = headers.TOKEN + b": "


def _is_hidden(name: bytes) -> bool:
    return name.startswith(headers.INTERNAL_PREFIX) and name not in headers.KEPT_FROM_CLIENTS


def _internal(block: Block) -> Internal | None:
    """Returns a gateway's fields if they are in their usual form, else None."""
    token = block.get(headers.TOKEN)
    timeout = block.get(headers.TIMEOUT_MS)
    batch = block.get(headers.BATCH_SIZE)
    credit = block.get(headers.CREDIT)
    if (
        token is None
        or not (timeout is not None and timeout.isdigit() and len(timeout) < 13)
        or not (batch is not None and batch.isdigit() and len(batch) < 10)
        or (credit is not None and not (credit.isdigit() and len(credit) < 19))
    ):
        return None
    return Internal(token, timeout, batch, credit, block.get(headers.WANT))
