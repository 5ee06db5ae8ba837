"""Durations of requests as OpenTelemetry's ``http.server.request.duration`` counts them: by method, status and error,
whatever became of the request."""

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
    """The durations of one revision. A label that does not apply is empty, which equals an absent one."""

    __slots__ = ("_by",)

    def __init__(self) -> None:
        self._by: dict[tuple[str, str, str], metrics.StepHistogram] = {}

    def record(self, method: bytes, status: int, error: str, seconds: float) -> None:
        """Counts one request. ``status``: 0 if no answer was begun; ``error``: how it ended, if not with an answer."""
        code = str(status) if status else ""
        key = METHODS.get(method, OTHER), code, code if status >= 500 else error
        found = self._by.get(key)
        if found is None:
            found = self._by[key] = metrics.StepHistogram(metrics.HTTP_SERVER_DURATION)
        found.record_s(seconds)

    def expose(self, into: metrics.Exposition, labels: Sequence[str], scheme: str) -> None:
        for (method, code, error), histogram in self._by.items():
            into.add_steps(metrics.HTTP_SERVER_DURATION, (*labels, method, code, scheme, error), histogram)

    def __repr__(self) -> str:
        return f"<HttpDurations of {len(self._by)} kinds>"
