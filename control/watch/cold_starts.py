"""Cold starts, one record each: in memory for the API, as JSON lines on disk, as a histogram by phase.

A record is complete when a gateway has passed on the replica's first answer to a request that waited for it. If no
request waited (a deploy, a scale-up), it is complete a few seconds after the replica became ready. A replica that is
removed or fails before is recorded with the phases that it reached.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from pathlib import Path
from typing import Final

from tidegate import metrics
from tidegate.control.state.directory import write_atomically
from tidegate.control.state.notices import Faults
from tidegate.control.views.functions import ColdStartView
from tidegate.metrics import Exposition, StepHistogram
from tidegate.records.codec import encode
from tidegate.records.gateway_sample import ColdStartSeen
from tidegate.records.replica_state import ColdStartPhases

KEPT: Final = 200
"""Number of cold starts in memory."""
LINES: Final = 2000
"""Number of lines in the file at which the older half is dropped."""
SETTLED_S: Final = 5.0
"""Time after readiness from which no first answer to a waiting request is expected."""
PHASES: Final = ("decide", "schedule", "pull", "load", "warm", "first_response")


class ColdStarts:
    """The journal of cold starts. A file that cannot be written is reported to ``faults``; everything else goes on."""

    def __init__(self, path: Path, faults: Faults) -> None:
        self._path = path
        self._faults = faults
        self._open: dict[str, ColdStartView] = {}
        self._ready_since: dict[str, float] = {}
        self._done: deque[ColdStartView] = deque(maxlen=KEPT)
        self._lines = 0
        self._durations: dict[str, dict[str, StepHistogram]] = {}
        """Of all starts, by function and phase."""
        self._unwritten: deque[bytes] = deque(maxlen=LINES)
        """Lines that the file has not taken."""

    def started(
        self, *, function: str, revision: str, replica: str, accelerator: str, at: float, from_zero: bool
    ) -> None:
        """Takes the start of a replica."""
        self._open[replica] = ColdStartView(
            function=function,
            revision=revision,
            replica=replica,
            accelerator=accelerator,
            at=at,
            from_zero=from_zero,
            phases=ColdStartPhases(),
            total_s=0.0,
        )

    def progressed(self, replica: str, phases: ColdStartPhases) -> None:
        """Takes the backend's newest knowledge of a replica's start."""
        view = self._open.get(replica)
        if view is not None:
            self._open[replica] = self._with_phases(view, merged(phases, view.phases))

    def answered(self, seen: ColdStartSeen) -> None:
        """Takes a gateway's report that it passed on the replica's first answer: the record is complete."""
        view = self._open.pop(seen.replica, None)
        if view is not None:
            self._finish(self._with_phases(view, merged(seen.phases, view.phases)))

    def sweep(self, now: float) -> None:
        """Completes the records of replicas that no request waited for, and writes what could not be written; called
        every second."""
        for replica, view in tuple(self._open.items()):
            if view.phases.load_s is None:
                continue
            if now - self._ready_since.setdefault(replica, now) >= SETTLED_S:
                self.gone(replica)
        if self._unwritten:
            self._write()

    def gone(self, replica: str) -> None:
        """Takes the failure or removal of a replica: its record is complete as it is."""
        view = self._open.pop(replica, None)
        if view is not None:
            self._finish(view)

    def of(self, function: str) -> tuple[ColdStartView, ...]:
        """Returns the last cold starts of a function, newest last, with those under way."""
        known: Iterable[ColdStartView] = (*self._done, *self._open.values())
        return tuple(sorted((view for view in known if view.function == function), key=lambda view: view.at))

    def expose(self, exposition: Exposition, function: str) -> Iterator[None]:
        """Adds the durations of a function's starts, one phase a step."""
        for phase, durations in self._durations.get(function, {}).items():
            exposition.add_steps(metrics.COLD_START, (function, phase), durations)
            yield

    def keep(self, functions: Set[str]) -> None:
        """Drops the durations of all other functions."""
        for gone in self._durations.keys() - functions:
            del self._durations[gone]

    def _finish(self, view: ColdStartView) -> None:
        self._done.append(view)
        self._ready_since.pop(view.replica, None)
        self._unwritten.append(encode(view) + b"\n")
        self._write()

    def _write(self) -> None:
        try:
            while self._unwritten:
                self._append(self._unwritten[0])
                self._unwritten.popleft()
        except OSError as error:
            self._faults.set("cold-start journal", f"{self._path}: {error.strerror}")
        else:
            self._faults.clear("cold-start journal")

    def _with_phases(self, view: ColdStartView, phases: ColdStartPhases) -> ColdStartView:
        known = dict(_reached(view.phases))
        for phase, seconds in _reached(phases):
            if phase not in known:
                by_phase = self._durations.setdefault(view.function, {})
                if phase not in by_phase:
                    by_phase[phase] = StepHistogram(metrics.COLD_START)
                by_phase[phase].record_s(seconds)
        return replace(view, phases=phases, total_s=sum(seconds for _, seconds in _reached(phases)))

    def _append(self, line: bytes) -> None:
        if self._lines == 0 and self._path.exists():
            self._lines = self._path.read_bytes().count(b"\n")
        if self._lines >= LINES:
            kept = self._path.read_bytes().splitlines(keepends=True)[-LINES // 2 :]
            write_atomically(self._path, b"".join(kept))
            self._lines = len(kept)
        with self._path.open("ab") as file:
            file.write(line)
        self._lines += 1

    def __repr__(self) -> str:
        return f"<ColdStarts {len(self._open)} under way, {len(self._done)} done>"


def merged(newer: ColdStartPhases, older: ColdStartPhases) -> ColdStartPhases:
    """Returns each phase as the newer record has it, else as the older one has it."""
    names = [f"{phase}_s" for phase in PHASES]
    known = {name: getattr(newer, name) if getattr(newer, name) is not None else getattr(older, name) for name in names}
    return ColdStartPhases(**known)


def _reached(phases: ColdStartPhases) -> list[tuple[str, float]]:
    found = ((phase, getattr(phases, f"{phase}_s")) for phase in PHASES)
    return [(phase, seconds) for phase, seconds in found if seconds is not None]
