"""A small HTTP client for probes and admin calls: one connection per call, whole answers, bounded."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field


class FetchError(Exception):
    """No usable answer: refused, timed out, broken off or not HTTP. The message says which."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    """Lower-case names; the last of equal names."""
    body: bytes = b""


async def fetch(
    address: str,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Iterable[tuple[str, str]] = (),
    *,
    timeout_s: float = 5.0,
    body_bytes: int = 64 << 20,
) -> Reply:
    """One request to ``host:port`` or ``unix:/path``; raises FetchError."""
    raise RuntimeError("not built yet")


async def open_upgraded(
    address: str,
    path: str,
    upgrade: str,
    factory: Callable[[], asyncio.Protocol],
    headers: Iterable[tuple[str, str]] = (),
    *,
    timeout_s: float = 5.0,
) -> tuple[asyncio.Transport, asyncio.Protocol]:
    """``GET path`` with ``Upgrade``; after the 101 the transport belongs to a new protocol of ``factory``.

    The protocol gets ``connection_made`` and whatever bytes followed the 101. Raises FetchError.
    """
    raise RuntimeError("not built yet")
