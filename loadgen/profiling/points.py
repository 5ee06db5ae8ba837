"""What ``tidegate profile`` measures: times and rates of one model by accelerator, cores and batch, and its starts.

Each result is a line of JSON, appended when it is there: a run that was interrupted goes on behind its last line.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidegate.records.codec import CodecError, decode, encode
from tidegate.records.profile_point import ProfileCell, ProfilePoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileStart:
    """The start of a replica on one kind of accelerator. Phases in seconds; ``memory_bytes`` is the most that its
    model server had, None where that cannot be seen."""

    accelerator: str
    schedule_s: float
    pull_s: float
    load_s: float
    warm_s: float
    memory_bytes: int | None = None
    is_emulated: bool = False
    """Whether its service times come from the accelerators file, not from the model."""

    @property
    def total_s(self) -> float:
        return self.schedule_s + self.pull_s + self.load_s + self.warm_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileLine:
    """One line of the file of results; one of the three is set. ``source`` is the digest of what was measured."""

    source: str
    point: ProfilePoint | None = None
    start: ProfileStart | None = None
    left_out: str | None = None
    """Why a cell has no point."""


@dataclass(slots=True)
class Measured:
    """The results of one model."""

    source: str
    """Digest of the function that was measured: lines of another one do not count."""
    points: dict[ProfileCell, ProfilePoint] = field(default_factory=dict)
    starts: dict[str, ProfileStart] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(self, line: ProfileLine) -> None:
        """Adds a line; one of another source, and what cannot be a measurement, is passed over."""
        if line.source != self.source:
            return
        if line.point is not None and line.point.is_possible:
            self.points[line.point.cell] = line.point
        if line.start is not None:
            self.starts[line.start.accelerator] = line.start
        if line.left_out is not None:
            self.left_out.append(line.left_out)

    def shown(self, accelerator: str) -> str:
        """Returns the name of an accelerator as people see it."""
        start = self.starts.get(accelerator)
        return f"{accelerator} (emulated)" if start is not None and start.is_emulated else accelerator

    def rows(self) -> list[ProfilePoint]:
        """Returns the points by accelerator, cores and batch."""
        return sorted(self.points.values(), key=lambda each: (each.cell.accelerator, each.cell.cores, each.cell.batch))


def measured_in(lines: Iterable[str], source: str) -> Measured:
    """Returns what a file of results says about ``source``. A last line that was cut off is passed over."""
    found = Measured(source)
    for text in lines:
        try:
            line = decode(text.encode(), ProfileLine)
        except CodecError:
            continue
        if line.left_out is None:  # It is tried again.
            found.add(line)
    return found


def written(line: ProfileLine) -> str:
    """Returns the line as it stands in the file, with its end."""
    return encode(line).decode() + "\n"
