"""HetSev's integer program, solved exactly by HiGHS: the cheapest change of instances that carries the load.

Minimise ``sum C_i (X_i + w O_i max(X_i, 0))`` over integers ``X_i``, the change of each type, so that

1. ``sum T_i (N_i + X_i)`` is at least the arrivals,
2. ``sum R_i (N_i + X_i)`` is at most the total, for each resource,
3. ``N_i + X_i >= 0``,
4. ``X_i <= 0`` where the latency of the type misses the SLO. What runs already may stay, and counts in 1.

``X = P - M`` makes it linear: a launch costs ``C (1 + w O)``, a removal gives ``C`` back. The objective is the change
of the cost and negative where the program only removes. "For all i" in the paper's (1) and (2) are read as single sums,
and its residual resources as the residual plus what the service uses itself.

scipy is imported when the first program is solved: it takes half a second, and no other policy needs it.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate.autoscaler.policies.hetsev.instances import TIE, InstanceType, ceil

TIME_LIMIT_S: Final = 1.0
"""Time after which the best solution so far counts. Ten types take some milliseconds."""


@dataclass(frozen=True, slots=True)
class Program:
    """The solution of one program."""

    change: tuple[int, ...] | None
    """By type: > 0 to launch, < 0 to remove. None if no change carries the load with these resources."""
    objective: float | None
    """Change of the cost, launches weighed in; None as above."""
    is_proved: bool = True
    """False if the time limit came before the proof that nothing is cheaper."""


def is_available() -> bool:
    """Returns whether the solver is installed."""
    return importlib.util.find_spec("scipy") is not None


def solve(
    types: Sequence[InstanceType], arrivals_ips: float, slo_s: float, weight: float, total: Mapping[str, float]
) -> Program:
    """Returns the cheapest change. ``weight``: of unpredictability, per second. ``total``: amount of each resource,
    that of the running instances included; one that is missing has none. Raises ArithmeticError if the solver gives an
    answer that does not hold."""
    if not types:
        return Program((), 0.0) if arrivals_ips <= TIE else Program(None, None)
    from scipy.optimize import Bounds, LinearConstraint, milp

    count = len(types)
    throughput = [each.throughput_ips or 0.0 for each in types]
    running = [each.running for each in types]
    most = [
        float(max(0, ceil(arrivals_ips / throughput[index]))) if each.may_launch(slo_s) else 0.0
        for index, each in enumerate(types)
    ]
    # Of one type never more are launched than carry everything: a bound that keeps the search short.
    launch_costs, costs = [each.launch_cost(weight) for each in types], [each.cost for each in types]
    scale = 1000.0 / max(1e-12, *map(abs, launch_costs), *map(abs, costs))
    rows = [throughput + [-each for each in throughput]]
    needed = arrivals_ips - sum(each * number for each, number in zip(throughput, running, strict=True))
    low, high = [needed - TIE], [float("inf")]
    for name in sorted({name for each in types for name in each.needs}):
        needs = [each.needs.get(name, 0.0) for each in types]
        used = sum(each * number for each, number in zip(needs, running, strict=True))
        rows.append(needs + [-each for each in needs])
        low.append(float("-inf"))
        high.append(total.get(name, 0.0) - used + TIE)
    found = milp(
        [scale * each for each in launch_costs] + [-scale * each for each in costs],
        integrality=[1] * (2 * count),
        bounds=Bounds([0.0] * (2 * count), most + [float(number) for number in running]),
        constraints=LinearConstraint(rows, low, high),
        options={"mip_rel_gap": 0.0, "time_limit": TIME_LIMIT_S},
    )
    if found.x is None:
        if found.status == 2:
            return Program(None, None)
        raise ArithmeticError(f"HiGHS found no solution: {found.message}")
    change = tuple(round(found.x[index]) - round(found.x[count + index]) for index in range(count))
    if not is_feasible(change, types, arrivals_ips, slo_s, total):
        raise ArithmeticError(f"HiGHS gave {change}, which does not hold")
    return Program(change, objective(change, types, weight), found.status == 0)


def objective(change: Sequence[int], types: Sequence[InstanceType], weight: float) -> float:
    """Returns the change of the cost, launches weighed in."""
    return sum(
        each.cost * number + each.cost * weight * each.launch_s * max(number, 0)
        for number, each in zip(change, types, strict=True)
    )


def is_feasible(
    change: Sequence[int],
    types: Sequence[InstanceType],
    arrivals_ips: float,
    slo_s: float,
    total: Mapping[str, float],
) -> bool:
    """Returns whether a change keeps all four constraints; a figure within 1e-9 of its limit keeps it."""
    then = [each.running + number for number, each in zip(change, types, strict=True)]
    carried = sum((each.throughput_ips or 0.0) * number for number, each in zip(then, types, strict=True))
    if carried < arrivals_ips - TIE or min(then, default=0) < 0:
        return False
    if any(number > 0 and not each.may_launch(slo_s) for number, each in zip(change, types, strict=True)):
        return False
    return all(
        sum(each.needs.get(name, 0.0) * number for number, each in zip(then, types, strict=True))
        <= total.get(name, 0.0) + TIE
        for name in {name for each in types for name in each.needs}
    )
