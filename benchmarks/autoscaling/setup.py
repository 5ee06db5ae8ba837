"""Setup of an experiment, and helpers for its rows."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.autoscaling.results import Judge, Row
from benchmarks.autoscaling.timeline import Look, Run, by_second
from tidegate.loadgen.reports.plot import COLOURS, PALETTE, Plot, Series, svg


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    smoke: bool
    seed: int
    out: Path
    """Where plots and timelines go."""
    trace: Path
    """Requests per second, one number a line."""
    seconds: float | None = None
    """How long a load lasts instead of its full length. None: that."""

    def long(self, full: float, smoke: float) -> float:
        """Returns how long a load lasts."""
        if self.seconds is not None:
            return self.seconds
        return smoke if self.smoke else full


def client_rows(judge: Judge, case: str, run: Run) -> Iterator[Row]:
    """Nothing lost, and whether the client was quick enough; both hold at any length."""
    faults = {f"{each.status or each.error}" for each in run.lost}
    yield judge.row(case, "lost_requests", len(run.lost), most=0, always=True, note=", ".join(sorted(faults))[:200])
    if run.client is not None:
        yield judge.row(case, "client_late_requests", run.client.late, note=str(run.client))


def write_timeline(setup: Setup, name: str, run: Run, target_s: float, more: Mapping[str, object] | None = None) -> str:
    """``NAME.jsonl`` (looks and seconds) and ``NAME.html`` (the same as plots); the path of the latter."""
    setup.out.mkdir(parents=True, exist_ok=True)
    seconds = by_second(run.outcomes, target_s, run.seconds)
    with (setup.out / f"{name}.jsonl").open("w") as lines:
        for look in run.looks:
            lines.write(json.dumps({"look": asdict(look)}) + "\n")
        for second in seconds:
            lines.write(json.dumps({"second": asdict(second)}) + "\n")
    price = [(look.at_s, look.price_per_hour) for look in run.looks]
    plots = (
        Plot("Replicas that are ready", "replicas", _by_accelerator(run.looks, "ready")),
        Plot("Weights", "share", _by_accelerator(run.looks, "weights")),
        Plot("Cost", "per hour", (_series("all", price, 0, steps=True),)),
        Plot("Arrivals", "inferences/s", (_series("all", [(s.at_s, s.inferences) for s in seconds], 0),)),
        Plot("Late or lost requests", "per second", (_series("all", [(s.at_s, s.late) for s in seconds], 5),)),
        Plot(
            "Latency by second of arrival",
            "ms",
            (
                _series("p50", [(s.at_s, s.p50_ms) for s in seconds if s.p50_ms is not None], 0),
                _series("p98", [(s.at_s, s.p98_ms) for s in seconds if s.p98_ms is not None], 1),
                Series("target", ((0.0, target_s * 1e3), (run.seconds, target_s * 1e3)), COLOURS["limit"], dashed=True),
            ),
        ),
    )
    page = ["<!doctype html><html lang='en'><head><meta charset='utf-8'>", f"<title>{name}</title>"]
    page.append("<style>body{font:15px system-ui;max-width:900px;margin:2rem auto}svg .grid{stroke:#d1d9e0}</style>")
    page.append(f"</head><body><h1>{name}</h1>")
    page += [f"<h2>{plot.title}</h2>{svg(plot)}" for plot in plots]
    path = setup.out / f"{name}.html"
    path.write_text("\n".join([*page, "</body></html>\n"]))
    return str(path)


def _by_accelerator(looks: Sequence[Look], what: str) -> tuple[Series, ...]:
    names = sorted({name for look in looks for name in getattr(look, what)})
    return tuple(
        _series(name, [(look.at_s, getattr(look, what).get(name, 0)) for look in looks], index, steps=True)
        for index, name in enumerate(names)
    )


def _series(name: str, points: Sequence[tuple[float, float]], colour: int, *, steps: bool = False) -> Series:
    found = tuple((float(at_s), float(value)) for at_s, value in points)
    return Series(name, found, PALETTE[colour % len(PALETTE)], steps=steps)
