"""The stages of a rollout: from facts to the next state, with its reason. Pure. Uses the figures of
``tidegate.traffic.judge`` and the ramp of ``tidegate.traffic.ramp``.

::

    starting --ready--> running --steps passed--> promoted
                        |   ^ \\--judged bad, not ready for a window, or unready 3 times at a step--> taken-back
                  pause |   | resume
                        v   |
                       paused               anywhere before an end: abort, promote (when ready), superseded

A new revision has traffic only while one of its replicas is ready, so no client waits for its start. Figures are those
of the present window only. A window begins with each step, with a resume, and when the revision is ready again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from tidegate.records.rollout import Phase, Rollout, Strategy
from tidegate.traffic import ramp as ramps
from tidegate.traffic.judge import Tally, Verdict, judge

NOTHING: Final = Tally()
LOSSES: Final = 3
"""Losses of the last ready replica at one step after which a canary is bad. A window that restarts each time would
never show it. Our choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFacts:
    """The facts from which a rollout advances."""

    is_ready: bool
    """A replica of the new revision is ready."""
    is_in_force: bool = True
    """Every gateway uses a table with the present split."""
    is_stalled: bool = False
    """The new revision has requests under way, and for a while none has ended."""
    new: Tally = NOTHING
    """Outcomes of the new revision in the present window."""
    old: Tally = NOTHING
    budget: float = 0.02
    """Fraction of the requests that the SLA allows to go badly."""


def begun(rollout: Rollout, before: Rollout | None, now: float) -> Rollout:
    """Returns the first state. ``before`` is the function's previous rollout; a ramp that is under way continues."""
    strategy = rollout.strategy
    ramp = rollout.ramp
    if strategy is Strategy.GRADUAL and before is not None and before.ramp is not None and not before.is_over:
        ramp = before.ramp
    return replace(rollout, ramp=ramp, since=now, verdict="waits for a ready replica").noted(
        now, "begun", f"{strategy} rollout of revision {rollout.candidate}"
    )


def advanced(rollout: Rollout, seen: RolloutFacts, now: float) -> Rollout:
    """Returns the rollout after new facts; the same object if nothing changed."""
    if rollout.is_over or rollout.phase is Phase.PAUSED:
        return rollout
    if rollout.phase is Phase.STARTING:
        return _started(rollout, now) if seen.is_ready else _with_verdict(rollout, "waits for a ready replica")
    if not seen.is_ready:
        return _unready(rollout, seen, now)
    if rollout.unready_since is not None:
        return replace(rollout, unready_since=None, since=now, verdict="is ready again").noted(now, "ready_again")
    return _RUNNING[rollout.strategy](rollout, seen, now)


def _started(rollout: Rollout, now: float) -> Rollout:
    if rollout.strategy is Strategy.GRADUAL:
        ramp = rollout.ramp or ramps.settled(100, rollout.base)
        rollout = replace(rollout, ramp=ramps.appeared(ramp, rollout.candidate, now))
    running = replace(rollout, phase=Phase.RUNNING, since=now, verdict="has just begun")
    share = f"gets copies of {running.shadow_percent:g}%" if running.shadow_percent else f"gets {running.percent:g}%"
    return running.noted(now, "ready", f"revision {rollout.candidate} {share}")


def _unready(rollout: Rollout, seen: RolloutFacts, now: float) -> Rollout:
    """Withdraws the traffic while no replica is ready. A canary that stays so for a window, or becomes so repeatedly,
    is bad; so is one that its figures show to be bad."""
    since = rollout.unready_since
    if since is None:
        since = now
        rollout = replace(
            rollout,
            unready_since=now,
            losses=rollout.losses + 1,
            verdict="no replica is ready: it gets no traffic meanwhile",
        ).noted(now, "not_ready", "its traffic goes to the revision before")
    if rollout.strategy is not Strategy.CANARY:
        return rollout
    judgement = judge(seen.new, seen.old, seen.budget)
    if judgement.verdict is Verdict.BAD:
        return _judged_bad(rollout, judgement.words(seen.new, seen.old), now)
    if rollout.losses >= LOSSES:
        why = f"at {rollout.percent:g}%: {rollout.losses} times its last ready replica broke"
        return ended(rollout, Phase.TAKEN_BACK, now, "not_ready", why)
    if now - since >= rollout.plan.canary_window_s:
        return ended(rollout, Phase.TAKEN_BACK, now, "not_ready", "no replica was ready for a whole window")
    return rollout


def _canary(rollout: Rollout, seen: RolloutFacts, now: float) -> Rollout:
    judgement = judge(seen.new, seen.old, seen.budget)
    words = judgement.words(seen.new, seen.old)
    if judgement.verdict is Verdict.BAD:
        return _judged_bad(rollout, words, now)
    left_s = rollout.since + rollout.plan.canary_window_s - now
    if left_s > 0:
        return _with_verdict(rollout, f"{words}; the window lasts {left_s:.0f} s more")
    if seen.is_stalled:
        return _wait(rollout, "stalled", f"requests are under way and none ends, waits: {words}", now)
    if judgement.verdict is Verdict.GOOD:
        return _next_step(rollout, words, now)
    if judgement.verdict is Verdict.OPEN:
        return _wait(rollout, "undecided", f"undecided, the window goes on: {words}", now)
    missing = "no traffic" if seen.new.requests == 0 else "too little traffic"
    return _wait(rollout, "waits_for_traffic", f"{missing} to judge by, waits: {words}", now)


def _judged_bad(rollout: Rollout, words: str, now: float) -> Rollout:
    return ended(rollout, Phase.TAKEN_BACK, now, "judged_bad", f"at {rollout.percent:g}%: {words}")


def _next_step(rollout: Rollout, words: str, now: float) -> Rollout:
    if rollout.step + 1 == len(rollout.plan.canary_steps):
        return ended(rollout, Phase.PROMOTED, now, "promoted", f"the last step is passed: {words}")
    further = replace(rollout, step=rollout.step + 1, since=now, losses=0, verdict="a new step has just begun")
    return further.noted(now, "step", f"{rollout.percent:g}% -> {further.percent:g}%: {words}")


def _gradual(rollout: Rollout, seen: RolloutFacts, now: float) -> Rollout:
    ramp = rollout.ramp
    assert ramp is not None  # it is made when the revision is ready
    if seen.is_in_force:
        ramp = ramps.in_force(ramp, rollout.plan.duration_s, now)
    ramp = ramps.ticked(ramp, now)
    if ramp == rollout.ramp:
        return rollout
    moved = replace(rollout, ramp=ramp, verdict=f"{ramp.step}% every {ramp.period_s:g} s")
    if len(ramp.parts) == 1:
        return ended(moved, Phase.PROMOTED, now, "promoted", "the time is over")
    return moved if moved.percent == rollout.percent else moved.noted(now, "step", f"{moved.percent:g}%")


def _shadow(rollout: Rollout, seen: RolloutFacts, now: float) -> Rollout:
    del seen, now
    return _with_verdict(rollout, "answers copies until it is promoted or aborted")


_RUNNING: Final[Mapping[Strategy, Callable[[Rollout, RolloutFacts, float], Rollout]]] = MappingProxyType(
    {Strategy.CANARY: _canary, Strategy.GRADUAL: _gradual, Strategy.SHADOW: _shadow}
)


def paused(rollout: Rollout, now: float) -> Rollout:
    """Pauses the rollout: it keeps its percent, and is neither judged nor moved."""
    return replace(rollout, phase=Phase.PAUSED, verdict="paused: keeps what it has, is not judged").noted(now, "paused")


def resumed(rollout: Rollout, now: float) -> Rollout:
    """Continues with a new window. Steps that a ramp has missed are not made up."""
    ramp = rollout.ramp
    if ramp is not None and ramp.next_at is not None:
        ramp = replace(ramp, next_at=now + ramp.period_s)
    going = replace(
        rollout, phase=Phase.RUNNING, since=now, unready_since=None, losses=0, ramp=ramp, verdict="has been resumed"
    )
    return going.noted(now, "resumed")


def aligned(rollout: Rollout, now: float) -> Rollout:
    """Adjusts times after a restart of the control process. The wall clock may have been set back, and times ahead of
    it would be awaited until they come again."""
    ramp, unready_since = rollout.ramp, rollout.unready_since
    if ramp is not None:
        began_at = None if ramp.began_at is None else min(ramp.began_at, now)
        next_at = None if ramp.next_at is None else min(ramp.next_at, now + ramp.period_s)
        ramp = replace(ramp, began_at=began_at, next_at=next_at)
    after = replace(rollout, ramp=ramp, unready_since=None if unready_since is None else min(unready_since, now))
    return rollout if after == rollout else after


def ended(rollout: Rollout, phase: Phase, now: float, code: str, why: str) -> Rollout:
    """Ends the rollout in ``phase``."""
    return replace(rollout, phase=phase, verdict=why).noted(now, code, why)


def _with_verdict(rollout: Rollout, words: str) -> Rollout:
    return rollout if rollout.verdict == words else replace(rollout, verdict=words)


def _wait(rollout: Rollout, code: str, words: str, now: float) -> Rollout:
    """Sets the reason for waiting. It becomes an event once per step."""
    is_noted = rollout.events[-1].code == code if rollout.events else False
    said = _with_verdict(rollout, words)
    return said if is_noted else said.noted(now, code, words)
