"""The plan of ``tidegate experiment``: options and files, with every fault at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.errors import InvalidInputError
from tidegate.loadgen.experiments.definition import MAX_BYTES, MAX_SEEDS, Experiment, catalogue, parse
from tidegate.loadgen.plans.outputs import check_files
from tidegate.schema.units import UnreadableError, whole
from tidegate.schema.yaml_nodes import Faults, nearest

ALL: Final = "all"
MAX_JOBS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentPlan:
    experiments: tuple[Experiment, ...]
    seeds: int | None
    jobs: int

    @property
    def tasks(self) -> int:
        """Number of seeds of all experiments."""
        return sum(self.seeds or each.seeds for each in self.experiments)


def plan_of(
    names: Sequence[str],
    definitions: Sequence[Path],
    *,
    seeds: str | None,
    jobs: str,
    report: Path | None = None,
    is_list: bool = False,
) -> ExperimentPlan:
    """Returns the plan. Raises InvalidInputError with every fault. ``is_list``: without names all experiments are
    meant."""
    faults = Faults("experiment")
    check_files([("--report", report)], definitions, faults)
    own = [found for path in definitions if (found := _definition(path, faults)) is not None]
    if is_list and not names and not definitions:
        names = (ALL,)
    if not names and not definitions:
        faults.report("NAME", "nothing", f"{ALL}, names that --list prints, or --definition FILE")
    experiments = [*_named(names, faults), *own]
    for index, each in enumerate(experiments):
        if each.name in {other.name for other in experiments[:index]}:
            faults.add("name", each.name, "each name once")
    plan = ExperimentPlan(
        experiments=tuple(experiments),
        seeds=None if seeds is None else _whole("--seeds", seeds, MAX_SEEDS, faults),
        jobs=_whole("--jobs", jobs, MAX_JOBS, faults),
    )
    faults.raise_any()
    return plan


def _named(names: Sequence[str], faults: Faults) -> list[Experiment]:
    known = catalogue() if names else {}
    for name in dict.fromkeys(names):
        if name != ALL and name not in known:
            faults.add("NAME", name, f"{ALL}, {', '.join(known)}{nearest(name, known)}")
    if ALL in names:
        return list(known.values())
    return [known[name] for name in dict.fromkeys(names) if name in known]


def _definition(path: Path, faults: Faults) -> Experiment | None:
    try:
        data = path.read_bytes()[: MAX_BYTES + 1]
        return parse(data.decode("utf-8-sig"), str(path))
    except OSError as error:
        faults.report(f"--definition {path}", error.strerror or "no file", "a file that can be read")
    except UnicodeDecodeError as error:
        faults.report(f"--definition {path}", f"byte {error.start} is no UTF-8", "TOML, text in UTF-8")
    except InvalidInputError as error:
        for fault in error.faults:
            faults.report(f"{path}: {fault.where}", fault.value, fault.allowed, fault.line)
    return None


def _whole(name: str, text: str, most: int, faults: Faults) -> int:
    try:
        value = whole(text)
    except UnreadableError:
        value = 0
    if not 1 <= value <= most:
        faults.add(name, text, f"a whole number, 1 to {most}")
        return 1
    return value
