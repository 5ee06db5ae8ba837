"""Authentication, authorisation and quota checks, made before a request enters the waiting room.

A request to a function without ``access`` costs nothing here: the chain sees that there is no rule and goes on. Only
SHA-256 digests of credentials are kept. A refusal never shows any part of the credential.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from tidegate import metrics
from tidegate.errors import NOT_ALLOWED, NOT_SERVABLE, QUOTA_EXCEEDED, UNAUTHENTICATED, ErrorKind
from tidegate.flow.quota import Budget, Reservation
from tidegate.gateway.access.credentials import (
    FIELDS,
    CredentialError,
    Head,
    NoKeysError,
    TokenError,
    UnknownKeyError,
    credential,
    looks_like_token,
)
from tidegate.gateway.counting.tenant_accounts import (
    MAX_WAITING,
    NOTHING,
    Account,
    Held,
    Takes,
    Use,
    UseCounters,
    refusal,
)
from tidegate.records.costs import OTHER_TENANTS
from tidegate.records.route_table import RouteTable
from tidegate.records.tenants import AccessRule, JwtRule, KeySet, Tenant, TenantSeen, TenantUse
from tidegate.store.counters import Asking, ShortBudget

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange
    from tidegate.gateway.access.jwt import Verifier
    from tidegate.gateway.access.quota_pool import AskPool, QuotaCounters
    from tidegate.gateway.routing.function import FunctionRouter
    from tidegate.gateway.routing.request_state import RequestState

RETRY_KEYS_S: Final = 2
"""``Retry-After`` while an issuer's keys have not been read yet."""
MAX_USES: Final = 1024
"""Pairs of function and tenant that a worker counts by themselves; further tenants of a function count together. Our
choice."""


@dataclass(frozen=True, slots=True)
class Denial:
    """The error response of a request that was denied."""

    kind: ErrorKind
    message: str
    extra: bytes = b""
    """Header lines."""


OnQuotaDecided = Callable[["Exchange", Denial | None], None]
"""Called once the pool has decided: the request goes on (None) or is denied."""


class _FunctionAccess:
    """The compiled access rule of one function."""

    __slots__ = ("rule", "verifier")

    def __init__(self, rule: AccessRule, verifier: "Verifier | None") -> None:
        self.rule = rule
        self.verifier = verifier


class AccessControl:
    """Access rules, tenants and quotas of one worker."""

    def __init__(
        self,
        *,
        wall: Callable[[], float],
        open_quota_counters: "Callable[[], QuotaCounters]",
        ask_pool: "AskPool",
    ) -> None:
        """``wall`` returns Unix seconds; ``open_quota_counters`` is called once, when the first tenant has a quota."""
        self._wall = wall
        self._open_quota_counters = open_quota_counters
        self._ask_pool = ask_pool
        self._quota_counters: QuotaCounters | None = None
        self._tenants: tuple[Tenant, ...] = ()
        self._rules: dict[str, AccessRule] = {}
        self._key_sets: tuple[KeySet, ...] = ()
        self._functions: dict[str, _FunctionAccess] = {}
        self._accounts: dict[str, Account] = {}
        self._by_key: dict[bytes, Account] = {}
        self._no_tenant = Account(Tenant(name=""))
        self._uses: dict[tuple[str, str], UseCounters] = {}
        """By function and tenant."""
        self.denied: dict[tuple[str, str], int] = {}
        """Denied requests by function and error code."""
        self.unknown_keys: dict[str, int] = {}
        """Tokens signed with a key that the key set does not contain, by the source of the set."""
        self.waiting = 0
        """Requests that wait for a decision of the pool."""

    def apply(self, table: RouteTable) -> None:
        """Takes over a route table. Unchanged parts and their verified tokens are kept."""
        rules = {route.name: route.access for route in table.functions if route.access is not None}
        if table.tenants != self._tenants:
            self._take_tenants(table.tenants)
            if self._quota_counters is None and any(tenant.quotas for tenant in table.tenants):
                # Now, not with the first request: a worker without requests counts among those that share.
                self._quota_counters = self._open_quota_counters()
        if rules != self._rules or table.key_sets != self._key_sets:
            self._rules, self._key_sets = rules, table.key_sets
            self._compile_rules()

    # --- authentication and authorisation ---------------------------------------------------------------------------

    def check_caller(self, head: Head, state: "RequestState", router: "FunctionRouter") -> Denial | None:
        """Identifies the caller and sets ``state.tenant``. Returns None if the caller may call the function."""
        access = self._functions.get(router.name)
        if access is None:  # The rule changed while the body of the request was read.
            return self._deny(router, NOT_SERVABLE, "who may call it has just changed", b"retry-after: 1\r\n")
        try:
            given = credential(head)
        except CredentialError as error:
            return self._unauthenticated(router, str(error), b"invalid_request")
        if given is None:
            return self._unauthenticated(router, f"{router.name} asks who calls: {_ways(access.rule)}", b"")
        found = self._account(access, given, router)
        if isinstance(found, Denial):
            return found
        if not found.may_call(router.name):
            return self._deny(router, NOT_ALLOWED, f"tenant {found.name} may not call {router.name}")
        state.tenant = found
        if not access.rule.forward_credential:
            head.drop(*FIELDS)
        return None

    def _account(self, access: _FunctionAccess, given: bytes, router: "FunctionRouter") -> Account | Denial:
        if access.rule.api_keys:
            found = self._by_key.get(sha256(given).digest())
            if found is not None:
                return found
        if access.verifier is None or (access.rule.api_keys and not looks_like_token(given)):
            return self._unauthenticated(router, "the API key is not known here", b"invalid_token")
        return self._account_of_token(access.verifier, given, router)

    def _account_of_token(self, verifier: "Verifier", given: bytes, router: "FunctionRouter") -> Account | Denial:
        try:
            proven = verifier.verify(given, self._wall())
        except NoKeysError as error:
            retry = b"retry-after: %d\r\n" % RETRY_KEYS_S
            return self._deny(router, NOT_SERVABLE, f"the token cannot be checked: {error}", retry)
        except TokenError as error:
            if isinstance(error, UnknownKeyError):
                source = verifier.rule.jwks
                self.unknown_keys[source] = self.unknown_keys.get(source, 0) + 1
            return self._unauthenticated(router, f"the token is not accepted: {error}", b"invalid_token")
        if proven.tenant is None:
            return self._no_tenant
        found = self._accounts.get(proven.tenant)
        return found or self._deny(router, NOT_ALLOWED, "the token names a tenant that is not known here")

    def _unauthenticated(self, router: "FunctionRouter", message: str, code: bytes) -> Denial:
        """Returns a 401. Without a credential in the request the challenge has no error code (RFC 6750, section 3)."""
        error = b', error="%b"' % code if code else b""
        return self._deny(router, UNAUTHENTICATED, message, b'www-authenticate: Bearer realm="tidegate"%b\r\n' % error)

    def _deny(self, router: "FunctionRouter", kind: ErrorKind, message: str, extra: bytes = b"") -> Denial:
        name = (router.name, kind.code)
        self.denied[name] = self.denied.get(name, 0) + 1
        return Denial(kind, message, extra)

    # --- quotas -----------------------------------------------------------------------------------------------------

    def reserve(
        self, ex: "Exchange", state: "RequestState", account: Account, on_decided: OnQuotaDecided
    ) -> Denial | bool:
        """Reserves the quotas that the request needs. Returns True if it goes on, or its denial.

        Returns False if the pool has to be asked: the request waits, and ``on_decided`` is called later.
        """
        tokens = state.tokens
        use = Use(1, ex.inferences, 0)
        if tokens is not None:
            use = Use(1, ex.inferences, tokens.expected, tokens.prompt_estimate)
        wanted = account.wanted(use) if account.budgets else []
        if not wanted:
            return self._take(state, account, wanted, ())
        counters = self._quota_counters
        assert counters is not None, "it was opened for the first tenant with quotas"
        verdict = counters.try_all(_pairs(wanted))
        if isinstance(verdict, Asking):
            return self._wait_for_pool(ex, state, account, wanted, verdict, counters, on_decided)
        return self._decide(state, account, wanted, verdict)

    def settle(self, ex: "Exchange", state: "RequestState", held: Held, *, was_bound: bool, is_answered: bool) -> None:
        """Settles the reservations of a request that has ended; those of a request that no replica began are returned.

        ``was_bound``: it ended while a replica had it. ``is_answered``: with a whole answer below 500.
        """
        tokens = state.tokens
        use = NOTHING
        if was_bound or state.may_have_run:
            use = Use(1, max(ex.inferences, held.inferences), 0 if tokens is None else tokens.total)
        account = held.account
        account.inferences += use.inferences
        account.tokens += use.tokens
        router = state.target.router
        if was_bound and router is not None:
            count = self._uses.get((router.name, account.name)) or self._new_use(router.name, account.name)
            count.slot_s += ex.ended - state.bound_at
            count.tokens += use.tokens
            if is_answered:
                count.requests += 1
                count.inferences += use.inferences
        if self._quota_counters is not None:
            for reservation, real in held.settled(use):
                self._quota_counters.settle(reservation, real)

    def _new_use(self, function: str, tenant: str) -> UseCounters:
        """Returns the counters of a pair that has none, or those of the other tenants if there are too many pairs."""
        if len(self._uses) >= MAX_USES:
            if (others := self._uses.get((function, OTHER_TENANTS))) is not None:
                return others
            self._uses = {pair: each for pair, each in self._uses.items() if pair[0] in self._functions}
            if len(self._uses) >= MAX_USES:
                tenant = OTHER_TENANTS
        return self._uses.setdefault((function, tenant), UseCounters())

    def _wait_for_pool(
        self,
        ex: "Exchange",
        state: "RequestState",
        account: Account,
        wanted: Takes,
        asking: Asking,
        counters: "QuotaCounters",
        on_decided: OnQuotaDecided,
    ) -> Denial | bool:
        if self.waiting >= MAX_WAITING:
            for reservation in asking.held:
                counters.settle(reservation, 0)
            return self._refuse(account, wanted, ShortBudget(len(asking.held), 1.0))

        def decided(verdict: tuple[Reservation, ...] | ShortBudget) -> None:
            self.waiting -= 1
            if not ex.ended:
                found = self._decide(state, account, wanted, verdict)
                on_decided(ex, found if isinstance(found, Denial) else None)
            elif not isinstance(verdict, ShortBudget):  # The request has ended meanwhile.
                for reservation in verdict:
                    counters.settle(reservation, 0)

        self.waiting += 1
        self._ask_pool(_pairs(wanted), asking, decided)
        return False

    def _decide(
        self, state: "RequestState", account: Account, wanted: Takes, verdict: tuple[Reservation, ...] | ShortBudget
    ) -> Denial | bool:
        if isinstance(verdict, ShortBudget):
            return self._refuse(account, wanted, verdict)
        return self._take(state, account, wanted, verdict)

    def _take(
        self, state: "RequestState", account: Account, wanted: Takes, reservations: tuple[Reservation, ...]
    ) -> bool:
        account.requests += 1
        state.held = Held(account, tuple(limit.unit for limit, _, _ in wanted), reservations)
        return True

    def _refuse(self, account: Account, wanted: Takes, short: ShortBudget) -> Denial:
        limit, _, amount = wanted[short.at]
        account.refuse(limit)
        return Denial(QUOTA_EXCEEDED, *refusal(account, limit, amount, short.retry_after_s))

    # --- reports ----------------------------------------------------------------------------------------------------

    @property
    def is_lost(self) -> bool:
        """The pool is lost, so the worker grants its even part of the quotas."""
        return self._quota_counters is not None and self._quota_counters.is_lost

    def seen(self) -> tuple[TenantSeen, ...]:
        """Returns the counters of all tenants that have called."""
        return tuple(each.seen() for each in self._accounts.values() if each.requests or each.refused)

    def uses(self) -> tuple[TenantUse, ...]:
        """Returns what callers with a credential have used, by function and tenant."""
        return tuple(each.seen(*pair) for pair, each in self._uses.items())

    def expose(self, into: metrics.Exposition, worker: str) -> None:
        """Adds the present values to a scrape; only tenants of the tenants' file get lines of their own."""
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

    def _compile_rules(self) -> None:
        """Compiles the access rules. Rules that accept the same tokens share one verifier and its memory."""
        sets = {each.source: each for each in self._key_sets}
        wanted = {rule.jwt for rule in self._rules.values() if rule.jwt is not None}
        verifiers = {rule: _verifier(rule, sets.get(rule.jwks, KeySet(source=rule.jwks))) for rule in wanted}
        self._functions = {
            name: _FunctionAccess(rule, None if rule.jwt is None else verifiers[rule.jwt])
            for name, rule in self._rules.items()
        }
        self.denied = {name: count for name, count in self.denied.items() if name[0] in self._functions}
        self.unknown_keys = {source: count for source, count in self.unknown_keys.items() if source in sets}

    def __repr__(self) -> str:
        return (
            f"<AccessControl {len(self._functions)} functions, {len(self._accounts)} tenants, "
            f"{self.waiting} wait for the pool>"
        )


def _verifier(rule: JwtRule, keys: KeySet) -> "Verifier":
    from tidegate.gateway.access.jwt import (
        Verifier,  # The library is imported for the first function that takes tokens.
    )

    return Verifier(rule, keys)


def _pairs(wanted: Takes) -> list[tuple[Budget, int]]:
    return [(budget, amount) for _, budget, amount in wanted]


def _ways(rule: AccessRule) -> str:
    ways = ["an API key"] if rule.api_keys else []
    ways += ["a token"] if rule.jwt is not None else []
    return f"send {' or '.join(ways)} in authorization (Bearer) or x-api-key"
