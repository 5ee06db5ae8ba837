"""``python -P -m tidegate.runtime.asgi.main``: serves an ASGI application by uvicorn until SIGTERM.

The address accepts connections once the application's lifespan start-up is complete: that is its readiness. Exit codes
are those of ``tidegate.runtime.main``.
"""

import tidegate.aio.first_process  # noqa: F401

# isort: split
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from tidegate.aio import log_stream
from tidegate.aio.loop import sockets
from tidegate.errors import InvalidInputError
from tidegate.runtime import confine
from tidegate.runtime import settings as environment
from tidegate.runtime.asgi import application
from tidegate.runtime.errors import LoadError

EXIT_ADDRESS, EXIT_SETTINGS, EXIT_LOAD = 1, 2, 3
_IDLE_S = 3600
"""Time after which an idle connection of the queue_proxy is closed: it closes its own long before."""
_HEAD_BYTES = 2 << 20
"""Largest request head: the front door has a limit of its own."""


def _bound(address: str) -> socket.socket:
    """Returns a socket that is bound and does not listen yet. Raises OSError."""
    if not sockets.is_unix(address):
        host, port = sockets.host_port(address)
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        return sock
    path = Path(address.removeprefix(sockets.UNIX))
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    path.chmod(0o600)
    return sock


def _serve(app: Any, sock: socket.socket, uvicorn: Any) -> int:
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        proxy_headers=True,
        forwarded_allow_ips="*",
        server_header=False,
        timeout_keep_alive=_IDLE_S,
        h11_max_incomplete_event_size=_HEAD_BYTES,
    )
    server = uvicorn.Server(config)
    # uvicorn raises the signals that it has handled once more at its end: they must not be this process's end.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    with contextlib.suppress(SystemExit):  # uvicorn's way to end after a failed start-up
        server.run(sockets=[sock])
    return 0 if server.started else EXIT_LOAD


def main() -> int:
    confine.from_environment(os.environ)  # Before a thread is started.
    try:
        settings = environment.parse_asgi(os.environ)
    except InvalidInputError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_SETTINGS
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    log_stream.from_environment(os.environ)
    try:
        import uvicorn  # Before the application's folder is on the path.
    except ImportError:
        sys.stderr.write(f"uvicorn is not installed: {sys.executable} -m pip install uvicorn\n")
        return EXIT_LOAD
    try:
        app = application.load(*settings.application, settings.copy, settings.modules)
    except LoadError as error:
        log_stream.say(f"the application cannot be served: {error}", level="error")
        return EXIT_LOAD
    try:
        sock = _bound(settings.listen)
    except OSError as error:
        log_stream.say(f"cannot listen on {settings.listen}: {error}", level="error")
        return EXIT_ADDRESS
    with sock:
        code = _serve(app, sock, uvicorn)
    if sockets.is_unix(settings.listen):
        sockets.remove(settings.listen)
    if code:
        sys.stderr.write("the application cannot be served: its lifespan start-up failed; the lines before say why\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
