"""What is deployed: functions and their revisions, in memory and in the store.

A deploy makes a revision and never changes one. Of a function's revisions one *serves*; a newer one that has not yet
been ready is the *candidate* and takes over when it is (``promote``), so a revision that cannot start never replaces
one that runs. Numbers are not reused, not even after a delete: a replica of the old function may still be draining.

Deploying and deleting fail when the store fails, because a restart would undo them. A promotion is a decision: it
holds in memory even when it could not be written (the store's ``fault`` says so).
"""

import contextlib
from dataclasses import dataclass, replace
from typing import Final

from tidegate.codec import CodecError, decode, encode
from tidegate.function import Function, Revision
from tidegate.store.records import Store, StoreError, StoreFaultError

KEPT_REVISIONS: Final = 10
"""Revisions of a function that are kept, the newest ones and the serving one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRecord:
    """One revision as it was deployed."""

    number: int
    function: Function
    manifest: str
    source: str
    """File that the manifest came from, for people."""
    created_at: float

    @property
    def revision(self) -> Revision:
        return Revision(self.function, self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionRecord:
    """Which revisions a function has. ``serving`` None: none was ready yet. Kept after a delete, for the numbers."""

    name: str
    latest: int = 0
    serving: int | None = None
    deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A function as the control process works with it: ``current`` takes the traffic, ``candidate`` is to take over."""

    name: str
    current: RevisionRecord
    candidate: RevisionRecord | None
    proven: bool
    """Whether ``current`` has been ready once."""

    @property
    def latest(self) -> RevisionRecord:
        return self.candidate or self.current


class Registry:
    """All functions of a deployment. :meth:`load` it once; every method keeps memory and store together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._functions: dict[str, FunctionRecord] = {}
        self._revisions: dict[str, dict[int, RevisionRecord]] = {}

    @classmethod
    async def load(cls, store: Store) -> "Registry":
        """The registry of what the store holds; raises StoreFaultError for a record that cannot be read."""
        registry = cls(store)
        try:
            for record in await store.list("functions/"):
                function = decode(record.value, FunctionRecord)
                registry._functions[function.name] = function
                registry._revisions[function.name] = {}
            for record in await store.list("revisions/"):
                revision = decode(record.value, RevisionRecord)
                registry._revisions.setdefault(revision.function.name, {})[revision.number] = revision
        except CodecError as error:
            raise StoreFaultError(f"a stored function cannot be read: {error}") from error
        return registry

    def all(self) -> tuple[Deployed, ...]:
        """Every function that is deployed, by name."""
        found = (self.get(name) for name in sorted(self._functions))
        return tuple(deployed for deployed in found if deployed is not None)

    def get(self, name: str) -> Deployed | None:
        function = self._functions.get(name)
        if function is None or function.deleted:
            return None
        revisions = self._revisions[name]
        latest = revisions[function.latest]
        if function.serving is None or function.serving == function.latest:
            return Deployed(name=name, current=latest, candidate=None, proven=function.serving is not None)
        return Deployed(name=name, current=revisions[function.serving], candidate=latest, proven=True)

    def revision(self, revision_id: str) -> RevisionRecord | None:
        """The revision of this id (``resnet-00001``) if it is kept, deployed or not."""
        name, _, number = revision_id.rpartition("-")
        return self._revisions.get(name, {}).get(int(number)) if number.isdecimal() else None

    def kept(self) -> dict[str, Revision]:
        """Every revision that is kept, by id."""
        records = (record for revisions in self._revisions.values() for record in revisions.values())
        return {record.revision.id: record.revision for record in records}

    def next_number(self, name: str) -> int:
        """The number that the next deploy of this function gets."""
        known = self._functions.get(name)
        return 1 if known is None else known.latest + 1

    async def deploy(self, function: Function, *, manifest: str, source: str, now: float) -> RevisionRecord:
        """Records a new revision. Raises StoreError when it cannot be kept."""
        known = self._functions.get(function.name, FunctionRecord(name=function.name))
        number = self.next_number(function.name)
        record = RevisionRecord(number=number, function=function, manifest=manifest, source=source, created_at=now)
        serving = None if known.deleted else known.serving
        if function.scaling.initial_scale == 0 and function.scaling.min_scale == 0:
            serving = number  # nothing of it is started now, so there is no readiness to wait for
        await self._store.put(_revision_key(function.name, number), encode(record))
        changed = replace(known, latest=number, serving=serving, deleted=False)
        await self._store.put(_function_key(function.name), encode(changed))
        self._functions[function.name] = changed
        self._revisions.setdefault(function.name, {})[number] = record
        await self._forget_old(changed)
        return record

    def promote(self, name: str, number: int) -> None:
        """Revision ``number`` has been ready: it takes the traffic from now on. :meth:`save` writes it down."""
        self._functions[name] = replace(self._functions[name], serving=number)

    async def save(self, name: str) -> None:
        """Writes which revision serves. A store that fails says so itself; a restart promotes again."""
        with contextlib.suppress(StoreFaultError):
            await self._store.put(_function_key(name), encode(self._functions[name]))

    async def delete(self, name: str) -> bool:
        """Takes the function out of service. Its last number stays, and its revisions until :meth:`forget`: a control
        process that starts anew knows by them what still drains. False when it is not deployed."""
        function = self._functions.get(name)
        if function is None or function.deleted:
            return False
        changed = replace(function, deleted=True, serving=None)
        await self._store.put(_function_key(name), encode(changed))
        self._functions[name] = changed
        return True

    def deleted(self) -> tuple[str, ...]:
        """Deleted functions of which revisions are still known."""
        return tuple(name for name, each in self._functions.items() if each.deleted and self._revisions[name])

    async def forget(self, name: str) -> None:
        """Nothing of a deleted function runs any more: its revisions go."""
        if not self._functions[name].deleted:
            return  # deployed again meanwhile
        revisions, self._revisions[name] = self._revisions[name], {}
        for number in revisions:
            await self._drop(name, number)

    async def _forget_old(self, function: FunctionRecord) -> None:
        revisions = self._revisions[function.name]
        for number in sorted(revisions)[:-KEPT_REVISIONS]:
            if number != function.serving:
                del revisions[number]
                await self._drop(function.name, number)

    async def _drop(self, name: str, number: int) -> None:
        try:
            await self._store.delete(_revision_key(name, number))
        except StoreError:
            return  # left behind in the store, where nothing points to it; the store says so itself

    def __repr__(self) -> str:
        return f"<Registry {len(self.all())} functions>"


def _function_key(name: str) -> str:
    return f"functions/{name}"


def _revision_key(name: str, number: int) -> str:
    return f"revisions/{name}/{number:05d}"
