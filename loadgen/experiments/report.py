"""Results of experiments as JSON, text, Markdown and HTML."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tidegate.columns import aligned
from tidegate.loadgen.experiments.definition import Check
from tidegate.loadgen.experiments.judge import Figure, Judgement
from tidegate.loadgen.experiments.run import ExperimentReport
from tidegate.loadgen.reports import page
from tidegate.loadgen.reports.plot import PALETTE, Plot, Series

HEAD: Final = ("figure", "printed", "bound", "measured", "verdict")
_SERIES: Final = re.compile(
    r"(?P<title>[^:\[]*[^:\[\s])(?: *\[(?P<unit>[^\]]*?)(?: by (?P<x>[^\]]*))?\])?(?:: *(?P<curve>.*))?"
)


def record(result: Judgement) -> dict[str, Any]:
    """Returns plain values for JSON. Equal experiments and seeds give equal records."""
    experiment = result.experiment
    return {
        "name": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "seeds": list(result.seeds),
        "partial": result.is_partial,
        "holds": result.holds,
        "figures": {name: _plain(figure) for name, figure in result.figures.items()},
        "checks": [
            {
                "figure": verdict.check.figure,
                "printed": verdict.check.printed,
                "bound": {"at_least": verdict.check.low, "at_most": verdict.check.high},
                "each_seed": verdict.check.each,
                "measured": _plain(verdict.measured),
                "verdict": "holds" if verdict.holds else "fails",
            }
            for verdict in result.verdicts
        ],
        "reported": [
            {"figure": each.figure, "printed": each.printed, "measured": _plain(figure)}
            for each, figure in result.reported
        ],
        "setup": experiment.setup,
        "parameters": experiment.parameters,
    }


def _plain(figure: Figure) -> dict[str, float]:
    return {"mean": figure.mean, "min": figure.low, "max": figure.high}


# --- words


def summary(results: Sequence[Judgement]) -> str:
    """Returns one sentence with the number of verdicts."""
    verdicts = [verdict.holds for result in results for verdict in result.verdicts]
    failed = [result.experiment.name for result in results if not result.holds]
    experiments = "1 experiment" if len(results) == 1 else f"{len(results)} experiments"
    words = f"{sum(verdicts)} of {len(verdicts)} checks of {experiments} hold"
    return f"{words}; not all of {', '.join(failed)}" if failed else words


def partial(report: ExperimentReport) -> str:
    """Returns a sentence on what an interruption left out."""
    cut = [f"{each.experiment.name} has {len(each.seeds)} seeds only" for each in report.results if each.is_partial]
    missing = [f"not run: {', '.join(report.not_run)}"] if report.not_run else []
    return f"Interrupted, this report is partial: {'; '.join(cut + missing)}"


def number(value: float) -> str:
    """Formats five significant digits."""
    return f"{value:.0f}" if abs(value) >= 1e5 else f"{value:.5g}"


def measured(figure: Figure) -> str:
    """Formats the mean, and the range if there is one."""
    mean, low, high = number(figure.mean), number(figure.low), number(figure.high)
    return mean if low == high else f"{mean} ({low} to {high})"


def bound(check: Check) -> str:
    """Returns the required range in words."""
    if check.within is not None:
        words = f"{number(100.0 * check.within)} % off at most"
        if check.of is not None:
            words = f"{words} of {number(check.of)}"
    elif check.at_least is not None and check.at_least == check.at_most:
        words = number(check.at_least)
    else:
        ends = (("at least", check.at_least), ("at most", check.at_most))
        words = ", ".join(f"{word} {number(end)}" for word, end in ends if end is not None)
    return f"{words}, each seed" if check.each else words


def rows(result: Judgement) -> Iterator[tuple[str, str, str, str, str]]:
    """Yields the table of an experiment, by :data:`HEAD`; reported figures have neither bound nor verdict."""
    for verdict in result.verdicts:
        check, words = verdict.check, "holds" if verdict.holds else "FAILS"
        yield check.figure, _printed(check.printed), bound(check), measured(verdict.measured), words
    for each, figure in result.reported:
        yield each.figure, _printed(each.printed), "", measured(figure), ""


def _printed(value: float | None) -> str:
    return "" if value is None else f"{value:.8g}"


def remarks(result: Judgement) -> list[tuple[str, str]]:
    """Returns figures with their remarks."""
    words = [(check.figure, check.why) for check in result.experiment.checks]
    words += [(each.figure, each.why) for each in result.experiment.reported]
    return [(figure, why) for figure, why in words if why]


def _seeds(result: Judgement) -> str:
    words = "1 seed" if len(result.seeds) == 1 else f"{len(result.seeds)} seeds"
    return f"{words}, interrupted" if result.is_partial else words


def text(result: Judgement) -> str:
    """Returns one experiment as text."""
    experiment = result.experiment
    lines = aligned([HEAD, *rows(result)])
    return "\n".join([f"{experiment.name}: {experiment.title} ({experiment.source}; {_seeds(result)})", *lines, ""])


# --- Markdown


def markdown(result: Judgement) -> str:
    """Returns a section of a page: heading, claim, reading, table, remarks."""
    experiment = result.experiment
    parts = [f"### {experiment.name}: {experiment.title}", f"{experiment.source}. {experiment.claim}"]
    if experiment.why:
        parts.append(f"*Our reading.* {experiment.why}")
    table = [HEAD, tuple("---" for _ in HEAD), *rows(result)]
    parts.append("\n".join(f"| {' | '.join(map(_cell, row))} |" for row in table))
    notes = remarks(result)
    if notes:
        parts.append("\n".join(f"- `{figure}`: {why}" for figure, why in notes))
    return "\n\n".join(parts) + "\n"


def _cell(value: str) -> str:
    return value.replace("|", "\\|")


# --- HTML


def html(report: ExperimentReport) -> str:
    """Returns one file with tables, plots and parameters."""
    parts = [page.verdict(partial(report), False)] if report.is_partial else []
    parts.append(page.verdict(summary(report.results), report.holds))
    overview = [
        (each.experiment.name, each.experiment.title, each.experiment.source, "holds" if each.holds else "FAILS")
        for each in report.results
    ]
    parts.append(page.table(("experiment", "title", "source", "verdict"), overview, _marks(overview)))
    for result in report.results:
        parts += _section(result)
    return page.page("Experiments", parts)


def _section(result: Judgement) -> Iterator[str]:
    experiment = result.experiment
    table = list(rows(result))
    yield page.heading(f"{experiment.name}: {experiment.title}")
    yield page.paragraph(f"{experiment.source}. {experiment.claim}")
    if experiment.why:
        yield page.paragraph(f"Our reading. {experiment.why}")
    yield page.table(HEAD, table, _marks(table))
    notes = remarks(result)
    if notes:
        yield page.facts(notes)
    yield from page.plots(plots(result.series))
    yield page.heading(f"Parameters of {experiment.name}")
    yield page.facts([("setup", experiment.setup), ("seeds", ", ".join(map(str, result.seeds)))])
    yield page.lines(_parameters(experiment.parameters))


def _marks(table: Iterable[Sequence[str]]) -> list[page.Mark | None]:
    marks: dict[str, page.Mark] = {"holds": "good", "FAILS": "bad"}
    return [marks.get(row[-1]) for row in table]


def plots(series: Mapping[str, Sequence[tuple[float, float]]]) -> list[Plot]:
    """Returns the plots; curves of one plot share it (their names:
    :class:`tidegate.loadgen.experiments.outcome.ExperimentOutcome`)."""
    found: dict[tuple[str, str, str], list[tuple[str, Sequence[tuple[float, float]]]]] = {}
    for name, points in series.items():
        match = _SERIES.fullmatch(name)
        match_groups = match.groupdict() if match is not None else {"title": name}
        key = (match_groups["title"], match_groups.get("unit") or "", match_groups.get("x") or "s")
        found.setdefault(key, []).append((match_groups.get("curve") or match_groups["title"], points))
    return [
        Plot(
            title,
            unit,
            tuple(
                Series(curve, tuple(points), PALETTE[index % len(PALETTE)])
                for index, (curve, points) in enumerate(curves)
            ),
            x_unit=x,
        )
        for (title, unit, x), curves in found.items()
    ]


def _parameters(given: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """Yields one line per parameter, ``hpa.threshold = 30``."""
    for key, value in given.items():
        path = f"{where}.{key}" if where else key
        if isinstance(value, dict):
            yield from _parameters(value, path)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for index, item in enumerate(value):
                yield f"{path}[{index}] = {', '.join(f'{name} {each}' for name, each in item.items())}"
        else:
            yield f"{path} = {value}"
