"""What commands print: control characters of others' text are escaped."""

import pytest
from rich.table import Table

from tidegate.control.cli.common import console, escaped, print_text, say

HOSTILE = "\x1b]0;owned\x07\x1b[31mred \x9b2J \u202eback\rover"
ESCAPED = r"\x1b]0;owned\x07\x1b[31mred \x9b2J \u202eback\rover"


def test_what_moves_a_cursor_is_escaped_and_the_rest_stays() -> None:
    assert escaped(HOSTILE) == ESCAPED
    assert escaped("one\n\ttwo \u3000 \u00e9 \U0001f600") == "one\n\ttwo \u3000 \u00e9 \U0001f600"
    assert escaped("\ud800") == r"\ud800"


def test_every_way_of_printing_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    say(HOSTILE)
    print_text(HOSTILE)
    console().print(HOSTILE, markup=False)
    table = Table(box=None, show_header=False)
    table.add_row(HOSTILE)
    console().print(table)
    shown = capsys.readouterr()
    assert shown.err == f"{ESCAPED}\n"
    by_rich = ESCAPED.replace(r"\x07", "").replace(r"\r", "")  # rich drops these by itself
    assert [line.strip() for line in shown.out.splitlines()] == [ESCAPED, by_rich, by_rich]
