"""Peers that go away while nothing is read from them, noticed without a read and without a tick."""

import asyncio
import socket

import pytest

from tests.support.http.loopback import LOOPS, run_on
from tidegate.aio.loop.absence import AbsenceWatch, PeerWatch

pytestmark = [pytest.mark.live, pytest.mark.parametrize("loop", sorted(LOOPS))]


def test_an_end_is_reported_once_and_one_that_was_taken_back_is_not(loop: str) -> None:
    async def main() -> None:
        watch = AbsenceWatch(asyncio.get_running_loop())
        seen: list[str] = []
        pairs = [socket.socketpair() for _ in range(3)]
        for name, (ours, _) in zip(("ends", "stays", "taken back"), pairs, strict=True):
            watch.watch(name, ours.fileno(), lambda name=name: seen.append(name))  # type: ignore[misc]  # a default binds it
        watch.unwatch("another owner", pairs[0][0].fileno())
        watch.unwatch("taken back", pairs[2][0].fileno())
        for _, theirs in (pairs[0], pairs[2]):
            theirs.close()
        await asyncio.sleep(0.05)
        assert seen == ["ends"]
        watch.close()
        for ours, theirs in pairs:
            ours.close()
            theirs.close()

    run_on(loop, main())


def test_the_watch_over_a_peer_begins_once_and_can_be_taken_back(loop: str) -> None:
    async def main() -> None:
        running = asyncio.get_running_loop()
        absence, seen = AbsenceWatch(running), []
        pairs = [socket.socketpair() for _ in range(2)]
        transports = [(await running.create_connection(asyncio.Protocol, sock=ours))[0] for ours, _ in pairs]
        watches = [PeerWatch(absence), PeerWatch(absence)]
        for watch, transport in zip(watches, transports, strict=True):
            transport.pause_reading()
            watch.begin(transport, lambda: seen.append("gone"))
            watch.begin(transport, lambda: seen.append("begun twice"))
        watches[1].end()
        for _, theirs in pairs:
            theirs.close()
        await asyncio.sleep(0.05)
        assert seen == ["gone"]
        assert repr(watches[0]) == "<PeerWatch of descriptor -1>"
        for transport in transports:
            transport.abort()
        absence.close()

    run_on(loop, main())
