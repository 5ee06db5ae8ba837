"""Writes each second into the time series (``tidegate.autoscaler.measure.history``): one row per function, and one per
group that has replicas or traffic, over all revisions of the function."""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from tidegate.autoscaler.autoscaler import Autoscaler
from tidegate.autoscaler.measure.history import History
from tidegate.autoscaler.measure.observation import GroupObservation, TokenRates
from tidegate.clock import Clock
from tidegate.control.rounds.tracked import TrackedRevision
from tidegate.control.rounds.weights import GroupWeights
from tidegate.control.rounds.world import World
from tidegate.control.watch.traffic import TrafficMeter
from tidegate.deploy.backend import ReplicaStatus
from tidegate.records.replica_state import ReplicaState

SLICE_S: Final = 0.003
"""Longest time for which recording occupies the event loop."""
_GONE: Final = (ReplicaState.ASLEEP, ReplicaState.STOPPED, ReplicaState.FAILED)

Values = dict[str, float | None]


async def record(
    world: World, autoscaler: Autoscaler, weights: GroupWeights, traffic: TrafficMeter, history: History, clock: Clock
) -> None:
    """Writes one second of every deployed function."""
    now = began = clock.now()
    devices = in_use(world.backend.replicas())
    deployed = {each.name: each.current.function.sla.percentile for each in world.registry.all()}
    for name, percentile in deployed.items():
        kept = history.groups(name)
        for group, values in rows(world.tracked(name), autoscaler, weights, devices.get(name, {}), kept):
            if group is None:
                values["p50_s"], values["tail_s"] = traffic.latencies(name, (0.5, percentile / 100.0), now)
            history.record(now, name, group, values)
        if clock.now() - began >= SLICE_S:
            await asyncio.sleep(0)
            began = clock.now()
    for gone in set(history.functions) - deployed.keys():
        history.forget(gone)


def in_use(replicas: Iterable[ReplicaStatus]) -> dict[str, dict[str, float]]:
    """Returns the devices that each function holds, by accelerator; a shared device counts by its share."""
    found: dict[str, dict[str, float]] = {}
    for each in replicas:
        if each.state not in _GONE:
            held = found.setdefault(each.function, {})
            held[each.accelerator] = held.get(each.accelerator, 0.0) + each.share / 100.0
    return found


def rows(
    revisions: Iterable[TrackedRevision],
    autoscaler: Autoscaler,
    weights: GroupWeights,
    devices: dict[str, float],
    kept: Collection[str | None],
) -> Iterator[tuple[str | None, Values]]:
    """Yields the row of the function (group None) and one row per group: of those that have or want replicas, and of
    those with a series, ``kept``."""
    whole: Values = {"devices": sum(devices.values())}
    groups: dict[str, Values] = {name: {"devices": held} for name, held in devices.items()}
    for tracked in revisions:
        seen = autoscaler.observation(tracked.id)
        decision = tracked.decision
        if decision is not None:
            _add(whole, desired=decision.desired)
            for wanted in decision.groups or ():
                if not wanted.replicas and wanted.accelerator not in groups and wanted.accelerator not in kept:
                    continue
                _add(groups.setdefault(wanted.accelerator, {}), desired=wanted.replicas)
        for name, weight in weights.weights(tracked.id).items():
            _add(groups.setdefault(name, {}), weight=weight * tracked.percent / 100.0)
        if seen is None:
            continue
        _add(whole, rps=seen.rps, lambda_ips=seen.lambda_ips, waiting=seen.waiting, ready=seen.ready)
        _add(whole, ips=sum(group.ips for group in seen.groups), starting=seen.starting)
        _worst(whole, seen.latency_s, seen.within_sla)
        for group in seen.groups:
            if group.ready or group.starting or group.draining or group.accelerator in groups:
                _group(groups.setdefault(group.accelerator, {}), group)
        if seen.tokens is not None:
            _tokens(whole, groups, seen.tokens)
    yield None, whole
    yield from groups.items()


def _group(row: Values, seen: GroupObservation) -> None:
    _add(row, rps=seen.rps, ips=seen.ips, ready=seen.ready, starting=seen.starting, busy=seen.busy)
    _worst(row, seen.latency_s, None)
    if seen.ready:  # of two revisions on one accelerator the last one counts
        row |= {"mu_ips": seen.mu_ips, "execution_s": seen.execution_s, "queue_s": seen.queue_s}
        row.update(seen.metrics)


def _tokens(whole: Values, groups: dict[str, Values], seen: TokenRates) -> None:
    _add(whole, lambda_tps=seen.lambda_tps, tps=seen.prompt_tps + seen.completion_tps)
    for name, rate in seen.groups.items():
        row = groups.setdefault(name, {})
        _add(row, tps=rate.tps)
        row["mu_tps"] = rate.mu_tps


def _add(row: Values, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None:
            row[name] = (row.get(name) or 0.0) + value


def _worst(row: Values, latency_s: float | None, within_sla: float | None) -> None:
    if latency_s is not None:
        row["latency_s"] = max(latency_s, row.get("latency_s") or 0.0)
    if within_sla is not None:
        known = row.get("within_sla")
        row["within_sla"] = within_sla if known is None else min(within_sla, known)
