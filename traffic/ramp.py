"""Gradual rollout over a time: the newest revision gets one percent, then equal steps at equal times (Knative's rule).

A *ramp* holds percents of the revisions, oldest first, that add up to a goal. A new revision takes one percent from the
newest one before. The time until its route is in force, ``m`` seconds, is the shortest useful period. The rest of the
duration is divided into ``n = max(1, (duration - m) / m)`` periods, at most one per percent, and each moves
``round((goal - 1) / n)`` percent, from the newest of the old revisions first. Only time matters: errors are not
examined (``tidegate.traffic.judge`` does that).

Example: 100 %, 60 s, in force after 1 s: 59 periods of 1 s, 2 percent each.
"""

import math
from dataclasses import replace

from tidegate.records.rollout import Ramp

Parts = tuple[tuple[int, int], ...]


def appeared(ramp: Ramp, revision: int, now: float) -> Ramp:
    """Makes ``revision`` the newest. Changes nothing if it is already."""
    if not ramp.parts or ramp.goal <= 1:
        return settled(ramp.goal, revision)
    if ramp.parts[-1][0] == revision:
        return ramp
    newest = max(index for index, (_, percent) in enumerate(ramp.parts) if percent > 0)
    parts = _present((*_less(ramp.parts, newest, 1), (revision, 1)))
    return Ramp(goal=ramp.goal, parts=parts, began_at=now)


def settled(goal: int, revision: int) -> Ramp:
    """Gives everything to one revision."""
    return Ramp(goal=goal, parts=((revision, goal),))


def aimed(ramp: Ramp, goal: int) -> Ramp:
    """Changes the goal: an increase goes to the newest, a decrease is taken from the oldest first."""
    if not ramp.parts or goal == ramp.goal:
        return replace(ramp, goal=goal)
    parts = list(ramp.parts)
    if goal > ramp.goal:
        parts[-1] = (parts[-1][0], parts[-1][1] + goal - ramp.goal)
        return replace(ramp, goal=goal, parts=tuple(parts))
    excess = ramp.goal - goal
    for index, (revision, percent) in enumerate(parts):
        taken = min(percent, excess)
        parts[index], excess = (revision, percent - taken), excess - taken
    return _checked(replace(ramp, goal=goal, parts=_present(tuple(parts))))


def in_force(ramp: Ramp, duration_s: float, now: float) -> Ramp:
    """Records that the route with the newest revision is in force. If that was awaited, lays out the steps."""
    if ramp.began_at is None or ramp.step:
        return ramp
    took_s = max(1, math.ceil(now - ramp.began_at))
    left_s = max(1.0, duration_s - took_s)
    periods = min(max(1.0, left_s / took_s), float(ramp.goal - 1))
    period_s = math.floor(left_s / periods * 1e9) / 1e9
    step = math.floor((ramp.goal - 1) / periods + 0.5)
    return replace(ramp, step=step, period_s=period_s, next_at=now + period_s)


def ticked(ramp: Ramp, now: float) -> Ramp:
    """Takes the next step if it is due."""
    if ramp.next_at is None or now < ramp.next_at:
        return ramp
    (revision, percent), old = ramp.parts[-1], list(ramp.parts[:-1])
    wanted = ramp.step
    for index in range(len(old) - 1, -1, -1):
        taken = min(wanted, old[index][1])
        old[index], wanted, percent = (old[index][0], old[index][1] - taken), wanted - taken, percent + taken
    parts = _present((*old, (revision, percent)))
    return _checked(replace(ramp, parts=parts, next_at=now + ramp.period_s))


def _less(parts: Parts, index: int, percent: int) -> Parts:
    revision, had = parts[index]
    return (*parts[:index], (revision, had - percent), *parts[index + 1 :])


def _present(parts: Parts) -> Parts:
    """Returns the revisions with a percent left. The newest always stays."""
    return (*(part for part in parts[:-1] if part[1] > 0), parts[-1])


def _checked(ramp: Ramp) -> Ramp:
    """Ends the ramp if one revision is left."""
    return settled(ramp.goal, ramp.parts[0][0]) if len(ramp.parts) == 1 else ramp
