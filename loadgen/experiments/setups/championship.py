"""A row of the championship as an experiment: late share and cost over the bounds of one policy under one trace."""

import math
from dataclasses import dataclass

from tidegate.loadgen.bound.clairvoyant import Bound
from tidegate.loadgen.experiments.championship.fleets import FLEETS
from tidegate.loadgen.experiments.championship.row import Cell, Entrant, Failed, bound, play
from tidegate.loadgen.experiments.championship.traces import LEAGUES, Lengths
from tidegate.loadgen.experiments.outcome import ExperimentError, ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.tables import NotNegative, Positive, Word


@dataclass(frozen=True, slots=True, kw_only=True)
class ChampionshipParameters:
    """Parameters: a synthetic trace, a policy, the fleet's groups and their start-up time."""

    trace: Word
    policy: Word
    groups: int = 1
    start_up_s: Positive = 30.0
    learn_s: NotNegative = 0.0
    judged_s: Positive = 3600.0
    min_run_s: NotNegative = 0.0
    settings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        made = [name for name, league in LEAGUES.items() if league.made is not None]
        if self.trace not in made:
            raise ValueError(f"trace is one of {', '.join(made)}")
        if self.groups not in FLEETS:
            raise ValueError(f"groups is one of {', '.join(map(str, FLEETS))}")


@setup(ChampionshipParameters)
def row(given: ChampionshipParameters, seed: int) -> ExperimentOutcome:
    """Plays the row. Raises ExperimentError if the policy fails, or no fleet keeps the SLA."""
    cell = Cell(
        trace=given.trace,
        groups=given.groups,
        start_up_s=given.start_up_s,
        seed=seed,
        lengths=Lengths(learn_s=given.learn_s, judged_s=given.judged_s),
        min_run_s=given.min_run_s,
    )
    played, least = play(cell, Entrant(policy=given.policy, settings=given.settings)), bound(cell)
    if isinstance(played, Failed):
        raise ExperimentError(played.why)
    if not isinstance(least, Bound) or not 0.0 < least.bq <= least.b0 < math.inf:
        raise ExperimentError(least.why if isinstance(least, Failed) else "no fleet keeps the SLA")
    return ExperimentOutcome(
        figures={
            "late_share": played.late_share,
            "cost_dollars": played.cost_dollars,
            "cost_over_b0": played.cost_dollars / least.b0,
            "cost_over_bq": played.cost_dollars / least.bq,
            "starts_per_day": played.starts_per_day,
            "mean_replicas": played.mean_replicas,
        },
        series={f"ready replicas [replicas by h]: {given.policy}": played.ready},
    )
