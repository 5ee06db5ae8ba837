"""Who has which part of a function's traffic now. Pure.

The revisions of a split made by hand serve side by side. In a rollout the candidate has its percent only while one of
its replicas is ready, the others have the rest. Else the current revision has everything, or a candidate that was let
ahead to get its place (``tidegate.control.rounds.takeover``).
"""

from collections.abc import Callable
from dataclasses import dataclass

from tidegate.control.state.registry import Deployed, RevisionRecord
from tidegate.control.views.views import Role

IsReady = Callable[[str], bool]
"""Whether a replica of the revision of this id is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRole:
    """What one revision is to its function now."""

    record: RevisionRecord
    role: Role
    percent: float = 0.0
    tags: tuple[str, ...] = ()
    shadow_percent: float = 0.0


def parts_of(deployed: Deployed, ahead: int | None, is_ready: IsReady) -> list[RevisionRole]:
    """``ahead``: number of the candidate that takes the traffic already; None, or that of an older one: none does."""
    candidate = deployed.candidate
    is_ahead = candidate is not None and candidate.number == ahead
    percents = {candidate.number: 100.0} if candidate is not None and is_ahead else _percents(deployed, is_ready)
    records = [deployed.current, *deployed.others, *(() if candidate is None else (candidate,))]
    tags: dict[int, list[str]] = {}
    for tag, number in sorted(deployed.tags.items()):
        tags.setdefault(number, []).append(tag)
    parts = []
    for record in records:
        is_candidate = record is candidate and not is_ahead
        percent, named = percents.get(record.number, 0.0), tuple(tags.get(record.number, ()))
        if is_candidate or percent > 0 or named or (record is deployed.current and not is_ahead):
            parts.append(
                RevisionRole(
                    record=record,
                    role=Role.CANDIDATE if is_candidate else Role.SERVING,
                    percent=percent,
                    tags=named,
                    shadow_percent=_shadow(deployed, record, is_ready),
                )
            )
    return parts


def _percents(deployed: Deployed, is_ready: IsReady) -> dict[int, float]:
    if deployed.split:
        return dict(deployed.split)
    rolling, candidate = deployed.rolling, deployed.candidate
    if rolling is None or candidate is None or rolling.percent <= 0:
        if rolling is not None and rolling.ramp is not None:
            return _on_ramp(dict(rolling.ramp.parts), rolling.candidate)
        return {deployed.current.number: 100.0}
    percent = rolling.percent if is_ready(candidate.revision.id) else 0.0
    if rolling.ramp is None:
        return {rolling.base: 100.0 - percent, candidate.number: percent}
    percents: dict[int, float] = {number: float(each) for number, each in rolling.ramp.parts}
    return percents if percent else _on_ramp(dict(rolling.ramp.parts), candidate.number)


def _on_ramp(parts: dict[int, int], without: int) -> dict[int, float]:
    """The percents of a ramp less those of one, which go to the newest of the others."""
    left: dict[int, float] = {number: float(percent) for number, percent in parts.items() if number != without}
    newest = max(left, default=None)
    if newest is not None:
        left[newest] += parts.get(without, 0)
    return left


def _shadow(deployed: Deployed, record: RevisionRecord, is_ready: IsReady) -> float:
    rolling = deployed.rolling
    if rolling is None or rolling.candidate != record.number or not is_ready(record.revision.id):
        return 0.0
    return rolling.shadow_percent
