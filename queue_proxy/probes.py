"""When to probe a starting model server, when to give up, and which calls of Knative's are probes of ours.

Readiness is waited for by every request of a cold start, so the server is asked often: every 10 ms at first. A
server that takes long is asked less often, because its start costs more than our delay.
"""

from enum import StrEnum

FAST_S, FAST_UNTIL_S = 0.010, 10.0
MEDIUM_S, MEDIUM_UNTIL_S = 0.025, 60.0
SLOW_S = 0.050
ATTEMPT_TIMEOUT_S = 2.0
"""One attempt: a server that accepts but is busy loading answers the moment it can, so an attempt waits for it."""
DEATH_ATTEMPTS = 3
"""After ready: refused connections in a row, each after a pause, that mean the server is dead."""
DEATH_PAUSE_S = 0.010


class StartProbe:
    """The schedule of probing one start. Times in seconds on one monotonic clock."""

    __slots__ = ("_give_up_at", "_started", "attempts", "last_failure")

    def __init__(self, started: float, timeout_s: float) -> None:
        self._started = started
        self._give_up_at = started + timeout_s
        self.attempts = 0
        self.last_failure = "not asked yet"

    def failed(self, now: float, why: str) -> float | None:
        """One attempt failed: how long to wait before the next; None: the start has failed."""
        self.attempts += 1
        self.last_failure = why
        if now >= self._give_up_at:
            return None
        age = now - self._started
        pause = FAST_S if age < FAST_UNTIL_S else MEDIUM_S if age < MEDIUM_UNTIL_S else SLOW_S
        return min(pause, self._give_up_at - now)

    def attempt_timeout(self, now: float) -> float:
        """How long the next attempt may take: never past the start timeout, but at least one fast pause."""
        return max(FAST_S, min(ATTEMPT_TIMEOUT_S, self._give_up_at - now))

    def message(self) -> str:
        """Why the start failed, for people."""
        seconds = self._give_up_at - self._started
        return f"not ready within {seconds:g} s ({self.attempts} attempts; last: {self.last_failure})"


def readiness_answer(status: int) -> str | None:
    """None when a readiness answer means ready, else what it was."""
    return None if 200 <= status < 300 else f"readiness answered {status}"


class KnativeProbe(StrEnum):
    """Requests of Knative's own components that the proxy answers itself (queue-proxy: Drainer and health handler)."""

    QUEUE = "queue"
    """Is the replica ready? 200 ``queue``, else 503."""
    NETWORK = "network"
    """Does the path work? 200 and the hash echoed."""
    BAD = "bad"
    """A probe that lacks its headers: 400."""
    NONE = "none"
    """Not a probe: to the model server."""


_PROBE_AGENTS = (b"kube-probe/", b"Knative-Activator-Probe", b"Knative-Autoscaling-Probe")


def knative_probe(user_agent: bytes | None, network_probe: bytes | None, network_hash: bytes | None) -> KnativeProbe:
    """Classifies by ``User-Agent``, ``K-Network-Probe`` and ``K-Network-Hash``."""
    if user_agent is not None and user_agent.startswith(_PROBE_AGENTS):
        return KnativeProbe.QUEUE if network_probe == b"queue" else KnativeProbe.BAD
    if network_probe == b"probe":
        return KnativeProbe.NETWORK if network_hash else KnativeProbe.BAD
    return KnativeProbe.NONE
