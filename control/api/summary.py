"""The answer to "why has it this many replicas?" in plain sentences: what runs, how busy it is, why, and what would
change that. The figures behind them are in the decisions (``tidegate explain -v``)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tidegate.autoscaler.decisions.reasons import CHANGES, SENTENCES, figure
from tidegate.control.views.functions import (
    CrashView,
    FunctionState,
    FunctionView,
    IdleView,
    RateSource,
    ReplicaView,
    RevisionView,
)

KEPT_BY: Final = {
    "raised_to_min": "kept by min-scale",
    "window_minimum": "kept by a window of min-scale-windows",
    "rollout_awake": "kept ready by its rollout",
    "initial_scale": "started by its deploy (initial-scale)",
    "level": "kept by the load of the last minutes",
    "cover": "kept for what may come while a replica starts",
    "replica_held": "kept for as long as starting it again would cost",
    "panic": "kept while panic goes on",
    "scale_down_delay": "kept by the scale-down delay",
}
"""What keeps replicas without work, in words."""
OF_LOAD: Final = frozenset(
    {
        *("load", "sla_load", "mu_unknown", "utilization", "hold", "park_on_cheapest"),
        *("level", "cover", "replica_held", "mix"),
    }
)
"""Codes of a policy that reason about a load. Of an idle function its limits, or what keeps it, are the reason."""


def summary(view: FunctionView, failures: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the sentences of a function; ``failures`` say what keeps its revisions from serving."""
    lines = [_headline(view)]
    has_load = view.traffic.requests_per_s > 0
    if view.traffic.dropped:
        lines.append(_dropped(view))
    if view.traffic.switched:
        lines.append(_switched(view))
    for found in view.revisions:
        revision = replace(found, idle=None) if has_load else found
        subject = "" if revision.id == view.revision else f"{revision.id}: "
        if revision.reasons and (subject == "" or revision.desired):
            lines.append(f"{subject}why: {_reasons(revision)}.")
            lines += [f"{subject}what would change it: {text}." for text in _changes(revision)]
        if revision.crash is not None:
            lines.append(f"{subject}{_crash(revision.crash)}.")
        if not revision.is_carried_out:
            lines.append(f"{subject}dry run: nothing of the policy's wish is carried out.")
    return (*lines, *failures)


def _headline(view: FunctionView) -> str:
    traffic = view.traffic
    waiting = f"; {_count(traffic.waiting, 'request')} wait{'s' if traffic.waiting == 1 else ''}"
    waits = waiting if traffic.waiting else ""
    if view.state is FunctionState.ASLEEP:
        return _asleep(view)
    if view.state is FunctionState.FAILED:
        return f"No replica is ready, because its last start failed{waits}."
    if view.state is FunctionState.UNPLACED:
        return f"No replica is ready, because no accelerator has a place for it{waits}."
    if view.state is FunctionState.STARTING:
        starting = max(1, sum(each.starting for each in view.revisions))
        return f"{_count(starting, 'replica')} {'is' if starting == 1 else 'are'} starting, none is ready{waits}."
    if view.state is FunctionState.DRAINING:
        return f"Its last replica finishes its work and stops; a request revives it{waits}."
    return f"{_count(view.ready, 'replica')}: {_work(view)}{_change(view)}{waits}."


def _dropped(view: FunctionView) -> str:
    """Returns that requests were dropped, and what it takes to keep them."""
    count = view.traffic.dropped
    return (
        f"{_count(count, 'request')} of the last {_lasting(view.traffic.window_s)} waited for drop-after and "
        f"{'was' if count == 1 else 'were'} dropped with 503: more replicas, or a larger drop-after, would keep them."
    )


def _switched(view: FunctionView) -> str:
    """Returns that other variants served requests, and what keeps them here."""
    return (
        f"{_count(view.traffic.switched, 'request')} of the last {_lasting(view.traffic.window_s)} found no free slot "
        "and went to another variant of the model (accuracy-loss): more replicas would keep them."
    )


def _asleep(view: FunctionView) -> str:
    """Returns since when it sleeps and why, and what wakes it."""
    paused = sum(each.sleeping for each in view.revisions)
    kept = f"{_count(paused, 'replica')} {'is' if paused == 1 else 'are'} paused with what it loaded" if paused else ""
    wakes = f"{kept}, and the next request wakes one" if paused else "the next request starts a replica"
    serving = _serving(view)
    if serving is None:
        return f"Asleep: no replica runs, and {wakes}."
    if serving.asleep_s is None:
        return f"Asleep: no replica has run since its deploy or the last `tidegate up`; {wakes}."
    since = f"Asleep for {_lasting(serving.asleep_s)}"
    if any(each.code == "place_given_up" for each in serving.reasons):
        return f"{since}: its idle replica made room for another function; {wakes}."
    return f"{since}, because no request came for {_lasting(serving.zero_after_s)} (scale-to-zero-after); {wakes}."


def _serving(view: FunctionView) -> RevisionView | None:
    return next((each for each in view.revisions if each.id == view.revision), None)


def _work(view: FunctionView) -> str:
    """Returns what the ready replicas do: the load; calls that go on; or, without any, why they are there."""
    serving, traffic = _serving(view), view.traffic
    held, running = _busy(view)
    if traffic.requests_per_s > 0 and not held:
        return _load(view)
    parts = []
    if held:
        lasting = _lasting(max(each.held_s for each in _replicas(view)))
        slots = "1 slot is held by a call that goes on" if held == 1 else f"{held} slots are held by calls that go on"
        parts.append(f"{slots} {lasting} after its client was gone")
    if running:
        stalls = "" if traffic.answered else f", none was answered in the last {_lasting(traffic.window_s)}"
        parts.append(f"{_count(running, 'request')} {'is' if running == 1 else 'are'} under way{stalls}")
    if parts:
        return "; ".join(parts)
    return _load(view) if serving is None or serving.idle is None else _idle(serving.idle, _kept_by(serving))


def _kept_by(revision: RevisionView) -> str:
    """Returns the code of what keeps replicas without work: the last one that keeps any. Which kinds run does not."""
    if revision.idle is None or not revision.idle.kept_by:
        return ""
    codes = [*(each.code for each in revision.reasons), revision.idle.kept_by]
    return next((code for code in reversed(codes) if code in KEPT_BY), "")


def _idle(idle: IdleView, kept_by: str) -> str:
    """Returns ``idle for 6 s; it goes to zero in 14 s if no request comes (scale-to-zero-after)``."""
    quiet = "no request since its deploy" if idle.is_unused else f"idle for {_lasting(idle.idle_s)}"
    if idle.zero_in_s is not None:
        started = ", started by initial-scale" if idle.is_unused else ""
        left = _lasting(idle.zero_in_s)
        return f"{quiet}{started}; it goes to zero in {left} unless a request comes (scale-to-zero-after)"
    return f"{quiet}; {KEPT_BY[kept_by]}" if kept_by else quiet


def _replicas(view: FunctionView) -> list[ReplicaView]:
    return [replica for revision in view.revisions for replica in revision.replicas if replica.state == "ready"]


def _busy(view: FunctionView) -> tuple[int, int]:
    """Returns (slots held by calls whose client is gone, requests under way)."""
    there = _replicas(view)
    held = sum(each.held for each in there)
    return held, sum(each.in_flight or 0 for each in there) - held


def _lasting(seconds: float) -> str:
    """Returns ``6 s``, ``3 min`` or ``2.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{figure(seconds / 3600)} h"


def _load(view: FunctionView) -> str:
    """Returns ``12 requests/s are 15% of what it can do``. Rates are the last seconds' means."""
    traffic = view.traffic
    rate = f"{figure(traffic.requests_per_s)} requests/s"
    pronoun = "it" if view.ready == 1 else "they"
    can = _capacity_ips(view)
    if traffic.requests_per_s <= 0:
        return "no request was counted in the last seconds"
    if can is None:
        return f"{rate}; how much {pronoun} can do has not been measured yet"
    ips, is_bound = can
    share = 100 * traffic.inferences_per_s / ips
    text = "less than 1%" if share < 0.95 else f"{'at most ' if is_bound else ''}{share:.0f}%"
    return f"{rate} are {text} of what {pronoun} can do"


def _capacity_ips(view: FunctionView) -> tuple[float, bool] | None:
    """Returns the inferences/s of all ready replicas, and whether they may do more. None if a rate is not known."""
    groups = [group for revision in view.revisions for group in revision.groups if group.ready]
    total = sum(group.ready * (group.mu_ips or 0.0) for group in groups)
    if not total or any(group.mu_ips is None for group in groups):
        return None
    return total, any(group.mu_source is RateSource.BOUND for group in groups)


def _change(view: FunctionView) -> str:
    words = {"starting": "starting", "leaving": "leaving", "sleeping": "asleep"}
    counts = {word: sum(getattr(each, field) for each in view.revisions) for field, word in words.items()}
    parts = [f"{count} more {word}" for word, count in counts.items() if count]
    return f" ({', '.join(parts)})" if parts else ""


def _codes(revision: RevisionView) -> list[str]:
    """Returns the reasons of its number. Those of an idle last replica are its limits: there is no load."""
    codes = [each.code for each in revision.reasons]
    if revision.idle is None or revision.ready > 1 or not OF_LOAD.issuperset(codes):
        return codes
    return ["not_idle_yet"] if revision.idle.zero_in_s is not None else [_kept_by(revision) or codes[0]]


def _reasons(revision: RevisionView) -> str:
    return "; ".join(dict.fromkeys(SENTENCES.get(code, code) for code in _codes(revision)))


def _crash(crash: CrashView) -> str:
    """Returns ``1 crash in the last hour, 12 s ago: the model server was killed by SIGKILL (out of memory?)``."""
    age = _lasting(crash.age_s)
    if crash.count == 1:
        return f"1 crash in the last hour, {age} ago: {crash.reason}"
    return f"{crash.count} crashes in the last hour, the last one {age} ago: {crash.reason}"


def _changes(revision: RevisionView) -> list[str]:
    return list(dict.fromkeys(CHANGES[code] for code in _codes(revision) if code in CHANGES))


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
