"""The control process's ``/metrics``: its own figures and those of all workers and replicas, in one text.

Series of several processes with equal labels become one series: counters, histograms and levels add up; of ages the
largest counts. A text that cannot be parsed is left out and counted; one bad process hides no other.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from tidegate.control.api.describe import FunctionViews
from tidegate.control.rounds.wiring import ControlLoop
from tidegate.control.views.deployment import GatewayView
from tidegate.control.views.functions import GroupView, RateSource

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OLDEST: Final = ("oldest",)
"""Parts of a name that mark an age: of several ages the largest counts."""
ROUND_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
AGE_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0)


# --- the texts of all processes as one ---


class Merged(Collector):
    """The families of several texts as one collection."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.unreadable = 0
        self._families: dict[str, Metric] = {}
        self._samples: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
        for text in texts:
            try:
                families = list(text_string_to_metric_families(text))
            except ValueError:
                self.unreadable += 1
                continue
            for family in families:
                self._add(family)

    def _add(self, family: Metric) -> None:
        self._families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        samples = self._samples.setdefault(family.name, {})
        largest = any(part in family.name for part in OLDEST)
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            before = samples.get(key, 0.0)
            samples[key] = max(before, sample.value) if largest else before + sample.value

    def collect(self) -> Iterator[Metric]:
        for name, family in self._families.items():
            family.samples = [
                Sample(sample, dict(labels), value) for (sample, labels), value in self._samples[name].items()
            ]
            yield family


def render(own: CollectorRegistry, texts: Iterable[str]) -> bytes:
    """Returns the control process's own registry, then the merged texts of the others."""
    merged = CollectorRegistry(auto_describe=False)
    others = Merged(texts)
    merged.register(others)
    note = (
        "# HELP tidegate_control_unreadable_expositions Processes whose metrics could not be read just now.\n"
        "# TYPE tidegate_control_unreadable_expositions gauge\n"
        f"tidegate_control_unreadable_expositions {others.unreadable}\n"
    )
    return generate_latest(own) + note.encode() + generate_latest(merged)


# --- the control process's own figures ---


def round_histogram(registry: CollectorRegistry) -> Histogram:
    """Returns the histogram of the rounds' durations, which the round observes."""
    return Histogram(
        "tidegate_control_round_seconds",
        "One round of the control process: pull, decide, plan, act, publish.",
        buckets=ROUND_BUCKETS_S,
        registry=registry,
    )


def age_histogram(registry: CollectorRegistry) -> Histogram:
    """Returns the histogram of the ages of the samples behind decisions, which the executor observes."""
    return Histogram(
        "tidegate_decision_age_seconds",
        "From the oldest sample that a decision went by to the decision.",
        buckets=AGE_BUCKETS_S,
        registry=registry,
    )


class ControlCollector(Collector):
    """Reads the control loop when it is scraped; keeps nothing."""

    def __init__(
        self,
        loop: ControlLoop,
        views: FunctionViews,
        *,
        epoch: int,
        gateways: Callable[[], Iterable[GatewayView]],
        faults: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._world = loop.world
        self._views = views
        self._epoch = epoch
        self._gateways = gateways
        self._faults = faults

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("tidegate_control_epoch", "Number of this control process.", value=self._epoch)
        yield GaugeMetricFamily("tidegate_control_faults", "Things that do not work just now.", value=self._faults())
        yield self._replicas()
        yield self._desired()
        yield self._revoked()
        yield from self._traffic()
        yield self._dry_runs()
        yield self._rates()
        yield self._gpus()
        yield from self._groups()
        restarts = CounterMetricFamily(
            "tidegate_control_gateway_restarts", "Starts of a gateway worker after it died.", labels=("worker",)
        )
        for worker in self._gateways():
            restarts.add_metric((worker.worker,), worker.restarts)
        yield restarts

    def _replicas(self) -> Metric:
        family = GaugeMetricFamily(
            "tidegate_replicas", "Replicas by state.", labels=("function", "revision", "accelerator", "state")
        )
        counts = Counter(
            (each.function, each.revision, each.accelerator, each.state.value)
            for each in self._world.backend.replicas()
        )
        for labels, count in sorted(counts.items()):
            family.add_metric(labels, count)
        return family

    def _revoked(self) -> Metric:
        family = CounterMetricFamily(
            "tidegate_revoked_starts",
            "Times that an accelerator kind was given up for a while because starts there came to nothing.",
            labels=("revision", "accelerator"),
        )
        for labels, count in sorted(self._world.revocations.counts.items()):
            family.add_metric(labels, count)
        return family

    def _desired(self) -> Metric:
        family = GaugeMetricFamily(
            "tidegate_desired_replicas", "Replicas that the last decision wants.", labels=("function", "revision")
        )
        for deployed in self._world.registry.all():
            for tracked in self._world.tracked(deployed.name):
                if tracked.decision is not None and tracked.decision.desired is not None:
                    family.add_metric((deployed.name, tracked.id), tracked.decision.desired)
        return family

    def _rates(self) -> Metric:
        family = GaugeMetricFamily(
            "tidegate_group_service_rate",
            "Inferences per second of one replica of a group at its limit, as learnt.",
            labels=("function", "revision", "group"),
        )
        groups = {(each.function, each.revision, each.accelerator) for each in self._world.backend.replicas()}
        for function, revision, accelerator in sorted(groups):
            rate = self._loop.autoscaler.core.mu_ips(revision, accelerator)
            if rate is not None:
                family.add_metric((function, revision, accelerator), rate)
        return family

    def _gpus(self) -> Metric:
        family = GaugeMetricFamily(
            "tidegate_function_gpu_utilization_ratio",
            "Share of the last minute in which the GPUs that a function held had work.",
            labels=("function",),
        )
        now = self._loop.clock.now()
        for function in sorted(self._loop.instruments.gpus.functions):
            mean = self._loop.instruments.gpus.utilization(function, now)
            if mean is not None:
                family.add_metric((function,), mean / 100.0)
        return family

    def _groups(self) -> Iterator[Metric]:
        families = [
            (GaugeMetricFamily(name, text, labels=("function", "revision", "group")), read)
            for name, text, read in _GROUP_GAUGES
        ]
        for deployed in self._world.registry.all():
            for tracked in self._world.tracked(deployed.name):
                for group in self._views.groups(tracked, self._world.replicas_of(tracked.id)):
                    for family, read in families:
                        value = read(group)
                        if value is not None:
                            family.add_metric((deployed.name, tracked.id, group.accelerator), value)
        for family, _ in families:
            yield family

    def _traffic(self) -> Iterator[Metric]:
        labels = ("function", "revision")
        percents = GaugeMetricFamily("tidegate_traffic_percent", "Share of a function's requests.", labels=labels)
        seen = GaugeMetricFamily(
            "tidegate_rollout_window_requests", "Requests that a canary's window has.", labels=labels
        )
        bad = GaugeMetricFamily("tidegate_rollout_window_bad_requests", "Those of them that went badly.", labels=labels)
        for deployed in self._world.registry.all():
            for tracked in self._world.tracked(deployed.name):
                percents.add_metric((deployed.name, tracked.id), tracked.percent)
            tallies = self._loop.rollouts.tallies(deployed.name)
            if deployed.rolling is None or deployed.candidate is None or tallies is None:
                continue
            for record, tally in zip((deployed.candidate, deployed.current), tallies, strict=True):
                seen.add_metric((deployed.name, record.revision.id), tally.requests)
                bad.add_metric((deployed.name, record.revision.id), tally.bad)
        yield from (percents, seen, bad)

    def _dry_runs(self) -> Metric:
        family = GaugeMetricFamily(
            "tidegate_dry_run",
            "1: tidegate_desired_replicas of this revision is a wish that is not carried out.",
            labels=("function", "revision"),
        )
        for deployed in self._world.registry.all():
            for tracked in self._world.tracked(deployed.name):
                family.add_metric((deployed.name, tracked.id), tracked.record.function.scaling.dry_run)
        return family


_GROUP_GAUGES: Final[tuple[tuple[str, str, Callable[[GroupView], float | None]], ...]] = (
    (
        "tidegate_group_service_rate_bound",
        "Inferences per second that one replica of a group can do at least: the best seen below its limit.",
        lambda group: group.mu_ips if group.mu_source is RateSource.BOUND else None,
    ),
    (
        "tidegate_group_token_service_rate",
        "Tokens per second of one replica of a group, where its service rate is known.",
        lambda group: group.mu_tps,
    ),
    (
        "tidegate_group_desired_replicas",
        "Replicas of a group that the last decision wants.",
        lambda group: group.wanted,
    ),
    (
        "tidegate_group_weight",
        "Fraction of the revision's inferences that a group is to get.",
        lambda group: group.weight,
    ),
    (
        "tidegate_group_concurrency_limit",
        "Slots of one replica of a group; 0: no limit.",
        lambda group: group.limit,
    ),
    (
        "tidegate_group_emulated",
        "1: the group's service times come from a profile; 0: they are a model's.",
        lambda group: float(group.emulated),
    ),
)


def register(
    registry: CollectorRegistry,
    loop: ControlLoop,
    views: FunctionViews,
    *,
    epoch: int,
    gateways: Callable[[], Iterable[GatewayView]],
    faults: Callable[[], int],
) -> None:
    """Registers the control process's own figures, its memory and its CPU time in ``registry``."""
    registry.register(ControlCollector(loop, views, epoch=epoch, gateways=gateways, faults=faults))
    ProcessCollector(namespace="tidegate_control", registry=registry)
