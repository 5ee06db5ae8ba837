"""Jobs as the gateway shows them (docs/use/jobs.md)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job. Times are UTC (RFC 3339)."""

    id: str
    state: str
    """``queued``, ``running``, ``done`` or ``failed``."""
    function: str
    request_id: str
    created: str
    ended: str | None = None
    expires: str | None = None
    status: int | None = None
    """HTTP status of its answer; None before its end, and if there is none."""
    bytes: int | None = None
    """Bytes of the answer's body."""
    reason: str | None = None
    """Why it failed."""

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed")
