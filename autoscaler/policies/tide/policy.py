"""The policy ``tide``: the cheapest fleet that keeps the SLA.

Each second, from the arrivals and what is learnt:

1. *Level*: the load now, and *base*, the least capacity that keeps its late share (``level``, ``queueing``).
2. *Outlook*: how likely each level is by the time that a replica started now would help, and *cover*, the capacity that
   is worth its price for what may come (``outlook``, ``cover``). After a silence of a function that is seldom used it
   decides about the last replica (``silence``).
3. *Drain*: capacity for what waits and cannot be served in time by what runs.
4. *Hold*: a replica stays as long as starting it again would cost, and nothing changes within what chance explains.
5. *Mix*: the cheapest replicas over the groups that carry it (``mix``). Others go only once these are ready.

Loads and capacities are in slots of one reference group (``work``). One replica of a group without a known service rate
is tried where the known groups are not enough; without any rate, the requests that wait and run decide.
"""

import math
from collections import deque
from collections.abc import Mapping
from operator import mul
from typing import Any, Final

from msgspec import UNSET

from tidegate.autoscaler.decisions.groups import row
from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.measure.observation import Observation
from tidegate.autoscaler.policies.contract import PolicyRow, Recommendation
from tidegate.autoscaler.policies.sla_basics import TIE, by_concurrency, floor_ips, held
from tidegate.autoscaler.policies.tide.calendar import Calendar
from tidegate.autoscaler.policies.tide.cover import AIM, Expectation, LatePrice
from tidegate.autoscaler.policies.tide.level import Level
from tidegate.autoscaler.policies.tide.memory import TideMemory
from tidegate.autoscaler.policies.tide.mix import WRITE_OFF_S, Kinds, Mix, cheapest, chosen
from tidegate.autoscaler.policies.tide.outlook import Outlook
from tidegate.autoscaler.policies.tide.queueing import LateTable, Service, table
from tidegate.autoscaler.policies.tide.regret import Regret
from tidegate.autoscaler.policies.tide.silence import Silence
from tidegate.autoscaler.policies.tide.starts import Starts, assume_slowest
from tidegate.autoscaler.policies.tide.words import Chosen, Expected, Sizes, reasons_of
from tidegate.autoscaler.policies.tide.work import Arrivals, Capacity, Reference
from tidegate.function import ConcurrencyUnit, Function
from tidegate.manifest import policy_parameters as scaling_parameters
from tidegate.manifest.policy_parameters import TIDE_PARAMETERS

LOOK_EVERY_S: Final = 10.0
"""Interval at which the outlook is read again while the level does not move."""
MOVED: Final = 0.1
"""Relative change of the level from which on it is read at once."""
AHEAD: Final = 0.3
"""Part of the horizon for which a rising load is met ahead: replicas are whole, and have some slots to spare in any
case."""
LEAST_HOLD_S: Final = 15.0
LONGEST_COVER_HOLD_S: Final = 60.0
LEAST_DRAIN_S: Final = 5.0
DEAD_BAND_SIGMAS: Final = 5.0
"""Standard errors of the level within which a smaller size is chance."""
DEAD_BAND_S: Final = 3 * 3600.0
"""Time after which a replica goes that only the dead band keeps: a day has eight of them."""
FIRST_HOLD_S: Final = 128.0
"""Time for which what ran at the beginning stays: a level of so many seconds is known well enough."""
CA2_CHANGED: Final = 0.12
"""Relative change of the arrivals' variability from which on late shares are computed again."""
MIXED_STEP: Final = 0.5
"""Step of capacities where several groups can serve, in slots of the best one."""
MANY: Final = 100_000
"""Replicas of a group without a known limit."""
MOST_MISSED_S: Final = 300
"""Longest gap in the measurements of which the mean is believed."""
USED: Final = 0.7
"""Share of the slots to be in use while no rate is known."""
AT_ONCE: Final = 2.0
"""Replicas in all for each ready one, at most, until then."""


class _Maximum:
    """The maximum of the last seconds."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[tuple[float, float]] = deque()
        """(time, value), values falling: an older and smaller one never counts again."""

    def update(self, now: float, value: float, window_s: float) -> float:
        kept = self._kept
        while kept and kept[-1][1] <= value:
            kept.pop()
        kept.append((now, value))
        while kept[0][0] < now - window_s:
            kept.popleft()
        return kept[0][1]

    @property
    def value(self) -> float:
        """The maximum at the last update; 0 before the first."""
        return self._kept[0][1] if self._kept else 0.0

    def left_s(self, now: float, window_s: float) -> float:
        """Returns how long the maximum still counts."""
        return max(0.0, self._kept[0][0] + window_s - now) if self._kept else 0.0


class TidePolicy:
    """The policy of one revision."""

    __slots__ = (
        "_aim",
        "_arrivals",
        "_at",
        "_ca2",
        "_cover",
        "_effort",
        "_expectation",
        "_function",
        "_held",
        "_is_begun",
        "_level",
        "_looked",
        "_outlook",
        "_price",
        "_recent",
        "_reference",
        "_regret",
        "_silence",
        "_slo_s",
        "_starts",
        "_wanted",
    )

    activation_scale = 1
    retention_s = 0.0

    def __init__(self, function: Function, now: float, ready: int) -> None:
        given: dict[str, Any] = scaling_parameters.values(TIDE_PARAMETERS, function.scaling.parameters)
        self._function = function
        self._slo_s = function.sla.latency_s or 3600.0
        self._aim = AIM * (1.0 - function.sla.percentile / 100.0)
        """The late share that is aimed at."""
        self._at: float | None = None
        self._arrivals = Arrivals()
        self._reference = Reference(self._slo_s)
        self._starts: dict[str, Starts] = {}
        self._level = Level()
        self._ca2 = 1.0
        self._outlook = Outlook()
        self._silence = Silence()
        self._effort = math.log(given["sla-effort"])
        self._price = LatePrice(self._effort)
        self._expectation: Expectation | None = None
        self._looked = (-math.inf, 0.0, 0, 1.0)
        """(time, level, row, unit) at which the outlook was last read."""
        self._is_begun = False
        self._held = (now + FIRST_HOLD_S if ready else now, 0.0)
        """(until when, slots) that are held because they ran at the beginning."""
        self._wanted, self._cover, self._recent = _Maximum(), _Maximum(), _Maximum()
        self._regret = Regret()

    def decide(self, observation: Observation, now: float) -> Recommendation:
        known, is_other = self._starts, False
        for group in observation.groups:
            starts = known.get(group.accelerator)
            if starts is None:
                starts = known[group.accelerator] = Starts()
                is_other = True
            if starts.update(group.ready, group.starting, group.draining, now):
                is_other = True
        if is_other:
            assume_slowest(known.values())
        if (nothing := held(observation)) is not None:
            return nothing
        seconds = 1 if self._at is None else round(now - self._at)
        seen: tuple[Mapping[float, float], float] | None = None
        if seconds == 0:
            pass  # Between two seconds: a replica broke, say. Nothing is counted.
        elif observation.counts is UNSET:
            # A trace of figures has the rate alone.
            seen = {1.0: observation.lambda_ips * max(1, seconds)}, 0.0
        else:
            seen = self._arrivals.new(observation.counts)
        new, late = ({}, 0.0) if seen is None else seen
        in_inferences = self._function.concurrency_unit is ConcurrencyUnit.INFERENCES
        capacity = self._reference.read(
            observation,
            self._arrivals.shares,
            in_inferences,
            max(self._level.level, self._cover.value),
            per_token_s=self._function.sla.per_token_s,
        )
        if seconds:
            self._at = now
        if capacity is None:
            if not observation.existing and not observation.waiting:
                return Recommendation(desired=0, reasons=(reason("zero"),))
            return by_concurrency(observation, self._function, used=USED, most_factor=AT_ONCE)
        if seen is not None:
            self._count(capacity, new, max(1, seconds))
        return self._sized(observation, capacity, math.fsum(new.values()), late, now, is_counted=seen is not None)

    def _count(self, capacity: Capacity, new: Mapping[float, float], seconds: int) -> None:
        """Adds what arrived in the last ``seconds`` to the level. After a gap it is spread evenly: it is no burst.
        After a long one the level stays."""
        if seconds > 1:
            self._outlook.skip(seconds - 1)
            self._silence.skip(seconds - 1)
        if seconds > MOST_MISSED_S:
            return
        work = {size: capacity.work(size) for size in new}
        arrived = math.fsum([count * work[size] for size, count in new.items()]) / seconds
        squares = math.fsum([count * work[size] ** 2 for size, count in new.items()]) / seconds
        shortest_s = max(1, round(0.5 * (self._slo_s - capacity.service.answer_s)))
        for _ in range(seconds):
            self._level.update(arrived, squares, shortest_s)

    def _sized(
        self,
        observation: Observation,
        capacity: Capacity,
        arrivals: float,
        late: float,
        now: float,
        *,
        is_counted: bool,
    ) -> Recommendation:
        kinds = self._kinds(capacity)
        slots, _, counts, _, starts_s = zip(*[kind for kind in kinds if kind[0] > 0.0], strict=True)
        best, unit = capacity.best, capacity.unit
        step = best.slots if len(slots) == 1 else unit * MIXED_STEP
        start_s = max(starts_s)
        lates, level = self._lates(capacity.service), self._level
        if is_counted:
            self._outlook.update(level, start_s + 1.0)
            self._silence.update(arrivals, start_s + 1.0)
        trend = level.trend()
        now_slots = self._now(trend, start_s)
        load = self._load(observation, capacity, now_slots)
        is_in_time = self._starts_in_time(lates, start_s)
        is_quiet = _is_quiet(observation, self._function.scaling.scale_to_zero_after_s, start_s) and (
            self._price.is_seldom or is_in_time
        )
        # Where there is no cover, no price keeps the mean.
        allowed = self._aim if is_in_time else self._price.at_a_moment(self._aim)
        base = 0.0 if is_quiet else unit * lates.base(load / unit, allowed, step / unit)
        cover = self._covered(lates, capacity, base, step, start_s, now, is_quiet=is_quiet)
        if is_counted:
            there = max(base, cover)
            if is_quiet and not any(each.slots > 0.0 and each.seen.ready for each in capacity.groups):
                there = 0.0  # A cover that starts does not serve yet.
            lost = 0.0 if self._expectation is None else self._expectation.late(there / unit)
            self._price.update(arrivals, late, lost, self._aim)
        base, drain = self._drained(observation, capacity, base, step, start_s, now)
        wanted = base + drain
        present = math.fsum(map(mul, slots, counts))
        if not self._is_begun:
            # What runs at the beginning was wanted, and is the only memory until something is learnt.
            self._is_begun = True
            self._held = (self._held[0], present)
            self._wanted.update(now, present, 0.0)
            self._recent.update(now, present, 0.0)
        wanted_s, cover_s = max(start_s, LEAST_HOLD_S), min(start_s, LONGEST_COVER_HOLD_S)
        if trend < 0.0:  # What a load needs no more that falls all the time is not started again.
            wanted_s, cover_s = LEAST_HOLD_S, min(cover_s, LEAST_HOLD_S)
        by_wanted, by_cover = self._wanted.update(now, wanted, wanted_s), self._cover.update(now, cover, cover_s)
        if is_quiet:
            by_wanted = wanted
        held = max(by_wanted, by_cover)
        left_s = self._wanted.left_s(now, wanted_s) if by_wanted >= by_cover else self._cover.left_s(now, cover_s)
        if now < self._held[0] and self._held[1] > held:
            held, left_s = self._held[1], self._held[0] - now
        recent = self._recent.update(now, held, DEAD_BAND_S)
        again, again_s = self._regret.held(level, now)
        times = 0
        if again > held:
            held, left_s, times = again, again_s, self._regret.times
        target = held
        if 0.0 < held < present and trend >= 0.0:
            noise = DEAD_BAND_SIGMAS * math.sqrt(level.dispersion * max(level.level, level.dispersion) / level.window_s)
            within = unit * lates.base((load + noise) / unit, allowed, step / unit)
            most = min(recent, max(within, cover))
            if len(slots) > 1 and most < present:
                # Whole replicas of several groups: what ``most`` slots would have anyway is no surplus.
                most = chosen(kinds, present, most)[0].slots
            if present <= most + 1e-9:
                target = present
        after_s = self._function.scaling.scale_to_zero_after_s
        is_kept = target <= 0.0 and observation.idle_s < after_s and observation.existing > 0
        if is_kept:
            target = min(step, best.slots)
        mix, other = chosen(kinds, present, target)
        self._regret.update(level, mix.slots, 0.5 * step, now)
        ordered = _after_ready(capacity, mix.counts, min(target, wanted))
        alone = None
        theta, silence_s = self._price.theta(self._aim), self._silence.seconds
        expected = Expected(level.level, level.window_s, theta, self._expectation, silence_s)
        if is_kept:
            alone = reason("not_idle_yet", f"{figure(observation.idle_s)} s < {figure(after_s)} s")
        elif target <= 0.0:
            alone = reason("zero")
            if observation.existing:
                alone = reason("idle", f"for {figure(observation.idle_s)} s{expected.seldom() if is_quiet else ''}")
        sizes = Sizes(now_slots, load, base, cover, drain, held, left_s, times, target, is_quiet)
        is_at_limit = self._price.is_at_limit
        mixes = Chosen(mix, other, is_at_limit, self._needed(kinds, unit, target) if is_at_limit else None)
        reasons = (alone,) if alone else reasons_of(self._function.sla, capacity, lates, expected, sizes, mixes)
        if alone is None and target > mix.slots + 1e-9 and (tried := _unknown(capacity)) is not None:
            seen = capacity.groups[tried].seen
            ordered[tried] = min(1, seen.existing + seen.draining + (1 if seen.room is None else max(0, seen.room)))
            reasons += (reason("kind_tried", seen.accelerator),)
        figures = {"level": level.level, "base": base, "cover": cover, "target": target}
        share, desired = self._function.gpu.core_percentage, sum(ordered)
        if desired > observation.existing:
            for seen, count in zip(observation.groups, ordered, strict=True):
                more = count - seen.ready - seen.starting - seen.draining
                self._starts[seen.accelerator].order(more if more > 0 else 0)
        return Recommendation(
            desired=desired,
            groups=tuple(
                [row(seen.accelerator, count, share) for seen, count in zip(observation.groups, ordered, strict=True)]
            ),
            reasons=reasons,
            is_zero_settled=True,
            starts_ahead=True,
            observed=figures,
        )

    def retarget(self, function: Function) -> None:
        """Goes on under another SLA."""
        self._function = function
        self._slo_s = function.sla.latency_s or 3600.0
        self._aim = AIM * (1.0 - function.sla.percentile / 100.0)
        self._reference.retarget(self._slo_s)
        self._expectation = None

    # --- what is learnt

    def memory(self) -> TideMemory | None:
        """Returns what was learnt; None before the first second."""
        if not self._outlook.seconds:
            return None
        return TideMemory(
            reference=self._reference.name,
            sla=self._sla,
            ca2=self._level.ca2,
            shares=self._arrivals.shares,
            starts={name: each.took_s for name, each in self._starts.items()},
            price=self._price,
            outlook=self._outlook,
            silence=self._silence,
        )

    def resume(self, memory: TideMemory, away_s: float) -> None:
        """Continues with what was learnt ``away_s`` seconds ago. The price is for its SLA alone."""
        self._held = (-math.inf, 0.0)  # What was learnt says more.
        self._reference.resume(memory.reference)
        self._level.ca2 = self._ca2 = memory.ca2
        self._arrivals.shares = memory.shares
        for name, took_s in memory.starts.items():
            self._starts.setdefault(name, Starts()).resume(took_s)
        assume_slowest(self._starts.values())
        self._price.resume(memory.price, is_same=memory.sla == self._sla)
        self._outlook = memory.outlook
        self._outlook.skip(round(away_s))
        if memory.silence is not UNSET:
            self._silence = memory.silence
            self._silence.skip(round(away_s))

    def forget(self) -> None:
        """Begins to learn again. The level, what is held and the unit of loads stay."""
        self._level.ca2 = self._ca2 = 1.0
        self._arrivals.shares = {}
        for each in self._starts.values():
            each.resume(())
        self._outlook, self._silence, self._price = Outlook(), Silence(), LatePrice(self._effort)
        self._expectation = None

    def load(self) -> tuple[float, float] | None:
        """Returns (mean arrivals per second of the last day, inferences of a request); None without any."""
        return (self._price.rate, self._size) if self._price.rate > 0.0 else None

    def late_price_s(self) -> float:
        """Returns the price of a late request, in seconds of one replica."""
        return self._price.theta(self._aim)

    @property
    def _size(self) -> float:
        shares = self._arrivals.shares or {1.0: 1.0}
        return math.fsum(share * size for size, share in shares.items()) / math.fsum(shares.values())

    def words(self) -> tuple[str, ...]:
        """Returns what was learnt, for people."""
        if not self._outlook.seconds:
            return ()
        seconds, theta = self._outlook.seconds, self._price.theta(self._aim)
        since = f"{figure(seconds / 86_400.0)} days" if seconds > 86_400 else f"{seconds} s"
        took = ", ".join(f"{name} {figure(each.median_s)} s" for name, each in self._starts.items() if each.took_s)
        return (
            f"over {since}: changes from {self._outlook.rows} levels of load, in slots of {self._reference.name}",
            *((f"a late request is worth {figure(theta)} replica-seconds",) if theta > 0.0 else ()),
            *((f"a replica was seen ready after: {took}",) if took else ()),
        )

    @property
    def _sla(self) -> tuple[float, ...]:
        per_token_s = self._function.sla.per_token_s
        return (self._slo_s, self._function.sla.percentile, *(() if per_token_s is None else (per_token_s,)))

    # --- the parts of the size

    def _lates(self, service: Service) -> LateTable:
        if abs(self._level.ca2 / self._ca2 - 1.0) > CA2_CHANGED:
            self._ca2 = self._level.ca2
        return table(service, self._ca2)

    def _now(self, trend: float, start_s: float) -> float:
        """Returns the level, a mean of seconds ago, moved along ``trend`` to now, and on where it rises."""
        ahead_s = AHEAD * (start_s + 1.0) if trend > 0.0 else 0.0
        return max(0.0, self._level.level + trend * (0.5 * self._level.window_s + ahead_s))

    def _load(self, observation: Observation, capacity: Capacity, now: float) -> float:
        """Returns the load now, or what the function is to be able to take while it has traffic (``target-ips``,
        ``target-tps``)."""
        floor = floor_ips(self._function.sla, observation)
        if floor <= 0.0 or self._level.is_idle:
            return now
        return max(now, floor / self._size * capacity.mean_s)

    def _starts_in_time(self, lates: LateTable, start_s: float) -> bool:
        """Returns whether a replica that is started for a request answers it within the target."""
        return start_s + 1.0 <= 0.5 * (self._slo_s - lates.service.answer_s)

    def _covered(
        self,
        lates: LateTable,
        capacity: Capacity,
        base: float,
        step: float,
        start_s: float,
        now: float,
        *,
        is_quiet: bool,
    ) -> float:
        unit = capacity.unit
        theta = self._price.theta(self._aim)
        if theta <= 0.0 or self._starts_in_time(lates, start_s):
            self._expectation = None
            return 0.0
        looked_at, level, seen, known_unit = self._looked
        present, found = self._level.level, self._outlook.row(self._level)
        if is_quiet:
            found = -self._silence.row
        if (
            self._expectation is None
            or found != seen
            or unit != known_unit
            or now - looked_at >= LOOK_EVERY_S
            or abs(present - level) > MOVED * level
        ):
            levels, chances = self._outlook.forecast(self._level)
            before = self._cover.value / unit
            again = (min(start_s, LONGEST_COVER_HOLD_S) + 1.0) / WRITE_OFF_S
            # Of late requests that a step saves, those of a whole replica are the price.
            theta *= capacity.best.slots / step
            self._expectation = Expectation(
                lates, levels / unit, chances, theta, step / unit, base / unit, before, again,
                self._silence.rate if is_quiet else 0.0,
            )  # fmt: skip
            self._looked = (now, present, found, unit)
        return unit * self._expectation.best

    def _drained(
        self, observation: Observation, capacity: Capacity, base: float, step: float, start_s: float, now: float
    ) -> tuple[float, float]:
        """Returns (base, capacity beside it that works off what waits and would be late)."""
        if observation.waiting <= 0:
            return base, 0.0
        mean_s = capacity.mean_s
        running = math.fsum([each.slots * each.seen.ready for each in capacity.groups])
        eta_s = _eta_s(capacity, self._starts, start_s, now) if observation.starting else start_s
        waiting = observation.waiting * mean_s + (self._level.level - running) * eta_s
        is_late = waiting > running * max(0.0, self._slo_s - capacity.service.answer_s)
        drain = waiting / max(start_s, LEAST_DRAIN_S) if is_late else 0.0
        if base <= step and self._price.is_seldom:
            drain -= step - self._level.level  # The first replica has room for both.
        return max(base, step), max(0.0, drain)

    def _kinds(self, capacity: Capacity) -> Kinds:
        """Returns the groups as the choice of a mix sees them."""
        starts, kinds = self._starts, []
        for each in capacity.groups:
            seen = each.seen
            count, room = seen.ready + seen.starting, seen.room
            most = MANY if room is None else count + seen.draining + room
            kinds.append((each.slots, each.price, count, most if most > 0 else 0, starts[seen.accelerator].median_s))
        return tuple(kinds)

    def _needed(self, kinds: Kinds, unit: float, target: float) -> Mix | None:
        """Returns the mix that would keep what is aimed at; None if no size is known to do so."""
        slots: float | None = 0.0
        if self._expectation is not None:
            slots = self._expectation.needed(self._price.aimed(self._aim) * self._price.rate)
        return None if slots is None else cheapest(kinds, max(target, unit * slots))[0]

    def __repr__(self) -> str:
        return f"<TidePolicy {self._function.name} {self._level!r} {self._price!r}>"


def _is_quiet(observation: Observation, after_s: float, start_s: float) -> bool:
    """Returns whether nothing has come for so long that the level says nothing about what will: for ``after_s``
    (``scale-to-zero-after``), and as long as a replica stays idle in the place of a start."""
    least_s = max(after_s, min(start_s, LONGEST_COVER_HOLD_S), LEAST_HOLD_S)
    return observation.waiting <= 0 and observation.idle_s >= least_s


def _eta_s(capacity: Capacity, starts: Mapping[str, Starts], start_s: float, now: float) -> float:
    """Returns the mean time until the capacity that starts is ready; ``start_s`` if none does."""
    starting = [each for each in capacity.groups if each.slots > 0.0 and each.seen.starting]
    coming = math.fsum([each.slots * each.seen.starting for each in starting])
    if coming <= 0.0:
        return start_s
    weighted = [
        each.slots * each.seen.starting * (starts[each.seen.accelerator].eta_s(now) or 0.0) for each in starting
    ]
    return math.fsum(weighted) / coming


def _unknown(capacity: Capacity) -> int | None:
    """Returns the index of the group of unknown service times to try: one with a replica first, then one with room,
    then the cheapest. None if all are known."""
    found = [index for index, each in enumerate(capacity.groups) if each.is_unknown]

    def order(index: int) -> tuple[bool, bool, float, int]:
        seen = capacity.groups[index].seen
        return not seen.existing, seen.room is not None and seen.room <= 0, capacity.groups[index].price, index

    return min(found, key=order, default=None)


def _after_ready(capacity: Capacity, counts: tuple[int, ...], needed: float) -> list[int]:
    """Returns ``counts``, with releases taken back while the ready replicas that stay have less than ``needed``
    slots: those of the least price per slot first."""
    groups, kept, parts, released = capacity.groups, list(counts), [], []
    for index, (each, count) in enumerate(zip(groups, counts, strict=True)):
        its, ready = each.slots, each.seen.ready
        if count >= ready:
            parts.append(its * ready)
        else:
            parts.append(its * count)
            if its > 0.0:
                released.append((each.price / its, index))
    carried = math.fsum(parts)
    if carried >= needed - TIE:
        return kept
    for _, index in sorted(released):
        while carried < needed - TIE and kept[index] < groups[index].seen.ready:
            kept[index] += 1
            carried += groups[index].slots
    return kept


ROW = PolicyRow(
    name="tide",
    sentence="The cheapest fleet that keeps the latency target, with cover for what may come while a replica starts.",
    retarget=TidePolicy.retarget,
    build=TidePolicy,
    is_by_size=True,
    keeps=(
        TidePolicy,
        Arrivals,
        Calendar,
        Expectation,
        LatePrice,
        Level,
        Outlook,
        Reference,
        Regret,
        Service,
        Silence,
        Starts,
        TideMemory,
        _Maximum,
    ),
    memory=TidePolicy.memory,
    resume=TidePolicy.resume,
    forget=TidePolicy.forget,
    load=TidePolicy.load,
    late_price_s=TidePolicy.late_price_s,
    words=TidePolicy.words,
)
