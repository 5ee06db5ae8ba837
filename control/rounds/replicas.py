"""The backend's replicas by revision: counted once a second, and kept by what the backend tells in between.

Every plan, every start and every look at a function asks for a few replicas of thousands. The backend tells of each
change as it happens (``Backend.watch``), so that what stands here is what :meth:`Backend.replicas` would say.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tidegate.records.replica_state import ReplicaState

if TYPE_CHECKING:
    from tidegate.deploy.backend import ReplicaStatus


class ReplicaIndex:
    """:meth:`count` all of them now and then, :meth:`note` each change."""

    __slots__ = ("_found", "_revisions")

    def __init__(self) -> None:
        self._revisions: dict[str, dict[str, ReplicaStatus]] = {}
        self._found: dict[str, tuple[ReplicaStatus, ...]] = {}
        """Of the revisions that were asked for, until they change."""

    def count(self, replicas: "Iterable[ReplicaStatus]") -> None:
        self._revisions, self._found = {}, {}
        for status in replicas:
            self._revisions.setdefault(status.revision, {})[status.id] = status

    def note(self, status: "ReplicaStatus") -> None:
        """A replica changed; ``stopped`` is the last that is told of it."""
        self._found.pop(status.revision, None)
        if status.state is not ReplicaState.STOPPED:
            self._revisions.setdefault(status.revision, {})[status.id] = status
        elif (here := self._revisions.get(status.revision)) is not None:
            here.pop(status.id, None)

    def of(self, revision: str) -> "Sequence[ReplicaStatus]":
        """A revision's replicas in order of creation."""
        found = self._found.get(revision)
        if found is None:
            found = self._found[revision] = tuple(self._revisions.get(revision, {}).values())
        return found

    def ready(self, revision: str) -> int:
        return sum(each.state is ReplicaState.READY for each in self.of(revision))

    def __repr__(self) -> str:
        return f"<Census {len(self._revisions)} revisions>"
