"""Accounts of tenants: their budgets, what a request reserves, what it has used, and the refusal by a spent quota.

A request reserves before it is routed: one request, its inferences, the tokens that it is expected to use, and a place
among the tenant's concurrent requests. At its end each reservation is settled with the real amount. A request that no
replica began gives everything back.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from tidegate.flow.quota import Budget, Reservation
from tidegate.records.tenants import QuotaLimit, Tenant, TenantSeen, TenantUse

MAX_WAITING: Final = 4096
"""Requests of a worker that wait at once for the quota pool; further ones are refused with a retry time. Our choice."""


@dataclass(frozen=True, slots=True)
class Use:
    """The amounts that a request uses; ``tokens`` is 0 if its protocol has none."""

    requests: int
    inferences: int
    tokens: int
    prompt: int = 0
    """The prompt's part of the expected tokens."""

    def of(self, unit: str) -> int:
        return 1 if unit == "concurrency" else int(getattr(self, unit))

    def reserved(self, limit: QuotaLimit) -> int:
        """Returns the amount that is reserved of a quota.

        The length of an answer is a guess. It takes at most all of a quota, because a request that was refused for it
        would be refused for ever and could not show that the guess is wrong.
        """
        amount = self.of(limit.unit)
        return min(amount, max(limit.amount, self.prompt)) if limit.unit == "tokens" else amount


NOTHING: Final = Use(0, 0, 0)


Takes = list[tuple[QuotaLimit, Budget, int]]
"""The amounts of each budget that a request reserves."""


class Account:
    """A tenant as one gateway worker knows it; also, under no name, the authenticated callers without a tenant."""

    __slots__ = (
        "budgets",
        "functions",
        "inferences",
        "is_configured",
        "name",
        "priority",
        "refused",
        "requests",
        "tokens",
        "weight",
    )

    def __init__(self, tenant: Tenant) -> None:
        self.name = tenant.name
        self.requests = self.inferences = self.tokens = 0
        self.refused: dict[str, int] = {}
        """Refused requests by the name of the spent quota."""
        self.take(tenant)

    def take(self, tenant: Tenant) -> None:
        """Takes over the terms that hold from now on."""
        self.weight = tenant.weight
        self.priority = tenant.priority
        """The best priority class that a request of the tenant can have; None if that is the function's."""
        self.functions = frozenset(tenant.functions)
        """The functions that it may call; empty if it may call every function."""
        self.budgets = tuple(
            (limit, Budget(f"{tenant.name}/{limit.unit}", limit.amount, limit.window_s))
            for limit in tenant.quotas.limits()
        )

    def may_call(self, function: str) -> bool:
        return not self.functions or function in self.functions

    def wanted(self, use: Use) -> Takes:
        """Returns the amounts of each budget that a request reserves."""
        return [(limit, budget, amount) for limit, budget in self.budgets if (amount := use.reserved(limit))]

    def refuse(self, limit: QuotaLimit) -> None:
        """Counts a request that met a spent quota."""
        self.refused[limit.name] = self.refused.get(limit.name, 0) + 1

    def seen(self) -> TenantSeen:
        return TenantSeen(
            tenant=self.name,
            requests=self.requests,
            inferences=self.inferences,
            tokens=self.tokens,
            refused=sum(self.refused.values()),
        )

    def __repr__(self) -> str:
        return f"<Account {self.name or 'without a tenant'}: {self.requests} requests, {len(self.budgets)} budgets>"


class UseCounters:
    """Use of one function by one tenant (``TenantUse`` has the meanings)."""

    __slots__ = ("inferences", "requests", "slot_s", "tokens")

    def __init__(self) -> None:
        self.requests = self.inferences = self.tokens = 0
        self.slot_s = 0.0

    def seen(self, function: str, tenant: str) -> TenantUse:
        """Returns the present values as a record."""
        return TenantUse(
            function=function,
            tenant=tenant,
            requests=self.requests,
            inferences=self.inferences,
            tokens=self.tokens,
            slot_s=self.slot_s,
        )


@dataclass(frozen=True, slots=True)
class Held:
    """The reservations of a running request."""

    account: Account
    units: tuple[str, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    inferences: int = 0
    """Inferences found in the rest of its body, if they are more than were reserved."""

    def charging(self, inferences: int) -> "Held":
        """Returns the same reservations for a request that turned out to carry at least so many inferences."""
        return replace(self, inferences=max(self.inferences, inferences))

    def settled(self, use: Use) -> list[tuple[Reservation, int]]:
        """Returns each reservation with the amount really used; reservations that used exactly theirs are left out."""
        found = []
        for unit, reservation in zip(self.units, self.reservations, strict=True):
            real = 0 if unit == "concurrency" else use.of(unit)
            if real != reservation.amount:
                found.append((reservation, real))
        return found


def refusal(account: Account, limit: QuotaLimit, amount: int, retry_after_s: float) -> tuple[str, bytes]:
    """Returns the response to a request over quota: a sentence, and header lines.

    The lines are those of RFC 9110 (section 10.2.3) and, since clients of its API read them, OpenAI's ``x-ratelimit-``.
    """
    quota = f"tenant {account.name}: its quota of {words(limit)}"
    if math.isinf(retry_after_s):
        return f"{quota} is less than this request needs ({amount})", b""
    wait_s = max(1, math.ceil(retry_after_s))
    lines = b"retry-after: %d\r\n" % wait_s
    if limit.unit == "concurrency":
        return f"{quota} is in use; try again when one has ended", lines
    name = limit.unit.encode()
    lines += b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: 0\r\nx-ratelimit-reset-%b: %ds\r\n" % (
        name,
        limit.amount,
        name,
        name,
        wait_s,
    )
    return f"{quota} is spent; it is whole again in {wait_s} s", lines


def words(limit: QuotaLimit) -> str:
    """Returns a quota in words."""
    if limit.unit == "concurrency":
        return f"{limit.amount} requests at the same time"
    return f"{limit.amount} {limit.unit} per {limit.window}"
