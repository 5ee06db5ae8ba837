"""Mapped forms of ONNX files: the same answers, and the file itself where there is no good form."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import onnxruntime
import pytest

from tests.tidegate.runtime.conftest import write_product
from tidegate.runtime.formats import mapped
from tidegate.runtime.formats.onnx import OnnxModel


def model(path: Path, folder: Path | None) -> OnnxModel:
    found = OnnxModel(
        str(path),
        threads=1,
        max_batch=1,
        providers=("CPUExecutionProvider",),
        mapped=None if folder is None else str(folder),
    )
    found.load()
    return found


def answer(found: OnnxModel) -> Any:
    return found.run({"x": numpy.array([3.0], dtype="float32")})["y"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_product(tmp_path / "product.onnx")
    return tmp_path / "product.onnx"


@pytest.fixture
def form(tmp_path: Path) -> Path:
    return mapped.form_of(str(tmp_path / "forms"), onnxruntime.__version__)


def test_a_form_gives_the_same_answers_and_keeps_the_weights_in_a_file_of_their_own(path: Path, form: Path) -> None:
    mapped.write(str(path), form, onnxruntime)
    assert {each.name for each in form.parent.iterdir()} == {form.name}, "nothing unfinished is left"
    weights = 384 * 384 * 4
    assert (form / mapped.WEIGHTS).stat().st_size >= weights > (form / mapped.MODEL).stat().st_size
    plain = answer(model(path, None))
    path.write_bytes(b"no model")
    assert answer_of_form(path, form) == plain


def answer_of_form(path: Path, form: Path) -> Any:
    """The answer of a model whose own file cannot be read any more."""
    return answer(model(path, form.parent))


def test_a_form_that_cannot_be_loaded_is_said_and_the_file_is_read(
    path: Path, form: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    form.mkdir(parents=True)
    (form / mapped.MODEL).write_bytes(b"cut short")
    assert answer(model(path, form.parent)) == answer(model(path, None))
    assert "is not used" in capfd.readouterr().err


def test_the_first_of_two_writers_wins(path: Path, form: Path) -> None:
    mapped.write(str(path), form, onnxruntime)
    before = (form / mapped.MODEL).stat().st_ino
    mapped.write(str(path), form, onnxruntime)
    assert (form / mapped.MODEL).stat().st_ino == before
    assert {each.name for each in form.parent.iterdir()} == {form.name}


def written(path: Path, form: Path) -> None:
    """Runs the process that writes a form."""
    command = [sys.executable, "-P", "-m", "tidegate.runtime.formats.mapped", str(path), str(form)]
    subprocess.run(command, check=True, timeout=60)


def test_of_several_writers_one_works_and_the_last_form_of_an_older_version_is_kept(path: Path, form: Path) -> None:
    for age, name in enumerate(("1.0-aaa", "1.1-aaa", "1.1-aaa.4194305")):
        form.with_name(name).mkdir(parents=True)
        os.utime(form.with_name(name), (1000.0 + age, 1000.0 + age * (name != "1.1-aaa.4194305")))
    folder = os.open(form.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        written(path, form)
        assert not form.exists(), "another one is at work"
    finally:
        os.close(folder)
    written(path, form)
    assert {each.name for each in form.parent.iterdir()} == {form.name, "1.1-aaa"}


def test_what_a_killed_writer_left_goes_with_the_next_one(path: Path, form: Path) -> None:
    form.with_name(f"{form.name}.4194305").mkdir(parents=True)  # above the largest pid
    mapped.write(str(path), form, onnxruntime)
    assert {each.name for each in form.parent.iterdir()} == {form.name}


def test_small_files_get_no_form_and_a_form_is_written_once(path: Path, form: Path) -> None:
    assert not mapped.is_wanted(str(path), form)
    with path.open("ab") as file:
        file.truncate(mapped.LEAST_BYTES)
    assert mapped.is_wanted(str(path), form)
    form.mkdir(parents=True)
    assert not mapped.is_wanted(str(path), form)


def test_another_version_or_processor_has_a_form_of_its_own() -> None:
    assert mapped.form_of("/forms", "1.31.1") != mapped.form_of("/forms", "1.31.2")
    assert mapped.form_of("/forms", "1.31.1") == mapped.form_of("/forms", "1.31.1")


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path, form: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"no model")
    with pytest.raises(Exception, match=r"."):
        mapped.write(str(tmp_path / "no.onnx"), form, onnxruntime)
    assert not list(form.parent.iterdir())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_freed_memory_is_given_back_to_the_system() -> None:
    mapped.give_back()
