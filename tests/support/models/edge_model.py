"""A model server that counts what runs in it: ``python edge_model.py --listen unix:/path | host:port [--delay S]``.

``--delay``: seconds before it listens (its load time). ``POST /v2/models/NAME/infer`` works for ``x-work-ms`` and
answers with ``x-size`` bytes or the number of the request; ``GET /stats`` tells the most that ran at once and how many
did; ``GET /v2/models/NAME`` is metadata. ``x-die`` in a request ends the process in the middle of the work. Standard
library only.

``most`` counts requests whose connection the other side still holds, which is what a slot bounds (slots, rule 7): the
kernel is asked, since this loop may see the next request before it sees the end of an aborted connection.
``most_worked`` counts what was computed at once, for whomever.
"""

import argparse
import asyncio
import contextlib
import json
import os
import select


def closed_by_peer(fd: int) -> bool:
    """Whether the kernel knows that the other side has closed or reset this connection."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    return bool(poll.poll(0))


class Model:
    def __init__(self, declared: int) -> None:
        self.declared = declared
        self.running = self.most = self.most_worked = self.total = 0
        self.working: list[asyncio.StreamWriter] = []
        """The connections whose requests run."""
        self.seen: list[dict[str, str]] = []

    def waited_for(self) -> int:
        """Running requests whose connection the other side still holds."""
        fds = [one.get_extra_info("socket").fileno() for one in self.working]
        return sum(fd >= 0 and not closed_by_peer(fd) for fd in fds)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
                method, path, _ = head[0].split(" ")
                fields = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in head[1:] if x)}
                body = await self._body(reader, fields)
                status, answer, kind = await self._answer(method, path, fields, body, writer)
                writer.write(
                    f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(answer)}\r\n\r\n".encode()
                    + answer
                )
                await writer.drain()
        writer.close()

    async def _body(self, reader: asyncio.StreamReader, fields: dict[str, str]) -> bytes:
        if fields.get("transfer-encoding") != "chunked":
            return await reader.readexactly(int(fields.get("content-length", "0")))
        parts = []
        while size := int(await reader.readline(), 16):
            parts.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(parts)

    async def _answer(
        self, method: str, path: str, fields: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> tuple[int, bytes, str]:
        kind = "application/json"
        if path == "/v2/health/ready":
            return 200, b'{"ready":true}', kind
        if path == "/tidegate/declared":
            return (
                (200, json.dumps({"concurrency": self.declared}).encode(), kind) if self.declared else (404, b"", kind)
            )
        if path == "/stats":
            stats = {"most": self.most, "most_worked": self.most_worked, "total": self.total, "running": self.running}
            return 200, json.dumps(stats | {"seen": self.seen[-20:]}).encode(), kind
        if method == "GET":
            return 200, json.dumps({"name": path.rsplit("/", 1)[-1], "platform": "edge"}).encode(), kind
        self.running += 1
        self.total += 1
        self.working.append(writer)
        self.most = max(self.most, self.waited_for())
        self.most_worked = max(self.most_worked, self.running)
        self.seen.append(fields | {"path": path})
        try:
            if "x-die" in fields:
                await asyncio.sleep(0.05)
                os._exit(3)
            await asyncio.sleep(float(fields.get("x-work-ms", "0")) / 1000)
        finally:
            self.running -= 1
            self.working.remove(writer)
        size = int(fields.get("x-size", "0"))
        answer = b"x" * size if size else json.dumps({"n": self.total, "bytes": len(body)}).encode()
        return int(fields.get("x-status", "200")), answer, kind


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", required=True)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--declared", type=int, default=0)
    options = parser.parse_args()
    await asyncio.sleep(options.delay)
    model = Model(options.declared)
    if options.listen.startswith("unix:"):
        server = await asyncio.start_unix_server(model.serve, options.listen[5:], backlog=1024)
    else:
        host, _, port = options.listen.rpartition(":")
        server = await asyncio.start_server(model.serve, host, int(port), backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
