"""``concurrency: auto`` at work: from samples of replicas to the limits of their groups.

An interval between two samples of a replica counts if every slot was taken in it: its mean use is nearly the limit, or
requests waited at both its ends and half the slots were in use (the others were on their way between gateway and
replica, which is part of the limit's yield). Its time counts whole, gaps between two requests included: a second slot
would fill them. Intervals in which the limit changed count for neither limit.

If more than a tenth ended without an answer the yield of the limit is unknown, but its room is partly known: an
abandoned execution would have taken at least as long as it was in the model. Clients that give up at once say nothing
about it. Clients that waited longer than the target leaves room for show that the limit is too large.

The server's declared number is where a group starts, and its maximum. Nothing changes without full replicas.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidegate.autoscaler.measure.plausible import PLAUSIBLE
from tidegate.autoscaler.measure.rates import CROWDED_FULL, FULL, MAX_UNANSWERED
from tidegate.autoscaler.profiles.concurrency_limit import ENOUGH_S, STEPS, Advice, FullWork, LearntLimit, LimitLearner
from tidegate.function import ConcurrencyUnit, Function
from tidegate.histogram import bucket_index, quantile
from tidegate.records.decision import Reason
from tidegate.records.replica_sample import ReplicaSample


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitNow:
    """The limit of a group's replicas, and its reason."""

    limit: int
    most: int
    reason: Reason | None = None
    """Reason of the last advice; None before the first measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    revision: str
    accelerator: str
    limit: int
    reason: Reason


@dataclass(slots=True)
class _Interval:
    before: ReplicaSample
    after: ReplicaSample
    used: float
    """Mean slots in use, as a part of the limit."""
    executions: tuple[tuple[int, int], ...]

    @property
    def seconds(self) -> float:
        return self.after.uptime_s - self.before.uptime_s

    @property
    def inferences(self) -> int:
        return self.after.inferences - self.before.inferences

    @property
    def answered(self) -> int:
        return self.after.requests - self.before.requests

    @property
    def unanswered(self) -> int:
        return self.after.unanswered - self.before.unanswered

    @property
    def is_lost(self) -> bool:
        """True if the yield is unknown."""
        return self.unanswered > MAX_UNANSWERED * self.answered


@dataclass(slots=True)
class _Stretch:
    """Full intervals under one limit, from the first one with many unanswered requests."""

    seconds: float = 0.0
    answered: int = 0
    unanswered: int = 0
    spent_s: float = 0.0
    """Time in the model of unanswered requests, and of requests that may be in flight still."""
    in_flight: int = 0
    """Upper bound of the latter: the slots, once for every run of intervals."""
    executions: dict[int, int] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)
    """Uptime of each replica at the end of its last interval."""

    def add(self, interval: _Interval) -> None:
        if not self.until and not interval.is_lost:
            return
        before, after = interval.before, interval.after
        self.seconds += interval.seconds
        self.answered += interval.answered
        self.unanswered += interval.unanswered
        self.spent_s += after.in_flight_request_s - before.in_flight_request_s
        self.spent_s -= after.execution_s - before.execution_s
        if self.until.get(after.replica) != before.uptime_s:
            self.in_flight += after.limit
        self.until[after.replica] = after.uptime_s
        _count(self.executions, interval)

    @property
    def is_enough(self) -> bool:
        return bool(self.until) and self.seconds >= ENOUGH_S * len(self.until)

    def tail_s(self, q: float) -> float | None:
        """Returns a lower bound of execution times at their percentile; None if few requests were unanswered.

        Unanswered requests count with their mean time in the model so far. That time is not reported; it is what all
        requests have spent there without the executions of the answered ones. Those in flight at the end may have spent
        part of it, so the mean is over them too: too small rather than too large.
        """
        if self.unanswered <= MAX_UNANSWERED * self.answered or not 0.0 < self.spent_s <= PLAUSIBLE:
            return None
        at_least_s = self.spent_s / (self.unanswered + self.in_flight)
        return quantile([*self.executions.items(), (bucket_index(int(at_least_s * 1e6)), self.unanswered)], q)


def _count(executions: dict[int, int], interval: _Interval) -> None:
    for index, count in interval.executions:
        executions[index] = executions.get(index, 0) + count


@dataclass(slots=True)
class _TunedGroup:
    learner: LimitLearner
    q: float
    in_inferences: bool
    intervals: list[_Interval] = field(default_factory=list)
    executions: dict[int, int] = field(default_factory=dict)
    """Executions of full intervals under the present limit, without those with many unanswered requests."""
    stretch: _Stretch = field(default_factory=_Stretch)
    advice: Advice | None = None


class Tuners:
    """The learnt limits of all groups with concurrency ``auto``, by revision and accelerator."""

    __slots__ = ("_groups", "_stored", "_waited")

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], _TunedGroup] = {}
        self._stored: dict[tuple[str, str], LearntLimit] = {}
        self._waited: dict[str, int] = {}

    def restore(self, revision: str, accelerator: str, stored: LearntLimit) -> None:
        """Adds the limit that an earlier process, or the revision before, has learnt of such a group."""
        if stored.limit >= 1 and stored.most >= 1:
            self._stored[revision, accelerator] = stored

    def found(self, function: Function, sample: ReplicaSample, accelerator: str, *, is_declared: bool) -> None:
        """Notes a ready replica of the group: the first one's limit is the start, and the latency target in force is
        that of ``function``. ``is_declared``: its server declares its maximum; else anything may be tried."""
        key = (sample.revision, accelerator)
        known = self._groups.get(key)
        if known is not None:
            known.learner.retarget(function.sla.latency_s)
            known.q = function.sla.percentile / 100.0
            return
        if function.concurrency is not None or sample.limit < 1:
            return
        most = sample.limit if is_declared else STEPS[-1]
        learner = LimitLearner(sample.limit, slo_s=function.sla.latency_s, most=most)
        stored = self._stored.pop(key, None)
        if stored is not None:
            learner.restore(stored)
        self._groups[key] = _TunedGroup(
            learner,
            q=function.sla.percentile / 100.0,
            in_inferences=function.concurrency_unit is ConcurrencyUnit.INFERENCES,
        )

    def measured(self, before: ReplicaSample, after: ReplicaSample, accelerator: str) -> None:
        """Adds two samples of one incarnation of a replica."""
        group = self._groups.get((after.revision, accelerator))
        seconds = after.uptime_s - before.uptime_s
        if group is None or seconds <= 0.0 or not before.limit == after.limit == group.learner.limit:
            return
        if group.in_inferences:
            slots_s = after.in_flight_inference_s - before.in_flight_inference_s
        else:
            slots_s = after.in_flight_request_s - before.in_flight_request_s
        earlier = dict(before.execution)
        gained = ((index, count - earlier.get(index, 0)) for index, count in after.execution)
        interval = _Interval(
            before=before,
            after=after,
            used=slots_s / (seconds * after.limit),
            executions=tuple((index, count) for index, count in gained if count > 0),
        )
        group.intervals.append(interval)

    def turn(self, now: float, waiting: Mapping[str, int]) -> list[Move]:
        """Returns the limits that change; to be called once a second, after the samples. ``waiting``: requests in
        gateways, by revision."""
        moves = []
        for (revision, accelerator), group in self._groups.items():
            is_crowded = waiting.get(revision, 0) > 0 and self._waited.get(revision, 0) > 0
            move = self._advised(group, now, is_crowded)
            if move is not None:
                moves.append(Move(revision=revision, accelerator=accelerator, limit=move.limit, reason=move.reason))
        self._waited = dict(waiting)
        return moves

    def _advised(self, group: _TunedGroup, now: float, is_crowded: bool) -> Advice | None:
        if not group.intervals:
            return None  # no samples: nothing changes
        least = CROWDED_FULL if is_crowded else FULL
        full = [each for each in group.intervals if each.used >= least]
        is_known = not all(each.is_lost for each in group.intervals)
        group.intervals = []
        before = group.learner.limit
        advice = self._outlasted(group, now, full)
        if advice is None and is_known:
            advice = self._observed(group, now, [each for each in full if not each.is_lost])
        if advice is not None:
            group.advice = advice
        if group.learner.limit == before:
            return None
        group.executions, group.stretch = {}, _Stretch()
        return group.advice

    def _outlasted(self, group: _TunedGroup, now: float, full: list[_Interval]) -> Advice | None:
        for each in full:
            group.stretch.add(each)
        if not group.stretch.is_enough:
            return None
        tail_s = group.stretch.tail_s(group.q)
        group.stretch = _Stretch()
        return None if tail_s is None else group.learner.outlasted(now, tail_s)

    def _observed(self, group: _TunedGroup, now: float, full: list[_Interval]) -> Advice:
        for each in full:
            _count(group.executions, each)
        return group.learner.observe(
            now,
            FullWork(
                inferences=sum(each.inferences for each in full),
                busy_s=sum(each.seconds for each in full),
                tail_s=quantile(group.executions.items(), group.q),
            ),
        )

    def limit(self, revision: str, accelerator: str) -> LimitNow | None:
        """Returns the present limit; None if the function sets it, or no replica was seen yet."""
        group = self._groups.get((revision, accelerator))
        if group is None:
            return None
        why = None if group.advice is None else group.advice.reason
        return LimitNow(limit=group.learner.limit, most=group.learner.most, reason=why)

    def learnt(self, revision: str) -> Iterable[tuple[str, LearntLimit]]:
        """Returns what is kept over a restart, by accelerator."""
        return [(name, group.learner.learnt()) for (owner, name), group in self._groups.items() if owner == revision]

    def forget(self, revision: str) -> None:
        for known in (self._groups, self._stored):
            for key in [key for key in known if key[0] == revision]:
                del known[key]

    def __repr__(self) -> str:
        return f"<Tuners {[(key, group.learner) for key, group in self._groups.items()]}>"
