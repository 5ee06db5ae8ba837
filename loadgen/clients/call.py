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

    __slots__ = (
        "began",
        "code",
        "due",
        "ended",
        "error",
        "first",
        "gaps",
        "is_good",
        "is_held",
        "owner",
        "request",
        "retry_after_s",
        "sent",
        "tokens",
        "written",
    )

    def __init__(self, request: Request, due: float, owner: Any = None) -> None:
        self.request = request
        self.due = due
        """Scheduled send time; latency counts from here."""
        self.owner = owner
        """The sender's own data."""
        self.sent = 0.0
        """Time at which the client really sent it."""
        self.written = 0.0
        """Time just before its bytes were given to the kernel, on a connection that was there. HTTP/1.1 only; 0.0: they
        were not."""
        self.ended = 0.0
        self.began = 0.0
        """Time at which a stream counts as answered, as at the gateway: its first output where outputs are read
        (OpenAI), else its head; 0.0 if the answer is none. Streams are event streams and the answers of V2's
        ``ModelStreamInfer``."""
        self.code: str | None = None
        """Status of the answer: ``200``, or gRPC's ``OK``; None without an answer."""
        self.is_good = False
        self.error: str | None = None
        """Failure kind: one of the constants above, or the code in the answer's body."""
        self.first = 0.0
        """Time of the first output of a stream whose outputs are read (OpenAI, gRPC); 0.0: none was."""
        self.gaps: list[float] = []
        """Seconds between the outputs of a stream."""
        self.is_held = False
        """Whether it waited for another call to end, because no more may be in flight."""
        self.retry_after_s: float | None = None
        """The pause that a refusal asks for (Retry-After)."""
        self.tokens = 0
        """Tokens that the model wrote, as far as the answer contains them."""

    @property
    def judged(self) -> float:
        """Time to which the SLA counts: a stream's beginning, else the end of the answer."""
        return self.began or self.ended

    @property
    def per_token_s(self) -> float:
        """Mean seconds per output token of a stream behind its first, as at the gateway; 0.0 without such tokens."""
        return sum(self.gaps) / (self.tokens - 1) if self.tokens > 1 else 0.0

    @property
    def is_refused(self) -> bool:
        """Whether nothing took it: no connection, or a 429 or 503 that states when to come back."""
        return self.error == CONNECT or (self.code in ("429", "503") and self.retry_after_s is not None)

    def __repr__(self) -> str:
        return f"<Call due at {self.due:.3f} s: {self.code or self.error or 'on its way'}>"


class WantedSla(NamedTuple):
    """The SLA that calls are compared with."""

    latency_s: float
    percentile: float
    per_token_s: float | None = None
    """Of streams: mean time per output token behind the first."""

    def is_kept(self, call: Call) -> bool:
        """Returns whether a successful call was in time."""
        is_paced = self.per_token_s is None or call.per_token_s <= self.per_token_s
        return is_paced and call.judged - call.due <= self.latency_s
