"""The Lease of a namespace as plain objects: who leads the control processes of a deployment, and by which epoch.

``leaseTransitions`` is the epoch: it grows with every new leader and never falls, so that each writing of a leader can
be compared with those of the next one. Times of other machines are not compared with ours: a Lease has run out when it
has not changed for as long as it lasts, by the clock of the process that watches it.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tidegate.deploy.kubernetes.pods.template import LABEL, MANAGED_BY, label

Object = dict[str, Any]

NAME: Final = "tidegate"
"""Of the one Lease of a namespace."""
_DEPLOYMENT: Final = f"{LABEL}deployment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A control process that wants to lead."""

    identity: str
    """The same for every process over one state directory, which one process at a time has locked."""
    deployment: str
    lasts_s: int = 15
    """Time without a renewal after which another one leads. Not less than 3."""

    @property
    def stops_s(self) -> float:
        """Time without a renewal after which a leader writes nothing any more: what it has sent has arrived by the
        time at which another one may lead."""
        return self.lasts_s * 2 / 3

    @property
    def renews_s(self) -> float:
        """Interval of renewals, and of looks at the Lease of another one."""
        return self.lasts_s * 2 / 15


class Verdict(StrEnum):
    """What a candidate does about a Lease."""

    TAKE = "take"
    WAIT = "wait"


def judge(lease: Object | None, me: Candidate, unchanged_s: float) -> Verdict:
    """Returns whether a candidate may take the Lease, which has been seen unchanged for ``unchanged_s``."""
    if lease is None or holder_of(lease) in ("", me.identity):
        return Verdict.TAKE
    # Never sooner than this deployment's own time: others may have edited the Lease.
    lasts_s = max(me.lasts_s, lease["spec"].get("leaseDurationSeconds") or 0)
    return Verdict.TAKE if unchanged_s >= lasts_s else Verdict.WAIT


def holder_of(lease: Object) -> str:
    """Returns the identity of the leader; empty if it has given the Lease back."""
    return str(lease.get("spec", {}).get("holderIdentity") or "")


def deployment_of(lease: Object) -> str:
    """Returns the deployment of the leader, as a label has it."""
    return str(lease["metadata"].get("labels", {}).get(_DEPLOYMENT, ""))


def epoch_of(lease: Object | None) -> int:
    """Returns the epoch of the last leader; 0 if there was none."""
    return 0 if lease is None else int(lease.get("spec", {}).get("leaseTransitions") or 0)


def taken(lease: Object | None, me: Candidate, epoch: int, now: str) -> Object:
    """Returns the Lease as a new leader writes it. ``now``: RFC 3339 with microseconds."""
    meta: Object = {"name": NAME, "labels": {MANAGED_BY: "tidegate", _DEPLOYMENT: label(me.deployment)}}
    if lease is not None:
        meta["resourceVersion"] = lease["metadata"]["resourceVersion"]
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": meta,
        "spec": {
            "holderIdentity": me.identity,
            "leaseDurationSeconds": me.lasts_s,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": epoch,
        },
    }


def renewed(lease: Object, me: Candidate, now: str) -> Object:
    """Returns a Lease that its leader renews, with the leader's own duration."""
    return lease | {"spec": lease["spec"] | {"renewTime": now, "leaseDurationSeconds": me.lasts_s}}


def released(lease: Object, now: str) -> Object:
    """Returns a Lease that its leader gives back: another one may take it at once."""
    return lease | {"spec": lease["spec"] | {"holderIdentity": "", "renewTime": now}}
