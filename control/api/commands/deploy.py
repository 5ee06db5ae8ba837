"""The command of operators that deploys functions: all of a manifest's functions are checked before one is changed."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidegate.autoscaler.policies import registry
from tidegate.autoscaler.profiles.admission import Assessment, Source, assess
from tidegate.control.api import describe, pipelines
from tidegate.control.api.copies import Copies
from tidegate.control.api.errors import CannotRunError, OtherSourceError
from tidegate.control.rounds.wiring import ControlLoop
from tidegate.control.views.functions import DeployedView
from tidegate.control.views.requests import DeployRequest
from tidegate.deploy.backend import BackendError
from tidegate.errors import Fault, InvalidInputError
from tidegate.function import Function, Revision
from tidegate.manifest.builder import ParseContext
from tidegate.manifest.reader import read
from tidegate.records.profile_point import ProfilePoint

OPEN_PORT: Final = (
    "its command listens on a TCP port, where every user of this machine can call it past its access rule; "
    "{socket} in the command gives it a unix socket"
)


class DeployCommands:
    """Checks and carries out the command. Commands must not overlap."""

    def __init__(self, loop: ControlLoop, copies: Copies) -> None:
        self._registry = loop.world.registry
        self._backend = loop.backend
        self._profiles = loop.profiles
        self._clock = loop.clock
        self._copies = copies

    async def deploy(self, request: DeployRequest) -> tuple[DeployedView, ...]:
        """Deploys the functions of a manifest. Raises InvalidInputError with all faults, CannotRunError,
        OtherSourceError, StoreError."""
        if not Path(request.base).is_absolute():
            raise InvalidInputError("request", [Fault("base", request.base, "an absolute path of a folder")])
        parsed = await asyncio.to_thread(
            read, request.manifest, source=request.source, context=self._context(request.base, request.flags)
        )
        functions = pipelines.fitted(parsed.functions, self._registry)
        self._check_models(functions)
        notes = self._take_measured(functions, request.measured)
        for function in functions:
            await self._check(function)
        self._check_origins(functions, request)
        warnings = (*(str(note) for note in parsed.warnings), *notes)
        views = [await self._deploy(function, request, warnings) for function in functions]
        await asyncio.to_thread(self._copies.sweep, [each.function for each in self._registry.kept().values()])
        return tuple(views)

    def disbelief(self, function: Function) -> str | None:
        """Returns why the predictor did not believe the function's latest odd sample; None if there was none."""
        return self._profiles.predictions.note(function)

    def assess(self, function: Function) -> Assessment:
        """Compares the SLA with the capacity of the accelerators, as far as it is known."""
        revision = Revision(function, self._registry.next_number(function.name))
        return assess(function, self._profiles.kinds(revision))

    def _take_measured(self, functions: Sequence[Function], points: Sequence[ProfilePoint]) -> tuple[str, ...]:
        """Gives the functions what was measured of them. Returns a warning if none of it is of an accelerator here.
        Raises InvalidInputError for figures that no measurement has."""
        faults = [
            Fault(f"measured[{index}]", f"{each}", "times and rates that are finite and above 0")
            for index, each in enumerate(points)
            if not each.is_possible
        ]
        if faults:
            raise InvalidInputError("request", faults)
        for function in functions:
            self._profiles.give(function, points)
        measured, here = (
            {each.cell.accelerator for each in points},
            {each.name for each in self._backend.devices()},
        )
        if not points or measured & here:
            return ()
        return (
            f"the profile has no effect: it is of {', '.join(sorted(measured))}, here are {', '.join(sorted(here))}",
        )

    def _check_origins(self, functions: Sequence[Function], request: DeployRequest) -> None:
        """Raises OtherSourceError for functions that came from another file, unless they are to be replaced."""
        if request.replace or request.origin is None:
            return
        before = {each.name: self._registry.origin(each.name) for each in functions}
        others = {name: origin for name, origin in before.items() if origin not in (None, request.origin)}
        if others:
            raise OtherSourceError({name: origin for name, origin in others.items() if origin}, request.origin)

    async def _check(self, function: Function) -> None:
        if function.is_pipeline:
            return
        try:
            await self._backend.apply(Revision(function, self._registry.next_number(function.name)))
        except BackendError as error:
            raise CannotRunError(str(error)) from error
        await self._profiles.predictions.inspect(function, self._backend.devices())
        refusal = self.assess(function).refusal
        if refusal is not None:
            latency = f"{1e3 * (function.sla.latency_s or 0.0):g} ms"
            raise InvalidInputError(function.name, [Fault("tidegate.dev/latency", latency, refusal)])

    async def _deploy(self, function: Function, request: DeployRequest, warnings: tuple[str, ...]) -> DeployedView:
        found, load = self.assess(function), self._profiles.load_of(function.name)
        function, uncopied = await asyncio.to_thread(self._copies.take, function)
        record = await self._registry.deploy(
            function,
            manifest=request.manifest,
            source=request.source,
            now=self._clock.now(),
            origin=request.origin,
        )
        if function.is_pipeline:
            stages = ", ".join(stage.function for stage in function.server.stages)
            pipeline = {"stages": stages, "protocol": function.protocol.value, "timeout": f"{function.timeout_s:g} s"}
            if function.sla.latency_s is not None:
                pipeline["policy"] = function.scaling.policy
            return DeployedView(
                name=function.name, revision=record.revision.id, filled_in=pipeline, warnings=warnings, capacity=None
            )
        rooms = self._backend.room(record.revision)
        filled_in = {
            "policy": function.scaling.policy,
            "models": ", ".join(function.models),
            "accelerators": ", ".join(rooms) or "none has room",
            "concurrency": "auto" if function.concurrency is None else str(function.concurrency),
            "timeout": f"{function.timeout_s:g} s",
        }
        is_predicted = any(each.source is Source.PREDICTED for each in found.kinds)
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
                *((OPEN_PORT,) if function.access is not None and function.has_port else ()),
            ),
            capacity=describe.capacity(function, found, load) if has_sla or is_predicted else None,
        )

    def _context(self, base: str, flags: dict[str, str]) -> ParseContext:
        return ParseContext(
            base=base,
            policies=registry.names(),
            accelerators={each.name: each.kind.value for each in self._backend.devices()},
            images=self._backend.runs_images,
            flags=flags,
        )

    def _check_models(self, functions: tuple[Function, ...]) -> None:
        """Raises InvalidInputError unless each model name leads to one function, among serving revisions and
        candidates."""
        new = {function.name for function in functions}
        owners = {
            model: deployed.name
            for deployed in self._registry.all()
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

    def __repr__(self) -> str:
        return f"<DeployCommands {self._registry!r}>"
