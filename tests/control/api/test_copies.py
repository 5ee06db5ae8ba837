"""What is copied at a deploy, and what of it is kept."""

from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.control.api import copies
from tidegate.control.api.copies import EXTERNAL, Copies
from tidegate.function import Function, ModelFormat, Server, ServerKind, StoredForm


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "copies").mkdir()
    return tmp_path / "copies"


def handler(path: Path) -> Function:
    return Function(name="echo", server=Server(kind=ServerKind.HANDLER, target=f"{path}:Echo"))


def model(path: Path) -> Function:
    return Function(name="net", server=Server(kind=ServerKind.MODEL, target=str(path)))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_each_revision_has_the_content_that_was_deployed(tmp_path: Path, folder: Path) -> None:
    path, kept = tmp_path / "echo.py", Copies(folder)
    path.write_text("VERSION = 1\n")
    first, warning = kept.take(handler(path))
    path.write_text("VERSION = 2\n")
    second, _ = kept.take(handler(path))
    assert warning is None
    assert first.server.copy is not None
    assert second.server.copy is not None
    assert (folder / first.server.copy).read_text() == "VERSION = 1\n"
    assert (folder / second.server.copy).read_text() == "VERSION = 2\n"
    assert first.server.target == second.server.target == f"{path}:Echo", "it stays the module's file"


def test_equal_content_is_kept_once_and_goes_with_the_last_revision_that_has_it(tmp_path: Path, folder: Path) -> None:
    path, kept = tmp_path / "net.onnx", Copies(folder)
    path.write_bytes(b"weights")
    first, _ = kept.take(model(path))
    again, _ = kept.take(replace(model(path), name="other"))
    (folder / ".unfinished").write_bytes(b"of a deploy that was killed")
    kept.sweep([first, again])
    assert names(folder) == {first.server.copy} == {again.server.copy}
    kept.sweep([])
    assert names(folder) == set()


def test_what_replicas_derive_from_a_copy_goes_with_it(tmp_path: Path, folder: Path) -> None:
    path, kept = tmp_path / "net.onnx", Copies(folder)
    path.write_bytes(b"weights")
    mine, _ = kept.take(model(path))
    own = f"{(mine.server.copy or '').removesuffix('.onnx')}.net.mapped"
    for name in (own, "12ab.net.mapped", own.replace(".net.", ".other.")):
        (folder / name / "form").mkdir(parents=True)
        (folder / name / "form" / "weights.bin").write_bytes(b"w")
    kept.sweep([mine])
    assert names(folder) == {mine.server.copy, own}
    kept.sweep([])
    assert names(folder) == set()


def test_each_stored_form_of_a_repository_is_copied(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"small")
    (tmp_path / "b.onnx").write_bytes(b"large" + EXTERNAL)
    kinds = [("t4", "a.onnx"), ("any", "b.onnx")]
    forms = tuple(
        StoredForm(accelerator=kind, path=str(tmp_path / file), format=ModelFormat.ONNX) for kind, file in kinds
    )
    stored = Function(name="net", server=Server(kind=ServerKind.MODEL, target=str(tmp_path), forms=forms))
    kept, warning = Copies(folder).take(stored)
    first, second = kept.server.forms
    assert warning is not None and "no copy of b.onnx" in warning
    assert (second.copy, first.path) == (None, str(tmp_path / "a.onnx"))
    Copies(folder).sweep([kept])
    assert names(folder) == {first.copy}
    Copies(folder).sweep([])
    assert names(folder) == set()


def test_what_cannot_be_copied_is_reported_and_served_from_its_file(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, split, kept = tmp_path / "large.onnx", tmp_path / "split.onnx", Copies(folder)
    large.write_bytes(b"x" * 100)
    split.write_bytes(b"x" * ((1 << 20) - 4) + EXTERNAL + b"\x0bmodel.data1")
    assert kept.take(model(split)) == (model(split), copies._warning(split, "it keeps tensors in files of their own"))
    found, warning = kept.take(model(tmp_path / "gone.onnx"))
    assert (found.server.copy, warning is not None and "No such file" in warning) == (None, True)
    monkeypatch.setattr(copies, "MAX_BYTES", 99)
    found, warning = kept.take(model(large))
    assert (found.server.copy, warning is not None and "larger than" in warning) == (None, True)
    kept.sweep([])
    assert names(folder) == set()


def test_commands_have_nothing_to_copy(folder: Path) -> None:
    function = Function(name="own", server=Server(kind=ServerKind.COMMAND, argv=("serve", "{port}")))
    assert Copies(folder).take(function) == (function, None)


def test_a_models_folder_is_read_where_it_lies_and_the_deploy_says_so(tmp_path: Path, folder: Path) -> None:
    server = Server(kind=ServerKind.MODEL, target=str(tmp_path / "bert"), format=ModelFormat.HUGGINGFACE)
    function = Function(name="bert", server=server)
    kept, warning = Copies(folder).take(function)
    assert kept is function
    assert warning == "no copy of bert is kept (it is a folder): overwriting it changes this revision too"


def test_only_an_onnx_file_is_searched_for_tensors_in_other_files(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "iris.joblib"
    path.write_bytes(b"bytes" + EXTERNAL)
    server = Server(kind=ServerKind.MODEL, target=str(path), format=ModelFormat.SKLEARN)
    kept, warning = Copies(folder).take(Function(name="iris", server=server))
    assert warning is None
    assert kept.server.copy is not None
    assert kept.server.copy.endswith(".joblib")
