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


@pytest.mark.parametrize(
    ("name", "groups", "words"),
    [
        ("REQUEST", rb"(GET|POST) (/[^ ]*) HTTP/1\.([01])(\r\n(?:[Hh]ost: .*\r\n)?)", "groups"),
        ("RESPONSE", rb"HTTP/1\.(.) (...) (O)K(\r\n(?:.*\r\n)*)\r\n", "groups for a response"),
        ("RESPONSE", rb"HTTP/1\.(.) (...) (OK\r)(\n(?:.*\r\n)*)\r\n", "groups for a response"),
        ("RESPONSE", rb"(?!)", "groups for a response"),
    ],
)
def test_the_self_test_notices_wrong_groups(
    name: str, groups: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepts = grammar.REQUEST.match

    class Broken:
        """Accepts what the real one accepts, and returns other groups."""

        def match(self, data: bytes) -> re.Match[bytes] | None:
            return re.match(groups, data) if name == "RESPONSE" or accepts(data) else None

    monkeypatch.setattr(grammar, name, Broken())
    with pytest.raises(RuntimeError, match=words):
        self_test()
