"""One control process at a time has the records of a name: who it is stands in the store, and that it lives.

Two of them would both own the functions of that name, and each would undo what the other writes. An embedded store is
in a directory that is locked anyhow; records in Redis can be reached from anywhere.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from tidegate.control.state.notices import Faults
from tidegate.errors import TidegateError
from tidegate.records.codec import CodecError, decode, encode
from tidegate.store.records import ConflictError, Record, Store, StoreError

KEY: Final = "owner"
BEAT_S: Final = 5.0
GONE_S: Final = 20.0
"""An owner that has not been heard of for so long is gone. Machines' clocks may differ by some seconds."""
SUBJECT: Final = "store"


class OwnedError(TidegateError):
    """Another control process has this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    directory: str
    """What its state directory is called."""
    host: str
    pid: int
    at: float
    """Unix seconds of the wall clock, when it was last heard of."""


class Ownership:
    """This control process's, from :meth:`claim` on."""

    def __init__(self, store: Store, directory: str, faults: Faults) -> None:
        """``directory``: what this state directory is called; another life of it is the same owner."""
        self._store = store
        self._directory = directory
        self._faults = faults
        self._version = 0

    async def claim(self, now: float) -> None:
        """Raises OwnedError where another one lives, StoreFaultError."""
        found = await self._store.get(KEY)
        owner = self._other(found)
        if owner is not None and now - owner.at < GONE_S:
            raise OwnedError(
                f"{self._store.place}: process {owner.pid} on {owner.host} has this name, and lives; end that one, or"
                " choose another name with --store-name"
            )
        try:
            await self._write(now, 0 if found is None else found.version)
        except ConflictError as error:
            raise OwnedError(f"{self._store.place}: another process takes this name at this moment") from error

    async def run(self, wall: Callable[[], float]) -> None:
        """Says that it lives, until cancelled."""
        while True:
            await asyncio.sleep(BEAT_S)
            await self.beat(wall())

    async def beat(self, now: float) -> None:
        """Says that it lives. One that was taken for gone (asleep, cut off) leaves the other its name, and tells."""
        try:
            await self._write(now, self._version)
        except ConflictError:
            await self._look()
        except StoreError:
            return  # it says so itself

    async def release(self) -> None:
        """Gives the name back."""
        with suppress(StoreError):
            await self._store.delete(KEY, expect=self._version)

    async def _write(self, now: float, expect: int) -> None:
        owner = Owner(directory=self._directory, host=socket.gethostname(), pid=os.getpid(), at=now)
        self._version = (await self._store.put(KEY, encode(owner), expect=expect)).version
        self._faults.clear(SUBJECT)

    async def _look(self) -> None:
        """The record is not the one that was written: an emptied Redis, a write whose answer was lost, a stranger."""
        with suppress(StoreError):
            found = await self._store.get(KEY)
            owner = self._other(found)
            if owner is None:
                self._version = 0 if found is None else found.version
            else:
                who = f"process {owner.pid} on {owner.host}"
                self._faults.set(SUBJECT, f"{who} has taken this name: two deployments write the same records")

    def _other(self, found: Record | None) -> Owner | None:
        """Whose it is; None: nobody's else."""
        if found is None:
            return None
        try:
            owner = decode(found.value, Owner)
        except CodecError:
            return None
        return owner if owner.directory != self._directory else None
