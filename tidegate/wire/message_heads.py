"""Heads of messages as applications read them, of HTTP (``wire.http1``) and of gRPC (``http2.heads``)."""

from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from tidegate.wire.http1.request_head import Internal


class _AnyHead(Protocol):
    """Look-up in the fields of a head, and their removal. Names are given in lower case."""

    @property
    def content_length(self) -> int | None: ...

    def get(self, name: bytes) -> bytes | None:
        """Returns the value of the first field ``name``, or None."""

    def control(self, name: bytes) -> bytes | None:
        """Returns a field as :meth:`get`, for ``tidegate-`` fields; in lower case."""

    def mentions(self, text: bytes) -> bool:
        """Returns whether ``text`` (in lower case) occurs anywhere in the fields, each written as ``\\nname:value``."""

    def drop(self, *names: bytes) -> None:
        """Removes fields from the forwarded ones."""


class AnyRequestHead(_AnyHead, Protocol):
    """The head of a request: a ``RequestHead`` or a ``CallHead``, which describe the attributes."""

    @property
    def method(self) -> bytes: ...
    @property
    def target(self) -> bytes: ...
    @property
    def path(self) -> bytes: ...
    @property
    def authority(self) -> bytes: ...
    @property
    def host(self) -> bytes: ...
    @property
    def expect_continue(self) -> bool: ...
    @property
    def upgrade(self) -> bytes | None: ...
    @property
    def plain(self) -> bool: ...
    @property
    def chunked(self) -> bool: ...
    @property
    def traced(self) -> int: ...
    @property
    def internal(self) -> "Internal | None": ...

    def trace_fields(self) -> tuple[bytes, bytes]:
        """Returns its valid ``traceparent``, and its ``tracestate``; b"" without one."""

    def take_trace(self) -> None:
        """Removes its ``traceparent``: the application adds another one to what is forwarded."""

    def renew_parent(self, parent: bytes) -> bool:
        """Replaces the end of its ``traceparent``: the 16 digits of the parent, ``-`` and those of the flags.
        Returns False if there is none of version 00 at a known place: then it is removed, as by ``take_trace``."""

    def without_trace(self) -> Self:
        """Returns a copy that is forwarded without a ``traceparent``."""

    def received_fields(self) -> bytes:
        """Returns all fields as received, each ``name: value CRLF``."""


class AnyResponseHead(_AnyHead, Protocol):
    """The head of a response: a ``ResponseHead`` or an ``AnswerHead``."""

    @property
    def status(self) -> int: ...
    @property
    def names_id(self) -> bool: ...


def method_and_path(method: bytes, path: bytes) -> str:
    """Returns a request's method and path as one text. Neither has a blank."""
    return f"{method.decode('latin-1')} {path.decode('latin-1')}"
