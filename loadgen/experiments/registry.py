"""The registry of setups: functions that run an experiment once. They lie in ``loadgen/experiments/setups/``, and a
definition names one as ``MODULE.FUNCTION``."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from tidegate.loadgen.experiments import setups
from tidegate.loadgen.experiments.outcome import ExperimentOutcome
from tidegate.loadgen.experiments.tables import read
from tidegate.schema.yaml_nodes import Faults


@dataclass(frozen=True, slots=True)
class Setup:
    """A setup, called with the table ``[parameters]`` of a definition and a seed. Equal arguments give equal
    outcomes."""

    kind: type[Any]
    """The dataclass of the parameters."""
    function: Callable[[Any, int], ExperimentOutcome]

    def __call__(self, parameters: Mapping[str, Any], seed: int) -> ExperimentOutcome:
        """Runs the setup. Raises InvalidInputError with every fault of the parameters."""
        faults = Faults("parameters")
        read_parameters = self.read(parameters, faults)
        faults.raise_any()
        return self.function(read_parameters, seed)

    def read(self, parameters: Mapping[str, Any], faults: Faults) -> object:
        """Returns the parameters as :attr:`kind`; None if they have faults."""
        return read(self.kind, parameters, "parameters", faults)


def setup(kind: type[Any]) -> Callable[[Callable[[Any, int], ExperimentOutcome]], Setup]:
    """Makes a function of parameters, read as ``kind``, and a seed into a setup::

    @setup(Table1)
    def table1(parameters: Table1, seed: int) -> Outcome: ...
    """
    return lambda function: Setup(kind, function)


@cache
def known() -> Mapping[str, Setup]:
    """Returns every setup by name, in alphabetical order."""
    found = {}
    for module in pkgutil.walk_packages(setups.__path__, f"{setups.__name__}."):
        subject = module.name.removeprefix(f"{setups.__name__}.").partition(".")[0]
        content = vars(importlib.import_module(module.name))
        found.update({f"{subject}.{name}": each for name, each in content.items() if isinstance(each, Setup)})
    return MappingProxyType(dict(sorted(found.items())))
