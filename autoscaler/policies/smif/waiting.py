"""How long requests are expected to wait for a slot: Erlang's formula, scaled by the spread of the service times."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from tidegate.autoscaler.measure.observation import GroupObservation

MAX_SERVERS = 500
"""Beyond this many servers Erlang's formula changes little."""


@lru_cache(maxsize=4096)
def erlang_c(servers: int, utilization: float) -> float:
    """Returns the probability that a request must wait, by Erlang's formula, for ``servers`` slots used at
    ``utilization`` < 1."""
    servers = min(servers, MAX_SERVERS)
    offered, blocked = servers * utilization, 1.0
    for count in range(1, servers + 1):
        blocked = offered * blocked / (count + offered * blocked)
    return blocked / (1.0 - utilization * (1.0 - blocked))


def waiting_s(servers: int, utilization: float, service_s: float, spread: float, q: float) -> float:
    """Returns the q-quantile of the time a request waits for one of ``servers`` slots (M/M/c, scaled by the spread of
    the service times as for a single queue; ``spread``: squared coefficient of variation)."""
    if utilization >= 1.0:
        return math.inf
    must_wait = erlang_c(servers, utilization)
    if must_wait <= 1.0 - q:
        return 0.0
    return math.log(must_wait / (1.0 - q)) * service_s / (servers * (1.0 - utilization)) * (1.0 + spread) / 2.0


def spread_of(mean_s: float, tail_s: float) -> float:
    """Returns the squared coefficient of variation, read from how far the 98th percentile lies above the mean: 0 for
    equal service times, 1 for exponential ones (3.9 means); never above."""
    return min(1.0, max(0.0, (tail_s / mean_s - 1.0) / 2.9) ** 2) if mean_s > 0.0 else 0.0


class WaitingFacts(Protocol):
    """The facts of one group that its waiting follows from."""

    @property
    def group(self) -> GroupObservation: ...
    @property
    def mu_ips(self) -> float:
        """Service rate of one replica, above 0."""
        ...

    @property
    def replicas(self) -> int:
        """Ready and starting ones."""
        ...

    @property
    def execution_s(self) -> float | None:
        """Execution time of a request that has a replica for itself."""
        ...

    @property
    def is_stream(self) -> bool: ...


def alone_s(facts: WaitingFacts) -> float:
    """Returns the tail of a request that has the replica for itself, as far as it is known."""
    execution_s = facts.execution_s or 0.0
    if facts.group.limit != 1 or facts.is_stream:
        return execution_s
    return max(execution_s, facts.group.tail_s or 0.0)


def waits_too_long(groups: Sequence[WaitingFacts], load_ips: float, slo_s: float, q: float) -> bool:
    """Returns whether the existing replicas are expected to miss the target by waiting, in every group.

    By Little's law a replica works on rate times execution time at once, whatever its slots are. False where an
    execution time is not known, or alone leaves no time to wait.
    """
    used = [each for each in groups if each.replicas]
    able: list[tuple[float, float]] = []
    servers = 0.0
    for each in used:
        execution_s, tail_s = each.execution_s, alone_s(each)
        if each.is_stream or not execution_s:
            return False
        servers += each.replicas * max(1.0, each.mu_ips * execution_s / (each.group.mean_batch or 1.0))
        if tail_s < slo_s:
            able.append((execution_s, tail_s))
    if not able:
        return False
    utilization = load_ips / sum(each.mu_ips * each.replicas for each in used)
    for execution_s, tail_s in able:
        expected_s = waiting_s(int(servers), utilization, execution_s, spread_of(execution_s, tail_s), q)
        if expected_s <= slo_s - tail_s:
            return False
    return True
