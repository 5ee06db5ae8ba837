"""The reference pages come from the tables and are up to date."""

from pathlib import Path

import pytest

from tidegate.manifest.annotations import ANNOTATIONS
from tidegate.manifest.builder import ParseContext
from tidegate.manifest.reader import read
from tidegate.manifest.reference import pages
from tidegate.settings import SETTINGS

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize("name", pages())
def test_the_page_is_what_the_tables_say(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == pages()[name], "stale: run `make docs`"


def test_every_row_has_its_line() -> None:
    assert all(f"| `{row.key}`" in pages()["use/annotations.md"] for row in ANNOTATIONS)
    assert all(f"`{row.flag}`" in pages()["use/settings.md"] for row in SETTINGS)


def test_the_example_manifest_is_read(context: ParseContext) -> None:
    example = pages()["use/annotations.md"].split("```yaml\n")[1].split("```")[0]
    (function,) = read(example, source="example", context=context).functions
    assert (function.sla.latency_s, function.scaling.parameters) == (0.2, {"target": "2"})


def test_the_example_of_match_is_read(context: ParseContext) -> None:
    page = pages()["use/annotations.md"]
    example = next(part for part in page.split("```yaml\n")[1:] if "match:" in part).split("```")[0]
    head = "apiVersion: tidegate.dev/v1alpha1\nkind: Function\nmetadata: {name: resnet}\n"
    text = head + example + "  server: {model: resnet50.onnx}\n"
    (function,) = read(text, source="example", context=context).functions
    assert [match.host for match in function.routing.matches] == ["models.example.com", None]
