"""The protocol of a policy: an observation in, a recommendation with reasons out.

A policy is built for one revision, keeps what it needs between ticks, reads no clock and does no IO. The same sequence
of (observation, now) always gives the same sequence of recommendations. Bounds, scale to zero, capacity and the choice
of accelerators for a bare number are not its business (``tidegate.autoscaler.decisions.limits``,
``tidegate.autoscaler.decisions.groups``).

To add one: its file or folder in ``autoscaler/policies``, its row in ``registry.py``, its tests.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from tidegate.autoscaler.measure.observation import Observation
from tidegate.function import Function
from tidegate.records.decision import GroupDecision, Reason


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's result before any limit."""

    desired: int | None
    """Replicas over all groups; None to hold (no data)."""
    groups: tuple[GroupDecision, ...] | None = None
    """Replicas by accelerator, from policies that choose accelerators. With None the number is spread by price."""
    reasons: tuple[Reason, ...] = ()
    is_zero_settled: bool = False
    """True if zero was decided by a protocol of the policy's own; the protocol of the limits is then skipped."""
    observed: Mapping[str, float] = msgspec.field(default_factory=dict)
    """The figures behind the recommendation, for the decision record."""


class Policy(Protocol):
    @property
    def activation_scale(self) -> int:
        """Replicas to start at once when a request wakes the revision, at least 1."""
        ...

    @property
    def retention_s(self) -> float:
        """Time that the last replica stays beyond ``scale-to-zero-after``."""
        ...

    def decide(self, observation: Observation, now: float) -> Recommendation:
        """Returns the recommendation at ``now``; called about once a second."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One row of the registry."""

    name: str
    sentence: str
    build: Callable[[Function, float, int], Policy]
    """(function, now, ready replicas) -> a policy for one revision."""
    keeps: tuple[type, ...]
    """The policy's class and those of the objects that it keeps between ticks
    (``tidegate.autoscaler.policies.policy_state``)."""
    warnings: Callable[[Function], tuple[str, ...]] = field(default=lambda function: ())
    """Returns the function's settings that may have no effect, in words for the operator."""
