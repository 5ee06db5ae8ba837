"""One group's observation: the present figures of its replicas, and what was read from its windows."""

import math
from collections.abc import Mapping, Sequence

from msgspec import UNSET, structs

from tidegate.autoscaler.measure.group_measurements import NO_MEANS, GroupFigures, GroupMeans, GroupMeasurements, Means
from tidegate.autoscaler.measure.measurements import PHASES
from tidegate.autoscaler.measure.observation import FleetGroup, GroupObservation
from tidegate.autoscaler.measure.plausible import PLAUSIBLE
from tidegate.autoscaler.measure.sampling import ALL_UP_TO, sample_size
from tidegate.autoscaler.measure.sources import ReplicaSource
from tidegate.records.replica_sample import AppSample

SECOND_S = 2.0
"""The mean over a longer interval does not describe this second."""
SAME_ROUND_S = 0.75
"""Samples that lie no further apart were pulled in the same round."""
FIGURES_S = PHASES - 0.5
"""Age at which figures of a group's windows are read again, also without a phase."""
NO_FIGURES = GroupFigures(-math.inf)

Sampled = tuple[float, Means, Sequence[AppSample]]
"""(time of the oldest sample used, means over the sampled replicas scaled to the whole group, latest model-server
metrics)."""
NOT_SAMPLED: Sampled = (math.inf, NO_MEANS, ())


def sampled_means(replicas: Mapping[str, ReplicaSource], ready: Sequence[str], stale: float) -> Sampled:
    """Returns the means of a group's ready replicas; samples older than ``stale`` do not count."""
    if len(ready) == 1:
        source = replicas.get(ready[0])
        if source is None or source.at < stale:
            return NOT_SAMPLED
        app = source.app
        return source.at, source, () if app is None or not app.up else (app,)
    sources = [each for each in map(replicas.get, ready) if each is not None and each.at >= stale]
    if not sources:
        return NOT_SAMPLED
    if len(ready) > ALL_UP_TO:
        sources = _newest(sources, sample_size(len(ready)))
    limit: int | None = None
    concurrency = concurrency_inferences = rps = ips = busy = 0.0
    for source in sources:
        slots = source.limit
        if limit is None or 0 < slots < (limit or math.inf):
            limit = slots
        concurrency += source.concurrency
        concurrency_inferences += source.concurrency_inferences
        rps += source.rps
        ips += source.ips
        busy += source.busy
    count = len(sources)
    scale = len(ready) / count
    means = GroupMeans(
        limit, count, scale * concurrency, scale * concurrency_inferences, scale * rps, scale * ips, scale * busy
    )
    apps = [each.app for each in sources if each.app is not None and each.app.up]
    return min(each.at for each in sources), means, apps


def _newest(sources: list[ReplicaSource], enough: int) -> list[ReplicaSource]:
    """Returns the sources of a large group that were sampled in this round, if they are enough to stand for the others;
    else all."""
    newest = max((source.at for source in sources), default=0.0)
    found = [each for each in sources if newest - each.at < SAME_ROUND_S and 0.0 < each.interval_s <= SECOND_S]
    return found if len(found) >= enough else sources


def observed_group(
    group: FleetGroup,
    means: Means,
    apps: Sequence[AppSample],
    kept: GroupMeasurements | None,
    now: float,
    q: float,
    slo_s: float,
    taken_at: float,
    is_by_size: bool = False,
) -> GroupObservation:
    """Returns a group's observation, with its service times if ``is_by_size``. ``taken_at``: when latencies were last
    processed. The windows are read again after that; until then the figures last read hold for ``FIGURES_S``, unless
    there is no rate, or a first one has become known since."""
    figures = NO_FIGURES if kept is None or kept.figures is None else kept.figures
    # By place, which takes less time than by name.
    at, bound = figures[0], figures[1]
    if kept is not None and (bound is None or at < taken_at or not 0.0 <= now - at < FIGURES_S):
        figures = kept.read(now, q, slo_s)
    (
        _,
        bound,
        is_learnt,
        expected,
        mean_batch,
        execution_s,
        queue_s,
        min_execution_s,
        tail_s,
        latency_s,
        answers,
        late,
        min_execution_occupancy,
    ) = figures
    sampled = means.sampled
    if not sampled:
        mean_batch = execution_s = queue_s = tail_s = None
    mu_ips = bound if is_learnt else group.mu_ips
    if mu_ips is not None and not 0.0 < mu_ips <= PLAUSIBLE:
        mu_ips = None  # given from outside; observations are finite, else a recording could not hold them
    metrics = group.metrics
    if metrics:
        metrics = {name: value for name, value in metrics.items() if 0.0 <= value <= PLAUSIBLE}
    # By position: ten thousand are made in a second.
    found = GroupObservation(
        group.accelerator,
        len(group.ready),
        group.starting,
        group.draining,
        group.room,
        group.price_per_hour,
        mu_ips,
        is_learnt,
        bound,
        expected,
        means.limit,
        sampled,
        means.concurrency,
        means.concurrency_inferences,
        means.rps,
        means.ips,
        means.busy,
        mean_batch,
        execution_s,
        queue_s,
        min_execution_s,
        tail_s,
        latency_s,
        answers,
        late,
        metrics,
        min_execution_occupancy,
        group.one_s,
        UNSET if kept is None or not is_by_size else kept.services or kept.read_services(),
    )
    return found if not apps or kept is None or kept.app is None else _with_apps(found, kept, apps, now)


def _with_apps(
    found: GroupObservation, kept: GroupMeasurements, apps: Sequence[AppSample], now: float
) -> GroupObservation:
    """Adds the metrics of its model servers: their own durations count more than those measured from outside."""
    if kept.app is None:
        return found
    by_server = kept.app.metrics(apps, now)
    queue_s = found.queue_s
    return structs.replace(
        found,
        min_execution_s=found.min_execution_s if kept.app.compute_s is None else kept.app.compute_s,
        min_execution_occupancy=found.min_execution_occupancy if kept.app.compute_s is None else None,
        queue_s=None if queue_s is None else queue_s + by_server.get("queue-s", 0.0),
        metrics={**by_server, **found.metrics},
    )
