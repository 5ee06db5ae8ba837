"""A function written as a manifest is read back as the same function."""

from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.manifest.annotations import ANNOTATIONS
from tidegate.manifest.builder import ParseContext
from tidegate.manifest.reader import read
from tidegate.manifest.routing import GroupWeights, HashOn
from tidegate.manifest.spec import SPEC
from tidegate.manifest.writer import text_of, write
from tidegate.schema.rows import Row

FOLDER = Path(__file__).parent / "manifests" / "good"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "knative")
"""Without Knative's, which may name a GPU without the annotations that a Function manifest then requires."""


@pytest.mark.parametrize("name", NAMES)
def test_every_good_manifest_written_and_read_again_is_the_same_function(name: str, context: ParseContext) -> None:
    for function in read((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"), source=name, context=context).functions:
        text = write(function)
        assert read(text, source="written", context=context).functions == (function,), text
        assert write(read(text, source="written", context=context).functions[0]) == text


@pytest.mark.parametrize(
    "row", [row for row in (*ANNOTATIONS, *SPEC) if row.default is not None], ids=lambda row: row.key
)
def test_every_default_can_be_written(row: Row) -> None:
    assert row.default is not None
    value = row.kind.read(row.default)
    assert row.kind.read(text_of(row.kind, value)) == value


def test_flags_and_the_folder_they_were_given_in_do_not_count(context: ParseContext) -> None:
    text = (FOLDER / "smallest.yaml").read_text(encoding="utf-8")
    flags = {"latency": "0.2s", "max-scale": "3"}
    (function,) = read(text, source="m", context=replace(context, flags=flags)).functions
    written = write(function)
    assert "tidegate.dev/latency: 200ms" in written
    assert read(written, source="m", context=replace(context, base="/")).functions == (function,)


def test_kinds_with_words_of_their_own_are_written_too() -> None:
    assert [text_of(GroupWeights(), value) for value in (None, {}, {"t4": 35.0, "v100": 65.5})] == [
        "learnt",
        "equal",
        "t4=35,v100=65.5",
    ]
    assert text_of(HashOn(), "header:x-user") == "header:x-user"
    with pytest.raises(ValueError, match="is read as"):
        text_of(HashOn(), "header:X-User")
