"""Setup of the laboratory's experiments, and the row that all of them have."""

from dataclasses import dataclass

from benchmarks.autoscaling.timeline import Run
from benchmarks.laboratory.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    smoke: bool
    seed: int

    def long(self, full: float, smoke: float) -> float:
        return smoke if self.smoke else full


def lost(experiment: str, case: str, run: Run) -> Row:
    """Nothing was lost, at any length; and whether the client was quick enough."""
    faults = {f"{each.status or each.error}" for each in run.lost}
    note = ", ".join(sorted(faults)) or ("" if run.client is None else str(run.client))
    return Row(experiment=experiment, case=case, measure="lost_requests", live=len(run.lost), most=0, note=note[:200])
