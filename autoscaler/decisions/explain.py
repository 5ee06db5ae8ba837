"""Decisions in words, and the choice of those worth keeping.

Lines are deterministic: the same decisions give the same text. A log of every tick would be unreadable, so it keeps
each change and one line a minute in between.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from tidegate.autoscaler.decisions.reasons import CHANGES, SENTENCES, figure, limits
from tidegate.autoscaler.measure.observation import Observation
from tidegate.records.codec import encode
from tidegate.records.decision import Decision, Reason

KEEP_EVERY_S = 60.0
DIGEST_LETTERS = 16


def logged(decision: Decision, observation: Observation, weights: Mapping[str, float]) -> Decision:
    """Returns the decision as it is logged: with the digest of its observation, the weights, the limits that bit, and
    its reasons in words."""
    bit, reasons = limits(decision.reasons), tuple(replace(each) for each in decision.reasons)
    return replace(decision, digest=digest(observation), weights=dict(weights), limits=bit, reasons=reasons)


def digest(observation: Observation) -> str:
    """Returns a digest that is equal for equal observations only, also for one that was recorded and read again."""
    return hashlib.sha256(encode(observation)).hexdigest()[:DIGEST_LETTERS]


def explain(decision: Decision, now: float | None = None) -> list[str]:
    """Returns one decision in words: a headline, then one line for each reason."""
    return [headline(decision, now), *(f"    {sentence(reason)}" for reason in decision.reasons)]


def explain_all(decisions: Iterable[Decision], now: float | None = None) -> list[str]:
    """Returns decisions in words, in the order given, oldest first by custom."""
    return [line for decision in decisions for line in explain(decision, now)]


def explain_now(decision: Decision, weights: Mapping[str, float], now: float) -> list[str]:
    """Returns the decision in force: what it is, what is carried out of it, and what would have to change for
    another."""
    lines = ["", f"now, {decision.revision}: {_wanted(decision)}, {decision.ready} ready{_in_dry_run(decision)}"]
    lines.append(f"    decided {_age(now - decision.at)} by policy {decision.policy}{_figures(decision)}")
    if weights:
        shares = ", ".join(f"{name} {figure(100 * share)} %" for name, share in sorted(weights.items()))
        lines.append(f"    weights in force: {shares}")
    bit = limits(decision.reasons)
    lines.append(f"    limits that bit: {', '.join(bit) if bit else 'none'}")
    for reason in decision.reasons:
        lines.append(f"    {sentence(reason)}")
        if reason.code in CHANGES:
            lines.append(f"        what would change it: {CHANGES[reason.code]}")
    return lines


def headline(decision: Decision, now: float | None = None) -> str:
    """Returns ``2026-11-21 10:00:02.250 (12 s ago) resnet-00001 kpa: 3 replicas (t4 2, v100 1), 1 ready; ...``."""
    at = datetime.fromtimestamp(decision.at, tz=UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    age = "" if now is None else f" ({_age(now - decision.at)})"
    weights = ", ".join(f"{name} {figure(100 * share)} %" for name, share in sorted(decision.weights.items()))
    return (
        f"{at}{age} {decision.revision} {decision.policy}: {_wanted(decision)}, {decision.ready} ready"
        f"{_in_dry_run(decision)}{_figures(decision)}{f'; weights {weights}' if len(decision.weights) > 1 else ''}"
    )


def _in_dry_run(decision: Decision) -> str:
    return ", dry run: not carried out" if decision.is_dry_run else ""


def _age(seconds: float) -> str:
    seconds = max(0.0, seconds)
    if seconds < 100:
        return f"{figure(seconds)} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 6000 else f"{seconds / 3600:.0f} h ago"


def _wanted(decision: Decision) -> str:
    if decision.desired is None:
        return "hold"
    count = f"{decision.desired} replica{'' if decision.desired == 1 else 's'}"
    if decision.cores is not None:
        count += f" of {decision.cores} core{'' if decision.cores == 1 else 's'}"
    placed = [f"{group.accelerator} {group.replicas}" for group in decision.groups or () if group.replicas]
    return f"{count} ({', '.join(placed)})" if placed else count


FIGURES = (
    ("concurrency", "{} in flight and waiting"),
    ("lambda_ips", "{} inferences/s"),
    ("lambda_tps", "{} tokens/s"),
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
    """Returns ``code: sentence (detail)``; an unknown code, of a newer version, has no sentence."""
    words = SENTENCES.get(reason.code)
    text = reason.code if words is None else f"{reason.code}: {words}"
    return f"{text} ({reason.detail})" if reason.detail else text


def is_change(before: Decision | None, after: Decision) -> bool:
    """Returns whether ``after`` wants another number or has other reasons (numbers inside the reasons do not count)."""
    if before is None:
        return True
    return (
        before.revision,
        before.desired,
        before.cores,
        before.groups,
        before.is_dry_run,
        _codes(before.reasons),
    ) != (
        after.revision,
        after.desired,
        after.cores,
        after.groups,
        after.is_dry_run,
        _codes(after.reasons),
    )


def _codes(reasons: Sequence[Reason]) -> tuple[str, ...]:
    return tuple(reason.code for reason in reasons)


class DecisionFilter:
    """Chooses the decisions that a log keeps: changes, and one a minute for each revision."""

    __slots__ = ("_every_s", "_kept")

    def __init__(self, every_s: float = KEEP_EVERY_S) -> None:
        self._every_s = every_s
        self._kept: dict[str, Decision] = {}

    def keeps(self, decision: Decision) -> bool:
        """Returns True for a decision that belongs in the log; later ones are then compared with it."""
        before = self._kept.get(decision.revision)
        if before is not None and not is_change(before, decision) and decision.at - before.at < self._every_s:
            return False
        self._kept[decision.revision] = decision
        return True

    def forget(self, revision_id: str) -> None:
        self._kept.pop(revision_id, None)

    def __repr__(self) -> str:
        return f"<DecisionFilter {len(self._kept)} revisions, every {self._every_s:g} s>"
