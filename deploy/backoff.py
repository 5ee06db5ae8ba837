"""Exponential back-off of failing revisions, reset after a healthy minute.

The first failure costs 0.2 s, each further one doubles it up to 30 s. Every wait varies by a fifth, so that revisions
that broke together do not return together. Failures during a running wait count as one: three replicas killed by the
same lack of memory do not count eight-fold. A replica that was ready for a minute proves the server right and resets
the count; so does a failure long after the last wait was over. A first start that a signal killed says little about the
server and is repeated at once.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from tidegate.deploy.backend import ReplicaStatus, RevisionFailure
from tidegate.records.replica_state import ReplicaState

FIRST_WAIT_S: Final = 0.2
MAX_WAIT_S: Final = 30.0
HEALTHY_AFTER_S: Final = 60.0
FORGOTTEN_S: Final = 600.0
"""A failure this long after the last wait was over starts a new row. Our choice: replicas that go to zero within a
minute never become healthy, and may fail once in a while for years."""
JITTER: Final = 0.2


def wait_s(failures: int, rng: random.Random) -> float:
    """Returns the seconds to wait after the ``failures``-th failure in a row (1, 2, ...)."""
    base = min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(failures - 1, 30))
    return base * rng.uniform(1.0 - JITTER, 1.0 + JITTER)


class BackOff:
    """The back-offs of all revisions. Times in seconds on one clock."""

    __slots__ = ("_failures", "_rng")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures: dict[str, RevisionFailure] = {}

    def failed(
        self, revision_id: str, reason: str, now: float, ready_since: float | None, *, was_killed: bool = False
    ) -> RevisionFailure:
        """Records a broken replica.

        ``ready_since`` is the time from which it was ready, None if it never was. ``was_killed`` means by a signal,
        which costs a first start no wait.
        """
        before = self._failures.get(revision_id)
        if before is not None and ready_since is not None and now - ready_since >= HEALTHY_AFTER_S:
            before = None
        if before is not None and now - before.not_before >= FORGOTTEN_S:
            before = None
        began = now
        if before is not None and (now < before.not_before or (before.is_excused and now < before.at + FIRST_WAIT_S)):
            count, not_before = before.failures, before.not_before
            began = before.at if before.is_excused else now
        else:
            count = 1 if before is None else before.failures + 1
            not_before = now + wait_s(count, self._rng)
        failure = RevisionFailure(
            reason=reason,
            at=began,
            failures=count,
            not_before=not_before,
            was_ready=ready_since is not None,
            was_killed=was_killed,
        )
        if failure.is_excused:
            failure = replace(failure, not_before=now)
        self._failures[revision_id] = failure
        return failure

    def healthy(self, revision_id: str, ready_since: float, now: float) -> None:
        """Resets the back-off if a replica has been ready for a minute."""
        failure = self._failures.get(revision_id)
        if failure is not None and now - max(ready_since, failure.at) >= HEALTHY_AFTER_S:
            del self._failures[revision_id]

    def failure(self, revision_id: str) -> RevisionFailure | None:
        return self._failures.get(revision_id)

    def failure_beside(
        self, revision_id: str, replicas: Callable[[], Iterable[ReplicaStatus]], now: float
    ) -> RevisionFailure | None:
        """Returns the failure, unless a ready one of ``replicas`` has reset it. Without a failure they are not read."""
        if revision_id not in self._failures:
            return None
        for each in replicas():
            if each.revision == revision_id and each.state is ReplicaState.READY and each.ready_at is not None:
                self.healthy(revision_id, each.ready_at, now)
        return self._failures.get(revision_id)
