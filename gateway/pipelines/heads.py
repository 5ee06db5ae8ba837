"""Heads between the stages of a pipeline: of a stage's request, and of the answer to the client. Pure."""

from typing import Final

from tidegate.wire.http1.request_head import HeadRules, RequestHead, parse_request

JSON_LENGTH: Final = b"inference-header-content-length"
_OF_ONE_HOP: Final = frozenset(
    {
        b"accept-encoding", b"connection", b"content-encoding", b"content-length", b"content-type", b"expect", b"host",
        b"keep-alive", b"prefer", b"te", b"tidegate-priority", b"tidegate-tag", b"tidegate-task-class",
        b"tidegate-timeout-ms", b"trailer", b"transfer-encoding", b"upgrade", b"x-request-id", JSON_LENGTH,
    }
)  # fmt: skip
"""Fields of the client's request that a stage's request has of its own, or not at all."""
_OF_ONE_STAGE: Final = frozenset(
    {
        b"connection", b"content-length", b"content-type", b"date", b"keep-alive", b"server-timing",
        b"transfer-encoding", b"x-request-id",
    }
)  # fmt: skip
"""Fields of the last stage's answer that the answer to the client has of its own."""
_UNBOUNDED: Final = 1 << 20
_RULES: Final = {
    trusted: HeadRules(head_bytes=_UNBOUNDED, headers=10_000, target_bytes=_UNBOUNDED, trusted=trusted)
    for trusted in (False, True)
}
"""The client's head was within the limits already."""


def stage_head(
    head: RequestHead,
    *,
    target: bytes,
    content_type: bytes,
    coding: bytes | None,
    json_bytes: int | None,
    length: int,
    trusted: bool,
) -> RequestHead:
    """Returns the head of a stage's request, with the client's other fields. ``coding``: the content-encoding of its
    body; ``json_bytes``: as ``StageBody.json_bytes``. Raises ValueError if the target is none."""
    kept = [line for line in head.fields.split(b"\r\n") if line and _name(line) not in _OF_ONE_HOP]
    own = [b"host: %b" % (head.authority or b"localhost"), b"content-length: %d" % length]
    if content_type:
        own.append(b"content-type: %b" % content_type)
    if coding is not None:
        own.append(b"content-encoding: %b" % coding)
    if json_bytes is not None:
        own.append(b"%b: %d" % (JSON_LENGTH, json_bytes))
    text = b"POST %b HTTP/1.1\r\n%b\r\n\r\n" % (target, b"\r\n".join([*own, *kept]))
    found = parse_request(text, 0, _RULES[trusted])
    if not isinstance(found, RequestHead):
        raise ValueError(f"{target!r} is no target of a request")
    return found


def field(block: bytes, name: bytes) -> bytes | None:
    """Returns the value of the first field ``name`` (in lower case) among header lines; None if there is none."""
    for line in block.split(b"\r\n"):
        if _name(line) == name:
            return line.partition(b":")[2].strip(b" \t")
    return None


def without(block: bytes, name: bytes) -> bytes:
    """Returns header lines but those of the field ``name`` (in lower case)."""
    return b"".join(b"%b\r\n" % line for line in block.split(b"\r\n") if line and _name(line) != name)


def kept_lines(block: bytes) -> bytes:
    """Returns the header lines of the last stage's answer that the client gets."""
    lines = (line for line in block.split(b"\r\n") if line and _name(line) not in _OF_ONE_STAGE)
    return b"".join(b"%b\r\n" % line for line in lines)


def timing_of(stage: bytes, block: bytes, total_s: float) -> bytes:
    """Returns the entries of one stage in ``Server-Timing``: its whole time, then what its own answer states."""
    entries = [b"%b;dur=%.3f" % (stage, total_s * 1e3)]
    own = field(block, b"server-timing")
    if own:
        entries += [b"%b-%b" % (stage, entry.strip()) for entry in own.split(b",")]
    return b", ".join(entries)


def _name(line: bytes) -> bytes:
    return line.partition(b":")[0].lower()
