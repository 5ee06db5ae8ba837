"""Peers that go away while nothing is read from them, noticed without a read and without a tick."""

import asyncio
import socket

import pytest

from tests.support.http.loopback import LOOPS, run_on
from tidegate.aio.loop.absence import AbsenceWatch

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
