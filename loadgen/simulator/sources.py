"""Sources of requests: open-loop arrivals from an iterator, and closed-loop callers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf

from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.arrivals.pace import Ticker
from tidegate.loadgen.simulator.counters import Request
from tidegate.loadgen.simulator.kernel import Kernel
from tidegate.loadgen.simulator.scenario import Callers

NO_TIME_S = 0.001
"""Delay before the next request of a caller whose request took no time at all (a refusal): else time would stand
still."""

Arrive = Callable[[Request, float], None]


class OpenLoop:
    """Sends at the times of the trace, whatever happens to the requests; reads one arrival ahead."""

    __slots__ = ("_arrivals", "_arrive", "_next", "_revisions", "at_s", "sent")

    def __init__(self, arrivals: Iterable[Arrival], revisions: Mapping[str, str], default: str, arrive: Arrive) -> None:
        """``revisions``: revision ids by function name."""
        self._arrivals: Iterator[Arrival] = iter(arrivals)
        self._revisions = {**revisions, "": default}
        self._arrive = arrive
        self._next: Request = (-1, "", 0.0, 0, None, 0, 0)
        self.at_s = 0.0
        """Time of the next arrival (:class:`tidegate.loadgen.simulator.kernel.Feed`)."""
        self.sent = 0

    def begin(self) -> None:
        self._read()

    @property
    def is_over(self) -> bool:
        """Whether there are no more arrivals."""
        return self.at_s == inf

    def _read(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is None:
            self.at_s = inf
            return
        at_s, inferences, prompt, completion, function = arrival
        if not self.at_s <= at_s < inf:
            raise ValueError(f"arrival {self.sent + 1} is at {at_s} s, after one at {self.at_s} s; times never fall")
        if inferences < 1:
            raise ValueError(f"arrival {self.sent + 1} has {inferences} inferences; it has 1 at least")
        revision = self._revisions.get(function)
        if revision is None:
            raise ValueError(f"arrival {self.sent + 1} is for {function!r}, which is not deployed")
        self.at_s = at_s
        self._next = (self.sent, revision, at_s, inferences, None, prompt, completion)

    def comes(self, now: float) -> None:
        request = self._next
        self.sent += 1
        self._read()
        self._arrive(request, now)


class ClosedLoop:
    """All closed-loop callers of a scenario."""

    __slots__ = ("_arrive", "_groups", "_kernel", "_left", "_revisions", "_started", "_tickers", "open", "sent")

    def __init__(
        self, kernel: Kernel, groups: tuple[Callers, ...], revisions: Mapping[str, str], arrive: Arrive
    ) -> None:
        self._kernel = kernel
        self._arrive = arrive
        self._revisions = revisions
        self._groups: list[Callers] = []
        """The group of each caller."""
        self._tickers: list[Ticker | None] = []
        self._left: list[float] = []
        """Requests that each caller still has to send."""
        self.sent = 0
        self.open = 0
        """Callers that still send."""
        for group in groups:
            for number in range(group.callers):
                self._groups.append(group)
                self._tickers.append(None if group.rate is None else Ticker(group.rate))
                self._left.append(_part(group, number))

    def begin(self) -> None:
        for caller, group in enumerate(self._groups):
            if self._left[caller] > 0:
                self.open += 1
                self._send_next(caller, group.start_s)

    def _send_next(self, caller: int, free_at: float) -> None:
        group, ticker = self._groups[caller], self._tickers[caller]
        at_s = free_at if ticker is None else group.start_s + ticker.next(free_at - group.start_s)
        self._kernel.at(at_s, self._sends, caller)

    def _sends(self, now: float, caller: int) -> None:
        group = self._groups[caller]
        self._left[caller] -= 1
        self.sent += 1
        # Numbers below zero: no request of the trace has one.
        self._arrive((-self.sent, self._revisions[group.function], now, group.inferences, caller, 0, 0), now)

    def ended(self, request: Request, now: float) -> None:
        """Takes the end of a caller's request, whatever its result; the caller sends its next one."""
        caller = request[4]
        if caller is None:
            return
        if self._left[caller] > 0:
            self._send_next(caller, now if now > request[2] else now + NO_TIME_S)
        else:
            self.open -= 1


def _part(group: Callers, number: int) -> float:
    """Returns the number of requests of one caller."""
    if group.requests is None:
        return inf
    each, more = divmod(group.requests, group.callers)
    return each + (number < more)
