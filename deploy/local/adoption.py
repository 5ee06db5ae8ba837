"""Which of the processes found alive are whole replicas of known revisions. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidegate.deploy.local.records import ProcessKind, ProcessRecord, ReplicaDetails
from tidegate.function import Revision


@dataclass(frozen=True, slots=True)
class Pair:
    """Both processes of one replica, alive and recorded."""

    details: ReplicaDetails
    proxy: ProcessRecord
    server: ProcessRecord


@dataclass(frozen=True, slots=True)
class Adoption:
    pairs: tuple[Pair, ...]
    """In order of creation."""
    ends: tuple[ProcessRecord, ...]
    """Halves, stopping ones, and those of revisions that nobody knows any more."""


def pair_up(living: Iterable[ProcessRecord], revisions: Mapping[str, Revision]) -> Adoption:
    """Sorts the living processes of replicas; other kinds (gateways) are left out."""
    halves: dict[str, dict[ProcessKind, ProcessRecord]] = {}
    for record in living:
        if record.replica is not None:
            halves.setdefault(record.replica.id, {})[record.kind] = record
    pairs: list[Pair] = []
    ends: list[ProcessRecord] = []
    for found in halves.values():
        proxy, server = found.get(ProcessKind.QUEUE_PROXY), found.get(ProcessKind.MODEL_SERVER)
        if proxy is not None and server is not None and proxy.replica is not None:
            known = proxy.replica.revision in revisions
            if known and not (proxy.stopping or server.stopping):
                pairs.append(Pair(proxy.replica, proxy, server))
                continue
        ends += found.values()
    pairs.sort(key=lambda pair: (pair.details.created_at, pair.details.id))
    return Adoption(tuple(pairs), tuple(ends))
