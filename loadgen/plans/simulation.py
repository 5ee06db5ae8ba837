"""The plan of ``tidegate simulate``: options and files to scenarios, with every fault of all of them at once."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidegate.autoscaler.policies import registry
from tidegate.autoscaler.replay.changes import changed
from tidegate.deploy.devices import declared
from tidegate.deploy.placement.ledger import Accelerator, candidates
from tidegate.errors import InvalidInputError
from tidegate.function import Function, Revision
from tidegate.loadgen import profile_file
from tidegate.loadgen.arrivals.arrival import Arrival
from tidegate.loadgen.plans.arrivals import MODES, ArrivalOptions, Loop, Reader, Source, source_of
from tidegate.loadgen.profile_file import Profiled
from tidegate.loadgen.simulator.devices import Kind
from tidegate.loadgen.simulator.profiles import ColdStart, Line, ServiceProfile
from tidegate.loadgen.simulator.scenario import AUTO_LIMIT, Callers, Deployed, Scenario
from tidegate.manifest import reader as manifest
from tidegate.manifest.annotations import PARAMETER_PREFIX, PARAMETERS, PREFIX
from tidegate.manifest.builder import ParseContext
from tidegate.schema import yaml_nodes
from tidegate.schema.rows import by_spelling
from tidegate.schema.yaml_nodes import Faults

START_S: Final = ColdStart().total_s
"""Start-up time of a replica that no file describes, added to the ``start-up`` of its accelerator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions(ArrivalOptions):
    """The options of the command line, as written."""

    function: Path
    accelerators: Path
    profile: Path | None = None
    policies: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    duration: str | None = None
    ready: str = "0"

    @property
    def inputs(self) -> tuple[Path | None, ...]:
        return self.function, self.accelerators, self.profile, self.trace

    @property
    def modes(self) -> tuple[str, ...]:
        """As in the base class, without ``--concurrency``, which is an alias of ``--callers``."""
        return tuple(mode for mode in MODES if mode != "--concurrency")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationPlan:
    """A simulation. ``functions`` holds one function per policy, in the order of the options."""

    functions: tuple[Function, ...]
    kinds: tuple[Kind, ...]
    profiles: Mapping[str, ServiceProfile]
    starts: Mapping[str, ColdStart]
    source: Source
    duration_s: float | None
    """Simulated seconds; None until every request has been sent and has ended."""
    ready: Mapping[str, int]
    """Replicas at the beginning, by accelerator."""
    notes: tuple[str, ...]

    @property
    def has_power(self) -> bool:
        """Whether the power of every accelerator is known."""
        return all(kind.accelerator.tdp_w for kind in self.kinds)

    def arrivals(self) -> Iterator[Arrival]:
        """Yields the arrivals of the open loop, the same ones each time; none for a closed loop."""
        source = self.source
        if source.schedule is None:
            return
        draw = None if source.batches is None else source.batches.drawer(random.Random(source.seed + 1))
        for at_s, inferences, prompt, completion, _ in source.schedule(random.Random(source.seed)):
            if self.duration_s is not None and at_s >= self.duration_s:
                return
            yield Arrival(at_s, inferences if draw is None else draw(), prompt, completion)

    def deployed(self, function: Function) -> Deployed:
        return Deployed(
            revision=Revision(function, 1), profiles=self.profiles, cold_starts=self.starts, ready=self.ready
        )

    def scenario(self, function: Function) -> Scenario:
        return Scenario(
            kinds=self.kinds,
            functions=(self.deployed(function),),
            seed=self.source.seed,
            arrivals=self.arrivals(),
            callers=tuple(_callers(self.source, function.name)),
        )


def plan_of(options: SimulationOptions) -> SimulationPlan:
    """Returns the plan. Raises InvalidInputError with every fault."""
    return _SimulationReader(options).plan()


@dataclass(slots=True)
class _SimulationReader:
    options: SimulationOptions
    faults: Faults = field(default_factory=lambda: Faults("simulate"))
    values: Reader = field(init=False)

    def __post_init__(self) -> None:
        self.values = Reader(self.faults)

    def plan(self) -> SimulationPlan:
        options, faults = self.options, self.faults
        source = source_of(options, faults)
        if source.loops and source.batches is not None and len(source.batches.sizes) > 1:
            faults.report("--batches", "several sizes in a closed loop", "one size, or an open loop")
        duration_s = None if options.duration is None else self.values.time("--duration", options.duration, 1.0)
        accelerators = self._accelerators()
        profiled = self._profiles(accelerators)
        functions = self._functions(accelerators)
        kinds = self._kinds(functions[:1], accelerators, profiled)
        ready = self._ready(functions[:1], kinds)
        faults.raise_any()
        closed_s = max((loop.seconds for loop in source.loops if isinstance(loop, Loop)), default=None)
        return SimulationPlan(
            functions=functions,
            kinds=kinds,
            profiles={each.accelerator.name: _profile(each.accelerator, profiled) for each in kinds},
            starts={name: each.start for name, each in profiled.items() if each.start is not None},
            source=source,
            duration_s=closed_s if duration_s is None else duration_s,
            ready=ready,
            notes=tuple(_notes(functions[0], kinds, profiled)),
        )

    # --- files ---

    def _text(self, option: str, path: Path) -> str | None:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            what = error.strerror or str(error) if isinstance(error, OSError) else "not a text"
            self.faults.add(option, str(path), f"a text that can be read ({what})")
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

    def _profiles(self, accelerators: list[Accelerator]) -> Mapping[str, Profiled]:
        path = self.options.profile
        text = None if path is None else self._text("--profile", path)
        if path is None or text is None:
            return {}
        found = self.values.taken(f"--profile {path}", lambda: profile_file.parse(text, source=str(path))) or {}
        known = [each.name for each in accelerators]
        for name, entry in found.items():
            if known and name not in known:
                allowed = f"an accelerator of {self.options.accelerators}: {', '.join(known)}"
                self.faults.add(f"--profile {path}: accelerator", name, allowed, entry.line)
        return found

    def _functions(self, accelerators: list[Accelerator]) -> tuple[Function, ...]:
        """Returns the manifest's function under each policy."""
        path = self.options.function
        text = self._text("--function", path)
        if text is None:
            return ()
        context = ParseContext(
            base=str(path.absolute().parent),
            policies=registry.names(),
            accelerators={each.name: each.kind.value for each in accelerators} or None,
            images=True,
        )
        parsed = self.values.taken(f"--function {path}", lambda: manifest.read(text, source=str(path), context=context))
        if parsed is None:
            return ()
        if len(parsed.functions) != 1:
            self.faults.report(f"--function {path}", f"{len(parsed.functions)} functions", "one function")
            return ()
        asked = self.options.policies
        for name in sorted({each for each in asked if asked.count(each) > 1}):
            self.faults.report("--policy", f"{name} again", "each policy once")
        return tuple(self._under(parsed.functions[0], asked))

    def _under(self, function: Function, asked: tuple[str, ...]) -> Iterator[Function]:
        seen: set[str] = set()
        compared = asked or (function.scaling.policy,)
        for policy in compared:
            try:
                yield changed(function, policy, _settings(self.options.settings, policy, compared))
            except InvalidInputError as error:
                for fault in error.faults:
                    if str(fault) not in seen:  # A setting is the same fault under each policy.
                        self.faults.report(fault.where, fault.value, fault.allowed)
                        seen.add(str(fault))

    # --- hardware ---

    def _kinds(
        self, functions: tuple[Function, ...], accelerators: list[Accelerator], profiled: Mapping[str, Profiled]
    ) -> tuple[Kind, ...]:
        """Returns the kinds on which the function can be placed, each with a profile."""
        if not functions or not accelerators or len(self.faults):
            return ()
        function, options = functions[0], self.options
        usable = candidates(accelerators, function)
        if not usable:
            names = ", ".join(each.name for each in accelerators)
            self.faults.report(f"--accelerators {options.accelerators}", names, f"one that {function.name} can run on")
        for each in usable:
            if each.profile is None and each.name not in profiled:
                allowed = "its service times, in a file given as --profile (or of kind emulated, with a profile)"
                self.faults.report(f"--accelerators {options.accelerators}: {each.name}", "no profile", allowed)
        return tuple(_kind(each, profiled.get(each.name)) for each in accelerators if each in usable)

    def _ready(self, functions: tuple[Function, ...], kinds: tuple[Kind, ...]) -> Mapping[str, int]:
        """Places the initial replicas on the cheapest accelerator, as the first replicas of a deployed function are."""
        count = self.values.whole("--ready", self.options.ready, 0, 4096)
        if not count or not functions or not kinds:
            return {}
        cheapest = candidates([kind.accelerator for kind in kinds], functions[0])[0]
        if count > cheapest.count:
            self.faults.add("--ready", self.options.ready, f"at most {cheapest.count}, the units of {cheapest.name}")
        return {cheapest.name: count}


def _settings(given: Sequence[str], policy: str, compared: Sequence[str]) -> list[str]:
    """Returns the settings for one of the compared policies. A parameter applies to each policy that has it; one that
    no policy has stays in the list and becomes a fault."""
    return [text for text in given if _has(policy, text) or not any(_has(each, text) for each in compared)]


def _has(policy: str, setting: str) -> bool:
    """Whether a policy has the parameter that is set; settings that are no parameters apply to all."""
    key = setting.partition("=")[0].strip().removeprefix(PREFIX)
    is_parameter = key.startswith(PARAMETER_PREFIX)
    return not is_parameter or key.removeprefix(PARAMETER_PREFIX) in by_spelling(PARAMETERS.get(policy, ()))


def _lines(text: str) -> Iterator[int | None]:
    """Yields the line where each accelerator is declared."""
    documents = yaml_nodes.load(text, Faults(""))
    node = documents[0].get("accelerators") if documents and isinstance(documents[0], yaml_nodes.MapNode) else None
    yield from (item.line for item in node.items) if isinstance(node, yaml_nodes.ListNode) else ()


def _kind(accelerator: Accelerator, profiled: Profiled | None) -> Kind:
    if profiled is None:
        return Kind(accelerator=accelerator)
    return Kind(accelerator=accelerator, sharing=profiled.sharing, gain=profiled.gain)


def _profile(accelerator: Accelerator, profiled: Mapping[str, Profiled]) -> ServiceProfile:
    """Returns the profile of the file, else that of the emulated accelerator."""
    found, stated = profiled.get(accelerator.name), accelerator.profile
    if found is not None:
        return found.profile
    assert stated is not None  # It was a fault.
    return ServiceProfile(times=Line(base_s=stated.base_s, per_item_s=stated.per_item_s), jitter=stated.jitter)


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


def _notes(function: Function, kinds: tuple[Kind, ...], profiled: Mapping[str, Profiled]) -> Iterator[str]:
    """Yields the assumptions made for facts that no file contains."""
    if function.concurrency is None:
        yield f"concurrency: auto learns its slots, of at most a profile's width, or {AUTO_LIMIT} where it has none"
    said = {name for name, each in profiled.items() if each.start is not None}
    unsaid = [each.accelerator.name for each in kinds if each.accelerator.name not in said]
    if unsaid:
        yield f"a start takes {START_S:g} s and the accelerator's start-up: {', '.join(unsaid)}"
    unpriced = [each.accelerator.name for each in kinds if not each.accelerator.price_per_hour]
    if unpriced:
        yield f"no price, so no cost: {', '.join(unpriced)}"
