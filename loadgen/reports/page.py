"""The frame of the HTML reports: one file without scripts or external resources.

:func:`page` builds the file from parts; the other functions build parts. All text is escaped here; callers pass plain
text.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final, Literal

from tidegate.loadgen.reports.plot import Plot, svg

_STYLE: Final = """
:root { color-scheme: light dark; --text: #1f2328; --soft: #59636e; --line: #d1d9e0; --back: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9198a1; --line: #3d444d; --back: #0d1117; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
       max-width: 900px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 1.8rem 0 .4rem; }
table { border-collapse: collapse; } td, th { padding: .15rem 1rem .15rem 0; text-align: left; vertical-align: top; }
td:first-child { color: var(--soft); } .good { color: #1a7f37; } .bad { color: #cf222e; }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
svg .grid { stroke: var(--line); stroke-width: 1; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12px; color: var(--soft); }
.scroll { overflow-x: auto; } .scroll :is(td, th) { white-space: nowrap; }
"""

Mark = Literal["good", "bad"]


def page(title: str, parts: Iterable[str]) -> str:
    """Returns the whole file; ``parts`` are HTML and follow the heading."""
    return "\n".join(
        (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
            f"<meta name='viewport' content='width=device-width'><title>{escape(title)}</title>",
            f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>",
            *parts,
            "</body></html>\n",
        )
    )


def heading(text: str) -> str:
    """Returns the heading of a section."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def verdict(text: str, is_good: bool) -> str:
    """Returns the verdict, shown first."""
    return f"<p class='{_mark(is_good)}'><strong>{escape(text)}</strong></p>"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Returns a table of names and values."""
    return f"<table>{''.join(f'<tr>{_cells(row)}</tr>' for row in rows)}</table>"


def wide_table(name: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table whose cells do not wrap. It scrolls sideways where it does not fit, also by keyboard; ``name`` is
    for screen readers."""
    return f"<div class='scroll' role='region' tabindex='0' aria-label='{escape(name)}'>{table(head, rows)}</div>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], marks: Iterable[Mark | None] = ()) -> str:
    """Returns a table with a head; ``marks`` style the last cell of each row, from the first row on."""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    shown = iter(marks)
    lines = (f"<tr>{_cells(row, next(shown, None))}</tr>" for row in rows)
    return f"<table><tr>{names}</tr>{''.join(lines)}</table>"


def lines(text: Iterable[str]) -> str:
    """Returns preformatted lines in a fixed pitch."""
    return f"<pre>{escape(chr(10).join(text))}</pre>"


def plots(drawn: Iterable[Plot]) -> list[str]:
    """Returns each plot below its title."""
    return [part for plot in drawn for part in (heading(plot.title), svg(plot))]


def _cells(row: Sequence[str], mark: Mark | None = None) -> str:
    cells = [f"<td>{escape(cell)}</td>" for cell in row]
    if mark is not None:
        cells[-1] = f"<td class='{mark}'>{escape(row[-1])}</td>"
    return "".join(cells)


def _mark(is_good: bool) -> Mark:
    return "good" if is_good else "bad"
