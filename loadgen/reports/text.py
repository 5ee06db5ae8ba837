"""The report of a load as text and as CSV."""

from collections.abc import Iterator

from tidegate.loadgen.clients.client_health import verdict as health
from tidegate.loadgen.reports.record import Durations, LoadReport


def milliseconds(value: float | None) -> str:
    """Formats ``12.3 ms``; a dash if unknown."""
    return "-" if value is None else f"{value * 1e3:.3g} ms" if value < 0.1 else f"{value * 1e3:.0f} ms"


def facts(report: LoadReport) -> tuple[tuple[str, str], ...]:
    """Returns the facts of the run as (name, value)."""
    rows = [
        ("target", report.target),
        ("mode", report.mode),
        ("protocol", report.protocol),
        (
            "requests",
            f"{report.sent} sent, {report.answered} answered, {report.good} good"
            + (f", {report.unfinished} unfinished" if report.unfinished else ""),
        ),
        ("total", f"{report.wall_s:.4g} s"),
        ("rate", f"{report.rate_per_s:.1f} answers/s, {report.inferences_per_s:.1f} inferences/s"),
    ]
    if report.codes:
        rows.append(("status codes", _counts(report.codes)))
    if report.errors:
        rows.append(("errors", _counts(report.errors)))
    if report.tokens is not None:
        rows.append(("tokens", f"{report.tokens.tokens} in {report.tokens.streams} streams"))
        rows.append(("token rate", f"{report.tokens.tokens_per_s:.1f} tokens/s"))
    rows.append(("late sends", f"{report.client.late} (20 ms or more)"))
    if report.client.held:
        rows.append(("held back", f"{report.client.held}, with as many in flight as --connections allows"))
    rows.append(("client", client(report)))
    if report.sla is not None:
        rows.append(("SLA", verdict(report)))
    return tuple(rows)


def client(report: LoadReport) -> str:
    """Returns the client's self-check as a sentence."""
    found = report.client
    line = f"{found.busy:.0%} of a core, requests left {milliseconds(found.lag_p99_s)} late at p99"
    return line + health(found.is_bottleneck, found.is_starved)


def verdict(report: LoadReport) -> str:
    """Returns the verdict on the SLA."""
    sla = report.sla
    if sla is None:
        return "no SLA"
    until = "" if report.whole is None else f", a stream until its {_beginning(report)}"
    paced = "" if sla.per_token_s is None else f" and {milliseconds(sla.per_token_s)} per output token"
    line = f"{sla.within:.2f} % within {milliseconds(sla.latency_s)}{paced}, {sla.percentile:g} % wanted{until}"
    return f"{'met' if sla.is_met else 'MISSED'}: {line}"


def tables(report: LoadReport) -> tuple[tuple[str, Durations], ...]:
    """Returns the latency tables of the report with their titles."""
    tokens, whole = report.tokens, report.whole
    subject = f"latency of the {report.good} good requests"
    if whole is not None:
        subject += f" to the {_beginning(report)}" + (" of each stream" if whole.count < report.good else "")
    # Where every request was such a stream, the latency is the time to the first output.
    is_same = report.protocol == "openai" and tokens is not None and tokens.streams == report.good
    first = None if tokens is None or is_same else tokens.first
    found = (
        (f"{subject}, from when each was due", report.latency),
        (f"{subject}, from when each was sent", report.service),
        ("latency of the good streams to their end, from when each was due", whole),
        ("time to the first output of the good streams", first),
        ("time between outputs of the good streams", tokens.between if tokens is not None else None),
    )
    return tuple((title, table) for title, table in found if table is not None)


def _beginning(report: LoadReport) -> str:
    """Returns the name of the moment at which a stream counts as answered, here and at the gateway."""
    return "first output" if report.protocol == "openai" else "first byte"


def rows(table: Durations) -> Iterator[tuple[str, str]]:
    """Yields a latency table as (name, value): fastest, percentiles, slowest, mean."""
    yield "fastest", milliseconds(table.fastest_s)
    for percent, value in table.percentiles_s.items():
        yield f"{percent} %", milliseconds(value)
    yield "slowest", milliseconds(table.slowest_s)
    yield "mean", milliseconds(table.mean_s)


def text(report: LoadReport) -> str:
    """Returns the whole report."""
    lines = ["INTERRUPTED: this report is partial", ""] if report.is_partial else []
    lines += [f"{name:<13} {value}" for name, value in facts(report)]
    for title, table in tables(report):
        lines += ["", title, *(f"  {name:<8} {value}" for name, value in rows(table))]
    return "\n".join(lines)


CSV_HEAD = "at_s,answered_per_s,good_per_s,inferences_per_s,p50_ms,p99_ms"


def csv(report: LoadReport) -> str:
    """Returns a row for each slot of time; cells are empty without a success."""
    lines = [CSV_HEAD]
    for each in report.seconds:
        p50, p99 = ("" if value is None else f"{value * 1e3:.3f}" for value in (each.p50_s, each.p99_s))
        lines.append(f"{each.at_s:g},{each.answered_per_s:g},{each.good_per_s:g},{each.inferences_per_s:g},{p50},{p99}")
    return "\n".join(lines) + "\n"


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in found.items())
