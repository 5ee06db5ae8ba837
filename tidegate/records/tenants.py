"""Tenants: their keys, weight, priority and quotas (docs/use/tenants.md). Frozen records.

A key is identified by its SHA-256 alone, in hexadecimal: the key itself is never kept, sent or compared. Keys carry
their own randomness (``tidegate tenant-key`` makes 256 bits), so a plain hash of them cannot be searched.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

SECOND_S: Final = 1.0
MINUTE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Maximum work of a tenant per second and minute, over all its functions and all gateways. None for no limit.

    Names are those of the file with ``_`` for ``-``: ``tokens_per_minute`` is ``tokens-per-minute``.
    """

    requests_per_second: int | None = None
    requests_per_minute: int | None = None
    inferences_per_second: int | None = None
    inferences_per_minute: int | None = None
    tokens_per_second: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    """Concurrent requests, waiting ones included."""

    def limits(self) -> "Iterator[QuotaLimit]":
        """Yields the given limits, for each unit the shortest window first."""
        for field in fields(self):
            amount = getattr(self, field.name)
            if amount is not None:
                unit, _, window = field.name.partition("_per_")
                yield QuotaLimit(unit, _WINDOWS[window], amount)

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))


_WINDOWS: Final = {"": math.inf, "second": SECOND_S, "minute": MINUTE_S}


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """One quota. ``unit``: requests, inferences, tokens, or concurrency (requests at the same time)."""

    unit: str
    window_s: float
    amount: int

    @property
    def name(self) -> str:
        """Name as in the tenants' file: ``tokens-per-minute``."""
        return self.unit if math.isinf(self.window_s) else f"{self.unit}-per-{self.window}"

    @property
    def window(self) -> str:
        return "minute" if self.window_s == MINUTE_S else "second"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One tenant of the tenants' file."""

    name: str
    keys: tuple[str, ...] = ()
    """SHA-256 of its API keys."""
    weight: float = 1.0
    """Share of a busy function, relative to other tenants' weights."""
    priority: int | None = None
    """Best priority that its requests may have, 0 (first) to 9. None for the function's."""
    functions: tuple[str, ...] = ()
    """Functions that it may call; empty for all."""
    quotas: Quotas = Quotas()


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtRule:
    """JSON Web Tokens (RFC 7519) that a function accepts."""

    jwks: str
    """Source of the issuer's keys (RFC 7517): the absolute path of a file, or a URL."""
    issuer: str
    """Required ``iss``."""
    audience: tuple[str, ...]
    """``aud`` must contain one of these."""
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    tenant_claim: str | None = None
    """Claim that names the tenant. None if every valid token may call, without a tenant."""
    leeway_s: float = 60.0
    """Maximum difference between the clocks of issuer and gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRule:
    """Authentication of a function's callers: an API key of a tenant, a token, or either."""

    api_keys: bool = False
    jwt: JwtRule | None = None
    forward_credential: bool = False
    """True if the caller's credential is passed to the model server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySet:
    """An issuer's public keys. ``keys`` is empty before they have been read."""

    source: str
    """``JwtRule.jwks``."""
    keys: tuple[str, ...] = ()
    """JSON Web Keys, one text each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSeen:
    """Usage of a tenant as counted by one gateway worker. Cumulative."""

    tenant: str
    requests: int
    """Admitted requests, without the refused ones."""
    inferences: int
    tokens: int
    refused: int
    """Requests refused for a spent quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUse:
    """Use of one function by one tenant, as counted by one gateway worker. Cumulative."""

    function: str
    tenant: str
    """Empty for authenticated callers without a tenant."""
    requests: int
    """Requests answered below 500."""
    inferences: int
    tokens: int
    slot_s: float
    """Sum over the requests that held a slot to their end: from the slot to the end of the answer, in seconds."""


def digest(key: bytes) -> str:
    """Returns the digest that identifies an API key."""
    return hashlib.sha256(key).hexdigest()
