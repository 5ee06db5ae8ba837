"""The setups of the thesis' experiments: each runs some systems under some loads and names the figures."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.setups.thesis.runs import Curve, Served, ThesisRun, measured
from tidegate.loadgen.experiments.setups.thesis.systems import Cluster, Hpa, Kpa, Percent, System, SystemPhase
from tidegate.loadgen.experiments.tables import Positive, Some
from tidegate.loadgen.metrics.cost import monthly_cost
from tidegate.loadgen.metrics.elasticity import Elasticity


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    phases: Some[SystemPhase]
    cluster: Cluster
    kpa: Kpa
    hpa: Hpa


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs(Comparison):
    """Parameters of nodes that are booked for a whole run."""

    node_price_per_hour: Positive
    """In dollars."""
    printed_kpa_s: Positive
    """Duration of the run as printed in the source."""
    printed_hpa_s: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered(Comparison):
    """Parameters. ``phases`` is the variable load; the same system ``hpa`` runs once more with another threshold."""

    constant: Some[SystemPhase]
    lower_threshold: Percent
    node_price_per_hour: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep(Comparison):
    thresholds: Some[Percent]
    """Falling thresholds, each in place of that of ``hpa``."""

    def __post_init__(self) -> None:
        if any(later >= earlier for earlier, later in pairwise(self.thresholds)):
            raise ValueError("thresholds that fall")


@setup(Comparison)
def latency(given: Comparison, seed: int) -> ExperimentOutcome:
    """Measures times of requests and phases, for the three systems."""
    runs = {system: _run(given, system, seed) for system in System}
    figures: dict[str, float] = {}
    for system, found in runs.items():
        figures |= _served(system, found.whole)
        if len(found.phases) > 1:
            for number, phase in enumerate(found.phases, 1):
                figures |= _served(f"{system}_phase{number}", phase)
    total_s = {system: found.whole.total_s for system, found in runs.items()}
    figures["hpa_over_kpa"] = total_s[System.HPA] / total_s[System.KPA]
    figures["kpa_over_late"] = total_s[System.KPA] / total_s[System.LATE]
    return ExperimentOutcome(figures=figures, series=_series(runs))


@setup(Comparison)
def provisioning(given: Comparison, seed: int) -> ExperimentOutcome:
    """Measures how well supply follows demand, sampled every 15 s: the demand of the autoscaler, and that of the
    load."""
    runs = {system: _run(given, system, seed) for system in (System.KPA, System.HPA)}
    figures: dict[str, float] = {}
    for system, found in runs.items():
        figures |= _elasticity(system, found.own) | _elasticity(f"{system}_workload", found.workload)
        figures[f"{system}_short_s"] = found.own.tau_under / 100.0 * found.whole.total_s
    return ExperimentOutcome(figures=figures, series=_series(runs))


@setup(Costs)
def cost(given: Costs, seed: int) -> ExperimentOutcome:
    """Computes monthly costs of runs on every working day, and the utilisation of the devices."""
    runs = {system: _run(given, system, seed) for system in (System.KPA, System.HPA)}
    nodes, price = given.cluster.devices, given.node_price_per_hour
    kpa_s, hpa_s = (found.whole.total_s for found in runs.values())
    figures = {
        "printed_kpa_dollars": monthly_cost(given.printed_kpa_s, nodes, price),
        "printed_hpa_dollars": monthly_cost(given.printed_hpa_s, nodes, price),
        "printed_hpa_one_node_dollars": monthly_cost(given.printed_hpa_s, 1, price),
        "kpa_dollars": monthly_cost(kpa_s, nodes, price),
        "hpa_dollars": monthly_cost(hpa_s, nodes, price),
        "hpa_one_node_dollars": monthly_cost(hpa_s, 1, price),
        "hpa_over_kpa": hpa_s / kpa_s,
        "hpa_one_node_over_kpa": hpa_s / (nodes * kpa_s),
    }
    for system, found in runs.items():
        figures[f"{system}_busiest_active_pct"] = found.active[0]
        figures[f"{system}_idlest_active_pct"] = found.active[-1]
        figures[f"{system}_active_devices"] = float(sum(each > 0.0 for each in found.active))
    return ExperimentOutcome(figures=figures, series=_series(runs))


@setup(Lowered)
def lowered(given: Lowered, seed: int) -> ExperimentOutcome:
    """Lowers the threshold: how near utilisation comes to requests in flight."""
    low = replace(given.hpa, threshold=given.lower_threshold)
    under_constant = replace(given, phases=given.constant)
    before = _run(under_constant, System.HPA, seed).whole.total_s
    constant = _run(replace(under_constant, hpa=low), System.HPA, seed)
    variable = _run(replace(given, hpa=low), System.HPA, seed)
    kpa_constant, kpa_variable = _run(under_constant, System.KPA, seed), _run(given, System.KPA, seed)
    nodes, price = given.cluster.devices, given.node_price_per_hour
    figures = _served("constant", constant.whole)
    figures["constant_faster_than_before"] = before / constant.whole.total_s
    figures["constant_over_kpa"] = constant.whole.total_s / kpa_constant.whole.total_s
    for number, (served, (start_s, end_s)) in enumerate(zip(variable.phases, _spans(given, variable), strict=True), 1):
        figures |= _served(f"phase{number}", served)
        figures[f"phase{number}_fewest_wanted"] = variable.fewest_wanted(start_s, end_s)
    for name, found in (("", constant), ("kpa_", kpa_constant)):
        figures[f"{name}constant_dollars"] = monthly_cost(found.whole.total_s, nodes, price)
    for name, found in (("", variable), ("kpa_", kpa_variable)):
        figures[f"{name}variable_dollars"] = monthly_cost(found.whole.total_s, nodes, price)
    figures["constant_cost_over_kpa"] = figures["constant_over_kpa"]
    figures["variable_cost_over_kpa"] = variable.whole.total_s / kpa_variable.whole.total_s
    figures |= _elasticity("constant", constant.own) | _elasticity("variable", variable.own)
    return ExperimentOutcome(figures=figures, series=_series({System.KPA: kpa_variable, System.HPA: variable}))


@setup(Sweep)
def thresholds(given: Sweep, seed: int) -> ExperimentOutcome:
    """Measures the time of the whole load, threshold by threshold."""
    kpa = _run(given, System.KPA, seed).whole.total_s
    totals = {
        percent: _run(replace(given, hpa=replace(given.hpa, threshold=percent)), System.HPA, seed).whole.total_s
        for percent in given.thresholds
    }
    figures = {f"total_at_{percent:g}_pct_s": total_s for percent, total_s in totals.items()}
    figures["kpa_total_s"] = kpa
    figures["last_over_kpa"] = totals[given.thresholds[-1]] / kpa
    figures["largest_rise_s"] = max((later - earlier for earlier, later in pairwise(totals.values())), default=0.0)
    plot, rising = "Time of the whole load [s by % threshold]", sorted(totals.items())
    curves = {f"{plot}: hpa": rising, f"{plot}: kpa": [(percent, kpa) for percent, _ in rising]}
    return ExperimentOutcome(figures=figures, series=curves)


def _run(given: Comparison, system: System, seed: int) -> ThesisRun:
    return measured(system, given.phases, given.cluster, given.kpa, given.hpa, seed)


def _spans(given: Lowered, found: ThesisRun) -> list[tuple[float, float]]:
    """Returns each phase's span: from its start to that of the next one, by the schedule."""
    starts = sorted({phase.start_s for phase in given.phases})
    ends = dict(zip(starts, [*starts[1:], found.whole.total_s], strict=True))
    return [(phase.start_s, ends[phase.start_s]) for phase in given.phases]


def _served(name: str, served: Served) -> dict[str, float]:
    return {
        f"{name}_total_s": served.total_s,
        f"{name}_mean_s": served.mean_s,
        f"{name}_rate": served.rate,
        **{f"{name}_p{percent}_s": value for percent, value in served.percentiles_s.items()},
        f"{name}_fastest_s": served.fastest_s,
        f"{name}_slowest_s": served.slowest_s,
    }


def _elasticity(name: str, found: Elasticity) -> dict[str, float]:
    return {
        f"{name}_theta_under_pct": found.theta_under,
        f"{name}_theta_over_pct": found.theta_over,
        f"{name}_tau_under_pct": found.tau_under,
        f"{name}_tau_over_pct": found.tau_over,
    }


def _series(runs: Mapping[System, ThesisRun]) -> dict[str, Curve]:
    curves: dict[str, Curve] = {}
    for system, found in runs.items():
        curves[f"Wanted [replicas]: {system}"] = found.wanted
        curves[f"Ready [replicas]: {system}"] = found.ready
        curves[f"Mean latency of each 15 s [s]: {system}"] = found.latency
    return curves
