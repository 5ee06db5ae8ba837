"""Two kernels on one device, one after the other and at once (table 1)."""

from dataclasses import dataclass

from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.registry import setup
from tidegate.loadgen.experiments.setups.smif.sharing import Gain, Sizes, throughput
from tidegate.loadgen.experiments.tables import Positive, Share, Some, Word
from tidegate.loadgen.simulator.devices import Sharing


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPair:
    name: Word
    sequential_s: Positive
    together_s: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Table1Kernels:
    pairs: Some[KernelPair]
    jitter: Share
    duration_s: Positive


@setup(Table1Kernels)
def table1(parameters: Table1Kernels, seed: int) -> ExperimentOutcome:
    """Runs each pair on one device, in turns and by MPS, and reports how much sooner both are done."""
    figures = {}
    for pair in parameters.pairs:
        gain = Gain(replicas=2, mps=pair.sequential_s / pair.together_s, turns=1.0)
        of = Sizes(
            jitter=parameters.jitter,
            callers=2,
            duration_s=parameters.duration_s,
            gains=(gain,),
            service_s=pair.sequential_s / 2.0,
        )
        alone = throughput(of, of.service_s, 1, Sharing.EXCLUSIVE, seed)
        together = throughput(of, of.service_s, 2, Sharing.MPS, seed)
        figures[f"{pair.name}_speed_up"] = together / alone
    return ExperimentOutcome(figures=figures)
