"""Any text yields functions or InvalidInputError. Nothing else, and quickly."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.errors import InvalidInputError
from tidegate.manifest.builder import ParseContext
from tidegate.manifest.reader import read
from tidegate.schema.yaml_nodes import dump

FOLDER = Path(__file__).parent / "manifests"
SEEDS = [path.read_text(encoding="utf-8") for path in sorted(FOLDER.rglob("*.yaml"))]
PIECES = [
    *("- ", "[", "]", "{", "}", ": ", "\n", "  ", "&a ", "*a", '"', "'", "|", ">", "? ", "~", "<<", "#", "\t", "\r"),
    *("!!str ", "!x ", "%YAML 1.1\n", "---\n", "...\n", "\0", "\x85", "\u2028", "\ufeff", "\ud800", '"\\UFFFFFFFF"'),
    *("٣", "1_0", "+3", "nan", "-1", "1e400", "9" * 400, "true", "null", "0s", "tidegate.dev/", "policy.", "PORT"),
]
WORDS = sorted({word for text in SEEDS for word in text.replace(":", " ").replace(",", " ").split()})

pieces = st.sampled_from(PIECES) | st.sampled_from(WORDS) | st.text(max_size=8)
edits = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 40), pieces), min_size=1, max_size=6)
trees = st.recursive(
    pieces | st.none() | st.booleans() | st.integers() | st.floats(),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(pieces, below, max_size=6),
    max_leaves=20,
)
FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def check(text: str, context: ParseContext) -> None:
    for images in (False, True):
        try:
            found = read(text, source="fuzz", context=replace(context, images=images))
        except InvalidInputError as error:
            assert error.faults
            str(error).encode("utf-8")
        else:
            assert found.functions


def edited(seed: str, changes: list[tuple[int, int, str]]) -> str:
    for place, length, piece in changes:
        start = place % (len(seed) + 1)
        seed = seed[:start] + piece + seed[start + length :]
    return seed


@FIXTURE
@given(seed=st.sampled_from(SEEDS), changes=edits)
def test_edited_manifests(context: ParseContext, seed: str, changes: list[tuple[int, int, str]]) -> None:
    check(edited(seed, changes), context)


@FIXTURE
@given(text=st.text(st.characters(codec=None), max_size=200))
def test_any_text(context: ParseContext, text: str) -> None:
    check(text, context)


@FIXTURE
@given(spec=trees, annotations=trees, kind=st.sampled_from(["Function", "Service"]))
def test_any_tree_in_the_place_of_spec_and_annotations(
    context: ParseContext, spec: object, annotations: object, kind: str
) -> None:
    version = "tidegate.dev/v1alpha1" if kind == "Function" else "serving.knative.dev/v1"
    metadata = {"name": "resnet", "annotations": annotations}
    template = {"template": {"metadata": {"annotations": annotations}, "spec": spec}}
    tree = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec if kind == "Function" else template}
    check(dump(tree), context)


@pytest.mark.deep
@settings(FIXTURE, max_examples=20_000)
@given(seed=st.sampled_from(SEEDS), changes=edits)
def test_edited_manifests_for_long(context: ParseContext, seed: str, changes: list[tuple[int, int, str]]) -> None:
    check(edited(seed, changes), context)
