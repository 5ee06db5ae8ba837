"""The state machine of an exchange: every event in every state, against the table of docs/inside/data-plane.md."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pytest

from tidegate.aio.loop.writes import Outbox
from tidegate.aio.proxy.exchange import (
    ANSWERING,
    CONNECTING,
    ENDED,
    NEXT_STATES,
    SENT,
    STATES,
    STREAMING,
    WAITING,
    BodyBudget,
)
from tidegate.aio.proxy.http1_exchange import HttpExchange
from tidegate.aio.upstream.http1 import UpstreamConn
from tidegate.aio.upstream.pool import UpstreamPool
from tidegate.errors import QUEUE_FULL
from tidegate.wire.http1.events import Data
from tidegate.wire.http1.request_head import HeadRules
from tidegate.wire.http1.response_head import ResponseHead, parse_response
from tidegate.wire.http1.server import H1Server
from tidegate.wire.message_heads import AnyResponseHead

PAGE = Path(__file__).resolve().parents[4] / "docs" / "inside" / "data-plane.md"
NOTHING, FAULT = "-", "error"


class Client:
    """A client side that hears and forgets."""

    peer, trusted, exchange = b"127.0.0.1", False, None
    budget = BodyBudget(1 << 20)

    def forwarding_lines(self, head: object) -> bytes:
        return b""

    def date(self) -> bytes:
        return b"now"

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Wire:
    """A transport that takes all."""

    def is_closing(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Pool:
    """Gives the connection it was made with, or none."""

    def __init__(self, *, idle: bool) -> None:
        self.hold_s = 0.0
        self.outbox = Outbox(asyncio.get_running_loop())
        self.upstream = Upstream(self) if idle else None

    def take(self) -> "Upstream | None":
        return self.upstream

    def connect(self, ex: HttpExchange) -> None:
        """It takes as long as it takes."""


class Upstream:
    """A connection to an upstream."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.transport, self.engine = pool, Wire(), self
        self.exchange: HttpExchange | None = None
        self.request_complete = self.dead = False

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class App:
    """Lets everything happen; ``during`` runs while an answer's head is shown."""

    def __init__(self) -> None:
        self.during: Callable[[HttpExchange], None] | None = None
        self.takes_back = False
        self.counted: list[int] = []

    def finished(self, ex: HttpExchange) -> None:
        self.counted.append(ex.status)

    def answering(self, ex: HttpExchange, head: AnyResponseHead) -> bytes | None:
        if self.during is not None:
            self.during(ex)
        return None if self.takes_back else b""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def answer(ex: HttpExchange, *, whole: bool = True) -> None:
    head = parse_response(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", 0)
    assert type(head) is ResponseHead
    ex.response(head, b"ok" if whole else b"", whole, b"")


def made() -> tuple[HttpExchange, App]:
    engine = H1Server(HeadRules(upgrades=frozenset({b"websocket"})), 1 << 20)
    text = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    head = engine.receive(text)
    app = App()
    return HttpExchange(cast(Any, Client()), cast(Any, app), cast(Any, head), b"", True, b"", 1.0, 2.0), app


def forward(ex: HttpExchange, *, idle: bool) -> None:
    ex.forward(cast(UpstreamPool, Pool(idle=idle)))


def bring(state: int) -> tuple[HttpExchange, App]:
    """An exchange in ``state``; ANSWERING exists only while the application is asked: see ``drive``."""
    ex, app = made()
    if state == CONNECTING:
        forward(ex, idle=False)
    elif state in (SENT, STREAMING):
        forward(ex, idle=True)
        if state == STREAMING:
            answer(ex, whole=False)
    elif state == ENDED:
        ex.respond(200)
    return ex, app


EVENTS: dict[str, Callable[[HttpExchange, App], object]] = {
    "forward, a connection is idle": lambda ex, app: forward(ex, idle=True),
    "forward, none is idle": lambda ex, app: forward(ex, idle=False),
    "respond": lambda ex, app: ex.respond(200),
    "fail": lambda ex, app: ex.fail(QUEUE_FULL, "full"),
    "upgrade": lambda ex, app: ex.upgrade(asyncio.Protocol),
    "connected": lambda ex, app: ex.connected(cast(UpstreamConn, Upstream(Pool(idle=True))), ex.attempts),
    "connecting failed": lambda ex, app: ex.connect_failed(ex.attempts, "refused"),
    "a connection of an earlier attempt": lambda ex, app: ex.connected(cast(UpstreamConn, None), ex.attempts - 1),
    "more of the request": lambda ex, app: ex.client_data(Data(b"", True), 1.0),
    "the rest of the request is faulty": lambda ex, app: ex.refuse(400),
    "the client goes away": lambda ex, app: ex.client_gone(),
    "the deadline passes": lambda ex, app: ex.expire() if not ex.answered and not ex.is_ended else None,
    "an interim answer": lambda ex, app: ex.interim(cast(ResponseHead, parse_response(b"HTTP/1.1 103 E\r\n\r\n", 0))),
    "the upstream dies": lambda ex, app: ex.upstream_lost("reset") if ex._upstream is not None else None,
    "a whole answer": lambda ex, app: answer(ex) if ex._state == SENT else None,
    "the beginning of an answer": lambda ex, app: answer(ex, whole=False) if ex._state == SENT else None,
    "a whole answer, taken back": lambda ex, app: _taken_back(ex, app) if ex._state == SENT else None,
    "a piece of the answer": lambda ex, app: (
        ex.response_data(Data(b"o", False), 1.0) if ex._state == STREAMING else None
    ),
    "the end of the answer": lambda ex, app: (
        ex.response_data(Data(b"k", True), 1.0) if ex._state == STREAMING else None
    ),
    "a stream's limit passes": lambda ex, app: ex.truncate() if ex._state == STREAMING else None,
    "the upstream switches protocols": lambda ex, app: _switched(ex) if ex._state == SENT else None,
    "the tunnel ends": lambda ex, app: ex.tunnel_closed(1, 1) if ex._state == STREAMING else None,
}
"""What can happen. An upstream is heard only by the exchange that has it (``UpstreamConn.exchange``), the ticker asks
``answered``, so where such an event cannot come nothing is called."""


def _taken_back(ex: HttpExchange, app: App) -> None:
    app.takes_back = True
    answer(ex)


def _switched(ex: HttpExchange) -> None:
    head = parse_response(b"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", 0)
    ex.tunnelled(cast(ResponseHead, head), cast(UpstreamConn, ex._upstream))


def drive(state: int, event: str) -> str:
    """The state after ``event`` in ``state``; NOTHING where it stays, FAULT where the application may not do it."""
    act = EVENTS[event]
    if state == ANSWERING:
        return _drive_answering(act)
    ex, app = bring(state)
    assert ex._state == state
    try:
        act(ex, app)
    except RuntimeError:
        assert ex._state == state
        return FAULT
    return NOTHING if ex._state == state else STATES[ex._state]


def _drive_answering(act: Callable[[HttpExchange, App], object]) -> str:
    ex, app = bring(SENT)
    found: list[str] = []

    def during(asked: HttpExchange) -> None:
        assert asked._state == ANSWERING
        try:
            act(asked, app)
        except RuntimeError:
            found.append(FAULT)
        else:
            found.append(NOTHING if asked._state == ANSWERING else STATES[asked._state])

    app.during = during
    app.takes_back = True  # "forward" in here means after the answer was taken back
    answer(ex)
    if found[0] == NOTHING and ex._again is None and ex._state in (SENT, CONNECTING):
        return STATES[ex._state]
    return found[0]


async def table() -> list[str]:
    rows = [f"| event | {' | '.join(STATES)} |", "|---" * (len(STATES) + 1) + "|"]
    for event in EVENTS:
        cells = [drive(state, event) for state in (WAITING, CONNECTING, SENT, ANSWERING, STREAMING, ENDED)]
        rows.append(f"| {event} | {' | '.join(cells)} |")
    return rows


def test_the_code_does_what_the_page_says() -> None:
    written = PAGE.read_text().partition("<!-- states -->\n")[2].partition("<!-- end -->")[0].splitlines()
    driven = asyncio.run(table())
    for row, line in zip(driven, written, strict=False):
        assert row == line
    assert len(written) == len(driven), "\n".join(driven)


@pytest.mark.parametrize("state", [WAITING, CONNECTING, SENT, STREAMING, ENDED])
def test_whatever_happens_it_is_counted_once(state: int) -> None:
    """Each event, then every other one after it: ``finished`` has come once when it is over, and not before."""

    async def main() -> None:
        for first in EVENTS:
            for second in EVENTS:
                ex, app = bring(state)
                for event in (first, second):
                    try:
                        EVENTS[event](ex, app)
                    except RuntimeError:
                        continue
                assert len(app.counted) == ex.is_ended, (first, second)

    asyncio.run(main())


@pytest.mark.parametrize("whole", [True, False])
def test_an_exchange_ends_once_its_answer_is_written(whole: bool) -> None:
    """Its duration covers the writing, whether the answer came whole or in pieces."""
    written_at: list[float] = []

    def write(*_: object) -> None:
        begin = monotonic()
        while monotonic() <= begin:
            """The clock moves during a write."""
        written_at.append(monotonic())

    async def main() -> None:
        ex, _ = made()
        client: Any = ex._client
        client.answer = client.more = write
        forward(ex, idle=True)
        answer(ex, whole=whole)
        if not whole:
            ex.response_data(Data(b"ok", True), 1.0)
        assert ex.is_ended
        assert ex.first_byte < written_at[-1] <= ex.ended

    asyncio.run(main())


def test_every_transition_of_the_table_happens_and_no_other() -> None:
    """``NEXT_STATES`` is the page's table without its events. A call that is answered here goes from WAITING to
    STREAMING by itself (``test_grpc_call``); of one in ANSWERING that is forwarded again the last step is seen here."""

    async def main() -> set[tuple[int, int]]:
        return {
            (state, STATES.index(cell))
            for state in NEXT_STATES
            for event in EVENTS
            if (cell := drive(state, event)) not in (NOTHING, FAULT)
        }

    again = {(ANSWERING, CONNECTING), (ANSWERING, SENT)}
    answered_here = {(WAITING, STREAMING)}
    through_answering = {(SENT, ANSWERING), (ANSWERING, STREAMING)}
    legal = {(state, following) for state, all_following in NEXT_STATES.items() for following in all_following}
    assert asyncio.run(main()) - again == legal - answered_here - through_answering


def test_a_forward_out_of_an_answer_counts_as_an_attempt_at_once() -> None:
    """The application may ask for the number before the answer is taken back."""

    async def main() -> None:
        ex, app = bring(SENT)
        seen: list[int] = []

        def during(asked: HttpExchange) -> None:
            forward(asked, idle=False)
            seen.append(asked.attempts)

        app.during, app.takes_back = during, True
        answer(ex)
        assert (seen, ex.attempts, STATES[ex._state]) == ([2], 2, "CONNECTING")

    asyncio.run(main())
