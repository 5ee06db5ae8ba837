"""Reports a replay for people and for programs: the wanted numbers over time, and their totals."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tidegate.autoscaler.decisions.reasons import figure
from tidegate.autoscaler.replay.player import Moment, Played
from tidegate.columns import aligned
from tidegate.manifest.annotations import PARAMETER_PREFIX, PREFIX
from tidegate.records.decision import Decision

MAX_GAP_S = 10.0
"""A gap between two steps counts for this long at most: nothing was observed meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTotals:
    """Totals of the decisions of one policy over the whole recording."""

    policy: str
    changes: int = 0
    """Number of changes of the wanted number."""
    most: int = 0
    mean: float = 0.0
    """Replicas wanted, over time; a hold keeps the number before."""
    replica_s: float = 0.0


def totals(moments: Sequence[Moment], decisions: Sequence[Decision | None]) -> ReplayTotals | None:
    """Returns the totals; None if nothing was decided."""
    decided = [each for each in decisions if each is not None]
    if not decided:
        return None
    wanted, changes, most, replica_s, lasted_s = moments[0].step.observation.existing, 0, 0, 0.0, 0.0
    for index, (_, decision) in enumerate(zip(moments, decisions, strict=True)):
        if decision is not None and decision.desired is not None:
            changes += decision.desired != wanted
            wanted = decision.desired
        most = max(most, wanted)
        span_s = _span_s(moments, index)
        replica_s += wanted * span_s
        lasted_s += span_s
    mean = replica_s / lasted_s if lasted_s > 0 else float(wanted)
    return ReplayTotals(policy=decided[-1].policy, changes=changes, most=most, mean=mean, replica_s=replica_s)


def missed_s(moments: Sequence[Moment]) -> float | None:
    """Returns the seconds in which the SLA was missed, as observed; None if no observation shows it."""
    if all(moment.is_missed is None for moment in moments):
        return None
    return sum(_span_s(moments, index) for index, moment in enumerate(moments) if moment.is_missed)


def _span_s(moments: Sequence[Moment], index: int) -> float:
    """Returns how long a step stood."""
    if index + 1 >= len(moments):
        return 0.0
    lasted_s = moments[index + 1].step.observation.at - moments[index].step.observation.at
    return min(MAX_GAP_S, max(0.0, lasted_s))


def text(played: Played, *, is_other: bool, given: Sequence[str] = ()) -> str:
    """Returns the whole report. ``is_other``: another policy decided than the recorded one; ``given``: with these
    settings."""
    moments = played.moments
    recorded = [moment.step.decision for moment in moments]
    has_recorded = any(decision is not None for decision in recorded)
    own = f"policy {played.function.scaling.policy}{_parameters(played)}{_with(given)}"
    lines = [f"{played.revision}: {len(moments)} observations{_period(moments)}"]
    if played.left_out:
        why = "a part before them is missing, or is of another version of this program"
        lines.append(f"{played.left_out} more are left out: {why}")
    if is_other and has_recorded:
        was = next(decision.policy for decision in recorded if decision is not None)
        lines.append(f"recorded: policy {was}; replayed: {own}, on the same observations")
    else:
        lines.append(own)
    lines += ["", *_table(moments, "replayed" if has_recorded else "wanted", has_recorded=has_recorded), ""]
    was_totals = totals(moments, recorded) if has_recorded else None
    lines += [_total_line("recorded", was_totals)] if was_totals is not None else []
    now_totals = totals(moments, [moment.replayed for moment in moments])
    lines += [_total_line("replayed", now_totals)] if now_totals is not None else []
    missed = missed_s(moments)
    target_s = played.function.sla.latency_s
    if missed is not None and target_s is not None:
        where = f"p{played.function.sla.percentile:g} above {figure(1e3 * target_s)} ms"
        lines.append(f"SLA missed as observed: {figure(missed)} s ({where})")
    return "\n".join([*lines, *_verdict(played)])


def _verdict(played: Played) -> list[str]:
    if not played.compared:
        return []
    found = played.difference
    if found is None:
        return [f"all {played.compared} recorded decisions come out the same, bit for bit"]
    return [
        f"line {found.line}, {_time(found.at)}: {found.where} differs: recorded {found.recorded!r}, "
        f"replayed {found.replayed!r}"
    ]


def _parameters(played: Played) -> str:
    given = played.function.scaling.parameters
    return f" ({', '.join(f'{key} {value}' for key, value in sorted(given.items()))})" if given else ""


def _with(given: Sequence[str]) -> str:
    """Returns the settings beside the policy's parameters, which are listed with the policy."""
    others = [text for text in given if not text.strip().removeprefix(PREFIX).startswith(PARAMETER_PREFIX)]
    return f" with {', '.join(others)}" if others else ""


def _period(moments: Sequence[Moment]) -> str:
    if not moments:
        return ""
    return f", {_time(moments[0].step.observation.at)} to {_time(moments[-1].step.observation.at)}"


def _time(at: float) -> str:
    """Formats a time of day where it is Unix time, else seconds."""
    if not 1e8 <= at < 1e11:
        return f"{at:.3f} s"
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _total_line(name: str, found: ReplayTotals) -> str:
    return (
        f"{name:<9} {found.policy}: {found.changes} changes, {figure(found.mean)} replicas on average, "
        f"{found.most} at most, {found.replica_s:.0f} replica seconds"
    )


def _table(moments: Sequence[Moment], word: str, *, has_recorded: bool) -> list[str]:
    """Returns a row for each moment at which something differs from the row above."""
    head = ["TIME", "READY", "LOAD/S", "WAITING", "LATENCY", "SLA", *(["RECORDED"] if has_recorded else [])]
    rows, shown = [[*head, word.upper(), "REASONS"]], None
    for moment in moments:
        seen, recorded = moment.step.observation, moment.step.decision
        cells = [wanted(recorded)] if has_recorded else []
        cells.append(wanted(moment.replayed))
        key = (seen.ready, moment.is_missed, *cells)
        if key == shown:
            continue
        shown = key
        rows.append(
            [
                _time(seen.at),
                str(seen.ready),
                figure(seen.lambda_ips),
                str(seen.waiting),
                "-" if seen.latency_s is None else f"{figure(1e3 * seen.latency_s)} ms",
                {None: "-", True: "missed", False: "held"}[moment.is_missed],
                *cells,
                ", ".join(dict.fromkeys(reason.code for reason in moment.replayed.reasons)),
            ]
        )
    return aligned(rows)


def wanted(decision: Decision | None) -> str:
    """Returns ``3 (t4 2, v100 1)``; with one group the number alone."""
    if decision is None:
        return "-"
    if decision.desired is None:
        return "hold"
    placed = [f"{group.accelerator} {group.replicas}" for group in decision.groups or () if group.replicas]
    count = f"{decision.desired} ({', '.join(placed)})" if len(placed) > 1 else str(decision.desired)
    return f"{count} dry" if decision.is_dry_run else count


def plain(played: Played, *, is_other: bool) -> dict[str, Any]:
    """Returns the report for programs, with every moment."""
    moments = played.moments
    recorded = [moment.step.decision for moment in moments]
    return {
        "revision": played.revision,
        "policy": played.function.scaling.policy,
        "parameters": dict(sorted(played.function.scaling.parameters.items())),
        "is_other": is_other,
        "observations": len(moments),
        "left_out": played.left_out,
        "compared": played.compared,
        "difference": played.difference,
        "recorded": totals(moments, recorded) if moments else None,
        "replayed": totals(moments, [moment.replayed for moment in moments]) if moments else None,
        "missed_s": missed_s(moments) if moments else None,
        "moments": [
            {
                "at": moment.step.observation.at,
                "ready": moment.step.observation.ready,
                "lambda_ips": moment.step.observation.lambda_ips,
                "waiting": moment.step.observation.waiting,
                "latency_s": moment.step.observation.latency_s,
                "is_missed": moment.is_missed,
                "recorded": moment.step.decision,
                "replayed": moment.replayed,
            }
            for moment in moments
        ],
    }
