"""The plan of ``tidegate simulate``: options and files to scenarios, with every fault of all of them at once."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from tidegate.autoscaler.oltunes.prediction.analysis import ModelFigures, first_time_s, rates_of
from tidegate.autoscaler.policies import registry
from tidegate.autoscaler.replay.changes import changed
from tidegate.deploy.devices import declared
from tidegate.deploy.placement.ledger import WHOLE, Accelerator, candidates, demand_of
from tidegate.errors import InvalidInputError
from tidegate.function import Function, Revision
from tidegate.loadgen import profile_file
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.arrivals.changes import joined
from tidegate.loadgen.plans.arrivals import Loop, Reader, Source, source_of
from tidegate.loadgen.plans.loads import GivenLoads, SimulatedLoad
from tidegate.loadgen.plans.outputs import check_files
from tidegate.loadgen.plans.settings import settings_for
from tidegate.loadgen.profile_file import Profiled, gain_of, interference_of
from tidegate.loadgen.simulator.devices import DeviceKind
from tidegate.loadgen.simulator.profiles import ColdStart, Line, ServiceProfile
from tidegate.loadgen.simulator.scenario import AUTO_LIMIT, Callers, Deployed, Scenario
from tidegate.manifest import reader as manifest
from tidegate.manifest.builder import ParseContext
from tidegate.schema import yaml_nodes
from tidegate.schema.yaml_nodes import Faults, nearest

Profiles = Mapping[tuple[str, str], Profiled]
"""Entries of the profile file, by accelerator and function; an empty function is every other one."""
SEEDS_APART: Final = 1_000_003
"""Distance between the seeds of two functions' loads: each draws from random numbers of its own."""
START_S: Final = ColdStart().total_s
"""Start-up time of a replica that no file describes, added to the ``start-up`` of its accelerator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """The options of the command line, as written."""

    functions: tuple[Path, ...]
    accelerators: Path
    profile: Path | None = None
    policies: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    duration: str | None = None
    loads: GivenLoads = field(default_factory=GivenLoads)
    """Arrivals, deadline and replicas at the beginning."""
    seed: str = "1"
    outputs: tuple[tuple[str, Path | None], ...] = ()
    """Options that name a file to be written."""
    figures: Callable[[Function], ModelFigures | None] = lambda function: None
    """Reads the graph of a function's model, for service times that no file states. None if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionPlan:
    """What one function brings, whatever policy scales it."""

    name: str
    profiles: Mapping[str, ServiceProfile]
    starts: Mapping[str, ColdStart]
    source: Source
    ready: Mapping[str, int]
    """Replicas at the beginning, by accelerator."""
    predicted: tuple[str, ...]
    """Accelerators whose service times follow from the model's graph."""
    deadline_s: float | None
    """Deadline that its clients give; None without one."""

    def arrivals(self, until_s: float | None) -> Iterator[Arrival]:
        """Yields the arrivals of the open loop, the same ones each time; none for a closed loop."""
        return _arrivals(self.source, until_s)

    def deployed(self, function: Function) -> Deployed:
        return Deployed(
            revision=Revision(function, 1),
            profiles=self.profiles,
            cold_starts=self.starts,
            ready=self.ready,
            deadline_s=self.deadline_s,
        )


def _arrivals(source: Source, until_s: float | None) -> Iterator[Arrival]:
    if source.schedule is None:
        return
    draw = None if source.batches is None else source.batches.drawer(random.Random(source.seed + 1))
    for at_s, inferences, prompt, completion, _ in source.schedule(random.Random(source.seed)):
        if until_s is not None and at_s >= until_s:
            return
        yield Arrival(at_s, inferences if draw is None else draw(), prompt, completion)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledPipeline:
    """The load of one pipeline, whatever policy scales its stages."""

    name: str
    source: Source
    deadline_s: float | None
    """Deadline that its clients give; None without one."""

    def deployed(self, pipeline: Function) -> Function:
        least_s = pipeline.timeout_s if self.deadline_s is None else min(pipeline.timeout_s, self.deadline_s)
        return replace(pipeline, timeout_s=least_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The functions and pipelines under one of the compared policies, or each under its own."""

    policy: str
    """Its name in the report."""
    functions: tuple[Function, ...]
    pipelines: tuple[Function, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationPlan:
    """A simulation: the variants are compared under the same load, one run each."""

    variants: tuple[Variant, ...]
    parts: tuple[FunctionPlan, ...]
    """One for each function of a variant, in the same order."""
    called: tuple[CalledPipeline, ...]
    """One for each pipeline of a variant, in the same order."""
    kinds: tuple[DeviceKind, ...]
    duration_s: float | None
    """Simulated seconds; None until every request has been sent and has ended."""
    notes: tuple[str, ...]

    @property
    def loads(self) -> "tuple[FunctionPlan | CalledPipeline, ...]":
        """Functions, then pipelines."""
        return (*self.parts, *self.called)

    @property
    def has_power(self) -> bool:
        """Whether the power of every accelerator is known."""
        return all(kind.accelerator.tdp_w for kind in self.kinds)

    @property
    def seed(self) -> int:
        """The seed as given: each load draws from one of its own."""
        return next(
            (each.source.seed - at * SEEDS_APART for at, each in enumerate(self.loads) if each.source.mode),
            0,
        )

    @property
    def total_s(self) -> float | None:
        """Planned duration of the loads; None if it is unknown."""
        spans = [each.source.total_s for each in self.loads]
        return None if None in spans else max(each for each in spans if each is not None)

    def arrivals(self) -> Iterator[Arrival]:
        """Yields the arrivals of all functions, the same ones each time."""
        if len(self.parts) == 1 and not self.called:
            return self.parts[0].arrivals(self.duration_s)
        return joined(*(_named(_arrivals(each.source, self.duration_s), each.name) for each in self.loads))

    def scenario(self, variant: Variant) -> Scenario:
        pairs = list(zip(self.parts, variant.functions, strict=True))
        return Scenario(
            kinds=self.kinds,
            functions=tuple(part.deployed(function) for part, function in pairs),
            seed=self.seed,
            arrivals=self.arrivals(),
            callers=tuple(each for part in self.loads for each in _callers(part.source, part.name)),
            pipelines=tuple(
                each.deployed(pipeline) for each, pipeline in zip(self.called, variant.pipelines, strict=True)
            ),
        )


def _named(arrivals: Iterator[Arrival], name: str) -> Iterator[Arrival]:
    return (each._replace(function=name) for each in arrivals)


def plan_of(options: SimulationOptions) -> SimulationPlan:
    """Returns the plan. Raises InvalidInputError with every fault."""
    return _SimulationReader(options).plan()


@dataclass(slots=True)
class _SimulationReader:
    options: SimulationOptions
    faults: Faults = field(default_factory=lambda: Faults("simulate"))
    values: Reader = field(init=False)
    predicted: dict[tuple[str, str], ServiceProfile] = field(default_factory=dict)
    """By accelerator and function: service times that follow from the model's graph, where no file states any."""

    def __post_init__(self) -> None:
        self.values = Reader(self.faults)

    def plan(self) -> SimulationPlan:
        options, faults = self.options, self.faults
        accelerators = self._accelerators()
        profiled = self._profiles(accelerators)
        declared_functions, pipelines = self._declared(accelerators)
        names = [each.name for each in declared_functions]
        all_names = [*names, *(each.name for each in pipelines)]
        if all_names:
            options.loads.check(all_names, faults)
        stages = {stage.function for each in pipelines for stage in each.server.stages}
        loads = {
            name: self._load(name, index, is_alone=len(all_names) < 2, is_stage=name in stages)
            for index, name in enumerate(all_names or [""])
        }
        traces = [load.trace for load, _, _ in loads.values()]
        check_files(options.outputs, (*options.functions, options.accelerators, options.profile, *traces), faults)
        duration_s = None if options.duration is None else self.values.time("--duration", options.duration, 1.0)
        variants = tuple(self._variants(declared_functions, pipelines))
        functions = variants[0].functions if variants else ()
        self._check_profiled(names, profiled)
        kinds = self._kinds(functions, accelerators, profiled)
        ready = {each.name: self._ready(each, kinds, len(all_names) < 2) for each in functions}
        self._check_ready(functions, kinds, ready)
        faults.raise_any()
        parts = []
        for function in functions:
            _, source, deadline_s = loads[function.name]
            usable = candidates(accelerators, function)
            entries = {each.name: _entry(each, function, profiled) for each in usable}
            parts.append(
                FunctionPlan(
                    name=function.name,
                    profiles={
                        each.name: self.predicted.get((each.name, function.name))
                        or _profile(function, each, entries[each.name])
                        for each in usable
                    },
                    predicted=tuple(each.name for each in usable if (each.name, function.name) in self.predicted),
                    starts=_starts(function, usable, profiled),
                    source=source,
                    ready=ready[function.name],
                    deadline_s=deadline_s,
                )
            )
        called = tuple(
            CalledPipeline(name=each.name, source=loads[each.name][1], deadline_s=loads[each.name][2])
            for each in pipelines
        )
        sources = [*(each.source for each in parts), *(each.source for each in called)]
        if any(isinstance(loop, Loop) for source in sources for loop in source.loops) and duration_s is None:
            duration_s = max(source.total_s or 0.0 for source in sources)
        return SimulationPlan(
            variants=variants,
            parts=tuple(parts),
            called=called,
            kinds=kinds,
            duration_s=duration_s,
            notes=tuple(_all_notes(functions, parts, kinds)),
        )

    # --- loads ---

    def _load(
        self, name: str, index: int, *, is_alone: bool, is_stage: bool
    ) -> tuple[SimulatedLoad, Source, float | None]:
        """Returns the options of a load, its source and its clients' deadline. Each function draws from random numbers
        of its own. A stage of a pipeline has no callers unless it is given some."""
        if is_stage and not self.options.loads.has_own(name):
            return SimulatedLoad(), Source(total_s=0.0), None
        given = self.options.loads.of(name, is_alone=is_alone)
        deadline = given.pop("deadline", None)
        given.pop("ready", None)
        load = SimulatedLoad(**given, seed=self.options.seed)
        found = self.faults if is_alone else Faults("")
        source = source_of(load, found)
        if source.loops and source.batches is not None and len(source.batches.sizes) > 1:
            found.report("--batches", "several sizes in a closed loop", "one size, or an open loop")
        deadline_s = None if deadline is None else Reader(found).time("--deadline", deadline, 0.001)
        if not is_alone:
            for fault in found.error().faults:
                self.faults.report(f"{name}: {fault.where}", fault.value, fault.allowed, fault.line)
        return load, replace(source, seed=source.seed + index * SEEDS_APART), deadline_s

    # --- files ---

    def _text(self, option: str, path: Path) -> str | None:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            what = error.strerror or str(error) if isinstance(error, OSError) else "not a text"
            self.faults.add(option, str(path), f"a text file that can be read ({what})")
            return None

    def _accelerators(self) -> list[Accelerator]:
        """Returns the accelerators of the file; hardware that is not here must declare its count and its memory."""
        path = self.options.accelerators
        text = self._text("--accelerators", path)
        if text is None:
            return []
        option = f"--accelerators {path}"
        entries = self.values.taken(option, lambda: declared.parse(text, source=str(path)))
        found = []
        for (index, entry), line in zip(enumerate(entries or ()), _lines(text), strict=False):
            for key, given in (("count", entry.count), ("memory", entry.memory_bytes)):
                if given is None:
                    allowed = "it must be given: the machine that it is on is simulated"
                    self.faults.report(f"{option}: accelerators[{index}].{key}", "nothing", allowed, line)
            if entry.count is not None and entry.memory_bytes is not None:
                found.append(entry.completed(entry.count, entry.memory_bytes))
        return found

    def _profiles(self, accelerators: list[Accelerator]) -> Profiles:
        path = self.options.profile
        text = None if path is None else self._text("--profile", path)
        if path is None or text is None:
            return {}
        found = self.values.taken(f"--profile {path}", lambda: profile_file.parse(text, source=str(path))) or {}
        known = [each.name for each in accelerators]
        for (name, _), entry in found.items():
            if known and name not in known:
                allowed = f"an accelerator of {self.options.accelerators}: {', '.join(known)}"
                self.faults.add(f"--profile {path}: accelerator", name, allowed, entry.line)
        return found

    def _declared(self, accelerators: list[Accelerator]) -> tuple[tuple[Function, ...], tuple[Function, ...]]:
        """Returns the functions and the pipelines of all manifests."""
        found = self._functions(accelerators)
        functions = tuple(each for each in found if not each.is_pipeline)
        pipelines = tuple(each for each in found if each.is_pipeline)
        names = [each.name for each in functions]
        for pipeline in pipelines:
            for at, stage in enumerate(pipeline.server.stages):
                where = f"{pipeline.name}: spec.stages[{at}]"
                if stage.function not in names:
                    allowed = f"a function of the manifests: {', '.join(names) or 'there is none'}"
                    self.faults.add(f"{where}.function", stage.function, f"{allowed}{nearest(stage.function, names)}")
                if stage.when is not None:
                    self.faults.report(f"{where}.when", "a condition", "no condition: answers are not simulated")
            if pipeline.name in self.options.loads.named("ready"):
                self.faults.report("--ready", pipeline.name, "a function: a pipeline has the replicas of its stages")
        return functions, pipelines

    def _functions(self, accelerators: list[Accelerator]) -> tuple[Function, ...]:
        """Returns the functions and pipelines of all manifests."""
        found: list[Function] = []
        for path in self.options.functions:
            text = self._text("--function", path)
            if text is None:
                continue
            context = ParseContext(
                base=str(path.absolute().parent),
                policies=registry.names(),
                accelerators={each.name: each.kind.value for each in accelerators} or None,
                images=True,
            )
            parsed = self.values.taken(
                f"--function {path}", partial(manifest.read, text, source=str(path), context=context)
            )
            for function in () if parsed is None else parsed.functions:
                if any(function.name == other.name for other in found):
                    self.faults.report(f"--function {path}", f"{function.name} again", "each function once")
                else:
                    found.append(function)
            if parsed is not None and not parsed.functions:
                self.faults.report(f"--function {path}", "no function", "one function or more")
        return tuple(found)

    def _variants(self, functions: tuple[Function, ...], pipelines: tuple[Function, ...]) -> Iterator[Variant]:
        """Yields the variants. A stage has the policy of its pipeline, if that has a latency target."""
        asked = self.options.policies
        for name in sorted({each for each in asked if asked.count(each) > 1}):
            self.faults.report("--policy", f"{name} again", "each policy once")
        if not functions:
            return
        seen: set[str] = set()
        scaled = {
            stage.function for each in pipelines if each.sla.latency_s is not None for stage in each.server.stages
        }
        deciding = [each for each in (*functions, *pipelines) if each.name not in scaled]
        own = tuple(dict.fromkeys(each.scaling.policy for each in deciding))
        for policy in asked or (None,):
            under = []
            for function in (*functions, *pipelines):
                if function not in deciding:
                    under.append(function)
                    continue
                chosen = policy or function.scaling.policy
                try:
                    under.append(changed(function, chosen, settings_for(chosen, asked or own, self.options.settings)))
                except InvalidInputError as error:
                    for fault in error.faults:
                        if str(fault) not in seen:  # A setting is the same fault under each policy.
                            self.faults.report(fault.where, fault.value, fault.allowed)
                            seen.add(str(fault))
            yield Variant(
                policy=policy or " and ".join(own),
                functions=tuple(each for each in under if not each.is_pipeline),
                pipelines=tuple(each for each in under if each.is_pipeline),
            )

    # --- hardware ---

    def _kinds(
        self, functions: tuple[Function, ...], accelerators: list[Accelerator], profiled: Profiles
    ) -> tuple[DeviceKind, ...]:
        """Returns the kinds on which a function can be placed, with a profile for each function."""
        if not functions or not accelerators or len(self.faults):
            return ()
        path, used = self.options.accelerators, set[Accelerator]()
        for function in functions:
            usable = candidates(accelerators, function)
            used.update(usable)
            if not usable:
                names = ", ".join(each.name for each in accelerators)
                self.faults.report(f"--accelerators {path}", names, f"one that {function.name} can run on")
            unstated = [each for each in usable if each.profile is None and _entry(each, function, profiled) is None]
            figures = self.options.figures(function) if unstated else None
            for each in unstated:
                found = None if figures is None else _predicted(function, each, figures)
                if found is not None:
                    self.predicted[each.name, function.name] = found
                else:
                    got = "no profile" if len(functions) == 1 else f"no profile of {function.name}"
                    allowed = (
                        "its service times, in a file given as --profile (or of kind emulated, with a profile; or an "
                        "ONNX file, on a processor or a known GPU)"
                    )
                    self.faults.report(f"--accelerators {path}: {each.name}", got, allowed)
        return tuple(_kind(each, profiled) for each in accelerators if each in used)

    def _check_profiled(self, names: Sequence[str], profiled: Profiles) -> None:
        for (accelerator, function), entry in profiled.items():
            for name in (function, *entry.interference) if function else ():
                if names and name not in names:
                    where = f"--profile {self.options.profile}: function of {accelerator}"
                    self.faults.add(where, name, f"one of {', '.join(names)}{nearest(name, names)}", entry.line)

    def _ready(self, function: Function, kinds: tuple[DeviceKind, ...], is_alone: bool) -> Mapping[str, int]:
        """Places the initial replicas on the cheapest accelerator, as the first replicas of a deployed function are."""
        text = self.options.loads.of(function.name, is_alone=is_alone).get("ready", "0")
        count = self.values.whole("--ready", text, 0, 4096)
        usable = candidates([kind.accelerator for kind in kinds], function)
        return {usable[0].name: count} if count and usable else {}

    def _check_ready(
        self, functions: tuple[Function, ...], kinds: tuple[DeviceKind, ...], ready: Mapping[str, Mapping[str, int]]
    ) -> None:
        for kind in kinds:
            accelerator = kind.accelerator
            held = sum(
                ready[each.name].get(accelerator.name, 0) * demand_of(each, accelerator).share for each in functions
            )
            if held > accelerator.count * WHOLE:
                given = " ".join(str(text) for text in self.options.loads.given.get("ready", ()))
                self.faults.add("--ready", given, f"at most {accelerator.count}, the units of {accelerator.name}")


def _lines(text: str) -> Iterator[int | None]:
    """Yields the line where each accelerator is declared."""
    documents = yaml_nodes.load(text, Faults(""))
    node = documents[0].get("accelerators") if documents and isinstance(documents[0], yaml_nodes.MapNode) else None
    yield from (item.line for item in node.items) if isinstance(node, yaml_nodes.ListNode) else ()


def _kind(accelerator: Accelerator, profiled: Profiles) -> DeviceKind:
    entries = [entry for (name, _), entry in profiled.items() if name == accelerator.name]
    if not entries:
        return DeviceKind(accelerator=accelerator)
    return DeviceKind(
        accelerator=accelerator,
        sharing=entries[0].sharing,
        gain=gain_of(profiled, accelerator.name),
        interference=interference_of(profiled, accelerator.name),
    )


def _entry(accelerator: Accelerator, function: Function, profiled: Profiles) -> Profiled | None:
    """Returns the function's own entry, else that of every function."""
    return profiled.get((accelerator.name, function.name)) or profiled.get((accelerator.name, ""))


def _starts(function: Function, usable: Sequence[Accelerator], profiled: Profiles) -> dict[str, ColdStart]:
    """Returns the starts that the file describes; an entry without one has that of every function."""
    found: dict[str, ColdStart] = {}
    for each in usable:
        for name in (function.name, ""):
            entry = profiled.get((each.name, name))
            if entry is not None and entry.start is not None:
                found.setdefault(each.name, entry.start)
    return found


def _profile(function: Function, accelerator: Accelerator, found: Profiled | None) -> ServiceProfile:
    """Returns the profile of the file, else that of the emulated accelerator, whose server runs one request, or batch,
    at a time."""
    stated = accelerator.profile
    if found is not None:
        return found.profile
    assert stated is not None  # It was a fault.
    times = Line(base_s=stated.base_s, per_item_s=stated.per_item_s)
    return ServiceProfile(times=times, jitter=stated.jitter, width=1, joins=function.batching.max_size)


def _predicted(function: Function, accelerator: Accelerator, figures: ModelFigures) -> ServiceProfile | None:
    """Returns the service times that follow from the operators of a model's graph, for a server that runs one request,
    or batch, at a time. None if the accelerator's speed is unknown."""
    rates = rates_of(accelerator.name, cores=accelerator.processors)
    if rates is None:
        return None
    one_s, two_s = first_time_s(figures, rates), first_time_s(figures, rates, 2)
    times = Line(base_s=max(0.0, 2.0 * one_s - two_s), per_item_s=two_s - one_s)
    return ServiceProfile(times=times, width=1, joins=function.batching.max_size)


def _callers(source: Source, function: str) -> Iterator[Callers]:
    inferences = 1 if source.batches is None else source.batches.sizes[0]
    for loop in source.loops:
        if isinstance(loop, Loop):
            yield Callers(function=function, callers=loop.callers, inferences=inferences)
        else:
            yield Callers(
                function=function,
                callers=loop.workers,
                requests=loop.requests,
                rate=loop.rate,
                start_s=loop.start_s,
                inferences=inferences,
            )


def _all_notes(
    functions: Sequence[Function], parts: Sequence[FunctionPlan], kinds: tuple[DeviceKind, ...]
) -> Iterator[str]:
    """Yields the assumptions made for facts that no file contains."""
    for function, part in zip(functions, parts, strict=True):
        before = "" if len(functions) == 1 else f"{function.name}: "
        if function.concurrency is None:
            most = f"a profile's width, or {AUTO_LIMIT} where it has none"
            yield f"{before}concurrency: auto learns its slots, of at most {most}"
        unsaid = [
            each.accelerator.name for each in kinds if each.accelerator.name in part.profiles.keys() - part.starts
        ]
        if part.predicted:
            names = ", ".join(part.predicted)
            yield f"{before}service times follow from the model's graph alone, within a factor of 3: {names}"
        if unsaid:
            yield f"{before}a start takes {START_S:g} s and the accelerator's start-up: {', '.join(unsaid)}"
    unpriced = [each.accelerator.name for each in kinds if not each.accelerator.price_per_hour]
    if unpriced:
        yield f"no price, so no cost: {', '.join(unpriced)}"
