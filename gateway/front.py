"""What the request path needs of one function, prepared once per route table, and what it remembers across tables."""

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from gateway.hedging import Lateness
from gateway.report import RevisionCounters
from tidegate.flow.retry_budget import RetryBudget
from tidegate.function import Protocol
from tidegate.headers import INTERNAL_PREFIX
from tidegate.records import FunctionRoute, Spread
from tidegate.wire.head import RequestHead
from tidegate.wire.v2 import SEARCHED_BYTES, batch_size, shape_batch, stated_batch

if TYPE_CHECKING:
    from gateway.ticket import Ticket
    from tidegate.aio.exchange import Exchange

KEPT_LINES: Final = 64
"""Batch sizes whose header lines a function keeps ready."""

HashKey = Callable[["Exchange"], bytes | None]
"""What of a request decides about its replica under ``Spread.HASH``; None: it does not have it."""


class Memory:
    """What a worker remembers of a function while its route changes."""

    __slots__ = ("budget", "lateness")

    def __init__(self, now: float) -> None:
        self.budget = RetryBudget(now)
        self.lateness: Lateness[Ticket] = Lateness()


class Front:
    """One function as the front door sees it."""

    __slots__ = (
        "_batch_header",
        "_bounds",
        "_header_is_ours",
        "_lines",
        "_revisions",
        "_speaks_v2",
        "_token_line",
        "budget",
        "counters",
        "hash_key",
        "idempotent",
        "latency_s",
        "lateness",
        "max_batch",
        "name",
        "priority",
        "route",
        "timeout_s",
    )

    def __init__(self, route: FunctionRoute, memory: Memory, token_line: bytes = b"") -> None:
        """``token_line``: header line with which a queue_proxy knows this deployment's gateways."""
        self.route = route
        self.name = route.name
        self.timeout_s = route.timeout_s
        self.latency_s = route.latency_s
        self.max_batch = route.max_batch
        self.priority = route.priority
        self.idempotent = route.idempotent
        self.budget = memory.budget
        self.lateness = memory.lateness if route.idempotent and route.hedging is not None else None
        """Set where late requests get a second copy."""
        if route.hedging is not None:
            memory.lateness.follow(route.hedging)
        self.hash_key = hash_key(route.hash_on) if route.spread is Spread.HASH else None
        self.counters: RevisionCounters | None = None
        """Of the only revision that takes traffic, once it has."""
        self._token_line = token_line
        self._lines: dict[int, bytes] = {}
        self._batch_header = route.batch_header.lower().encode()
        self._header_is_ours = self._batch_header.startswith(INTERNAL_PREFIX)
        """A plain head does not have it."""
        self._speaks_v2 = route.protocol == Protocol.V2
        serving = [revision for revision in route.revisions if revision.percent > 0.0]
        self._revisions = tuple(revision.id for revision in serving)
        self._bounds = tuple(accumulate(revision.percent for revision in serving))

    @property
    def has_one_revision(self) -> bool:
        return len(self._revisions) == 1

    def revision(self, draw: float) -> str | None:
        """The revision that a draw in [0, 1) falls to, by the revisions' percent; None: none takes traffic."""
        revisions = self._revisions
        if not revisions:
            return None
        return revisions[min(bisect_right(self._bounds, draw * self._bounds[-1]), len(revisions) - 1)]

    def lines(self, inferences: int) -> bytes:
        """Header lines to a replica for a request with all of the function's timeout left."""
        lines = self._lines.get(inferences)
        if lines is None:
            lines = self.lines_with(inferences, self.timeout_s)
            if len(self._lines) < KEPT_LINES:
                self._lines[inferences] = lines
        return lines

    def lines_with(self, inferences: int, remaining_s: float) -> bytes:
        """The same with so much time left."""
        return b"%btidegate-timeout-ms: %d\r\ntidegate-batch-size: %d\r\n" % (
            self._token_line,
            max(1, int(remaining_s * 1000.0)),
            inferences,
        )

    def inferences(self, head: RequestHead, body: bytes) -> int:
        """How many inferences a request carries; 0: it states more than the function's ``max-batch``.

        What it states itself (header, V2 shape) counts as it is; an estimate from its length is at most ``max-batch``.
        """
        if not self._speaks_v2:
            body = b""
        if head.plain and self._header_is_ours:
            stated = shape_batch(body) if body else 0
        else:
            stated = stated_batch(head, body, self._batch_header)
        if stated:
            return stated if stated <= self.max_batch else 0
        route = self.route
        if route.bytes_per_item is None:
            return 1
        return batch_size(
            head,
            b"",
            header=self._batch_header,
            bytes_per_item=route.bytes_per_item,
            overhead_bytes=route.overhead_bytes,
            max_batch=route.max_batch,
        )

    def tells_size_in_body(self, head: RequestHead, body: bytes) -> bool:
        """Whether body bytes still to come may tell more than those that are there: V2 without a stated batch."""
        return (
            self._speaks_v2
            and len(body) < SEARCHED_BYTES
            and (head.chunked or bool(head.content_length))
            and not head.expect_continue
            and not stated_batch(head, body, self._batch_header)
        )

    @property
    def failure(self) -> str | None:
        """Why nothing of the function can be served now; None: something can, or may soon."""
        serving = [revision for revision in self.route.revisions if revision.percent > 0.0]
        failures = [revision.failure for revision in serving if revision.failure is not None]
        return failures[0] if serving and len(failures) == len(serving) else None

    def __repr__(self) -> str:
        return f"<Front {self.name}, revisions {', '.join(self._revisions) or 'none'}>"


def hash_key(rule: str) -> HashKey:
    """How ``hash_on`` is read: ``client``, ``header:NAME`` or ``cookie:NAME``."""
    source, _, name = rule.partition(":")
    if source == "header":
        field = name.lower().encode()
        return lambda ex: ex.head.get(field)
    if source == "cookie":
        cookie = name.encode()
        return lambda ex: _cookie(ex.head.get(b"cookie"), cookie)
    return _client


def _client(ex: "Exchange") -> bytes:
    """The client's address: what a trusted proxy says of it, else the peer's."""
    if ex.trusted:
        told = (ex.head.get(b"x-forwarded-for") or b"").partition(b",")[0].strip(b" \t")
        if told:
            return told
    return ex.peer


def _cookie(field: bytes | None, name: bytes) -> bytes | None:
    for pair in (field or b"").split(b";"):
        key, equals, value = pair.partition(b"=")
        if equals and key.strip(b" \t") == name:
            return value.strip(b" \t")
    return None
