"""What `tidegate dev` looks at, and what it repeats of a failed start."""

import os
from pathlib import Path

from tidegate.control.cli.develop.dev import Repeats, short, signature


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
