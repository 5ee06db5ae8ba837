"""Which process listens on a port of this machine, read from /proc (Linux). Elsewhere it stays unknown."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.deploy.local.records import MARK

_LISTEN: Final = "0A"
"""State of a listening socket in /proc/net/tcp."""
_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True)
class PortHolder:
    """A process that listens on a port."""

    pid: int
    program: str
    """First words of its command."""
    is_ours: bool
    """Whether it belongs to Tidegate: a control process, or a child of one."""


def holder_of(port: int) -> PortHolder | None:
    """Returns the process that listens on a TCP port; None if none does, or if it may not be looked at."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    if not sockets:
        return None
    for folder in _PROC.glob("[0-9]*"):
        try:
            opened = any(str(each.readlink()) in sockets for each in (folder / "fd").iterdir())
        except OSError:
            continue  # it has ended, or belongs to another user
        if opened:
            return _described(folder)
    return None


def _listening(port: int) -> list[str]:
    """Returns the inodes of the sockets that listen on a port."""
    found = []
    for table in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found.append(fields[9])
    return found


def _described(folder: Path) -> PortHolder | None:
    try:
        words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        environment = (folder / "environ").read_bytes()
    except OSError:
        return None
    text = " ".join(word for word in words if word)
    is_child = f"\0{MARK}=".encode() in b"\0" + environment
    return PortHolder(pid=int(folder.name), program=text[:60], is_ours=is_child or "tidegate" in text)
