"""One request of a load, from its due time to its result."""

from typing import Any, Final, NamedTuple

TIMEOUT: Final = "timeout"
"""Failure kind: the time limit passed without an answer."""
CONNECT: Final = "connect"
BROKEN: Final = "broken"
"""Failure kind: the connection ended before the answer did."""
MALFORMED: Final = "malformed"
"""Failure kind: the bytes received are not a valid answer."""


class Request(NamedTuple):
    """A request to be sent."""

    body: bytes
    inferences: int = 1


class Call:
    """A request with its times, in seconds of the run's clock; ``ended`` has no meaning while the call is in flight."""

    __slots__ = ("code", "due", "ended", "error", "first", "gaps", "is_good", "owner", "request", "sent", "tokens")

    def __init__(self, request: Request, due: float, owner: Any = None) -> None:
        self.request = request
        self.due = due
        """Scheduled send time; latency counts from here."""
        self.owner = owner
        """The sender's own data."""
        self.sent = 0.0
        """Time at which the client really sent it."""
        self.ended = 0.0
        self.code: str | None = None
        """Status of the answer: ``200``, or gRPC's ``OK``; None without an answer."""
        self.is_good = False
        self.error: str | None = None
        """Failure kind: one of the constants above, or the code in the answer's body."""
        self.first = 0.0
        """Time of the first output; 0.0 if the answer is no stream."""
        self.gaps: list[float] = []
        """Seconds between the outputs of a stream."""
        self.tokens = 0
        """Tokens that the model wrote, as far as the answer contains them."""

    def __repr__(self) -> str:
        return f"<Call due at {self.due:.3f} s: {self.code or self.error or 'on its way'}>"
