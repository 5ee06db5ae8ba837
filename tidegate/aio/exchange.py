"""One request between a client side and an upstream side: state, retry, deadline, accounting exactly once.

An application (gateway chain, queue_proxy) implements :class:`ProxyApp`. All its methods are synchronous, run on
the event loop, must be quick and must not raise. Order of calls for one exchange::

    start ──> [upstream_failed | expired]* ──> answering ──> finished          (forwarded)
    start ──> finished                                                         (answered with respond or fail)
    start ──> abandoned ──> finished                                           (client went away)

``body_started`` may come once after ``start``, when head and body arrive apart.

``finished`` comes exactly once, whatever happened. All times are seconds of ``time.monotonic``.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.errors import ErrorKind, Executed
from tidegate.wire.head import RequestHead, ResponseHead

if TYPE_CHECKING:
    from tidegate.aio.upstream import UpstreamPool


class ProxyApp(Protocol):
    """What decides about requests. See the module head for the order of calls."""

    def start(self, ex: "Exchange") -> None:
        """A head (and perhaps some or all of the body) is there.

        Now or later exactly one of ``ex.forward``, ``ex.respond``, ``ex.fail``, ``ex.upgrade``. Until then the
        request waits; up to 256 KB of its body are buffered, then reading pauses.
        """

    def body_started(self, ex: "Exchange") -> None:
        """The first bytes of the body came after ``start``, and the request is neither forwarded nor answered yet.

        Many clients send head and body apart; what tells a request's size (V2's shape) is in the body. Called at
        most once. Not called when ``start`` already saw body bytes.
        """

    def abandoned(self, ex: "Exchange") -> None:
        """The client went away before its answer was complete; the upstream connection is already aborted."""

    def expired(self, ex: "Exchange") -> None:
        """``ex.deadline`` passed before the first response byte; the upstream connection is already aborted.

        The usual action is ``ex.fail(DEADLINE, ...)``. An app that answers nothing gets the engine's own 504.
        """

    def answering(self, ex: "Exchange", head: ResponseHead) -> bytes | None:
        """The upstream's final head is there. Returns header lines to add (``b"name: value\\r\\n"``..., or b"").

        ``head.drop(...)`` removes fields. None takes the answer back (only if ``ex.replayable``): the client sees
        nothing, the exchange waits again, and the app forwards or answers it now or later.
        """

    def upstream_failed(self, ex: "Exchange", sent: bool, why: str) -> None:
        """Connecting failed (``sent`` False) or the connection died before any response byte.

        The app forwards again (``ex.may_retry(sent, idempotent)`` says whether the rules allow it) or fails.
        """

    def finished(self, ex: "Exchange") -> None:
        """The end, exactly once: ``ex.status`` (499: client gone), ``ex.ended``, ``ex.bytes_in/bytes_out``."""


class Exchange:
    """One request and its answer."""

    __slots__ = (
        "app",
        "attempts",
        "body_complete",
        "bytes_in",
        "bytes_out",
        "complete",
        "context",
        "deadline",
        "ended",
        "first_byte",
        "head",
        "inferences",
        "received",
        "status",
    )

    head: RequestHead
    received: float
    """When the head was complete."""
    deadline: float
    """Bounds waiting and the time to the first response byte."""
    ended: float
    """When the last byte was handed to the client's transport; 0.0 while running."""
    first_byte: float
    """When the answer's head was handed to the client's transport; 0.0 before."""
    context: Any
    """The app's own state of this request; None at start."""
    inferences: int
    """Set by the app; 1 at start."""
    status: int
    """Final status; 0 before, 499 when the client went away."""
    body_complete: bool
    complete: bool
    """At the end: the whole answer was handed to the client's transport; False: client gone or answer cut off."""
    bytes_in: int
    """Body bytes received from the client."""
    bytes_out: int
    """Body bytes sent to the client."""
    attempts: int
    """How often it was forwarded."""
    app: ProxyApp

    @property
    def body(self) -> bytes:
        """The body received so far, as long as it is kept (256 KB)."""
        raise RuntimeError("not built yet")

    @property
    def replayable(self) -> bool:
        """Every body byte received so far is still kept and the client has seen nothing of an answer."""
        raise RuntimeError("not built yet")

    @property
    def peer(self) -> bytes:
        """Address of the client without port; b"unix" on a unix socket."""
        raise RuntimeError("not built yet")

    @property
    def trusted(self) -> bool:
        """Whether the peer is in the trusted networks."""
        raise RuntimeError("not built yet")

    def may_retry(self, sent: bool, idempotent: bool) -> bool:
        """The engine's rule for one retry: replayable, first attempt, and (nothing was sent, or ``idempotent``, or
        a reused connection died without a byte under an idempotent method)."""
        raise RuntimeError("not built yet")

    def forward(
        self, pool: "UpstreamPool", extra: bytes = b"", *, target: bytes | None = None, hold: bool = False
    ) -> None:
        """Sends the request to a connection of ``pool``.

        ``extra``: header lines to add (``b"name: value\\r\\n"``...). ``target`` replaces the request target.
        ``hold``: body bytes beyond the 256 KB buffer flow only after the upstream's 100 (slots.md section 3.2).
        """
        raise RuntimeError("not built yet")

    def proceed(self) -> None:
        """Answers ``Expect: 100-continue`` with 100 now, instead of waiting for the upstream's; no-op without it."""
        raise RuntimeError("not built yet")

    def respond(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: bytes = b"application/json",
        extra: bytes = b"",
        close: bool = False,
    ) -> None:
        """Answers the request from here."""
        raise RuntimeError("not built yet")

    def fail(
        self,
        kind: ErrorKind,
        message: str,
        *,
        function: str | None = None,
        executed: Executed = Executed.FALSE,
        request_id: str | None = None,
        extra: bytes = b"",
    ) -> None:
        """Answers with the JSON error shape of ``tidegate.errors``."""
        raise RuntimeError("not built yet")

    def upgrade(self, factory: Callable[[], asyncio.Protocol], fields: bytes = b"") -> asyncio.Protocol:
        """Answers 101 to ``head.upgrade`` and hands the transport to a new protocol of ``factory``.

        The protocol gets ``connection_made`` and, if bytes followed the request, ``data_received``. The exchange
        is finished with status 101.
        """
        raise RuntimeError("not built yet")

    def set_deadline(self, when: float) -> None:
        """Moves the deadline (seconds of ``time.monotonic``)."""
        raise RuntimeError("not built yet")
