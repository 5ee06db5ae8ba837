"""Learns and keeps the service rates and concurrency limits of groups.

The cores are ``tidegate.autoscaler.measure.rates``, ``tidegate.autoscaler.profiles.tuning`` and
``tidegate.autoscaler.profiles.learnt``. This file carries samples to them, limits to queue_proxies and records to the
store.

Limits (``concurrency: auto``): once a second, each ready replica with another limit than its group's is sent that
limit. A replica that has just become ready is sent it at once.

Interference: where replicas share devices, how much their models slow each other (``neighbours.py``).

Profiles: written in turn, so that each function's is at most ``KEPT_EVERY_S`` old, and all at the end. If the store
fails, what was learnt since is lost; serving goes on.
"""

import asyncio
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, Protocol

from tidegate.autoscaler.autoscaler import Autoscaler
from tidegate.autoscaler.measure.rates import measured_cells
from tidegate.autoscaler.profiles.admission import Kind, KnownFigures, Source, known_figures
from tidegate.autoscaler.profiles.interference import InterferenceLearner, LearntPair
from tidegate.autoscaler.profiles.learnt import (
    LearntFunction,
    LearntProfile,
    chosen,
    floor_of,
    identity,
    merged,
    rate_of,
)
from tidegate.autoscaler.profiles.learnt import found as profile_for
from tidegate.autoscaler.profiles.sla_cost import SeenLoad
from tidegate.autoscaler.profiles.tuning import LimitNow, Tuners
from tidegate.clock import Clock
from tidegate.control.predictor.predictions import Predictions
from tidegate.control.watch.memories import PolicyMemories
from tidegate.control.watch.neighbours import Neighbours
from tidegate.control.workers.links import LinkError
from tidegate.deploy.backend import Backend, ReplicaStatus
from tidegate.deploy.environment import is_shipped
from tidegate.deploy.placement.interference import Interference
from tidegate.deploy.placement.ledger import Accelerator, model_of
from tidegate.function import Function, Revision
from tidegate.records.codec import CodecError, decode, encode
from tidegate.records.decision import Reason
from tidegate.records.profile_point import ProfilePoint
from tidegate.records.replica_sample import ReplicaSample
from tidegate.store.records import Store, StoreError

KEPT_EVERY_S: Final = 30.0


class AdminEndpoint(Protocol):
    """A queue_proxy's admin endpoint."""

    async def post(self, path: str, body: bytes = b"") -> bytes: ...


class LearnedProfiles:
    """The learnt rates and limits of all revisions. :meth:`load` first, :meth:`close` last; in between :meth:`measured`
    and :meth:`review`."""

    def __init__(
        self,
        *,
        autoscaler: Autoscaler,
        backend: Backend,
        predictions: Predictions,
        clock: Clock,
        store: Store | None = None,
        epoch: int = 0,
        interference: Interference | None = None,
    ) -> None:
        """``interference``: the table that placement reads, to be filled with what is learnt."""
        self._autoscaler = autoscaler
        self._backend = backend
        self._clock = clock
        self._store = store
        self._epoch = epoch
        self._memories = PolicyMemories(autoscaler, clock, store)
        self._tuners = Tuners()
        self._interference = InterferenceLearner(interference or Interference())
        self._neighbours = Neighbours(self._interference)
        self.predictions = predictions
        """What is expected where nothing was measured."""
        self._kept: dict[str, LearntFunction] = {}
        self._revisions: dict[str, Revision] = {}
        self._given: dict[tuple[str, str], KnownFigures] = {}
        """By revision and accelerator: what its deploy was answered."""
        self._of_function: dict[str, dict[str, Revision]] = {}
        self._due: list[str] = []
        """Functions to be looked at; the next one is the last."""
        self._unsaved: set[str] = set()
        """Functions with knowledge that is not written down."""
        self._again_at = clock.now() + KEPT_EVERY_S

    async def load(self) -> None:
        """Reads what earlier processes have learnt; skips records that cannot be read."""
        if self._store is None:
            return
        await self._memories.load()
        for record in await self._store.list("learnt/"):
            with suppress(CodecError):
                known = decode(record.value, LearntFunction)
                self._kept[known.function] = known

    # --- revisions

    def track(self, revision: Revision) -> None:
        """Begins a revision with what is known of its model, or of the revision before."""
        name = revision.function.name
        self._revisions[revision.id] = revision
        self._of_function.setdefault(name, {})[revision.id] = revision
        self._memories.track(revision)
        self.predictions.track(revision.function)
        self._keep(name)
        known = self._kept.get(name, LearntFunction(function=name))
        for accelerator in self._backend.devices():
            identity_ = identity(revision.function, accelerator)
            profile, is_own = profile_for(known, identity_, accelerator.name, _share(revision))
            self._given[revision.id, accelerator.name] = self._known_figures(revision, accelerator, profile, is_own)
            if profile is None:
                continue
            if is_own:
                self._autoscaler.collector.teach(revision.id, accelerator.name, profile.cells, profile.mean_batch)
            if profile.limit is not None and is_own:
                self._tuners.restore(revision.id, accelerator.name, profile.limit)
            if is_own:
                self._interference.restore(accelerator.name, model_of(revision.function), profile.beside)

    def _known_figures(
        self, revision: Revision, accelerator: Accelerator, profile: LearntProfile | None, is_own: bool
    ) -> KnownFigures:
        """Returns the figures that first decisions go by; a cold prediction is none of them."""
        mu_ips, one_s, predicted = None, None, None
        if profile is not None:
            mu_ips, one_s = rate_of(profile), floor_of(profile)
        else:
            predicted = self.predictions.of(revision.function, accelerator)
        return known_figures(
            revision.function,
            accelerator,
            mu_ips=mu_ips,
            one_s=one_s,
            is_own=is_own,
            is_measured=profile is not None and profile.is_measured,
            predicted=None if predicted is None or predicted.is_cold else predicted,
        )

    def forget(self, revision: str) -> None:
        """Ends a revision that has no replicas left; what was learnt of it stays for the next one."""
        self._memories.forget(revision)
        gone = self._revisions.get(revision)
        if gone is not None:
            name = gone.function.name
            self._keep(name)
            del self._revisions[revision], self._of_function[name][revision]
            if not self._of_function[name]:
                del self._of_function[name]
        self._tuners.forget(revision)
        self._given = {key: figures for key, figures in self._given.items() if key[0] != revision}

    # --- what is known

    def mu_ips(self, revision: str, accelerator: str) -> float | None:
        """Returns the rate of one replica: learnt at its limit, else that of the revision before; None if neither is
        known."""
        learnt = self._autoscaler.mu_ips(revision, accelerator)
        return self.prior_ips(revision, accelerator) if learnt is None else learnt

    def prior_ips(self, revision: str, accelerator: str) -> float | None:
        """Returns the rate of the revision before on that accelerator."""
        known = self._given.get((revision, accelerator))
        return None if known is None or known.source is not Source.EARLIER else known.mu_ips

    def given(self, revision: str, accelerator: str) -> KnownFigures | None:
        """Returns the answer to a revision's deploy about that accelerator. Decisions go by it until the revision has
        figures of its own."""
        return self._given.get((revision, accelerator))

    def accelerators_changed(self) -> None:
        """Reads what is known of all revisions again: an accelerator may be another one."""
        for name, revisions in self._of_function.items():
            known = self._kept.get(name, LearntFunction(function=name))
            for revision in revisions.values():
                for accelerator in self._backend.devices():
                    identity_ = identity(revision.function, accelerator)
                    profile, is_own = profile_for(known, identity_, accelerator.name, _share(revision))
                    figures = self._known_figures(revision, accelerator, profile, is_own)
                    self._given[revision.id, accelerator.name] = figures

    def limit(self, revision: str, accelerator: str) -> LimitNow | None:
        """Returns the learnt limit; None if the function states one, or nothing is known."""
        return self._tuners.limit(revision, accelerator)

    def beside(self, revision: str, accelerator: str) -> tuple[LearntPair, ...]:
        """Returns how much other models on one device slow a revision there, as far as it is learnt."""
        known = self._revisions.get(revision)
        return () if known is None else self._interference.learnt(accelerator, model_of(known.function))

    def load_of(self, function: str) -> SeenLoad | None:
        """Returns the load of a function so far; None if its policy does not know it."""
        return self._memories.load_of(function)

    async def unlearn(self, function: str) -> tuple[str, ...]:
        """Drops what the policy of a function has learnt; returns it in words. Service rates and limits stay: they are
        measured. Raises StoreError."""
        return await self._memories.unlearn(function)

    def kinds(self, revision: Revision) -> list[Kind]:
        """Returns what is known of a revision before its deploy, for each accelerator that it may use, cheapest
        first."""
        name = revision.function.name
        self._keep(name)
        known = self._kept.get(name, LearntFunction(function=name))
        devices = {each.name: each for each in self._backend.devices()}
        streams = self._memories.streams_of(name)
        kinds = []
        for accelerator, room in self._backend.room(revision).items():
            device = devices[accelerator]
            identity_ = identity(revision.function, device)
            profile, is_own = profile_for(known, identity_, accelerator, _share(revision))
            kinds.append(
                Kind(
                    accelerator=device,
                    room=room,
                    mu_ips=None if profile is None else rate_of(profile),
                    one_s=None if profile is None else floor_of(profile),
                    is_own=is_own,
                    is_measured=profile is not None and profile.is_measured,
                    predicted=None if profile is not None else self.predictions.of(revision.function, device),
                    first_s=streams[accelerator].first_s if accelerator in streams else None,
                )
            )
        return kinds

    def give(self, function: Function, points: Iterable[ProfilePoint]) -> tuple[str, ...]:
        """Takes measured points for a function that is about to be deployed; returns the accelerators that it now has
        figures of. What was learnt of the same model there counts more."""
        revision = Revision(function, 0)
        self._keep(function.name)
        known = self._kept.get(function.name, LearntFunction(function=function.name))
        fresh = []
        for accelerator in self._backend.devices():
            here = chosen([each for each in points if each.cell.accelerator == accelerator.name], function)
            own, share = identity(function, accelerator), _share(revision)
            for point in here:
                self.predictions.profiled(function, accelerator, point)
            if not here or profile_for(known, own, accelerator.name, share)[1]:
                continue
            fresh.append(
                LearntProfile(
                    identity=own,
                    accelerator=accelerator.name,
                    share=share,
                    at=self._clock.now(),
                    mean_batch=float(min(each.cell.batch for each in here)),
                    is_measured=True,
                    cells=tuple(cell for each in here for cell in measured_cells(each)),
                )
            )
        now = merged(known, fresh)
        if now is not known:
            self._kept[function.name] = now
            self._unsaved.add(function.name)
        return tuple(each.accelerator for each in fresh)

    # --- the second

    def measured(self, before: ReplicaSample | None, sample: ReplicaSample, accelerator: str) -> None:
        """Takes a sample of a replica, and the one before of the same incarnation."""
        revision = self._revisions.get(sample.revision)
        if revision is None:
            return
        if revision.function.concurrency is None:
            kind = next((each for each in self._backend.devices() if each.name == accelerator), None)
            is_declared = kind is not None and is_shipped(revision.function, kind)
            # A stage of a pipeline has its budget for a target, which changes.
            function = self._autoscaler.scaled(revision.function)
            self._tuners.found(function, sample, accelerator, is_declared=is_declared)
        if before is not None:
            self._tuners.measured(before, sample, accelerator)
            if _is_sharing(revision.function):
                self._neighbours.measured(before, sample)
            device = next((each for each in self._backend.devices() if each.name == accelerator), None)
            if device is not None:
                self.predictions.measured(revision.function, device, before, sample)

    async def review(self, now: float, waiting: Mapping[str, int]) -> None:
        """Sets new limits after the samples of a second, with their reasons in the decision log, and writes down a part
        of what was learnt."""
        for move in self._tuners.turn(now, waiting):
            why = Reason(code=move.reason.code, detail=f"{move.accelerator}: {move.reason.detail}")
            self._autoscaler.add_reason(move.revision, why)
            self._due.append(self._revisions[move.revision].function.name)
        self._neighbours.review(self._backend.replicas(), self._revisions, now)
        self.predictions.review()
        await self._write(max(1, math.ceil(len(self._of_function) / KEPT_EVERY_S)))
        await self._memories.review()

    def orders(
        self, replicas: Iterable[ReplicaStatus], samples: Mapping[str, ReplicaSample]
    ) -> list[tuple[ReplicaStatus, int]]:
        """Returns the replicas that work with another limit than their group's, with that limit."""
        found = []
        for each in replicas:
            limit = self._tuners.limit(each.revision, each.accelerator)
            sample = samples.get(each.id)
            known = each.limit if sample is None else sample.limit
            if limit is not None and known != limit.limit:
                found.append((each, limit.limit))
        return found

    async def order(self, endpoint: AdminEndpoint, limit: int) -> None:
        """Sends a replica its limit. One that does not answer, or has seen a newer control process, is sent it again
        later."""
        with suppress(LinkError):
            await endpoint.post("/limit", encode({"limit": limit, "epoch": self._epoch}))

    # --- what is kept

    async def close(self) -> None:
        """Writes down everything."""
        self._due = [*self._unsaved, *self._of_function]
        await asyncio.shield(self._write(len(self._due)))
        await asyncio.shield(self._memories.close())
        await asyncio.shield(self.predictions.close())

    def _keep(self, function: str) -> None:
        """Merges what is known now into what is kept."""
        known = self._kept.get(function, LearntFunction(function=function))
        now = merged(known, self._profiles(function))
        if now is not known:
            self._kept[function] = now
            self._unsaved.add(function)

    def _profiles(self, function: str) -> list[LearntProfile]:
        kinds = {each.name: each for each in self._backend.devices()}
        found = []
        for revision in self._of_function.get(function, {}).values():
            limits = dict(self._tuners.learnt(revision.id))
            groups = self._autoscaler.collector.learnt(revision.id)
            beside = {name: pairs for name in kinds if (pairs := self.beside(revision.id, name))}
            # Interference is of a model by its name: without speeds of its own the profile would hide the prior.
            for name in (groups.keys() | limits.keys()) & kinds.keys():
                cells, mean_batch = groups.get(name, ((), None))
                found.append(
                    LearntProfile(
                        identity=identity(revision.function, kinds[name]),
                        accelerator=name,
                        share=_share(revision),
                        at=self._clock.now(),
                        mean_batch=mean_batch,
                        cells=cells,
                        limit=limits.get(name),
                        beside=beside.get(name, ()),
                    )
                )
        return found

    async def _write(self, limit: int) -> None:
        """Looks at up to ``limit`` functions and writes down what is new of them; begins again after the last one."""
        if self._store is None:
            return
        now = self._clock.now()
        if not self._due and now >= self._again_at:
            self._again_at, self._due = now + KEPT_EVERY_S, list(self._of_function)
        for _ in range(min(limit, len(self._due))):
            name = self._due.pop()
            self._keep(name)
            if name not in self._unsaved:
                continue
            known = self._kept.get(name)
            self._unsaved.discard(name)
            try:
                if known is None:
                    await self._store.delete(f"learnt/{name}")
                else:
                    await self._store.put(f"learnt/{name}", encode(known))
            except StoreError:
                self._unsaved.add(name)  # the store reports it; the next review writes again

    def drop(self, function: str) -> None:
        """Drops a deleted function of which nothing is left."""
        self._memories.drop(function)
        if self._kept.pop(function, None) is not None:
            self._unsaved.add(function)
            self._due.append(function)

    def __repr__(self) -> str:
        return f"<LearnedProfiles {len(self._revisions)} revisions, {len(self._kept)} functions kept>"


def _is_sharing(function: Function) -> bool:
    """Returns whether replicas of the function may share a device with others."""
    return function.gpu.mps or function.gpu.time_slices > 1


def _share(revision: Revision) -> int:
    """Returns the share of a device in percent, from the group's setting."""
    return revision.function.gpu.core_percentage if revision.function.gpu.mps else 100
