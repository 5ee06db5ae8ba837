"""Who calls, whether he may, and what of his quotas it takes: what a request passes before the waiting room.

Nothing here costs a request to a function without ``access`` anything: the chain asks for the rule and goes on. Of what
callers prove themselves with only SHA-256 values are kept; what is refused is told without showing any of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Protocol

from tidegate import metrics
from tidegate.errors import NOT_ALLOWED, NOT_SERVABLE, QUOTA_EXCEEDED, UNAUTHENTICATED, ErrorKind
from tidegate.flow.quota import Budget, Reservation
from tidegate.gateway.access.credentials import FIELDS, CredentialError, Head, credential, looks_like_token
from tidegate.gateway.counting.tenant_accounts import MOST_WAITING, NOTHING, Account, Held, Takes, Use, refusal
from tidegate.records.route_table import RouteTable
from tidegate.records.tenants import AccessRule, JwtRule, KeySet, Tenant, TenantSeen
from tidegate.store.counters import Asking, Short, Wanted

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.gateway.access.jwt import Verifier
    from tidegate.gateway.routing.function import FunctionRouter
    from tidegate.gateway.routing.request_state import RequestState

RETRY_KEYS_S: Final = 2
"""When to come back where an issuer's keys have not been read yet."""


@dataclass(frozen=True, slots=True)
class Denial:
    """What a request is answered that goes no further."""

    kind: ErrorKind
    message: str
    extra: bytes = b""
    """Header lines."""


class QuotaCounters(Protocol):
    """Where quotas are reserved: :class:`tidegate.store.counters.Counters`."""

    @property
    def is_lost(self) -> bool: ...

    def try_all(self, wanted: Wanted) -> tuple[Reservation, ...] | Short | Asking: ...

    def settle(self, reservation: Reservation, real: int) -> None: ...


Answered = Callable[[tuple[Reservation, ...] | Short], None]
Ask = Callable[[Wanted, Asking, Answered], None]
"""Asks the pool in the background, and tells the answer."""
Again = Callable[["Exchange", "Denial | None"], None]
"""The pool has answered: the request goes on, or is denied."""


class _Door:
    """A function's rule, prepared."""

    __slots__ = ("rule", "verifier")

    def __init__(self, rule: AccessRule, verifier: "Verifier | None") -> None:
        self.rule = rule
        self.verifier = verifier


class AccessControl:
    """One per worker."""

    def __init__(
        self, *, wall: Callable[[], float], till: "Callable[[], QuotaCounters]", ask: Ask, again: Again
    ) -> None:
        """``wall``: Unix seconds; ``till`` is called once some tenant has a quota."""
        self._wall = wall
        self._open_till = till
        self._ask = ask
        self._again = again
        self._till: QuotaCounters | None = None
        self._tenants: tuple[Tenant, ...] = ()
        self._rules: dict[str, AccessRule] = {}
        self._key_sets: tuple[KeySet, ...] = ()
        self._doors: dict[str, _Door] = {}
        self._accounts: dict[str, Account] = {}
        self._by_key: dict[bytes, Account] = {}
        self._nobody = Account(Tenant(name=""))
        self.denied: dict[tuple[str, str], int] = {}
        """Requests by function and code of the failure."""
        self.unknown_keys: dict[str, int] = {}
        """Tokens signed with a key that a set does not have, by its source."""
        self.waiting = 0
        """Requests that wait to hear from the pool."""

    def apply(self, table: RouteTable) -> None:
        """Works from this table on; what it does not change is kept, with the tokens that are known."""
        rules = {route.name: route.access for route in table.functions if route.access is not None}
        if table.tenants != self._tenants:
            self._take_tenants(table.tenants)
            if self._till is None and any(tenant.quotas for tenant in table.tenants):
                self._till = self._open_till()  # now: a worker without requests counts among those who share
        if rules != self._rules or table.key_sets != self._key_sets:
            self._rules, self._key_sets = rules, table.key_sets
            self._open_doors()

    # --- who --------------------------------------------------------------------------------------------------------

    def enters(self, head: Head, ticket: "RequestState", front: "FunctionRouter") -> Denial | None:
        """Finds out who calls, and leaves it on the ticket; None: he may."""
        door = self._doors.get(front.name)
        if door is None:  # its body was long in coming, and the rule is another one now
            return self._deny(front, NOT_SERVABLE, "who may call it has just changed", b"retry-after: 1\r\n")
        try:
            given = credential(head)
        except CredentialError as error:
            return self._unproven(front, str(error), b"invalid_request")
        if given is None:
            return self._unproven(front, f"{front.name} asks who calls: {_ways(door.rule)}", b"")
        found = self._account(door, given, front)
        if isinstance(found, Denial):
            return found
        if not found.may_call(front.name):
            return self._deny(front, NOT_ALLOWED, f"tenant {found.name} may not call {front.name}")
        ticket.tenant = found
        if not door.rule.forward_credential:
            head.drop(*FIELDS)
        return None

    def _account(self, door: _Door, given: bytes, front: "FunctionRouter") -> Account | Denial:
        if door.rule.api_keys:
            found = self._by_key.get(sha256(given).digest())
            if found is not None:
                return found
        if door.verifier is None or (door.rule.api_keys and not looks_like_token(given)):
            return self._unproven(front, "the API key is not known here", b"invalid_token")
        return self._of_token(door.verifier, given, front)

    def _of_token(self, verifier: "Verifier", given: bytes, front: "FunctionRouter") -> Account | Denial:
        from tidegate.gateway.access.jwt import NoKeysError, TokenError, UnknownKeyError

        try:
            proven = verifier.verify(given, self._wall())
        except NoKeysError as error:
            retry = b"retry-after: %d\r\n" % RETRY_KEYS_S
            return self._deny(front, NOT_SERVABLE, f"the token cannot be checked: {error}", retry)
        except TokenError as error:
            if isinstance(error, UnknownKeyError):
                source = verifier.rule.jwks
                self.unknown_keys[source] = self.unknown_keys.get(source, 0) + 1
            return self._unproven(front, f"the token is not accepted: {error}", b"invalid_token")
        if proven.tenant is None:
            return self._nobody
        found = self._accounts.get(proven.tenant)
        return found or self._deny(front, NOT_ALLOWED, "the token names a tenant that is not known here")

    def _unproven(self, front: "FunctionRouter", message: str, code: bytes) -> Denial:
        """RFC 6750, section 3: a request without a credential is told no code."""
        error = b', error="%b"' % code if code else b""
        return self._deny(front, UNAUTHENTICATED, message, b'www-authenticate: Bearer realm="tidegate"%b\r\n' % error)

    def _deny(self, front: "FunctionRouter", kind: ErrorKind, message: str, extra: bytes = b"") -> Denial:
        name = (front.name, kind.code)
        self.denied[name] = self.denied.get(name, 0) + 1
        return Denial(kind, message, extra)

    # --- how much ---------------------------------------------------------------------------------------------------

    def charges(self, ex: "Exchange", ticket: "RequestState", account: Account) -> "Denial | bool":
        """Reserves what the request takes. True: it goes on; False: it waits for the pool, and ``again`` follows."""
        tokens = ticket.tokens
        use = Use(1, ex.inferences, 0)
        if tokens is not None:
            use = Use(1, ex.inferences, tokens.expected, tokens.prompt_estimate)
        wanted = account.wanted(use) if account.budgets else []
        if not wanted:
            return self._taken(ticket, account, wanted, ())
        till = self._till
        assert till is not None, "it came with the first tenant who has quotas"
        verdict = till.try_all(_pairs(wanted))
        if isinstance(verdict, Asking):
            return self._waits(ex, ticket, account, wanted, verdict, till)
        return self._decided(ticket, account, wanted, verdict)

    def settle(self, ex: "Exchange", ticket: "RequestState", held: Held, *, was_bound: bool) -> None:
        """A request has ended: what no replica began gives all back. ``was_bound``: while it was with a replica."""
        tokens = ticket.tokens
        use = NOTHING
        if was_bound or ticket.is_exposed:
            use = Use(1, ex.inferences, 0 if tokens is None else tokens.total)
        account = held.account
        account.inferences += use.inferences
        account.tokens += use.tokens
        if self._till is not None:
            for reservation, real in held.settled(use):
                self._till.settle(reservation, real)

    def _waits(
        self,
        ex: "Exchange",
        ticket: "RequestState",
        account: Account,
        wanted: Takes,
        asking: Asking,
        till: QuotaCounters,
    ) -> "Denial | bool":
        if self.waiting >= MOST_WAITING:
            for reservation in asking.held:
                till.settle(reservation, 0)
            return self._spent(account, wanted, Short(len(asking.held), 1.0))

        def answered(verdict: tuple[Reservation, ...] | Short) -> None:
            self.waiting -= 1
            if not ex.ended:
                found = self._decided(ticket, account, wanted, verdict)
                self._again(ex, found if isinstance(found, Denial) else None)
            elif not isinstance(verdict, Short):  # it has ended meanwhile
                for reservation in verdict:
                    till.settle(reservation, 0)

        self.waiting += 1
        self._ask(_pairs(wanted), asking, answered)
        return False

    def _decided(
        self, ticket: "RequestState", account: Account, wanted: Takes, verdict: tuple[Reservation, ...] | Short
    ) -> "Denial | bool":
        if isinstance(verdict, Short):
            return self._spent(account, wanted, verdict)
        return self._taken(ticket, account, wanted, verdict)

    def _taken(
        self, ticket: "RequestState", account: Account, wanted: Takes, reservations: tuple[Reservation, ...]
    ) -> bool:
        account.requests += 1
        ticket.held = Held(account, tuple(limit.unit for limit, _, _ in wanted), reservations)
        return True

    def _spent(self, account: Account, wanted: Takes, short: Short) -> Denial:
        limit, _, amount = wanted[short.at]
        account.refuse(limit)
        return Denial(QUOTA_EXCEEDED, *refusal(account, limit, amount, short.retry_after_s))

    # --- what is told -----------------------------------------------------------------------------------------------

    @property
    def is_lost(self) -> bool:
        """Whether quotas are this worker's even part of them."""
        return self._till is not None and self._till.is_lost

    def seen(self) -> tuple[TenantSeen, ...]:
        """What was counted of the tenants that have called."""
        return tuple(each.seen() for each in self._accounts.values() if each.requests or each.refused)

    def expose(self, into: metrics.Exposition, worker: str) -> None:
        """Adds the present values to a scrape; only tenants of the tenants' file have lines of their own."""
        into.add(metrics.GATEWAY_QUOTAS_LOCAL, (worker,), int(self.is_lost))
        for (function, code), count in self.denied.items():
            into.add(metrics.GATEWAY_DENIED, (function, code), count)
        for account in self._accounts.values():
            if not (account.requests or account.refused):
                continue
            labels = (account.name,)
            into.add(metrics.GATEWAY_TENANT_REQUESTS, labels, account.requests)
            into.add(metrics.GATEWAY_TENANT_INFERENCES, labels, account.inferences)
            into.add(metrics.GATEWAY_TENANT_TOKENS, labels, account.tokens)
            for name, count in account.refused.items():
                into.add(metrics.GATEWAY_TENANT_REFUSED, (account.name, name), count)

    # --- preparation ------------------------------------------------------------------------------------------------

    def _take_tenants(self, tenants: tuple[Tenant, ...]) -> None:
        self._tenants = tenants
        before, self._accounts, self._by_key = self._accounts, {}, {}
        for tenant in tenants:
            account = before.get(tenant.name)
            if account is None:
                account = Account(tenant)
            else:
                account.take(tenant)
            self._accounts[tenant.name] = account
            for key in tenant.keys:
                self._by_key[bytes.fromhex(key)] = account

    def _open_doors(self) -> None:
        """Rules with the same tokens share what is known of them."""
        sets = {each.source: each for each in self._key_sets}
        wanted = {rule.jwt for rule in self._rules.values() if rule.jwt is not None}
        verifiers = {rule: _verifier(rule, sets.get(rule.jwks, KeySet(source=rule.jwks))) for rule in wanted}
        self._doors = {
            name: _Door(rule, None if rule.jwt is None else verifiers[rule.jwt]) for name, rule in self._rules.items()
        }
        self.denied = {name: count for name, count in self.denied.items() if name[0] in self._doors}
        self.unknown_keys = {source: count for source, count in self.unknown_keys.items() if source in sets}

    def __repr__(self) -> str:
        return f"<Gate {len(self._doors)} doors, {len(self._accounts)} tenants, {self.waiting} wait for the pool>"


def _verifier(rule: JwtRule, keys: KeySet) -> "Verifier":
    from tidegate.gateway.access.jwt import Verifier  # the library comes with the first function that takes tokens

    return Verifier(rule, keys)


def _pairs(wanted: Takes) -> list[tuple[Budget, int]]:
    return [(budget, amount) for _, budget, amount in wanted]


def _ways(rule: AccessRule) -> str:
    ways = ["an API key"] if rule.api_keys else []
    ways += ["a token"] if rule.jwt is not None else []
    return f"send {' or '.join(ways)} in authorization (Bearer) or x-api-key"
