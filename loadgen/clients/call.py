"""One request of a load, from the moment at which it is due until what came of it is known."""

from typing import Any, Final, NamedTuple

TIMEOUT: Final = "timeout"
"""Kinds of failure of a call that has no answer."""
CONNECT: Final = "connect"
BROKEN: Final = "broken"
"""The connection ended before the answer did."""
MALFORMED: Final = "malformed"
"""What came is no answer."""


class Request(NamedTuple):
    """What is sent."""

    body: bytes
    inferences: int = 1


class Call:
    """Times are seconds of the clock of the run; ``ended`` means nothing while it is on its way."""

    __slots__ = ("code", "due", "ended", "error", "first", "gaps", "is_good", "owner", "request", "sent", "tokens")

    def __init__(self, request: Request, due: float, owner: Any = None) -> None:
        self.request = request
        self.due = due
        """When the schedule wants it sent; latency counts from here."""
        self.owner = owner
        """Of who sends it."""
        self.sent = 0.0
        """When this client came to send it."""
        self.ended = 0.0
        self.code: str | None = None
        """Status of the answer: ``200``, or gRPC's ``OK``; None: there was none."""
        self.is_good = False
        self.error: str | None = None
        """Kind of the failure: one of those above, or the code in the answer's body."""
        self.first = 0.0
        """When the first output came; 0.0: it is no stream."""
        self.gaps: list[float] = []
        """Seconds between the outputs of a stream."""
        self.tokens = 0
        """That the model wrote, as far as the answer tells."""

    def __repr__(self) -> str:
        return f"<Call due at {self.due:.3f} s: {self.code or self.error or 'on its way'}>"
