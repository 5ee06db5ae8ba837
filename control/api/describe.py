"""Builds the views of functions (``tidegate.control.views``) from the state of the control loop."""

from collections.abc import Iterator, Sequence
from typing import Any

from tidegate.autoscaler.autoscaler import Autoscaler
from tidegate.autoscaler.decisions.explain import sentence
from tidegate.autoscaler.decisions.reasons import figure
from tidegate.autoscaler.measure.observation import GroupObservation
from tidegate.autoscaler.profiles.admission import Assessment
from tidegate.autoscaler.profiles.sla_cost import SeenLoad, sla_costs
from tidegate.clock import Clock
from tidegate.control.rounds.replacement import Replacement
from tidegate.control.rounds.rollouts import Rollouts
from tidegate.control.rounds.tracked import TrackedRevision
from tidegate.control.rounds.weights import GroupWeights
from tidegate.control.rounds.wiring import ControlLoop
from tidegate.control.rounds.world import World
from tidegate.control.state.registry import Deployed
from tidegate.control.views.deployment import AcceleratorView
from tidegate.control.views.functions import (
    BesideView,
    CapacityKindView,
    CapacityView,
    CrashView,
    FailureView,
    FunctionState,
    FunctionView,
    GroupView,
    IdleView,
    RateSource,
    ReplicaView,
    RevisionView,
    RolloutView,
    ShadowView,
    SlaCostView,
    WindowView,
)
from tidegate.control.watch.failures import ReplicaFailures
from tidegate.control.watch.profiles import LearnedProfiles
from tidegate.control.watch.traffic import TrafficMeter
from tidegate.control.watch.units import UnitMeter
from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.idle import IdleStates, stakes_of
from tidegate.deploy.placement.ledger import WHOLE, Accelerator
from tidegate.function import Function, Protocol
from tidegate.histogram import interpolated
from tidegate.records.gateway_sample import ShadowSeen
from tidegate.records.replica_state import ReplicaState
from tidegate.records.roles import Role
from tidegate.records.rollout import Phase, Rollout, Strategy
from tidegate.traffic.judge import Tally
from tidegate.traffic.size_routes import SizeRoutes


class FunctionViews:
    """Builds a view whenever one is requested; keeps nothing."""

    def __init__(
        self,
        *,
        world: World,
        autoscaler: Autoscaler,
        profiles: LearnedProfiles,
        traffic: TrafficMeter,
        weights: GroupWeights,
        sizes: SizeRoutes,
        replacement: Replacement,
        rollouts: Rollouts,
        failures: ReplicaFailures,
        idle: IdleStates,
        clock: Clock,
        units: UnitMeter | None,
    ) -> None:
        self._world = world
        self._failures = failures
        self._states = idle
        self._autoscaler = autoscaler
        self._profiles = profiles
        self._traffic = traffic
        self._weights = weights
        self._sizes = sizes
        self._replacement = replacement
        self._rollouts = rollouts
        self._clock = clock
        self._units = units

    def accelerators(self) -> tuple[AcceleratorView, ...]:
        used: dict[str, int] = {}
        for each in self._world.backend.replicas():
            if each.state not in (ReplicaState.STOPPED, ReplicaState.FAILED, ReplicaState.ASLEEP):
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
                mps=each.mps,
                mig=each.mig,
                driver=each.driver,
                compute_capability=each.compute_capability,
                **self._use(each),
            )
            for each in self._world.backend.devices()
        )

    def _use(self, kind: Accelerator) -> dict[str, Any]:
        """Returns the measured fields of a kind's view."""
        if self._units is None:
            return {"power_unknown": "its units are not of the control process's machine"}
        now = self._clock.now()
        power_w = self._units.power_w(kind, now)
        return {
            "utilization_percent": self._units.utilization(kind, now),
            "utilization_variation": self._units.variation(kind, now),
            "power_w": power_w,
            "power_unknown": None if power_w is not None else self._units.power_unknown(kind),
        }

    def function(self, deployed: Deployed, gateway: str, domain: str, log: tuple[str, ...] = ()) -> FunctionView:
        """Returns the view of one function. ``gateway``: base URL of the gateway; ``log``: last lines of its newest
        model server."""
        spec = deployed.current.function
        revisions = tuple(self.revision(tracked) for tracked in self._world.tracked(deployed.name))
        serving = next((each for each in revisions if each.id == deployed.current.revision.id), None)
        word = _state(revisions)
        prices = {each.name: each.price_per_hour for each in self._world.backend.devices()}
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
            is_pipeline=spec.is_pipeline,
            latency_s=spec.sla.latency_s,
            percentile=spec.sla.percentile,
            per_token_s=spec.sla.per_token_s,
            variant=spec.variant if spec.variant.family is not None else None,
            target_ips=spec.sla.target_ips,
            ready=sum(each.ready for each in revisions),
            desired=_wanted(serving, revisions),
            price_per_hour=sum(
                prices.get(each.accelerator, 0.0)
                for kept in revisions
                for each in kept.replicas
                if each.state not in (ReplicaState.FAILED, ReplicaState.ASLEEP)
            ),
            traffic=self._traffic.view(deployed.name, spec.sla.percentile, self._clock.now()),
            revisions=revisions,
            is_pinned=bool(deployed.split),
            rollout=None if deployed.rolling is None else self.rollout(deployed, deployed.rolling),
            message="\n".join(messages) or None,
            last_log=log,
        )

    def revision(self, tracked: TrackedRevision) -> RevisionView:
        here = self._world.replicas_of(tracked.id)
        decision, now = tracked.decision, self._clock.now()
        failure = self._world.backend.failure(tracked.id)
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
            size_routing=self._sizes.why(tracked.id),
            policy=tracked.record.function.scaling.policy,
            desired=None if decision is None else decision.desired,
            is_dry_run=tracked.record.function.scaling.dry_run,
            is_carried_out=not (tracked.record.function.scaling.dry_run if decision is None else decision.is_dry_run),
            ready=sum(each.state is ReplicaState.READY for each in here),
            starting=sum(each.state is ReplicaState.STARTING for each in here),
            leaving=sum(each.is_leaving for each in here),
            sleeping=sum(each.state is ReplicaState.ASLEEP for each in here),
            waiting=self._traffic.waiting(tracked.id),
            reasons=() if decision is None else decision.reasons,
            unplaced=unplaced,
            stuck=self._replacement.stuck(tracked, now),
            failure=shown,
            crash=self._crash(tracked.id, now),
            replicas=tuple(self.replica(each, now) for each in here),
            created_at=tracked.record.created_at,
            source=tracked.record.source,
            zero_after_s=tracked.record.function.scaling.scale_to_zero_after_s,
            idle=self._idle(tracked, now),
            asleep_s=_asleep_s(tracked, here, now),
            groups=self.groups(tracked, here),
        )

    def _idle(self, tracked: TrackedRevision, now: float) -> IdleView | None:
        found = self._autoscaler.idleness(tracked.id, now)
        if found is None:
            return None
        return IdleView(
            idle_s=found.idle_s,
            zero_in_s=found.zero_in_s,
            kept_by=found.kept_by,
            is_unused=not self._autoscaler.is_used(tracked.function),
        )

    def _crash(self, revision: str, now: float) -> CrashView | None:
        crashes = self._failures.crashes(revision, now)
        if not crashes:
            return None
        last = crashes[-1]
        return CrashView(
            count=len(crashes),
            age_s=max(0.0, now - last.at),
            replica=last.replica,
            cause=last.cause.value,
            reason=last.reason,
        )

    def groups(self, tracked: TrackedRevision, here: Sequence[ReplicaStatus]) -> tuple[GroupView, ...]:
        """Returns the groups that a revision may have, and those that it has. ``here``: its replicas."""
        devices = {each.name: each for each in self._world.backend.devices()}
        observation = self._autoscaler.observation(tracked.id)
        seen = {each.accelerator: each for each in (() if observation is None else observation.groups)}
        wanted = {each.accelerator: each for each in (tracked.decision.groups or ())} if tracked.decision else {}
        is_hold = tracked.decision is None or tracked.decision.groups is None
        weights = self._weights.weights(tracked.id)
        rates = {} if observation is None or observation.tokens is None else observation.tokens.groups
        found = []
        for name in dict.fromkeys((*seen, *sorted({each.accelerator for each in here}))):
            group = seen.get(name, GroupObservation(accelerator=name))
            decided, device = wanted.get(name), devices.get(name)
            mine = [each for each in here if each.accelerator == name]
            mu_ips, source = self._rate(tracked.id, group)
            rate = rates.get(name)
            limit = self._profiles.limit(tracked.id, name)
            form = tracked.record.function.server.form_on(name)
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
                    limit_reason=None if limit is None else limit.reason,
                    stored=None if form is None else str(form),
                    idle_states=self._idle_states(tracked, device),
                    beside=tuple(
                        BesideView(model=each.beside, increase=each.increase, requests=each.requests)
                        for each in self._profiles.beside(tracked.id, name)
                    ),
                )
            )
        return tuple(found)

    def _idle_states(self, tracked: TrackedRevision, device: Accelerator | None) -> str | None:
        if device is None:
            return None
        late_s = self._autoscaler.decider.late_price_s(tracked.id)
        stakes = stakes_of(tracked.record.revision.function, late_s)
        return self._states.words(tracked.id, device, stakes, self._world.backend.sleep_refusal(device))

    def _rate(self, revision_id: str, group: GroupObservation) -> tuple[float | None, RateSource | None]:
        learnt = self._autoscaler.mu_ips(revision_id, group.accelerator)
        if learnt is not None:
            return learnt, RateSource.LEARNT
        earlier = self._profiles.prior_ips(revision_id, group.accelerator)
        if earlier is not None and earlier > (group.mu_bound_ips or 0.0):
            return earlier, RateSource.EARLIER
        return group.mu_bound_ips, None if group.mu_bound_ips is None else RateSource.BOUND

    def replica(self, status: ReplicaStatus, now: float) -> ReplicaView:
        sample = self._world.samples.get(status.id)
        return ReplicaView(
            id=status.id,
            accelerator=status.accelerator,
            state=status.state.value,
            age_s=max(0.0, now - status.created_at),
            limit=status.limit,
            in_flight=None if sample is None else sample.in_flight,
            held=0 if sample is None else sample.held,
            held_s=0.0 if sample is None else sample.held_s,
            reason=status.reason,
            phases=status.phases,
            pids=status.pids,
            emulated=status.emulated,
            adopted=status.adopted,
            cores=len(status.cores),
            max_batch=None if status.batching is None else status.batching.max_size,
            unit=status.unit,
            more_units=status.more_units,
            share=status.share,
        )

    def rollout(self, deployed: Deployed, rollout: Rollout) -> RolloutView:
        """Returns the view of a rollout, under way or ended."""
        id_ = f"{deployed.name}-{rollout.candidate:05d}"
        now, tallies = self._clock.now(), self._rollouts.tallies(deployed.name)
        left_s = max(0.0, rollout.since + rollout.plan.canary_window_s - now)
        is_judged = rollout.strategy is Strategy.CANARY and rollout.phase is Phase.RUNNING
        tracked = self._world.find(id_)
        new, old = (None, None) if tallies is None else (_window(tallies[0]), _window(tallies[1]))
        shadow = self._traffic.shadow(id_)
        return RolloutView(
            function=deployed.name,
            strategy=rollout.strategy,
            phase=rollout.phase,
            candidate=id_,
            base=f"{deployed.name}-{rollout.base:05d}",
            percent=0.0 if tracked is None else tracked.percent,
            steps=rollout.plan.canary_steps,
            step=rollout.step + 1 if rollout.plan.canary_steps else 0,
            window_s=rollout.plan.canary_window_s if rollout.plan.canary_steps else None,
            window_left_s=left_s if is_judged else None,
            duration_s=rollout.plan.duration_s or None,
            shadow_percent=rollout.plan.shadow_percent,
            verdict=rollout.verdict,
            new=new if rollout.strategy is Strategy.CANARY else None,
            old=old if rollout.strategy is Strategy.CANARY else None,
            shadow=_shadow(shadow) if rollout.strategy is Strategy.SHADOW else None,
            began_at=rollout.began_at,
            events=rollout.events,
        )


def views_of(loop: ControlLoop) -> FunctionViews:
    """Returns the views over a control loop."""
    return FunctionViews(
        world=loop.world,
        autoscaler=loop.autoscaler.core,
        profiles=loop.profiles,
        traffic=loop.instruments.traffic,
        weights=loop.weights,
        sizes=loop.sizes,
        replacement=loop.replacement,
        rollouts=loop.rollouts,
        failures=loop.instruments.failures,
        idle=loop.executor.idle,
        clock=loop.clock,
        units=loop.instruments.units,
    )


def capacity(function: Function, found: Assessment, load: SeenLoad | None = None) -> CapacityView:
    """Returns the answer to a deploy about its SLA. ``load``: that of the function so far."""
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
                error=each.error,
                basis=each.basis,
                first_s=each.first_s,
            )
            for each in found.kinds
        ),
        provided=dict(found.provided),
        provided_ips=found.provided_ips,
        price_per_hour=found.price_per_hour,
        sla_costs=tuple(
            SlaCostView(
                latency_s=each.latency_s,
                requests_per_s=each.requests_per_s,
                accelerator=each.accelerator,
                replicas=each.replicas,
                price_per_hour=each.price_per_hour,
                per_token_s=each.per_token_s,
            )
            for each in sla_costs(function.sla, found.kinds, load)
        ),
    )


def prediction_lines(found: Assessment) -> list[str]:
    """Returns a line for each accelerator on which the time of an inference was only predicted."""
    return [
        f"nothing is measured on {each.accelerator} yet: one inference is predicted to take "
        f"{figure(1e3 * each.one_s)} ms ({sureness(each.error)}; from {each.basis})"
        for each in found.kinds
        if each.one_s is not None and each.error is not None
    ]


def sureness(error: float) -> str:
    """Returns a relative error in words: percent, or a factor from 100 % on."""
    return f"within {figure(100.0 * error)} %" if error < 1.0 else f"within a factor of {figure(1.0 + error)}"


def failure_lines(view: FunctionView) -> list[str]:
    """Returns lines for each revision whose last start failed, or that has no place; empty if there is none. A decision
    that cannot be carried out explains nothing by itself."""
    return [line for each in view.revisions for line in _failure_of(each)]


def _failure_of(revision: RevisionView) -> Iterator[str]:
    failure = revision.failure
    if failure is not None:
        count = "its last start failed" if failure.failures == 1 else f"{failure.failures} starts in a row failed"
        wait_s = failure.next_try_in_s
        again = "" if wait_s is None else ", the next try is due" if wait_s <= 0.0 else f", next try in {wait_s:.0f} s"
        yield f"{revision.id} does not start: {count}{again}"
        yield from (f"    {line}" for line in failure.reason.splitlines())
    elif revision.stuck is not None:
        yield f"{revision.id} has no place: {revision.stuck}"
    else:
        yield from (f"{revision.id} has no place yet: {text}" for text in revision.unplaced)


def _asleep_s(tracked: TrackedRevision, here: Sequence[ReplicaStatus], now: float) -> float | None:
    """Returns for how long no replica of it has been awake. None if one is, or none was since the start."""
    if any(each.state is not ReplicaState.ASLEEP for each in here):
        return None
    since = [at for at in (tracked.gone_at, *(each.asleep_at for each in here)) if at is not None]
    return max(0.0, now - max(since)) if since else None


def _message(view: RevisionView) -> str | None:
    """Returns why none of its replicas is ready, with the revision's name unless it serves; None if one is."""
    if view.ready:
        return None
    text = view.failure.reason if view.failure is not None else next(iter(view.unplaced), None)
    if text is None:
        given = next((each for each in view.reasons if each.code == "place_given_up"), None)
        text = None if given is None else sentence(given).removeprefix(f"{given.code}: ")
    return text if text is None or view.role is Role.SERVING else f"{view.role.value} {view.id}: {text}"


def _wanted(serving: RevisionView | None, revisions: Sequence[RevisionView]) -> int | None:
    """Returns the replicas that are wanted of all revisions that stay. None: those of the serving one are held."""
    if serving is None or serving.desired is None:
        return None
    return sum(each.desired or 0 for each in revisions if each.role is not Role.RETIRED)


def _state(revisions: tuple[RevisionView, ...]) -> FunctionState:
    """Returns the function's state, by its serving revisions: a candidate that does not start does not change it."""
    live = [each for each in revisions if each.role is Role.SERVING and each.percent > 0]
    if any(each.ready for each in revisions):
        return FunctionState.READY
    if any(each.failure is not None for each in live):
        return FunctionState.FAILED
    if any(each.stuck is not None for each in live):
        return FunctionState.UNPLACED
    if any(each.starting or each.desired or each.unplaced for each in live):
        return FunctionState.STARTING
    if any(each.leaving for each in revisions):
        return FunctionState.DRAINING
    if any(each.desired is None for each in live):
        return FunctionState.STARTING
    return FunctionState.ASLEEP


def _window(tally: Tally) -> WindowView:
    return WindowView(
        requests=tally.requests,
        bad=tally.bad,
        failed=tally.failed,
        refused=tally.refused,
        expired=tally.expired,
        late=tally.late,
        overdue=tally.overdue,
    )


def _shadow(seen: ShadowSeen) -> ShadowView:
    return ShadowView(
        requests=seen.requests,
        skipped=seen.skipped,
        failed=seen.failed,
        status_differs=seen.status_differs,
        output_differs=seen.output_differs,
        p50_s=interpolated(seen.latency, 0.5),
        p98_s=interpolated(seen.latency, 0.98),
        served_p50_s=interpolated(seen.served_latency, 0.5),
        served_p98_s=interpolated(seen.served_latency, 0.98),
    )
