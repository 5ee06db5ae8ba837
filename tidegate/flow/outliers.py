"""Outliers: replicas that fail where others do not, and revisions of which every replica fails.

A replica that fails ``failures`` times in a row is *ejected*: it gets no work for ``ejection_s``, twice as long each
time that this happens again soon, at most ten times as long. When the time is over it is probed (the host's work) until
a probe succeeds; then it serves again, and the first request decides: one more failure ejects it again. At most
``max_percent`` of a revision's replicas are out at once, and never the last one that serves; when those that were left
go, the others are probed at once::

    SERVING ──failures in a row──> EJECTED ──time over──> PROBED ──ok──> ON TRIAL ──answered──> SERVING
                                      ^                     │ failed        │
                                      └─────────────────────┴───────────────┘ failed

When every replica that still serves fails, none can be ejected: the revision's *circuit* opens. One request a second
is let through to see; all others are refused at once, untouched, until one is answered.

A replica that *hangs* is ejected in the same way, within the same bounds. A server that is stopped or deadlocked keeps
its connections open and answers nothing, so nothing fails before deadlines pass. Behind a limit its slots fill and late
binding sends it no more; without a limit it keeps its share of the traffic. So :class:`Stalls` names the replicas
without a limit that have had work for ``STALL_S`` and ended no request meanwhile; the host probes them. A replica with
long requests looks alike: it passes the probe, and is probed again ``STALL_S`` later.

Failures of requests that were under way together are one failure: a replica that dies with forty requests did not
fail forty times in a row.

Pure: ``now`` in seconds of one clock.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final

from tidegate.records.route_table import OutlierRules

MAX_FACTOR: Final = 10.0
"""An ejection lasts at most this many times the first one. After this many times ``ejection_s`` without an ejection the
next one is a first one."""
PROBE_AGAIN_S: Final = 1.0
"""Between two probes of one replica."""
TRIAL_S: Final = 1.0
"""While the circuit is open one request is let through per this time. Our choice."""


STALL_S: Final = 2.0
"""Our choice: with the probe's own limit a replica that hangs is found in about four seconds."""


class _Stage(Enum):
    SERVING = "serving"
    EJECTED = "ejected"
    PROBED = "probed"


class _Suspect:
    """A replica that failed lately."""

    __slots__ = ("factor", "failed_at", "replica", "returned_at", "revision", "rules", "stage", "streak", "until")

    def __init__(self, replica: str, revision: str, rules: OutlierRules) -> None:
        self.replica = replica
        self.revision = revision
        self.rules = rules
        self.stage = _Stage.SERVING
        self.streak = 0
        self.failed_at = float("-inf")
        self.until = 0.0
        """While it is ejected: when it is probed next."""
        self.factor = 1.0
        """Ratio of its last ejection to a first ejection."""
        self.returned_at = float("-inf")

    @property
    def is_failing(self) -> bool:
        return self.streak >= self.rules.failures

    def __repr__(self) -> str:
        return f"<{self.replica} {self.stage.value}, {self.streak} failures in a row>"


class Outliers:
    """One gateway worker's verdicts on the replicas it uses."""

    __slots__ = ("ejections", "open_circuits", "suspects")

    def __init__(self) -> None:
        self.suspects: dict[str, _Suspect] = {}
        """Replicas that failed lately; while it is empty nothing has to be noted. This object is never replaced, nor is
        the next one."""
        self.open_circuits: dict[str, float] = {}
        """Revisions with an open circuit, and when the next request is let through."""
        self.ejections: dict[str, int] = {}
        """Number of ejections of a revision's replicas."""

    def failed(
        self, replica: str, revision: str, rules: OutlierRules, begun: float, now: float, ready: int
    ) -> float | None:
        """Notes that a request that was sent to the replica at ``begun`` failed there. ``ready``: replicas that serve
        now.

        Returns until when the replica is ejected, or None.
        """
        if not rules.failures:
            return None
        suspect = self.suspects.get(replica)
        if suspect is None:
            suspect = self.suspects[replica] = _Suspect(replica, revision, rules)
        suspect.rules = rules
        if suspect.stage is not _Stage.SERVING or begun < suspect.failed_at:
            return None
        suspect.failed_at = now
        suspect.streak += 1
        if not suspect.is_failing:
            return None
        if self._may_eject(suspect, ready):
            return self._eject(suspect, now)
        self._judge(revision, ready, now)
        return None

    def hangs(self, replica: str, revision: str, rules: OutlierRules, now: float, ready: int) -> float | None:
        """Notes that a replica has ended none of its work for a while, and failed a probe. ``ready``: replicas that
        serve now.

        Returns until when the replica is ejected, or None.
        """
        suspect = self.suspects.get(replica) or _Suspect(replica, revision, rules)
        if not rules.failures or self.is_out(replica) or not self._may_eject(suspect, ready):
            return None
        suspect.rules, suspect.streak, suspect.failed_at = rules, rules.failures, now
        self.suspects[replica] = suspect
        return self._eject(suspect, now)

    def succeeded(self, replica: str, now: float) -> None:
        """Notes that a request was answered completely by it."""
        suspect = self.suspects.get(replica)
        if suspect is None or suspect.stage is not _Stage.SERVING:
            return
        suspect.streak = 0
        self.open_circuits.pop(suspect.revision, None)
        if now >= suspect.returned_at + MAX_FACTOR * suspect.rules.ejection_s:
            del self.suspects[replica]

    def reduced(self) -> set[str]:
        """Returns the revisions with ejected replicas."""
        return {suspect.revision for suspect in self.suspects.values() if suspect.stage is _Stage.EJECTED}

    def hasten(self, revision: str, now: float) -> None:
        """Makes the ejected replicas of a revision due for a probe now, unless a probe failed just before: no replica
        of it serves any more."""
        for suspect in self.suspects.values():
            if suspect.revision == revision and suspect.until > now + PROBE_AGAIN_S:
                suspect.until = now

    def due(self, now: float) -> list[str]:
        """Returns the ejected replicas that have to be probed now; ``probed`` follows for each."""
        found = [
            suspect for suspect in self.suspects.values() if suspect.stage is _Stage.EJECTED and suspect.until <= now
        ]
        for suspect in found:
            suspect.stage = _Stage.PROBED
        return [suspect.replica for suspect in found]

    def probed(self, replica: str, ok: bool, now: float) -> float | None:
        """Notes the result of a probe; returns until when the replica stays ejected, or None if it serves again (or is
        gone).

        A probe that was sent before the replica was ejected again has no effect.
        """
        suspect = self.suspects.get(replica)
        if suspect is None or suspect.stage is _Stage.SERVING:
            return None
        if suspect.stage is _Stage.EJECTED:
            return suspect.until
        if ok:
            suspect.stage = _Stage.SERVING
            suspect.streak = max(0, suspect.rules.failures - 1)
            suspect.returned_at = suspect.failed_at = now
            return None
        suspect.stage = _Stage.EJECTED
        suspect.until = now + PROBE_AGAIN_S
        return suspect.until

    def refuses(self, revision: str, now: float) -> bool:
        """Returns whether a new request is refused because everything fails; one in ``TRIAL_S`` is not."""
        trial_at = self.open_circuits.get(revision)
        if trial_at is None:
            return False
        if now < trial_at:
            return True
        self.open_circuits[revision] = now + TRIAL_S
        return False

    def changed(self, replica: str, revision: str) -> None:
        """Forgets a replica that became ready or stopped to be: its earlier failures mean nothing any more."""
        self.suspects.pop(replica, None)
        self.open_circuits.pop(revision, None)

    def keep(self, replicas: frozenset[str], revisions: frozenset[str]) -> None:
        """Forgets all others."""
        for name in self.suspects.keys() - replicas:
            self.open_circuits.pop(self.suspects.pop(name).revision, None)
        for known in (self.open_circuits, self.ejections):
            for name in known.keys() - revisions:
                del known[name]

    def is_out(self, replica: str) -> bool:
        """Returns whether it is ejected."""
        suspect = self.suspects.get(replica)
        return suspect is not None and suspect.stage is not _Stage.SERVING

    def ejected(self, revision: str) -> int:
        """Returns the number of its replicas that are ejected now."""
        return sum(
            suspect.revision == revision and suspect.stage is not _Stage.SERVING for suspect in self.suspects.values()
        )

    def _may_eject(self, suspect: _Suspect, ready: int) -> bool:
        out = self.ejected(suspect.revision)
        return ready > 1 and (out + 1) * 100 <= suspect.rules.max_percent * (ready + out)

    def _eject(self, suspect: _Suspect, now: float) -> float:
        rules = suspect.rules
        again = now < suspect.returned_at + MAX_FACTOR * rules.ejection_s
        suspect.factor = min(2.0 * suspect.factor, MAX_FACTOR) if again else 1.0
        suspect.stage = _Stage.EJECTED
        suspect.until = now + rules.ejection_s * suspect.factor
        self.ejections[suspect.revision] = self.ejections.get(suspect.revision, 0) + 1
        return suspect.until

    def _judge(self, revision: str, ready: int, now: float) -> None:
        """Opens the circuit if every replica that serves fails."""
        failing = sum(
            suspect.revision == revision and suspect.stage is _Stage.SERVING and suspect.is_failing
            for suspect in self.suspects.values()
        )
        if failing >= ready > 0:  # Without a replica that serves, requests wait for one.
            self.open_circuits[revision] = now + TRIAL_S

    def __repr__(self) -> str:
        return f"<Outliers {list(self.suspects.values())}, {len(self.open_circuits)} circuits open>"


class Stalls:
    """Finds replicas that end none of their work."""

    __slots__ = ("_quiet",)

    def __init__(self) -> None:
        self._quiet: dict[str, tuple[float, float]] = {}
        """By replica: when its last request ended, and since when nothing has ended, or the last probe was due."""

    def look(self, now: float, working: Iterable[tuple[str, float]]) -> list[str]:
        """Returns the replicas that have to be probed now. ``working``: all that have work, and when a request there
        ended last."""
        suspected, quiet = [], {}
        for replica, ended_at in working:
            known = self._quiet.get(replica)
            since = known[1] if known is not None and known[0] == ended_at else now
            if now - since >= STALL_S:
                suspected.append(replica)
                since = now
            quiet[replica] = ended_at, since
        self._quiet = quiet
        return suspected

    def __repr__(self) -> str:
        return f"<Stalls {len(self._quiet)} replicas with work>"
