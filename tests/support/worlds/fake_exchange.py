"""An exchange without sockets: what an application does with it is written down, what happens to it is called."""

import json
from collections.abc import Callable
from typing import Any

from tidegate.errors import ErrorKind, Executed, error_body
from tidegate.headers import SLOT_CHANNEL_PROTOCOL
from tidegate.wire.http1.client import H1Client
from tidegate.wire.http1.request_head import HeadRules, RequestHead
from tidegate.wire.http1.response_head import ResponseHead
from tidegate.wire.http1.server import H1Server

CLIENT_GONE = 499


class Pool:
    """Stands for the connections to one address."""

    def __init__(self, address: str) -> None:
        self.address = address


class FakeExchange:
    """One request; ``log`` tells what was done with it, newest last."""

    is_rpc = False

    def __init__(self, app: Any, head: RequestHead, body: bytes, *, complete: bool, now: float) -> None:
        self.app = app
        self.head = head
        self.body = body
        self.body_complete = complete
        self.received = now
        self.deadline = now + 300.0
        self.context: Any = None
        self.inferences = 1
        self.status = 0
        self.first_byte = self.ended = 0.0
        self.attempts = 0
        self.replayable = True
        self.truncated = False
        self.held: Any = None
        self.on_body: Callable[[Any], None] | None = None
        self.check: Callable[[Any, bytes, bool], None] | None = None
        self.gathered = 0
        """How much of its body may be read while it waits, at the application's wish; 0: as much as usual."""
        self.is_over_budget = False
        self.log: list[str] = []
        self.sent = b""
        """Header lines of the last forward."""
        self.target = b""
        self.answer = b""
        self.extra = b""
        """Header lines added to the answer."""
        self.now = now
        self.peer, self.trusted = b"10.9.9.9", False
        self.bytes_in, self.bytes_out = len(body), 0
        self.kept = 0
        """Of its body, at the application's wish."""
        self.ear: Callable[[bytes], object] = lambda data: None
        """Hears what the answer says."""

    # --- what an application does -----------------------------------------------------------------------------------

    def set_deadline(self, when: float) -> None:
        self.deadline = when

    def keep(self, size: int) -> None:
        self.kept = size

    def read_ahead(self, size: int = 0) -> None:
        self.gathered = size

    def discard(self) -> None:
        self.log.append("discard")

    def truncate(self) -> None:
        self.log.append("truncated")
        self.truncated = True
        self._finish(502)

    def may_retry(self, sent: bool, idempotent: bool) -> bool:
        return self.replayable and self.attempts <= 1 and (not sent or idempotent)

    def may_repeat(self, idempotent: bool) -> bool:
        return self.replayable and (idempotent or self.head.method in (b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"))

    def forward(self, pool: Pool, extra: bytes = b"", *, target: bytes | None = None, hold: bool = False) -> None:
        self.attempts += 1
        self.sent = extra
        self.target = self.head.target if target is None else target
        self.log.append(f"to {pool.address}")

    def upgrade(self, factory: Callable[[], object], fields: bytes = b"") -> object:
        self.log.append("upgrade")
        self._finish(101)
        return factory()

    def proceed(self) -> None:
        self.log.append("proceed")

    def respond(
        self, status: int, body: bytes = b"", *, content_type: bytes = b"", extra: bytes = b"", close: bool = False
    ) -> None:
        self.answer, self.extra = body, extra
        self.log.append(f"answer {status}")
        self._finish(status)

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
        body = error_body(kind, message, function=function, request_id=request_id, executed=executed)
        self.respond(kind.status, body, extra=extra)

    # --- what happens to it -----------------------------------------------------------------------------------------

    def start(self) -> "FakeExchange":
        self.app.start(self)
        return self

    def body_comes(self, body: bytes, *, complete: bool = True) -> None:
        """The body so far is ``body``, which goes on from what was there."""
        if self.check is not None:
            self.check(self, body[self.bytes_in :], complete)
            if self.ended:
                return
        self.body, self.body_complete = body, complete
        self.bytes_in = len(body)
        on_body, self.on_body = self.on_body, None
        if on_body is not None:
            on_body(self)

    def answered(
        self, now: float, status: int = 200, *fields: str, length: int | None = 0, body: bytes = b"", ends: bool = True
    ) -> None:
        """The upstream answers, completely unless the application takes it back; ``length`` None: chunked."""
        self.now = now
        lines = "".join(f"{field}\r\n" for field in fields)
        lines += "transfer-encoding: chunked\r\n" if length is None else f"content-length: {length}\r\n"
        added = self.app.answering(self, response(f"HTTP/1.1 {status} X\r\n{lines}\r\n"))
        if self.ended:
            return
        if added is None:
            self.log.append("taken back")
            return
        self.extra = added
        self.ear(body)
        self.status, self.first_byte = status, self.first_byte or now
        if ends:
            self._finish(status)

    def ends(self, now: float, *, truncated: bool = False) -> None:
        """The end of an answer that had begun."""
        self.now, self.truncated = now, truncated
        self._finish(502 if truncated else self.status)

    def breaks_off(self, now: float, *, sent: bool, why: str = "reset") -> None:
        self.now = now
        self.app.upstream_failed(self, sent, why)

    def client_leaves(self, now: float) -> None:
        self.now = now
        self.client_gone()

    def client_gone(self) -> None:
        if not self.ended:
            self.log.append("gone")
            self.status = CLIENT_GONE
            self.app.abandoned(self)
            self._finish(CLIENT_GONE)

    def second_copy(self) -> "FakeExchange":
        """The same request without a client, as ``tidegate.aio.proxy.detached`` makes it; the newest one is
        ``twin``."""
        self.twin = FakeExchange(self.app, self.head, self.body, complete=True, now=self.received)
        self.twin.inferences = self.inferences
        return self.twin

    def shadow_copy(self, app: Any, now: float, ear: Callable[[bytes], object]) -> "FakeExchange | None":
        """The same for a shadow, as ``tidegate.aio.proxy.detached`` makes it; the newest one is ``shadow``."""
        if not (self.body_complete and self.replayable):
            return None
        self.shadow = FakeExchange(app, self.head, self.body, complete=True, now=now)
        self.shadow.inferences = self.inferences
        self.shadow.tap_response(ear)
        return self.shadow

    def tap_response(self, ear: Callable[[bytes], object]) -> None:
        self.ear = ear

    def begin_stream(self, extra: bytes, name: bytes, failure: bytes) -> "FakeExchange":
        """Its answer has begun: what follows is written to ``comments``, as ``tidegate.aio.proxy.early_stream``
        does."""
        self.log.append("stream begins")
        self.extra, self.failure_event = extra, name + b" " + failure
        self.comments: list[str] = []
        return self

    def send_comment(self, comment: bytes) -> None:
        self.comments.append(comment.decode())

    def swap_clients(self, copy: "FakeExchange") -> None:
        """The copy has the client now."""
        copy.log.append("took over")
        self.client_gone()

    def expires(self, now: float) -> None:
        self.now = now
        self.app.expired(self)

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.answer)
        return found

    def _finish(self, status: int) -> None:
        self.status = status
        if not self.first_byte and status != CLIENT_GONE:
            self.first_byte = self.now
        self.ended = self.now
        self.app.finished(self)

    def __repr__(self) -> str:
        return f"<FakeExchange {self.head.target!r} {self.log}>"


def request(text: str, *, front_door: bool = True) -> RequestHead:
    """A parsed request head; lines may end in LF."""
    data = text.replace("\r\n", "\n").replace("\n", "\r\n").encode()
    rules = HeadRules(front_door=front_door, upgrades=frozenset({b"websocket", SLOT_CHANNEL_PROTOCOL}))
    head = H1Server(rules, 1 << 30).receive(data)
    assert isinstance(head, RequestHead), head
    return head


def response(text: str) -> ResponseHead:
    """A parsed response head, as an answer to a POST."""
    engine = H1Client()
    engine.request(b"POST")
    head = engine.receive(text.encode())
    assert isinstance(head, ResponseHead), head
    return head
