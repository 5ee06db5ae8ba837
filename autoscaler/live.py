"""The autoscaler at work: pulls samples, asks the decider, writes the decision log.

Everything that can fail here fails softly and is counted: a source that does not answer within ``PULL_TIMEOUT_S`` is
one missing sample, unreadable bytes are one fault, a full disk stops the log and never a decision.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from tidegate.autoscaler.decider import Decider
from tidegate.autoscaler.decisions.explain import DecisionFilter, explain_all, explain_now, is_change, logged
from tidegate.autoscaler.decisions.reasons import reason
from tidegate.autoscaler.decisions.totals import Totals, Want, is_idle, starts
from tidegate.autoscaler.measure.collector import Collector
from tidegate.autoscaler.measure.observation import AcceleratorRoom, FleetGroup, Observation
from tidegate.autoscaler.measure.sampling import ALL_UP_TO, asked
from tidegate.autoscaler.replay.recorder import Recorder
from tidegate.clock import Clock
from tidegate.function import Revision
from tidegate.records.codec import CodecError, decode, encode
from tidegate.records.decision import Decision, Reason
from tidegate.records.gateway_sample import Activation, ColdStartSeen, GatewaySample, RevisionDemand
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ReplicaState
from tidegate.records.tenants import TenantSeen
from tidegate.schema.time_windows import least_scale, readable_windows

PULL_TIMEOUT_S = 0.5
SLICE_S = 0.003
"""Longest time for which decisions keep the loop."""
LOG_BYTES = 4 * 1024 * 1024
"""A decision log that has grown to this size becomes ``.1`` and a new one begins: at most twice this per function."""
TAIL_BYTES = 128 * 1024
"""How much of an earlier run's log is read back."""
RECENT = 256
"""Logged decisions per function that ``explain`` can show."""

Fetch = Callable[[], Awaitable[bytes]]
"""One ``GET /sample`` of a source; may raise whatever its client raises."""


class ReplicaFacts(Protocol):
    """What the autoscaler needs of a replica; the backend's status has it."""

    @property
    def id(self) -> str: ...
    @property
    def revision(self) -> str: ...
    @property
    def accelerator(self) -> str: ...
    @property
    def state(self) -> ReplicaState: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _GatewayEnvelope:
    """A gateway's sample with its demands unread: those of a thousand functions are read in parts."""

    worker: str
    incarnation: str
    sequence: int
    uptime_s: float
    table_epoch: int
    table_number: int
    connections: int
    demands: tuple[msgspec.Raw, ...] = ()
    cold_starts: tuple[ColdStartSeen, ...] = ()
    certificate_fault: str | None = None
    is_last: bool = False
    tenants: tuple[TenantSeen, ...] = ()
    quotas_lost: bool = False
    unknown_keys: dict[str, int] = field(default_factory=dict)

    def sample(self) -> GatewaySample:
        """The sample without its demands."""
        return GatewaySample(
            worker=self.worker,
            incarnation=self.incarnation,
            sequence=self.sequence,
            uptime_s=self.uptime_s,
            table_epoch=self.table_epoch,
            table_number=self.table_number,
            connections=self.connections,
            cold_starts=self.cold_starts,
            certificate_fault=self.certificate_fault,
            is_last=self.is_last,
            tenants=self.tenants,
            quotas_lost=self.quotas_lost,
            unknown_keys=self.unknown_keys,
        )


class Puller:
    """Pulls one sample from every source, all at once, each within the time limit, into the collector."""

    def __init__(
        self,
        collector: Collector,
        clock: Clock,
        *,
        timeout_s: float = PULL_TIMEOUT_S,
        gateway_seen: Callable[[GatewaySample], None] | None = None,
        replica_seen: Callable[[ReplicaSample], None] | None = None,
    ) -> None:
        self._collector = collector
        self._clock = clock
        self._timeout_s = timeout_s
        self._gateway_seen = gateway_seen
        self._replica_seen = replica_seen
        self.last_errors: dict[str, str] = {}
        """What the last pull of a source failed with; sources that answered are not here."""

    async def pull(self, gateways: Mapping[str, Fetch], replicas: Mapping[str, Fetch]) -> None:
        """One round. Cancelling it is safe; a source that fails does not disturb the others."""
        names = [*gateways, *replicas]
        pulls = [self._one(name, fetch, self._take_gateway) for name, fetch in gateways.items()]
        pulls += [self._one(name, fetch, self._take_replica) for name, fetch in replicas.items()]
        results = await asyncio.gather(*pulls, return_exceptions=True)
        errors: dict[str, str] = {}
        for name, result in zip(names, results, strict=True):
            if isinstance(result, Exception):
                self._collector.fault("unreadable" if isinstance(result, CodecError) else "unreachable")
                late = f"no answer within {self._timeout_s:g} s"
                errors[name] = late if isinstance(result, TimeoutError) else f"{type(result).__name__}: {result}"
            elif isinstance(result, BaseException):
                raise result
        self.last_errors = errors

    async def _one(self, name: str, fetch: Fetch, take: Callable[[bytes], Awaitable[None]]) -> None:
        async with asyncio.timeout(self._timeout_s):
            data = await fetch()
        await take(data)

    async def _take_gateway(self, data: bytes) -> None:
        told = decode(data, _GatewayEnvelope)
        sample = told.sample()
        demands: list[RevisionDemand] = []
        reading = self._read(told, demands)
        for _ in self._collector.gateway_parts(sample, self._clock.now(), reading):
            await asyncio.sleep(0)
        if self._gateway_seen is not None:
            for _ in reading:
                pass  # The collector took no interest in the rest.
            self._gateway_seen(replace(sample, demands=tuple(demands)))

    def _read(self, told: "_GatewayEnvelope", into: list[RevisionDemand]) -> Iterator[RevisionDemand]:
        """Reads one demand after the other and keeps it; one that cannot be read is a fault of its own."""
        for raw in told.demands:
            try:
                demand = decode(bytes(raw), RevisionDemand)
            except CodecError:
                self._collector.fault("unreadable")
                continue
            into.append(demand)
            yield demand

    async def _take_replica(self, data: bytes) -> None:
        sample = decode(data, ReplicaSample)
        self._collector.replica(sample, self._clock.now())
        if self._replica_seen is not None:
            self._replica_seen(sample)

    def __repr__(self) -> str:
        return f"<Puller {self._timeout_s:g} s, failing: {sorted(self.last_errors)}>"


class DecisionLog:
    """``<directory>/<function>.jsonl``, one decision per line, bounded. Without a directory nothing is written."""

    def __init__(self, directory: Path | None, *, max_bytes: int = LOG_BYTES) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self.fault: str | None = None
        """Why the last write failed; None: it did not."""
        self.lost = 0
        """Lines that could not be written since the start."""

    def write(self, decision: Decision) -> None:
        if self._directory is None:
            return
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            path = self._path(self._directory, decision.function)
            if path.exists() and path.stat().st_size >= self._max_bytes:
                path.replace(path.with_suffix(".jsonl.1"))
            path.touch(0o600)
            with path.open("ab") as log:
                log.write(encode(decision) + b"\n")
        except OSError as error:
            self.lost += 1
            self.fault = f"decision log: {error}"
        else:
            self.fault = None

    def read(self, function: str, n: int) -> list[Decision]:
        """The last ``n`` decisions of earlier runs, oldest first; lines that cannot be read are left out."""
        if self._directory is None:
            return []
        try:
            lines = self._tail(self._path(self._directory, function))
        except OSError as error:
            self.fault = f"decision log: {error}"
            return []
        decisions: deque[Decision] = deque(maxlen=n)
        for line in lines:
            try:
                decisions.append(decode(line, Decision))
            except CodecError:
                continue
        return list(decisions)

    @staticmethod
    def _tail(path: Path) -> list[bytes]:
        if not path.exists():
            return []
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return log.read().splitlines()

    @staticmethod
    def _path(directory: Path, function: str) -> Path:
        return directory / f"{function}.jsonl"

    def __repr__(self) -> str:
        return f"<DecisionLog {self._directory}, fault: {self.fault}>"


class Autoscaler:
    """What the control round holds. Order of one round::

        sources(...)  ->  await sample()  ->  fleet(...)  ->  decide(now)  ->  plan and backend

    :meth:`activated` may come at any time between, from the stream of activations.
    """

    def __init__(
        self,
        clock: Clock,
        log_directory: Path | None = None,
        recordings: Path | None = None,
        *,
        gateway_seen: Callable[[GatewaySample], None] | None = None,
        replica_seen: Callable[[ReplicaSample], None] | None = None,
        wall: Callable[[], float] | None = None,
        max_replicas: int = 0,
    ) -> None:
        """``wall``: Unix seconds of the wall clock, for windows of time only; None: as ``clock``. ``max_replicas``: of
        all functions together, 0: no limit."""
        self._clock = clock
        self._wall = wall or clock.now
        self._totals = Totals(max_replicas)
        self._ticks = 0
        self.collector = Collector()
        self.decider = Decider()
        self.log = DecisionLog(log_directory)
        self.recorder = Recorder(recordings)
        self.weights: Callable[[str], Mapping[str, float]] = lambda revision: {}
        """The weights in force of a revision's groups, told by whoever publishes them."""
        self.is_carried_out: Callable[[str], bool] = lambda revision: True
        """Whether a revision's decisions count, told by whoever carries them out: those of a retired one do not, and
        are logged only where somebody else has given a reason (:meth:`add_reason`)."""
        self.is_rolled_out: Callable[[str], bool] = lambda revision: False
        """Whether a revision is to be kept ready though nobody asks for it, told by whoever rolls it out."""
        self.is_taking_over: Callable[[str], bool] = lambda revision: False
        """Whether a revision is to start in the only place of its function's old one, told by whoever lets it."""
        self.device_metrics: Callable[[str, str], Mapping[str, float]] = lambda revision, accelerator: {}
        """What the devices of a revision's group are doing, told by whoever reads them."""
        self.puller = Puller(self.collector, clock, gateway_seen=gateway_seen, replica_seen=replica_seen)
        self._filter = DecisionFilter()
        self._recent: dict[str, deque[Decision]] = {}
        self._fleet: dict[str, tuple[FleetGroup, ...]] = {}
        self._gateways: dict[str, Fetch] = {}
        self._replicas: dict[str, Fetch] = {}
        self._observations: dict[str, Observation] = {}
        self._notes: dict[str, list[Reason]] = {}
        self._answered: set[str] = set()
        """Whose activation was answered since the tick began."""
        self._settled: dict[str, Decision] = {}
        """What is carried out of revisions for which it is something else than what was decided."""
        self._unread: dict[str, str] = {}
        """What cannot be read of the windows of time of a revision."""

    # --- what exists

    def apply(self, revision: Revision, *, fresh: bool = True, ready: int = 0) -> None:
        """Takes a revision under control. ``fresh``: just deployed, gets its initial scale; False: it was known to an
        earlier control process. ``ready``: replicas that are ready already. Raises InvalidInputError (policy)."""
        now = self._clock.now()
        self.decider.apply(revision, now, fresh=fresh, ready=ready)
        self.collector.apply(revision.id, now)
        name = revision.function.name
        if name not in self._recent:
            self._recent[name] = deque(self.log.read(name, RECENT), maxlen=RECENT)

    def forget(self, revision_id: str) -> None:
        """Lets a revision go. The log file of its function stays."""
        revision = self.decider.revision(revision_id)
        self.decider.forget(revision_id)
        if revision is not None and not any(
            each.function.name == revision.function.name for each in self.decider.revisions
        ):
            self._recent.pop(revision.function.name, None)
        self.collector.forget(revision_id)
        self._filter.forget(revision_id)
        self.recorder.forget(revision_id)
        self._fleet.pop(revision_id, None)
        self._observations.pop(revision_id, None)
        self._notes.pop(revision_id, None)
        self._settled.pop(revision_id, None)
        self._unread.pop(revision_id, None)

    def fleet(self, replicas: Iterable[ReplicaFacts], rooms: Mapping[str, Sequence[AcceleratorRoom]]) -> None:
        """What runs, and for each revision the accelerators it may use, cheapest first. Replaces what was told before:
        call it each round and when a replica changes state."""
        counted: dict[str, dict[str, list[ReplicaFacts]]] = {}
        for replica in replicas:
            counted.setdefault(replica.revision, {}).setdefault(replica.accelerator, []).append(replica)
        self._fleet = {
            revision: self._groups(revision, counted.get(revision, {}), rooms.get(revision, ()))
            for revision in counted.keys() | rooms.keys()
        }

    def fleet_of(self, revision: str, replicas: Iterable[ReplicaFacts], rooms: Sequence[AcceleratorRoom]) -> None:
        """The same of one revision; the others stay as they were told."""
        counted: dict[str, list[ReplicaFacts]] = {}
        for replica in replicas:
            counted.setdefault(replica.accelerator, []).append(replica)
        self._fleet[revision] = self._groups(revision, counted, rooms)

    def groups(self, revision: str) -> tuple[FleetGroup, ...]:
        """What was last told of a revision's fleet."""
        return self._fleet.get(revision, ())

    def _groups(
        self, revision: str, counted: Mapping[str, Sequence[ReplicaFacts]], rooms: Sequence[AcceleratorRoom]
    ) -> tuple[FleetGroup, ...]:
        """The very same groups as before where nothing changed: what is known of each is not looked up again then."""
        found, before = fleet_groups(counted, rooms, partial(self.device_metrics, revision)), self._fleet.get(revision)
        return before if before == found else found

    def sources(self, gateways: Mapping[str, Fetch], replicas: Mapping[str, Fetch]) -> None:
        """Who is pulled from: gateway workers by name, replicas by id. Others are forgotten."""
        self._gateways, self._replicas = dict(gateways), dict(replicas)
        self.collector.expect(self._gateways.keys(), self._replicas.keys())

    # --- the loop

    async def sample(self) -> None:
        """Pulls one sample from every source; takes at most the pull's time limit, never raises for a source. Meanwhile
        recordings go to disk."""
        self._ticks += 1
        await asyncio.gather(self.puller.pull(self._gateways, self._asked()), self.recorder.flush())

    def _asked(self) -> Mapping[str, Fetch]:
        """Who is asked this time: of the ready replicas of a large group some, in turns; of all others all. One that
        does not answer is not asked again at once: the others of its turn speak for it, and the next turn is a second
        away."""
        left_out: set[str] = set()
        for groups in self._fleet.values():
            for group in groups:
                if len(group.ready) > ALL_UP_TO:
                    left_out |= frozenset(group.ready) - asked(group.ready, self._ticks)
        return {name: fetch for name, fetch in self._replicas.items() if name not in left_out}

    def close(self) -> None:
        """Brings what is recorded to disk."""
        self.recorder.close()

    def decide(self, now: float) -> list[Decision]:
        """One decision for every revision whose fleet has been told."""
        return list(self._decisions(now))

    async def decided(self, now: float) -> list[Decision]:
        """The same, letting the loop run every ``SLICE_S``: the activations of the moment do not wait for a tick over
        a thousand functions."""
        decisions, began = [], self._clock.now()
        for decision in self._decisions(now):
            decisions.append(decision)
            if self._clock.now() - began >= SLICE_S:
                await asyncio.sleep(0)
                began = self._clock.now()
        return decisions

    def _decisions(self, now: float) -> Iterator[Decision]:
        if self._totals.total:
            self._totals.begin(
                (revision, sum(len(group.ready) + group.starting + group.draining for group in fleet))
                for revision, fleet in self._fleet.items()
            )
        self._answered.clear()
        for revision in self.decider.revisions:
            # Between two decisions a revision may have been forgotten, or answered: then the fleet is not as was told.
            if revision.id in self._answered:
                continue
            if revision.id in self._fleet and self.decider.revision(revision.id) is not None:
                last = self.decider.last(revision.id)  # an activation's, maybe, that came just before the tick
                yield self._decision(revision, now if last is None else max(now, last.at))

    def activated(self, activation: Activation, now: float) -> Decision | None:
        """The answer to a gateway's push, at once. A decision with ``desired`` None needs nothing done (a replica
        starts already). None: nobody knows that revision, or what runs of it."""
        revision = self.decider.revision(activation.revision)
        if revision is None or revision.id not in self._fleet:
            return None
        self.collector.touch(revision.id, now)
        self._answered.add(revision.id)
        self._settled.pop(revision.id, None)
        return self._decision(revision, now, activation)

    def settled(self, decided: Decision, found: Decision) -> None:
        """What is carried out of a tick's decision: ``decided`` itself, or what a revision's part in a rollout makes of
        it. That is what is in force and stands in the log behind the other; recorded is what was decided."""
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
        part = self.recorder.part(revision, self.decider, now)
        if activation is None:
            decision = self.decider.tick(now, observation)
        else:
            decision = self.decider.activate(activation, now, observation)
        if self._totals.total:
            self._count(revision, observation, decision, is_asked_for=activation is not None)
        if part is not None:
            part.add(observation, decision, activation)
        for name in self.collector.uneven(revision.id):
            self.add_reason(revision.id, reason("uneven_group", f"{name}, in the time per inference"))
        notes = self._notes.pop(revision.id, None)
        if notes:
            decision = replace(decision, reasons=(*decision.reasons, *notes))
        if not self._filter.keeps(decision) or not (notes or self.is_carried_out(revision.id)):
            return decision
        return self._keep(decision, observation)

    def _keep(self, decision: Decision, observation: Observation) -> Decision:
        """As it stands in the log now."""
        decision = logged(decision, observation, self.weights(decision.revision))
        self._recent.setdefault(decision.function, deque(maxlen=RECENT)).append(decision)
        self.log.write(decision)
        return decision

    def _count(self, revision: Revision, observation: Observation, decision: Decision, *, is_asked_for: bool) -> None:
        """Tells the limit over all functions what the revision would have and what it got."""
        existing, function = observation.existing, revision.function.name
        if not self.is_carried_out(revision.id):
            # It leaves: what it still has counts while it is there, what it would have is nobody's.
            self._totals.wanted(revision.id, Want(0, function=function), existing, 0)
            return
        scaling, wanted = revision.function.scaling, self.decider.wanted(revision.id)
        # What nobody may take away comes first, as a minimum does.
        is_kept = scaling.dry_run or not observation.complete
        least = existing if is_kept else max(scaling.min_scale, observation.least)
        # Who follows into a place, or is tried out in one, keeps it as if it were asked for.
        is_asked_for |= self.is_taking_over(revision.id) or (observation.is_rolled_out and existing > 0)
        idle_s = self.decider.idle_s(observation.at, observation)
        idle = wanted if not is_asked_for and is_idle(observation, idle_s) else 0
        got, started = existing, 0
        if decision.desired is not None and not decision.is_dry_run:
            got, started = decision.desired, starts(decision, observation)
        self._totals.wanted(revision.id, Want(wanted, least, idle, function), got, started)

    def add_reason(self, revision_id: str, reason: Reason) -> None:
        """Something else than the policy has changed what runs: its reason stands in the revision's next decision."""
        if self.decider.revision(revision_id) is not None:
            self._notes.setdefault(revision_id, []).append(reason)

    def _observe(self, revision: Revision, now: float) -> Observation:
        fleet = self.groups(revision.id)
        least, most = self._window_least(revision), None
        if self._totals.total:
            existing = sum(len(group.ready) + group.starting for group in fleet)
            most = self._totals.most(revision.id, existing, sum(group.draining for group in fleet))
        observation = self.collector.observe(
            revision, fleet, now, least=least, most=most, is_rolled_out=self.is_rolled_out(revision.id)
        )
        self._observations[revision.id] = observation
        return observation

    def _window_least(self, revision: Revision) -> int:
        """What windows of time ask for now. Some may have been deployed when they were no fault yet: those are named in
        the faults, and the others count."""
        text = revision.function.scaling.min_scale_windows
        if not text:
            return 0
        windows, unread = readable_windows(text)
        if unread:
            self._unread[revision.id] = unread
        else:
            self._unread.pop(revision.id, None)
        return least_scale(windows, self._wall())

    # --- what people ask

    def observation(self, revision_id: str) -> Observation | None:
        """The last observation of a revision."""
        return self._observations.get(revision_id)

    def mu_ips(self, revision_id: str, accelerator: str) -> float | None:
        """The service rate of one replica, learnt at its limit; None: not learnt."""
        return self.collector.mu_ips(revision_id, accelerator)

    def mu_of_size(self, revision_id: str, accelerator: str, batch: float) -> float | None:
        """The service rate of one replica for requests of ``batch`` inferences, as far as it is known."""
        return self.collector.mu_of_size(revision_id, accelerator, batch)

    def decisions(self, function: str, n: int = 10) -> list[Decision]:
        """The last logged decisions of a function, oldest first."""
        return list(self._recent.get(function, ()))[-n:] if n > 0 else []

    def explain(self, function: str, n: int = 10) -> list[str]:
        """The last logged decisions in words and the one in force of each revision; empty for a function that nobody
        knows."""
        now = self._clock.now()
        lines = explain_all(self.decisions(function, n), now)
        for revision in self.decider.revisions:
            if revision.function.name != function:
                continue
            last = self._settled.get(revision.id) or self.decider.last(revision.id)
            if last is not None:
                lines += explain_now(last, self.weights(revision.id), now)
        return lines

    def faults(self) -> dict[str, int | str]:
        """What went wrong: ignored samples by kind, sources that do not answer now, windows of time that are left out,
        a log that cannot be written."""
        found: dict[str, int | str] = dict(Counter(self.collector.faults))
        found.pop("unreachable", None)  # of the past: who does not answer now is named below
        found |= {f"source {name}": error for name, error in self.puller.last_errors.items()}
        found |= {f"min-scale-windows of {name}, left out": unread for name, unread in self._unread.items()}
        if self.log.fault is not None:
            found["log"] = self.log.fault
            found["log_lines_lost"] = self.log.lost
        if self.recorder.fault is not None:
            found["recordings"] = self.recorder.fault
        return found

    def __repr__(self) -> str:
        return f"<Autoscaler {self.decider!r}, {self.collector!r}>"


_HERE = (ReplicaState.READY, ReplicaState.STARTING, ReplicaState.DRAINING, ReplicaState.DRAINED)


def fleet_groups(
    replicas: Mapping[str, Sequence[ReplicaFacts]],
    rooms: Sequence[AcceleratorRoom],
    metrics: Callable[[str], Mapping[str, float]] = lambda accelerator: {},
) -> tuple[FleetGroup, ...]:
    """Groups in the order of ``rooms``; replicas on an accelerator that is not listed any more form groups behind.
    ``metrics``: of an accelerator's devices."""
    known = {room.accelerator: room for room in rooms}
    names = [*known, *sorted(replicas.keys() - known.keys())]
    groups = []
    for name in names:
        here = replicas.get(name, ())
        # On one that it may not use any more every replica is one too many.
        room = known.get(name, AcceleratorRoom(accelerator=name, room=-sum(each.state in _HERE for each in here)))
        groups.append(
            FleetGroup(
                accelerator=name,
                ready=tuple(each.id for each in here if each.state is ReplicaState.READY),
                starting=sum(1 for each in here if each.state is ReplicaState.STARTING),
                draining=sum(1 for each in here if each.state in (ReplicaState.DRAINING, ReplicaState.DRAINED)),
                room=room.room,
                price_per_hour=room.price_per_hour,
                mu_ips=room.mu_ips,
                metrics=metrics(name),
            )
        )
    return tuple(groups)
