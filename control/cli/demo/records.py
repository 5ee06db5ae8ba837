"""Records of a demo run and its verdict. No clock, no sockets."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.control.views.functions import GroupView, TrafficView
from tidegate.loadgen.clients.outcomes import RequestOutcome

SLICE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One reading of the function's status, ``at_s`` seconds after the load began (negative: before)."""

    at_s: float
    unix: float
    ready: int
    starting: int
    leaving: int
    desired: int | None
    waiting: int
    reasons: tuple[str, ...] = ()
    traffic: TrafficView | None = None
    """The figures that ``tidegate status`` and the console show at that moment."""
    groups: tuple[GroupView, ...] = ()

    @property
    def present(self) -> int:
        return self.ready + self.starting + self.leaving


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoVerdict:
    passed: bool
    text: str


@dataclass(slots=True)
class Records:
    """All outcomes and status readings. ``sent`` counts the requests of the schedule so far."""

    latency_s: float
    percentile: float
    outcomes: list[RequestOutcome] = field(default_factory=list)
    asked: list[RequestOutcome] = field(default_factory=list)
    """The requests before the load: the first one, and those that measured its cost."""
    looks: list[Look] = field(default_factory=list)

    def recent(self, now_s: float, window_s: float = 5.0) -> list[RequestOutcome]:
        """Returns the outcomes of the last ``window_s`` seconds."""
        found = []
        for outcome in reversed(self.outcomes):
            if outcome.at_s + outcome.latency_s < now_s - window_s - 10.0:
                break
            if outcome.at_s + outcome.latency_s > now_s - window_s:
                found.append(outcome)
        return found

    @property
    def lost(self) -> list[RequestOutcome]:
        return [outcome for outcome in self.outcomes if not outcome.is_good]

    @property
    def within_sla(self) -> float | None:
        """Returns the share of successful answers within the latency target; None without any."""
        good = [outcome for outcome in self.outcomes if outcome.is_good]
        return sum(outcome.latency_s <= self.latency_s for outcome in good) / len(good) if good else None

    def most(self) -> int:
        """Returns the largest number of replicas that were ready at one time."""
        return max((look.ready for look in self.looks), default=0)

    def verdict(self, first_was_good: bool) -> DemoVerdict:
        """Passes if no request was lost and the function went from zero to several replicas and back to zero."""
        faults = []
        if not first_was_good:
            faults.append("the first request was not answered")
        if self.lost:
            first = self.lost[0]
            what = "no answer" if first.status is None else f"status {first.status}"
            what += f", {first.error}" if first.error else ""
            faults.append(f"{len(self.lost)} of {len(self.outcomes)} requests were lost ({what})")
        if not self.looks or self.looks[0].present != 0:
            faults.append("it did not begin at zero replicas")
        if self.most() < 2:
            faults.append(f"it never had more than {self.most()} ready")
        if not self.looks or self.looks[-1].present != 0:
            faults.append("it did not return to zero replicas")
        if faults:
            return DemoVerdict(passed=False, text="Failed: " + "; ".join(faults) + ".")
        total = len(self.outcomes) + 1
        return DemoVerdict(
            passed=True, text=f"Passed: none of {total} requests lost; 0 -> {self.most()} -> 0 replicas."
        )


def quantile(values: Sequence[float], q: float) -> float | None:
    """The q-quantile (nearest rank) of exact values; None without any."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(q * len(ordered) * 1_000_000) // 1_000_000) - 1))]


def by_second(outcomes: Sequence[RequestOutcome], length_s: float) -> list[list[RequestOutcome]]:
    """Groups outcomes by the second in which their request was sent."""
    slices: list[list[RequestOutcome]] = [[] for _ in range(int(length_s / SLICE_S) + 1)]
    for outcome in outcomes:
        if 0 <= outcome.at_s < length_s:
            slices[int(outcome.at_s / SLICE_S)].append(outcome)
    return slices
