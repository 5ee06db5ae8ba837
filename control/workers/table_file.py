"""RouteTableFile: the route table as a file, which a gateway worker reads when it starts."""

import asyncio
from pathlib import Path
from typing import Final

from tidegate.aio.loop.tasks import TaskOwner
from tidegate.control.state.directory import write_atomically
from tidegate.control.state.notices import Faults
from tidegate.records.codec import encode
from tidegate.records.route_table import RouteTable

RETRY_S: Final = 1.0
"""Time between two attempts to write what could not be written."""
SUBJECT: Final = "route table file"


class RouteTableFile:
    """The file. One that cannot be written is a fault until it is, and is tried again: a worker that starts meanwhile
    works from an older table until its link is there."""

    def __init__(self, path: Path, faults: Faults, owner: TaskOwner) -> None:
        self._path = path
        self._faults = faults
        self._owner = owner
        self._unwritten: RouteTable | None = None
        self._retrying: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<RouteTableFile {self._path}, {'written' if self._unwritten is None else 'not written'}>"

    def write(self, table: RouteTable) -> None:
        """Writes a table, now or as soon as the file can be written."""
        self._unwritten = table
        if not self._is_written() and (self._retrying is None or self._retrying.done()):
            self._retrying = self._owner.spawn(self._retry(), name=SUBJECT)

    async def _retry(self) -> None:
        while True:
            await asyncio.sleep(RETRY_S)
            if self._is_written():
                return

    def _is_written(self) -> bool:
        """Writes what is left to write; returns whether the file has it."""
        if self._unwritten is None:
            return True
        try:
            write_atomically(self._path, encode(self._unwritten), durable=False)
        except OSError as error:
            self._faults.set(SUBJECT, f"{self._path}: {error.strerror}")
            return False
        self._unwritten = None
        self._faults.clear(SUBJECT)
        return True
