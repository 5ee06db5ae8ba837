"""The kinds of things at a path."""

import os
from pathlib import Path

from tidegate.schema.files import Disk, Found, NamedFiles, absolute


def test_the_disk_tells_files_from_folders_and_from_nothing(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "link").symlink_to(file)
    disk = Disk()
    assert disk.look(str(file)) is Found.FILE
    assert disk.look(str(tmp_path / "link")) is Found.FILE
    assert disk.look(str(tmp_path)) is Found.FOLDER
    assert disk.look(str(tmp_path / "pipe")) is Found.OTHER
    for name in ("missing", "loop", "x" * 5000, "nul\0"):
        assert disk.look(str(tmp_path / name)) is Found.MISSING


def test_named_files_stand_in_for_the_disk() -> None:
    files = NamedFiles({"/home/a": Found.UNREADABLE})
    assert files.look("/home/a") is Found.UNREADABLE
    assert files.look("/home/b") is Found.MISSING


def test_paths_start_from_the_folder_of_the_manifest() -> None:
    assert absolute("/home", "a/../b.onnx") == "/home/b.onnx"
    assert absolute("/home", "/models/b.onnx") == "/models/b.onnx"
