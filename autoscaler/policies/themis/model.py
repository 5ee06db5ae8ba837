"""What a stage of a pipeline costs: latency, throughput and waiting for a batch, by batch size and cores.

Razavi, Salmani et al., "A Tale of Two Scales" (Themis), section 4 and Eq. 1 to 4. Latencies are in milliseconds, rates
in requests per second. ``b`` is the batch size, ``c`` the cores of an instance, ``n`` the instances of a stage.

Worked example (a detector, gamma 148.8, epsilon 5.4, delta 37.5, eta -15.5): one request on one core takes 176 ms, so
an instance carries 5.7 requests/s; a batch of 8 on 8 cores takes 434 ms, so it carries 18.4.
"""

import math
from dataclasses import dataclass

from tidegate.errors import Fault, InvalidInputError
from tidegate.manifest.policy_parameters import QueueModel

TIE = 1e-9
"""A computed figure within this of its limit counts as equal to it."""
LEAST_MS = 1.0
"""Latency in place of a fitted one that is not positive (our choice)."""
P99 = math.log(100.0)
"""The 99th percentile of an exponential gap, in mean gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProfile:
    """The fitted latency of one stage: ``gamma*b/c + epsilon/c + delta*b + eta`` in milliseconds (Eq. 1)."""

    gamma: float
    epsilon: float
    delta: float
    eta: float
    b_max: int | None = None
    """Largest batch of the stage, where it is smaller than that of the others; None: the problem's."""

    def fitted_ms(self, b: int, c: int) -> float:
        """Returns the fitted latency of a batch of ``b`` on ``c`` cores, whatever its sign."""
        return self.gamma * b / c + self.epsilon / c + self.delta * b + self.eta

    def latency_ms(self, b: int, c: int) -> float:
        """Returns the latency; 1 ms where the fit is not positive."""
        fitted = self.fitted_ms(b, c)
        return fitted if fitted > 0.0 else LEAST_MS

    def throughput_rps(self, b: int, c: int) -> float:
        """Returns the requests per second of one instance that is never idle (Eq. 2)."""
        return 1000.0 * b / self.latency_ms(b, c)

    def is_doubtful(self, b_max: int, c_max: int) -> bool:
        """Returns whether the fit is not positive anywhere in the range, so that 1 ms stands in for it."""
        return any(self.fitted_ms(b, c) <= 0.0 for b in range(1, b_max + 1) for c in range(1, c_max + 1))


def queue_ms(b: int, lambda_rps: float, model: QueueModel = QueueModel.MEAN) -> float:
    """Returns the time for which the first request of a batch waits for the last one (Eq. 4). A batch of one never
    waits; a larger one waits for ever if nothing arrives."""
    if b <= 1:
        return 0.0
    if lambda_rps <= 0.0:
        return math.inf
    gaps_ms = 1000.0 * (b - 1) / lambda_rps
    return gaps_ms * P99 if model is QueueModel.P99 else gaps_ms


def full_queue_ms(b: int, n: int, latency_ms: float, lambda_rps: float) -> float:
    """Returns the wait if all instances may be busy as well (Eq. 3)."""
    if lambda_rps <= 0.0:
        return queue_ms(b, lambda_rps)
    return max(queue_ms(b, lambda_rps), latency_ms - 1000.0 * (n * b + 1) / lambda_rps)


def ceil(value: float) -> int:
    """Returns the next integer; a value within 1e-9 above one is that one."""
    return math.ceil(value - TIE)


@dataclass(frozen=True, slots=True)
class Speedups:
    """What ``r`` cores bring by Amdahl's law, in throughputs of one core (section 5.1)."""

    one_instance: float
    """One instance with ``r`` cores."""
    one_core_instances: float
    """``r`` instances with one core each."""
    even_split: float
    """``2r`` cores over two instances evenly."""
    uneven_split: float
    """The same cores, one on one instance and the rest on the other."""


def speedup(p: float, r: float) -> float:
    """Returns the speed-up of ``r`` cores where the share ``p`` of the work is parallel."""
    return 1.0 / ((1.0 - p) + p / r)


def speedups(p: float, r: int) -> Speedups:
    """Returns what ``r`` cores bring where the share ``p`` (0 to 1) of the work is parallel. Raises
    InvalidInputError."""
    faults = []
    if not 0.0 <= p <= 1.0:
        faults.append(Fault("p", repr(p), "a number from 0 to 1"))
    if r < 1:
        faults.append(Fault("r", repr(r), "an integer from 1"))
    if faults:
        raise InvalidInputError("speed-up", faults)
    return Speedups(speedup(p, r), float(r), 2.0 * speedup(p, r), 1.0 + speedup(p, 2 * r - 1))
