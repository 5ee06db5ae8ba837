"""Small versioned records, shared by whoever may reach the store: the protocol that every store keeps.

A store is a map from keys to bytes with one counter. Each write takes the next number of the counter as the
*version* of its record, so versions rise over the whole store, are never reused (not even after a delete) and order
all writes. ``expect`` makes a write conditional on what its writer has seen: compare-and-set. A watch is level
triggered: it first tells everything that exists, then the newest state of each key that changed; it may skip a state
that was overwritten at once, never the last one.

Values are opaque here; records become bytes by ``tidegate.records.codec``.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Protocol

from tidegate.errors import TidegateError

KEY_LIMIT: Final = 512
"""Characters in a key."""
VALUE_LIMIT: Final = 1 << 20
"""Bytes in a value: records are small."""

_KEY = re.compile(r"[A-Za-z0-9._:-]+(?:/[A-Za-z0-9._:-]+)*")


class StoreError(TidegateError):
    """Base of what a store may raise."""


class ConflictError(StoreError):
    """Compare-and-set met another version than expected: read again and decide again."""

    def __init__(self, key: str, expected: int, found: int) -> None:
        self.key = key
        self.expected = expected
        self.found = found
        super().__init__(f"{key}: expected version {expected}, found {found} (0 means absent)")


class StoreFaultError(StoreError):
    """The store cannot do it now: disk full, file damaged, server gone. What is in memory stays right."""


@dataclass(frozen=True, slots=True)
class Record:
    """One key's present value. ``version`` is at least 1."""

    key: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Change:
    """What a watch tells: the key's newest state. ``record`` None: deleted."""

    key: str
    version: int
    record: Record | None


class Store(Protocol):
    """What the embedded store and Redis both do; ``tests/store`` states it once for all."""

    @property
    def place(self) -> str:
        """Where it is, in words; without a password."""
        ...

    @property
    def fault(self) -> str | None:
        """Why the last write failed, in words, until a write succeeds again."""
        ...

    async def get(self, key: str) -> Record | None: ...

    async def put(self, key: str, value: bytes, *, expect: int | None = None) -> Record:
        """Writes and returns the record. ``expect``: the version that must be there, 0 for none; None: whatever is.

        Raises ConflictError, StoreFaultError, ValueError for a key or value outside the limits.
        """
        ...

    async def delete(self, key: str, *, expect: int | None = None) -> bool:
        """Removes the key; False when it was not there. ``expect`` as in :meth:`put`."""
        ...

    async def list(self, prefix: str = "") -> tuple[Record, ...]:
        """All records whose key starts with ``prefix``, by key."""
        ...

    def watch(self, prefix: str = "") -> AsyncIterator[Change]:
        """What exists, then what changes, for keys that start with ``prefix``; ends when the store closes."""
        ...

    async def close(self) -> None: ...


def check_key(key: str) -> None:
    """Raises ValueError unless ``key`` is words of letters, digits and ``. _ : -`` joined by ``/``."""
    if len(key) > KEY_LIMIT or _KEY.fullmatch(key) is None:
        raise ValueError(f"not a key of at most {KEY_LIMIT} characters, words joined by '/': {key[:80]!r}")


def check_value(value: bytes) -> None:
    if len(value) > VALUE_LIMIT:
        raise ValueError(f"a record has at most {VALUE_LIMIT} bytes, got {len(value)}")
