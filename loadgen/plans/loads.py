"""Loads of several functions: options that are given once for all of them, or as ``NAME=VALUE`` for one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tidegate.loadgen.plans.arrivals import MODES, ArrivalOptions
from tidegate.schema.rows import NAME
from tidegate.schema.yaml_nodes import Faults, nearest

FLAGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "rate": "--rate",
        "shape": "--shape",
        "trace": "--trace",
        "callers": "--callers",
        "phases": "--phase",
        "span": "--for",
        "scale": "--scale",
        "first": "--from",
        "last": "--to",
        "arrivals": "--arrivals",
        "batches": "--batches",
        "ready": "--ready",
        "deadline": "--deadline",
    }
)
"""The options by field; the first five select the arrival process."""
_MODES: Final = tuple(FLAGS)[:5]
_LISTS: Final = ("phases",)
"""Options that one function may have several times."""
_UNLIKE: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "trace": ("span",),
        "phases": ("span", "first", "last"),
        "rate": ("first", "last"),
        "shape": ("first", "last"),
        "callers": ("first", "last"),
    }
)
"""Options that mean nothing with a mode: given for all functions, they are for those with another one."""
_OWN: Final = re.compile(rf"({NAME})=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLoad(ArrivalOptions):
    """The arrival options of one function."""

    @property
    def modes(self) -> tuple[str, ...]:
        """As in the base class, without ``--concurrency``, which is an alias of ``--callers``."""
        return tuple(mode for mode in MODES if mode != "--concurrency")


@dataclass(frozen=True, slots=True)
class GivenLoads:
    """The options as written, by field: each a VALUE for all functions or a NAME=VALUE for one."""

    given: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def check(self, names: Sequence[str], faults: Faults) -> None:
        """Adds a fault for each unknown function, and for each option that is given twice."""
        for key, values in self.given.items():
            seen: set[str] = set()
            for text in values:
                name, value = _parted(text)
                if name and name not in names:
                    allowed = f"NAME=VALUE with the name of a function: {', '.join(names)}{nearest(name, names)}"
                    faults.add(FLAGS[key], text, allowed)
                elif name in seen and key not in _LISTS:
                    allowed = "once, or once for each function as NAME=VALUE" if not name else f"once for {name}"
                    faults.add(FLAGS[key], value, allowed)
                seen.add(name)

    def of(self, name: str, *, is_alone: bool) -> dict[str, Any]:
        """Returns the values of one function by field: its own, else those for all. A function with a mode of its own
        takes none for all, and ``is_alone`` keeps values for all that its mode does not have (they are faults)."""
        own, shared = self._values(name), self._values("")
        if any(mode in own for mode in _MODES):
            shared = {key: value for key, value in shared.items() if key not in _MODES}
        if not is_alone:
            unlike = {key for mode, keys in _UNLIKE.items() if mode in own or mode in shared for key in keys}
            shared = {key: value for key, value in shared.items() if key not in unlike}
        return shared | own

    def named(self, key: str) -> tuple[str, ...]:
        """Returns the functions for which an option is given by name."""
        return tuple(name for name, _ in map(_parted, self.given.get(key, ())) if name)

    def has_own(self, name: str) -> bool:
        """Returns whether an option of the load is given for this function alone."""
        return bool(self._values(name).keys() - {"ready"})

    def _values(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, values in self.given.items():
            mine = tuple(value for owner, value in map(_parted, values) if owner == name)
            if mine:
                found[key] = mine if key in _LISTS else Path(mine[0]) if key == "trace" else mine[0]
        return found


def _parted(text: str) -> tuple[str, str]:
    """Returns (name of the function, value); the name is empty for a value of all functions."""
    match = _OWN.fullmatch(text)
    return ("", text) if match is None else (match[1], match[2])
