"""A backlog of tasks on one cluster, with the check of affinity and without (figure 1a, table 1)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.setups.oltunes.schedules import Ended, TaskCluster, batch_scheduler
from tidegate.loadgen.experiments.setups.oltunes.testbed import Pattern, TaskTestbed
from tidegate.loadgen.experiments.tables import Count, NotNegative, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityRuns:
    tasks: Count
    """In the mix of table 7, all there at the beginning."""
    threshold: NotNegative
    """Of the affinity, in percent."""
    refused: Share = 0.0
    """Batches that a device refuses."""
    testbed: TaskTestbed = field(default_factory=TaskTestbed)


@setup(AffinityRuns)
def affinity(parameters: AffinityRuns, seed: int) -> ExperimentOutcome:
    """Runs the backlog with the threshold, and with a threshold of 0, which every task meets."""
    on, on_tuned, on_refused = _run(parameters, parameters.threshold, seed)
    off, _, _ = _run(parameters, 0.0, seed)
    return ExperimentOutcome(
        figures={
            "on_inputs_per_s": _rate(on),
            "off_inputs_per_s": _rate(off),
            "on_over_off": _rate(on) / _rate(off),
            "on_execution_s": _execution(on),
            "off_execution_s": _execution(off),
            "off_execution_over_on": _execution(off) / _execution(on),
            "tuned_tasks": float(on_tuned),
            "refused_batches": float(on_refused),
        }
    )


def _run(parameters: AffinityRuns, threshold: float, seed: int) -> tuple[Sequence[Ended], int, int]:
    arrivals = parameters.testbed.arrivals(Pattern.POISSON, float(parameters.tasks), seed)
    load = [(0.0, model, is_critical) for _, model, is_critical in islice(arrivals, parameters.tasks)]
    own = batch_scheduler(parameters.testbed, threshold)
    cluster = TaskCluster(parameters.testbed, own, load, seed, refused=parameters.refused)
    cluster.run()
    return cluster.ended, own.tuned, cluster.refused


def _rate(ended: Sequence[Ended]) -> float:
    """Returns inputs per second until the last task has ended."""
    return sum(each.model.items for each in ended) / max(each.ended_s for each in ended)


def _execution(ended: Sequence[Ended]) -> float:
    """Returns the mean time from the beginning of a task to its end."""
    return sum(each.ended_s - each.began_s for each in ended) / len(ended)
