"""The control process's own figures: it reads the control loop when it is scraped, a function at a time."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from tidegate import metrics
from tidegate.control.api.describe import FunctionViews
from tidegate.control.rounds.wiring import ControlLoop
from tidegate.control.state.registry import Deployed
from tidegate.control.views.deployment import GatewayView
from tidegate.control.views.functions import GroupView, RateSource
from tidegate.gateway.counting.outcomes import Ending
from tidegate.metrics import Exposition, Metric, StepHistogram

REPLICAS_A_STEP: Final = 100
QUANTILES: Final = (0.5, 0.95, 0.99)
"""Quantiles of latencies; the function's own is added."""


class Timings:
    """The histograms that the control loop feeds."""

    def __init__(self) -> None:
        self.rounds = StepHistogram(metrics.CONTROL_ROUND)
        self.ages = StepHistogram(metrics.DECISION_AGE)

    def expose(self, exposition: Exposition) -> None:
        exposition.add_steps(metrics.CONTROL_ROUND, (), self.rounds)
        exposition.add_steps(metrics.DECISION_AGE, (), self.ages)


class OwnMetrics:
    """Reads the control loop at each scrape; keeps nothing. ``faults`` returns how many things do not work now."""

    def __init__(
        self,
        loop: ControlLoop,
        views: FunctionViews,
        timings: Timings,
        *,
        epoch: int,
        gateways: Callable[[], Iterable[GatewayView]],
        faults: Callable[[], int],
    ) -> None:
        self._loop = loop
        self._world = loop.world
        self._views = views
        self._timings = timings
        self._epoch = epoch
        self._gateways = gateways
        self._faults = faults
        self._process = CollectorRegistry()
        ProcessCollector(namespace="tidegate_control", registry=self._process)

    def process_text(self) -> bytes:
        """Returns memory, processor time and descriptors of this process."""
        return generate_latest(self._process)

    def zeros(self, exposition: Exposition) -> Iterator[None]:
        """Adds a zero for each counter of requests of the deployed revisions, a function a step. Of a counter that
        begins above zero Prometheus takes no increase: it would miss the first requests of each function."""
        for deployed in tuple(self._world.registry.all()):
            for tracked in self._world.tracked(deployed.name):
                labels = (deployed.name, tracked.id)
                for metric in _ZEROS:
                    exposition.add(metric, labels, 0)
                for ending in Ending:
                    exposition.add(metrics.GATEWAY_ENDED, (*labels, ending.value), 0)
            yield

    def steps(self, exposition: Exposition) -> Iterator[None]:
        """Adds everything to ``exposition``, one function a step."""
        exposition.add(metrics.CONTROL_EPOCH, (), self._epoch)
        exposition.add(metrics.CONTROL_FAULTS, (), self._faults())
        for worker in self._gateways():
            exposition.add(metrics.CONTROL_GATEWAY_RESTARTS, (worker.worker,), worker.restarts)
        self._timings.expose(exposition)
        for labels, count in sorted(self._world.revocations.counts.items()):
            exposition.add(metrics.REVOKED_STARTS, labels, count)
        for verdict, count in self._loop.profiles.predictions.verdicts.items():
            exposition.add(metrics.PREDICTION_SAMPLES, (verdict,), count)
        for broken, count in sorted(self._loop.instruments.failures.counts.items()):
            exposition.add(metrics.REPLICA_FAILURES, broken, count)
        if self._loop.instruments.devices is not None:
            self._loop.instruments.devices.expose(exposition)
        if self._loop.instruments.units is not None:
            kinds, now = self._world.backend.devices(), self._loop.clock.now()
            self._loop.instruments.units.expose(exposition, kinds, now)
        yield
        yield from self._replicas(exposition)
        yield from self._loop.instruments.costs.expose(exposition)
        deployed = tuple(self._world.registry.all())
        self._loop.instruments.cold_starts.keep({each.name for each in deployed})
        for each in deployed:
            self._function(exposition, each)
            yield
            yield from self._loop.instruments.cold_starts.expose(exposition, each.name)

    def _replicas(self, exposition: Exposition) -> Iterator[None]:
        """Counts those of deleted functions too, until they have ended."""
        counts: Counter[tuple[str, str, str, str]] = Counter()
        for number, each in enumerate(tuple(self._world.backend.replicas())):
            counts[each.function, each.revision, each.accelerator, each.state.value] += 1
            if number % REPLICAS_A_STEP == 0:
                yield
        for labels, count in counts.items():
            exposition.add(metrics.REPLICAS, labels, count)
            yield

    def _function(self, exposition: Exposition, deployed: Deployed) -> None:
        name = deployed.name
        utilization = self._loop.instruments.gpus.utilization(name, self._loop.clock.now())
        if utilization is not None:
            exposition.add(metrics.FUNCTION_GPU_UTILIZATION, (name,), utilization / 100.0)
        quantiles = sorted({*QUANTILES, deployed.current.function.sla.percentile / 100.0})
        latencies = self._loop.instruments.traffic.latencies(name, quantiles, self._loop.clock.now())
        for quantile, latency_s in zip(quantiles, latencies, strict=True):
            if latency_s is not None:
                exposition.add(metrics.LATENCY_QUANTILE, (name, f"{quantile:g}"), latency_s)
        for tracked in self._world.tracked(name):
            labels, spec = (name, tracked.id), tracked.record.function
            exposition.add(metrics.TRAFFIC_PERCENT, labels, tracked.percent)
            exposition.add(metrics.DRY_RUN, labels, int(spec.scaling.dry_run))
            if spec.sla.latency_s is not None:
                exposition.add(metrics.SLA_LATENCY, labels, spec.sla.latency_s)
                exposition.add(metrics.SLA_OBJECTIVE, labels, spec.sla.percentile / 100.0)
            if tracked.decision is not None and tracked.decision.desired is not None:
                exposition.add(metrics.DESIRED_REPLICAS, labels, tracked.decision.desired)
            for group in self._views.groups(tracked, self._world.replicas_of(tracked.id)):
                for metric, read in _GROUP_GAUGES:
                    value = read(group)
                    if value is not None:
                        exposition.add(metric, (*labels, group.accelerator), value)
        self._rollout(exposition, deployed)

    def _rollout(self, exposition: Exposition, deployed: Deployed) -> None:
        tallies = self._loop.rollouts.tallies(deployed.name)
        if deployed.rolling is None or deployed.candidate is None or tallies is None:
            return
        for record, tally in zip((deployed.candidate, deployed.current), tallies, strict=True):
            labels = (deployed.name, record.revision.id)
            exposition.add(metrics.ROLLOUT_REQUESTS, labels, tally.requests)
            exposition.add(metrics.ROLLOUT_BAD, labels, tally.bad)


_ZEROS: Final = (metrics.GATEWAY_ARRIVALS, metrics.GATEWAY_ARRIVED_INFERENCES, metrics.GATEWAY_WITHIN_SLA)
_GROUP_GAUGES: Final[tuple[tuple[Metric, Callable[[GroupView], float | None]], ...]] = (
    (metrics.GROUP_SERVICE_RATE, lambda group: group.mu_ips if group.mu_source is RateSource.LEARNT else None),
    (metrics.GROUP_SERVICE_RATE_BOUND, lambda group: group.mu_ips if group.mu_source is RateSource.BOUND else None),
    (metrics.GROUP_TOKEN_SERVICE_RATE, lambda group: group.mu_tps),
    (metrics.GROUP_DESIRED_REPLICAS, lambda group: group.wanted),
    (metrics.GROUP_WEIGHT, lambda group: group.weight),
    (metrics.GROUP_LIMIT, lambda group: group.limit),
    (metrics.GROUP_EMULATED, lambda group: int(group.emulated)),
    (metrics.GROUP_PRICE, lambda group: (group.ready + group.starting + group.leaving) * group.price_per_hour),
)
