"""The self-test of the grammar on the interpreter that runs it."""

import re

import pytest

from tidegate.wire.http1 import grammar
from tidegate.wire.http1.grammar import self_test


def test_the_regular_expressions_of_this_interpreter_are_sound() -> None:
    self_test()


def test_the_self_test_notices_a_broken_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "REQUEST", re.compile(rb"(?!)"))
    with pytest.raises(RuntimeError, match="misjudge"):
        self_test()
