"""The number of inferences in a request (SMIF S4), without parsing JSON."""

import math
import re

from tidegate.headers import BATCH_SIZE, INTERNAL_PREFIX
from tidegate.wire.message_heads import AnyRequestHead

SEARCHED_BYTES = 4096
"""Searched bytes: the shape is near the front of a V2 request, and the tensor's data follows it."""
JSON_LENGTH = b"inference-header-content-length"
_shape = re.compile(rb'"shape"[ \t\r\n]*+:[ \t\r\n]*+\[[ \t\r\n]*+([0-9]{1,9})[ \t\r\n]*+[],]').search
MOST = 10**18
"""A larger number counts as this."""


class BatchSizer:
    """One function's rule for the inferences in a request, within 1..max_batch.

    Order: batch header (name in lower case), first dimension of the first V2 ``"shape"`` in the first 4 KB of the body,
    length class (``(content length - overhead) / bytes per item``, halves up), 1. A malformed value is skipped, it
    never rejects the request.
    """

    __slots__ = ("_bytes_per_item", "_header", "_is_ours", "_max_batch", "_overhead_bytes")

    def __init__(
        self,
        header: bytes = BATCH_SIZE,
        bytes_per_item: float | None = None,
        overhead_bytes: float = 0.0,
        max_batch: int = 1024,
    ) -> None:
        self._header = header
        self._is_ours = header.startswith(INTERNAL_PREFIX)
        """True if a plain head cannot have the header."""
        self._bytes_per_item = bytes_per_item
        self._overhead_bytes = overhead_bytes
        self._max_batch = max_batch

    def of(self, head: AnyRequestHead, body: bytes) -> int:
        """Returns the inferences of a request; ``body`` is the beginning of its body."""
        if head.plain and self._is_ours:  # The same result in one step, for most requests.
            match = _shape(body, 0, SEARCHED_BYTES) if body else None
            if match is not None and 0 < (count := int(match[1])) <= self._max_batch:
                return count
            if match is None and self._bytes_per_item is None:
                return 1
        return _count(head, body, self._header, self._bytes_per_item, self._overhead_bytes, self._max_batch)

    def __repr__(self) -> str:
        return f"<BatchSizer by {self._header!r}, {self._bytes_per_item} bytes per item, at most {self._max_batch}>"


def batch_size(
    head: AnyRequestHead,
    body: bytes,
    *,
    header: bytes = BATCH_SIZE,
    bytes_per_item: float | None = None,
    overhead_bytes: float = 0.0,
    max_batch: int = 1024,
) -> int:
    """Returns :meth:`BatchSizer.of` for a rule that is used once."""
    return _count(head, body, header, bytes_per_item, overhead_bytes, max_batch)


def _count(
    head: AnyRequestHead, body: bytes, header: bytes, per_item: float | None, overhead_bytes: float, limit: int
) -> int:
    count = stated_batch(head, body, header)
    if not count:
        if per_item is None or per_item <= 0 or head.content_length is None:
            return 1
        return estimated_batch(head.content_length, per_item, overhead_bytes, limit)
    return count if count < limit else limit


def estimated_batch(length: int, per_item: float, overhead_bytes: float, limit: int) -> int:
    """Returns the batch of a body of ``length`` bytes, 1 to ``limit``: halves up."""
    return max(1, min(limit, math.floor((length - overhead_bytes) / per_item + 0.5)))


def stated_batch(head: AnyRequestHead, body: bytes, header: bytes = BATCH_SIZE) -> int:
    """Returns the batch that the request itself states, in its header or its first V2 shape; 0 without one."""
    value = head.get(header)
    count = positive(value) if value is not None else 0
    return count if count or not body else shape_batch(body, head.get(JSON_LENGTH))


def shape_batch(body: bytes, json_length: bytes | None = None) -> int:
    """Returns the first dimension of the first ``"shape": [n, ...]``; 0 without one.

    ``json_length``: value of Inference-Header-Content-Length; binary tensors follow the JSON part, and a tensor's bytes
    may look like anything.
    """
    end = SEARCHED_BYTES
    if json_length is not None:
        end = min(end, positive(json_length))
    match = _shape(body, 0, end)
    return int(match[1]) if match is not None else 0


def positive(value: bytes) -> int:
    """Returns ASCII digits as a number, very many of them as 10**18; 0 for anything else."""
    if not value.isdigit():
        return 0
    value = value.lstrip(b"0")
    if not value:
        return 0
    return int(value) if len(value) <= 18 else MOST
