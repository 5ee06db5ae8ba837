"""The running deployment behind the API: reads the control loop's state, and carries out what the API is sent."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Final, Protocol

from tidegate.autoscaler.measure.history import METRICS
from tidegate.control.api import describe, pipelines
from tidegate.control.api import logs as tailing
from tidegate.control.api.commands.deploy import DeployCommands
from tidegate.control.api.commands.resize import ResizeCommands
from tidegate.control.api.commands.traffic import TrafficCommands
from tidegate.control.api.copies import Copies
from tidegate.control.api.errors import LeavingError, RefusedError, UnknownFunctionError
from tidegate.control.api.explanations import Explanations
from tidegate.control.rounds.wiring import ControlLoop
from tidegate.control.state.directory import StateDirectory
from tidegate.control.state.registry import Deployed, Registry
from tidegate.control.views.costs import CostView, cost_row, cost_rows
from tidegate.control.views.deployment import (
    DeploymentView,
    GatewayView,
    ReloadView,
    ReplacedView,
    RestartView,
    TenantView,
)
from tidegate.control.views.functions import (
    ColdStartView,
    DeployView,
    ExplainView,
    ForgottenView,
    FunctionView,
    ManifestView,
    ResizeView,
    RolloutView,
    SeriesLineView,
    SeriesView,
    SplitView,
)
from tidegate.control.views.requests import DeployRequest, ResizeRequest, RollbackRequest, RolloutRequest, SplitRequest
from tidegate.control.workers.renewal import Reloaded
from tidegate.errors import Fault, InvalidInputError
from tidegate.manifest.writer import write
from tidegate.records.costs import GroupBy
from tidegate.records.decision import Decision
from tidegate.schema.yaml_nodes import nearest
from tidegate.store.records import Store

LINKED_S: Final = 2.0
"""Time for which a worker that is being linked may answer 404; a deploy waits for it."""
WATCH_EVERY_S: Final = 0.1
"""Smallest time between two views sent to a watcher."""


class FrontDoor(Protocol):
    """The part of the gateway workers' supervisor that the API uses."""

    @property
    def url(self) -> str: ...

    @property
    def certificate(self) -> str | None: ...

    def views(self) -> tuple[GatewayView, ...]: ...

    async def linked(self, limit_s: float) -> bool:
        """Waits until every worker works from the newest table; returns False if some do not in time."""
        ...

    async def reload(self) -> Mapping[str, str | None]:
        """Makes every worker read its certificate. Returns by name None, or why it keeps the old one."""
        ...


Renew = Callable[[], Awaitable[tuple[tuple[ReplacedView, ...], tuple[str, ...]]]]
"""Replaces the gateway workers with the settings as they are now. Returns the replaced ones and the settings that need
another ``tidegate up``. Raises InvalidInputError, RestartError."""
Reload = Callable[[], Awaitable[Reloaded]]
"""Reads settings and accelerators again. Raises InvalidInputError with every fault; then nothing has changed."""


async def _nothing_changed() -> Reloaded:
    return Reloaded()


class Deployment:
    """The API's operations. ``stop`` shuts the deployment down, ``renew`` replaces the gateway workers;
    ``records_fault`` returns why the last record of a process could not be written."""

    def __init__(
        self,
        *,
        state: StateDirectory,
        store: Store,
        loop: ControlLoop,
        gateways: FrontDoor,
        scrape: Callable[[], AsyncIterator[bytes]],
        epoch: int,
        version: str,
        domain: str,
        stop: Callable[[], None],
        renew: Renew,
        reload: Reload = _nothing_changed,
        records_fault: Callable[[], str | None] = lambda: None,
        tenants: Callable[[], tuple[TenantView, ...]] = tuple,
    ) -> None:
        self._state = state
        self._deploys = DeployCommands(loop, Copies(state.copies))
        self._store = store
        self._loop = loop
        self._world = loop.world
        self._views = describe.views_of(loop)
        self._commands = TrafficCommands(
            world=loop.world,
            publisher=loop.publisher,
            rollouts=loop.rollouts,
            views=self._views,
            clock=loop.clock,
            soon=loop.round.soon,
        )
        self._resizes = ResizeCommands(world=loop.world, executor=loop.executor, clock=loop.clock)
        self._explanations = Explanations(loop.autoscaler.core, loop.backend)
        self._gateways = gateways
        self._scrape = scrape
        self._faults = loop.faults
        self._changes = loop.changes
        self._clock = loop.clock
        self._epoch = epoch
        self._version = version
        self._domain = domain
        self._stop = stop
        self._renew = renew
        self._reload = reload
        self._records_fault = records_fault
        self._tenants = tenants
        self._since = loop.clock.now()
        self._changing = asyncio.Lock()
        self.api = ""
        """URL of the API, once it listens."""
        self.metrics_url: str | None = None
        """URL of the listener that has metrics alone, once it listens."""
        self.leaving = False

    @property
    def registry(self) -> Registry:
        return self._world.registry

    @property
    def gateway(self) -> str:
        """Base URL of the gateway."""
        return self._gateways.url

    @property
    def certificate(self) -> str | None:
        """File with the gateway's certificate; None without TLS."""
        return self._gateways.certificate

    # --- reading ---

    def view(self) -> DeploymentView:
        """Returns the view of the whole deployment."""
        return self._view(self.functions())

    async def view_in_slices(self) -> DeploymentView:
        """Returns the same, made function by function with a turn of the loop in between: of a thousand functions it
        takes a few hundred milliseconds."""
        functions = []
        for deployed in self.registry.all():
            functions.append(self._describe(deployed))
            await asyncio.sleep(0)
        return self._view(tuple(functions))

    def _view(self, functions: tuple[FunctionView, ...]) -> DeploymentView:
        table = self._loop.publisher.table
        faults = [*self._faults.texts()]
        if self._store.fault is not None:
            faults.append(f"store: {self._store.fault}")
        if (lost := self._records_fault()) is not None:
            faults.append(f"process records: {lost}")
        faults += [f"autoscaler: {name}: {fault}" for name, fault in self._loop.autoscaler.faults().items() if fault]
        return DeploymentView(
            version=self._version,
            pid=os.getpid(),
            epoch=self._epoch,
            since_s=self._clock.now() - self._since,
            state_directory=str(self._state.root),
            api=self.api,
            gateway=self.gateway,
            table="-" if table is None else f"{table.epoch}.{table.number}",
            faults=tuple(faults),
            gateways=self._gateways.views(),
            accelerators=self._views.accelerators(),
            functions=functions,
            certificate=self.certificate,
            store=self._store.place,
            metrics=self.metrics_url,
        )

    def functions(self) -> tuple[FunctionView, ...]:
        return tuple(self._describe(deployed) for deployed in self.registry.all())

    def function(self, name: str, *, log: bool = True) -> FunctionView:
        """Returns the view of one function. ``log``: with the last lines of its newest model server. Raises
        UnknownFunctionError."""
        return self._describe(self._deployed(name), log=log)

    @property
    def changed(self) -> int:
        """Number of changes so far: views made at the same number are the same, apart from ages."""
        return self._changes.count

    async def changes(self, name: str | None) -> AsyncGenerator[DeploymentView | FunctionView, None]:
        """Yields the view now and after every change, at most a few times a second; ends with the function or the
        process."""
        sent: DeploymentView | FunctionView | None = None
        while True:
            if name is not None and self.registry.get(name) is None:
                return
            count = self._changes.count
            view = self.view() if name is None else self.function(name)
            if view != sent:
                yield view
                sent = view
            if self._changes.has_ended:
                return
            await self._changes.after(count)
            await asyncio.sleep(WATCH_EVERY_S)

    def explain(self, name: str, last: int) -> ExplainView:
        """Returns why the function has its number of replicas. Raises UnknownFunctionError."""
        deployed = self._deployed(name)
        view = self._describe(deployed)
        if view.is_pipeline:
            return self._explanations.of_pipeline(view, self._stages(deployed))
        function = deployed.current.function
        assessed, disbelief = self._deploys.assess(function), self._deploys.disbelief(function)
        return self._explanations.of_function(deployed, view, assessed, last, disbelief)

    def manifest(self, name: str, revision: str | None) -> ManifestView:
        """Returns the revision that was deployed last, or that one, as a manifest; after a rollback, the one returned
        to. Raises UnknownFunctionError, InvalidInputError."""
        deployed = self._deployed(name)
        kept = {each.revision.id: each for _, each in sorted(self.registry.numbers(name).items())}
        if revision is not None and revision not in kept:
            allowed = f"a revision that is kept: {', '.join(kept)}{nearest(revision, kept)}"
            raise InvalidInputError("manifest", [Fault("revision", revision, allowed)])
        record = deployed.latest if revision is None else kept[revision]
        return ManifestView(
            function=name,
            revision=record.revision.id,
            manifest=write(record.function),
            source=record.source,
            copy=record.function.server.copy,
            modules=record.function.server.modules,
            created_at=record.created_at,
        )

    def decisions(self, name: str, last: int) -> tuple[Decision, ...]:
        self._deployed(name)
        return tuple(self._loop.autoscaler.core.decisions(name, last))

    async def recording(self, name: str, revision: str | None) -> Iterator[bytes]:
        """Returns the recording of the serving revision, or of that one, in pieces of whole JSON lines. Raises
        UnknownFunctionError, InvalidInputError (revision), and RefusedError for a pipeline."""
        deployed = self._deployed(name)
        if stages := deployed.current.function.server.stages:
            names = ", ".join(each.function for each in stages)
            raise RefusedError(f"{name} is a pipeline, without decisions of its own; record one of its stages: {names}")
        recorder = self._loop.autoscaler.recorder
        wanted = deployed.current.revision.id if revision is None else revision
        known = recorder.recorded(name)
        if revision is not None and revision not in known:
            allowed = f"a revision of {name} with a recording: {', '.join(known) or 'there is none'}"
            raise InvalidInputError("recording", [Fault("revision", revision, allowed)])
        return await recorder.lines(wanted)

    def series(self, name: str, *, metric: str | None, group: str | None, since_s: float, step_s: float) -> SeriesView:
        """Returns the recent time series. Raises UnknownFunctionError, InvalidInputError (metric, group)."""
        self._deployed(name)
        groups = sorted(each.name for each in self._loop.backend.devices())
        wrong = [
            Fault(option, repr(given), ", ".join(known) or "none")
            for option, given, known in (("metric", metric, METRICS), ("group", group, groups))
            if given is not None and given not in known
        ]
        if wrong:
            raise InvalidInputError("series", wrong)
        found = self._loop.instruments.history.query(
            name, self._clock.now(), since_s=since_s, step_s=step_s, metric=metric, group=group
        )
        lines = tuple(
            SeriesLineView(metric=line.metric, group=line.group, unit=line.unit, points=line.points)
            for line in found.lines
        )
        return SeriesView(
            function=name, step_s=found.step_s, lines=lines, refused=self._loop.instruments.history.refused
        )

    async def costs(
        self, *, function: str | None, tenant: str | None, since_s: float, by: GroupBy, is_spread: bool
    ) -> CostView:
        """Returns device time and its price. Raises UnknownFunctionError for one without cost that is not deployed."""
        since, until, found = await self._loop.instruments.costs.report(
            since_s, by, function=function, tenant=tenant, is_spread=is_spread
        )
        if function is not None and not found.rows:
            self._deployed(function)
        return CostView(
            by=by,
            function=function,
            tenant=tenant,
            spread=is_spread,
            since=since,
            until=until,
            rows=cost_rows(found),
            total=cost_row("total", found.total),
        )

    def cold_starts(self, name: str) -> tuple[ColdStartView, ...]:
        self._deployed(name)
        return self._loop.instruments.cold_starts.of(name)

    def logs(
        self, name: str, *, tail: int, follow: bool, replica: str | None, source: str
    ) -> AsyncGenerator[bytes, None]:
        """Yields log lines as NDJSON: ``{"replica": ..., "source": "server", "line": ...}``; of a pipeline those of its
        stages."""
        deployed = self.registry.get(name)
        stages = () if deployed is None else deployed.current.function.server.stages
        folders = [self._state.logs / each for each in [stage.function for stage in stages] or [name]]
        if replica is not None and not tailing.files(folders, replica, source):
            known = sorted({tailing.Tail(path).replica for path in tailing.files(folders, None, source)})
            allowed = f"a replica of {name} with a log: {', '.join(known) or 'there is none'}"
            raise InvalidInputError("logs", [Fault("replica", replica, allowed)])
        return tailing.lines(folders, tail=tail, follow=follow, replica=replica, source=source, until=self._changes)

    def metrics(self) -> AsyncIterator[bytes]:
        """Yields the exposition of the whole deployment."""
        return self._scrape()

    def tenants(self) -> tuple[TenantView, ...]:
        """Returns the tenants in force, with what they have used."""
        return self._tenants()

    # --- changing ---

    async def deploy(self, request: DeployRequest, *, settles: bool = True) -> DeployView:
        """Raises InvalidInputError with all faults, CannotRunError, StoreError. ``settles``: False for one of many
        deploys, after which :meth:`settle` comes."""
        self._refuse_when_leaving()
        async with self._changing:
            deployed = await self._deploys.deploy(request)
        if settles:
            await self.settle()
        return DeployView(functions=deployed)

    async def settle(self) -> None:
        """Lets gateways and autoscaler take up what was deployed. It takes time for each function that there is."""
        self._world.sync()
        await self._loop.publisher.publish()
        self._loop.round.soon()
        await self._gateways.linked(LINKED_S)
        self._changes.fire()

    async def delete(self, name: str) -> None:
        self._refuse_when_leaving()
        self._deployed(name)
        async with self._changing:
            pipelines.check_delete(name, self.registry)
            await self.registry.delete(name)
        self._world.sync()
        await self._loop.publisher.publish()
        self._loop.round.soon()
        self._changes.fire()

    async def forget(self, name: str) -> ForgottenView:
        """Drops what the policy of a function has learnt; the function stays. Raises UnknownFunctionError,
        StoreError."""
        self._refuse_when_leaving()
        self._deployed(name)
        async with self._changing:
            learnt = await self._loop.profiles.unlearn(name)
        self._changes.fire()
        return ForgottenView(function=name, learnt=learnt)

    def split(self, name: str) -> SplitView:
        """Returns the part of the traffic that each revision has."""
        return self._commands.split(name)

    async def set_split(self, name: str, request: SplitRequest) -> SplitView:
        """Raises InvalidInputError with all faults, StoreError."""
        self._refuse_when_leaving()
        async with self._changing:
            return await self._commands.set_split(name, request)

    async def rollback(self, name: str, request: RollbackRequest) -> SplitView:
        """Raises InvalidInputError, RefusedError, StoreError."""
        self._refuse_when_leaving()
        async with self._changing:
            return await self._commands.rollback(name, request)

    def rollout(self, name: str) -> RolloutView:
        """Returns the rollout under way, or the last one. Raises RefusedError if there was none."""
        return self._commands.rollout(name)

    async def change_rollout(self, name: str, request: RolloutRequest) -> RolloutView:
        """Raises InvalidInputError with all faults, RefusedError, StoreError."""
        self._refuse_when_leaving()
        async with self._changing:
            return await self._commands.change_rollout(name, request)

    async def resize(self, name: str, request: ResizeRequest) -> ResizeView:
        """Raises InvalidInputError with all faults, RefusedError."""
        self._refuse_when_leaving()
        async with self._changing:
            return await self._resizes.resize(name, request)

    async def restart(self) -> RestartView:
        """Replaces the gateway workers while they serve, with the settings as they are now. Raises InvalidInputError
        with all faults of the settings, RestartError."""
        self._refuse_when_leaving()
        replaced, needs_up = await self._renew()
        self._changes.fire()
        return RestartView(replaced=replaced, needs_up=needs_up)

    async def reload(self) -> ReloadView:
        """Reads settings, accelerators, tenants and certificate. Raises InvalidInputError with every fault."""
        self._refuse_when_leaving()
        found = await self._reload()
        workers = await self._gateways.reload()
        self._loop.round.soon()
        self._changes.fire()
        return ReloadView(
            reloaded=tuple(name for name, fault in workers.items() if fault is None),
            faults={name: fault for name, fault in workers.items() if fault is not None},
            in_force=found.in_force,
            needs_restart=found.needs_restart,
            needs_up=found.needs_up,
            overridden=found.overridden,
        )

    def shut_down(self) -> None:
        """Begins an orderly end and returns."""
        self._stop()

    # --- small things ---

    def _describe(self, deployed: Deployed, *, log: bool = False) -> FunctionView:
        last = self._last_log(deployed.name) if log else ()
        view = self._views.function(deployed, self.gateway, self._domain, last)
        if not view.is_pipeline:
            return view
        return pipelines.with_stages(view, self._stages(deployed), self._loop.autoscaler.core.budgets(deployed.name))

    def _stages(self, deployed: Deployed) -> tuple[FunctionView, ...]:
        """Returns the views of a pipeline's stages."""
        found = (self.registry.get(stage.function) for stage in deployed.current.function.server.stages)
        return tuple(self._describe(each) for each in found if each is not None)

    def _last_log(self, name: str) -> tuple[str, ...]:
        found = tailing.files([self._state.logs / name], None, "server")
        return tuple(tailing.Tail(found[-1]).last(10)) if found else ()

    def _deployed(self, name: str) -> Deployed:
        deployed = self.registry.get(name)
        if deployed is None:
            raise UnknownFunctionError(name, tuple(each.name for each in self.registry.all()))
        return deployed

    def _refuse_when_leaving(self) -> None:
        if self.leaving:
            raise LeavingError("the control process is shutting down")

    def __repr__(self) -> str:
        return f"<Deployment {self._state.root}, epoch {self._epoch}>"
