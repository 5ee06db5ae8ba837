"""Reads the graph of a deployed ONNX file, for first predictions (``tidegate.autoscaler.oltunes``)."""

import mmap
from pathlib import Path
from typing import Final

from tidegate.autoscaler.oltunes.prediction.analysis import ModelFigures, analyse
from tidegate.autoscaler.oltunes.prediction.onnx_graph import GraphError, read
from tidegate.function import Function, ModelFormat, ServerKind

MAX_BYTES: Final = 8 << 30


def model_key(function: Function) -> str:
    """Returns the name under which samples of a function's model are learnt: functions with the same file, class or
    command share it. Bytes of a path that are not UTF-8 are escaped."""
    server = function.server
    if server.forms:
        name = f"{server.kind}:{server.target}/{function.dnn.name}/{function.dnn.quantization}"
    else:
        name = f"{server.kind}:{server.target or ' '.join(server.argv)}"
    return name.encode(errors="backslashreplace").decode()


def has_graph(function: Function) -> bool:
    """Returns whether the function's model is an ONNX file."""
    return function.server.kind is ServerKind.MODEL and function.server.format is ModelFormat.ONNX


def graph_file(function: Function) -> Path | None:
    """Returns the ONNX file of the function's model; None if it has none."""
    if not has_graph(function):
        return None
    forms = function.server.forms
    return Path(forms[0].path if forms else function.server.target)


def figures_of_file(path: Path) -> ModelFigures | None:
    """Returns the figures of an ONNX file; None if it cannot be read. The weights are skipped, so that a file of a
    gigabyte takes no longer than its graph."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(data) > MAX_BYTES:
            return None
        return analyse(read(data))  # type: ignore[arg-type]  # A map reads like bytes.
    except (OSError, ValueError, GraphError):
        return None


def figures_of(function: Function) -> ModelFigures | None:
    """Returns the figures of the function's model; None if it has no graph that can be read. Reads a file."""
    path = graph_file(function)
    return None if path is None else figures_of_file(path)
