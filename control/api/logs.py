"""The output of a function's processes, from the log files of its replicas: the end of each, then the lines added.

Files are checked four times a second while a reader follows. A file that was cut (see
``tidegate.deploy.local.logs``) is read on in its kept part, then from its start; the line about lost bytes is among the
lines where bytes were lost. Files are cut and read in one thread, so no cut falls into a reading.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Final

from tidegate.control.state.notices import ChangeSignal
from tidegate.deploy.local.logs import LIMIT_BYTES, cut_number, kept_part
from tidegate.records.codec import encode

LOOK_EVERY_S: Final = 0.25
LINE_BYTES: Final = 16 * 1024
CHUNK_BYTES: Final = 256 * 1024
PIECE_LINES: Final = 500
FEW_LINES: Final = 1000
"""Last lines that are looked for in one chunk; more of them in all that is kept."""


class Tail:
    """One file, read forward."""

    def __init__(self, path: Path) -> None:
        name, _, _ = path.name.rpartition(".log")
        self.replica, _, self.source = name.rpartition(".")
        self._path = path
        self._offset = 0
        self._rest = b""
        self._cuts = 0
        """Cuts of the file that were seen."""

    def last(self, lines: int) -> list[str]:
        """Returns the last lines, across the last cut; :meth:`more` continues behind them."""
        self._cuts = cut_number(self._path)
        window = CHUNK_BYTES if lines <= FEW_LINES else LIMIT_BYTES
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - window))
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset = size
        if size <= window and data.count(b"\n") < lines and (kept := kept_part(self._path)) is not None:
            data = (kept.head + kept.data)[-window - len(kept.head) :] + data
        whole, newline, self._rest = data.rpartition(b"\n")
        return [_text(line) for line in (whole + newline).splitlines()][-lines:] if lines else []

    def more(self) -> list[str]:
        """Returns whole lines added since. A line without an end is returned when it is finished or too long to wait
        for."""
        missed = self._missed()
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
        *lines, self._rest = (self._rest + missed + data).split(b"\n")
        if len(self._rest) > LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        return [_text(line) for line in lines]

    def _missed(self) -> bytes:
        """Returns what cuts since the last reading have kept of the bytes not read yet, and begins the file again."""
        if cut_number(self._path) == self._cuts or (kept := kept_part(self._path)) is None:
            return b""
        unread = self._offset - kept.start
        is_next, self._cuts, self._offset = kept.number == self._cuts + 1, kept.number, 0
        if is_next and unread >= 0:
            return kept.data[unread:]
        broken, self._rest = self._rest, b""
        return (broken + b"\n" if broken else b"") + kept.head + kept.data


def files(folders: Sequence[Path], replica: str | None, source: str) -> list[Path]:
    """Returns the log files of the replicas of some functions, oldest first."""
    wanted = ("server", "proxy") if source == "all" else (source,)
    found = [
        path
        for kind in wanted
        for folder in folders
        for path in folder.glob(f"*.{kind}.log")
        if replica is None or path.name.startswith(f"{replica}.")
    ]
    return sorted(found, key=lambda path: (path.stat().st_mtime, path.name))


async def lines(
    folders: Sequence[Path], *, tail: int, follow: bool, replica: str | None, source: str, until: ChangeSignal
) -> AsyncGenerator[bytes, None]:
    """Yields pieces of NDJSON of ``replica``, ``source``, ``line``, whole lines each; with ``follow`` until ``until``
    ends or the reader leaves."""
    known: dict[Path, Tail] = {}
    for path in files(folders, replica, source):
        known[path] = Tail(path)
        for records in _records(known[path], known[path].last(tail)):
            yield records
            await asyncio.sleep(0)
    while follow and not until.has_ended:
        await asyncio.sleep(LOOK_EVERY_S)
        for path in files(folders, replica, source):
            found = known.setdefault(path, Tail(path))
            for records in _records(found, found.more()):
                yield records
                await asyncio.sleep(0)


def _records(tail: Tail, texts: Sequence[str]) -> Iterator[bytes]:
    """Yields the lines in pieces; the loop does its other work between two, while a flood of lines is read."""
    for first in range(0, len(texts), PIECE_LINES):
        yield b"".join(
            encode({"replica": tail.replica, "source": tail.source, "line": text}) + b"\n"
            for text in texts[first : first + PIECE_LINES]
        )


def _text(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", errors="replace")
