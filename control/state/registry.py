"""The registry of deployed functions and their revisions, in memory and in the store.

A deploy creates a revision and never changes one. Of a function's revisions one *serves*. A newer one is the
*candidate* for its traffic: it takes over when it is ready (``promote``), or as its rollout goes on. So a revision that
cannot start never replaces one that runs. A *split* by hand holds until it is changed; newer revisions then wait.
Numbers are not reused, not even after a delete: a replica of the old function may still be draining.

A request of an operator (deploy, delete, split, rollback, rollout) fails if the store fails, because a restart would
undo it. A decision of the control process itself (a promotion, a step of a rollout) holds in memory even if it could
not be written; the store's ``fault`` reports that.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tidegate.function import Function, Revision
from tidegate.records.codec import CodecError, decode, encode
from tidegate.records.rollout import Phase, Rollout, Strategy
from tidegate.store.records import Store, StoreError, StoreFaultError
from tidegate.traffic.stages import begun, ended

KEPT_REVISIONS: Final = 10
"""Number of revisions kept per function: the newest ones and the serving one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRecord:
    """One revision as it was deployed."""

    number: int
    function: Function
    manifest: str
    source: str
    """File that the manifest came from, for display."""
    created_at: float
    origin: str | None = None
    """Absolute path of the manifest or model file, with the class; None if it is not known."""

    @property
    def revision(self) -> Revision:
        return Revision(self.function, self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionRecord:
    """The revisions of a function. ``serving`` None: none has been ready yet. Kept after a delete, for the numbers."""

    name: str
    latest: int = 0
    first: int = 1
    """First revision of this function; earlier ones belong to a deleted function of the same name."""
    serving: int | None = None
    deleted: bool = False
    settled: int = 0
    """Last revision that can no longer be the candidate: it was taken back, or the operator decided otherwise."""
    returning: int | None = None
    """An earlier revision that serves again as soon as it can."""
    split: dict[int, float] = field(default_factory=dict)
    """Percent by number, set by hand; empty: the serving one has all."""
    tags: dict[str, int] = field(default_factory=dict)
    served: tuple[int, ...] = ()
    """Numbers of revisions that have served, the latest last."""
    rollout: Rollout | None = None
    """The last rollout, under way or ended."""

    @property
    def rolling(self) -> Rollout | None:
        """The rollout under way."""
        return None if self.rollout is None or self.rollout.is_over else self.rollout

    @property
    def holders(self) -> frozenset[int]:
        """Numbers of revisions with a percent or a tag of their own."""
        ramp = None if self.rolling is None else self.rolling.ramp
        on_ramp = () if ramp is None else ramp.parts
        return frozenset((*self.split, *self.tags.values(), *(number for number, _ in on_ramp)))

    @property
    def in_use(self) -> frozenset[int]:
        """Numbers that another field refers to."""
        rolling = () if self.rolling is None else (self.rolling.candidate, self.rolling.base)
        single = (self.latest, self.serving, self.returning, *rolling)
        return self.holders | {number for number in single if number is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A function as the control process uses it. ``current`` represents it and has the traffic, or most of it;
    ``candidate`` takes over."""

    name: str
    current: RevisionRecord
    candidate: RevisionRecord | None
    proven: bool
    """Whether ``current`` has been ready once."""
    split: Mapping[int, float] = field(default_factory=dict)
    """Percent by number, set by hand; empty: none."""
    tags: Mapping[str, int] = field(default_factory=dict)
    rollout: Rollout | None = None
    """The last rollout, under way or ended."""
    is_returning: bool = False
    """The candidate is an earlier revision."""
    others: tuple[RevisionRecord, ...] = ()
    """Further revisions with a percent or a tag."""

    @property
    def latest(self) -> RevisionRecord:
        return self.current if self.candidate is None or self.is_returning else self.candidate

    @property
    def rolling(self) -> Rollout | None:
        """The rollout under way."""
        return None if self.rollout is None or self.rollout.is_over else self.rollout

    @property
    def is_direct(self) -> bool:
        """Whether the candidate gets all traffic as soon as it is ready."""
        return self.candidate is not None and self.rolling is None and (self.is_returning or not self.split)


class Registry:
    """All functions of a deployment. :meth:`load` it once; every method keeps memory and store together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._writing = asyncio.Lock()
        """Held while a function is written, so that the last one written is the one in memory."""
        self._functions: dict[str, FunctionRecord] = {}
        self._revisions: dict[str, dict[int, RevisionRecord]] = {}
        self._unsaved: set[str] = set()
        """Functions that the control process changed by itself and :meth:`save` has not written."""
        self._seen: dict[str, tuple[FunctionRecord, Deployed]] = {}
        """Results of :meth:`get`, each with the record that it was made from."""

    @classmethod
    async def load(cls, store: Store) -> "Registry":
        """Returns the registry of the records in the store. Raises StoreFaultError for a record that cannot be read."""
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
        """Returns every deployed function, by name."""
        found = (self.get(name) for name in sorted(self._functions))
        return tuple(deployed for deployed in found if deployed is not None)

    def get(self, name: str) -> Deployed | None:
        function = self._functions.get(name)
        if function is None or function.deleted:
            return None
        known = self._seen.get(name)
        if known is None or known[0] is not function:
            known = self._seen[name] = (function, self._deployed(function))
        return known[1]

    def _deployed(self, function: FunctionRecord) -> Deployed:
        revisions = self._revisions[function.name]
        current = revisions[_current(function)]
        number = _candidate(function, current.number)
        others = function.holders - {current.number, number}
        return Deployed(
            name=function.name,
            current=current,
            candidate=None if number is None else revisions[number],
            proven=function.serving is not None,
            split=function.split,
            tags=function.tags,
            rollout=function.rollout,
            is_returning=number is not None and number == function.returning,
            others=tuple(revisions[each] for each in sorted(others) if each in revisions),
        )

    def numbers(self, name: str) -> dict[int, RevisionRecord]:
        """Returns the kept revisions of a function, by number."""
        function, revisions = self._functions.get(name), self._revisions.get(name, {})
        return {number: each for number, each in revisions.items() if function is None or number >= function.first}

    def earlier(self, name: str) -> int | None:
        """Returns the kept revision before the current one that served last; if none is known to have served, the
        newest one before it. Returns None if there is none."""
        function = self._functions[name]
        older = [number for number in self.numbers(name) if number < _current(function)]
        served = [number for number in function.served if number in older]
        return served[-1] if served else max(older, default=None)

    def revision(self, revision_id: str) -> RevisionRecord | None:
        """Returns the revision of this id (``resnet-00001``) if it is kept, deployed or not."""
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

    def origin(self, name: str) -> str | None:
        """Returns the origin of the newest revision of a deployed function; None if it is not known."""
        known = self._functions.get(name)
        if known is None or known.deleted:
            return None
        newest = self._revisions.get(name, {}).get(known.latest)
        return None if newest is None else newest.origin

    async def deploy(
        self, function: Function, *, manifest: str, source: str, now: float, origin: str | None = None
    ) -> RevisionRecord:
        """Records a new revision. Raises StoreError if it cannot be kept."""
        number = self.next_number(function.name)
        record = RevisionRecord(
            number=number, function=function, manifest=manifest, source=source, created_at=now, origin=origin
        )

        def change(known: FunctionRecord) -> FunctionRecord:
            if known.deleted:
                known = FunctionRecord(name=known.name, latest=known.latest, first=number)
            return _with_deploy(known, record)

        await self._store.put(_revision_key(function.name, number), encode(record))
        changed = await self._change(function.name, change)
        self._revisions.setdefault(function.name, {})[number] = record
        await self._forget_old(changed)
        return record

    def promote(self, name: str, number: int) -> None:
        """Gives revision ``number`` all traffic from now on. :meth:`save` writes it down."""
        function = self._functions[name]
        returning = None if function.returning == number else function.returning
        self._functions[name] = _serving(replace(function, returning=returning), number)
        self._unsaved.add(name)

    def roll(self, name: str, rollout: Rollout) -> None:
        """Sets the rollout's state. :meth:`save` writes it down, unless nothing but its verdict changed."""
        before = self._functions[name].rollout
        self._functions[name] = _rolled(self._functions[name], rollout)
        if before is None or replace(before, verdict=rollout.verdict) != rollout:
            self._unsaved.add(name)

    async def begin(self, name: str, rollout: Rollout) -> None:
        """Begins a rollout that an operator requested. Raises StoreError."""

        def change(function: FunctionRecord) -> FunctionRecord:
            begun = replace(function, rollout=rollout, settled=function.latest)
            return replace(begun, returning=None, split={}, serving=rollout.base)

        await self._change(name, change)

    async def steer(self, name: str, rollout: Rollout) -> None:
        """Sets the state of a rollout that an operator requested, unless it is over by then. Raises StoreError."""
        await self._change(name, lambda function: _rolled(function, rollout) if function.rolling else function)

    async def split(self, name: str, split: Mapping[int, float] | None, tags: Mapping[str, int], now: float) -> None:
        """Sets percents by number (None: they stay) and all tags. Raises StoreError."""

        def change(function: FunctionRecord) -> FunctionRecord:
            function = replace(function, tags=dict(tags))
            if split is None:
                return function
            main = max(split, key=lambda number: (split[number], number))
            function = _serving(_superseded(function, now), main)
            return replace(function, split=dict(split), returning=None, settled=function.latest)

        await self._change(name, change)

    async def follow(self, name: str, now: float) -> None:
        """Ends a split by hand: the newest revision takes over as if it had just been deployed. Raises StoreError."""

        def change(function: FunctionRecord) -> FunctionRecord:
            main = _current(function)
            return replace(_superseded(function, now), split={}, returning=None, serving=main, settled=main)

        await self._change(name, change)

    async def give_back(self, name: str, number: int, now: float, over: Rollout | None = None) -> None:
        """Makes revision ``number`` the one that returns; it serves when it is promoted. ``over``: the rollout that
        this ends. Raises StoreError."""

        def change(function: FunctionRecord) -> FunctionRecord:
            if over is not None and function.rolling:
                function = _rolled(function, over)
            main = _current(function)
            kept = replace(_superseded(function, now), split={}, serving=main, settled=function.latest)
            return replace(kept, returning=None if number == main else number)

        await self._change(name, change)

    @property
    def has_unsaved(self) -> bool:
        """Whether :meth:`save_all` has something to write."""
        return bool(self._unsaved)

    async def save(self, name: str) -> bool:
        """Writes which revision serves and how its rollout stands. Returns False if the store failed; the store
        reports its failure, and the function stays unsaved."""
        async with self._writing:
            function = self._functions[name]
            try:
                await self._store.put(_function_key(name), encode(function))
            except StoreFaultError:
                self._unsaved.add(name)
                return False
            if self._functions[name] is function:
                self._unsaved.discard(name)
            return True

    async def save_all(self) -> None:
        """Saves what is unsaved, up to the first failure."""
        for name in sorted(self._unsaved):
            if not await self.save(name):
                return

    async def delete(self, name: str) -> bool:
        """Takes the function out of service. Returns False if it is not deployed. Its last number stays, and its
        revisions until :meth:`forget`: a restarted control process knows from them what still drains."""
        function = self._functions.get(name)
        if function is None or function.deleted:
            return False
        await self._change(name, lambda known: FunctionRecord(name=name, latest=known.latest, deleted=True))
        self._seen.pop(name, None)
        return True

    def deleted(self) -> tuple[str, ...]:
        """Returns the deleted functions of which revisions are still known."""
        return tuple(name for name, each in self._functions.items() if each.deleted and self._revisions[name])

    async def forget(self, name: str) -> None:
        """Removes the revisions of a deleted function of which nothing runs any more."""
        if not self._functions[name].deleted:
            return  # deployed again meanwhile
        revisions, self._revisions[name] = self._revisions[name], {}
        for number in revisions:
            await self._drop(name, number)

    async def _change(self, name: str, change: Callable[[FunctionRecord], FunctionRecord]) -> FunctionRecord:
        """Writes the function as ``change`` makes it, and returns it. A decision of the control process itself during
        the write is changed likewise, not undone; it is saved after this."""
        async with self._writing:
            known = self._functions.get(name, FunctionRecord(name=name))
            await self._store.put(_function_key(name), encode(change(known)))
            if self._functions.get(name, known) is known:
                self._unsaved.discard(name)
            changed = self._functions[name] = change(self._functions.get(name, known))
            return changed

    async def _forget_old(self, function: FunctionRecord) -> None:
        revisions = self._revisions[function.name]
        for number in sorted(revisions)[:-KEPT_REVISIONS]:
            if number not in function.in_use:
                del revisions[number]
                await self._drop(function.name, number)

    async def _drop(self, name: str, number: int) -> None:
        try:
            await self._store.delete(_revision_key(name, number))
        except StoreError:
            return  # stays in the store, where nothing refers to it; the store reports the failure

    def __repr__(self) -> str:
        return f"<Registry {len(self.all())} functions>"


def _current(function: FunctionRecord) -> int:
    """Returns the revision that represents the function: the one with most of the traffic."""
    if function.split:
        return max(function.split, key=lambda number: (function.split[number], number))
    return function.latest if function.serving is None else function.serving


def _candidate(function: FunctionRecord, current: int) -> int | None:
    if (rolling := function.rolling) is not None:
        return rolling.candidate
    if function.returning is not None:
        return function.returning
    is_open = function.serving is not None and function.latest > function.settled
    return function.latest if is_open and function.latest != current and function.latest not in function.split else None


def _with_deploy(function: FunctionRecord, record: RevisionRecord) -> FunctionRecord:
    """Returns the record with a new revision, which takes over in the way that its manifest states."""
    plan, now = record.function.rollout, record.created_at
    changed = replace(function, latest=record.number)
    if function.split:
        return changed  # it waits until it is given a part
    scaling = record.function.scaling
    if function.serving is not None and plan.strategy is not Strategy.DIRECT:
        fresh = Rollout(candidate=record.number, base=function.serving, plan=plan, began_at=now)
        return replace(changed, rollout=begun(fresh, function.rolling, now), returning=None)
    changed = _superseded(changed, now)
    if scaling.initial_scale == 0 and scaling.min_scale == 0:
        return _serving(changed, record.number)  # no replica is started now: there is no readiness to wait for
    return changed


def _rolled(function: FunctionRecord, rollout: Rollout) -> FunctionRecord:
    """Returns the record with its rollout in this state."""
    changed = replace(function, rollout=rollout)
    if rollout.is_over:
        changed = replace(changed, settled=max(changed.settled, rollout.candidate))
    return _serving(changed, rollout.candidate) if rollout.phase is Phase.PROMOTED else changed


def _superseded(function: FunctionRecord, now: float) -> FunctionRecord:
    if function.rolling is None:
        return function
    over = ended(function.rolling, Phase.SUPERSEDED, now, "superseded", "something else was requested meanwhile")
    return replace(function, rollout=over)


def _serving(function: FunctionRecord, number: int) -> FunctionRecord:
    """Returns the record with ``number`` as the serving revision, and among those that have served."""
    served = (*(each for each in function.served if each != number), number)[-KEPT_REVISIONS:]
    return replace(function, serving=number, served=served)


def _function_key(name: str) -> str:
    return f"functions/{name}"


def _revision_key(name: str, number: int) -> str:
    return f"revisions/{name}/{number:05d}"
