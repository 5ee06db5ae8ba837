"""The lease of a control process on the records of a name: the store holds its id and its last heartbeat.

Two owners would each run the functions of that name, and each would undo what the other writes. An embedded store lies
in a directory that is locked anyway; records in Redis can be reached from anywhere.
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
DEPLOYMENT: Final = "deployment"
"""Key of the :class:`Belonging` of the records."""
BEAT_S: Final = 5.0
RETRY_S: Final = 1.0
"""Time between two heartbeats while the store's last write failed: one that succeeds ends its fault."""
GONE_S: Final = 20.0
"""Age of the last heartbeat from which an owner counts as gone. Machines' clocks may differ by some seconds."""
SUBJECT: Final = "store"


class OwnedError(TidegateError):
    """Another control process owns this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    directory: str
    """Name of its state directory."""
    host: str
    pid: int
    at: float
    """Time of its last heartbeat, Unix seconds of the wall clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Belonging:
    """The deployment on a cluster that records are of. Each of its control processes knows it."""

    place: str
    """In words: its namespace."""
    marks: tuple[str, ...]
    """What no other deployment has. One that is replaced is known by another: it is the same deployment if any is."""


class Ownership:
    """The lease of this control process, from :meth:`claim` on."""

    def __init__(self, store: Store, directory: str, faults: Faults) -> None:
        """``directory``: name of this state directory; another process with the same directory is the same owner."""
        self._store = store
        self._directory = directory
        self._faults = faults
        self._version = 0

    async def claim(self, now: float, *, of: Belonging | None = None) -> None:
        """Takes the lease. ``of``: the deployment on a cluster whose election has decided that this process leads it;
        None: there is no election, and this deployment is on no cluster. Raises OwnedError if another owner is alive,
        or the records are of another deployment, and StoreFaultError."""
        found, belonging = await self._store.get(KEY), await self._store.get(DEPLOYMENT)
        self._check(belonging, of)
        owner = self._other(found) if of is None or belonging is None else None
        if owner is not None and now - owner.at < GONE_S:
            raise OwnedError(
                f"{self._store.place}: process {owner.pid} on {owner.host} has this name, and lives; end that one, or"
                " choose another name with --store-name"
            )
        try:
            if of is not None and (belonging is None or belonging.value != encode(of)):
                await self._store.put(DEPLOYMENT, encode(of), expect=0 if belonging is None else belonging.version)
            await self._write(now, 0 if found is None else found.version)
        except ConflictError as error:
            raise OwnedError(f"{self._store.place}: another process takes this name at this moment") from error

    def _check(self, belonging: Record | None, of: Belonging | None) -> None:
        """Raises OwnedError if the records are of another deployment on a cluster, whether that runs or not: its
        functions would run here as well."""
        known = None
        if belonging is not None:
            with suppress(CodecError):
                known = decode(belonging.value, Belonging)
        if known is not None and (of is None or not set(known.marks) & set(of.marks)):
            raise OwnedError(
                f"{self._store.place}: the records of this name are of the deployment in {known.place}; choose another"
                " name with --store-name, or, if that one is gone for good, delete its keys in Redis (tidegate:NAME:*)"
            )

    async def run(self, wall: Callable[[], float]) -> None:
        """Sends heartbeats until cancelled."""
        while True:
            await asyncio.sleep(BEAT_S if self._store.fault is None else RETRY_S)
            await self.beat(wall())

    async def beat(self, now: float) -> None:
        """Sends a heartbeat. A process that counted as gone meanwhile (suspended, disconnected) leaves the name to its
        new owner and reports it."""
        try:
            await self._write(now, self._version)
        except ConflictError:
            await self._look()
        except StoreError:
            return  # the store reports it

    async def release(self) -> None:
        """Ends the lease."""
        with suppress(StoreError):
            await self._store.delete(KEY, expect=self._version)

    async def _write(self, now: float, expect: int) -> None:
        owner = Owner(directory=self._directory, host=socket.gethostname(), pid=os.getpid(), at=now)
        self._version = (await self._store.put(KEY, encode(owner), expect=expect)).version
        self._faults.clear(SUBJECT)

    async def _look(self) -> None:
        """Handles a record that differs from the last one written: an emptied Redis, a write whose answer was lost,
        another owner."""
        with suppress(StoreError):
            found = await self._store.get(KEY)
            owner = self._other(found)
            if owner is None:
                self._version = 0 if found is None else found.version
            else:
                other = f"process {owner.pid} on {owner.host}"
                self._faults.set(SUBJECT, f"{other} has taken this name: two deployments write the same records")

    def _other(self, found: Record | None) -> Owner | None:
        """Returns the other owner; None if the record is missing or ours."""
        if found is None:
            return None
        try:
            owner = decode(found.value, Owner)
        except CodecError:
            return None
        return owner if owner.directory != self._directory else None
