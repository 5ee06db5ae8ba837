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


def write_product(path: Path, size: int = 384, products: int = 4) -> None:
    """Writes a model without batches whose run takes some milliseconds on one core."""
    import numpy
    from onnx import helper, numpy_helper, save

    weights = numpy_helper.from_array(numpy.eye(size, dtype="float32"), "w")
    nodes = [helper.make_node("Mul", ["w", "x"], ["h0"])]
    nodes += [helper.make_node("MatMul", [f"h{n}", "w"], [f"h{n + 1}"]) for n in range(products)]
    nodes.append(helper.make_node("ReduceSum", [f"h{products}"], ["y"], keepdims=0))
    ends = [helper.make_tensor_value_info("x", 1, [1]), helper.make_tensor_value_info("y", 1, [])]
    graph = helper.make_graph(nodes, "product", ends[:1], ends[1:], [weights])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


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
        if "user_" in name or name in ("gateway", "helper", "documented_handler", "documented_stream", "handler"):
            del sys.modules[name]
