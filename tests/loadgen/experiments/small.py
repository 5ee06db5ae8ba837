"""A small experiment: the thesis' systems under a load of a second."""

from typing import Any

from tidegate.loadgen.experiments.definition import Experiment, parse
from tidegate.loadgen.experiments.judge import Judgement
from tidegate.loadgen.experiments.outcome import ExperimentOutcome

PARAMETERS = """
[parameters]
phases = [{ start_s = 0, requests = 20, workers = 2, rate = 15 }]

[parameters.cluster]
devices = 2
service_s = 0.05
hop_s = 0.0
first_s = 0.0
idle_s = 1

[parameters.kpa]
target = 1
utilization = 0.7
start_s = 1

[parameters.hpa]
threshold = 30
busy_utilization = 10
tolerance = 0.1
period_s = 30
window_s = 60
cooldown_s = 300
start_s = 1
calm = 1
crowd = 2
crowded_s = 0.05
"""

TEXT = f"""
name = "small"
title = "A small one"
source = "Nowhere, table 1"
claim = "It is quick."
why = "It is small."
setup = "thesis.latency"
seeds = 2
{PARAMETERS}
[[checks]]
figure = "kpa_total_s"
printed = 1.0
at_least = 1.0
at_most = 3.0

[[checks]]
figure = "hpa_mean_s"
within = 0.5
of = 0.1
each = true
why = "Two at once take twice as long."

[[reported]]
figure = "late_mean_s"
"""


def small(**changes: str) -> Experiment:
    """``changes``: texts of the definition instead of others."""
    text = TEXT
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return parse(text, "small.toml")


def outcome(**figures: float) -> ExperimentOutcome:
    return ExperimentOutcome(figures=figures)


class Heard:
    """A listener that remembers, and may interrupt."""

    def __init__(self, interrupt_after: tuple[str, int] | None = None) -> None:
        self.reported: list[Any] = []
        self._interrupt_after = interrupt_after

    def seed(self, experiment: Experiment, seed: int) -> None:
        self.reported.append((experiment.name, seed))
        if (experiment.name, seed) == self._interrupt_after:
            raise KeyboardInterrupt

    def result(self, result: Judgement) -> None:
        self.reported.append(result)
