"""Codes, reasons and messages that docs/operate/troubleshooting.md names are those of the code."""

import re
from pathlib import Path

from tidegate import errors
from tidegate.autoscaler.decisions.reasons import SENTENCES

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "operate" / "troubleshooting.md").read_text(encoding="utf-8")
KINDS = {kind.code: kind.status for kind in vars(errors).values() if isinstance(kind, errors.ErrorKind)}
SOURCES = [*(ROOT / "control").rglob("*.py"), *(ROOT / "tidegate" / "store").rglob("*.py")]


def rows(heading: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    assert len(lines) > 3, heading
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_each_status_code_is_that_of_its_failure() -> None:
    for cell, *_ in rows("Requests fail"):
        for status, codes in re.findall(r"(\d{3}) ((?:`\w+`(?:, )?)+)", cell):
            for code in re.findall(r"`(\w+)`", codes):
                assert KINDS[code] == int(status), code


def test_each_reason_is_one_of_the_table() -> None:
    for cell, *_ in rows("A function has the wrong size"):
        assert set(re.findall(r"`(\w+)`", cell)) <= set(SENTENCES), cell


def test_each_message_is_said_by_the_code() -> None:
    said = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    for cell, *_ in rows("The deployment does not start, or commands do not find it"):
        (message,) = re.findall(r"^`([^`]+)`", cell)
        assert message in said, message


def test_each_command_is_a_command() -> None:
    cli = (ROOT / "docs" / "use" / "cli.md").read_text(encoding="utf-8")
    for name in re.findall(r"`tidegate ([a-z-]+)", PAGE):
        assert f"`tidegate {name}" in cli or f"`{name}`" in cli, name
