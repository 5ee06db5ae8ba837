"""From the round's state to what people are shown (``tidegate.control.views.views``)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.control.rounds.round import Round
from tidegate.control.rounds.tracked import TrackedRevision
from tidegate.control.rounds.traffic_commands import view_of
from tidegate.control.state.registry import Deployed
from tidegate.control.views.views import (
    AcceleratorView,
    CapacityKindView,
    CapacityView,
    DecisionView,
    FailureView,
    FunctionState,
    FunctionView,
    GroupDecisionView,
    GroupView,
    RateSource,
    ReasonView,
    ReplicaView,
    RevisionView,
    Role,
)
from tidegate.function import Protocol
from tidegate.records.decision import Decision
from tidegate.records.replica_state import ReplicaState

if TYPE_CHECKING:
    from tidegate.autoscaler.measure.observation import GroupObservation
    from tidegate.autoscaler.profiles.admission import Assessment
    from tidegate.deploy.backend import ReplicaStatus
    from tidegate.function import Function


def accelerators(state: Round) -> tuple[AcceleratorView, ...]:
    used: dict[str, int] = {}
    for each in state.backend.replicas():
        if each.state not in (ReplicaState.STOPPED, ReplicaState.FAILED):
            used[each.accelerator] = used.get(each.accelerator, 0) + 1
    return tuple(
        AcceleratorView(
            name=each.name,
            kind=each.kind.value,
            count=each.count,
            in_use=used.get(each.name, 0),
            memory_bytes=each.memory_bytes,
            cores=each.cores,
            price_per_hour=each.price_per_hour,
            emulated=each.is_emulated,
        )
        for each in state.backend.devices()
    )


def function(state: Round, deployed: Deployed, gateway: str, domain: str, log: tuple[str, ...] = ()) -> FunctionView:
    """One function; ``gateway``: URL of the front door; ``log``: last lines of its newest server."""
    spec = deployed.current.function
    revisions = tuple(revision(state, tracked) for tracked in state.tracked(deployed.name))
    serving = next((each for each in revisions if each.id == deployed.current.revision.id), None)
    word = _state(revisions)
    prices = {each.name: each.price_per_hour for each in state.backend.devices()}
    serving_first = sorted(revisions, key=lambda each: each.role is not Role.SERVING)
    messages = [
        text for each in serving_first if each.role is not Role.RETIRED and (text := _message(each)) is not None
    ]
    scheme, _, place = gateway.partition("://")
    port = place.rpartition(":")[2]
    return FunctionView(
        name=deployed.name,
        state=word,
        revision=deployed.current.revision.id,
        url=f"{scheme}://{deployed.name}.{domain}:{port}/",
        path_url=None if spec.protocol is Protocol.GRPC else f"{gateway}/functions/{deployed.name}/",
        models=spec.models,
        protocol=spec.protocol.value,
        latency_s=spec.sla.latency_s,
        percentile=spec.sla.percentile,
        target_ips=spec.sla.target_ips,
        ready=sum(each.ready for each in revisions),
        desired=None if serving is None else serving.desired,
        price_per_hour=sum(
            prices.get(each.accelerator, 0.0)
            for kept in revisions
            for each in kept.replicas
            if each.state != ReplicaState.FAILED
        ),
        traffic=state.meter.view(deployed.name, spec.sla.percentile, state.clock.now()),
        revisions=revisions,
        is_pinned=bool(deployed.split),
        rollout=None if deployed.rolling is None else view_of(state, deployed, deployed.rolling),
        message="\n".join(messages) or None,
        last_log=log,
    )


def revision(state: Round, tracked: TrackedRevision) -> RevisionView:
    here = state.replicas_of(tracked.id)
    decision, now = tracked.decision, state.clock.now()
    failure = state.backend.failure(tracked.id)
    shown = None
    if failure is not None and tracked.is_broken(failure):
        wait = failure.not_before - now
        next_try = max(0.0, wait) if decision is not None and decision.desired else None
        shown = FailureView(reason=failure.reason, failures=failure.failures, next_try_in_s=next_try)
    unplaced = () if tracked.unplaced is None else (tracked.unplaced,)
    return RevisionView(
        id=tracked.id,
        number=tracked.record.number,
        role=tracked.role,
        percent=tracked.percent,
        tags=tracked.tags,
        shadow_percent=tracked.shadow_percent,
        size_routing=state.sizes.why(tracked.id),
        policy=tracked.record.function.scaling.policy,
        desired=None if decision is None else decision.desired,
        is_dry_run=tracked.record.function.scaling.dry_run,
        is_carried_out=not (tracked.record.function.scaling.dry_run if decision is None else decision.is_dry_run),
        ready=sum(each.state is ReplicaState.READY for each in here),
        starting=sum(each.state is ReplicaState.STARTING for each in here),
        leaving=sum(each.is_leaving for each in here),
        waiting=state.meter.waiting(tracked.id),
        reasons=() if decision is None else tuple(ReasonView(code=r.code, detail=r.detail) for r in decision.reasons),
        unplaced=unplaced,
        stuck=state.succession.stuck(tracked, now),
        failure=shown,
        replicas=tuple(replica(state, each, now) for each in here),
        created_at=tracked.record.created_at,
        source=tracked.record.source,
        groups=groups(state, tracked, here),
    )


def groups(state: Round, tracked: TrackedRevision, here: "Sequence[ReplicaStatus]") -> tuple[GroupView, ...]:
    """The groups of a revision: those that it may have, and those that it has (``here``: its replicas)."""
    from tidegate.autoscaler.measure.observation import GroupObservation
    from tidegate.deploy.placement.ledger import WHOLE

    devices = {each.name: each for each in state.backend.devices()}
    observation = state.autoscaler.observation(tracked.id)
    seen = {each.accelerator: each for each in (() if observation is None else observation.groups)}
    wanted = {each.accelerator: each for each in (tracked.decision.groups or ())} if tracked.decision else {}
    is_hold = tracked.decision is None or tracked.decision.groups is None
    weights = state.autoscaler.weights(tracked.id)
    rates = {} if observation is None or observation.tokens is None else observation.tokens.groups
    found = []
    for name in dict.fromkeys((*seen, *sorted({each.accelerator for each in here}))):
        group, decided, device = seen.get(name, GroupObservation(accelerator=name)), wanted.get(name), devices.get(name)
        mine = [each for each in here if each.accelerator == name]
        mu_ips, source = _rate(state, tracked.id, group)
        rate = rates.get(name)
        limit = state.learning.limit(tracked.id, name)
        why = None if limit is None or limit.reason is None else limit.reason
        found.append(
            GroupView(
                accelerator=name,
                emulated=any(each.emulated for each in mine) if device is None else device.is_emulated,
                wanted=None if is_hold else (0 if decided is None else decided.replicas),
                share=WHOLE if decided is None else decided.share,
                ready=sum(each.state is ReplicaState.READY for each in mine),
                starting=sum(each.state is ReplicaState.STARTING for each in mine),
                leaving=sum(each.is_leaving for each in mine),
                room=group.room,
                price_per_hour=0.0 if device is None else device.price_per_hour,
                weight=weights.get(name, 0.0),
                mu_ips=mu_ips,
                mu_source=source,
                mean_batch=group.mean_batch,
                ips=group.ips,
                tps=None if rate is None else rate.tps,
                mu_tps=None if rate is None else rate.mu_tps,
                busy=group.busy / group.ready if group.ready else 0.0,
                execution_s=group.execution_s,
                tail_s=group.tail_s,
                limit=group.limit,
                limit_reason=None if why is None else ReasonView(code=why.code, detail=why.detail),
            )
        )
    return tuple(found)


def _rate(state: Round, revision_id: str, group: "GroupObservation") -> tuple[float | None, RateSource | None]:
    learnt = state.autoscaler.mu_ips(revision_id, group.accelerator)
    if learnt is not None:
        return learnt, RateSource.LEARNT
    earlier = state.learning.prior_ips(revision_id, group.accelerator)
    if earlier is not None and earlier > (group.mu_bound_ips or 0.0):
        return earlier, RateSource.EARLIER
    return group.mu_bound_ips, None if group.mu_bound_ips is None else RateSource.BOUND


def replica(state: Round, status: "ReplicaStatus", now: float) -> ReplicaView:
    sample = state.samples.get(status.id)
    return ReplicaView(
        id=status.id,
        accelerator=status.accelerator,
        state=status.state.value,
        age_s=max(0.0, now - status.created_at),
        limit=status.limit,
        in_flight=None if sample is None else sample.in_flight,
        reason=status.reason,
        phases=status.phases,
        pids=status.pids,
        emulated=status.emulated,
        adopted=status.adopted,
    )


def capacity(function: "Function", found: "Assessment") -> CapacityView:
    """What a deploy is answered about its SLA."""
    return CapacityView(
        latency_s=function.sla.latency_s,
        target_ips=function.sla.target_ips,
        kinds=tuple(
            CapacityKindView(
                accelerator=each.accelerator,
                emulated=each.emulated,
                source=each.source.value,
                one_s=each.one_s,
                meets_latency=each.meets_latency,
                mu_ips=each.mu_ips,
                places=each.places,
                free=each.free,
                price_per_hour=each.price_per_hour,
            )
            for each in found.kinds
        ),
        provided=dict(found.provided),
        provided_ips=found.provided_ips,
        price_per_hour=found.price_per_hour,
    )


def decision_view(decision: Decision) -> DecisionView:
    return DecisionView(
        at=decision.at,
        function=decision.function,
        revision=decision.revision,
        policy=decision.policy,
        ready=decision.ready,
        desired=decision.desired,
        groups=None
        if decision.groups is None
        else tuple(
            GroupDecisionView(accelerator=each.accelerator, replicas=each.replicas, share=each.share)
            for each in decision.groups
        ),
        reasons=tuple(ReasonView(code=reason.code, detail=reason.detail) for reason in decision.reasons),
        limits=decision.limits,
        observed=decision.observed,
        weights=decision.weights,
        digest=decision.digest,
        is_dry_run=decision.is_dry_run,
    )


def _message(view: RevisionView) -> str | None:
    """Why nothing of it is ready; whose trouble it is where that is not the serving revision."""
    if view.ready:
        return None
    text = view.failure.reason if view.failure is not None else next(iter(view.unplaced), None)
    return text if text is None or view.role is Role.SERVING else f"{view.role.value} {view.id}: {text}"


def _state(revisions: tuple[RevisionView, ...]) -> FunctionState:
    """By the serving revision: a candidate that does not start leaves the function as it is."""
    live = [each for each in revisions if each.role is Role.SERVING and each.percent > 0]
    if any(each.ready for each in revisions):
        return FunctionState.READY
    if any(each.failure is not None for each in live):
        return FunctionState.FAILED
    if any(each.stuck is not None for each in live):
        return FunctionState.UNPLACED
    if any(each.starting for each in live) or any(each.desired for each in live):
        return FunctionState.STARTING
    if any(each.leaving for each in revisions):
        return FunctionState.DRAINING
    if any(each.desired is None for each in live):
        return FunctionState.STARTING
    return FunctionState.ASLEEP
