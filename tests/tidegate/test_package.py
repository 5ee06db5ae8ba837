"""``from tidegate import ...``: the names, and the stub that type checkers read."""

import ast
from pathlib import Path

import pytest

import tidegate

STUB = Path(tidegate.__file__ or "").with_suffix(".pyi")
NAMES = {"ApiError", "AsyncTidegate", "InvokeError", "NotRunningError", "StartFailedError", "Tidegate"}


def test_the_names_of_the_sdk_are_found_and_the_stub_has_the_same() -> None:
    declared = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in ast.parse(STUB.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert declared.keys() == NAMES
    for name, place in declared.items():
        found = getattr(tidegate, str(name))
        assert f"{found.__module__}.{found.__qualname__}" == place


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tidegate' has no attribute 'Client'"):
        getattr(tidegate, "Client")  # noqa: B009  # mypy knows that it is not there
