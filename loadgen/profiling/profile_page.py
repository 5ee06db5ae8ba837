"""The HTML page of a profile: curves by batch, and every figure."""

from tidegate.loadgen.profiling.points import Measured
from tidegate.loadgen.reports import page
from tidegate.loadgen.reports.plot import PALETTE, Plot, Series
from tidegate.records.profile_point import ProfilePoint

HEADS = ("accelerator", "cores", "batch", "execution", "p50", "p95", "p99", "slots", "all slots taken", "inferences/s")


def profile_page(name: str, measured: Measured, *, is_partial: bool) -> str:
    """Returns the whole file."""
    rows = measured.rows()
    parts = [page.verdict("Interrupted: this profile is partial.", False)] if is_partial else []
    parts += page.plots(_plots(measured))
    parts += [page.heading("Every figure"), page.table(HEADS, [figures(each, measured) for each in rows])]
    starts = [
        (measured.shown(name), f"{each.total_s:.3g} s", megabytes(each.memory_bytes))
        for name, each in sorted(measured.starts.items())
    ]
    parts += [page.heading("Starts"), page.table(("accelerator", "start to ready", "memory"), starts)]
    if measured.left_out:
        parts += [page.heading("Left out"), page.lines(measured.left_out)]
    return page.page(f"Profile of {name}", parts)


def figures(point: ProfilePoint, measured: Measured) -> tuple[str, ...]:
    """Returns the cells of one row, in the order of ``HEADS``."""
    times = (point.execution_s, point.p50_s, point.p95_s, point.p99_s)
    return (
        measured.shown(point.cell.accelerator),
        str(point.cell.cores or "any"),
        str(point.cell.batch),
        *(milliseconds(each) for each in times),
        str(point.slots),
        milliseconds(point.full_execution_s),
        f"{point.rate_ips:.4g}",
    )


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def megabytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e6:.0f} MB"


def _plots(measured: Measured) -> list[Plot]:
    curves: dict[str, list[ProfilePoint]] = {}
    for each in measured.rows():
        cores = f", {each.cell.cores} cores" if each.cell.cores else ""
        curves.setdefault(f"{measured.shown(each.cell.accelerator)}{cores}", []).append(each)

    def plot(title: str, unit: str, value: int) -> Plot:
        series = tuple(
            Series(
                name,
                tuple((float(point.cell.batch), (point.rate_ips, 1e3 * point.execution_s)[value]) for point in points),
                PALETTE[index % len(PALETTE)],
            )
            for index, (name, points) in enumerate(curves.items())
        )
        return Plot(title, unit, series, x_unit="inferences in a request")

    return [plot("Rate with all slots taken", "1/s", 0), plot("Execution, one request at a time", "ms", 1)]
