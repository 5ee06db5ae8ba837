"""Sources of requests: open-loop arrivals from an iterator, closed-loop callers, and pipelines, whose requests become
those of their stages."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, Protocol

from tidegate.flow.dropping import age_limit
from tidegate.function import Function
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.arrivals.pace import Ticker
from tidegate.loadgen.simulator.counters import ANSWERED, Ended, Request
from tidegate.loadgen.simulator.kernel import Kernel
from tidegate.loadgen.simulator.scenario import Callers
from tidegate.records.pipeline import before

NO_TIME_S = 0.001
"""Delay before the next request of a caller whose request took no time at all (a refusal): else time would stand
still."""

STAGES: Final = "stages"
"""Stands for the accelerator of a pipeline's request."""


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


class ArriveStage(Protocol):
    def __call__(self, request: Request, waits_until: float, deadline: float, since: float, now: float) -> None: ...


@dataclass(slots=True)
class _Whole:
    """One request on its way."""

    request: Request
    pipeline: "_Pipeline"
    done: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)
    first_s: float = inf
    """When a replica first had it."""
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class _Pipeline:
    stages: tuple[str, ...]
    """Revisions of the stages."""
    waits: tuple[tuple[int, ...], ...]
    timeout_s: float
    drop_s: float


class SimulatedPipelines:
    """All pipelines of a simulation: each request runs through its stages, as on a live gateway worker.

    A stage's request arrives in the waiting room with the age of the whole. It waits until the whole request's deadline
    or ``drop-after``, and runs until the deadline. The first stage that fails ends the request; what stages beside it
    answer counts for nothing. Conditions are not simulated.
    """

    def __init__(
        self,
        functions: Sequence[Function],
        revisions: Mapping[str, str],
        arrive: ArriveStage,
        caller: Callable[[Request, float], None],
    ) -> None:
        """``revisions``: of the stages' functions, by name; ``arrive``: takes the request of a stage; ``caller``: is
        called with each request of a closed loop that has ended."""
        self._arrive = arrive
        self._caller = caller
        self._pipelines = {
            revision_of(function): _Pipeline(
                tuple(revisions[stage.function] for stage in function.server.stages),
                before(function.server.stages),
                function.timeout_s,
                age_limit(function.sla.drop_after, function.sla.latency_s),
            )
            for function in functions
        }
        self._live: dict[int, tuple[_Whole, int]] = {}
        """By caller of a stage's request, a number below zero: the whole request, and the stage's index."""
        self._number = 0
        self._ended: list[Ended] = []
        self.open = 0

    def has(self, request: Request) -> bool:
        return request[1] in self._pipelines

    def begin(self, request: Request, now: float) -> None:
        """Takes a request of a pipeline that arrives now."""
        self.open += 1
        self._advance(_Whole(request, self._pipelines[request[1]]), now)

    def _advance(self, whole: _Whole, now: float) -> None:
        pipeline, request = whole.pipeline, whole.request
        since = request[2]
        for at, waits in enumerate(pipeline.waits):
            if whole.is_over:
                return  # The room has refused a stage at once.
            if at in whole.begun or not whole.done.issuperset(waits):
                continue
            whole.begun.add(at)
            self._number -= 1
            self._live[self._number] = whole, at
            stage: Request = (self._number, pipeline.stages[at], now, request[3], self._number, request[5], request[6])
            deadline = since + pipeline.timeout_s
            self._arrive(stage, min(deadline, since + pipeline.drop_s), deadline, since, now)
        if not whole.is_over and len(whole.done) == len(pipeline.stages):
            self._end(whole, now, ANSWERED)

    def ended(self, ended: Ended) -> None:
        """Takes the end of a stage's request."""
        (_, _, _, _, caller, _, _), sent_at, now, _, _, result = ended
        found = None if caller is None else self._live.pop(caller, None)
        if found is None:
            return
        whole, at = found
        whole.first_s = min(whole.first_s, sent_at)
        if whole.is_over:
            return  # Another stage has failed.
        whole.done.add(at)
        if result == ANSWERED:
            self._advance(whole, now)
        else:
            self._end(whole, now, result)

    def _end(self, whole: _Whole, now: float, result: str) -> None:
        request = whole.request
        self.open -= 1
        self._ended.append((request, min(whole.first_s, now), now, STAGES, "", result))
        whole.is_over = True
        if request[4] is not None:
            self._caller(request, now)

    def take_ended(self) -> list[Ended]:
        """Returns the requests of pipelines that ended since the last call."""
        taken, self._ended = self._ended, []
        return taken

    def __repr__(self) -> str:
        return f"<SimulatedPipelines {self.open} requests open>"


def revision_of(pipeline: Function) -> str:
    """Returns the revision of a simulated pipeline."""
    return f"{pipeline.name}-00001"


def is_stage(ended: Ended) -> bool:
    """Returns whether it is the request of a stage."""
    caller = ended[0][4]
    return caller is not None and caller < 0
