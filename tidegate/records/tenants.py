"""Tenants: who may call, with which weight and priority, and how much (docs/use/tenants.md). Frozen records.

A key is known by its SHA-256 alone, in hexadecimal: what is kept, shipped and compared is never the key itself. Keys
carry their own randomness (``tidegate tenant-key`` makes 256 bits), so a plain hash of them cannot be searched.
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
    """Most of a tenant's work in each second and minute, over all its functions and all gateways; None: no limit.

    Names are what a person writes, with ``-``: ``tokens_per_minute`` is ``tokens-per-minute``.
    """

    requests_per_second: int | None = None
    requests_per_minute: int | None = None
    inferences_per_second: int | None = None
    inferences_per_minute: int | None = None
    tokens_per_second: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    """Requests at the same time, waiting ones included."""

    def limits(self) -> "Iterator[Limit]":
        """Those that are given: what holds for the shortest time first."""
        for field in fields(self):
            amount = getattr(self, field.name)
            if amount is not None:
                unit, _, window = field.name.partition("_per_")
                yield Limit(unit, _WINDOWS[window], amount)

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) is not None for field in fields(self))


_WINDOWS: Final = {"": math.inf, "second": SECOND_S, "minute": MINUTE_S}


@dataclass(frozen=True, slots=True)
class Limit:
    """One quota. ``unit``: requests, inferences, tokens, or concurrency (requests at the same time)."""

    unit: str
    window_s: float
    amount: int

    @property
    def name(self) -> str:
        """As a person writes it: ``tokens-per-minute``."""
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
    """Its part of a busy function, against other tenants' weights."""
    priority: int | None = None
    """Best class that its requests may have, 0 (first) to 9; None: the function's."""
    functions: tuple[str, ...] = ()
    """Those that it may call; empty: every one."""
    quotas: Quotas = Quotas()


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtRule:
    """Which JSON Web Tokens (RFC 7519) a function takes."""

    jwks: str
    """Where the issuer's keys are (RFC 7517): the absolute path of a file, or a URL."""
    issuer: str
    """``iss`` must be this."""
    audience: tuple[str, ...]
    """``aud`` must name one of these."""
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    tenant_claim: str | None = None
    """The claim that names the tenant; None: every valid token may call, and stands for no tenant."""
    leeway_s: float = 60.0
    """By which the clocks of issuer and gateway may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRule:
    """Who may call a function: with an API key of a tenant, with a token, or with either."""

    api_keys: bool = False
    jwt: JwtRule | None = None
    forward_credential: bool = False
    """Whether the model server sees what the caller proved itself with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySet:
    """An issuer's public keys. No ``keys``: they have not been read yet."""

    source: str
    """``JwtRule.jwks``."""
    keys: tuple[str, ...] = ()
    """Each a JSON Web Key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSeen:
    """What one gateway worker has counted of a tenant. Cumulative."""

    tenant: str
    requests: int
    """Admitted; those that were refused are apart."""
    inferences: int
    tokens: int
    refused: int
    """For a quota that was spent."""


def digest(key: bytes) -> str:
    """By what an API key is known."""
    return hashlib.sha256(key).hexdigest()
