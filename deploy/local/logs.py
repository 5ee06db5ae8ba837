"""Output of children: files that are appended to and stay small.

A child writes into its file directly (no pipe: a dead reader must not stop a model server). The file is opened for
appending, so its owner can cut it while the child writes. Above the limit the newest lines, half of the limit, are kept
in ``FILE.1`` behind a line that counts the cuts and the bytes before them that were dropped, and the file starts again
at zero. Lines written during the copy may be lost; that is the price of having no reader.
"""

import contextlib
import json
import os
import re
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from tidegate.aio.log_stream import json_line
from tidegate.deploy.local.records import ReplicaDetails

LIMIT_BYTES: Final = 4 * 1024 * 1024
TAIL_BYTES: Final = 16 * 1024
_CUT: Final = re.compile(rb"-- tidegate: cut ([0-9]{1,15}), ([0-9]{1,20}) bytes before this line are lost\n")
_CUT_BYTES: Final = 100
"""The longest first line of a kept part."""


class KeptPart(NamedTuple):
    """The lines before a file's start that its last cut has kept."""

    number: int
    """Of the cut, from 1."""
    start: int
    """Place of the first byte of ``data`` in the file that was cut: so many bytes before it are lost."""
    head: bytes
    """The line that says so."""
    data: bytes


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
    kept, number = _kept_path(path), cut_number(path) + 1
    with path.open("r+b") as file:
        start = size - limit_bytes // 2
        file.seek(start)
        data = file.read(limit_bytes)
        broken = data.find(b"\n") + 1  # the first line has lost its begin, unless it is the only one
        start += broken
        descriptor = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as copy:
            copy.write(b"-- tidegate: cut %d, %d bytes before this line are lost\n" % (number, start))
            copy.write(memoryview(data)[broken:])
        file.truncate(0)
    return True


def cut_number(path: Path) -> int:
    """Returns how often the file was cut; 0 if never."""
    try:
        with _kept_path(path).open("rb") as file:
            found = _CUT.match(file.read(_CUT_BYTES))
    except OSError:
        return 0
    return 0 if found is None else int(found[1])


def kept_part(path: Path) -> KeptPart | None:
    """Returns what the last cut of the file has kept; None if it was never cut. At most the limit of a log is read."""
    try:
        with _kept_path(path).open("rb") as file:
            text = file.read(LIMIT_BYTES + _CUT_BYTES)
    except OSError:
        return None
    found = _CUT.match(text)
    return None if found is None else KeptPart(int(found[1]), int(found[2]), found[0], text[found.end() :])


def _kept_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def mark(path: Path, text: str, at: float, replica: ReplicaDetails | None = None) -> None:
    """Appends a line of Tidegate's own, ``-- tidegate 2026-11-21T10:00:02Z: <text>``, to a child's log. ``at`` is Unix
    seconds. With a replica the line is a JSON object that names it. Without effect if the file cannot be written: the
    same text is in the status."""
    if replica is None:
        stamp = datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        line = f"-- tidegate {stamp}: {text}"
    else:
        names = {"function": replica.function, "revision": replica.revision, "replica": replica.id}
        line = json_line(at, "warning", {"logger": "control", **names}, text)
    with contextlib.suppress(OSError), path.open("ab") as file:
        file.write(f"{line}\n".encode())


def tail(path: Path, lines: int = 20, since: int = 0) -> list[str]:
    """Returns the last lines of the file from byte ``since`` on, across a cut after that. Empty if there are none. Long
    lines are shortened."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(since if since <= size else 0, size - TAIL_BYTES)
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return []
    if size < TAIL_BYTES and (since == 0 or since > size) and (kept := kept_part(path)) is not None:
        data = kept.data[size - TAIL_BYTES :] + data
    text = "\n".join(_message(line) for line in data.decode("utf-8", errors="replace").splitlines())
    cleaned = ("".join(c if c.isprintable() else " " for c in line.expandtabs(4)) for line in text.splitlines())
    return [line[:400] for line in cleaned if line.strip()][-lines:]


def _message(line: str) -> str:
    """Returns the message of a line that is a JSON object of a Tidegate process, any other line as it is."""
    if line.startswith('{"time": '):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return str(json.loads(line)["message"])
    return line


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
