"""CORS: which pages of browsers may call the functions. Stands before the chain where the settings name origins.

A preflight (``OPTIONS`` with ``Origin`` and ``Access-Control-Request-Method``) is answered here: it needs no key, wakes
no function and is counted nowhere. Every other HTTP answer, the gateway's own errors included, gets
``access-control-allow-origin`` on its way to the client, in place of one that the model server has set. Without
origins in the settings nothing of this stands in the path of a request.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidegate.errors import ORIGIN_NOT_ALLOWED, error_body
from tidegate.wire.message_heads import AnyResponseHead

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange, ProxyApp

ANY: Final = "*"
_VARY: Final = b"vary: origin\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorsPolicy:
    """What pages may do; as the settings of section ``[cors]``."""

    origins: tuple[str, ...]
    """Allowed origins; ``*`` is any."""
    methods: tuple[str, ...]
    headers: tuple[str, ...]
    """Fields that a page may send; ``*`` is any."""
    max_age_s: float
    """How long a browser keeps the answer to a preflight, in seconds."""


class Cors:
    """Answers preflights and adds to the answers of ``app`` (a ``tidegate.aio.proxy.exchange.ProxyApp``)."""

    __slots__ = ("_add_to_answer", "_any_header", "_app", "_is_open", "_lines", "_policy", "_preflight")

    def __init__(self, policy: CorsPolicy, app: "ProxyApp", add_to_answer: "Callable[[Exchange, bytes], None]") -> None:
        """``add_to_answer(ex, lines)`` adds header lines to whatever the client will get."""
        self._policy = policy
        self._app = app
        self._add_to_answer = add_to_answer
        self._is_open = ANY in policy.origins
        self._any_header = ANY in policy.headers
        self._lines = {
            origin.encode(): b"access-control-allow-origin: %b\r\n%b" % (origin.encode(), _VARY)
            for origin in policy.origins
        }
        self._preflight = b"access-control-allow-methods: %b\r\naccess-control-max-age: %d\r\n" % (
            ", ".join(policy.methods).encode(),
            int(policy.max_age_s),
        )

    def start(self, ex: "Exchange") -> None:
        """Answers a preflight; passes every other request on (``ProxyApp.start``)."""
        if ex.is_rpc:
            self._app.start(ex)
            return
        head = ex.head
        origin = head.get(b"origin")
        if head.method == b"OPTIONS" and origin is not None and head.get(b"access-control-request-method") is not None:
            self._answer_preflight(ex, origin)
            return
        self._add_to_answer(ex, self._allowed(origin) or _VARY)
        self._app.start(ex)

    def _allowed(self, origin: bytes | None) -> bytes | None:
        """Returns the lines of an answer to this origin; None if it is not allowed."""
        if self._is_open:
            return b"access-control-allow-origin: *\r\n"
        return None if origin is None else self._lines.get(origin)

    def _answer_preflight(self, ex: "Exchange", origin: bytes) -> None:
        lines = self._allowed(origin)
        if lines is None:
            shown = origin[:200].decode("latin-1")
            body = error_body(ORIGIN_NOT_ALLOWED, f"pages of {shown!r} may not call this gateway: see cors.origins")
            ex.respond(ORIGIN_NOT_ALLOWED.status, body, extra=_VARY)
            return
        lines += self._preflight
        asked = ex.head.get(b"access-control-request-headers")
        if self._any_header:
            if asked is not None:
                lines += b"access-control-allow-headers: %b\r\nvary: access-control-request-headers\r\n" % asked
        elif self._policy.headers:
            lines += b"access-control-allow-headers: %b\r\n" % ", ".join(self._policy.headers).encode()
        ex.respond(204, extra=lines)

    def answering(self, ex: "Exchange", head: AnyResponseHead) -> bytes | None:
        """As ``ProxyApp.answering``: a browser refuses an answer with two allowed origins."""
        if not ex.is_rpc and head.mentions(b"\naccess-control-allow-origin:"):
            head.drop(b"access-control-allow-origin")
        return self._app.answering(ex, head)

    def finished(self, ex: "Exchange") -> None:
        """As ``ProxyApp.finished``; the chain has not seen preflights."""
        if ex.context is not None:
            self._app.finished(ex)

    def upstream_failed(self, ex: "Exchange", sent: bool, why: str) -> None:
        """As ``ProxyApp.upstream_failed``."""
        self._app.upstream_failed(ex, sent, why)

    def expired(self, ex: "Exchange") -> None:
        """As ``ProxyApp.expired``."""
        self._app.expired(ex)

    def abandoned(self, ex: "Exchange") -> None:
        """As ``ProxyApp.abandoned``."""
        self._app.abandoned(ex)

    def __repr__(self) -> str:
        return f"<Cors for {', '.join(self._policy.origins)} before {self._app!r}>"
