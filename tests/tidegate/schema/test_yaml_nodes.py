"""YAML with lines: the contents of the tree, refused texts, and harmless expansions."""

import pytest

from tidegate.errors import InvalidInputError
from tidegate.schema.yaml_nodes import (
    MAX_BYTES,
    MAX_FAULTS,
    Faults,
    ListNode,
    MapNode,
    Node,
    Scalar,
    Section,
    dump,
    load,
    nearest,
    shown,
)


def read(text: str) -> tuple[tuple[Node, ...], list[str]]:
    faults = Faults("text")
    nodes = load(text, faults)
    return nodes, [str(fault) for fault in faults.error().faults]


def test_every_key_and_value_knows_its_line() -> None:
    (root,), faults = read("a: 1\nb:\n  - x\n  - y: |\n      two\n      lines\n")
    assert not faults
    assert isinstance(root, MapNode)
    assert [(pair.key, pair.line, pair.value.line) for pair in root.pairs] == [("a", 1, 1), ("b", 2, 3)]
    items = root.get("b")
    assert isinstance(items, ListNode)
    inner = items.items[1]
    assert isinstance(inner, MapNode)
    assert inner.get("y") == Scalar("two\nlines\n", 4)


@pytest.mark.parametrize("text", ["on", "no", "0644", "1_000", "1:30", "2026-01-01", "1e3", "0x10", "'null'"])
def test_values_stay_text_as_written(text: str) -> None:
    (root,), _ = read(f"key: {text}\n")
    assert isinstance(root, MapNode)
    node = root.get("key")
    assert isinstance(node, Scalar)
    assert (node.text, node.is_null) == (text.strip("'"), False)


@pytest.mark.parametrize("text", ["", "~", "null", "Null # nothing"])
def test_nothing_written_counts_as_absent(text: str) -> None:
    (root,), _ = read(f"key: {text}\n")
    assert isinstance(root, MapNode)
    assert root.get("key") is None


def test_documents_are_separate_and_empty_ones_are_left_out() -> None:
    nodes, faults = read("---\na: 1\n---\n---\n# nothing\n---\nb: 2\n...\n")
    assert [node.line for node in nodes] == [2, 7]
    assert not faults


def test_json_is_yaml() -> None:
    (root,), faults = read('{"a": ["b", {"c": null}]}')
    assert isinstance(root, MapNode) and not faults


def test_a_duplicate_key_is_reported_with_both_lines_and_the_first_one_holds() -> None:
    (root,), faults = read("a:\n  b: 1\n  c: 2\n  b: 3\n")
    assert faults == ["line 4: a.b: got the same key again; allowed: once (line 2 has it)"]
    assert isinstance(root, MapNode)
    inner = root.get("a")
    assert isinstance(inner, MapNode) and inner.get("b") == Scalar("1", 2)


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("a: [1, 2\n", "line 2: document: got expected ',' or ']', but got '<stream end>'; allowed: YAML"),
        ("a: 'open\n", "line 2: document: got found unexpected end of stream; allowed: YAML"),
        ("a: b: c\n", "line 1: document: got mapping values are not allowed here; allowed: YAML"),
        ("a: *b\n", "line 1: document: got the alias *b; allowed: an alias of an anchor above it"),
        ("a: &a [*a]\n", "line 1: document: got the alias *a; allowed: an alias of an anchor above it"),
        ("a: !secret b\n", "line 1: a: got '!secret'; allowed: no tags"),
        ("a: !!binary aGk=\n", "line 1: a: got 'tag:yaml.org,2002:binary'; allowed: no tags"),
        ("~: b\n", "line 1: document: got nothing; allowed: a key that is a text (merge keys are not supported)"),
    ],
)
def test_what_cannot_be_read_has_a_line(text: str, reported: str) -> None:
    assert read(text)[1] == [reported]


@pytest.mark.parametrize("text", ['a: "\\UFFFFFFFF"', "%YAML " + "9" * 5000 + "\n---\na: 1", "a: \x07", "a: \x00"])
def test_slips_of_the_library_are_faults_like_others(text: str) -> None:
    nodes, faults = read(text)
    assert (nodes, len(faults)) == ((), 1)


def test_lone_surrogates_are_refused() -> None:
    assert "text without lone surrogates" in read('a: "\\ud800"')[1][0]


def test_a_document_that_would_expand_for_ever_is_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert read("\n".join(lines))[1] == [
        "line 5: document: got more values; allowed: at most 20000, with aliases resolved"
    ]


@pytest.mark.parametrize("text", ["[" * 10_000, "{a: " * 10_000, "".join(f"{' ' * i}a:\n" for i in range(200))])
def test_deep_nesting_is_refused(text: str) -> None:
    assert "at most 24 levels" in read(text)[1][0]


def test_a_text_that_is_too_long_is_not_even_looked_at() -> None:
    assert "at most 262144 bytes" in read("a" * (MAX_BYTES + 1))[1][0]
    assert "at most 262144 bytes" in read("é" * (MAX_BYTES // 2 + 1))[1][0]


def test_plain_data_written_is_read_back() -> None:
    (root,), faults = read(dump({"a": {"b": ["on", "0644", "x: y"]}, "c": "é\n"}))
    assert not faults and isinstance(root, MapNode)
    inner = root.get("a")
    assert isinstance(inner, MapNode)
    items = inner.get("b")
    assert isinstance(items, ListNode)
    assert [item.text for item in items.items if isinstance(item, Scalar)] == ["on", "0644", "x: y"]


# --- faults and sections ---------------------------------------------------------------------------------------------


def test_values_are_quoted_short_and_without_control_characters() -> None:
    assert shown("a\x1b[31m") == r"'a\x1b[31m'"
    assert len(shown("x" * 500)) == 80
    assert shown(Scalar("", 1, is_null=True)) == "nothing"


def test_faults_come_in_the_order_of_lines_and_have_an_end() -> None:
    faults = Faults("file.yaml")
    for line in range(MAX_FAULTS + 20, 0, -1):
        faults.report("a", "b", "c", line)
    reported = faults.error().faults
    assert len(faults) == MAX_FAULTS + 20
    assert [fault.line for fault in reported[:-1]] == list(range(21, MAX_FAULTS + 21))
    assert "20 further faults" in str(reported[-1])
    with pytest.raises(InvalidInputError, match=r"^file\.yaml\n"):
        faults.raise_any()


def test_a_section_knows_the_keys_that_were_asked_for() -> None:
    faults = Faults("text")
    (root,) = load("timeot: 1\ntimeout: [1]\nother: 2\n", faults)
    section = Section.of(root, "spec", faults)
    assert section is not None
    assert section.scalar("timeout") is None
    assert [pair.key for pair in section.rest()] == ["timeot", "other"]
    section.close(lambda key: "somewhere else" if key == "other" else None)
    assert [str(fault) for fault in faults.error().faults] == [
        "line 1: spec.timeot: got the unknown key 'timeot'; did you mean `timeout`? allowed: timeout",
        "line 2: spec.timeout: got a list; allowed: one value",
        "line 3: spec.other: got the unknown key 'other'; allowed: somewhere else",
    ]


def test_only_near_words_are_suggested() -> None:
    assert nearest("latenci", ["latency", "policy"]) == " (did you mean `latency`?)"
    assert nearest("zzz", ["latency", "policy"]) == ""
