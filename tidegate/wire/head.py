"""Request and response heads: one strict bytes regex per head (RFC 9110, RFC 9112)."""


class RequestHead:
    """A parsed request head."""

    __slots__ = (
        "chunked",
        "content_length",
        "expect_continue",
        "fields",
        "host",
        "keep_alive",
        "method",
        "path",
        "target",
        "upgrade",
        "version_minor",
    )

    method: bytes
    target: bytes
    """As received, origin-form (absolute-form is reduced to it)."""
    path: bytes
    """The target before ``?``."""
    host: bytes
    """Lower case, without port; b"" for HTTP/1.0 without Host."""
    version_minor: int
    fields: bytes
    """Header lines to forward, each ``name: value CRLF``; hop-by-hop and stripped fields are gone."""
    content_length: int | None
    chunked: bool
    keep_alive: bool
    expect_continue: bool
    upgrade: bytes | None
    """Lower-case protocol token of an acceptable Upgrade request."""

    def get(self, name: bytes) -> bytes | None:
        """Value of the first field ``name`` (lower case), as received, without surrounding white space."""
        raise RuntimeError("not built yet")

    def drop(self, *names: bytes) -> None:
        """Removes fields (lower-case names) from what is forwarded."""
        raise RuntimeError("not built yet")


class ResponseHead:
    __slots__ = ("chunked", "content_length", "fields", "reason", "status")

    status: int
    reason: bytes
    fields: bytes
    content_length: int | None
    chunked: bool

    def get(self, name: bytes) -> bytes | None:
        """Value of the first field ``name`` (lower case); also sees ``tidegate-`` fields, which are never passed on."""
        raise RuntimeError("not built yet")

    def drop(self, *names: bytes) -> None:
        """Removes fields (lower-case names) from what is passed on."""
        raise RuntimeError("not built yet")


def self_test() -> None:
    """Checks the head grammar on this interpreter (some 3.11 releases have broken possessive groups).

    Raises RuntimeError naming the sample that failed.
    """
