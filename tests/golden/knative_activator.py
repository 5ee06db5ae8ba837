"""What Knative's activator reports and how much it lets through: exact, for comparison.

Tidegate's waiting room is part of the gateway: its counters are pulled as integrals
(``tidegate.gateway.counting.counters``) and slots are granted as credits, so nothing of the live path needs these.
"""

from dataclasses import dataclass

NO_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Report:
    """One revision over one reporting interval."""

    average_concurrency: float
    request_count: float


class RequestReporter:
    """The request statistics of one revision.

    The first request of a revision that is not known yet is reported at once, as one running request, so that it wakes;
    the next report is less by what was reported so. A revision that was quiet for a whole interval is forgotten.
    """

    __slots__ = ("_arrived", "_at", "_began", "_is_known", "_present", "_reported", "_request_s")

    def __init__(self) -> None:
        self._is_known = False
        self._present = self._arrived = self._reported = 0
        self._at = self._began = self._request_s = 0.0

    def began(self, now: float) -> Report | None:
        """A request has come; the report that goes out at once, if any."""
        is_first = not self._is_known
        if is_first:
            self._is_known, self._at, self._began = True, now, now
            self._request_s, self._arrived, self._reported = 0.0, 0, 1
        self._count(now)
        self._present += 1
        self._arrived += 1
        return Report(1.0, 1.0) if is_first else None

    def ended(self, now: float) -> None:
        self._count(now)
        self._present -= 1

    def report(self, now: float) -> Report | None:
        """Returns the report at the end of an interval; None if the revision is unknown."""
        if not self._is_known:
            return None
        self._count(now)
        elapsed_s = self._at - self._began
        average = self._request_s / elapsed_s if elapsed_s > 0 else 0.0
        found = Report(max(0.0, average - self._reported), float(self._arrived - self._reported))
        self._is_known = average != 0.0 or self._present > 0
        self._began, self._request_s, self._arrived, self._reported = self._at, 0.0, 0, 0
        return found

    def _count(self, now: float) -> None:
        """Up to ``now``; what is dated before the last event counts at its time."""
        passed_s = now - self._at
        if passed_s > 0:
            self._request_s += self._present * passed_s
            self._at = now

    def __repr__(self) -> str:
        return f"<RequestReporter {self._present} present, {self._arrived} arrived>"


def capacity(container_concurrency: int, assigned: int, backends: int, activators: int) -> int:
    """Requests that one of ``activators`` lets through at once: to the replicas assigned to it, else (behind one
    address) its part of all ready ``backends``, at least one. ``container_concurrency`` 0: no limit."""
    if container_concurrency == 0:
        return NO_LIMIT if backends else 0
    if assigned:
        return min(NO_LIMIT, container_concurrency * assigned)
    if not backends:
        return 0
    return min(NO_LIMIT, max(1, container_concurrency * backends // max(1, activators)))
