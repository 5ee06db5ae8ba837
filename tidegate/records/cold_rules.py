"""Rules for clients of a function that scales from zero: heartbeats on event streams, and 202 for other calls.

Without these annotations a client waits and receives nothing before its response.
"""

from dataclasses import dataclass
from enum import StrEnum


class ColdCalls(StrEnum):
    """What becomes of a call that is no event stream and finds its function asleep."""

    WAIT = "wait"
    """It waits for its answer, as ever."""
    ACCEPT = "accept"
    """The function is woken, the call is answered 202 and forgotten: the client sends it again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdRules:
    """How a function's clients are told of cold starts."""

    heartbeat_s: float | None = None
    """Between two comments on an event stream that waits; None: none are written."""
    calls: ColdCalls = ColdCalls.WAIT

    @property
    def is_silent(self) -> bool:
        """Nobody is told anything."""
        return self.heartbeat_s is None and self.calls is ColdCalls.WAIT
