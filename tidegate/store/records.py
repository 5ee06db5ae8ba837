"""Small versioned records, shared by all processes that can reach the store: the protocol that every store keeps.

A store is a map from keys to bytes with one counter. Each write takes the next number of the counter as the *version*
of its record, so versions rise over the whole store, are never reused (not even after a delete) and order all writes.
``expect`` makes a write conditional on the version that its writer has seen: compare-and-set. A watch is level
triggered: it first returns everything that exists, then the newest state of each key that changed. It may skip a state
that was overwritten at once, never the last one.

Values are opaque here; records become bytes by ``tidegate.records.codec``.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Protocol

from tidegate.errors import TidegateError

KEY_LIMIT: Final = 512
"""Maximum characters in a key."""
VALUE_LIMIT: Final = 1 << 20
"""Maximum bytes in a value: records are small."""

_KEY = re.compile(r"[A-Za-z0-9._:-]+(?:/[A-Za-z0-9._:-]+)*")


class StoreError(TidegateError):
    """Base of the errors that a store may raise."""


class ConflictError(StoreError):
    """Compare-and-set met another version than expected: to be read and decided again."""

    def __init__(self, key: str, expected: int, found: int) -> None:
        self.key = key
        self.expected = expected
        self.found = found
        super().__init__(f"{key}: expected version {expected}, found {found} (0 means absent)")


class StoreFaultError(StoreError):
    """The store cannot do it now: disk full, file damaged, server gone. The state in memory stays right."""


@dataclass(frozen=True, slots=True)
class Record:
    """One key's present value. ``version`` is at least 1."""

    key: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Change:
    """One item of a watch: the key's newest state. ``record`` is None if it was deleted."""

    key: str
    version: int
    record: Record | None


class Store(Protocol):
    """The protocol of the embedded store and of Redis; ``tests/tidegate/store`` states it once for all."""

    @property
    def place(self) -> str:
        """Its place in words, without a password."""
        ...

    @property
    def fault(self) -> str | None:
        """Why the last write failed, in words, until a write succeeds again."""
        ...

    async def get(self, key: str) -> Record | None: ...

    async def put(self, key: str, value: bytes, *, expect: int | None = None) -> Record:
        """Writes and returns the record. ``expect``: the version that must be there, 0 for none; None accepts any.

        Raises ConflictError, StoreFaultError, ValueError for a key or value outside the limits.
        """
        ...

    async def delete(self, key: str, *, expect: int | None = None) -> bool:
        """Removes the key; returns False if it was absent. ``expect`` as in :meth:`put`."""
        ...

    async def list(self, prefix: str = "") -> tuple[Record, ...]:
        """Returns all records with keys that start with ``prefix``, by key."""
        ...

    def watch(self, prefix: str = "") -> AsyncIterator[Change]:
        """Yields all that exists, then all changes, for keys that start with ``prefix``; ends when the store closes."""
        ...

    async def close(self) -> None: ...


def check_key(key: str) -> None:
    """Raises ValueError unless ``key`` is words of letters, digits and ``. _ : -`` joined by ``/``."""
    if len(key) > KEY_LIMIT or _KEY.fullmatch(key) is None:
        raise ValueError(f"not a key of at most {KEY_LIMIT} characters, words joined by '/': {key[:80]!r}")


def check_value(value: bytes) -> None:
    if len(value) > VALUE_LIMIT:
        raise ValueError(f"a record has at most {VALUE_LIMIT} bytes, got {len(value)}")
