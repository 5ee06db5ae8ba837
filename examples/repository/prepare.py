"""Prepares the repository example: one model in two stored forms, fp32 and int8, and an accelerators file.

    python examples/repository/prepare.py [DIRECTORY]        prints the path of the manifest

The model is that of the ``magika`` example: content-type identification, real weights. The int8 form is made from it by
ONNX Runtime's dynamic quantization, and needs a quarter of the memory for its weights. DIRECTORY (default: a folder in
the cache) then holds ``models/magika/cpu-large/fp32/b4.onnx`` and ``models/magika/cpu-small/int8/b4.onnx``.
"""

import importlib.util
import logging
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def find_model() -> Path:
    """Returns the newest model of the installed package. Raises FileNotFoundError if there is none."""
    spec = importlib.util.find_spec("magika")
    models = [] if spec is None or spec.origin is None else Path(spec.origin).parent.glob("models/*/model.onnx")
    if not (found := sorted(models)):
        raise FileNotFoundError("the package `magika` is not installed: pip install 'tidegate[examples,onnx]'")
    return found[-1]


def quantize(model: Path, target: Path) -> None:
    """Writes the model with weights of 8 bits; the activations are quantized at each run."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)  # it recommends a step of its own for convolutions, of which this model has few
    quantize_dynamic(model, target, weight_type=QuantType.QUInt8)
    logging.disable(logging.NOTSET)


def prepare(directory: str | Path) -> Path:
    """Writes ``models/``, ``manifest.yaml`` and ``accelerators.yaml``; returns the manifest's path."""
    folder = Path(directory).resolve()
    stored = folder / "models" / "magika"
    large, small = stored / "cpu-large" / "fp32", stored / "cpu-small" / "int8"
    for each in (large, small):
        each.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(find_model(), large / "b4.onnx")
    quantize(large / "b4.onnx", small / "b4.onnx")
    for name in ("manifest.yaml", "accelerators.yaml"):
        if folder != HERE:
            shutil.copyfile(HERE / name, folder / name)
    return folder / "manifest.yaml"


if __name__ == "__main__":
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate" / "repository"
    try:
        print(prepare(sys.argv[1] if len(sys.argv) > 1 else cache))
    except FileNotFoundError as error:
        sys.exit(str(error))
