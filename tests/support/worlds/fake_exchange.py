"""An exchange without sockets: it records what an application does with it, and has a method per event."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Self, cast

from tidegate.aio.proxy.contract import Answer
from tidegate.aio.proxy.exchange import ANSWERING, CLIENT_GONE, SENT, STREAMING, BodyBudget
from tidegate.aio.proxy.http1_exchange import HttpExchange
from tidegate.headers import SLOT_CHANNEL_PROTOCOL
from tidegate.wire.http1.client import H1Client
from tidegate.wire.http1.events import Data
from tidegate.wire.http1.request_head import HeadRules, RequestHead
from tidegate.wire.http1.response_head import ResponseHead
from tidegate.wire.http1.server import H1Server


class Pool:
    """Stands for the connections to one address."""

    def __init__(self, address: str) -> None:
        self.address = address


class FakeClient:
    """A client side without a connection; what the exchange writes to it is in the exchange's own log."""

    def __init__(self) -> None:
        self.peer, self.trusted = b"10.9.9.9", False
        self.budget = BodyBudget(1 << 30)
        self.answers: list[Answer] = []

    def answer(self, answer: Answer) -> None:
        self.answers.append(answer)

    def date(self) -> bytes:
        return b"now"

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class FakeExchange(HttpExchange):
    """One request by the real rules, without sockets and at the test's time; ``log`` names what was done with it."""

    def __init__(self, app: Any, head: RequestHead, body: bytes, *, complete: bool, now: float) -> None:
        super().__init__(cast(Any, FakeClient()), app, head, body, complete, b"", now, now + 300.0)
        self.gathered = 0
        """Size up to which the application reads the body while it waits; 0: the usual one."""
        self.log: list[str] = []
        self.sent = b""
        """Header lines of the last forward."""
        self.target = b""
        self.answer = b""
        self.extra = b""
        """Header lines added to the answer."""
        self.now = now
        self.kept = 0
        """Size up to which the application keeps the body."""
        self.tap: Callable[[bytes], object] = lambda data: None
        """Called with the answer's body."""

    @property
    def body(self) -> bytes:
        return super().body

    @body.setter
    def body(self, body: bytes) -> None:
        self._early, self._parts = body, None

    # --- actions of an application ----------------------------------------------------------------------------------

    def keep(self, size: int) -> None:
        self.kept = size
        super().keep(size)

    def read_ahead(self, size: int = 0) -> None:
        self.gathered = size
        super().read_ahead(size)

    def discard(self) -> None:
        self.log.append("discard")
        super().discard()

    def truncate(self) -> None:
        self.log.append("truncated")
        super().truncate()

    def _dispatch(self, pool: Any) -> None:
        self._state = SENT
        self.sent = self._extra
        self.target = self.head.target if self._target is None else self._target
        self.log.append(f"to {pool.address}")

    def upgrade(self, factory: Callable[[], asyncio.Protocol], fields: bytes = b"") -> asyncio.Protocol:
        self.log.append("upgrade")
        return super().upgrade(factory, fields)

    def proceed(self) -> None:
        self.log.append("proceed")

    def respond(
        self, status: int, body: bytes = b"", *, content_type: bytes = b"", extra: bytes = b"", close: bool = False
    ) -> None:
        assert not self.is_ended, repr(self)
        self.answer, self.extra = body, extra
        self.log.append(f"answer {status}")
        block = b"\r\ncontent-type: %b\r\n" % (content_type or b"application/json")
        self._client.answer((status, b"", block, extra, len(body), body, True, b""))
        self._finish(status)
        self._client.ended()

    def keep_nothing(self) -> None:
        """The body was larger than what is kept after it was sent."""
        self._replay = 0

    # --- events -----------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        self.app.start(self)
        return self

    def body_comes(self, body: bytes, *, complete: bool = True) -> None:
        """The body so far is ``body``, which continues what was there."""
        self.client_data(Data(body[self.bytes_in :], complete), self.now)

    def gets_answer(
        self, now: float, status: int = 200, *fields: str, length: int | None = 0, body: bytes = b"", ends: bool = True
    ) -> None:
        """The upstream answers, completely unless the application takes it back; ``length`` None: chunked."""
        self.now = now
        lines = "".join(f"{field}\r\n" for field in fields)
        lines += "transfer-encoding: chunked\r\n" if length is None else f"content-length: {length}\r\n"
        self._state = ANSWERING
        added = self.app.answering(self, response(f"HTTP/1.1 {status} X\r\n{lines}\r\n"))
        if self._state != ANSWERING:
            return
        if added is None:
            self._take_back()
            self.log.append("taken back")
            return
        self.extra = added
        self.tap(body)
        self.status, self.first_byte = status, self.first_byte or now
        self._state = STREAMING
        self._client.answer((status, b"", b"\r\n" + lines.encode(), added, length, body, ends, b""))
        if ends:
            self._finish(status)
            self._client.ended()

    def ends(self, now: float, *, truncated: bool = False) -> None:
        """The end of an answer that had begun."""
        self.now, self.truncated = now, truncated
        self._finish(502 if truncated else self.status)
        if truncated:
            self._client.truncate()
        else:
            self._client.ended()

    def breaks_off(self, now: float, *, sent: bool, why: str = "reset") -> None:
        """The attempt fails before an answer began."""
        self.now = now
        self._return_to_app(sent, why)

    def client_leaves(self, now: float) -> None:
        self.now = now
        self.client_gone()

    def client_gone(self) -> None:
        if not self.is_ended:
            self.log.append("gone")
        super().client_gone()

    def expires(self, now: float) -> None:
        self.now = now
        self.expire()

    # --- the tools of tidegate.aio.proxy ----------------------------------------------------------------------------

    def second_copy(self) -> "FakeExchange":
        """The same request without a client, as ``tidegate.aio.proxy.detached`` makes it; the newest one is
        ``twin``."""
        self.twin = FakeExchange(self.app, self.head, self.body, complete=True, now=self.received)
        self.twin.inferences = self.inferences
        return self.twin

    def shadow_copy(self, app: Any, now: float, tap: Callable[[bytes], object]) -> "FakeExchange | None":
        """The same for a shadow; the newest one is ``shadow``."""
        if not (self.body_complete and self.replayable):
            return None
        self.shadow = FakeExchange(app, self.head, self.body, complete=True, now=now)
        self.shadow.inferences = self.inferences
        self.shadow.tap_response(tap)
        return self.shadow

    def tap_response(self, tap: Callable[[bytes], object]) -> None:
        self.tap = tap

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

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.answer)
        return found

    def _finish(self, status: int, now: float | None = None) -> None:
        """As the real one, at the test's time; the application's state and the body stay for the test to look at."""
        if self.is_ended:
            return
        if not self.first_byte and status != CLIENT_GONE:
            self.first_byte = self.now
        context, body = self.context, self.body
        super()._finish(status, self.now if now is None else now)
        self.context, self.body = context, body

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
