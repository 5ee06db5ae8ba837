"""The schedule of probes of a starting model server, its liveness probe, and the answers to Knative's probes.

Every request of a cold start waits for readiness, so the probes are frequent: every 10 ms at first. They become rarer
in a long start, since its duration outweighs the delay.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tidegate.records.replica_state import ReplicaState

if TYPE_CHECKING:
    from tidegate.aio.proxy.exchange import Exchange

FAST_S, FAST_UNTIL_S = 0.010, 10.0
MEDIUM_S, MEDIUM_UNTIL_S = 0.025, 60.0
SLOW_S = 0.050
ATTEMPT_TIMEOUT_S = 2.0
"""Time limit of one attempt. A server that accepts while it loads answers as soon as it can, so an attempt waits for
it."""
DEATH_ATTEMPTS = 3
"""Consecutive refused connections, each after a pause, that mean that a ready server has died."""
DEATH_PAUSE_S = 0.010


class StartProbe:
    """The probe schedule of one start. Times in seconds on one monotonic clock."""

    __slots__ = ("_give_up_at", "_started", "attempts", "last_failure")

    def __init__(self, started: float, timeout_s: float) -> None:
        self._started = started
        self._give_up_at = started + timeout_s
        self.attempts = 0
        self.last_failure = "not asked yet"

    def failed(self, now: float, why: str) -> float | None:
        """Records a failed attempt. Returns the pause before the next one, or None if the start has failed.

        The start timeout may cut the last attempt short, so the reason of the one before it counts.
        """
        self.attempts += 1
        is_last = now >= self._give_up_at
        if not is_last or self.attempts == 1:
            self.last_failure = why
        if is_last:
            return None
        age = now - self._started
        pause = FAST_S if age < FAST_UNTIL_S else MEDIUM_S if age < MEDIUM_UNTIL_S else SLOW_S
        return min(pause, self._give_up_at - now)

    def attempt_timeout(self, now: float) -> float:
        """Returns the time limit of the next attempt: never past the start timeout, but at least one fast pause."""
        return max(FAST_S, min(ATTEMPT_TIMEOUT_S, self._give_up_at - now))

    def message(self) -> str:
        """Returns the reason of a failed start, for people."""
        seconds = self._give_up_at - self._started
        return f"not ready within {seconds:g} s ({self.attempts} attempts; last: {self.last_failure})"


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessProbe:
    """The probe of a ready model server, as Kubernetes has it. Times in seconds."""

    path: str | None
    """A GET of this path answers 2xx or 3xx. None: a connection is accepted."""
    period_s: float = 10.0
    timeout_s: float = 1.0
    failures: int = 3
    """Failures in a row after which the server is given up."""


class LivenessCount:
    """The failures of one liveness probe in a row."""

    __slots__ = ("_probe", "failed")

    def __init__(self, probe: LivenessProbe) -> None:
        self._probe = probe
        self.failed = 0

    def probed(self, why: str | None) -> str | None:
        """Takes the result of an attempt, None if it passed. Returns the reason to give the server up, else None."""
        self.failed = 0 if why is None else self.failed + 1
        if self.failed < self._probe.failures:
            return None
        times = "once" if self.failed == 1 else f"{self.failed} times in a row"
        return f"its liveness probe ({self._probe.path or 'a connection'}) failed {times}; last: {why}"


def liveness_answer(status: int) -> str | None:
    """Returns None if the status means alive, else a description of it."""
    return None if 200 <= status < 400 else f"it answered {status}"


def readiness_answer(status: int) -> str | None:
    """Returns None if the status means ready, else a description of it."""
    return None if 200 <= status < 300 else f"readiness answered {status}"


class KnativeProbe(StrEnum):
    """Requests of Knative's own components that the proxy answers itself (queue-proxy: Drainer and health handler)."""

    QUEUE = "queue"
    """Asks whether the replica is ready: 200 ``queue``, else 503."""
    NETWORK = "network"
    """Checks the path: 200 and the hash echoed."""
    BAD = "bad"
    """A probe without its headers: 400."""
    NONE = "none"
    """Not a probe; it is sent to the model server."""


_PROBE_AGENTS = (b"kube-probe/", b"Knative-Activator-Probe", b"Knative-Autoscaling-Probe")


def knative_probe(user_agent: bytes | None, network_probe: bytes | None, network_hash: bytes | None) -> KnativeProbe:
    """Classifies a request by ``User-Agent``, ``K-Network-Probe`` and ``K-Network-Hash``."""
    if user_agent is not None and user_agent.startswith(_PROBE_AGENTS):
        return KnativeProbe.QUEUE if network_probe == b"queue" else KnativeProbe.BAD
    if network_probe == b"probe":
        return KnativeProbe.NETWORK if network_hash else KnativeProbe.BAD
    return KnativeProbe.NONE


def answer_probe(ex: "Exchange", state: ReplicaState) -> bool:
    """Answers probes of Knative's own components. They take no slot and are not counted. Returns False for other
    requests."""
    head = ex.head
    network, digest = head.get(b"k-network-probe"), head.get(b"k-network-hash")
    probe = knative_probe(head.get(b"user-agent"), network, digest)
    if probe is KnativeProbe.NONE:
        return False
    text = b"text/plain"
    if probe is KnativeProbe.BAD:
        ex.respond(400, b"unexpected probe header value", content_type=text)
    elif state in (ReplicaState.DRAINING, ReplicaState.DRAINED):
        ex.respond(503, b"shutting down", content_type=text)
    elif probe is KnativeProbe.NETWORK:
        ex.respond(200, b"probe", content_type=text, extra=b"k-network-hash: %b\r\n" % (digest or b""))
    elif state is ReplicaState.READY:
        ex.respond(200, b"queue", content_type=text)
    else:
        ex.respond(503, b"not ready", content_type=text)
    return True
