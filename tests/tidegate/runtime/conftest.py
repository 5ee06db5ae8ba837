"""Small ONNX models and handler files, written when a test asks for them."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

WriteOnnx = Callable[..., Path]
WriteHandler = Callable[[str], Path]


@pytest.fixture
def write_onnx(tmp_path: Path) -> WriteOnnx:
    """Writes a model of the given nodes; inputs and outputs are (name, ONNX element type, shape)."""
    from onnx import checker, helper, save

    def write(
        nodes: Sequence[Any],
        inputs: Sequence[tuple[str, int, Sequence[int | str | None]]],
        outputs: Sequence[tuple[str, int, Sequence[int | str | None]]],
        name: str = "model.onnx",
    ) -> Path:
        graph = helper.make_graph(
            nodes,
            "test",
            [helper.make_tensor_value_info(*value) for value in inputs],
            [helper.make_tensor_value_info(*value) for value in outputs],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        checker.check_model(model)
        save(model, str(tmp_path / name))
        return tmp_path / name

    return write


@pytest.fixture
def write_handler(tmp_path: Path) -> WriteHandler:
    """Writes ``handler_N.py`` in a folder of its own and returns its path."""
    written: list[Path] = []

    def write(text: str) -> Path:
        folder = tmp_path / f"handler_{len(written)}"
        folder.mkdir()
        path = folder / f"user_{tmp_path.name.replace('-', '_')}_{len(written)}.py"
        path.write_text(text)
        written.append(path)
        return path

    return write


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Handlers put their folder on the path and their module among the others; a test leaves neither behind."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if "user_" in name or name in ("gateway", "helper", "documented_handler", "handler"):
            del sys.modules[name]
