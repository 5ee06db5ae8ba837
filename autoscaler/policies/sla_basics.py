"""What the policies with a latency target have in common: when they hold, what they decide before anything was served,
and the rate that a function is to be able to take."""

import math
from typing import Final

from tidegate.autoscaler.decisions.reasons import figure, reason
from tidegate.autoscaler.measure.observation import Observation
from tidegate.autoscaler.policies.contract import Recommendation
from tidegate.function import ConcurrencyUnit, Function, Sla
from tidegate.records.decision import Reason

UNKNOWN_SLOTS: Final = 4
"""Slots assumed of a replica that has reported none."""
TIE: Final = 1e-9
"""Less than this is binary noise, which adds no replica."""


def held(observation: Observation) -> Recommendation | None:
    """Returns why nothing can be decided: samples are missing, or there is no accelerator; None if neither is."""
    if not observation.complete:
        return Recommendation(desired=None, reasons=(reason("hold_no_data", "not every gateway and group was heard"),))
    return None if observation.groups else Recommendation(desired=None, reasons=(reason("no_accelerator"),))


def by_concurrency(
    observation: Observation, function: Function, reasons: tuple[Reason, ...] = (), *, used: float, most_factor: float
) -> Recommendation:
    """Decides before anything was served: requests that wait and run against slots, of which the share ``used`` is to
    be in use. The queue that built up while the first replica started says little, so at most ``most_factor`` times the
    ready replicas. There are never fewer than exist."""
    in_inferences = function.concurrency_unit is ConcurrencyUnit.INFERENCES
    present = observation.concurrency_inferences if in_inferences else observation.concurrency
    slots = observation.limit or function.concurrency or UNKNOWN_SLOTS
    wanted, most = math.ceil(present / (used * slots) - TIE), math.ceil(most_factor * observation.ready - TIE)
    detail = f"{figure(present)} wait or run, {slots} slots a replica: {wanted}, at most {most} at once"
    desired = max(1, min(wanted, most), observation.existing)
    return Recommendation(
        desired=desired, reasons=(*reasons, reason("mu_unknown", detail)), observed={"concurrency": present}
    )


def floor_ips(sla: Sla, observation: Observation) -> float:
    """Returns the rate to provide while there is traffic (``target-ips``, ``target-tps``); one in tokens is converted
    by the size of the last answers' inferences."""
    floor, tokens = sla.target_ips or 0.0, observation.tokens
    if sla.target_tps is not None and tokens is not None and tokens.per_inference:
        floor = max(floor, sla.target_tps / tokens.per_inference)
    return floor
