"""Prepares the resnet50 example: the ResNet-50 graph that comes with the ``onnx`` package, made batchable.

    python examples/resnet50/prepare.py [DIRECTORY]      prints the path of the manifest

Writes the model and a manifest into DIRECTORY (default: a folder in the cache). The graph is real, its weights are
constants: the answers mean nothing, the 4 billion multiplications per image are real. That makes it a model for load
work that needs no download.
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/tidegate/resnet50``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate" / "resnet50"


def source() -> Path:
    """The graph inside the installed package. Raises FileNotFoundError."""
    spec = importlib.util.find_spec("onnx")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the package `onnx` is not installed: pip install 'tidegate[examples,onnx]'")
    path = Path(spec.origin).parent / "backend" / "test" / "data" / "light" / "light_resnet50.onnx"
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}")
    return path


def make_batchable(original: Path, target: Path) -> None:
    """Frees the first dimension: of the input, of the output, and of the one reshape, which has it as a constant."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(original))
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for value in [*graph.input, *graph.output]:
        if value.name not in constants:
            value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del graph.value_info[:]
    for node in graph.node:
        if node.op_type == "Reshape":
            shape = constants[node.input[1]]
            sizes = numpy_helper.to_array(shape).copy()
            sizes[0] = -1
            shape.CopyFrom(numpy_helper.from_array(sizes, shape.name))
    onnx.checker.check_model(model)
    part = target.with_suffix(".part")
    onnx.save(model, str(part))
    part.replace(target)


def prepare(directory: str | Path) -> Path:
    """Writes ``manifest.yaml`` and ``model.onnx`` into ``directory``; returns the manifest's path."""
    folder = Path(directory).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    make_batchable(source(), folder / "model.onnx")
    manifest = folder / "manifest.yaml"
    if manifest != HERE / "manifest.yaml":
        shutil.copyfile(HERE / "manifest.yaml", manifest)
    return manifest


if __name__ == "__main__":
    try:
        print(prepare(sys.argv[1] if len(sys.argv) > 1 else cache_directory()))
    except FileNotFoundError as error:
        sys.exit(str(error))
