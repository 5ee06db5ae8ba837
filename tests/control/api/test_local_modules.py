"""The modules beside a handler that it imports, found without running anything."""

import io
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from tidegate.control.api import local_modules
from tidegate.control.api.local_modules import TooManyError, find


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "handler.py"


def names(handler: Path) -> list[str]:
    return sorted(find(handler, handler.read_bytes()).files)


def test_modules_and_packages_are_followed_and_nothing_else_is_taken(tmp_path: Path) -> None:
    handler = write(
        tmp_path,
        {
            "handler.py": "import json, helper\nfrom pack.part import x\ndef f():\n    import late\n",
            "helper.py": "import deeper\nimport handler\n",
            "deeper.py": "from . import nothing\n",
            "late.py": "def broken(:\n",
            "pack/__init__.py": "from .part import x\n",
            "pack/part.py": "x = 1\n",
            "pack/sub/other.py": "",
            "pack/data.txt": "no code",
            "unused.py": "",
            "spaces/inner.py": "",
        },
    )
    assert names(handler) == [
        "deeper.py",
        "helper.py",
        "late.py",
        "pack/__init__.py",
        "pack/part.py",
        "pack/sub/other.py",
    ]
    handler.write_text("import spaces.inner, numpy\n")
    assert names(handler) == ["spaces/inner.py"], "a folder without __init__.py"


def test_the_digest_is_of_paths_and_contents_and_the_bundle_has_both(tmp_path: Path) -> None:
    handler = write(tmp_path, {"handler.py": "import helper\n", "helper.py": "A = 1\n"})
    first = find(handler, handler.read_bytes())
    (tmp_path / "helper.py").write_text("A = 2\n")
    second = find(handler, handler.read_bytes())
    assert first.digest != second.digest
    target = io.BytesIO()
    first.write(target)
    with zipfile.ZipFile(target) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {"helper.py": b"A = 1\n"}


def test_compiled_modules_are_named_and_bounds_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = write(tmp_path, {"handler.py": "import fast, a, b\n", "a.py": "", "b.py": "x" * 100})
    compiled = f"fast{EXTENSION_SUFFIXES[0]}"
    (tmp_path / compiled).write_bytes(b"\x7fELF")
    assert find(handler, handler.read_bytes()).compiled == [compiled]
    monkeypatch.setattr(local_modules, "MAX_FILES", 1)
    with pytest.raises(TooManyError, match="more than 1 files"):
        find(handler, handler.read_bytes())
