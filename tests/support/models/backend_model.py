"""A model server for tests of backends: ``python backend_model.py --port N | --socket PATH [--ready-after S] ...``

``GET /ready`` answers 200 once it is ready; ``GET /hold`` is answered after ``POST /release``; ``GET /die`` ends it.
Standard library only, so it starts in a few milliseconds.
"""

import argparse
import asyncio
import os
import sys


class Server:
    def __init__(self, ready_after_s: float) -> None:
        self.ready_at = asyncio.get_running_loop().time() + ready_after_s
        self.released = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await self._head(reader):
                status, body = await self._answer(*head)
                writer.write(f"HTTP/1.1 {status} .\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> tuple[str, str] | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return None
        for line in head.splitlines():
            if line.lower().startswith("content-length:"):
                await reader.readexactly(int(line.partition(":")[2]))
        method, path, _ = head.split(" ", 2)
        return method, path

    async def _answer(self, method: str, path: str) -> tuple[int, str]:
        if path == "/ready":
            return (200, "ok") if asyncio.get_running_loop().time() >= self.ready_at else (503, "loading")
        if path == "/hold":
            await self.released.wait()
            return 200, "held"
        if path == "/release":
            self.released.set()
        if path == "/die":
            sys.stderr.write("Traceback: the weights are cursed\n")
            sys.stderr.flush()
            os._exit(3)
        return 200, path


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--socket")
    parser.add_argument("--ready-after", type=float, default=0.0)
    parser.add_argument("--die-at-start")
    parser.add_argument("--ignore-sigterm", action="store_true")
    parser.add_argument("--child", action="store_true", help="start a process that outlives this one")
    parser.add_argument("--daemon", action="store_true", help="start one in a session of its own")
    arguments = parser.parse_args()
    if arguments.die_at_start:
        sys.exit(arguments.die_at_start)
    if arguments.ignore_sigterm:
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if arguments.child or arguments.daemon:
        import subprocess

        nap = [sys.executable, "-c", "import time; time.sleep(60)"]
        subprocess.Popen(nap, start_new_session=arguments.daemon)  # noqa: ASYNC220 - before serving
    server = Server(arguments.ready_after)
    if arguments.socket:
        listener = await asyncio.start_unix_server(server.serve, arguments.socket)
    else:
        listener = await asyncio.start_server(server.serve, "127.0.0.1", arguments.port)
    print("model server listens", flush=True)  # noqa: T201
    async with listener:
        await listener.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
