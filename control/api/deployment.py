"""A running deployment as its API sees it: implements ``tidegate.control.api.service.Service`` over the round."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from prometheus_client import CollectorRegistry

from tidegate.clock import Clock
from tidegate.control.api import describe
from tidegate.control.api import logs as tailing
from tidegate.control.api import prometheus as metrics
from tidegate.control.api.copies import Copies
from tidegate.control.api.service import CannotRunError, LeavingError, UnknownFunctionError
from tidegate.control.api.troubles import troubles
from tidegate.control.rounds.round import Round
from tidegate.control.rounds.traffic_commands import Steering
from tidegate.control.state.directory import StateDirectory
from tidegate.control.state.faults import Faults
from tidegate.control.state.pulse import ChangeSignal
from tidegate.control.state.registry import Deployed, Registry
from tidegate.control.views.views import (
    ColdStartView,
    DecisionView,
    DeployedView,
    DeploymentView,
    DeployRequest,
    DeployView,
    ExplainView,
    FunctionView,
    GatewayView,
    ReloadView,
    ReplacedView,
    RestartView,
    RollbackRequest,
    RolloutRequest,
    RolloutView,
    SeriesLineView,
    SeriesView,
    SplitRequest,
    SplitView,
    TenantView,
)
from tidegate.control.workers.renewal import Reloaded
from tidegate.errors import Fault, InvalidInputError
from tidegate.function import Function, Revision
from tidegate.store.records import Store

if TYPE_CHECKING:
    from tidegate.autoscaler.profiles.admission import Assessment
    from tidegate.manifest.builder import ParseContext

LINKED_S: Final = 2.0
"""A worker that is just being linked may answer 404 for so long; a deploy waits for it."""
WATCH_EVERY_S: Final = 0.1
"""A watcher is told at most this often."""


class FrontDoor(Protocol):
    """The gateway workers as the API shows them."""

    @property
    def url(self) -> str: ...

    @property
    def certificate(self) -> str | None: ...

    def views(self) -> tuple[GatewayView, ...]: ...

    async def expositions(self) -> list[str]: ...

    async def linked(self, limit_s: float) -> bool:
        """Waits until every worker works from the newest table; False when some do not in time."""
        ...

    async def reload(self) -> Mapping[str, str | None]:
        """Has every worker read its certificate: None, or why it keeps the old one, by name."""
        ...


Renew = Callable[[], Awaitable[tuple[tuple[ReplacedView, ...], tuple[str, ...]]]]
"""Replaces the gateway workers with the settings as they are now; answers the replaced ones and the settings that need
another ``tidegate up``. Raises InvalidInputError, RestartError."""
Reload = Callable[[], Awaitable[Reloaded]]
"""Reads settings and accelerators anew. Raises InvalidInputError with every fault; then nothing has changed."""


async def _nothing_changed() -> Reloaded:
    return Reloaded()


class Deployment:
    """``stop`` is called when the API is asked to shut down, ``renew`` when it is asked for fresh gateway workers;
    ``records_fault`` says why the last record of a process could not be written."""

    def __init__(
        self,
        *,
        state: StateDirectory,
        store: Store,
        world: Round,
        gateways: FrontDoor,
        own_metrics: CollectorRegistry,
        faults: Faults,
        pulse: ChangeSignal,
        clock: Clock,
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
        self._copies = Copies(state.copies)
        self._store = store
        self._round = world
        self._steering = Steering(world)
        self._gateways = gateways
        self._metrics = own_metrics
        self._faults = faults
        self._pulse = pulse
        self._clock = clock
        self._epoch = epoch
        self._version = version
        self._domain = domain
        self._stop = stop
        self._renew = renew
        self._reload = reload
        self._records_fault = records_fault
        self._tenants = tenants
        self._since = clock.now()
        self._changing = asyncio.Lock()
        self.api = ""
        """URL of the API, once it listens."""
        self.leaving = False

    @property
    def registry(self) -> Registry:
        return self._round.registry

    @property
    def gateway(self) -> str:
        """URL of the front door."""
        return self._gateways.url

    @property
    def certificate(self) -> str | None:
        """File with the front door's certificate; None without TLS."""
        return self._gateways.certificate

    # --- reading ---

    def view(self) -> DeploymentView:
        table = self._round.table
        faults = [*self._faults.texts()]
        if self._store.fault is not None:
            faults.append(f"store: {self._store.fault}")
        if (lost := self._records_fault()) is not None:
            faults.append(f"process records: {lost}")
        faults += [f"autoscaler: {name}: {what}" for name, what in self._round.live_autoscaler.faults().items() if what]
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
            accelerators=describe.accelerators(self._round),
            functions=self.functions(),
            certificate=self.certificate,
            store=self._store.place,
        )

    def functions(self) -> tuple[FunctionView, ...]:
        return tuple(self._describe(deployed) for deployed in self.registry.all())

    def function(self, name: str) -> FunctionView:
        return self._describe(self._deployed(name), log=True)

    async def changes(self, name: str | None) -> AsyncGenerator[DeploymentView | FunctionView, None]:
        told: DeploymentView | FunctionView | None = None
        while True:
            if name is not None and self.registry.get(name) is None:
                return
            beat = self._pulse.beat
            view = self.view() if name is None else self.function(name)
            if view != told:
                yield view
                told = view
            if self._pulse.has_ended:
                return
            await self._pulse.after(beat)
            await asyncio.sleep(WATCH_EVERY_S)

    def explain(self, name: str, last: int) -> ExplainView:
        deployed = self._deployed(name)
        words = self._round.autoscaler.explain(name, last)
        usable = self._round.backend.room(deployed.current.revision)
        emulated = sorted(
            each.name for each in self._round.backend.devices() if each.is_emulated and each.name in usable
        )
        if words and emulated:
            words.append(f"emulated, their service times come from a profile: {', '.join(emulated)}")
        if words and (rolling := deployed.rolling) is not None and deployed.candidate is not None:
            who = f"{rolling.strategy.value} rollout of {deployed.candidate.revision.id}"
            words.append(f"{who}, {rolling.phase.value} at {rolling.percent:g} %: {rolling.verdict}")
        words += troubles(self._describe(deployed))
        text = "\n".join(words) if words else f"nothing was decided about {name} yet"
        return ExplainView(function=name, text=text, decisions=self.decisions(name, last))

    def decisions(self, name: str, last: int) -> tuple[DecisionView, ...]:
        self._deployed(name)
        return tuple(describe.decision_view(each) for each in self._round.autoscaler.decisions(name, last))

    async def recording(self, name: str, revision: str | None) -> Iterator[bytes]:
        deployed = self._deployed(name)
        recorder = self._round.live_autoscaler.recorder
        wanted = deployed.current.revision.id if revision is None else revision
        known = recorder.recorded(name)
        if revision is not None and revision not in known:
            allowed = f"a revision of {name} with a recording: {', '.join(known) or 'there is none'}"
            raise InvalidInputError("recording", [Fault("revision", revision, allowed)])
        return await recorder.lines(wanted)

    def series(self, name: str, *, metric: str | None, group: str | None, since_s: float, step_s: float) -> SeriesView:
        from tidegate.autoscaler.measure.history import METRICS

        self._deployed(name)
        groups = sorted(each.name for each in self._round.backend.devices())
        wrong = [
            Fault(what, repr(given), ", ".join(known) or "none")
            for what, given, known in (("metric", metric, METRICS), ("group", group, groups))
            if given is not None and given not in known
        ]
        if wrong:
            raise InvalidInputError("series", wrong)
        found = self._round.history.query(
            name, self._clock.now(), since_s=since_s, step_s=step_s, metric=metric, group=group
        )
        lines = tuple(
            SeriesLineView(metric=line.metric, group=line.group, unit=line.unit, points=line.points)
            for line in found.lines
        )
        return SeriesView(function=name, step_s=found.step_s, lines=lines, refused=self._round.history.refused)

    def cold_starts(self, name: str) -> tuple[ColdStartView, ...]:
        self._deployed(name)
        return self._round.cold_starts.of(name)

    def logs(
        self, name: str, *, tail: int, follow: bool, replica: str | None, source: str
    ) -> AsyncGenerator[bytes, None]:
        folder = self._state.logs / name
        if replica is not None and not tailing.files(folder, replica, source):
            known = sorted({tailing.Tail(path).replica for path in tailing.files(folder, None, source)})
            allowed = f"a replica of {name} with a log: {', '.join(known) or 'there is none'}"
            raise InvalidInputError("logs", [Fault("replica", replica, allowed)])
        return tailing.lines(folder, tail=tail, follow=follow, replica=replica, source=source, until=self._pulse)

    async def metrics(self) -> bytes:
        gathered = await asyncio.gather(self._gateways.expositions(), self._round.expositions())
        return metrics.render(self._metrics, [text for texts in gathered for text in texts])

    def tenants(self) -> tuple[TenantView, ...]:
        return self._tenants()

    # --- changing ---

    async def deploy(self, request: DeployRequest) -> DeployView:
        self._refuse_when_leaving()
        from tidegate.manifest.reader import read

        if not Path(request.base).is_absolute():
            raise InvalidInputError("request", [Fault("base", request.base, "an absolute path of a folder")])
        async with self._changing:
            parsed = await asyncio.to_thread(
                read, request.manifest, source=request.source, context=self._terms(request.base, request.flags)
            )
            self._check_models(parsed.functions)
            for function in parsed.functions:
                await self._check(function)
            warnings = tuple(str(note) for note in parsed.warnings)
            views = [await self._deploy(function, request, warnings) for function in parsed.functions]
            await asyncio.to_thread(self._copies.sweep, [each.function for each in self.registry.kept().values()])
        self._round.sync()
        await self._round.publish()
        self._round.soon()
        await self._gateways.linked(LINKED_S)
        self._pulse.fire()
        return DeployView(functions=tuple(views))

    async def delete(self, name: str) -> None:
        self._refuse_when_leaving()
        self._deployed(name)
        async with self._changing:
            await self.registry.delete(name)
        self._round.sync()
        await self._round.publish()
        self._round.soon()
        self._pulse.fire()

    def split(self, name: str) -> SplitView:
        return self._steering.split(name)

    async def set_split(self, name: str, request: SplitRequest) -> SplitView:
        self._refuse_when_leaving()
        async with self._changing:
            return await self._steering.set_split(name, request)

    async def rollback(self, name: str, request: RollbackRequest) -> SplitView:
        self._refuse_when_leaving()
        async with self._changing:
            return await self._steering.rollback(name, request)

    def rollout(self, name: str) -> RolloutView:
        return self._steering.rollout(name)

    async def change_rollout(self, name: str, request: RolloutRequest) -> RolloutView:
        self._refuse_when_leaving()
        async with self._changing:
            return await self._steering.change_rollout(name, request)

    async def restart(self) -> RestartView:
        self._refuse_when_leaving()
        replaced, needs_up = await self._renew()
        self._pulse.fire()
        return RestartView(replaced=replaced, needs_up=needs_up)

    async def reload(self) -> ReloadView:
        self._refuse_when_leaving()
        found = await self._reload()
        told = await self._gateways.reload()
        self._round.soon()
        self._pulse.fire()
        return ReloadView(
            reloaded=tuple(name for name, fault in told.items() if fault is None),
            faults={name: fault for name, fault in told.items() if fault is not None},
            in_force=found.in_force,
            needs_restart=found.needs_restart,
            needs_up=found.needs_up,
        )

    def shut_down(self) -> None:
        self._stop()

    async def _check(self, function: Function) -> None:
        from tidegate.deploy.backend import BackendError

        try:
            await self._round.backend.apply(Revision(function, self.registry.next_number(function.name)))
        except BackendError as error:
            raise CannotRunError(str(error)) from error
        refusal = self._assess(function).refusal
        if refusal is not None:
            latency = f"{1e3 * (function.sla.latency_s or 0.0):g} ms"
            raise InvalidInputError(function.name, [Fault("tidegate.dev/latency", latency, refusal)])

    def _assess(self, function: Function) -> "Assessment":
        """The SLA against what the accelerators can do, as far as it is known."""
        from tidegate.autoscaler.profiles.admission import assess

        revision = Revision(function, self.registry.next_number(function.name))
        return assess(function, self._round.learning.kinds(revision))

    async def _deploy(self, function: Function, request: DeployRequest, warnings: tuple[str, ...]) -> DeployedView:
        from tidegate.autoscaler.policies import registry

        found = self._assess(function)
        function, uncopied = await asyncio.to_thread(self._copies.take, function)
        record = await self.registry.deploy(
            function, manifest=request.manifest, source=request.source, now=self._clock.now()
        )
        rooms = self._round.backend.room(record.revision)
        filled_in = {
            "policy": function.scaling.policy,
            "models": ", ".join(function.models),
            "accelerators": ", ".join(rooms) or "none has room",
            "concurrency": "auto" if function.concurrency is None else str(function.concurrency),
            "timeout": f"{function.timeout_s:g} s",
        }
        has_sla = function.sla.latency_s is not None or function.sla.target_ips is not None
        return DeployedView(
            name=function.name,
            revision=record.revision.id,
            filled_in=filled_in,
            warnings=(
                *warnings,
                *registry.row(function.scaling.policy).warnings(function),
                *found.warnings,
                *(() if uncopied is None else (uncopied,)),
            ),
            capacity=describe.capacity(function, found) if has_sla else None,
        )

    def _terms(self, base: str, flags: dict[str, str]) -> "ParseContext":
        from tidegate.autoscaler.policies import registry
        from tidegate.manifest.builder import ParseContext

        return ParseContext(
            base=base,
            policies=registry.names(),
            accelerators={each.name: each.kind.value for each in self._round.backend.devices()},
            flags=flags,
        )

    def _check_models(self, functions: tuple[Function, ...]) -> None:
        """A model name leads to one function: neither one that answers now nor one that is about to has it."""
        new = {function.name for function in functions}
        owners = {
            model: deployed.name
            for deployed in self.registry.all()
            if deployed.name not in new
            for record in (deployed.current, deployed.candidate)
            if record is not None
            for model in record.function.models
        }
        faults = [
            Fault("spec.models", model, f"a name of its own; {owners[model]} answers to it")
            for function in functions
            for model in function.models
            if model in owners
        ]
        if faults:
            raise InvalidInputError("models", faults)

    # --- small things ---

    def _describe(self, deployed: Deployed, *, log: bool = False) -> FunctionView:
        last = self._last_log(deployed.name) if log else ()
        return describe.function(self._round, deployed, self.gateway, self._domain, last)

    def _last_log(self, name: str) -> tuple[str, ...]:
        found = tailing.files(self._state.logs / name, None, "server")
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
