"""Builds the route table of the gateways from functions, revisions, replicas and weights.

A pure function of the control round's state. The table lists starting and draining replicas too. Whether one can take
work is reported by its slot channel at the moment when it changes, and a want can revive a draining replica.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isinf
from typing import NamedTuple, Protocol

from tidegate.flow.dropping import age_limit
from tidegate.function import ConcurrencyUnit, Function, Revision, TaskClass
from tidegate.records.pipeline import PipelineRoute
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import FailureKind, FunctionRoute, GroupRoute, ReplicaRoute, RevisionRoute, RouteTable
from tidegate.records.tenants import KeySet, Tenant

GONE = frozenset({ReplicaState.STOPPED, ReplicaState.FAILED})
"""States in which a replica takes no requests. Replicas in all others are listed."""
MU_STEP = 0.1
"""Part by which a group's service rate must move before it is published again."""

SizeClass = tuple[int, int | None]
"""Fewest and most inferences of a request. None is no upper bound."""
ANY_SIZE: SizeClass = (1, None)


class ReplicaFacts(Protocol):
    """The properties of a replica that the table needs. The backend's status has them."""

    @property
    def id(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def accelerator(self) -> str: ...
    @property
    def state(self) -> ReplicaState: ...
    @property
    def address(self) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionShare:
    """One revision of a function and its part of the traffic."""

    revision: Revision
    percent: float = 100.0
    tags: tuple[str, ...] = ()
    shadow_percent: float = 0.0
    weights: Mapping[str, float] = field(default_factory=dict)
    """Fraction by accelerator (``tidegate.traffic.weights``). If empty, groups share by number of replicas."""
    mu_ips: Mapping[str, float] = field(default_factory=dict)
    """Learnt service rate of one replica by accelerator."""
    sizes: Mapping[str, SizeClass] = field(default_factory=dict)
    """Sizes that a group may serve, by accelerator. Groups that are not named serve all.

    Groups named here are listed even without replicas: gateways refuse requests that no group serves, and let the rest
    wait.
    """
    failure: str | None = None
    """Reason why it cannot be served now. It is returned to waiting requests."""
    failure_kind: FailureKind = FailureKind.START_FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFunction:
    """A function with the revisions that traffic may go to. The first revision defines the function's settings."""

    function: Function
    revisions: tuple[RevisionShare, ...] = ()


class TableBuilder:
    """Numbers the tables of one control process. The number rises only if the content changes."""

    __slots__ = ("_known", "_last", "_number", "domain", "epoch", "key_sets", "tenants", "workers")

    def __init__(self, epoch: int, workers: int, domain: str = "localhost", number: int = 0) -> None:
        self.epoch = epoch
        self.workers = workers
        self.domain = domain
        self.tenants: tuple[Tenant, ...] = ()
        self.key_sets: tuple[KeySet, ...] = ()
        self._number = number
        self._last: RouteTable | None = None
        self._known: dict[str, _KnownRoute] = {}
        """Routes by function, with the facts that they were made of: of most functions nothing changes in a second."""

    def build(
        self, functions: Sequence[ServedFunction], replicas: Iterable[ReplicaFacts], default: str | None = None
    ) -> RouteTable:
        """Returns the present table; the same object as before if nothing changed."""
        by_revision, known = _by_revision(replicas), self._known
        self._known = {}
        for served in sorted(functions, key=lambda served: served.function.name):
            name = served.function.name
            self._known[name] = _route(served, by_revision, known.get(name))
        routes = tuple(each.route for each in self._known.values())
        table = RouteTable(
            epoch=self.epoch,
            number=self._number,
            workers=self.workers,
            domain=self.domain,
            default=default,
            functions=routes,
            tenants=self.tenants,
            key_sets=self.key_sets,
        )
        if self._last is None or table != self._last:
            self._number += 1
            self._last = replace(table, number=self._number)
        return self._last

    def __repr__(self) -> str:
        return f"<TableBuilder epoch {self.epoch}, number {self._number}>"


_ByAccelerator = Mapping[str, list[ReplicaFacts]]


class _KnownRoute(NamedTuple):
    """A function's route, and what it was made of."""

    served: ServedFunction
    replicas: tuple[_ByAccelerator | None, ...]
    route: FunctionRoute


def _route(served: ServedFunction, by_revision: Mapping[str, _ByAccelerator], known: _KnownRoute | None) -> _KnownRoute:
    """Returns the route of a function; the same one as before if nothing that it is made of has changed."""
    here = tuple([by_revision.get(share.revision.id) for share in served.revisions])
    if known is not None and known.replicas == here and known.served == served:
        return known
    route = _function(served, by_revision)
    return _KnownRoute(served, here, route if known is None else _with_stable_rates(route, known.route))


def _by_revision(replicas: Iterable[ReplicaFacts]) -> Mapping[str, _ByAccelerator]:
    """Returns the replicas that may be routed to, by revision and accelerator."""
    by_revision: dict[str, dict[str, list[ReplicaFacts]]] = {}
    for status in replicas:
        if status.state not in GONE and status.address:
            by_revision.setdefault(status.revision, {}).setdefault(status.accelerator, []).append(status)
    return by_revision


def _with_stable_rates(fresh: FunctionRoute, published: FunctionRoute) -> FunctionRoute:
    """Returns ``fresh`` with the published service rates where they moved little. They are measured every second and
    would otherwise make every table a new one."""
    known = {
        (revision.id, group.accelerator): group.mu_ips for revision in published.revisions for group in revision.groups
    }

    def group_of(revision: str, group: GroupRoute) -> GroupRoute:
        before = known.get((revision, group.accelerator))
        if before is None or group.mu_ips is None or abs(group.mu_ips - before) > MU_STEP * before:
            return group
        return replace(group, mu_ips=before)

    def revision_of(route: RevisionRoute) -> RevisionRoute:
        return replace(route, groups=tuple(group_of(route.id, group) for group in route.groups))

    return replace(fresh, revisions=tuple(revision_of(revision) for revision in fresh.revisions))


def _function(served: ServedFunction, replicas: Mapping[str, Mapping[str, list[ReplicaFacts]]]) -> FunctionRoute:
    function, routing = served.function, served.function.routing
    return FunctionRoute(
        name=function.name,
        models=function.models or (function.name,),
        protocol=function.protocol.value,
        timeout_s=function.timeout_s,
        latency_s=function.sla.latency_s,
        queue_requests=function.queue.requests,
        queue_bytes=function.queue.bytes,
        max_wait_s=function.queue.max_wait_s,
        batch_header=function.batch_rule.header,
        bytes_per_item=function.batch_rule.bytes_per_item,
        overhead_bytes=function.batch_rule.overhead_bytes,
        max_batch=function.batch_rule.max_batch,
        idempotent=function.idempotent,
        request_buffering=function.request_buffering,
        spread=routing.spread,
        hash_on=routing.hash_on,
        queue_order=routing.queue_order,
        binding=routing.binding,
        priority=routing.priority,
        is_throughput_oriented=function.task_class is TaskClass.THROUGHPUT_ORIENTED,
        task_deadline_s=function.task_deadline_s or function.sla.latency_s,
        retry_percent=routing.retry_percent,
        hedging=routing.hedging,
        outlier=routing.outlier,
        probe_path=function.readiness.path,
        matches=routing.matches,
        cold=function.cold,
        access=function.access,
        payload=function.payload if function.payload.percent else None,
        drop_after_s=_drop_after_s(function),
        per_token_s=function.sla.per_token_s,
        variant=function.variant if function.variant.family is not None else None,
        revisions=tuple(_revision(share, replicas.get(share.revision.id, {})) for share in served.revisions),
    )


def _drop_after_s(function: Function) -> float | None:
    limit_s = age_limit(function.sla.drop_after, function.sla.latency_s)
    return None if isinf(limit_s) else limit_s


def _revision(share: RevisionShare, groups: Mapping[str, list[ReplicaFacts]]) -> RevisionRoute:
    function = share.revision.function
    ready = sum(_ready(replicas) for replicas in groups.values())
    return RevisionRoute(
        id=share.revision.id,
        percent=share.percent,
        tags=share.tags,
        shadow_percent=share.shadow_percent,
        unit_inferences=function.concurrency_unit is ConcurrencyUnit.INFERENCES,
        limited=function.concurrency != 0,
        groups=tuple(_group(name, groups, share, ready) for name in sorted({*groups, *share.sizes})),
        failure=share.failure,
        failure_kind=share.failure_kind,
        pipeline=_pipeline(function),
    )


def _pipeline(function: Function) -> PipelineRoute | None:
    if not function.is_pipeline:
        return None
    return PipelineRoute(stages=function.server.stages, body_bytes=function.body_bytes)


def _ready(replicas: Iterable[ReplicaFacts]) -> int:
    return sum(1 for status in replicas if status.state is ReplicaState.READY)


def _group(name: str, groups: Mapping[str, list[ReplicaFacts]], share: RevisionShare, ready: int) -> GroupRoute:
    replicas = groups.get(name, [])
    mu = share.mu_ips.get(name)
    smallest, largest = share.sizes.get(name, ANY_SIZE)
    return GroupRoute(
        accelerator=name,
        weight=_weight(name, groups, share, ready),
        mu_ips=None if mu is None else mu * _ready(replicas),
        smallest=smallest,
        largest=largest,
        replicas=tuple(
            ReplicaRoute(id=status.id, address=status.address or "") for status in sorted(replicas, key=lambda r: r.id)
        ),
        asleep=tuple(sorted(status.id for status in replicas if status.state is ReplicaState.ASLEEP)),
    )


def _weight(name: str, groups: Mapping[str, list[ReplicaFacts]], share: RevisionShare, ready: int) -> float:
    """Returns the given weight; without one the share of ready replicas; while none is ready the share of all.

    The last case matters at a cold start: the table with the starting replica must already let requests through,
    because its readiness is reported by channel.
    """
    if any(share.weights.get(group, 0.0) > 0.0 for group in groups):
        return share.weights.get(name, 0.0)
    if ready:
        return _ready(groups.get(name, ())) / ready
    return len(groups.get(name, ())) / max(1, sum(len(replicas) for replicas in groups.values()))
