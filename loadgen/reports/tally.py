"""Results of a run's calls, in bounded memory."""

from collections import Counter
from typing import Final

from tidegate.loadgen.clients.call import Call, WantedSla
from tidegate.loadgen.clients.client_health import LATE_S
from tidegate.loadgen.histogram import FineHistogram

MAX_SLOTS: Final = 512
"""Maximum slots of time; a longer run has wider slots."""
MAX_KINDS: Final = 64
OTHER: Final = "other"
"""The kind that counts failures beyond the known kinds."""


class TallySlot:
    """The calls due in one slot of time."""

    __slots__ = ("answered", "good", "inferences", "latency")

    def __init__(self) -> None:
        self.answered = 0
        self.good = 0
        self.inferences = 0
        self.latency = FineHistogram()

    def add(self, other: "TallySlot") -> None:
        """Adds all counts of another slot."""
        self.answered += other.answered
        self.good += other.good
        self.inferences += other.inferences
        self.latency.add(other.latency)


class Tally:
    """Counts of a run. Latency runs from the due time, ``service`` from the send time; both of successful answers, to
    the moment that the SLA judges (:attr:`Call.judged`). ``sla``: successes within it are counted."""

    def __init__(self, sla: WantedSla | None = None) -> None:
        self.sla = sla
        self.ended = 0
        self.good = 0
        self.unanswered = 0
        self.inferences = 0
        """Inferences of successful calls."""
        self.within = 0
        self.late = 0
        """Calls that left late though they were allowed to leave."""
        self.held = 0
        """Calls that waited because as many as allowed were in flight: the server's slowness, not the client's."""
        self.codes: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.latency = FineHistogram()
        self.service = FineHistogram()
        self.lag = FineHistogram()
        self.whole = FineHistogram()
        """From due time to end of the answers that were streams, also of those that came in one piece."""
        self.first = FineHistogram()
        """Time to the first output of a stream, from its due time."""
        self.gaps = FineHistogram()
        self.streams = 0
        self.tokens = 0
        self.slot_s = 1.0
        self.slots: list[TallySlot] = []
        self.last_s = 0.0
        """End of the last call."""

    def add(self, call: Call, began: float) -> None:
        """Adds a call that has ended; the run began at ``began``."""
        latency_s = call.judged - call.due
        self.ended += 1
        self.last_s = max(self.last_s, call.ended - began)
        lag_s = max(0.0, call.sent - call.due)
        if call.is_held:
            self.held += 1
        else:
            self.lag.record(lag_s)
            self.late += lag_s >= LATE_S
        if call.code is not None:
            self.codes[call.code] += 1
        else:
            self.unanswered += 1
        slot = self._slot(call.due - began)
        slot.answered += call.code is not None
        if not call.is_good:
            kind = call.error or f"status {call.code}"
            self.errors[kind if kind in self.errors or len(self.errors) < MAX_KINDS else OTHER] += 1
            return
        inferences = call.request.inferences
        self.good += 1
        self.inferences += inferences
        self.latency.record(latency_s)
        self.service.record(call.judged - call.sent)
        slot.good += 1
        slot.inferences += inferences
        slot.latency.record(latency_s)
        if self.sla is not None:
            self.within += self.sla.is_kept(call)
        if call.began or call.first:
            self.whole.record(call.ended - call.due)
        if call.first:
            self.streams += 1
            self.tokens += call.tokens
            self.first.record(call.first - call.due)
            for gap_s in call.gaps:
                self.gaps.record(gap_s)

    def _slot(self, at_s: float) -> TallySlot:
        index = int(max(0.0, at_s) / self.slot_s)
        while index >= MAX_SLOTS:
            self._widen()
            index = int(at_s / self.slot_s)
        while len(self.slots) <= index:
            self.slots.append(TallySlot())
        return self.slots[index]

    def _widen(self) -> None:
        """Doubles the slot length by merging pairs of slots."""
        self.slot_s *= 2.0
        for at in range(0, len(self.slots) - 1, 2):
            self.slots[at].add(self.slots[at + 1])
        self.slots = self.slots[::2]

    def __repr__(self) -> str:
        return f"<Tally {self.good} of {self.ended} calls a success, {self.latency!r}>"
