"""From Knative's names to the numbers of a decision: annotations, cluster settings, derived targets.

Names are Knative's, without the ``autoscaling.knative.dev/`` prefix. As there, a value that does not parse counts as
absent here; manifests are checked before that (the table of KPA parameters in ``tidegate.manifest.annotations``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.function import Function
from tidegate.schema import units
from tidegate.schema.rows import camel

TARGET_MIN = 0.01
RPS_UTILIZATION = 0.7
"""Share of the target that requests per second aim at; the cluster's percentage does not apply to them."""

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})


def number(text: str) -> float | None:
    """Returns a finite decimal number, or None."""
    try:
        return units.go_float(text)
    except units.UnreadableError:
        return None


def integer(text: str) -> int | None:
    try:
        return units.go_int(text)
    except units.UnreadableError:
        return None


def duration_s(text: str) -> float | None:
    """Returns the seconds of a duration in Go's syntax (``1m5s``, ``1500ms``, ``0``), or None; a bare ``60`` is not
    one."""
    try:
        return units.go_duration_ns(text) / 1e9
    except units.UnreadableError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnativeConfig:
    """The cluster settings (``config-autoscaler``) with Knative's defaults."""

    target_utilization: float = 0.7
    concurrency_target: float = 100.0
    rps_target: float = 200.0
    target_burst_capacity: float = 211.0
    stable_window_s: float = 60.0
    panic_window_percentage: float = 10.0
    panic_threshold_percentage: float = 200.0
    max_scale_up_rate: float = 1000.0
    max_scale_down_rate: float = 2.0
    retention_s: float = 0.0
    scale_down_delay_s: float = 0.0
    initial_scale: int = 1
    allow_zero_initial_scale: bool = False
    min_scale: int = 0
    max_scale: int = 0
    activator_capacity: float = 100.0


class _Texts:
    """Text values by kebab-case name; the camelCase alias is read when that one is absent."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str) -> str | None:
        found = self._values.get(name)
        return self._values.get(camel(name)) if found is None else found

    def number(self, name: str, default: float) -> float:
        text = self.text(name)
        value = None if text is None else number(text)
        return default if value is None else value

    def integer(self, name: str, default: int) -> int:
        text = self.text(name)
        value = None if text is None else integer(text)
        return default if value is None else value

    def duration_s(self, name: str, default: float) -> float:
        text = self.text(name)
        value = None if text is None else duration_s(text)
        return default if value is None else value


def config(data: Mapping[str, str]) -> KnativeConfig:
    """Returns cluster settings from the map's text; keys that Knative does not know are ignored, as there."""
    read, default = _Texts(data), KnativeConfig()
    percentage = read.number("container-concurrency-target-percentage", 100.0 * default.target_utilization)
    return KnativeConfig(
        # A value up to 1 is a fraction: "1" is 100 %, "1.5" is 1.5 %.
        target_utilization=percentage if percentage <= 1.0 else percentage / 100.0,
        concurrency_target=read.number("container-concurrency-target-default", default.concurrency_target),
        rps_target=read.number("requests-per-second-target-default", default.rps_target),
        target_burst_capacity=read.number("target-burst-capacity", default.target_burst_capacity),
        stable_window_s=read.duration_s("stable-window", default.stable_window_s),
        panic_window_percentage=read.number("panic-window-percentage", default.panic_window_percentage),
        panic_threshold_percentage=read.number("panic-threshold-percentage", default.panic_threshold_percentage),
        max_scale_up_rate=read.number("max-scale-up-rate", default.max_scale_up_rate),
        max_scale_down_rate=read.number("max-scale-down-rate", default.max_scale_down_rate),
        retention_s=read.duration_s("scale-to-zero-pod-retention-period", default.retention_s),
        scale_down_delay_s=read.duration_s("scale-down-delay", default.scale_down_delay_s),
        initial_scale=read.integer("initial-scale", default.initial_scale),
        allow_zero_initial_scale=read.text("allow-zero-initial-scale") in _TRUE,
        min_scale=read.integer("min-scale", default.min_scale),
        max_scale=read.integer("max-scale", default.max_scale),
        activator_capacity=read.number("activator-capacity", default.activator_capacity),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KpaParameters:
    """The parameters of one decision. Times in seconds, rates as factors per decision, targets per replica."""

    metric: str = "concurrency"
    """``concurrency`` or ``rps``."""
    target_value: float
    """Goal per replica, utilisation applied."""
    total_value: float
    """Maximum that one replica can take."""
    target_burst_capacity: float = 211.0
    """-1: unlimited; then an empty window means zero load instead of no data."""
    activation_scale: int = 0
    max_scale_up_rate: float = 1000.0
    max_scale_down_rate: float = 2.0
    reachable: bool = True
    """True if routes lead to the revision. Otherwise it may shrink freely and min-scale does not hold."""
    panic_threshold: float = 2.0
    stable_window_s: float = 60.0
    panic_window_s: float = 6.0
    scale_down_delay_s: float = 0.0
    is_weighted: bool = False

    @property
    def has_scrape_target(self) -> bool:
        return self.target_burst_capacity != -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """Decision parameters plus the bounds that Knative applies outside the decision."""

    parameters: KpaParameters
    min_scale: int
    max_scale: int
    initial_scale: int
    retention_s: float


def derive(
    annotations: Mapping[str, str], settings: KnativeConfig, container_concurrency: float, *, reachable: bool = True
) -> Derived:
    """Returns the decision parameters of a revision. ``annotations``: Knative's names without prefix."""
    read = _Texts(annotations)
    metric = read.text("metric") or "concurrency"
    if metric == "rps":
        total, utilization = settings.rps_target, RPS_UTILIZATION
    else:
        total = container_concurrency or settings.concurrency_target
        utilization = settings.target_utilization
    target = read.number("target", total)
    total = min(target, container_concurrency) if metric != "rps" and container_concurrency else target
    percentage = read.number("target-utilization-percentage", math.nan)
    utilization = utilization if math.isnan(percentage) else percentage / 100.0
    stable_s = read.duration_s("window", settings.stable_window_s)
    panic_percentage = read.number("panic-window-percentage", settings.panic_window_percentage)
    aggregation = read.text("metric-aggregation-algorithm")
    initial = read.integer("initial-scale", settings.initial_scale)
    if initial == 0 and not settings.allow_zero_initial_scale:
        initial = settings.initial_scale
    parameters = KpaParameters(
        metric=metric,
        target_value=max(TARGET_MIN, total * utilization),
        total_value=total,
        target_burst_capacity=read.number("target-burst-capacity", settings.target_burst_capacity),
        activation_scale=read.integer("activation-scale", 0),
        max_scale_up_rate=settings.max_scale_up_rate,
        max_scale_down_rate=settings.max_scale_down_rate,
        reachable=reachable,
        panic_threshold=read.number("panic-threshold-percentage", settings.panic_threshold_percentage) / 100.0,
        stable_window_s=stable_s,
        # Half a second rounds up, and there is always one: 15 s at 10 % -> 2 s, 6 s -> 1 s.
        panic_window_s=float(max(1, math.floor(stable_s * panic_percentage / 100.0 + 0.5))),
        scale_down_delay_s=read.duration_s("scale-down-delay", settings.scale_down_delay_s),
        is_weighted=aggregation in ("weighted-exponential", "weightedExponential"),
    )
    return Derived(
        parameters=parameters,
        min_scale=read.integer("min-scale", settings.min_scale) if reachable else 0,
        max_scale=read.integer("max-scale", settings.max_scale),
        initial_scale=initial,
        retention_s=read.duration_s("scale-to-zero-pod-retention-period", settings.retention_s),
    )


def of_function(function: Function, concurrency: int) -> Derived:
    """Returns the parameters for a function with replicas of ``concurrency`` slots (0: no limit).

    Some of Knative's cluster settings may be given per function here (``max-scale-up-rate``), so its parameters are
    read as both.
    """
    values = function.scaling.parameters
    return derive(values, config(values), concurrency)
