"""Listening addresses of a replica's processes: unix sockets in the run folder, and ports for servers that need one."""

import hashlib
import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

NAME_LIMIT: Final = 40
"""Bytes of a name in the run folder. The path must fit into a unix socket's address."""
BACKLOG: Final = 1024

PROXY: Final = ".q"
ADMIN: Final = ".a"
MODEL: Final = ".m"
_SUFFIXES: Final = (PROXY, ADMIN, MODEL)


def socket_path(run: Path, replica_id: str, suffix: str) -> Path:
    """Returns ``run/<replica><suffix>``. A long name is replaced by its digest."""
    name = f"{replica_id}{suffix}"
    if len(name) > NAME_LIMIT:
        name = f"{hashlib.sha256(replica_id.encode()).hexdigest()[:24]}{suffix}"
    return run / name


def model_socket(run: Path, replica_id: str) -> Path:
    """Returns the socket of a replica's model server, in a folder of its own: a confined server gets no other."""
    return socket_path(run, replica_id, MODEL) / "s"


def make_folder(address: str) -> None:
    """Makes the folder of a model server's own socket (mode 0700)."""
    folder = Path(address.removeprefix("unix:")).parent
    if folder.suffix == MODEL:
        folder.mkdir(mode=0o700, exist_ok=True)


def listen(path: Path) -> socket.socket:
    """Returns a listening unix socket, to be inherited. Connections wait in it until its process accepts them."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def choose_port(wanted: int | None, taken: Collection[int]) -> int:
    """Returns ``wanted`` if it is free, else any free port outside ``taken``.

    The port is free at this moment. A server that finds it taken nevertheless fails and is started again, with another.
    """
    if wanted is not None and wanted not in taken and _is_free(wanted):
        return wanted
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in taken:
            return port


def _is_free(port: int) -> bool:
    """Binds for a moment without listening, so nothing can connect."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def sweep(run: Path, living: Collection[str]) -> None:
    """Removes the sockets that a crash left behind: all except those with addresses in ``living``."""
    for path in run.iterdir():
        if path.suffix == MODEL and path.is_dir():
            if f"unix:{path / 's'}" not in living:
                unlink(f"unix:{path / 's'}")
        elif path.suffix in _SUFFIXES and f"unix:{path}" not in living:
            path.unlink(missing_ok=True)


def unlink(address: str) -> None:
    """Removes the file of a ``unix:/path`` address, and the folder of a model server's own socket."""
    kind, _, name = address.partition(":")
    if kind != "unix":
        return
    path = Path(name)
    path.unlink(missing_ok=True)
    if path.parent.suffix == MODEL:
        with suppress(OSError):  # The server left something else in it.
            path.parent.rmdir()
