"""Writes what was measured as a profile file, which :mod:`tidegate.loadgen.profile_file` reads."""

from typing import Any, Final

from tidegate.loadgen.profiling.cores_fit import on_one_core, parallel_part
from tidegate.loadgen.profiling.points import Measured, ProfileStart
from tidegate.records.profile_point import ProfilePoint
from tidegate.schema.units import plain, show_duration, show_size
from tidegate.schema.yaml_nodes import dump

MICROSECONDS: Final = 6
"""Decimals of seconds."""
MEBIBYTE: Final = 1 << 20
LEAST_PARALLEL: Final = 0.005
"""A smaller part that cores divide is none."""


def profile_text(measured: Measured) -> str:
    """Returns the file: one entry for each kind of accelerator that has a point."""
    names = sorted({cell.accelerator for cell in measured.points})
    return dump({"profiles": [_entry(name, measured) for name in names]})


def _entry(accelerator: str, measured: Measured) -> dict[str, Any]:
    points = [each for each in measured.rows() if each.cell.accelerator == accelerator]
    parallel = parallel_part({(each.cell.batch, each.cell.cores): each.execution_s for each in points})
    cores = min(each.cell.cores for each in points)
    entry: dict[str, Any] = {
        "accelerator": accelerator,
        "times": {
            each.cell.batch: _time(on_one_core(each.execution_s, cores, parallel))
            for each in points
            if each.cell.cores == cores
        },
    }
    if parallel > LEAST_PARALLEL:
        entry["parallel"] = f"{plain(round(100.0 * parallel, 1))}%"
    start = measured.starts.get(accelerator)
    if start is not None and start.is_emulated:
        entry["emulated"] = True
    if start is not None:
        entry["start"] = _start(start)
        if start.memory_bytes is not None:
            entry["memory"] = show_size(-(-start.memory_bytes // MEBIBYTE) * MEBIBYTE)
    entry["measured"] = [_point(each) for each in points]
    return entry


def _start(start: ProfileStart) -> dict[str, str]:
    phases = {"schedule": start.schedule_s, "pull": start.pull_s, "load": start.load_s, "warm": start.warm_s}
    return {name: _time(seconds) for name, seconds in phases.items()}


def _point(point: ProfilePoint) -> dict[str, Any]:
    return {
        "batch": point.cell.batch,
        "cores": point.cell.cores,
        "execution": _time(point.execution_s),
        "p50": _time(point.p50_s),
        "p95": _time(point.p95_s),
        "p99": _time(point.p99_s),
        "slots": point.slots,
        "full-execution": _time(point.full_execution_s),
        "rate": float(plain(round(point.rate_ips, 3))),
        "requests": point.requests,
    }


def _time(seconds: float) -> str:
    return show_duration(round(seconds, MICROSECONDS))
