"""The process that writes the access log: killed, stopped, or left by its worker."""

import asyncio
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.live.live_edge import Edge, children, edge, run
from tests.support.worlds.access_lines import ended
from tidegate.gateway.access_log.records import BATCH, AccessLog
from tidegate.gateway.beside.live import IS_SLOW, spawned
from tidegate.gateway.beside.main import EVERY_S

pytestmark = pytest.mark.live

LONG = "x" * 7000
"""Makes paths long. Each differs: equal ones go to the writer once."""


async def logged(world: Edge, more: Mapping[str, Any] | None = None) -> int:
    """Starts a worker with an access log; ``more`` of its configuration. Returns the process id of its writer."""
    world.is_logged = True
    world.config = {"access_sampling": 1.0, "log_format": "json", **(more or {})}
    world.start_gateway()
    await world.gateway_ready()
    return writer(world)


def writer(world: Edge) -> int:
    (pid,) = children(world.workers[0].pid)
    return pid


def lines(world: Edge) -> list[dict[str, Any]]:
    """The finished lines of the worker's log."""
    return [json.loads(line) for line in world.logs[0].read_text().split("\n")[:-1]]


def ids(world: Edge) -> list[str]:
    return [line["request_id"] for line in lines(world) if line["logger"] == "access"]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20.0):
        found = False
        while not found:
            await asyncio.sleep(0.02)
            found = holds()


async def ask(world: Edge, names: list[str], more: str = "") -> None:
    async with world.client() as http:
        for name in names:
            assert (await http.get(f"/{name}{more}", headers={"x-request-id": name})).status_code == 404


async def fault(world: Edge) -> str | None:
    found: str | None = (await world.sample(world.gateway_admin()))["access_log_fault"]
    return found


async def dropped(world: Edge) -> int:
    return await world.metric("tidegate_gateway_access_log_dropped_lines_total")


def is_running(pid: int) -> bool:
    """Whether the process exists; one that has ended and is not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_writer_that_is_killed_is_started_again_and_one_line_says_so() -> None:
    async def main() -> None:
        async with edge() as world:
            first = await logged(world)
            await ask(world, ["a"])
            await until(lambda: ids(world) == ["a"])
            await asyncio.sleep(2 * EVERY_S)  # It has reported the line as well.
            os.kill(first, signal.SIGKILL)
            await ask(world, ["b"])
            await until(lambda: "b" in ids(world))
            assert ids(world) == ["a", "b"], "what the writer did not have yet goes to the next one"
            assert writer(world) != first
            await until(lambda: sum("has ended with -9" in line.get("message", "") for line in lines(world)) == 1)
            assert await fault(world) is None
            assert await dropped(world) == 0

    run(main())


def test_a_writer_that_hangs_holds_nothing_up_and_what_waits_for_it_is_bounded() -> None:
    async def main() -> None:
        async with edge() as world:
            pid = await logged(world)
            os.kill(pid, signal.SIGSTOP)
            try:
                await ask(world, [f"n{number}" for number in range(5 * BATCH)], LONG)
                lost = await dropped(world)
                assert lost > 0
                found = None
                async with asyncio.timeout(5.0):
                    while found is None:
                        await ask(world, [f"m{number}" for number in range(BATCH)], LONG)
                        found = await fault(world)
                assert found == f"the process that writes it {IS_SLOW}; {await dropped(world)} lines were dropped"
            finally:
                os.kill(pid, signal.SIGCONT)
            await until(lambda: len(ids(world)) > BATCH)
            async with asyncio.timeout(5.0):
                while found is not None:
                    await asyncio.sleep(0.05)
                    found = await fault(world)

    run(main())


def test_no_line_is_lost_where_targets_may_be_long() -> None:
    async def main() -> None:
        async with edge() as world:
            await logged(world, {"limits": {"head_bytes": 1 << 21, "target_bytes": 1 << 20}})
            names = [f"n{number}" for number in range(BATCH)]
            line = "GET /{name}{more} HTTP/1.1\r\nhost: a\r\nx-request-id: {name}\r\n\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", world.ports[0])
            writer.writelines(line.format(name=name, more=18_000 * "x").encode() for name in names)
            answers = b""
            while answers.count(b"HTTP/1.1 404 ") < len(names):  # One after the other they would end in many sweeps.
                answers += await reader.read(1 << 16)
            writer.close()
            await until(lambda: ids(world) == names)
            assert await dropped(world) == 0

    run(main())


def test_lines_that_a_killed_worker_has_sent_are_written_and_its_writer_ends() -> None:
    async def main() -> None:
        async with edge() as world:
            pid = await logged(world)
            os.kill(pid, signal.SIGSTOP)
            names = [f"n{number}" for number in range(2 * BATCH)]
            await ask(world, names)
            await asyncio.sleep(0.6)  # two sweeps
            world.workers[0].kill()
            world.workers[0].wait()
            assert ids(world) == []
            os.kill(pid, signal.SIGCONT)
            await until(lambda: ids(world) == names)
            await until(lambda: not is_running(pid))

    run(main())


def test_lines_that_no_disk_took_are_not_reported_as_written_and_no_signal_ends_a_writer_that_starts() -> None:
    ours, theirs = socket.socketpair()
    command = (sys.executable, "-P", "-m", "tidegate.gateway.access_log.main", "text", "0.0", "g0")
    access = AccessLog(1.0, rng=random.Random(3), take=lambda log: None)
    one = ended()
    for _ in range(BATCH):
        access.ended(*one)
    _, batch = access.all()
    with ours, theirs, Path("/dev/full").open("wb") as full:
        writer = spawned(command, theirs, output=full.fileno())
        writer.send_signal(signal.SIGTERM)
        theirs.close()
        ours.settimeout(20.0)
        ours.sendall(batch)
        said = b""
        while b"No space left" not in said:
            said = ours.recv(1 << 16)
        assert json.loads(said.splitlines()[-1]) == [0, 0, "No space left on device"]
    assert writer.wait(20.0) == 0


def test_a_worker_that_ends_waits_for_its_last_line() -> None:
    async def main() -> None:
        async with edge() as world:
            await logged(world)
            await ask(world, ["last"])
            world.workers[0].terminate()
            world.workers[0].wait()
            assert ids(world) == ["last"]

    run(main())
