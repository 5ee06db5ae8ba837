"""SMIF: SLA-driven inference on groups of different accelerators (Cho et al.)."""

from tidegate.loadgen.experiments.setups.smif.batches import autoscaling, table1
from tidegate.loadgen.experiments.setups.smif.choice import choice
from tidegate.loadgen.experiments.setups.smif.pair import concurrency, weights
from tidegate.loadgen.experiments.setups.smif.sampling import sampling
from tidegate.loadgen.experiments.setups.smif.sharing import models, sharing

__all__ = ["autoscaling", "choice", "concurrency", "models", "sampling", "sharing", "table1", "weights"]
