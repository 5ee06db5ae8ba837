"""The output of a function's processes, from the log files of its replicas: the end of each, then the lines added.

Files are checked four times a second while a reader follows. A file that was truncated (see
``tidegate.deploy.local.logs``) is read from its start again.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Final

from tidegate.control.state.notices import ChangeSignal
from tidegate.records.codec import encode

LOOK_EVERY_S: Final = 0.25
LINE_BYTES: Final = 16 * 1024
CHUNK_BYTES: Final = 256 * 1024


class Tail:
    """One file, read forward."""

    def __init__(self, path: Path) -> None:
        name, _, _ = path.name.rpartition(".log")
        self.replica, _, self.source = name.rpartition(".")
        self._path = path
        self._offset = 0
        self._rest = b""

    def last(self, lines: int) -> list[str]:
        """Returns the last lines; :meth:`more` continues behind them."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - CHUNK_BYTES))
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset = size
        whole, newline, self._rest = data.rpartition(b"\n")
        return [_text(line) for line in (whole + newline).splitlines()][-lines:] if lines else []

    def more(self) -> list[str]:
        """Returns whole lines added since. A line without an end is returned when it is finished or too long to wait
        for."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._offset:
                    self._offset, self._rest = 0, b""
                file.seek(self._offset)
                data = file.read(CHUNK_BYTES)
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        return [_text(line) for line in lines]


def files(folder: Path, replica: str | None, source: str) -> list[Path]:
    """Returns the log files of a function's replicas, oldest first."""
    wanted = ("server", "proxy") if source == "all" else (source,)
    found = [
        path
        for kind in wanted
        for path in folder.glob(f"*.{kind}.log")
        if replica is None or path.name.startswith(f"{replica}.")
    ]
    return sorted(found, key=lambda path: (path.stat().st_mtime, path.name))


async def lines(
    folder: Path, *, tail: int, follow: bool, replica: str | None, source: str, until: ChangeSignal
) -> AsyncGenerator[bytes, None]:
    """Yields NDJSON of ``replica``, ``source``, ``line``; with ``follow`` until ``until`` ends or the reader leaves."""
    known: dict[Path, Tail] = {}
    for path in files(folder, replica, source):
        known[path] = Tail(path)
        for record in _records(known[path], known[path].last(tail)):
            yield record
    while follow and not until.has_ended:
        await asyncio.sleep(LOOK_EVERY_S)
        for path in files(folder, replica, source):
            found = known.setdefault(path, Tail(path))
            for record in _records(found, found.more()):
                yield record


def _records(tail: Tail, texts: Iterable[str]) -> Iterable[bytes]:
    return (encode({"replica": tail.replica, "source": tail.source, "line": text}) + b"\n" for text in texts)


def _text(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", errors="replace")
