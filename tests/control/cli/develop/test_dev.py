"""What `tidegate dev` looks at, and what it repeats of a failed start."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tidegate.control.cli.develop.dev import Repeats, Session, short, signature
from tidegate.control.sdk import Tidegate


def test_a_change_of_the_file_or_of_a_module_beside_it_is_seen(tmp_path: Path) -> None:
    main, helper, packaged = tmp_path / "m.py", tmp_path / "helper.py", tmp_path / "pack" / "a.py"
    packaged.parent.mkdir()
    foreign = [tmp_path / ".venv" / "b.py", tmp_path / "__pycache__" / "c.py", tmp_path / "env" / "d.py"]
    foreign.append(tmp_path / "state" / "copies" / "e.py")
    foreign[-1].parent.mkdir(parents=True)
    (tmp_path / "state" / "control.lock").touch()
    for each in (main, helper, packaged, *foreign):
        each.parent.mkdir(exist_ok=True)
        each.write_text("x = 1\n")
    (tmp_path / "env" / "pyvenv.cfg").touch()
    target = f"{main}:Model"
    seen = signature(target, None)
    assert {Path(name).name for name, _, _ in seen} == {"m.py", "helper.py", "a.py"}
    for each in foreign:
        each.write_text("x = 22\n")
    assert signature(target, None) == seen
    for each in (main, helper, packaged):
        os.utime(each, ns=(1, 1))
        after = signature(target, None)
        assert after != seen
        seen = after
    helper.unlink()
    assert signature(target, None) != seen


def test_other_files_are_watched_alone_and_with_their_requirements(tmp_path: Path) -> None:
    manifest, listed = tmp_path / "f.yaml", tmp_path / "requirements.txt"
    assert {Path(name).name for name, _, _ in signature(str(manifest), listed)} == {"f.yaml", "requirements.txt"}


def test_a_failure_repeats_the_first_line_and_the_servers_last() -> None:
    assert short("it exited\nlast output:\n  Traceback\n  ValueError: no") == "it exited\n  ValueError: no"
    assert short("it exited") == "it exited"


def test_the_lines_of_further_attempts_are_not_repeated_until_the_revision_is_ready() -> None:
    repeats = Repeats()
    assert repeats.shows("m-00001-aaaaa")
    repeats.ended("m-00001", is_ready=False)
    assert repeats.shows("m-00001-aaaaa"), "its last lines may come after the report"
    assert not repeats.shows("m-00001-bbbbb")
    assert repeats.shows("m-00002-ccccc"), "the next save"
    repeats.ended("m-00001", is_ready=True)
    assert repeats.shows("m-00001-ddddd")


class Deployment:
    """A function with one revision before the session; its servers have written and go on writing."""

    def list(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(revisions=[SimpleNamespace(id="f-00001")])]

    def logs(self, name: str, *, tail: int, follow: bool) -> Iterator[dict[str, str]]:
        written = [("f-00001-aaaaa", "of yesterday"), ("f-00002-bbbbb", "is loaded")]
        for replica, line in written[-tail:] if tail else []:
            yield {"replica": replica, "line": line}
        yield {"replica": "f-00002-bbbbb", "line": "serves"}
        yield {"replica": "f-00001-aaaaa", "line": "ends"}


@pytest.mark.parametrize(("revision", "shown"), [("f-00002", ["is loaded", "serves"]), ("f-00001", ["serves", "ends"])])
def test_what_a_new_revision_wrote_before_it_was_followed_is_printed(
    capsys: pytest.CaptureFixture[str], revision: str, shown: list[str]
) -> None:
    session = Session(cast(Tidegate, Deployment()), json=True)
    session._follow("f", revision)
    for thread in threading.enumerate():
        if thread.name == "lines of f":
            thread.join()
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == shown
