"""Kinds as conditions in CEL. What an API server makes of them: tests/live/test_kubernetes_resources.py."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.deploy.kubernetes.resources.conditions import MAX_REPEAT, condition, literal, matches
from tidegate.manifest.annotations import ANNOTATIONS
from tidegate.manifest.routing import FIELD_NAME, FIELD_VALUE, HOST, PATH_PREFIX
from tidegate.manifest.spec import HANDLER, IMAGE, MODEL_NAME, SPEC, URL_PATH, VARIABLE
from tidegate.schema.rows import Checked, Duration, Percent, Text, Whole, WordOr

TEXTS = (FIELD_NAME, FIELD_VALUE, HOST, PATH_PREFIX, HANDLER, IMAGE, MODEL_NAME, URL_PATH, VARIABLE)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            Whole(1, 9),
            "x.matches('^(?:(?:0|[1-9][0-9]{0,17}))$') && int(x) >= 1 && int(x) <= 9",
        ),
        (
            Whole(2),
            "x.matches('^(?:(?:0|[1-9][0-9]{0,17}))$') && int(x) >= 2",
        ),
        (
            WordOr("auto", Percent(0, 100, whole=True)),
            "(x == 'auto' || (x.matches('^(?:(?:0|[1-9][0-9]{0,17})%?)$')"
            " && double(x.replace('%', '')) >= 0.0 && double(x.replace('%', '')) <= 100.0))",
        ),
        (Text("[a-z]+", "letters"), "x.matches('^(?:[a-z]+)$')"),
        (WordOr("none", Checked(bool, "anything")), None),
    ],
)
def test_a_kind_becomes_a_condition(kind: Whole | WordOr | Text, expected: str | None) -> None:
    assert condition(kind, "x") == expected


def test_a_duration_without_a_unit_is_read_in_the_unit_of_its_kind() -> None:
    found = condition(Duration(0.001, 3600, bare="ms"), "x")
    assert found is not None
    assert "(x.matches('[0-9]$') ? x + 'ms' : x)" in found
    assert "<= duration('3600s')" in found


def test_a_look_ahead_becomes_a_condition_of_its_own() -> None:
    found = matches(VARIABLE.pattern, "x")
    assert found.startswith("!x.matches('^(?:PORT$|TIDEGATE_)') && x.matches(")
    assert matches(HOST.pattern, "x").startswith("x.matches('^(?:.{1,253}$)') && ")


def test_a_count_beyond_what_go_repeats_is_written_as_several() -> None:
    assert matches("/[a-z]{0,1023}", "x") == "x.matches('^(?:/[a-z]{0,1000}[a-z]{0,23})$')"
    assert matches(".{1,4095}", "x") == "x.matches('^(?:.{1,1000}.{0,1000}.{0,1000}.{0,1000}.{0,95})$')"


def patterns_of(text: str) -> list[str]:
    """The regular expressions in a condition."""
    return [found[2] for found in re.finditer(r"matches\(r?('''|'|\")(.*?)\1\)", text)]


def test_no_pattern_has_what_go_does_not_know() -> None:
    found = [condition(row.kind, "x") for row in (*ANNOTATIONS, *SPEC)] + [condition(kind, "x") for kind in TEXTS]
    for pattern in (each for text in found if text is not None for each in patterns_of(text)):
        assert "(?=" not in pattern
        assert "(?!" not in pattern
        assert all(int(count) <= MAX_REPEAT for count in re.findall(r"[{,]([0-9]+)[,}]", pattern)), pattern


@pytest.mark.parametrize("kind", TEXTS, ids=lambda kind: kind.allowed[:20])
@given(data=st.data())
def test_a_translated_pattern_accepts_what_the_kind_accepts(kind: Text, data: st.DataObject) -> None:
    text = data.draw(st.from_regex(kind.pattern, fullmatch=True))
    found = matches(kind.pattern, "x")
    for part in found.split(" && "):
        (pattern,) = patterns_of(part)
        assert (re.search(pattern, text) is None) == part.startswith("!"), (part, text)


def test_a_literal_is_quoted_by_what_it_does_not_contain() -> None:
    assert literal("a") == "'a'"
    assert literal(r"a\.b") == r"r'a\.b'"
    assert literal("it's") == '"it\'s"'
