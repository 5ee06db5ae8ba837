"""HAProxy straight before the queue_proxies of a function: the same replicas, another one's choice among them."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.deployment import free_port
from benchmarks.macro.harness import WHERE, open_socket

START_S = 5.0
_CONFIG = """
global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 75s
  timeout server 75s
  http-reuse always
frontend front
  bind 127.0.0.1:{port} backlog 4096
  default_backend replicas
backend replicas
  balance {balance}
{servers}
"""


def program() -> str | None:
    """Where it is; None: not on this machine."""
    return shutil.which("haproxy", path=WHERE)


def config(port: int, balance: str, addresses: Sequence[str]) -> str:
    """``addresses``: ``host:port`` or ``unix:/path``."""
    servers_at = [f"unix@{each.removeprefix('unix:')}" if each.startswith("unix:") else each for each in addresses]
    servers = "\n".join(f"  server replica{number} {each}" for number, each in enumerate(servers_at))
    return _CONFIG.format(port=port, balance=balance, servers=servers)


@contextmanager
def in_front(haproxy: str, balance: str, addresses: Sequence[str]) -> Iterator[str]:
    """The address of a HAProxy with this rule; it ends with the block."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="haproxy-") as folder:
        file = Path(folder) / "haproxy.cfg"
        file.write_text(config(port, balance, addresses))
        process = subprocess.Popen([haproxy, "-q", "-db", "-f", str(file)], stdin=subprocess.DEVNULL)
        try:
            _await(f"127.0.0.1:{port}", process)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(10)


def _await(address: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while True:
        try:
            open_socket(address).close()
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"HAProxy does not listen on {address}: {error}") from error
            time.sleep(0.02)
