"""Decisions in words, and which of them are worth keeping.

Lines are deterministic: the same decisions give the same text. A log that holds every tick would say nothing, so it
keeps each change and one line a minute in between.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from autoscaler.reasons import SENTENCES, figure
from tidegate.records import Decision, Reason

KEEP_EVERY_S = 60.0


def explain(decision: Decision) -> list[str]:
    """One decision: a headline, then one line for each reason."""
    return [headline(decision), *(f"    {sentence(reason)}" for reason in decision.reasons)]


def explain_all(decisions: Iterable[Decision]) -> list[str]:
    """Decisions in the order given, oldest first by custom."""
    return [line for decision in decisions for line in explain(decision)]


def headline(decision: Decision) -> str:
    """``2026-11-21 10:00:02.250 resnet-00001 kpa: 3 replicas (t4 2, v100 1), 1 ready``."""
    at = datetime.fromtimestamp(decision.at, tz=UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return (
        f"{at} {decision.revision} {decision.policy}: {_wanted(decision)}, {decision.ready} ready{_figures(decision)}"
    )


def _wanted(decision: Decision) -> str:
    if decision.desired is None:
        return "hold"
    count = f"{decision.desired} replica{'' if decision.desired == 1 else 's'}"
    placed = [f"{group.accelerator} {group.replicas}" for group in decision.groups or () if group.replicas]
    return f"{count} ({', '.join(placed)})" if placed else count


FIGURES = (
    ("concurrency", "{} in flight and waiting"),
    ("lambda_ips", "{} inferences/s"),
    ("waiting", "{} waiting"),
)
"""Figures of the headline, if they are not 0."""


def _figures(decision: Decision) -> str:
    words = [text.format(figure(value)) for name, text in FIGURES if (value := decision.observed.get(name, 0.0)) > 0]
    latency_s = decision.observed.get("latency_s")
    if latency_s is not None:
        words.append(f"latency {figure(latency_s * 1e3)} ms")
    return "; " + ", ".join(words) if words else ""


def sentence(reason: Reason) -> str:
    """``code: sentence (detail)``; a code of a newer version stands for itself."""
    words = SENTENCES.get(reason.code)
    text = reason.code if words is None else f"{reason.code}: {words}"
    return f"{text} ({reason.detail})" if reason.detail else text


def is_change(before: Decision | None, after: Decision) -> bool:
    """Whether ``after`` wants something else or for other reasons (numbers inside the reasons do not count)."""
    if before is None:
        return True
    return (before.revision, before.desired, before.groups, _codes(before.reasons)) != (
        after.revision,
        after.desired,
        after.groups,
        _codes(after.reasons),
    )


def _codes(reasons: Sequence[Reason]) -> tuple[str, ...]:
    return tuple(reason.code for reason in reasons)


class DecisionFilter:
    """Which decisions a log keeps: changes, and one a minute for each revision."""

    __slots__ = ("_every_s", "_kept")

    def __init__(self, every_s: float = KEEP_EVERY_S) -> None:
        self._every_s = every_s
        self._kept: dict[str, Decision] = {}

    def keeps(self, decision: Decision) -> bool:
        """True for a decision that belongs in the log; it is then the one that later ones are compared with."""
        before = self._kept.get(decision.revision)
        if before is not None and not is_change(before, decision) and decision.at - before.at < self._every_s:
            return False
        self._kept[decision.revision] = decision
        return True

    def forget(self, revision_id: str) -> None:
        self._kept.pop(revision_id, None)

    def __repr__(self) -> str:
        return f"<DecisionFilter {len(self._kept)} revisions, every {self._every_s:g} s>"
