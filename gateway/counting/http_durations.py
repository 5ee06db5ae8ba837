"""Requests as OpenTelemetry's ``http.server.request.duration`` and ``http.server.active_requests`` count them: by
method, and those that have ended by status and error, however they ended."""

from collections.abc import Sequence
from typing import Final

from tidegate import metrics

METHODS: Final = {
    each: each.decode()
    for each in (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH")
}
OTHER: Final = "_OTHER"
"""The convention's word for a method that is not one of HTTP's."""


class HttpDurations:
    """The durations of one revision, and its requests that have not ended. A label that does not apply is empty, which
    equals an absent one."""

    __slots__ = ("_active", "_by")

    def __init__(self) -> None:
        self._active: dict[str, int] = {}
        """By method."""
        self._by: dict[tuple[str, str, str], metrics.StepHistogram] = {}

    def arrived(self, method: bytes) -> None:
        """Counts a request that begins; ``record`` follows at its end."""
        name = METHODS.get(method, OTHER)
        self._active[name] = self._active.get(name, 0) + 1

    def record(self, method: bytes, status: int, error: str, seconds: float) -> None:
        """Counts a request that has ended. ``status``: 0 if no answer was begun; ``error``: how it ended, if not with
        an answer."""
        code = str(status) if status else ""
        name = METHODS.get(method, OTHER)
        self._active[name] = self._active.get(name, 1) - 1
        key = name, code, code if status >= 500 else error
        found = self._by.get(key)
        if found is None:
            found = self._by[key] = metrics.StepHistogram(metrics.HTTP_SERVER_DURATION)
        found.record_s(seconds)

    @property
    def active(self) -> int:
        """Requests that have not ended, by all methods."""
        return sum(self._active.values())

    def expose(self, into: metrics.Exposition, labels: Sequence[str], scheme: str) -> None:
        for method, count in self._active.items():
            into.add(metrics.HTTP_SERVER_ACTIVE, (*labels, method, scheme), count)
        for (method, code, error), histogram in self._by.items():
            into.add_steps(metrics.HTTP_SERVER_DURATION, (*labels, method, code, scheme, error), histogram)

    def __repr__(self) -> str:
        return f"<HttpDurations of {len(self._by)} kinds>"
