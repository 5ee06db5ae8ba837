"""A model server with moods: ``python moody_model.py unix:/path``. Standard library only.

``POST /mood`` with ``{"breaks": true}`` makes it close the connection of every inference, with ``{"delay_s": 3}`` makes
them slow; ``GET /stats`` counts what came (``total``), what runs, and what its client gave up (``cancelled``).
``GET /probe`` is 503 while it breaks; ``GET /v2/health/ready`` is always well: nobody but the gateway sees the fault.
"""

import asyncio
import contextlib
import json
import sys
from typing import Any


class Model:
    def __init__(self) -> None:
        self.mood: dict[str, Any] = {"breaks": False, "delay_s": 0.0}
        self.total = self.running = self.cancelled = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().splitlines()
                method, path, _ = lines[0].split(" ")
                length = next((line[15:] for line in lines if line.startswith("content-length:")), "0")
                body = await reader.readexactly(int(length))
                status, answer = 200, b"{}"
                if path == "/mood":
                    self.mood.update(json.loads(body))
                elif path == "/stats":
                    stats = {"total": self.total, "running": self.running, "cancelled": self.cancelled}
                    answer = json.dumps(stats).encode()
                elif path == "/probe":
                    status = 503 if self.mood["breaks"] else 200
                elif method == "post" and not await self._infer(reader):
                    break
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(answer), answer))
                await writer.drain()
        writer.close()

    async def _infer(self, reader: asyncio.StreamReader) -> bool:
        """Works until the client leaves; False: no answer."""
        self.total += 1
        self.running += 1
        try:
            async with asyncio.timeout(self.mood["delay_s"] or 0.01):
                await reader.read(1)
        except TimeoutError:
            return not self.mood["breaks"]
        finally:
            self.running -= 1
        self.cancelled += 1
        return False


async def main(path: str) -> None:
    model = Model()
    server = await asyncio.start_unix_server(model.serve, path, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1].removeprefix("unix:")))
