"""Requests in flight against GPU utilisation: the experiments of a master's thesis on two autoscalers (S. Mitra,
University of Groningen)."""

from tidegate.loadgen.experiments.setups.thesis.setups import cost, latency, lowered, provisioning, thresholds

__all__ = ["cost", "latency", "lowered", "provisioning", "thresholds"]
