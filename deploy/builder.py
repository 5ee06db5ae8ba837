"""Builds a manifest from a file and flags: what `tidegate deploy model.onnx --latency 200ms` deploys.

The result is the text of an ordinary manifest and goes through the same parser (:mod:`tidegate.manifest.reader`). The
meaning and bounds of a flag are those of the table of annotations.
"""

import ast
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Final

from tidegate.errors import Fault, InvalidInputError
from tidegate.manifest.annotations import PREFIX
from tidegate.manifest.builder import NAME_KIND
from tidegate.manifest.spec import API_VERSION, HANDLER, KIND
from tidegate.schema.rows import accepts
from tidegate.schema.yaml_nodes import dump

NAME_LENGTH: Final = 50
"""Characters of a derived name. They leave room for what revisions and replicas append within a DNS label."""
MODEL_SUFFIXES: Final = (".onnx", ".ort")


def from_file(
    path: str,
    *,
    name: str | None = None,
    flags: Mapping[str, str] | None = None,
    accelerators: Sequence[str] = (),
    size_bytes: int | None = None,
) -> str | None:
    """Returns the manifest of ``model.onnx`` or ``file.py:Class``. Returns None if ``path`` is neither, so it is a
    manifest itself."""
    if path.endswith(MODEL_SUFFIXES):
        return from_model(path, name=name, flags=flags, accelerators=accelerators, size_bytes=size_bytes)
    if ".py:" in path:
        return from_handler(path, name=name, flags=flags, accelerators=accelerators)
    return None


def from_model(
    path: str,
    *,
    name: str | None = None,
    flags: Mapping[str, str] | None = None,
    accelerators: Sequence[str] = (),
    size_bytes: int | None = None,
) -> str:
    """Returns the manifest of an ONNX file. ``flags`` are annotations without prefix; ``size_bytes`` is the file's
    size, if known."""
    return _manifest({"model": path}, name or name_of(path), flags or {}, accelerators, size_bytes)


def from_handler(
    target: str,
    *,
    name: str | None = None,
    flags: Mapping[str, str] | None = None,
    accelerators: Sequence[str] = (),
) -> str:
    """Returns the manifest of a Python class, given as ``file.py:Class``."""
    if not accepts(HANDLER, target):
        raise InvalidInputError(target, [Fault("file", repr(target), HANDLER.allowed)])
    file = target.rpartition(":")[0]
    return _manifest({"handler": target}, name or name_of(file), flags or {}, accelerators, None)


def handler_in(path: str, source: str) -> str:
    """Returns ``file.py:Class`` for the only class with a ``predict`` in a handler's source. Raises InvalidInputError
    if there is not exactly one."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError) as error:
        raise InvalidInputError(path, [Fault("file", f"{path} ({error})", "a Python file")]) from error
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    found = [
        node.name
        for node in body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(each, functions) and each.name == "predict" for each in node.body)
    ]
    if len(found) != 1:
        what = f"{path} with {', '.join(found) or 'no class that has predict(inputs)'}"
        raise InvalidInputError(path, [Fault("file", what, "a file with one such class, or FILE.py:CLASS")])
    return f"{path}:{found[0]}"


def slo_flags(text: str) -> dict[str, str]:
    """Returns ``p99=200ms`` as the annotations ``percentile`` and ``latency``. Their own rules check the values."""
    percentile, equals, latency = text.partition("=")
    if not equals or not latency or not re.fullmatch(r"p[0-9]{1,2}(\.[0-9]{1,3})?", percentile):
        raise InvalidInputError("command line", [Fault("--slo", repr(text), "pPERCENTILE=LATENCY, like p99=200ms")])
    return {"percentile": percentile[1:], "latency": latency}


def name_of(path: str) -> str:
    """Derives a function's name from a file's: ``models/ResNet_50 v2.onnx`` -> ``resnet-50-v2``."""
    stem = posixpath.splitext(posixpath.basename(path))[0].lower()
    label = re.sub(r"[^a-z0-9]+", "-", stem)[:NAME_LENGTH].strip("-")
    return label or "model"


def _manifest(
    server: dict[str, str], name: str, flags: Mapping[str, str], accelerators: Sequence[str], size_bytes: int | None
) -> str:
    if not accepts(NAME_KIND, name):
        raise InvalidInputError(next(iter(server.values())), [Fault("--name", repr(name), NAME_KIND.allowed)])
    annotations = {f"{PREFIX}{key}": value for key, value in {**_defaults(name, flags, size_bytes), **flags}.items()}
    metadata: dict[str, object] = {"name": name}
    if annotations:
        metadata["annotations"] = annotations
    spec: dict[str, object] = {"server": server}
    if accelerators:
        spec["accelerators"] = list(accelerators)
    return dump({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})


GPU_FLAGS: Final = frozenset({"gpu-model", "gpu-mem-limit", "mps-on", "gpu-core-percentage", "gpu-count"})
CONTEXT_BYTES: Final = 500 * 10**6


def _defaults(name: str, flags: Mapping[str, str], size_bytes: int | None) -> dict[str, str]:
    """Returns annotations that SMIF requires for a GPU, or for a stored form, and that the file itself answers.

    Our choice for the memory: twice the file (weights, and as much again for activations) and 0.5 GB for the GPU
    context, in tenths of a GB.
    """
    needs_gpu = not GPU_FLAGS.isdisjoint(flags)
    if not needs_gpu and "dnn-quantization" not in flags:
        return {}
    filled = {"dnn-model": name}
    if needs_gpu and size_bytes is not None:
        tenths = -(-(2 * size_bytes + CONTEXT_BYTES) // 10**8)
        filled["gpu-mem-limit"] = f"{tenths // 10}.{tenths % 10}"
    return filled
