"""Time and CPU of uploads through a gateway worker: real processes on loopback, one client, one body after the other.

    python -m benchmarks.micro.upload_bench [--rounds 20] [--halting]

Bodies of 100 KB come in two pieces, 20 KB and the rest, so that the first does not hold all of it; those of 10 MB as
fast as they are read, or with ``--halting`` after a first piece of 20 KB and the time that a copy of the rest takes.
Prints one JSON line per size: the least and the median milliseconds of an upload, from the
first byte sent to the answer, and the CPU milliseconds that the gateway worker used for one.
"""

import argparse
import asyncio
import json
import statistics
from pathlib import Path
from time import perf_counter

from tests.support.live.live_edge import Edge, edge, table

SIZES = (100_000, 10_000_000)
FIRST = 20_000


def cpu_ms(pid: int) -> float:
    """CPU time that a process has used."""
    return sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e6


async def upload(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes, is_halting: bool = True
) -> float:
    """Returns the milliseconds until the answer."""
    head = b"POST /functions/f/upload HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    whole = head + body
    began = perf_counter()
    if is_halting:
        writer.write(whole[: len(head) + FIRST])
        await asyncio.sleep(0)
        writer.write(whole[len(head) + FIRST :])
    else:
        writer.write(whole)
    await writer.drain()
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    await reader.readexactly(length)
    return (perf_counter() - began) * 1e3


async def measure(world: Edge, size: int, rounds: int, is_halting: bool) -> dict[str, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    body = b"x" * size
    for _ in range(5):
        await upload(reader, writer, body, is_halting)
    before = cpu_ms(world.workers[0].pid)
    times = [await upload(reader, writer, body, is_halting) for _ in range(rounds)]
    used = cpu_ms(world.workers[0].pid) - before
    writer.close()
    return {
        "bytes": size,
        "least_ms": round(min(times), 3),
        "median_ms": round(statistics.median(times), 3),
        "gateway_cpu_ms": round(used / rounds, 3),
    }


async def run(rounds: int, is_halting: bool) -> None:
    async with edge() as world:
        world.start_gateway()
        replica = world.start_replica(limit="4")
        await world.gateway_ready()
        await world.replica_ready(replica)
        await world.put_table(table(1, replica, protocol="http"))
        for size in SIZES:
            print(json.dumps(await measure(world, size, rounds, is_halting or size == SIZES[0])))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--halting", action="store_true", help="the large bodies, too, begin with a piece of 20 KB")
    chosen = options.parse_args()
    asyncio.run(run(chosen.rounds, chosen.halting))


if __name__ == "__main__":
    main()
