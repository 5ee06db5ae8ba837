"""What came of each request of a run over HTTP/1.1, kept: for whoever looks at requests one by one afterwards."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from tidegate.loadgen.clients.call import Call, Request
from tidegate.loadgen.clients.http_calls import HttpCalls
from tidegate.loadgen.clients.runs import LoadRun

MOST: Final = 8192
"""Requests on their way at once."""
Shot = tuple[float, Request]
"""One request of a schedule, so many seconds after the beginning."""


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """``status`` None: no answer; ``error``: the kind of failure, or the code in a failure's body."""

    at_s: float
    """When it was due, seconds after the beginning."""
    latency_s: float
    """From then on."""
    inferences: int
    status: int | None
    error: str | None = None
    lag_s: float = 0.0
    """How long after it was due this client came to send it: above some milliseconds the client is the bottleneck."""

    @property
    def is_good(self) -> bool:
        return self.status == 200


def outcome_of(call: Call, began: float) -> RequestOutcome:
    """Of a call that has ended, in a run that began at ``began``."""
    return RequestOutcome(
        at_s=call.due - began,
        latency_s=call.ended - call.due,
        inferences=call.request.inferences,
        status=None if call.code is None else int(call.code),
        error=call.error,
        lag_s=max(0.0, call.sent - call.due),
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
    """A run of POSTs of JSON to ``path`` at ``host:port``; ``done`` is called with every outcome as it comes."""
    host, _, port = address.rpartition(":")
    client = HttpCalls(
        host.strip("[]"),
        int(port),
        path,
        fields=[("content-type", "application/json")],
        most=MOST,
        timeout_s=timeout_s,
        clock=clock,
    )
    run = LoadRun(client, lambda call: done(outcome_of(call, run.began)))
    try:
        yield run
    finally:
        await client.close()
