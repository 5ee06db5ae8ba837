"""Runs ``tidegate profile``: a replica of the model on each accelerator in turn, under a function of its own, and two
closed loops for each cell. What is measured is appended to the file of results at once."""

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidegate.control.cli.common import say
from tidegate.control.cli.deploy import server_flags
from tidegate.control.cli.develop.activity import activity
from tidegate.control.cli.load.run import LoadError
from tidegate.control.cli.load.run import run as send
from tidegate.control.cli.load.target import of_function
from tidegate.control.sdk import ApiError, NotRunningError, StartFailedError
from tidegate.control.sources import read_source
from tidegate.errors import Fault, InvalidInputError
from tidegate.function import Function, Routing, Scaling, Sla
from tidegate.loadgen.plans.load import LoadOptions
from tidegate.loadgen.plans.load import plan_of as load_plan
from tidegate.loadgen.plans.profile import ProfilePlan
from tidegate.loadgen.profiling.points import Measured, ProfileLine, ProfileStart, written
from tidegate.manifest.builder import ParseContext
from tidegate.manifest.reader import read as read_manifest
from tidegate.manifest.writer import write
from tidegate.records.codec import encode
from tidegate.records.profile_point import ProfileCell, ProfilePoint

if TYPE_CHECKING:
    from tidegate.control.sdk import Tidegate
    from tidegate.control.views.functions import ReplicaView
    from tidegate.loadgen.reports.record import LoadReport

SUFFIX: Final = "-profile"
MOST_CALLERS: Final = 256
EXECUTION: Final = "tidegate_queue_proxy_execution_seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel:
    """What is measured: ``function`` runs beside the one of the file's own name, and is deleted afterwards."""

    name: str
    function: Function
    base: Path
    digest: str


def target_of(
    file: str, name: str | None, given: dict[str, str], python: str | None, env: list[str], arg: list[str]
) -> MeasuredModel:
    """Reads what is measured. Raises InvalidInputError with every fault."""
    from tidegate.autoscaler.policies import registry

    faults: list[Fault] = []
    flags = given | server_flags(python, env, arg, None, faults)
    if faults:
        raise InvalidInputError("command line", faults)
    text, base, source = read_source(file, name, flags)
    context = ParseContext(base=str(base), policies=registry.names(), flags=flags)
    functions = read_manifest(text, source=source, context=context).functions
    if len(functions) != 1:
        raise InvalidInputError(source, [Fault("document", f"{len(functions)} functions", "one function")])
    (function,) = functions
    alone = replace(
        function,
        name=function.name[: 63 - len(SUFFIX)].rstrip("-") + SUFFIX,
        models=(),
        sla=Sla(),
        scaling=Scaling(min_scale=1, max_scale=1, initial_scale=1),
        routing=Routing(),
        access=None,
    )
    digest = hashlib.sha256(encode(alone)).hexdigest()[:16]
    return MeasuredModel(name=function.name, function=replace(alone, models=(alone.name,)), base=base, digest=digest)


class Bench:
    """One run of the command."""

    def __init__(
        self,
        tidegate: "Tidegate",
        target: MeasuredModel,
        plan: ProfilePlan,
        body: Path | None,
        lines: Path,
        measured: Measured,
        *,
        is_silent: bool,
    ) -> None:
        self._tidegate = tidegate
        self._target = target
        self._plan = plan
        self._body = body
        self._lines = lines
        self._measured = measured
        self._is_silent = is_silent

    def run(self, *, is_fresh: bool) -> bool:
        """Measures what is missing; returns False if it was interrupted. ``is_fresh``: the file of results begins
        again."""
        if is_fresh:
            self._lines.write_text("", encoding="utf-8")
        missing = [cell for cell in self._plan.cells if cell not in self._measured.points]
        done = len(self._plan.cells) - len(missing)
        if done and not self._is_silent:
            say(f"{done} of {len(self._plan.cells)} cells are measured already, in {self._lines}; --fresh begins again")
        try:
            for accelerator in self._plan.accelerators:
                cells = [cell for cell in missing if cell.accelerator == accelerator]
                if cells:
                    with self._deployed(accelerator) as replica:
                        self._measure(cells, replica)
        except KeyboardInterrupt:
            return False
        return True

    @contextlib.contextmanager
    def _deployed(self, accelerator: str) -> "Iterator[ReplicaView | None]":
        """Runs one replica there, and takes it away. Yields None if it does not start."""
        function = replace(self._target.function, accelerators=(accelerator,))
        try:
            try:
                with activity(f"{function.name} starts on {accelerator}", is_silent=self._is_silent):
                    self._tidegate.deploy(write(function), base=self._target.base, replace=True, wait=True)
                replica = self._replica()
            except (ApiError, StartFailedError) as error:
                self._add(ProfileLine(source=self._target.digest, left_out=f"{accelerator}: {error}"))
                yield None
                return
            yield replica
            self._add_start(accelerator)
        finally:
            with contextlib.suppress(ApiError, NotRunningError):
                self._tidegate.delete(function.name)

    def _measure(self, cells: list[ProfileCell], replica: "ReplicaView | None") -> None:
        cores = 0
        for cell in cells if replica is not None else ():
            if cell.cores != cores:
                try:
                    self._tidegate.resize(self._target.function.name, cores=cell.cores)
                except ApiError as error:
                    self._leave_out(cell, str(error))
                    continue
                cores = cell.cores
            words = f"{cell.accelerator}, batch {cell.batch}" + (f", {cores} cores" if cores else "")
            with activity(
                f"{len(self._measured.points)} of {len(self._plan.cells)}: {words}", is_silent=self._is_silent
            ):
                self._measure_cell(cell)

    def _measure_cell(self, cell: ProfileCell) -> None:
        slots = max(1, min(self._replica().limit or 1, MOST_CALLERS))
        try:
            alone_s, alone = self._loop(cell, 1)
            full_s, full = self._loop(cell, slots + 1 + slots // 2)
        except (LoadError, InvalidInputError) as error:
            self._leave_out(cell, str(error))
            return
        found = alone.service
        if found is None or full.service is None or alone_s is None or full_s is None:
            causes = {**alone.errors, **full.errors, **alone.codes, **full.codes}
            self._leave_out(
                cell, "no request succeeded: " + ", ".join(f"{key} {count}" for key, count in causes.items())
            )
            return
        point = ProfilePoint(
            cell=cell,
            execution_s=alone_s,
            p50_s=found.percentiles_s["50"],
            p95_s=found.percentiles_s["95"],
            p99_s=found.percentiles_s["99"],
            slots=slots,
            full_execution_s=full_s,
            rate_ips=full.inferences_per_s,
            requests=alone.good + full.good,
        )
        self._add(ProfileLine(source=self._target.digest, point=point))

    def _loop(self, cell: ProfileCell, callers: int) -> "tuple[float | None, LoadReport]":
        """Sends requests of the cell's batch by so many callers. Returns the mean time in the model server, None
        without a request that ended there, and the report. Raises KeyboardInterrupt if it was interrupted."""
        options = LoadOptions(
            target=self._target.function.name,
            callers=str(callers),
            span=f"{self._plan.seconds:g}s",
            batches=None if self._body is not None or cell.batch == 1 else f"{cell.batch}:1",
            body=self._body,
        )
        plan = load_plan(options)
        before = self._executions()
        report = send(options, plan, of_function(options, plan, self._tidegate), is_silent=True)
        if report.is_partial:
            raise KeyboardInterrupt
        after = self._executions()
        count = after[1] - before[1]
        return ((after[0] - before[0]) / count if count > 0 else None), report

    def _executions(self) -> tuple[float, float]:
        """Returns the sum and the count of execution times so far, over the function's replicas."""
        return executions(self._tidegate.metrics(), self._target.function.name)

    def _replica(self) -> "ReplicaView":
        view = self._tidegate.function(self._target.function.name)
        for revision in view.revisions:
            for replica in revision.replicas:
                if replica.state == "ready":
                    return replica
        raise StartFailedError("its replica is not ready any more")

    def _add_start(self, accelerator: str) -> None:
        starts = self._tidegate.cold_starts(self._target.function.name)
        if not starts:
            return
        phases, replica = starts[-1].phases, self._replica()
        start = ProfileStart(
            accelerator=accelerator,
            schedule_s=phases.schedule_s or 0.0,
            pull_s=phases.pull_s or 0.0,
            load_s=phases.load_s or 0.0,
            warm_s=phases.warm_s or 0.0,
            memory_bytes=most_memory(replica.pids[-1:]),
            is_emulated=replica.emulated,
        )
        self._add(ProfileLine(source=self._target.digest, start=start))

    def _leave_out(self, cell: ProfileCell, why: str) -> None:
        where = f"{cell.accelerator}, batch {cell.batch}" + (f", {cell.cores} cores" if cell.cores else "")
        self._add(ProfileLine(source=self._target.digest, left_out=f"{where}: {why}"))

    def _add(self, line: ProfileLine) -> None:
        self._measured.add(line)
        with self._lines.open("a", encoding="utf-8") as file:
            file.write(written(line))


def executions(metrics: str, function: str) -> tuple[float, float]:
    """Returns (sum, count) of a function's execution times in an exposition."""
    label, found = f'function="{function}"', {"sum": 0.0, "count": 0.0}
    for line in metrics.splitlines():
        name, brace, rest = line.partition("{")
        kind = name.removeprefix(f"{EXECUTION}_")
        if brace and kind in found and label in rest:
            found[kind] += float(rest.rpartition(" ")[2])
    return found["sum"], found["count"]


def most_memory(pids: tuple[int, ...]) -> int | None:
    """Returns the most memory that these processes have had together, in bytes; None if it cannot be seen."""
    total = 0
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        except OSError:
            return None
        most = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
        total += 1024 * int(most[0]) if most else 0
    return total or None
