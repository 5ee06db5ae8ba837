"""An app that looks for something in a body: how far it is read, what it sees before an upstream does, what it ends."""

import tracemalloc
from typing import Any, cast

import pytest

from tidegate.aio.proxy.contract import Answer
from tidegate.aio.proxy.exchange import KEPT_BYTES, BodyBudget, Exchange
from tidegate.aio.proxy.http1_exchange import BODY_KEPT, BUDGET_SPENT, HttpExchange
from tidegate.aio.proxy.limits import Limits
from tidegate.wire.http1.events import Data
from tidegate.wire.http1.request_head import HeadRules
from tidegate.wire.http1.response_head import ResponseHead, parse_response
from tidegate.wire.http1.server import H1Server
from tidegate.wire.message_heads import AnyResponseHead

MIB = 1 << 20


class Client:
    """A client side that remembers for which reasons it is not read, and what it was answered."""

    peer, trusted, exchange = b"127.0.0.1", False, None

    def __init__(self) -> None:
        self.paused = 0
        self.answers: list[int] = []
        self.budget = BodyBudget(100_000)

    def pause(self, why: int) -> None:
        self.paused |= why

    def resume(self, why: int) -> None:
        self.paused &= ~why

    def answer(self, answer: Answer) -> None:
        self.answers.append(answer[0])

    def forwarding_lines(self, head: object) -> bytes:
        return b""

    def date(self) -> bytes:
        return b"now"

    def ended(self) -> None:
        """Nothing follows."""

    last = ended


class Wire:
    """A connection to an upstream, its pool and its transport in one."""

    def __init__(self) -> None:
        self.data = b""
        self.hold_s, self.dead, self.request_complete, self.exchange = 0.0, False, False, None
        self.pool = self.outbox = self.transport = self.engine = self
        self.is_discarded = False

    def write(self, *given: Any) -> None:
        """As a transport and as an outbox, which is given the transport as well."""
        self.data += given[-1]

    def take(self) -> "Wire":
        return self

    def is_closing(self) -> bool:
        return False

    def request(self, method: bytes) -> None:
        """It is noted elsewhere."""

    def flush(self) -> None:
        """Nothing is held back."""

    def discard(self) -> None:
        self.is_discarded = True

    def release(self) -> None:
        """Somebody else may have it."""


class App:
    def __init__(self) -> None:
        self.counted: list[int] = []
        self.takes_back = False
        self.next: Wire | None = None
        """Where a request that comes back goes; None: it waits."""

    def answering(self, ex: Exchange, head: AnyResponseHead) -> bytes | None:
        self.upstream_failed(ex)
        return None if self.takes_back else b""

    def upstream_failed(self, ex: Exchange, *_: object) -> None:
        if self.next is not None:
            ex.forward(cast(Any, self.next))

    def abandoned(self, ex: Exchange) -> None:
        """Its client has gone."""

    def finished(self, ex: Exchange) -> None:
        self.counted.append(ex.status)


def begun(length: int, body: bytes = b"") -> tuple[HttpExchange, Client, App]:
    engine = H1Server(HeadRules(), 1 << 30)
    head = engine.receive(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (length, body))
    client, app = Client(), App()
    parts = engine.body, engine.body_complete, engine.trailers
    return HttpExchange(cast(Any, client), cast(Any, app), cast(Any, head), *parts, 1.0, 2.0), client, app


def test_who_gathers_is_read_up_to_what_it_asked_for_and_then_as_usual() -> None:
    ex, client, _ = begun(4 * MIB)
    ex.read_ahead(MIB)
    for _ in range(15):
        ex.client_data(Data(b"x" * 65536, False), 1.0)
    assert (client.paused, len(ex.body)) == (0, 15 * 65536)
    ex.client_data(Data(b"x" * 65536, False), 1.0)
    assert client.paused == BODY_KEPT
    ex.read_ahead(2 * MIB)
    assert client.paused == 0
    ex.read_ahead()
    assert client.paused == BODY_KEPT, "it waits for a slot now, and more than 256 KB are there"
    wire = Wire()
    ex.forward(cast(Any, wire))
    assert client.paused == 0
    assert wire.data.endswith(b"x" * MIB)
    ex.client_data(Data(b"y" * 65536, False), 1.0)
    assert (ex.replayable, ex.body) == (False, b""), "beyond the usual amount nothing is kept once it was sent"


def test_a_body_in_small_pieces_takes_no_more_than_a_body() -> None:
    """An object of two bytes takes sixty."""
    body = bytes(range(256)) * 800
    ex, _, _ = begun(len(body) + 1)
    tracemalloc.start()
    try:
        for at in range(0, len(body), 2):
            ex.client_data(Data(body[at : at + 2], False), 1.0)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 1.5 * len(body)
    assert ex.body == body
    ex.client_data(Data(b"", False), 1.0)
    ex.client_data(Data(b"e", True), 1.0)
    assert ex.body == body + b"e"


def test_a_spent_budget_does_not_stop_who_gathers_but_tells_him() -> None:
    ex, client, _ = begun(4 * MIB, b"x" * 65536)
    budget = BodyBudget(100_000)
    ex.read_ahead(MIB)
    ex.charge_budget(budget)
    assert (ex.is_over_budget, client.paused) == (False, 0)
    ex.client_data(Data(b"x" * 65536, False), 1.0)
    assert (ex.is_over_budget, client.paused) == (True, 0)
    ex.read_ahead()
    assert client.paused == BUDGET_SPENT
    ex.respond(429)
    assert (budget.used, client.answers) == (0, [429])


def test_what_is_discarded_is_read_and_kept_nowhere() -> None:
    ex, client, _ = begun(4 * MIB, b"x" * 65536)
    budget = BodyBudget(100_000)
    ex.read_ahead(MIB)
    ex.charge_budget(budget)
    ex.client_data(Data(b"x" * MIB, False), 1.0)
    assert client.paused == BODY_KEPT
    ex.discard()
    ex.client_data(Data(b"x" * MIB, False), 1.0)
    assert (client.paused, budget.used, ex.body, ex.replayable) == (0, 0, b"", False)
    assert ex.bytes_in == 2 * MIB + 65536
    ex.client_data(Data(b"x", True), 1.0)
    ex.respond(429)
    assert client.answers == [429]


def test_a_large_body_counts_until_it_is_not_kept_any_more() -> None:
    ex, _, _ = begun(MIB, b"x" * 65536)
    budget = BodyBudget(100_000)
    ex.read_ahead(2 * MIB)
    ex.charge_budget(budget)
    ex.client_data(Data(b"x" * (MIB - 65536), True), 1.0)
    ex.read_ahead()
    ex.forward(cast(Any, Wire()))
    assert (budget.used, ex.replayable, len(ex.body)) == (MIB, True, MIB), "its replica may give it back"
    answer = parse_response(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", 0)
    assert type(answer) is ResponseHead
    ex.response(answer, b"", False, b"")
    assert (budget.used, ex.body) == (0, b""), "its stream may last for an hour"

    small, _, _ = begun(9, b"123456789")
    small.charge_budget(budget)
    small.forward(cast(Any, Wire()))
    assert budget.used == 0


@pytest.mark.parametrize("how", ["taken back", "lost"])
def test_a_body_that_waits_again_counts_although_it_was_sent_at_once(how: str) -> None:
    def back(ex: HttpExchange) -> None:
        if how == "lost":
            ex.upstream_lost("reset")
        else:
            answer = parse_response(b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n", 0)
            assert type(answer) is ResponseHead
            ex.response(answer, b"", True, b"")

    ex, client, app = begun(MIB, b"x" * 150_000)
    app.takes_back = True
    ex.forward(cast(Any, Wire()))
    assert client.budget.used == 0
    back(ex)
    assert (ex.waiting, client.budget.used, client.paused) == (True, 150_000, BUDGET_SPENT)
    ex.forward(cast(Any, Wire()))
    assert (client.budget.used, client.paused) == (0, 0)
    app.next = Wire()
    back(ex)
    assert (ex.waiting, client.budget.used, client.paused) == (False, 0, 0), "sent again at once, it does not wait"
    app.next = None
    back(ex)
    ex.client_gone()
    assert client.budget.used == 0


def test_each_further_piece_is_seen_before_it_goes_on() -> None:
    ex, _, app = begun(300_000, b"a")
    wire = Wire()
    seen: list[tuple[bytes, bool]] = []

    def check(exchange: Exchange, data: bytes, is_last: bool) -> None:
        assert not wire.data.endswith(data)
        seen.append((data, is_last))
        if data == b"bad":
            exchange.respond(400)

    ex.check = check
    ex.forward(cast(Any, wire))
    ex.client_data(Data(b"good", False), 1.0)
    assert wire.data.endswith(b"agood")
    ex.client_data(Data(b"bad", True), 1.0)
    assert wire.data.endswith(b"agood"), "the last piece never left"
    assert wire.is_discarded
    assert (seen, app.counted) == ([(b"good", False), (b"bad", True)], [400])
    ex.client_data(Data(b"more", True), 1.0)
    assert (len(seen), app.counted) == (2, [400]), "who has ended it is not asked again"


def test_without_a_wish_256_kilobytes_are_kept_as_ever() -> None:
    ex, client, _ = begun(4 * MIB)
    ex.client_data(Data(b"x" * (KEPT_BYTES - 1), False), 1.0)
    assert client.paused == 0
    ex.client_data(Data(b"x", False), 1.0)
    assert client.paused == BODY_KEPT


# --- the lowest rate -------------------------------------------------------------------------------------------------

SLOW = Limits(body_idle_timeout_s=10.0, body_min_rate=100.0)


def sends(ex: HttpExchange, size: int, at: float, limits: Limits = SLOW) -> bool:
    """``size`` bytes come; returns whether the body is too slow then."""
    if size:
        ex.client_data(Data(b"x" * size, False), at)
    return ex.sweep(at, limits, is_paused=False)


def late(length: int, body: bytes = b"") -> tuple[HttpExchange, Client]:
    ex, client, _ = begun(length, body)
    ex.set_deadline(1e9)
    return ex, client


def test_a_body_that_drips_is_too_slow_when_the_time_is_over() -> None:
    ex, client = late(5000)
    assert [sends(ex, 10, 1.0 + second) for second in range(11)] == [False] * 11
    assert sends(ex, 10, 11.1)
    assert client.budget.slow == 1
    assert SLOW.slow_body == (
        "the body took too long: fewer than 1000 bytes came in 10 s "
        "(limits.body-min-rate 100 bytes/s, limits.body-idle-timeout 10 s)"
    )


def test_a_quick_beginning_earns_no_time() -> None:
    ex, _ = late(9 * MIB, b"x" * 100_000)
    assert not sends(ex, 0, 1.2)
    assert not sends(ex, 10, 11.1)
    assert sends(ex, 10, 11.3)


def test_a_body_at_the_lowest_rate_may_take_as_long_as_it_needs() -> None:
    ex, _ = late(90_000)
    assert not any(sends(ex, 55, 1.0 + half / 2) for half in range(1, 1000))


def test_without_a_rate_one_byte_in_time_is_enough() -> None:
    limits = Limits(body_idle_timeout_s=10.0)
    ex, _ = late(5000)
    assert not any(sends(ex, 1, 1.0 + 9.0 * many, limits) for many in range(1, 20))
    assert sends(ex, 0, 182.1, limits)
    assert limits.slow_body == "the body took too long: nothing came for 10 s (limits.body-idle-timeout)"


def test_time_in_which_the_client_is_not_read_does_not_count() -> None:
    ex, _ = late(9 * MIB)
    assert not sends(ex, 10, 5.0)
    assert not ex.sweep(500.0, SLOW, is_paused=True)
    ex.resumed(500.0)
    assert not sends(ex, 10, 509.9)
    assert sends(ex, 0, 510.1)
