"""Keeps what the policies have learnt: written to the store every ten minutes and at the end, and given to a revision
when it is tracked.

Between two writes at most ``KEPT_EVERY_S`` of learning can be lost (a process that was killed). If the store fails,
what was learnt since is lost; decisions go on.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from tidegate.autoscaler.autoscaler import Autoscaler
from tidegate.autoscaler.decisions.reasons import reason
from tidegate.autoscaler.policies.policy_state import StateError
from tidegate.autoscaler.profiles.memory import LearntMemory, packed, unpacked
from tidegate.autoscaler.profiles.sla_cost import SeenLoad, Streams, streams
from tidegate.clock import Clock
from tidegate.function import Protocol, Revision
from tidegate.records.codec import CodecError, decode, encode
from tidegate.store.records import Store, StoreError

KEPT_EVERY_S: Final = 600.0
KEPT_FIRST_S: Final = 10.0
"""Time until the first write: a new function, or an upgrade that ends badly, loses seconds."""
PREFIX: Final = "memory/"


class PolicyMemories:
    """The memories of all functions. :meth:`load` first, :meth:`close` last."""

    def __init__(self, autoscaler: Autoscaler, clock: Clock, store: Store | None) -> None:
        self._autoscaler = autoscaler
        self._clock = clock
        self._store = store
        self._kept: dict[str, LearntMemory] = {}
        self._revisions: dict[str, list[Revision]] = {}
        """By function, in the order in which they were tracked: the newest one's memory counts."""
        self._due: dict[str, float] = {}
        """When a function's memory is written next."""
        self._dropped: list[str] = []
        """Functions whose record is to be deleted."""
        self._streams: dict[str, dict[str, Streams]] = {}
        """By function whose answers are counted in tokens; empty if none was a stream."""

    async def load(self) -> None:
        """Reads what earlier processes have kept; skips records that cannot be read."""
        if self._store is None:
            return
        for record in await self._store.list(PREFIX):
            with suppress(CodecError):
                known = decode(record.value, LearntMemory)
                self._kept[known.function] = known

    def track(self, revision: Revision) -> None:
        """Gives a revision what is known of its function, if it is of the same policy and model."""
        name = revision.function.name
        self._keep(name)
        self._revisions.setdefault(name, []).append(revision)
        self._due.setdefault(name, self._clock.now() + KEPT_FIRST_S)
        known = self._kept.get(name)
        if known is None:
            return
        try:
            state = unpacked(known, self._autoscaler.scaled(revision.function))
            if state is not None:
                self._autoscaler.decider.resume(revision.id, state, max(0.0, self._clock.now() - known.at))
        except (CodecError, StateError) as error:
            self._autoscaler.add_reason(revision.id, reason("memory_left_out", str(error)))

    def load_of(self, function: str) -> SeenLoad | None:
        """Returns the load of a function so far; None if its policy does not know it, or if answers may be streams and
        none was measured since the control process began."""
        revisions = self._revisions.get(function)
        known = self._autoscaler.decider.load(revisions[-1].id) if revisions else None
        if not revisions or known is None:
            return None
        found = self.streams_of(function)
        if function not in self._streams and revisions[-1].function.protocol is Protocol.OPENAI:
            return None
        return SeenLoad(requests_per_s=known[0], size=known[1], streams=found)

    def streams_of(self, function: str) -> Mapping[str, Streams]:
        """Returns the streams of a function by accelerator, as far as they were measured since the control process
        began."""
        self._keep_streams(function)
        return self._streams.get(function, {})

    def forget(self, revision: str) -> None:
        """Ends a revision; what it has learnt stays for the next one."""
        for name, revisions in list(self._revisions.items()):
            if any(each.id == revision for each in revisions):
                self._keep(name)
                self._keep_streams(name)
                self._revisions[name] = [each for each in revisions if each.id != revision]

    def drop(self, function: str) -> None:
        """Drops what is known of a deleted function."""
        self._revisions.pop(function, None)
        self._due.pop(function, None)
        self._streams.pop(function, None)
        if self._kept.pop(function, None) is not None:
            self._dropped.append(function)

    async def unlearn(self, function: str) -> tuple[str, ...]:
        """Drops what was learnt of a function that stays, here and in the store; returns it in words. Raises
        StoreError: what is kept is then overwritten with the next write."""
        found = [self._autoscaler.unlearn(each.id) for each in self._revisions.get(function, ())]
        self._kept.pop(function, None)
        if self._store is not None:
            await self._store.delete(f"{PREFIX}{function}")
        return found[-1] if found else ()

    async def review(self) -> None:
        """Writes down one function whose time has come, and deletes the records of dropped ones. Functions of which
        nothing is learnt yet are looked at again soon."""
        await self._delete_dropped()
        now = self._clock.now()
        due = sorted((at, name) for name, at in self._due.items() if at <= now)
        for _, name in due:
            self._keep(name)
            is_known = name in self._kept
            self._due[name] = now + (KEPT_EVERY_S if is_known else KEPT_FIRST_S)
            if is_known:
                await self._write(name)
                return

    async def close(self) -> None:
        """Writes down everything."""
        await self._delete_dropped()
        for name in self._revisions:
            self._keep(name)
            await self._write(name)

    def _keep(self, function: str) -> None:
        """Takes the present memory of the function's newest revision, if there is one to keep."""
        revisions = self._revisions.get(function)
        if not revisions:
            return
        with suppress(StateError):
            state = self._autoscaler.decider.memory(revisions[-1].id)
            if state is not None:
                self._kept[function] = packed(self._autoscaler.scaled(revisions[-1].function), state, self._clock.now())

    def _keep_streams(self, function: str) -> None:
        """Takes the streams of the newest revision that has had answers, if there is one."""
        for each in reversed(self._revisions.get(function, [])):
            seen = self._autoscaler.observation(each.id)
            if seen is not None and seen.tokens is not None and seen.tokens.groups:
                self._streams[function] = streams(seen)
                return

    async def _write(self, function: str) -> None:
        known = self._kept.get(function)
        if self._store is not None and known is not None:
            with suppress(StoreError):  # the store reports it; it is written again in its turn
                await self._store.put(f"{PREFIX}{function}", encode(known))

    async def _delete_dropped(self) -> None:
        while self._dropped and self._store is not None:
            try:
                await self._store.delete(f"{PREFIX}{self._dropped[-1]}")
            except StoreError:
                return
            self._dropped.pop()

    def __repr__(self) -> str:
        return f"<PolicyMemories {len(self._kept)} functions>"
