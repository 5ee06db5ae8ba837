"""An experiment as it is written down: one TOML file that names its source, what was printed there, how it is run
and which figures it is judged by::

    name = "th1"
    title = "Constant load: requests in flight against GPU utilisation"
    source = "Thesis, tables 6.1 and 6.2"
    claim = "What the source says, in words of our own."
    why = "Where our reading of the source differs from it, or what it leaves open."
    setup = "thesis.constant"
    seeds = 5

    [parameters]
    pods = 6

    [[checks]]
    figure = "a_total_s"
    printed = 227.03
    at_least = 166.0
    at_most = 235.0

    [[reported]]
    figure = "late_binding_total_s"
    why = "Printed nowhere; shown beside the others."
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Annotated, Any

import msgspec

from tidegate.loadgen.experiments.registry import known
from tidegate.loadgen.experiments.tables import Positive, Some, Word, read, shown
from tidegate.schema.yaml_nodes import Faults, nearest

MAX_BYTES = 256 * 1024
MAX_SEEDS = 1000

Name = Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9-]{0,30}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The required value of a figure: either ``within``, or ``at_least``, ``at_most`` or both."""

    figure: Word
    printed: float | None = None
    """The value in the source; None if it contains no number."""
    at_least: float | None = None
    at_most: float | None = None
    within: Positive | None = None
    """Maximum deviation as a share of ``of``: 0.02 is two percent."""
    of: float | None = None
    """The reference of ``within``; None: the printed value."""
    each: bool = False
    """Whether every seed is judged; else the mean over seeds."""
    why: str = ""
    """Where the check differs from the source, or cannot be met."""

    def __post_init__(self) -> None:
        has_ends = self.at_least is not None or self.at_most is not None
        if has_ends == (self.within is not None):
            raise ValueError("within, or else at_least, at_most or both of them")
        if self.within is not None and not self._centre:
            raise ValueError("beside within a number other than 0, in of or in printed")
        if self.of is not None and self.within is None:
            raise ValueError("of only beside within")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError("no at_least above at_most")

    @property
    def low(self) -> float | None:
        """The least value that passes."""
        return self.at_least if self.within is None else self._centre - self.within * abs(self._centre)

    @property
    def high(self) -> float | None:
        """The largest value that passes."""
        return self.at_most if self.within is None else self._centre + self.within * abs(self._centre)

    @property
    def _centre(self) -> float:
        return (self.of if self.of is not None else self.printed) or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A figure that is shown and not judged."""

    figure: Word
    printed: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    name: Name
    title: Word
    source: Word
    """The paper and the place in it."""
    claim: Word
    """The paper's claim."""
    setup: Word
    """A key of :func:`tidegate.loadgen.experiments.registry.known`."""
    checks: Some[Check]
    parameters: dict[str, Any] = field(default_factory=dict)
    reported: tuple[Reported, ...] = ()
    seeds: Annotated[int, msgspec.Meta(ge=1, le=MAX_SEEDS)] = 5
    """Number of seeds; they are 1, 2, 3, ..."""
    why: str = ""


def parse(text: str, source: str) -> Experiment:
    """Returns the experiment defined by a TOML text; raises InvalidInputError with every fault, headed by
    ``source``."""
    faults = Faults(source)
    document = _document(text, faults)
    faults.raise_any()
    found = read(Experiment, document, "", faults)
    _check_setup(document, faults)
    faults.raise_any()
    assert found is not None  # or there were faults
    return found


def catalogue() -> Mapping[str, Experiment]:
    """Returns the experiments that ship with the package, by name: each family in the order of its numbers."""
    folder = resources.files("tidegate.loadgen.experiments") / "catalogue"
    files = [each for each in folder.iterdir() if each.name.endswith(".toml")]
    files.sort(key=lambda each: _order(each.name.removesuffix(".toml")))
    found = (parse(file.read_text(encoding="utf-8"), file.name) for file in files)
    return {experiment.name: experiment for experiment in found}


def _order(name: str) -> tuple[str, int]:
    """Sort key: ``th10`` comes after ``th2``."""
    letters = name.rstrip("0123456789")
    return letters, int(name[len(letters) :] or 0)


def _document(text: str, faults: Faults) -> Mapping[str, Any]:
    if len(text) > MAX_BYTES:
        faults.report("document", f"{len(text)} characters", f"at most {MAX_BYTES}")
        return {}
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        faults.report("document", str(error) or type(error).__name__, "TOML")
        return {}


def _check_setup(document: Mapping[str, Any], faults: Faults) -> None:
    name, parameters = document.get("setup"), document.get("parameters", {})
    if not isinstance(name, str):
        return
    if name not in known():
        faults.report("setup", shown(name), ", ".join(known()) + nearest(name, known()))
    elif isinstance(parameters, dict):
        known()[name].read(parameters, faults)
