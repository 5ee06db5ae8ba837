"""Stalls: replicas that have work and end none of it.

A server that hangs (stopped, deadlocked) keeps its connections open and answers nothing, so nothing fails before
deadlines pass. Behind a limit its slots fill and late binding sends it no more; without one it keeps its share of the
traffic. So a replica without a limit that has had work for ``STALL_S`` and ended no request meanwhile is to be asked
whether it is well. Long requests look alike: who is only busy says that it is well, and is asked again ``STALL_S``
later.

Pure: ``now`` in seconds of one clock.
"""

from collections.abc import Iterable
from typing import Final

STALL_S: Final = 2.0
"""Our choice: with the probe's own limit a replica that hangs is found in about four seconds."""


class Stalls:
    """Since when replicas have ended nothing."""

    __slots__ = ("_quiet",)

    def __init__(self) -> None:
        self._quiet: dict[str, tuple[float, float]] = {}
        """By replica: when its last request ended, and since when nothing else is known of it, or it was asked."""

    def look(self, now: float, working: Iterable[tuple[str, float]]) -> list[str]:
        """Those that have to be asked now. ``working``: all that have work, and when a request there ended last."""
        asked, quiet = [], {}
        for replica, ended_at in working:
            known = self._quiet.get(replica)
            since = known[1] if known is not None and known[0] == ended_at else now
            if now - since >= STALL_S:
                asked.append(replica)
                since = now
            quiet[replica] = ended_at, since
        self._quiet = quiet
        return asked

    def __repr__(self) -> str:
        return f"<Stalls {len(self._quiet)} replicas with work>"
