"""Outcomes of single requests over HTTP/1.1, kept for callers that look at requests one by one."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from tidegate.loadgen.clients.call import Call, Request
from tidegate.loadgen.clients.http_calls import HttpCalls
from tidegate.loadgen.clients.runs import LoadRun

MAX_IN_FLIGHT: Final = 8192
"""Maximum requests in flight."""
Shot = tuple[float, Request]
"""One request of a schedule: (seconds after the beginning, request)."""


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """Result of one request. ``status`` is None without an answer; ``error`` is the failure kind, or the code in a
    failure's body."""

    at_s: float
    """Due time, in seconds after the beginning."""
    latency_s: float
    """Seconds from the due time to the end."""
    inferences: int
    status: int | None
    error: str | None = None
    lag_s: float = 0.0
    """Seconds from the due time until the client sent it; above some milliseconds the client is the bottleneck."""
    connect_s: float = 0.0
    """Seconds from sending until its bytes were written: above some 0.1 ms it waited for a new connection."""

    @property
    def is_good(self) -> bool:
        return self.status == 200

    @property
    def sent_s(self) -> float:
        return self.at_s + self.lag_s

    @property
    def ended_s(self) -> float:
        return self.at_s + self.latency_s

    @property
    def served_s(self) -> float:
        """Seconds from writing its bytes to the end."""
        return self.latency_s - self.lag_s - self.connect_s


def outcome_of(call: Call, began: float) -> RequestOutcome:
    """Returns the outcome of a call that has ended, in a run that began at ``began``."""
    return RequestOutcome(
        at_s=call.due - began,
        latency_s=call.ended - call.due,
        inferences=call.request.inferences,
        status=None if call.code is None else int(call.code),
        error=call.error,
        lag_s=max(0.0, call.sent - call.due),
        connect_s=max(0.0, call.written - call.sent),
    )


@contextlib.asynccontextmanager
async def posts(
    address: str,
    path: str,
    done: Callable[[RequestOutcome], None],
    *,
    timeout_s: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[LoadRun]:
    """Makes a run of JSON POSTs to ``path`` at ``host:port``; ``done`` is called with every outcome as it arrives."""
    host, _, port = address.rpartition(":")
    client = HttpCalls(
        host.strip("[]"),
        int(port),
        path,
        fields=[("content-type", "application/json")],
        most=MAX_IN_FLIGHT,
        timeout_s=timeout_s,
        clock=clock,
    )
    run = LoadRun(client, lambda call: done(outcome_of(call, run.began)))
    try:
        yield run
    finally:
        await client.close()
