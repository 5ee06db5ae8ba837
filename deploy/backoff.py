"""When may a revision whose servers break be tried again? Exponential back-off, forgiven after a healthy minute.

The first failure costs 0.2 s, each further one doubles it up to 30 s; every wait is varied by a fifth so that
revisions that broke together do not come back together. Failures that fall into a running wait are one failure: three
replicas killed by the same lack of memory do not count eight-fold. A replica that was ready for a minute proves the
server right and the count starts anew, and so does a failure long after the last wait was over. A first start that a
signal killed says little about the server: it is repeated at once.
"""

import random
from dataclasses import replace
from typing import Final

from tidegate.deploy.backend import RevisionFailure

FIRST_S: Final = 0.2
LONGEST_S: Final = 30.0
HEALTHY_AFTER_S: Final = 60.0
FORGOTTEN_S: Final = 600.0
"""A failure so long after the last wait was over begins a new row. Our choice: replicas that go to zero within a minute
never become healthy, and may fail once in a while for years."""
JITTER: Final = 0.2


def wait_s(failures: int, rng: random.Random) -> float:
    """Seconds to wait after the ``failures``-th failure in a row (1, 2, ...)."""
    base = min(LONGEST_S, FIRST_S * 2.0 ** min(failures - 1, 30))
    return base * rng.uniform(1.0 - JITTER, 1.0 + JITTER)


class BackOff:
    """The back-offs of all revisions. Times are of one clock, in seconds."""

    __slots__ = ("_failures", "_rng")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._failures: dict[str, RevisionFailure] = {}

    def failed(
        self, revision_id: str, reason: str, now: float, ready_since: float | None, *, was_killed: bool = False
    ) -> RevisionFailure:
        """A replica broke. ``ready_since``: since when it was ready, None if it never was; ``was_killed``: by a signal,
        which costs a first start no wait."""
        before = self._failures.get(revision_id)
        if before is not None and ready_since is not None and now - ready_since >= HEALTHY_AFTER_S:
            before = None
        if before is not None and now - before.not_before >= FORGOTTEN_S:
            before = None
        began = now
        if before is not None and (now < before.not_before or (before.is_excused and now < before.at + FIRST_S)):
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
        """A replica is ready since then: after a minute everything is forgiven."""
        failure = self._failures.get(revision_id)
        if failure is not None and now - max(ready_since, failure.at) >= HEALTHY_AFTER_S:
            del self._failures[revision_id]

    def failure(self, revision_id: str) -> RevisionFailure | None:
        return self._failures.get(revision_id)
