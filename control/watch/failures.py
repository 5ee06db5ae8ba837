"""Failures of replicas, as the backend reports them: counts by cause, and the last crashes of each revision.

A *crash* is the failure of a replica that had been ready. Failed starts are counted too; the backend's back-off
describes them.
"""

from collections import Counter, deque
from dataclasses import dataclass
from typing import Final

from tidegate.deploy.backend import ReplicaStatus
from tidegate.records.replica_state import FailureCause

WINDOW_S: Final = 3600.0
"""Crashes are shown for this long."""
KEPT: Final = 100
"""Crashes kept per revision."""


@dataclass(frozen=True, slots=True)
class Crash:
    """One crash: when (``Clock.now()``), of which replica, and the cause in one line."""

    at: float
    replica: str
    cause: FailureCause
    reason: str


class ReplicaFailures:
    """The failures since this control process started."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, str, str]] = Counter()
        """Failures by function, revision, accelerator and cause."""
        self._crashes: dict[str, deque[Crash]] = {}

    def record(self, status: ReplicaStatus, now: float) -> Crash | None:
        """Takes the status of a failed replica. Returns its crash; None if it was never ready."""
        cause = status.cause or FailureCause.START
        self.counts[status.function, status.revision, status.accelerator, cause.value] += 1
        if status.ready_at is None:
            return None
        crash = Crash(now, status.id, cause, (status.reason or "it broke").splitlines()[0])
        self._crashes.setdefault(status.revision, deque(maxlen=KEPT)).append(crash)
        return crash

    def crashes(self, revision: str, now: float) -> tuple[Crash, ...]:
        """Returns the crashes of a revision within the last hour, oldest first."""
        return tuple(each for each in self._crashes.get(revision, ()) if now - each.at <= WINDOW_S)

    def forget(self, revision: str) -> None:
        """Drops a revision without replicas. Its counts stay, as counters never fall."""
        self._crashes.pop(revision, None)

    def __repr__(self) -> str:
        return f"<ReplicaFailures {sum(self.counts.values())} in {len(self._crashes)} revisions>"
