"""The manifest that `tidegate init` writes: it is read, also with every line that shows a default."""

import re
from pathlib import Path

import pytest

from tidegate.autoscaler.policies import registry
from tidegate.control.cli.develop.init import EXAMPLE, manifest
from tidegate.manifest.builder import ParseContext
from tidegate.manifest.reader import Parsed, read


def parsed(text: str, folder: Path) -> Parsed:
    return read(text, source="function.yaml", context=ParseContext(base=str(folder), policies=registry.names()))


@pytest.mark.parametrize("target", ["handler.py:Model", "it's my model.onnx"])
def test_it_is_read_as_it_is_and_with_every_default_that_it_shows(target: str, tmp_path: Path) -> None:
    (tmp_path / target.partition(":")[0]).write_text(EXAMPLE)
    text = manifest(target, None)
    (plain,) = parsed(text, tmp_path).functions
    shown = [line for line in text.splitlines() if re.match(r" *# +[\w./-]+:( |$)", line)]
    assert len(shown) > 10
    uncommented = "\n".join(
        line.replace("# ", "", 1) if line in shown and "python:" not in line else line for line in text.splitlines()
    )
    (again,) = parsed(uncommented, tmp_path).functions
    defaults = {"args": again.args, "env": again.env}
    assert again == type(plain)(**{**{key: getattr(plain, key) for key in plain.__slots__}, **defaults})


def test_it_takes_the_name_that_is_given(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    assert parsed(manifest("m.onnx", "other"), tmp_path).functions[0].name == "other"
