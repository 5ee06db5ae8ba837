"""The hostile HTTP/1.1 corpora, live: client bytes -> a real process -> a strict capture backend.

``http_hostile.jsonl`` is the corpus whose outcomes RFC 9110 and RFC 9112 allow; ``http_hostile_own.jsonl`` has more of
the same format, for the rules of ours that the first does not reach. Each runs against a gateway (with a queue_proxy
behind it), a queue_proxy and a bare relay, on uvloop and on plain asyncio. Most of a case's time is waiting for its
verdict, so cases run side by side, at two doors and some at each; behind one door they follow each other, and what one
leaves behind (a slot, a byte, a connection) the next ones meet. They are judged when the door has closed: what a client
has begun may reach the backend after it has its answer.
"""

import asyncio
from contextlib import AsyncExitStack
from functools import cache

import pytest

from tests.support.http.capture import CaptureBackend
from tests.support.http.doors import KINDS, door, loop_of, ways
from tests.support.http.hostile import CORPUS, OWN, STANDARD, Case, Outcome, for_front_door, judge, load, run_case
from tests.support.http.loopback import run_on
from tidegate.aio.loop.sockets import host_port

pytestmark = [pytest.mark.live, pytest.mark.timeout(150)]

FILES = {"corpus": CORPUS, "own": OWN}
DOORS = 2
"""Of each kind."""
AT_ONCE = 8
"""Cases at a door, which has as many slots: one that a case does not give back is missed."""

Verdicts = dict[tuple[str, str, str], list[str]]
"""What is wrong, by file, kind of door and name of the case; an empty list: nothing."""


def _cases(file: str, kind: str) -> list[Case]:
    """A queue_proxy leaves room in a head for what a gateway adds: ``doors`` of a case says where it holds."""
    return [case for case in load(FILES[file]) if kind in case.get("doors", KINDS)]


async def _lane(
    kind: str, loop: str, all_open: asyncio.Barrier, waiting: list[tuple[str, Case]], verdicts: Verdicts
) -> None:
    """One door, and at each moment some cases until none is left."""
    outcomes: list[tuple[str, Case, Outcome]] = []
    async with AsyncExitStack() as stack:
        backend = CaptureBackend()
        stack.push_async_callback(backend.close)
        async with door(kind, loop, await backend.start(), STANDARD, slots=str(AT_ONCE)) as way:
            assert {loop_of(pid) for pid in way.pids} <= {loop}

            async def send() -> None:
                """One case after the other."""
                while waiting:
                    file, case = waiting.pop()
                    if kind == "gateway":
                        case = for_front_door(case)
                    outcomes.append((file, case, await run_case(case, way.address, backend)))

            await all_open.wait()  # starting processes takes the time that cases are given
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(send())
            left = await way.left_in_flight()
        await backend.unused()
    faults = [f"{left} requests are still in flight behind this door"] if left else []
    for file, case, outcome in reversed(outcomes):
        verdicts[file, kind, case["name"]] = judge(case, outcome) + faults
        faults = []


@cache
def _verdicts(kind: str, loop: str) -> Verdicts:
    """Runs every case of every file at doors of one kind."""
    verdicts: Verdicts = {}

    async def main() -> None:
        all_open = asyncio.Barrier(DOORS)
        async with asyncio.TaskGroup() as group:
            # Slow cases first: together they last as long as the longest.
            cases = [(file, case) for file in FILES for case in _cases(file, kind)]
            cases.sort(key=lambda item: item[1].get("wait", 0.0))
            for _ in range(DOORS):
                group.create_task(_lane(kind, loop, all_open, cases, verdicts))

    run_on(loop, main())
    return verdicts


@pytest.mark.parametrize(("kind", "loop"), ways())
@pytest.mark.parametrize("file", FILES)
def test_every_case_ends_in_a_permitted_outcome(file: str, kind: str, loop: str) -> None:
    verdicts = _verdicts(kind, loop)
    names = [case["name"] for case in _cases(file, kind)]
    assert len(set(names)) == len(names)
    failed = {name: faults for name in names if (faults := verdicts[file, kind, name])}
    assert not failed, "\n".join(f"{name}: {'; '.join(faults)}" for name, faults in failed.items())


def test_what_arrives_late_belongs_to_the_case_that_sent_it() -> None:
    """The client of the first case has gone, and the second one runs, when the first one's request arrives."""

    async def main() -> None:
        backend = CaptureBackend()
        host, port = host_port(await backend.start())
        first, second = backend.begin(), backend.begin()
        reader, writer = await asyncio.open_connection(host, port)
        forwarded = f"x-forwarded-for: 6.6.6.6, {first.client}\r\nx-forwarded-for: 127.0.0.1\r\n"
        writer.write(f"GET /late HTTP/1.1\r\nhost: a\r\n{forwarded}\r\n".encode())
        writer.write(b"GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\nGET /cut-off")
        writer.write_eof()
        await reader.read()
        assert [request.target for request in first.requests] == [b"/late", b"/smuggled"]
        assert first.malformed == ["head cut off: b'GET /cut-off'"]
        assert not second.requests and not second.malformed
        await backend.unused()
        writer.close()
        await backend.close()

    run_on("asyncio", main())
