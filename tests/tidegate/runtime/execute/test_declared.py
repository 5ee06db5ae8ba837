"""The tensors that a class states in its text, read without running it."""

import pytest

from tidegate.runtime.execute.declared import read

TEXT = b"""
import torch_that_is_not_here
WIDTH = 2
ROWS, BATCH = -1, 3

class Base:
    inputs = {"x": ("FP32", [-1, WIDTH])}
    outputs = {"old": ("FP32", [1])}

class Model(Base):
    kind: str = "INT64"
    outputs = {"y": (kind, [-1, WIDTH])}

class Computed:
    inputs = {name: ("FP32", [-1]) for name in "ab"}
    outputs = make()

class Bare:
    pass
"""


def test_names_stand_for_the_literals_assigned_to_them_and_bases_count() -> None:
    found = read(TEXT, "Model", ("inputs", "outputs"))
    assert found.values == {"inputs": {"x": ("FP32", [-1, 2])}, "outputs": {"y": ("INT64", [-1, 2])}}
    assert found.computed == {}


def test_what_would_have_to_run_is_named_with_its_line() -> None:
    found = read(TEXT, "Computed", ("inputs", "outputs"))
    assert (found.values, found.computed) == ({}, {"inputs": 15, "outputs": 16})
    assert read(TEXT, "Bare", ("inputs",)) == read(b"class Bare: pass", "Bare", ("inputs",))


def test_an_unknown_class_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(LookupError, match="no class Other; it has Bare, Base, Computed, Model"):
        read(TEXT, "Other", ("inputs",))


def test_names_in_a_circle_are_computed() -> None:
    assert read(b"a = b\nb = a\nclass M:\n    inputs = a", "M", ("inputs",)).computed == {"inputs": 4}
