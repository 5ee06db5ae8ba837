"""The autoscaler: one decision per revision and second, from what was measured and what runs.

Ties the collector, the decider, the limit over all functions, the decision log and the recorder together. Pulling
samples is the shell's work (``tidegate.autoscaler.live``) or the simulator's; both put them into ``collector``.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Protocol

from msgspec import structs

from tidegate.autoscaler.decider import Decider, Idleness
from tidegate.autoscaler.decisions.explain import DecisionFilter, explain_all, explain_now, is_change, logged
from tidegate.autoscaler.decisions.places import Holder, Places, Standing, given_reason
from tidegate.autoscaler.decisions.reasons import reason
from tidegate.autoscaler.decisions.totals import Totals, Want, is_idle, starts
from tidegate.autoscaler.fleet import CountedFleet
from tidegate.autoscaler.measure.collector import Collector
from tidegate.autoscaler.measure.observation import GivenUp, Observation
from tidegate.autoscaler.pipelines.budgets import Budgets
from tidegate.autoscaler.pipelines.scaling import Pipelines
from tidegate.autoscaler.policies import registry
from tidegate.clock import Clock
from tidegate.function import Function, Revision, TaskClass
from tidegate.records.decision import Decision, Reason
from tidegate.records.gateway_sample import Activation
from tidegate.schema.time_windows import min_scale_at, readable_windows

NO_PLACES = frozenset({"capped_by_capacity", "no_capacity"})
"""Reasons of a decision for fewer replicas than the load asks for, because the accelerators take no more."""
RECENT = 256
"""Logged decisions per function that ``explain`` can show."""


class FleetContext(Protocol):
    """Facts about a revision that the autoscaler reads from its surroundings, each while a decision is made."""

    def weights(self, revision: str) -> Mapping[str, float]:
        """Returns the routing weights in force, by accelerator."""
        ...

    def is_carried_out(self, revision: str) -> bool:
        """Returns False for a retired revision. Its decisions do not count, and are logged only with a reason from
        outside (:meth:`Autoscaler.add_reason`)."""
        ...

    def is_rolled_out(self, revision: str) -> bool:
        """Returns True for a revision that a rollout keeps ready without requests."""
        ...

    def is_taking_over(self, revision: str) -> bool:
        """Returns True for a revision that is to start in the only place of its function's old one."""
        ...

    def retry_at(self, revision: str) -> float | None:
        """Returns the time of the next attempt of a revision whose last start failed; None if none has failed."""
        ...

    def lost(self, revision: str) -> int:
        """Returns the replicas that broke after they had been ready, as far as nothing has taken their places yet."""
        ...

    def device_metrics(self, revision: str, accelerator: str) -> Mapping[str, float]:
        """Returns the present metrics of the devices of a revision's group."""
        ...


class StandaloneContext:
    """A :class:`FleetContext` without rollouts, weights and devices: every decision counts."""

    def weights(self, revision: str) -> Mapping[str, float]:
        return {}

    def is_carried_out(self, revision: str) -> bool:
        return True

    def is_rolled_out(self, revision: str) -> bool:
        return False

    def is_taking_over(self, revision: str) -> bool:
        return False

    def retry_at(self, revision: str) -> float | None:
        return None

    def lost(self, revision: str) -> int:
        return 0

    def device_metrics(self, revision: str, accelerator: str) -> Mapping[str, float]:
        return {}


class Log(Protocol):
    """Where logged decisions are kept."""

    def write(self, decision: Decision) -> None:
        """Appends a decision; never raises."""
        ...

    def read(self, function: str, n: int) -> list[Decision]:
        """Returns the last ``n`` decisions that earlier runs logged, oldest first."""
        ...


class Steps(Protocol):
    """A run of recorded steps of one revision."""

    def add(self, observation: Observation, decision: Decision, activation: Activation | None = None) -> None: ...


class StepRecorder(Protocol):
    """Records each step with all that is needed to decide it again."""

    def part(self, revision: Revision, decider: Decider, now: float) -> Steps | None:
        """Returns the run that the next step belongs to, before it is decided; None if it is not recorded."""
        ...

    def forget(self, revision_id: str) -> None: ...


class Autoscaler:
    """Decisions for all revisions under control. Order of one round::

        samples into ``collector``  ->  fleet.put(...)  ->  decide(now)  ->  plan and backend

    :meth:`activated` may come at any time between, from the stream of activations.
    """

    def __init__(
        self,
        clock: Clock,
        context: FleetContext,
        log: Log,
        *,
        recorder: StepRecorder | None = None,
        wall: Callable[[], float] | None = None,
        max_replicas: int = 0,
    ) -> None:
        """``wall``: Unix seconds of the wall clock, for windows of time only; by default ``clock``. ``max_replicas``:
        limit of all functions together; 0: no limit."""
        self._clock = clock
        self._wall = wall or clock.now
        self._context = context
        self._log = log
        self._recorder = recorder
        self._totals = Totals(max_replicas)
        self._places = Places()
        self._given_up: dict[str, GivenUp] = {}
        """By revision: the last replica that it gave up, until it has one again or a request waits for it."""
        self.collector = Collector(by_size=registry.by_size(), by_cores=registry.by_cores())
        self.decider = Decider()
        self._pipelines = Pipelines()
        self._deployed: dict[str, Revision] = {}
        """Revisions as they were deployed; the decider has those of stages as a pipeline scales them."""
        self._filter = DecisionFilter()
        self._recent: dict[str, deque[Decision]] = {}
        self.fleet = CountedFleet(context.device_metrics)
        self._observations: dict[str, Observation] = {}
        self._notes: dict[str, list[Reason]] = {}
        self._answered: set[str] = set()
        """Revisions with an activation answered since the tick began."""
        self._settled: dict[str, Decision] = {}
        """Decisions that are carried out in place of the decided ones, by revision."""
        self._unread: dict[str, str] = {}
        """Windows of time that cannot be read, by revision."""

    # --- what exists

    def apply(self, revision: Revision, *, fresh: bool = True, ready: int = 0) -> None:
        """Takes a revision under control. ``fresh``: it was just deployed and gets its initial scale. Without it the
        revision was known to an earlier control process. ``ready``: its present ready replicas. Raises
        InvalidInputError for an unknown policy."""
        now = self._clock.now()
        self._deployed[revision.id] = revision
        revision = replace(revision, function=self._pipelines.scaled(revision.function))
        self.decider.apply(revision, now, fresh=fresh, ready=ready)
        self.collector.apply(revision.id, now)
        name = revision.function.name
        if not fresh:
            self._places.assume_used(name)
        if name not in self._recent:
            self._recent[name] = deque(self._log.read(name, RECENT), maxlen=RECENT)

    def pipelines(self, functions: Iterable[Function]) -> None:
        """Sets the deployed pipelines: the revisions of their stages are scaled under their SLAs from now on."""
        if self._pipelines.apply(functions):
            self._follow_pipelines()

    def scaled(self, function: Function) -> Function:
        """Returns a function as it is scaled: a pipeline's stage has a budget of the SLA for its latency target."""
        return self._pipelines.scaled(function)

    def budgets(self, pipeline: str) -> Budgets | None:
        """Returns the budgets of a pipeline's stages; None if it has no latency target."""
        return self._pipelines.budgets(pipeline)

    def pipelines_of(self, function: str) -> tuple[str, ...]:
        """Returns the pipelines with a latency target that a function is a stage of."""
        return self._pipelines.of_stage(function)

    def _follow_pipelines(self) -> None:
        """Goes on with the stages as their pipelines scale them now."""
        for known in self.decider.revisions:
            function = self._pipelines.scaled(self._deployed[known.id].function)
            if function != known.function:
                self.decider.follow(replace(known, function=function), self._clock.now())
                if self._recorder is not None:
                    self._recorder.forget(known.id)  # its recording begins again, with this function

    def forget(self, revision_id: str) -> None:
        """Removes a revision from control. The log file of its function stays."""
        self._deployed.pop(revision_id, None)
        revision = self.decider.revision(revision_id)
        self.decider.forget(revision_id)
        if revision is not None and not any(
            each.function.name == revision.function.name for each in self.decider.revisions
        ):
            self._recent.pop(revision.function.name, None)
        self.collector.forget(revision_id)
        self._filter.forget(revision_id)
        if self._recorder is not None:
            self._recorder.forget(revision_id)
        self.fleet.forget(revision_id)
        self._observations.pop(revision_id, None)
        self._notes.pop(revision_id, None)
        self._settled.pop(revision_id, None)
        self._unread.pop(revision_id, None)
        self._places.forget(revision_id)
        self._given_up.pop(revision_id, None)

    def unlearn(self, revision_id: str) -> tuple[str, ...]:
        """Drops what a revision's policy has learnt, with a reason in the next decision; returns it in words, empty if
        there was nothing. The recording begins again, from the state without it."""
        words = self.decider.words(revision_id)
        if words:
            self.decider.unlearn(revision_id)
            if self._recorder is not None:
                self._recorder.forget(revision_id)
            self.add_reason(revision_id, reason("memory_forgotten"))
        return words

    # --- the loop

    def decide(self, now: float) -> list[Decision]:
        """Returns one decision for every revision with a known fleet."""
        return list(self.decisions_at(now))

    def decisions_at(self, now: float) -> Iterator[Decision]:
        """Yields the decisions of :meth:`decide` one by one. Between two of them activations may be answered and
        revisions forgotten."""
        if self._totals.total:
            self._totals.begin(
                (revision, sum(len(group.ready) + group.starting + group.draining for group in fleet))
                for revision, fleet in self.fleet.by_revision.items()
            )
        self._answered.clear()
        if self._pipelines.review(now):
            self._follow_pipelines()
        self._places.match(self.fleet.by_revision, now)
        for revision in self.decider.revisions:
            # Between two decisions a revision may have been forgotten, or answered: then its fleet is no longer this.
            if revision.id in self._answered:
                continue
            if revision.id in self.fleet.by_revision and self.decider.revision(revision.id) is not None:
                last = self.decider.last(revision.id)  # maybe an activation's, from just before the tick
                yield self._decision(revision, now if last is None else max(now, last.at))

    def activated(self, activation: Activation, now: float) -> Decision | None:
        """Answers a gateway's activation at once. A decision with ``desired`` None needs no action: a replica starts
        already. Returns None if the revision or its fleet is unknown."""
        revision = self.decider.revision(activation.revision)
        if revision is None or revision.id not in self.fleet.by_revision:
            return None
        self.collector.touch(revision.id, now)
        self._answered.add(revision.id)
        self._settled.pop(revision.id, None)
        return self._decision(revision, now, activation)

    def claims_place(self, revision_id: str, now: float) -> bool:
        """Returns whether an idle replica is to be given up for a revision that has just been activated: the next tick
        should not be waited for."""
        return self._places.claim(self.fleet.by_revision, revision_id, now)

    @property
    def awaits_place(self) -> bool:
        """True if a revision without a replica waits for a place that is being freed."""
        return self._places.is_claimed

    def coming(self, revision_id: str) -> str | None:
        """Returns how a place for a revision without a replica becomes free, for people; None if none does."""
        return self._places.coming(revision_id)

    def holders(self, revision_id: str) -> list[Holder]:
        """Returns the functions that hold places on the accelerators that a revision may use."""
        return self._places.holders(revision_id, self.fleet.by_revision)

    def settled(self, decided: Decision, found: Decision) -> None:
        """Notes which decision is carried out for a tick: ``decided`` itself, or ``found``, what the revision's role in
        a rollout makes of it. ``found`` is then in force and is logged after ``decided``; the recording has
        ``decided``."""
        name = decided.revision
        before = self._settled.pop(name, None)
        if found is decided and before is None:
            return
        seen = self._observations.get(name)
        if seen is None or seen.at != decided.at:
            return  # forgotten meanwhile, or a later activation has been answered
        if found is decided:
            is_kept = not decided.digest  # it is in force again
        else:
            found = self._settled[name] = replace(found, ready=decided.ready, observed=decided.observed)
            is_kept = bool(decided.digest) or is_change(before, found)
        if is_kept:
            self._keep(found, seen)

    def _decision(self, revision: Revision, now: float, activation: Activation | None = None) -> Decision:
        observation = self._observe(revision, now)
        part = None if self._recorder is None else self._recorder.part(revision, self.decider, now)
        if activation is None:
            decision = self.decider.tick(now, observation)
        else:
            decision = self.decider.activate(activation, now, observation)
        self._note_standing(revision, observation, decision, 0 if activation is None else activation.waiting)
        if self._totals.total:
            self._count(revision, observation, decision, is_asked_for=activation is not None)
        if part is not None:
            part.add(observation, decision, activation)
        for name in self.collector.uneven(revision.id):
            self.add_reason(revision.id, reason("uneven_group", f"{name}, in the time per inference"))
        notes = self._notes.pop(revision.id, None)
        if notes:
            decision = replace(decision, reasons=(*decision.reasons, *notes))
        decision = self._with_given_up(decision, observation)
        if not self._filter.keeps(decision) or not (notes or self._context.is_carried_out(revision.id)):
            return decision
        return self._keep(decision, observation)

    def _with_given_up(self, decision: Decision, observation: Observation | None) -> Decision:
        """Returns the decision with the reason that its revision has given up a replica, for as long as that holds."""
        given = self._given_up.get(decision.revision)
        if given is None or (observation is not None and isinstance(observation.gives_up, GivenUp)):
            return decision
        return replace(decision, reasons=(*decision.reasons, given_reason(given)))

    def _keep(self, decision: Decision, observation: Observation) -> Decision:
        """Logs a decision, and returns it as logged."""
        decision = logged(decision, observation, self._context.weights(decision.revision))
        self._recent.setdefault(decision.function, deque(maxlen=RECENT)).append(decision)
        self._log.write(decision)
        return decision

    def _note_standing(self, revision: Revision, observation: Observation, decision: Decision, waiting: int) -> None:
        """Reports the state of a revision to the places, after its decision."""
        name, scaling = revision.id, revision.function.scaling
        waiting = max(waiting, observation.waiting)
        if isinstance(observation.gives_up, GivenUp):
            self._given_up[name] = observation.gives_up
        elif name in self._given_up and (observation.existing or waiting):
            del self._given_up[name]
        is_kept = scaling.dry_run or not observation.complete or self._context.is_taking_over(name)
        least = max(scaling.min_scale, observation.least, int(observation.is_rolled_out))
        is_unstarted = observation.existing == 0 and self.decider.is_first_start(name)
        retry_at = self._context.retry_at(name) if waiting or is_unstarted else None
        self._places.note(
            name,
            Standing(
                function=revision.function.name,
                observation=observation,
                idle_s=self.decider.idle_s(observation.at, observation),
                keeps=observation.existing if is_kept else least,
                waiting=waiting if retry_at is None or observation.at >= retry_at else 0,
                is_first_start=is_unstarted and retry_at is None,
                is_used=self.collector.is_used(name),
                is_leaving=not self._context.is_carried_out(name),
                is_oriented=_is_oriented(revision),
                is_short=_is_short(decision, observation, scaling.max_scale),
                tries_unknown=any(each.code == "kind_tried" for each in decision.reasons),
            ),
        )

    def _count(self, revision: Revision, observation: Observation, decision: Decision, *, is_asked_for: bool) -> None:
        """Reports the revision's demand and its grant to the limit over all functions."""
        existing, function = observation.existing, revision.function.name
        if not self._context.is_carried_out(revision.id):
            # It leaves: its replicas count while they are there, its recommendation does not.
            self._totals.wanted(revision.id, Want(0, function=function), existing, 0)
            return
        scaling, wanted = revision.function.scaling, self.decider.wanted(revision.id)
        # Replicas that must not be taken away come first, as a minimum does.
        is_kept = scaling.dry_run or not observation.complete
        least = existing if is_kept else max(scaling.min_scale, observation.least)
        # A revision that takes over a place, or is tried out in one, keeps it as if it had demand.
        is_asked_for |= self._context.is_taking_over(revision.id) or (observation.is_rolled_out and existing > 0)
        idle_s = self.decider.idle_s(observation.at, observation)
        # A first start is asked for by the deploy.
        is_asked_for |= existing == 0 and self.decider.is_first_start(revision.id)
        idle = wanted if not is_asked_for and is_idle(observation, idle_s) else 0
        got, started = existing, 0
        if decision.desired is not None and not decision.is_dry_run:
            got, started = decision.desired, starts(decision, observation)
        unused_s = idle_s if self._places.is_used(function) else inf
        self._totals.wanted(revision.id, Want(wanted, least, idle, function, unused_s), got, started)

    def add_reason(self, revision_id: str, reason: Reason) -> None:
        """Adds a reason to the revision's next decision: something beside the policy has changed what runs."""
        if self.decider.revision(revision_id) is not None:
            self._notes.setdefault(revision_id, []).append(reason)

    def _observe(self, revision: Revision, now: float) -> Observation:
        fleet = self._places.reserved(revision.id, self.fleet.groups(revision.id))
        least, most = self._window_least(revision), None
        if self._totals.total:
            existing = sum(len(group.ready) + group.starting for group in fleet)
            most = self._totals.most(revision.id, existing, sum(group.draining for group in fleet))
        observation = self.collector.observe(
            revision,
            fleet,
            now,
            least=least,
            most=most,
            is_rolled_out=self._context.is_rolled_out(revision.id),
            lost=self._context.lost(revision.id),
        )
        given = self._places.given_up(revision.id)
        if given is not None and (self._is_idle(observation) or (_is_oriented(revision) and observation.ready > 1)):
            observation = structs.replace(observation, gives_up=given)
        observation = self._pipelines.seen(observation, now)
        self._observations[revision.id] = observation
        return observation

    def _is_idle(self, observation: Observation) -> bool:
        """Returns whether a replica may still be given up: no work has come since the last decision."""
        return observation.ready > 0 and is_idle(observation, self.decider.idle_s(observation.at, observation))

    def _window_least(self, revision: Revision) -> int:
        """Returns the minimum that windows of time ask for now. Windows that are invalid by today's rules, but were
        valid when deployed, are reported as faults; the others count."""
        text = revision.function.scaling.min_scale_windows
        if not text:
            return 0
        windows, unread = readable_windows(text)
        if unread:
            self._unread[revision.id] = unread
        else:
            self._unread.pop(revision.id, None)
        return min_scale_at(windows, self._wall())

    # --- queries

    def weights(self, revision_id: str) -> Mapping[str, float]:
        """Returns the routing weights in force of a revision, by accelerator."""
        return self._context.weights(revision_id)

    def observation(self, revision_id: str) -> Observation | None:
        """Returns the last observation of a revision."""
        return self._observations.get(revision_id)

    def idleness(self, revision_id: str, now: float) -> Idleness | None:
        """Returns why a revision without work has replicas; None if it has work, or no replica is ready."""
        observation = self._observations.get(revision_id)
        return None if observation is None else self.decider.idleness(now, observation)

    def is_used(self, function: str) -> bool:
        """Returns whether the function has had work, as far as known after a restart of the control process."""
        return self._places.is_used(function)

    def mu_ips(self, revision_id: str, accelerator: str) -> float | None:
        """Returns the service rate of one replica, learnt at its limit; None if it is not learnt."""
        return self.collector.mu_ips(revision_id, accelerator)

    def mu_of_size(self, revision_id: str, accelerator: str, batch: float) -> float | None:
        """Returns the service rate of one replica for requests of ``batch`` inferences, as far as it is known."""
        return self.collector.mu_of_size(revision_id, accelerator, batch)

    def decisions(self, function: str, n: int = 10) -> list[Decision]:
        """Returns the last logged decisions of a function, oldest first."""
        return list(self._recent.get(function, ()))[-n:] if n > 0 else []

    def explain(self, function: str, n: int = 10) -> list[str]:
        """Returns the last logged decisions in words, then the one in force of each revision; empty for an unknown
        function."""
        now = self._clock.now()
        lines = explain_all(self.decisions(function, n), now)
        for revision in self.decider.revisions:
            if revision.function.name != function:
                continue
            last = self._settled.get(revision.id) or self.decider.last(revision.id)
            if last is not None:
                last = self._with_given_up(last, self._observations.get(revision.id))
                lines += explain_now(last, self._context.weights(revision.id), now)
                lines += [f"    learnt: {each}" for each in self.decider.words(revision.id)]
        return lines

    def faults(self) -> dict[str, str]:
        """Returns the windows of time that cannot be read and are left out."""
        return {f"min-scale-windows of {name}, left out": unread for name, unread in self._unread.items()}

    def __repr__(self) -> str:
        return f"<Autoscaler {self.decider!r}, {self.collector!r}>"


def _is_short(decision: Decision, observation: Observation, max_scale: int) -> bool:
    """Returns whether more replicas are wanted, and allowed, than the accelerators take."""
    if decision.is_dry_run or (max_scale and observation.existing >= max_scale):
        return False
    return any(each.code in NO_PLACES for each in decision.reasons)


def _is_oriented(revision: Revision) -> bool:
    return revision.function.task_class is TaskClass.THROUGHPUT_ORIENTED
