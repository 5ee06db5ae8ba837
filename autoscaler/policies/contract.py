"""What a policy is: it looks at an observation and says what it wishes, with reasons.

A policy is built for one revision, keeps what it needs between ticks, reads no clock and does no IO; the same
sequence of (observation, now) always gives the same sequence of wishes. Bounds, scale to zero, capacity and the choice
of accelerators for a bare number are not its business (``tidegate.autoscaler.decisions.limits``,
``tidegate.autoscaler.decisions.groups``).

Adding one: its file in ``autoscaler/policies``, its row in the registry there, its tests.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from tidegate.autoscaler.measure.observation import Observation
from tidegate.function import Function
from tidegate.records.decision import GroupDecision, Reason


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy wants before any limit."""

    desired: int | None
    """Replicas over all groups; None: no opinion (no data), hold."""
    groups: tuple[GroupDecision, ...] | None = None
    """Replicas by accelerator, from policies that choose accelerators; None: the number is spread by price."""
    reasons: tuple[Reason, ...] = ()
    is_zero_settled: bool = False
    """Zero was decided by a protocol of the policy's own, which the limits' is not to be asked about."""
    observed: Mapping[str, float] = msgspec.field(default_factory=dict)
    """The figures it went by, for the decision record."""


class Policy(Protocol):
    @property
    def activation_scale(self) -> int:
        """Replicas to start at once when a request wakes the revision, at least 1."""
        ...

    @property
    def retention_s(self) -> float:
        """How much longer than ``scale-to-zero-after`` the last replica stays."""
        ...

    def decide(self, observation: Observation, now: float) -> Recommendation:
        """The wish at ``now``; called about once a second."""
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
    """What a function asks of it that may come to nothing, in words for who deploys it."""
