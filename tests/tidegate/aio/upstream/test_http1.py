"""A connection to an upstream: interim answers are bounded."""

import asyncio
import socket
from typing import Any

import pytest

from tests.support.http.loopback import run_on
from tidegate.aio.loop.services import LoopServices
from tidegate.aio.upstream.http1 import MAX_INTERIMS, TOO_MANY_INTERIMS, UpstreamConn
from tidegate.aio.upstream.pool import UpstreamPool
from tidegate.wire.http1.response_head import ResponseHead

pytestmark = pytest.mark.live
INTERIM = b"HTTP/1.1 103 Early Hints\r\n\r\n"
ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


class Heard:
    """In an exchange's place: what it hears of the upstream."""

    def __init__(self, upstream: UpstreamConn) -> None:
        self.upstream = upstream
        self.interims = 0
        self.answers = 0
        self.why = ""

    def interim(self, head: ResponseHead) -> None:
        self.interims += 1

    def response(self, head: ResponseHead, body: bytes, complete: bool, trailers: bytes) -> None:
        self.answers += 1
        self.upstream.release()

    def upstream_lost(self, why: str) -> None:
        self.why = why


@pytest.mark.parametrize("together", [True, False])
def test_interim_answers_are_bounded_and_counted_anew_for_each_answer(together: bool) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        running = asyncio.get_running_loop()
        services = LoopServices(running)
        pool = UpstreamPool("127.0.0.1:1", services)
        _, upstream = await running.create_connection(lambda: UpstreamConn(pool), sock=ours)
        heard = Heard(upstream)
        exchange: Any = heard

        def begin() -> None:
            upstream.exchange, upstream.request_complete = exchange, True
            upstream.engine.request(b"GET")

        try:
            for count in (1, 2):
                begin()
                for piece in [INTERIM * MAX_INTERIMS] if together else [INTERIM] * MAX_INTERIMS:
                    upstream.data_received(piece)
                upstream.data_received(ANSWER)
                assert (heard.interims, heard.answers, heard.why) == (count * MAX_INTERIMS, count, "")
            begin()
            for piece in [INTERIM * 1000] if together else [INTERIM] * 1000:
                if not upstream.dead:
                    upstream.data_received(piece)
            assert heard.why == TOO_MANY_INTERIMS
            assert heard.interims == 3 * MAX_INTERIMS
            assert upstream.dead
        finally:
            upstream.discard()
            pool.close()
            services.close()
            theirs.close()
            await asyncio.sleep(0)

    run_on("asyncio", main())
