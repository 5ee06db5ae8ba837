"""Waiting requests of all gateway workers of one machine, in a file that they map into memory.

The file has a directory of functions and one row for each worker process. A row has a cell for each function: requests,
bytes, highest load. A process writes its own row only, and reads the others: no message, no lock, no system call.

A process holds the kernel's lock of its row (an open file description lock) for as long as it lives, however it ends. A
row that can be locked is therefore dead: the process that finds it clears its mark. That is looked at only before a
request would be refused, at most every ``CHECK_S``. The directory is extended under a lock of its own, when a
function's request waits for the first time, and emptied by the first process on a machine without others.

A cell is a machine word at an aligned address, so that it is read whole.
"""

import fcntl
import hashlib
import mmap
import os
import struct
from pathlib import Path
from time import monotonic
from typing import Final

from tidegate.flow.rooms.figures import Others

ROWS: Final = 128
"""Worker processes at a time, those of a hot restart included."""
SLOTS: Final = 4096
"""Functions whose requests have waited. Those beyond keep to each worker's part of their bound."""
CHECK_S: Final = 0.01

_HEAD: Final = 4096
_DIRECTORY_LOCK: Final = ROWS
"""Byte of the file that stands for the directory's lock; those before it stand for the rows."""
_WORDS: Final = 3
_NONE: Final = Others()
_SIZE: Final = _HEAD + 8 * SLOTS + 8 * _WORDS * SLOTS * ROWS


class WaitingBoard:
    """This process's row, and the others'. Raises OSError where the file or its locks cannot be had."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(self._fd).st_size < _SIZE:
                os.ftruncate(self._fd, _SIZE)  # The file has holes where nothing was written.
            self._map = mmap.mmap(self._fd, _SIZE)
        except BaseException:
            os.close(self._fd)
            raise
        view = memoryview(self._map)
        self._marks = view[:ROWS]
        """1 for each row in use."""
        self._names = view[_HEAD : _HEAD + 8 * SLOTS].cast("Q")
        self._words = view[_HEAD + 8 * SLOTS :].cast("Q")
        self._loads = view[_HEAD + 8 * SLOTS :].cast("d")
        self._checked = 0.0
        self._row = self._take_row()
        self._seen_marks = b""
        self._others: list[int] = []
        """The rows of the other processes, by the marks that were seen."""

    def close(self) -> None:
        """Gives the row back."""
        self._marks[self._row] = 0
        for view in (self._marks, self._names, self._words, self._loads):
            view.release()
        self._map.close()
        os.close(self._fd)

    def of(self, function: str) -> "FunctionFigures | None":
        """Returns the figures of a function; None if the directory is full."""
        slot = self._slot(function)
        return None if slot is None else FunctionFigures(self, slot)

    # --- rows ---

    def _take_row(self) -> int:
        """Takes the first row that no living process has."""
        self._lock(_DIRECTORY_LOCK, is_waiting=True)
        try:
            mine = None
            for row in range(ROWS):
                if not self._lock(row):
                    continue
                if mine is None:
                    mine = row
                else:
                    self._unlock(row)
                self._marks[row] = 0
            if mine is None:
                raise OSError(f"{ROWS} gateway workers run already")
            if not any(self._marks):
                self._names[:] = memoryview(bytes(8 * SLOTS)).cast("Q")
            first = mine * SLOTS * _WORDS
            self._words[first : first + SLOTS * _WORDS] = memoryview(bytes(8 * SLOTS * _WORDS)).cast("Q")
            self._marks[mine] = 1
            return mine
        finally:
            self._unlock(_DIRECTORY_LOCK)

    def rows(self) -> list[int]:
        """Returns the rows of the other processes. They are looked for when a mark has changed: this is asked for each
        request that waits."""
        marks = bytes(self._marks)
        if marks != self._seen_marks:
            self._seen_marks = marks
            self._others = [row for row in range(ROWS) if marks[row] == 1 and row != self._row]
        return self._others

    def drop_ended(self) -> bool:
        """Clears the marks of dead rows; returns whether there were any."""
        now = monotonic()
        if now < self._checked + CHECK_S:
            return False
        self._checked = now
        found = False
        for row in self.rows():
            if self._lock(row):
                self._marks[row] = 0
                self._unlock(row)
                found = True
        return found

    # --- functions ---

    def _slot(self, function: str) -> int | None:
        digest = hashlib.blake2b(function.encode(), digest_size=8).digest()
        name = int.from_bytes(digest, "little") or 1
        found = self._find(name)
        if found is not None and self._names[found] == name:
            return found
        self._lock(_DIRECTORY_LOCK, is_waiting=True)
        try:
            found = self._find(name)
            if found is not None:
                self._names[found] = name
            return found
        finally:
            self._unlock(_DIRECTORY_LOCK)

    def _find(self, name: int) -> int | None:
        """Returns the slot of a name, or the free one for it; None if all are taken."""
        for step in range(SLOTS):
            slot = (name + step) % SLOTS
            if self._names[slot] in (0, name):
                return slot
        return None

    # --- cells ---

    def cells(self) -> "tuple[memoryview[int], memoryview[float], int]":
        """Returns the numbers and the loads of all rows, and where this process's row begins in them."""
        return self._words, self._loads, self._row * SLOTS * _WORDS

    # --- locks ---

    def _lock(self, byte: int, *, is_waiting: bool = False) -> bool:
        command = fcntl.F_OFD_SETLKW if is_waiting else fcntl.F_OFD_SETLK
        try:
            fcntl.fcntl(self._fd, command, _flock(fcntl.F_WRLCK, byte))
        except BlockingIOError:
            return False
        return True

    def _unlock(self, byte: int) -> None:
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, byte))

    def __repr__(self) -> str:
        return f"<WaitingBoard row {self._row}, others {self.rows()}>"


class FunctionFigures:
    """One function on the board."""

    __slots__ = ("_at", "_board", "_loads", "_slot", "_words")

    def __init__(self, board: WaitingBoard, slot: int) -> None:
        self._board = board
        self._slot = slot
        self._words, self._loads, first = board.cells()
        self._at = first + slot * _WORDS

    def resize(self, requests: int, size: int, longest_s: float) -> None:
        """Does nothing: the bounds are the room's."""

    def publish(self, requests: int, size: int, load: float) -> None:
        """Replaces this process's figures."""
        at = self._at
        self._words[at] = requests
        self._words[at + 1] = size
        self._loads[at + 2] = load

    def others(self) -> Others:
        """Returns the sums of all other processes."""
        words, requests, size, load = self._words, 0, 0, 0.0
        for row in self._board.rows():
            at = (row * SLOTS + self._slot) * _WORDS
            if words[at]:
                requests += words[at]
                size += words[at + 1]
                load = max(load, self._loads[at + 2])
        return Others(requests, size, load) if requests else _NONE

    def drop_ended(self) -> bool:
        """Leaves out processes that have ended; returns whether there were any."""
        return self._board.drop_ended()

    def __repr__(self) -> str:
        return f"<FunctionFigures slot {self._slot}, others {self.others()}>"


def _flock(kind: int, byte: int) -> bytes:
    """Returns a ``struct flock`` for one byte of the file."""
    return struct.pack("hhqqi0q", kind, os.SEEK_SET, byte, 1, 0)
