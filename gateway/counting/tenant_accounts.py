"""What a tenant may take, and has taken: its budgets, what a request reserves of them, and what it is told when one is
spent.

A request reserves before it is routed: itself, its inferences, the tokens that it is expected to take, and its place
among the tenant's requests at the same time. At its end each is settled with what it really was; what no replica began
gives all back.
"""

import math
from dataclasses import dataclass
from typing import Final

from tidegate.flow.quota import Budget, Reservation
from tidegate.records.tenants import QuotaLimit, Tenant, TenantSeen

MAX_WAITING: Final = 4096
"""Requests of a worker that wait at once to hear from the pool; more are told to come back. Our choice."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a request takes; ``tokens``: 0 where its protocol has none."""

    requests: int
    inferences: int
    tokens: int
    prompt: int = 0
    """Of the tokens that are expected, those of the prompt."""

    def of(self, unit: str) -> int:
        return 1 if unit == "concurrency" else int(getattr(self, unit))

    def reserved(self, limit: QuotaLimit) -> int:
        """Of a quota. How long an answer will be is a guess: it takes all of a quota at most, because a request that
        was refused for it would be refused for ever, and could not show that the guess is wrong."""
        amount = self.of(limit.unit)
        return min(amount, max(limit.amount, self.prompt)) if limit.unit == "tokens" else amount


NOTHING: Final = Use(0, 0, 0)


Takes = list[tuple[QuotaLimit, Budget, int]]
"""What a request takes of which budget."""


class Account:
    """A tenant as one gateway worker knows it; also the callers that no tenant stands for, under no name."""

    __slots__ = (
        "best",
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
        """Requests by the name of the quota that was spent."""
        self.take(tenant)

    def take(self, tenant: Tenant) -> None:
        """The terms that hold from now on."""
        self.weight = tenant.weight
        self.priority = tenant.priority
        """Class of requests that state none; None: the function's."""
        self.best = tenant.priority or 0
        """No request of it goes before this class."""
        self.functions = frozenset(tenant.functions)
        """Empty: every one."""
        self.budgets = tuple(
            (limit, Budget(f"{tenant.name}/{limit.unit}", limit.amount, limit.window_s))
            for limit in tenant.quotas.limits()
        )

    def may_call(self, function: str) -> bool:
        return not self.functions or function in self.functions

    def wanted(self, use: Use) -> Takes:
        """What of which budget a request reserves."""
        return [(limit, budget, amount) for limit, budget in self.budgets if (amount := use.reserved(limit))]

    def refuse(self, limit: QuotaLimit) -> None:
        """A request met a spent quota."""
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
        return f"<Account {self.name or 'of nobody'}: {self.requests} requests, {len(self.budgets)} budgets>"


@dataclass(frozen=True, slots=True)
class Held:
    """What a request under way has reserved."""

    account: Account
    units: tuple[str, ...] = ()
    reservations: tuple[Reservation, ...] = ()

    def settled(self, use: Use) -> list[tuple[Reservation, int]]:
        """Each reservation with what it really took; those that took just that are left out."""
        found = []
        for unit, reservation in zip(self.units, self.reservations, strict=True):
            real = 0 if unit == "concurrency" else use.of(unit)
            if real != reservation.amount:
                found.append((reservation, real))
        return found


def refusal(account: Account, limit: QuotaLimit, amount: int, retry_after_s: float) -> tuple[str, bytes]:
    """What a client is told about a spent quota: a sentence, and header lines.

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
    """A quota as a person says it."""
    if limit.unit == "concurrency":
        return f"{limit.amount} requests at the same time"
    return f"{limit.amount} {limit.unit} per {limit.window}"
