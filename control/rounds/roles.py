"""The role of each revision of a function, and its part of the traffic, from what is deployed and what is ready.

The revisions of a split by hand serve side by side. In a rollout the candidate has its percent only while one of its
replicas is ready; the other revisions have the rest. Otherwise the current revision has everything, or a candidate that
was promoted early to get its place (``tidegate.control.rounds.handover``).
"""

from collections.abc import Callable
from dataclasses import dataclass

from tidegate.control.state.registry import Deployed, RevisionRecord
from tidegate.records.roles import Role

IsReady = Callable[[str], bool]
"""Returns whether a replica of the revision with this id is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRole:
    """The present role of one revision and its part of the function's traffic."""

    record: RevisionRecord
    role: Role
    percent: float = 0.0
    tags: tuple[str, ...] = ()
    shadow_percent: float = 0.0


def traffic_split(deployed: Deployed, promoted_early: int | None, is_ready: IsReady) -> list[RevisionRole]:
    """Returns the role of each revision that has one. ``promoted_early``: number of the candidate that takes the
    traffic before it is ready; None if there is none. The number of an older candidate has no effect."""
    candidate = deployed.candidate
    is_early = candidate is not None and candidate.number == promoted_early
    percents = {candidate.number: 100.0} if candidate is not None and is_early else _percents(deployed, is_ready)
    records = [deployed.current, *deployed.others, *(() if candidate is None else (candidate,))]
    tags: dict[int, list[str]] = {}
    for tag, number in sorted(deployed.tags.items()):
        tags.setdefault(number, []).append(tag)
    roles = []
    for record in records:
        is_candidate = record is candidate and not is_early
        percent, named = percents.get(record.number, 0.0), tuple(tags.get(record.number, ()))
        if is_candidate or percent > 0 or named or (record is deployed.current and not is_early):
            roles.append(
                RevisionRole(
                    record=record,
                    role=Role.CANDIDATE if is_candidate else Role.SERVING,
                    percent=percent,
                    tags=named,
                    shadow_percent=_shadow(deployed, record, is_ready),
                )
            )
    return roles


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


def _on_ramp(percents: dict[int, int], without: int) -> dict[int, float]:
    """Returns the percents of a ramp without one revision; its percent goes to the newest of the others."""
    left: dict[int, float] = {number: float(percent) for number, percent in percents.items() if number != without}
    newest = max(left, default=None)
    if newest is not None:
        left[newest] += percents.get(without, 0)
    return left


def _shadow(deployed: Deployed, record: RevisionRecord, is_ready: IsReady) -> float:
    rolling = deployed.rolling
    if rolling is None or rolling.candidate != record.number or not is_ready(record.revision.id):
        return 0.0
    return rolling.shadow_percent
