"""The part of a queue_proxy that a backend sees, in one file: readiness, ``/events``, orders with epochs, drain.

It stands in where the subject is the backend and not the proxy: it relays bytes, counts open connections as work, and
can be made to say garbage (an argument ``garbage``). Standard library only.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys


class StandIn:
    def __init__(self) -> None:
        env = os.environ
        self.upstream = env["TIDEGATE_UPSTREAM"]
        self.path = env["TIDEGATE_READINESS_PATH"]
        self.timeout_s = float(env["TIDEGATE_START_TIMEOUT_SECONDS"])
        self.epoch = int(env["TIDEGATE_EPOCH"])
        self.state, self.work = "starting", 0
        self.message: str | None = None
        self.phases = {f"{n}_s": float(v) for n, _, v in (p.partition("=") for p in env["TIDEGATE_PHASES"].split(","))}
        self.changed = asyncio.Condition()
        self.number = 0
        self.stopped = asyncio.Event()
        self.stopping = False

    async def become(self, state: str, message: str | None = None) -> None:
        self.state, self.message = state, message
        self.number += 1
        async with self.changed:
            self.changed.notify_all()
        if self.stopping and state in ("drained", "failed"):
            self.stopped.set()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.upstream.startswith("unix:"):
            return await asyncio.open_unix_connection(self.upstream[5:])
        host, _, port = self.upstream.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def probe(self) -> None:
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - began < self.timeout_s:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await self.connect()
                writer.write(f"GET {self.path} HTTP/1.1\r\nHost: m\r\n\r\n".encode())
                line = await reader.readline() if self.path else b"HTTP/1.1 200"
                writer.close()
                if line.split(b" ")[1:2] == [b"200"]:
                    self.phases["load_s"] = asyncio.get_running_loop().time() - began
                    await self.become("ready")
                    return
            await asyncio.sleep(0.01)
        await self.become("failed", f"not ready within {self.timeout_s:g} s")

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.work += 1
        try:
            up_reader, up_writer = await self.connect()
            await asyncio.gather(pipe(reader, up_writer), pipe(up_reader, writer))
        except OSError:
            writer.close()
        finally:
            self.work -= 1
            await self.check_drained()

    async def check_drained(self) -> None:
        if self.state == "draining" and self.work == 0:
            await self.become("drained")

    async def drain(self) -> None:
        if self.state == "starting":
            await self.become("drained")
        elif self.state == "ready":
            await self.become("draining")
            await self.check_drained()

    async def terminate(self) -> None:
        self.stopping = True
        await self.drain()
        if self.state in ("drained", "failed"):
            self.stopped.set()

    async def admin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    (int(x.split(":")[1]) for x in head.splitlines() if x.lower()[:15] == "content-length:"), 0
                )
                body = await reader.readexactly(length)
                method, path, _ = head.split(" ", 2)
                if (method, path) == ("GET", "/events"):
                    await self.events(writer)
                else:
                    status = await self.order(path[1:], json.loads(body))
                    writer.write(f"HTTP/1.1 {status} .\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    async def order(self, what: str, order: dict[str, int]) -> int:
        if order["epoch"] < self.epoch:
            return 409
        self.epoch = order["epoch"]
        if what == "drain":
            await self.drain()
        elif what == "revive" and self.state in ("draining", "drained"):
            await self.become("ready")
        return 200

    async def events(self, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 .\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            told = self.number
            line = json.dumps({"state": self.state, "phases": self.phases, "limit": 4, "message": self.message}) + "\n"
            if "garbage" in sys.argv:
                line = "<html>\n"
            writer.write(f"{len(line):x}\r\n{line}\r\n".encode())
            await writer.drain()
            async with self.changed:
                while self.number == told:
                    await self.changed.wait()


async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def main() -> None:
    stand_in = StandIn()
    loop = asyncio.get_running_loop()
    tasks = []
    loop.add_signal_handler(signal.SIGTERM, lambda: tasks.append(loop.create_task(stand_in.terminate())))
    listener = socket.socket(fileno=int(os.environ["TIDEGATE_LISTEN_FD"]))
    await asyncio.start_unix_server(stand_in.relay, sock=listener)
    await asyncio.start_unix_server(stand_in.admin, os.environ["TIDEGATE_ADMIN"].removeprefix("unix:"))
    tasks.append(loop.create_task(stand_in.probe()))
    await stand_in.stopped.wait()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
