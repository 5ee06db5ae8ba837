"""The plan of ``tidegate experiment championship``: options to cells and policies, with every fault at once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from tidegate.autoscaler.policies import registry
from tidegate.errors import InvalidInputError
from tidegate.loadgen.experiments.championship.fleets import FLEETS, IMAGE
from tidegate.loadgen.experiments.championship.row import STATIC, Cell, Entrant
from tidegate.loadgen.experiments.championship.traces import LEAGUES, League, Lengths
from tidegate.loadgen.experiments.definition import MAX_SEEDS
from tidegate.loadgen.plans.arrivals import Reader
from tidegate.loadgen.plans.outputs import check_files
from tidegate.loadgen.plans.settings import settings_for
from tidegate.schema.units import UnreadableError, duration, whole
from tidegate.schema.yaml_nodes import Faults, nearest

MAX_JOBS: Final = 256
GROUPS: Final = ("1,3", "1")
"""Default of ``--groups``, and that of a quick run; the next likewise."""
STARTS: Final = ("5,30,120", "30")
MAX_START_S: Final = 3600.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChampionshipOptions:
    """The options, as written."""

    policies: str | None = None
    settings: tuple[str, ...] = ()
    traces: str | None = None
    groups: str | None = None
    start_up: str | None = None
    seeds: str = "1"
    jobs: str = "1"
    data: Path | None = None
    learn: str | None = None
    judged: str | None = None
    min_run: str | None = None
    is_quick: bool = False
    has_static: bool = False
    html: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChampionshipPlan:
    cells: tuple[Cell, ...]
    entrants: tuple[Entrant, ...]
    jobs: int
    notes: tuple[str, ...]
    """Traces that are left out, and which files they need."""


def plan_of(options: ChampionshipOptions) -> ChampionshipPlan:
    """Returns the plan. Raises InvalidInputError with every fault."""
    faults = Faults("championship")
    values = Reader(faults)
    check_files([("--html", options.html)], (), faults)
    policies = _named("--policies", options.policies, registry.names(), faults)
    entrants = (*_entrants(policies, options.settings, faults), *((STATIC,) if options.has_static else ()))
    groups = _listed(
        "--groups", options.groups or GROUPS[options.is_quick], _group, f"{_words(FLEETS)}, separated by commas", faults
    )
    starts = _listed(
        "--start-up",
        options.start_up or STARTS[options.is_quick],
        _start,
        "seconds, 1 to 3600, separated by commas",
        faults,
    )
    seeds = values.whole("--seeds", options.seeds, 1, MAX_SEEDS) or 1
    jobs = values.whole("--jobs", options.jobs, 1, MAX_JOBS) or 1
    learn_s = None if options.learn is None else values.time("--learn", options.learn, 0.0)
    judged_s = None if options.judged is None else values.time("--for", options.judged, 60.0)
    min_run_s = 0.0 if options.min_run is None else values.time("--min-run", options.min_run, 0.0) or 0.0
    if options.data is not None and not options.data.is_dir():
        faults.add("--data", str(options.data), "a folder with traces")
    chosen = _named("--traces", options.traces, tuple(LEAGUES), faults)
    files, notes = _files(chosen, options, faults)
    faults.raise_any()
    cells = []
    for name in files:
        league = LEAGUES[name]
        usual = league.quick() if options.is_quick else league.lengths
        lengths = Lengths(
            learn_s=usual.learn_s if learn_s is None else learn_s,
            judged_s=usual.judged_s if judged_s is None else judged_s,
        )
        cells += [
            Cell(
                trace=name,
                groups=count,
                start_up_s=start_s,
                seed=seed,
                lengths=lengths,
                min_run_s=min_run_s,
                file=files[name],
            )
            for count in groups
            for start_s in starts
            for seed in range(1, seeds + 1)
        ]
    return ChampionshipPlan(cells=tuple(cells), entrants=entrants, jobs=jobs, notes=tuple(notes))


def _entrants(policies: Sequence[str], settings: Sequence[str], faults: Faults) -> tuple[Entrant, ...]:
    """Returns the policies, each with the settings that are meant for it."""
    seen: set[str] = set()
    entrants = [Entrant(policy=name, settings=tuple(settings_for(name, policies, settings))) for name in policies]
    for each in entrants:
        try:
            each.function(IMAGE)
        except InvalidInputError as error:
            for fault in error.faults:
                if str(fault) not in seen:  # A setting is the same fault under each policy.
                    faults.report(fault.where, fault.value, fault.allowed)
                    seen.add(str(fault))
    return tuple(entrants)


def _files(
    chosen: Iterable[str], options: ChampionshipOptions, faults: Faults
) -> tuple[Mapping[str, Path | None], list[str]]:
    """Returns the traces that can be run with their files, and a sentence on each of the others. One that was asked for
    by name and is not there is a fault."""
    found: dict[str, Path | None] = {}
    notes = []
    for name in chosen:
        league = LEAGUES[name]
        if league.made is not None:
            found[name] = None
            continue
        file = league.find(options.data)
        if file is not None:
            found[name] = file
        elif options.traces is not None:
            where = "no --data" if options.data is None else f"no such file in {options.data}"
            faults.report(f"--traces {name}", where, f"--data FOLDER with {_patterns(league)}")
        else:
            notes.append(f"left out: {name}, which needs --data FOLDER with {_patterns(league)}")
    return found, notes


def _patterns(league: League) -> str:
    return " or ".join(league.files)


def _named(option: str, text: str | None, known: Sequence[str], faults: Faults) -> tuple[str, ...]:
    """Returns the names of a list; all that are known without one."""
    if text is None:
        return tuple(known)
    names = tuple(dict.fromkeys(each.strip() for each in text.split(",")))
    for name in names:
        if name not in known:
            faults.add(option, name, ", ".join(known) + nearest(name, known))
    return tuple(name for name in names if name in known)


def _listed(option: str, text: str, read: Callable[[str], T], allowed: str, faults: Faults) -> tuple[T, ...]:
    found = []
    for word in text.split(","):
        try:
            found.append(read(word.strip()))
        except (UnreadableError, ValueError):
            faults.add(option, word.strip(), allowed)
    return tuple(dict.fromkeys(found))


def _group(word: str) -> int:
    count = whole(word)
    if count not in FLEETS:
        raise ValueError(word)
    return count


def _start(word: str) -> float:
    """Returns seconds: ``30`` or ``30s``."""
    value = float(whole(word)) if word.isascii() and word.isdigit() else duration(word)
    if not 1.0 <= value <= MAX_START_S:
        raise ValueError(word)
    return value


def _words(values: Iterable[object]) -> str:
    return " or ".join(map(str, values))
