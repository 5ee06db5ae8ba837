"""How many inferences a request carries (SMIF S4, with V2's shape before the length).

In this order: the batch header, the first dimension of the first tensor shape in a V2 JSON body, the length of the
body with a configured size per item, else 1. A malformed header never rejects a request. The JSON is not parsed: one
regular expression over the first 4 KB finds the shape, because a body may be large and arrives in pieces.
"""

import math
import re
from typing import Protocol

SHAPE_WINDOW = 4096
"""Bytes of a body in which the shape is looked for: V2 clients write it before the data."""

_SHAPE = re.compile(rb'"shape"[ \t\r\n]*:[ \t\r\n]*\[[ \t\r\n]*([0-9]{1,9})')
_DIGITS = re.compile(rb"[0-9]{1,18}")
_JSON_LENGTH = b"inference-header-content-length"


class Head(Protocol):
    """What is read of a request's head."""

    @property
    def content_length(self) -> int | None: ...

    def get(self, name: bytes, /) -> bytes | None: ...


class BatchReader:
    """One function's rule, ready to be applied per request."""

    __slots__ = ("_bytes_per_item", "_header", "_max_batch", "_overhead", "_v2")

    def __init__(
        self, *, header: str, bytes_per_item: float | None, overhead_bytes: float, max_batch: int, v2: bool
    ) -> None:
        self._header = header.lower().encode()
        self._bytes_per_item = bytes_per_item
        self._overhead = overhead_bytes
        self._max_batch = max_batch
        self._v2 = v2

    def needs_body(self, head: Head) -> bool:
        """Whether the first bytes of the body would tell more than the head does."""
        return self._v2 and head.content_length != 0 and not self._from_header(head)

    def read(self, head: Head, body: bytes) -> int:
        """Inferences in the request, at least 1, at most the function's largest batch."""
        return (self._from_header(head) or self._from_shape(head, body) or self._from_length(head)) or 1

    def _from_header(self, head: Head) -> int:
        value = head.get(self._header)
        if value is None:
            return 0
        value = value.strip(b" \t")
        return min(int(value), self._max_batch) if _DIGITS.fullmatch(value) else 0

    def _from_shape(self, head: Head, body: bytes) -> int:
        if not self._v2 or not body:
            return 0
        end = SHAPE_WINDOW
        length = head.get(_JSON_LENGTH)
        if length is not None and _DIGITS.fullmatch(length):
            end = min(end, int(length))
        found = _SHAPE.search(body, 0, end)
        return min(int(found[1]), self._max_batch) if found is not None else 0

    def _from_length(self, head: Head) -> int:
        if self._bytes_per_item is None or head.content_length is None:
            return 0
        items = math.floor((head.content_length - self._overhead) / self._bytes_per_item + 0.5)
        return max(1, min(items, self._max_batch))
