"""Draws every ``NAME.txt`` of this folder as ``NAME.svg``: ``python -m docs.drawings.draw`` (or ``make docs``).

A source is one statement a line, lengths in units of ten pixels; ``#`` begins a comment::

    drawing 90 40 | Title for screen readers
    frame   ID x y width height | caption
    box     ID x y width height KIND | first line | further lines
    text    x y KIND | one line
    arrow   A.right B.left | label              from the middle of one side to that of another
    arrow   A.bottom+3 B.top dashed both | label   three units along the side; dashed; heads at both ends
    arrow   A.right B.left up 1.5 | label       the label is moved 1.5 units up (down, left, right alike)
    arrow   A.top B.top over 3 | label          around what lies between, three units above (below: a negative number)

KIND is ``ours``, ``core``, ``theirs``, ``state``, ``good``, ``bad`` or ``plain``. An arrow between sides of one
direction bends in the middle, between others once. The picture carries its own paper and colours for light and dark
mode (``prefers-color-scheme``), so that it can be read on any page.
"""

import sys
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Final

UNIT: Final = 10.0
LINE: Final = 16.0
"""Pixels from one line of text to the next."""
LETTER: Final = 7.1
"""Pixels of a letter at 13 px, on the wide side: a text that would leave its box is a fault."""
SIDES: Final = {"left": (0.0, 0.5), "right": (1.0, 0.5), "top": (0.5, 0.0), "bottom": (0.5, 1.0)}
MOVES: Final = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
# Fill, stroke of each kind: light, dark.
KINDS: Final = {
    "ours": (("#dbeafe", "#2563eb"), ("#172f55", "#7fb0ff")),
    "core": (("#ede9fe", "#7c3aed"), ("#33245c", "#b99bff")),
    "theirs": (("#f1f5f9", "#64748b"), ("#2a313c", "#9aa7b8")),
    "state": (("#fef3c7", "#b45309"), ("#47330b", "#e9b44c")),
    "good": (("#dcfce7", "#15803d"), ("#123b22", "#63c98a")),
    "bad": (("#fee2e2", "#b91c1c"), ("#4b1a1a", "#f08a8a")),
    "plain": (("none", "none"), ("none", "none")),
}
PAPER, INK, SOFT = ("#ffffff", "#14181f"), ("#1f2937", "#e5e9f0"), ("#6b7280", "#9aa4b2")


class SourceError(Exception):
    """A line of a source that cannot be drawn; the text names file, line and reason."""


@dataclass(frozen=True, slots=True)
class Place:
    """A box or a frame, in pixels."""

    x: float
    y: float
    width: float
    height: float

    def point(self, side: str, along: float) -> tuple[float, float]:
        """The middle of a side, moved ``along`` it."""
        right, down = SIDES[side]
        x, y = self.x + right * self.width, self.y + down * self.height
        return (x, y + along) if side in {"left", "right"} else (x + along, y)


class Drawing:
    """One picture while its source is read."""

    def __init__(self) -> None:
        self.size = (0.0, 0.0)
        self.title = ""
        self.places: dict[str, Place] = {}
        self.parts: list[str] = []

    def take(self, line: str) -> None:
        """Draws one statement; raises ValueError or KeyError if it is none."""
        statement, *texts = (part.strip() for part in line.split("|"))
        name, *words = statement.split()
        match name:
            case "drawing":
                self.size, self.title = (UNIT * float(words[0]), UNIT * float(words[1])), texts[0]
            case "frame":
                self._frame(words, texts[0])
            case "box":
                self._box(words, texts)
            case "text":
                self.parts.append(_text(UNIT * float(words[0]), UNIT * float(words[1]), texts[0], words[2], "start"))
            case "arrow":
                self._arrow(words, texts)
            case _:
                raise ValueError(f"no statement is called {name}")

    def svg(self) -> str:
        width, height = self.size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
            f' height="{height:g}" role="img" aria-label="{escape(self.title)}">\n<title>{escape(self.title)}</title>\n'
        )
        paper = f'<rect class="paper" width="{width:g}" height="{height:g}" rx="8"/>\n'
        return head + _style() + paper + "\n".join(self.parts) + "\n</svg>\n"

    def _place(self, name: str, numbers: list[str]) -> Place:
        place = Place(*(UNIT * float(number) for number in numbers))
        if name in self.places:
            raise ValueError(f"{name} is drawn twice")
        self.places[name] = place
        return place

    def _frame(self, words: list[str], caption: str) -> None:
        place = self._place(words[0], words[1:5])
        self.parts.append(f'<rect class="frame" {_corners(place)} rx="10"/>')
        self.parts.append(_text(place.x + 10, place.y + 18, caption, "soft", "start"))

    def _box(self, words: list[str], texts: list[str]) -> None:
        place, kind = self._place(words[0], words[1:5]), words[5]
        if kind not in KINDS:
            raise ValueError(f"no kind is called {kind}")
        self.parts.append(f'<rect class="{kind}" {_corners(place)} rx="{18 if kind == "state" else 6}"/>')
        y = place.y + place.height / 2 - LINE * (len(texts) - 1) / 2 + 4.5
        for number, text in enumerate(texts):
            if LETTER * len(text) * (1.1 if number == 0 else 0.9) > place.width:
                raise ValueError(f"{text!r} is wider than its box")
            style = "strong" if number == 0 else "small"
            self.parts.append(_text(place.x + place.width / 2, y + LINE * number, text, style, "middle"))

    def _arrow(self, words: list[str], texts: list[str]) -> None:
        (start, leaves), (end, enters) = self._end(words[0]), self._end(words[1])
        options = words[2:]
        points = [start, *_bends(start, leaves, end, enters), end]
        if "over" in options:
            y = min(start[1], end[1]) - UNIT * float(options[options.index("over") + 1])
            points = [start, (start[0], y), (end[0], y), end]
        heads = ' marker-end="url(#head)"' + (' marker-start="url(#head)"' if "both" in options else "")
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polyline class="{"dashed" if "dashed" in options else "arrow"}" points="{path}"{heads}/>')
        if not texts:
            return
        (ax, ay), (bx, by) = max(pairwise(points), key=lambda pair: _length(*pair))
        is_level = ay == by
        above = -6 - LINE * 0.8 * (len(texts) - 1)
        x, y = (ax + bx) / 2 + (0 if is_level else 6), (ay + by) / 2 + (above if is_level else 4)
        for word, by_units in pairwise(options):
            if word in MOVES:
                x, y = x + MOVES[word][0] * UNIT * float(by_units), y + MOVES[word][1] * UNIT * float(by_units)
        for number, text in enumerate(texts):
            self.parts.append(_text(x, y + LINE * 0.8 * number, text, "label", "middle" if is_level else "start"))

    def _end(self, word: str) -> tuple[tuple[float, float], str]:
        name, _, side = word.partition(".")
        side, sign, along = side.partition("+") if "+" in side else side.partition("-")
        return self.places[name].point(side, UNIT * float(sign + along or "0")), side


def render(source: str, name: str) -> str:
    """The SVG of a source; raises SourceError for the first line that cannot be drawn."""
    drawing = Drawing()
    for number, line in enumerate(source.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                drawing.take(line.strip())
            except (ValueError, KeyError, IndexError, TypeError) as error:
                raise SourceError(f"{name}:{number}: {error}") from error
    return drawing.svg()


def _bends(start: tuple[float, float], leaves: str, end: tuple[float, float], enters: str) -> list[tuple[float, float]]:
    (ax, ay), (bx, by) = start, end
    level, enters_level = leaves in {"left", "right"}, enters in {"left", "right"}
    if level != enters_level:
        return [(bx, ay)] if level else [(ax, by)]
    if ax == bx or ay == by:
        return []
    return [((ax + bx) / 2, ay), ((ax + bx) / 2, by)] if level else [(ax, (ay + by) / 2), (bx, (ay + by) / 2)]


def _length(a: tuple[float, float], b: tuple[float, float]) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _corners(place: Place) -> str:
    return f'x="{place.x:g}" y="{place.y:g}" width="{place.width:g}" height="{place.height:g}"'


def _text(x: float, y: float, text: str, style: str, anchor: str) -> str:
    return f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _style() -> str:
    return (
        "<style>\ntext{font:13px system-ui,'DejaVu Sans',sans-serif}.strong{font-weight:600}"
        "\n.small,.label,.soft{font-size:11.5px}"
        "\n.arrow,.dashed{fill:none;stroke-width:1.5}.dashed{stroke-dasharray:5 4}"
        "\n.frame{fill:none;stroke-dasharray:2 4}"
        f"\n.label{{paint-order:stroke;stroke-width:4px}}\n{colours(0)}"
        f"\n@media (prefers-color-scheme: dark){{\n{colours(1)}\n}}\n</style>\n"
        '<defs><marker id="head" class="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto-start-reverse"><path d="M0 0.5L8 4L0 7.5z"/></marker></defs>\n'
    )


def colours(mode: int) -> str:
    """The rules of one mode: 0 light, 1 dark."""
    rules = [
        f".paper{{fill:{PAPER[mode]}}}",
        f"text{{fill:{INK[mode]}}}.small,.label,.soft{{fill:{SOFT[mode]}}}.label{{stroke:{PAPER[mode]}}}",
        f".arrow,.dashed,.frame{{stroke:{SOFT[mode]}}}.head path{{fill:{SOFT[mode]}}}",
    ]
    rules += [f".{kind}{{fill:{pair[mode][0]};stroke:{pair[mode][1]}}}" for kind, pair in KINDS.items()]
    return "\n".join(rules)


def main() -> None:
    for path in sorted(Path(__file__).parent.glob("*.txt")):
        try:
            drawn = render(path.read_text(encoding="utf-8"), path.name)
        except SourceError as error:
            sys.exit(str(error))
        path.with_suffix(".svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
