"""Rules for clients of a function that scales from zero: heartbeats on event streams, and 202 for other calls.

Without these annotations a client waits and receives nothing before its response.
"""

from dataclasses import dataclass
from enum import StrEnum


class ColdCalls(StrEnum):
    """Handling of a call other than an event stream while its function is at zero."""

    WAIT = "wait"
    """The call waits for its response."""
    ACCEPT = "accept"
    """The function is activated and the call is answered 202 and dropped: the client sends it again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdRules:
    """Messages to a function's clients during a cold start."""

    heartbeat_s: float | None = None
    """Interval of comments on a waiting event stream. None if no comments are sent."""
    calls: ColdCalls = ColdCalls.WAIT

    @property
    def is_silent(self) -> bool:
        """True if clients receive nothing before the response."""
        return self.heartbeat_s is None and self.calls is ColdCalls.WAIT
