"""The protocol of a policy: an observation in, a recommendation with reasons out.

A policy is built for one revision, keeps what it needs between ticks, reads no clock and does no IO. The same sequence
of (observation, now) always gives the same sequence of recommendations. Bounds, scale to zero, capacity and the choice
of accelerators for a bare number are not its business (``tidegate.autoscaler.decisions.limits``,
``tidegate.autoscaler.decisions.groups``).

To add one: its file or folder in ``autoscaler/policies``, its row in ``registry.py``, its tests.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

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
    starts_ahead: bool = False
    """True if the number also counts at zero, ahead of any request. Else a revision at zero waits for its first one."""
    cores: int | msgspec.UnsetType = msgspec.UNSET
    """Cores that each ready replica is to have; unset from policies that leave cores alone."""
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
    scales_cores: bool = False
    """Whether the policy orders cores; those of the replicas are observed for such policies only."""
    is_by_size: bool = False
    """Whether the policy reads arrivals and service times by batch size; they are collected for such policies only."""
    memory: Callable[[Any], object | None] = field(default=lambda policy: None)
    """Returns what a policy has learnt and a restart, or a redeploy of the same model, should not lose: an object of a
    class in ``keeps``. None if there is nothing."""
    resume: Callable[[Any, Any, float], None] = field(default=lambda policy, memory, away_s: None)
    """Gives a new policy such a memory, ``away_s`` seconds after it was taken."""
    forget: Callable[[Any], None] = field(default=lambda policy: None)
    """Drops what :attr:`memory` returns; the policy goes on from what it holds at the moment."""
    retarget: Callable[[Any, Function], None] = field(default=lambda policy, function: None)
    """Goes on with the same function under another SLA: the budget of a stage has changed."""
    load: Callable[[Any], tuple[float, float] | None] = field(default=lambda policy: None)
    """Returns (mean arrivals per second of the last day, inferences of a request); None if the policy does not know."""
    late_price_s: Callable[[Any], float] = field(default=lambda policy: 0.0)
    """Returns what a late request is worth, in seconds of one replica; 0 if the policy has no such price."""
    words: Callable[[Any], tuple[str, ...]] = field(default=lambda policy: ())
    """Returns what a policy has learnt, for people."""
    warnings: Callable[[Function], tuple[str, ...]] = field(default=lambda function: ())
    """Returns the function's settings that may have no effect, in words for the operator."""
