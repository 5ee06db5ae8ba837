"""Cost of replicas.

Sources: HetSev, H8 (price by memory and time); the thesis on in-flight and utilisation autoscaling, A5 (monthly cost of
nodes booked in advance).
"""

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from tidegate.loadgen.simulator.lease import Lease

RUNS_PER_MONTH: Final = 5 * 52 / 12
"""Runs per month of an experiment that runs on every working day."""


class Accounting(StrEnum):
    """The part of a device that a replica pays for."""

    FOOTPRINT = "footprint"
    """The memory that the replica uses."""
    WHOLE_GPU = "whole_gpu"
    """All of the device's memory."""


def memory_cost(
    leases: Iterable[Lease],
    price_per_gb: Mapping[str, float],
    device_gb: Mapping[str, float],
    accounting: Accounting,
) -> float:
    """Returns the sum of price x memory x time; ``price_per_gb`` is per gigabyte and second, by accelerator.

    Raises KeyError for an accelerator without a price, or without a memory where the whole device is charged.
    """
    whole = accounting is Accounting.WHOLE_GPU
    return math.fsum(
        price_per_gb[lease.accelerator]
        * (device_gb[lease.accelerator] if whole else lease.used_gb)
        * (lease.end_s - lease.start_s)
        for lease in leases
    )


def monthly_cost(run_s: float, nodes: int, price_per_hour: float, runs_per_month: float = RUNS_PER_MONTH) -> float:
    """Returns the monthly cost of an experiment that books ``nodes`` for the whole of its run."""
    return run_s * nodes * runs_per_month * price_per_hour / 3600.0


def inferences_per_dollar(inferences: int, cost: float) -> float | None:
    """Returns inferences per dollar; None if nothing was paid."""
    return inferences / cost if cost > 0.0 else None
