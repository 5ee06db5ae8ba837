"""The state directory that a command or a program means, in the order of the documentation."""

from pathlib import Path

import pytest

from tidegate.control.state.finding import find_directory
from tidegate.errors import InvalidInputError


def test_the_given_one_then_the_environment_then_the_settings_then_the_users(tmp_path: Path) -> None:
    environ = {"TIDEGATE_STATE": "/e", "HOME": "/home/ada"}
    assert find_directory(environ, tmp_path, given="/g") == Path("/g")
    assert find_directory(environ, tmp_path) == Path("/e")
    del environ["TIDEGATE_STATE"]
    assert find_directory(environ, tmp_path) == Path("/home/ada/.local/state/tidegate")
    (tmp_path / "tidegate.toml").write_text('[state]\ndirectory = "here"\n', encoding="utf-8")
    assert find_directory(environ, tmp_path) == tmp_path / "here"


def test_settings_with_faults_are_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_bytes(b"\xff")
    with pytest.raises(InvalidInputError, match="a TOML file that can be read"):
        find_directory({}, tmp_path)
