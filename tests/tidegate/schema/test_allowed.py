"""What a fault lists as allowed is allowed: the bounds and words of every row of the tables are read by their kind."""

import re
from collections.abc import Iterator

import pytest

from tidegate.manifest.annotations import ANNOTATIONS, PARAMETERS
from tidegate.manifest.spec import SPEC
from tidegate.schema.rows import Row
from tidegate.settings import SETTINGS

ROWS = [*SETTINGS, *ANNOTATIONS, *SPEC, *(row for rows in PARAMETERS.values() for row in rows)]


def listed(row: Row) -> Iterator[str]:
    """Yields the values that a row's text of allowed values names."""
    text = row.kind.allowed
    prefix = "p" if "pN" in text else ""
    for low, high in re.findall(r"(?<![\w.])(-?\d[\w.]*) to (-?\d[\w.]*)", text):
        yield from (low, high) if low.endswith(("s", "m", "h")) else (prefix + low, prefix + high)
    words = text.partition(" (")[0]
    if re.fullmatch(r"[\w-]+(, [\w-]+)+", words):
        yield from words.split(", ")
    if found := re.match(r"([\w-]+), or ", text):
        yield "" if found[1] == "empty" else found[1]
    if found := re.search(r"at most ([\d.]+)$", text):
        yield found[1]
    if row.default is not None:
        yield row.default


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_every_value_that_is_listed_as_allowed_is_read(row: Row) -> None:
    for value in listed(row):
        assert row.accepts(value), f"{row.key}: {value!r} is listed in {row.kind.allowed!r}"
