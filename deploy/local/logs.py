"""Output of children: files that are appended to and stay small.

A child writes into its file directly (no pipe: a dead reader must not stop a model server). The file is opened for
appending, so its owner can cut it while the child writes. Above the limit the newest half is kept in ``FILE.1`` and the
file starts again at zero. Lines written during the copy may be lost; that is the price of having no reader.
"""

import contextlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

LIMIT_BYTES: Final = 4 * 1024 * 1024
TAIL_BYTES: Final = 16 * 1024


def open_log(path: Path) -> int:
    """Returns a descriptor for a child's standard output and error. Makes the folder. The caller closes the
    descriptor."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def trim(path: Path, limit_bytes: int = LIMIT_BYTES) -> bool:
    """Cuts the file if it is above its limit. Returns True if it did."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return False
    if size <= limit_bytes:
        return False
    kept = path.with_name(f"{path.name}.1")
    with path.open("r+b") as file:
        file.seek(max(0, size - limit_bytes // 2))
        descriptor = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as copy:
            copy.write(file.read(limit_bytes))
        file.truncate(0)
    return True


def tail(path: Path, lines: int = 20, since: int = 0) -> list[str]:
    """Returns the last lines of the file from byte ``since`` on. Empty if there are none. Long lines are shortened."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(since if since <= size else 0, size - TAIL_BYTES)
            file.seek(start)
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    cleaned = ("".join(c if c.isprintable() else " " for c in line.expandtabs(4)) for line in text.splitlines())
    return [line[:400] for line in cleaned if line.strip()][-lines:]


def prune(folder: Path, kept: int, living: Collection[str]) -> int:
    """Deletes the oldest logs of replicas outside ``living`` until ``kept`` files are left. Returns the number
    deleted."""
    aged = []
    for path in folder.glob("*.log*"):
        with contextlib.suppress(FileNotFoundError):
            aged.append((path.stat().st_mtime, path))
    aged.sort(key=lambda entry: (entry[0], entry[1].name))
    removable = [path for _, path in aged if path.name.split(".", 1)[0] not in living]
    surplus = removable[: max(0, len(aged) - kept)]
    for path in surplus:
        path.unlink(missing_ok=True)
    return len(surplus)
