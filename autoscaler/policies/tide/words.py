"""The reasons of a decision of ``tide``. What nearly every decision has is worded when it is read."""

import msgspec

from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.policies.tide.cover import Expectation
from tidegate.autoscaler.policies.tide.mix import Mix
from tidegate.autoscaler.policies.tide.queueing import LateTable
from tidegate.autoscaler.policies.tide.work import Capacity
from tidegate.function import Sla
from tidegate.records.decision import Reason


class Sizes(msgspec.Struct, frozen=True, gc=False):
    """The parts of a size, in slots."""

    now: float
    """The level, moved along its trend."""
    load: float
    """``now``, or a rate to provide."""
    base: float
    cover: float
    drain: float
    held: float
    left_s: float
    """How long ``held`` still holds."""
    times: int
    """How often it was given up and started again at this level, if that is why it is held; else 0."""
    target: float
    is_quiet: bool
    """Nothing has come for long."""


class Expected(msgspec.Struct, frozen=True, gc=False):
    """What is there, what may come, and what it is worth."""

    level: float
    window_s: float
    """The window that ``level`` is the mean of."""
    theta: float
    """Price of a late request."""
    expectation: Expectation | None
    """None where a replica that is started for a request is in time."""
    silence_s: int
    """Since the last request."""

    def seldom(self) -> str:
        """Returns what is expected after a silence, and its price."""
        if self.expectation is None:
            return ": a replica that is started for a request is in time"
        rate = self.expectation.late(0.0)
        expected = f"{figure(rate)} requests/s are expected {self.silence_s} s after the last one"
        return f": {expected}, a late one is worth {figure(self.theta)} replica-seconds"

    def surge(self) -> str:
        """Returns how likely more than the base is, and the price."""
        chance = 0.0 if self.expectation is None else 100.0 * self.expectation.surge
        priced = f"a late request is worth {figure(self.theta)} replica-seconds"
        return f": a load above the base comes with a chance of {figure(chance)} %, {priced}"


class Chosen(msgspec.Struct, frozen=True, gc=False):
    """The mixes that a decision names."""

    mix: Mix
    other: Mix | None
    """The next best one."""
    is_at_limit: bool
    """The price of a late request is the highest that is allowed."""
    needed: Mix | None
    """What would keep the target then; None if no size is known to do so."""


def reasons_of(
    sla: Sla, capacity: Capacity, lates: LateTable, expected: Expected, sizes: Sizes, chosen: Chosen
) -> tuple[Reason, ...]:
    """Returns the reasons for a size, in the order in which they make it."""
    base, cover, mix, other, needed = sizes.base, sizes.cover, chosen.mix, chosen.other, chosen.needed
    reasons = [*_limits(sla, capacity, lates), *_load(capacity, lates, expected, sizes)]
    if sizes.drain > 0.0:
        reasons.append(reason("drain", f"{figure(sizes.drain)} slots"))
    if base + sizes.drain > mix.slots + 1e-9:
        reasons.append(reason("no_capacity", f"{figure(mix.slots)} slots are all that there is"))
    if sizes.target > max(base + sizes.drain, cover):
        reasons.append(reason("replica_held", lambda: _held(sizes)))
    if chosen.is_at_limit and needed is None:
        reasons.append(reason("effort_limit", "no size is known to keep it"))
    elif needed is not None and needed.slots > mix.slots + 1e-9:
        price = sum(each.price * count for each, count in zip(capacity.groups, needed.counts, strict=True))
        reasons.append(reason("effort_limit", f"needs {_counts(capacity, needed)} at {figure(price)}/h"))
    if other is not None:
        reasons.append(reason("mix", lambda: f"{_priced(capacity, mix)}; next best {_priced(capacity, other)}"))
    return tuple(reasons)


def _held(sizes: Sizes) -> str:
    held = "the load is within chance"
    if sizes.target == sizes.held:
        again = f", started again {sizes.times} times at this load" if sizes.times else ""
        held = f"for {figure(sizes.left_s)} s more{again}"
    return f"{figure(sizes.target)} slots, {held}"


def _limits(sla: Sla, capacity: Capacity, lates: LateTable) -> list[Reason]:
    """Returns what the targets leave of the replicas."""
    reasons = []
    if capacity.is_infeasible:
        reasons.append(reason("slo_infeasible"))
    elif (tail_s := _tail_s(capacity)) > lates.service.latency_s and _is_too_wide(sla, lates):
        taken = f"{figure(sla.percentile)} % of them take up to {figure(1e3 * tail_s)} ms"
        reasons.append(reason("late_alone", f"{taken}; target {figure(1e3 * lates.service.latency_s)} ms"))
    if capacity.paced:
        target = f"at a time, for {figure(1e3 * (sla.per_token_s or 0.0))} ms per output token"
        reasons.append(reason("token_pace", f"{', '.join(capacity.paced)} {target}"))
    return reasons


def _tail_s(capacity: Capacity) -> float:
    """Returns the measured tail of the execution times that late shares are computed from; 0 if none was measured."""
    return capacity.best.seen.tail_s or 0.0


def _is_too_wide(sla: Sla, lates: LateTable) -> bool:
    """Returns whether more requests than the target allows are late on any number of slots. A tail alone may be that of
    requests that queued inside the model server, which a replica more helps."""
    return min(lates.hopeless, lates.service.late_alone) > 1.0 - sla.percentile / 100.0


def _load(capacity: Capacity, lates: LateTable, expected: Expected, sizes: Sizes) -> list[Reason]:
    """Returns what is there and what may come, with the slots for both."""
    load, base, cover = sizes.load, sizes.base, sizes.cover
    reasons = []
    if load > sizes.now:
        reasons.append(reason("target_ips", f"{figure(load)} slots instead of {figure(sizes.now)}"))
    if sizes.is_quiet:
        if cover > base:
            reasons.append(reason("cover", f"{figure(cover)} slots{expected.seldom()}"))
        return reasons
    reasons.append(reason("level", lambda: _level(capacity.unit, lates, expected, sizes)))
    if cover > base and expected.expectation is not None:
        reasons.append(reason("cover", lambda: f"{figure(cover)} slots{expected.surge()}"))
    return reasons


def _level(unit: float, lates: LateTable, expected: Expected, sizes: Sizes) -> str:
    level, now, load, base = expected.level, sizes.now, sizes.load, sizes.base
    seen = f"{figure(level)} slots over {figure(expected.window_s)} s"
    if now != level:
        seen += f", {'rising' if now > level else 'falling'} to {figure(now)}"
    if load <= 0.0:
        return seen
    late = 100.0 * lates.late(base / unit, load / unit)
    return f"{seen}: on {figure(base)} slots {_percent(late)} is late"


def _priced(capacity: Capacity, mix: Mix) -> str:
    return f"{_counts(capacity, mix)} at {figure(mix.cost)}/h"


def _counts(capacity: Capacity, mix: Mix) -> str:
    counted = zip(capacity.groups, mix.counts, strict=True)
    return ", ".join([f"{each.seen.accelerator} {count}" for each, count in counted if count]) or "none"


def _percent(value: float) -> str:
    """Formats percent for people, without an exponent for what is next to nothing."""
    return "less than 0.001 %" if 0.0 < value < 1e-3 else f"{figure(value)} %"
