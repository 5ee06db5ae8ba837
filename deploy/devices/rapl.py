"""Power of this machine's processor packages, by the energy counters of Linux' power capping framework (RAPL)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class Energy:
    """A reading of one package's counter, in microjoules."""

    at_s: float
    counted: int
    range: int
    """Value after which the counter begins again at 0."""


def watts_between(before: Energy, after: Energy) -> float | None:
    """Returns the mean power of two readings. None if no time has passed, or if the counter's range has changed.

    One wrap-around is seen; with the usual range it takes minutes at least, and readings are a second apart."""
    if after.at_s <= before.at_s or after.range != before.range or max(after.counted, before.counted) > after.range:
        return None
    used = after.counted - before.counted
    return (used if used >= 0 else used + after.range) / 1e6 / (after.at_s - before.at_s)


class Packages:
    """Reads the counters of all packages."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._before: dict[str, Energy] = {}
        self.fault: str | None = None
        """Reason why the last reading has no figure, or lacks that of a package. None if it is whole."""

    def read(self, now: float) -> Mapping[str, float]:
        """Returns watts by package since the last reading; nothing at the first one. ``now``: seconds, monotonic."""
        self.fault = None
        found = {}
        for domain in sorted(self._root.glob("intel-rapl:*")):  # AMD's processors have the same name.
            try:
                name = (domain / "name").read_text().strip()
                if name.startswith("package"):  # Others are parts of a package, or hold more than processors.
                    counted = int((domain / "energy_uj").read_text())
                    found[name] = Energy(now, counted, int((domain / "max_energy_range_uj").read_text()))
            except (OSError, ValueError) as error:
                why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else f"{domain}: {error}"
                self.fault = f"RAPL: {why}"
        if not found and self.fault is None:
            self.fault = f"RAPL: no package in {self._root}; virtual machines seldom have one"
        before, self._before = self._before, found
        powers = {name: watts_between(before[name], each) for name, each in found.items() if name in before}
        return {name: watts for name, watts in powers.items() if watts is not None}

    def __repr__(self) -> str:
        return f"<Packages {sorted(self._before)}, fault {self.fault}>"
