"""The queue_proxy process: ``python -P -m tidegate.queue_proxy.main``, configured by its environment only."""

import tidegate.aio.first_process  # noqa: F401

# isort: split
import os
import socket
import sys
import time
from pathlib import Path

from tidegate.aio import log_stream
from tidegate.aio.loop.run import run
from tidegate.aio.loop.sockets import inherited, listen
from tidegate.errors import InvalidInputError
from tidegate.queue_proxy.live import QueueProxy
from tidegate.queue_proxy.settings import ProxySettings, read_settings

EXIT_INVALID = 2


def main() -> int:
    """Runs one queue_proxy to its end. Returns the exit code of the process."""
    log_stream.from_environment(os.environ)
    try:
        settings = read_settings(os.environ)
        token = _token(settings)
        sock = _socket(settings)
    except (InvalidInputError, OSError) as error:
        log_stream.say(f"queue_proxy cannot start: {error}", level="error")
        return EXIT_INVALID
    run(_serve(settings, token, sock))
    return 0


async def _serve(settings: ProxySettings, token: bytes | None, sock: socket.socket) -> None:
    proxy = QueueProxy(settings, token=token, incarnation=os.urandom(8).hex(), age_s=_age_s())
    await proxy.serve(sock)


def _token(settings: ProxySettings) -> bytes | None:
    """Returns the deployment's token. Raises OSError if the file cannot be read."""
    if settings.token_file is None:
        return None
    return Path(settings.token_file).read_bytes().strip() or None


def _socket(settings: ProxySettings) -> socket.socket:
    if settings.listen_fd is not None:
        return inherited(settings.listen_fd)
    return listen(f"0.0.0.0:{settings.serving_port}")


def _age_s() -> float:
    """Returns the seconds since this process was executed, as the kernel counts them. Returns 0 if they are unknown."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        booted = time.clock_gettime(time.CLOCK_BOOTTIME)
    except (OSError, AttributeError, ValueError, IndexError):
        return 0.0
    return max(0.0, booted - ticks / os.sysconf("SC_CLK_TCK"))


if __name__ == "__main__":
    sys.exit(main())
