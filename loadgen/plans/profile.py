"""The plan of ``tidegate profile``, read from its options: every fault is found before anything is deployed."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.loadgen.plans.arrivals import Reader
from tidegate.loadgen.plans.outputs import check_files
from tidegate.records.profile_point import ProfileCell
from tidegate.schema.units import UnreadableError, whole
from tidegate.schema.yaml_nodes import Faults, nearest

MAX_BATCH: Final = 4096
MAX_CORES: Final = 1024
MAX_SIZES: Final = 32
SECONDS: Final = "3s"
BATCHES: Final = "1,2,4,8"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """The options of the command line, as written."""

    accelerators: str | None = None
    batches: str = BATCHES
    cores: str | None = None
    seconds: str = SECONDS
    body: Path | None = None
    to: Path
    html: Path | None = None
    lines: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePlan:
    accelerators: tuple[str, ...]
    batches: tuple[int, ...]
    cores: tuple[int, ...]
    """Empty: as the function says, measured as 0."""
    seconds: float
    """Of each run; a cell has two."""

    @property
    def cells(self) -> tuple[ProfileCell, ...]:
        """All cells: accelerator by accelerator, and cores by cores, since a change of either takes time."""
        return tuple(
            ProfileCell(accelerator=name, cores=cores, batch=batch)
            for name in self.accelerators
            for cores in self.cores or (0,)
            for batch in self.batches
        )


def plan_of(options: ProfileOptions, known: Iterable[str]) -> ProfilePlan:
    """Returns the plan for a deployment with accelerators ``known``. Raises InvalidInputError with every fault."""
    faults, here = Faults("profile"), tuple(known)
    check_files(
        (("--to", options.to), ("--html", options.html), ("the file of results", options.lines)),
        (options.body,),
        faults,
    )
    wanted = here if options.accelerators is None else tuple(_words(options.accelerators))
    for name in wanted:
        if name not in here:
            faults.add("--accelerators", name, f"one of {', '.join(here)}{nearest(name, here)}")
    batches = _wholes("--batches", options.batches, MAX_BATCH, faults)
    if options.body is not None and batches != (1,) and options.batches != BATCHES:
        faults.add("--batches", options.batches, "1, or nothing, with --body: a file has one size")
    cores = () if options.cores is None else _wholes("--cores", options.cores, MAX_CORES, faults)
    seconds = Reader(faults).time("--seconds", options.seconds, 0.1)
    faults.raise_any()
    return ProfilePlan(
        accelerators=wanted,
        batches=batches if options.body is None else (1,),
        cores=cores,
        seconds=seconds or 0.0,
    )


def _words(text: str) -> list[str]:
    return list(dict.fromkeys(each.strip() for each in text.split(",")))


def _wholes(option: str, text: str, most: int, faults: Faults) -> tuple[int, ...]:
    """Returns the numbers of a list, in rising order."""
    found: set[int] = set()
    for word in _words(text):
        try:
            value = whole(word)
        except UnreadableError:
            value = 0
        if not 1 <= value <= most:
            faults.add(option, word, f"whole numbers from 1 to {most}, separated by commas")
        found.add(value)
    if len(found) > MAX_SIZES:
        faults.add(option, f"{len(found)} numbers", f"at most {MAX_SIZES}")
    return tuple(sorted(found))
