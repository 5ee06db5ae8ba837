"""``concurrency: auto`` at work: from samples of replicas to the limits of their groups.

An interval between two samples of a replica counts when every slot was taken in it: its mean use is nearly the limit,
or requests waited at both its ends and half the slots were in use (the others were on their way between gateway and
replica, which is part of what the limit yields). Its time counts whole, gaps between two requests included: a second
slot would fill them. Intervals in which the limit changed count for neither limit.

The server's declared number is where a group starts, and the most it gets. Nothing moves without full replicas.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autoscaler.concurrency import STEPS, Advice, FullWork, LearntLimit, LimitLearner
from autoscaler.rates import CROWDED_FULL, FEW_UNANSWERED, FULL
from tidegate.function import ConcurrencyUnit, Function
from tidegate.histogram import quantile
from tidegate.records import Reason, ReplicaSample


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitNow:
    """The limit of a group's replicas, and why."""

    limit: int
    most: int
    reason: Reason | None = None
    """Of the last advice; None: nothing was measured yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    revision: str
    accelerator: str
    limit: int
    reason: Reason


@dataclass(slots=True)
class _Interval:
    seconds: float
    inferences: float
    used: float
    """Mean slots in use, as a part of the limit."""
    executions: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _Group:
    learner: LimitLearner
    q: float
    in_inferences: bool
    intervals: list[_Interval] = field(default_factory=list)
    executions: dict[int, int] = field(default_factory=dict)
    """Of full intervals under the present limit."""
    advice: Advice | None = None


class Tuners:
    """The learnt limits of all groups whose concurrency is ``auto``, by revision and accelerator."""

    __slots__ = ("_groups", "_told", "_waited")

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], _Group] = {}
        self._told: dict[tuple[str, str], LearntLimit] = {}
        self._waited: dict[str, int] = {}

    def restore(self, revision: str, accelerator: str, told: LearntLimit) -> None:
        """What an earlier process, or the revision before, has learnt of such a group."""
        if told.limit >= 1 and told.most >= 1:
            self._told[revision, accelerator] = told

    def found(self, function: Function, sample: ReplicaSample, accelerator: str, *, is_declared: bool) -> None:
        """A ready replica of the group: its limit is where the first one starts. ``is_declared``: its server says how
        much it can take; else anything may be tried."""
        key = (sample.revision, accelerator)
        if key in self._groups or function.concurrency is not None or sample.limit < 1:
            return
        most = sample.limit if is_declared else STEPS[-1]
        learner = LimitLearner(sample.limit, slo_s=function.sla.latency_s, most=most)
        told = self._told.pop(key, None)
        if told is not None:
            learner.restore(told)
        self._groups[key] = _Group(
            learner,
            q=function.sla.percentile / 100.0,
            in_inferences=function.concurrency_unit is ConcurrencyUnit.INFERENCES,
        )

    def measured(self, before: ReplicaSample, after: ReplicaSample, accelerator: str) -> None:
        """Two samples of one life of a replica."""
        group = self._groups.get((after.revision, accelerator))
        seconds = after.uptime_s - before.uptime_s
        if group is None or seconds <= 0.0 or not before.limit == after.limit == group.learner.limit:
            return
        if after.unanswered - before.unanswered > FEW_UNANSWERED * (after.requests - before.requests):
            return  # what would have been served is not known
        if group.in_inferences:
            slots_s = after.in_flight_inference_s - before.in_flight_inference_s
        else:
            slots_s = after.in_flight_request_s - before.in_flight_request_s
        earlier = dict(before.execution)
        gained = ((index, count - earlier.get(index, 0)) for index, count in after.execution)
        interval = _Interval(
            seconds=seconds,
            inferences=after.inferences - before.inferences,
            used=slots_s / (seconds * after.limit),
            executions=tuple((index, count) for index, count in gained if count > 0),
        )
        group.intervals.append(interval)

    def turn(self, now: float, waiting: Mapping[str, int]) -> list[Move]:
        """Once a second, after the samples: the limits that change. ``waiting``: requests in gateways, by revision."""
        moves = []
        for (revision, accelerator), group in self._groups.items():
            is_crowded = waiting.get(revision, 0) > 0 and self._waited.get(revision, 0) > 0
            move = self._advised(group, now, is_crowded)
            if move is not None:
                moves.append(Move(revision=revision, accelerator=accelerator, limit=move.limit, reason=move.reason))
        self._waited = dict(waiting)
        return moves

    def _advised(self, group: _Group, now: float, is_crowded: bool) -> Advice | None:
        if not group.intervals:
            return None  # nothing was heard: nothing moves
        least = CROWDED_FULL if is_crowded else FULL
        full = [each for each in group.intervals if each.used >= least]
        group.intervals = []
        for each in full:
            for index, count in each.executions:
                group.executions[index] = group.executions.get(index, 0) + count
        before = group.learner.limit
        group.advice = group.learner.observe(
            now,
            FullWork(
                inferences=sum(each.inferences for each in full),
                busy_s=sum(each.seconds for each in full),
                tail_s=quantile(group.executions.items(), group.q),
            ),
        )
        if group.learner.limit == before:
            return None
        group.executions = {}
        return group.advice

    def limit(self, revision: str, accelerator: str) -> LimitNow | None:
        """None: it is given by the function, or no replica was seen yet."""
        group = self._groups.get((revision, accelerator))
        if group is None:
            return None
        why = None if group.advice is None else group.advice.reason
        return LimitNow(limit=group.learner.limit, most=group.learner.most, reason=why)

    def learnt(self, revision: str) -> Iterable[tuple[str, LearntLimit]]:
        """What is to be kept over a restart, by accelerator."""
        return [(name, group.learner.learnt()) for (owner, name), group in self._groups.items() if owner == revision]

    def forget(self, revision: str) -> None:
        for known in (self._groups, self._told):
            for key in [key for key in known if key[0] == revision]:
                del known[key]

    def __repr__(self) -> str:
        return f"<Tuners {[(key, group.learner) for key, group in self._groups.items()]}>"
