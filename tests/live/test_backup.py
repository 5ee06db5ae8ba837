"""A copy of the state directory, made while the deployment serves as docs/operate/upgrade.md says, serves elsewhere."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.live.deployment import deployment, places

pytestmark = pytest.mark.live

DATABASES = ("state.db", "costs.db")
COPIED = ("copies", "token", "link-token", "name")
"""What the page lists beside the databases."""


def back_up(state: Path, target: Path) -> None:
    target.mkdir(mode=0o700)
    for name in DATABASES:
        with closing(sqlite3.connect(state / name)) as source, closing(sqlite3.connect(target / name)) as copy:
            source.backup(copy)
    for name in COPIED:
        if (state / name).is_dir():
            shutil.copytree(state / name, target / name)
        elif (state / name).exists():
            shutil.copy2(state / name, target / name)


def test_a_copy_made_while_serving_brings_functions_back_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    with deployment(tmp_path / "here", *places(tmp_path, 2)) as here:
        here.up()
        here.deploy(here.handler(), "--min-scale", "1", "--wait")
        assert here.infer().is_success
        back_up(here.state.root, tmp_path / "there" / "state")
        assert here.infer().is_success
    # The state is lost, and the handler's file; its folder, in which the model server works, is there.
    shutil.rmtree(tmp_path / "here" / "state")
    (tmp_path / "here" / "echo.py").unlink()
    with deployment(tmp_path / "there", *places(tmp_path, 2)) as there:
        there.up()
        answer = there.infer()
        assert answer.is_success, answer.text
        assert answer.json()["outputs"][0]["data"] == [2.0, 4.0]
        assert there.status("echo")["revisions"][0]["id"] == "echo-00001"
