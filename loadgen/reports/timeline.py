"""Timeline of a simulated function: each second as it ends, and slots of time for plots.

Memory is bounded: there are at most ``MAX_SLOTS`` slots, and a longer run has wider ones.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tidegate.loadgen.histogram import FineHistogram
from tidegate.loadgen.metrics.power import PowerSample
from tidegate.loadgen.simulator.counters import Ended
from tidegate.loadgen.simulator.devices import Busy
from tidegate.loadgen.simulator.lease import Lease
from tidegate.loadgen.simulator.result import FunctionSecond, Start
from tidegate.records.decision import Decision

MAX_SLOTS: Final = 512


class TimelineSlot:
    """Sums over the seconds of a slot; a request belongs to the slot in which it ended."""

    __slots__ = (
        *("answered", "at_s", "broken", "busy_s", "draining", "ended", "latency", "ready", "samples", "seconds"),
        *("starting", "waiting", "wanted", "watts"),
    )

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s
        """Beginning of the slot."""
        self.seconds = 0
        self.wanted = self.ready = self.starting = self.draining = 0
        """Sums of replica counts at the end of each second."""
        self.waiting = 0
        """Maximum of waiting requests."""
        self.ended = self.answered = self.broken = 0
        """Requests that ended; ``broken`` ones were later than the SLA allows, or failed."""
        self.latency = FineHistogram()
        """Latency of answered requests."""
        self.busy_s = 0.0
        """Busy seconds of all units."""
        self.watts = 0.0
        """Sum over power samples of all units together."""
        self.samples = 0

    def add(self, other: "TimelineSlot") -> None:
        """Adds a later slot."""
        self.seconds += other.seconds
        self.wanted += other.wanted
        self.ready += other.ready
        self.starting += other.starting
        self.draining += other.draining
        self.waiting = max(self.waiting, other.waiting)
        self.ended += other.ended
        self.answered += other.answered
        self.broken += other.broken
        self.latency.add(other.latency)
        self.busy_s += other.busy_s
        self.watts += other.watts
        self.samples += other.samples


class Timeline:
    """A sink of the simulator for a run of one function. ``limit_s`` is the SLA's latency; ``on_second`` receives each
    finished second as a slot of its own. :meth:`power` takes samples of the same run."""

    def __init__(self, limit_s: float | None, on_second: Callable[[TimelineSlot], None] | None = None) -> None:
        self._limit_s = float("inf") if limit_s is None else limit_s + 1e-9
        self._on_second = on_second
        self._now = TimelineSlot(0.0)
        self.slot_s = 1
        self.slots: list[TimelineSlot] = []
        self.most_ready = 0

    def requests(self, ended: Sequence[Ended]) -> None:
        now, limit_s = self._now, self._limit_s
        record = now.latency.record
        now.ended += len(ended)
        for (_, _, arrived_s, *_), _, at_s, _, _, end in ended:
            latency_s = at_s - arrived_s
            if end == "answered":
                now.answered += 1
                now.broken += latency_s > limit_s
                record(latency_s)
            else:
                now.broken += 1

    def busy(self, spans: Sequence[Busy]) -> None:
        self._now.busy_s += sum(until - since for _, _, since, until in spans)

    def power(self, sample: PowerSample) -> None:
        self._now.watts += sample.total_w
        self._now.samples += 1

    def decision(self, decision: Decision) -> None: ...

    def start(self, start: Start) -> None: ...

    def lease(self, lease: Lease) -> None: ...

    def second(self, second: FunctionSecond) -> None:
        now = self._now
        now.seconds = 1
        now.wanted, now.ready, now.waiting = second.wanted, second.ready, second.waiting
        now.starting, now.draining = second.starting, second.draining
        self.most_ready = max(self.most_ready, second.ready)
        self._over(second.at_s)

    def finish(self) -> None:
        """Ends the run: requests after the last whole second count to that second."""
        if self._now.ended and self.slots:
            self.slots[-1].add(self._now)
        self._now = TimelineSlot(self._now.at_s)

    def _over(self, at_s: float) -> None:
        now, self._now = self._now, TimelineSlot(at_s)
        if self._on_second is not None:
            self._on_second(now)
        index = int(now.at_s) // self.slot_s
        if index >= MAX_SLOTS:
            self._widen()
            index = int(now.at_s) // self.slot_s
        if index < len(self.slots):
            self.slots[index].add(now)
        else:
            self.slots.append(now)

    def _widen(self) -> None:
        """Doubles the slot length by merging pairs of slots."""
        self.slot_s *= 2
        for at in range(0, len(self.slots) - 1, 2):
            self.slots[at].add(self.slots[at + 1])
        self.slots = self.slots[::2]

    def __repr__(self) -> str:
        return f"<Timeline of {len(self.slots)} slots of {self.slot_s} s>"


class ByFunction:
    """A sink of the simulator for a run of several functions: each has a timeline of its own, by name. What units do
    belongs to no single one and is left out."""

    def __init__(self, timelines: Mapping[str, Timeline]) -> None:
        self._timelines = timelines

    def requests(self, ended: Sequence[Ended]) -> None:
        parted: dict[str, list[Ended]] = {}
        for each in ended:
            parted.setdefault(each[0][1].rpartition("-")[0], []).append(each)
        for name, part in parted.items():
            self._timelines[name].requests(part)

    def busy(self, spans: Sequence[Busy]) -> None: ...

    def decision(self, decision: Decision) -> None: ...

    def start(self, start: Start) -> None: ...

    def lease(self, lease: Lease) -> None: ...

    def second(self, second: FunctionSecond) -> None:
        self._timelines[second.function].second(second)

    def __repr__(self) -> str:
        return f"<ByFunction {', '.join(self._timelines)}>"
